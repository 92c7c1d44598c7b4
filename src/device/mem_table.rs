//! Memory regions by key, for providers whose remote accesses are carried out by software: the
//! software adapter and provider tcp.
//!
//! A remote access names a key, an address and a length. All three are checked against the table
//! before a byte moves, under a lock that `remove` waits for. Bytes that are sent after the lock is
//! released are under a [`MemLease`], for which `remove` waits as well. A key is 64 random bits,
//! and every refusal has the same status. A domain without FI_MR_PROV_KEY uses the keys that the
//! application asks for; a domain without FI_MR_VIRT_ADDR addresses regions by offset: see
//! [`Naming`].

use crate::core::hash::ByWords;
use crate::core::sync::{Mutex, RwLock, RwLockReadGuard, Unpoisoned};
use crate::core::{check, Info, Result};
use crate::device::host::secret;
use crate::hmem::UserMem;
use crate::transport::Status;
use crate::types::*;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;
use std::thread::yield_now;

/// Most regions of one table.
const MOST: usize = 1 << 20;

#[derive(Debug)]
struct SoftRegion {
    mem: UserMem,
    base: u64,
    len: u64,
    access: u64,
    /// The application's, not one that the library has registered for a message.
    is_users: bool,
}

type Regions = HashMap<u64, SoftRegion, ByWords>;

/// How memory is named and registered, as a domain's mr_mode says (fi_mr(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Keys are the application's choice.
    pub own_keys: bool,
    /// Addresses begin at 0 in every region.
    pub offsets: bool,
    /// The application registers its local buffers, too (FI_MR_LOCAL), and closes no region that an
    /// operation uses.
    pub local: bool,
}

impl Naming {
    /// The naming that a domain of this `info` has. A domain that is no RMA target has the default.
    pub fn of(info: &Info) -> Naming {
        let mode = info.domain.as_ref().map_or(FI_MR_BASIC, |d| d.mr_mode);
        let plain = mode & FI_MR_BASIC != 0 || !check::rma_target(info.caps);
        Naming {
            own_keys: !plain && mode & FI_MR_PROV_KEY == 0,
            offsets: !plain && mode & FI_MR_VIRT_ADDR == 0,
            local: mode & FI_MR_LOCAL != 0,
        }
    }
}

/// The table of one adapter in one process.
pub(crate) struct MemTable {
    regions: RwLock<Regions>,
    naming: Naming,
    leases: Leases,
}

/// Leases of one table. New ones are counted by the parity of `turn`, so that `remove` can wait for
/// those that precede it while new ones go on.
#[derive(Default)]
struct Leases {
    turn: AtomicUsize,
    counts: [AtomicUsize; 2],
    /// Held by the `remove` that waits.
    waiting: Mutex<()>,
}

/// Keeps [`MemTable::remove`] from returning. The holder of a lease may use what
/// [`RegionsRead::find`] returned under the lock that the lease was taken under.
pub(crate) struct MemLease {
    table: Arc<MemTable>,
    parity: usize,
}

impl MemLease {
    /// A lease on what `read`, a lock of `table`, finds.
    pub(crate) fn new(table: &Arc<MemTable>, _read: &RegionsRead) -> MemLease {
        // The lock keeps `remove` from starting a new turn between these two.
        let parity = table.leases.turn.load(Relaxed) & 1;
        table.leases.count(parity).fetch_add(1, Relaxed);
        MemLease {
            table: Arc::clone(table),
            parity,
        }
    }
}

impl Drop for MemLease {
    fn drop(&mut self) {
        self.table.leases.count(self.parity).fetch_sub(1, Release);
    }
}

impl Leases {
    fn count(&self, parity: usize) -> &AtomicUsize {
        let [even, odd] = &self.counts;
        if parity & 1 == 0 {
            even
        } else {
            odd
        }
    }

    /// Waits for the leases of the turn that ended as `ended`. A lease lasts as long as a batch of
    /// packets takes from the first to the system call.
    fn wait(&self, ended: usize) {
        while self.count(ended).load(Acquire) > 0 {
            yield_now();
        }
    }
}

/// Read access to the table, for remote accesses.
pub(crate) struct RegionsRead<'a>(RwLockReadGuard<'a, Regions>);

impl MemTable {
    /// An empty table.
    pub(crate) fn new(naming: Naming) -> Self {
        MemTable {
            regions: RwLock::default(),
            naming,
            leases: Leases::default(),
        }
    }

    /// Adds a region and returns its key, and the address by which peers name its first byte.
    /// `wanted` is the application's key, which counts only where keys are the application's
    /// choice. A region without `wanted` is the library's own, and is addressed by virtual address.
    /// `FI_ENOMR` when the table is full, `FI_ENOMEM` when it cannot grow, `FI_ENOKEY` when
    /// `wanted` is in use.
    pub(crate) fn insert(
        &self,
        mem: UserMem,
        access: u64,
        wanted: Option<u64>,
    ) -> Result<(u64, u64)> {
        let is_users = wanted.is_some();
        let offsets = self.naming.offsets && is_users;
        // A region that no peer reaches needs no key: applications give all of them the same.
        let remote = access & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0;
        let wanted = wanted.filter(|_| self.naming.own_keys && remote);
        let mut r = self.regions.write().unpoisoned();
        if r.len() >= MOST {
            return Err(FI_ENOMR);
        }
        r.try_reserve(1).map_err(|_| FI_ENOMEM)?;
        let key = match wanted {
            Some(k) if r.contains_key(&k) => return Err(FI_ENOKEY),
            Some(k) => k,
            None => loop {
                let k = secret()?;
                if !matches!(k, 0 | FI_KEY_NOTAVAIL) && !r.contains_key(&k) {
                    break k;
                }
            },
        };
        let base = if offsets { 0 } else { mem.addr() as u64 };
        let len = mem.len() as u64;
        r.insert(
            key,
            SoftRegion {
                mem,
                base,
                len,
                access,
                is_users,
            },
        );
        Ok((key, base))
    }

    /// Removes a region; accesses under way have ended when the call returns. `FI_ENOKEY` when
    /// there is no region of this key.
    pub(crate) fn remove(&self, key: u64) -> Result<()> {
        let leases = &self.leases;
        // One at a time: of two turns, the older one has to be empty before the next begins.
        let _waiting = leases.waiting.lock().unpoisoned();
        let mut r = self.regions.write().unpoisoned();
        r.remove(&key).ok_or(FI_ENOKEY)?;
        let ended = leases.turn.fetch_add(1, Relaxed);
        drop(r);
        leases.wait(ended);
        Ok(())
    }

    /// Locks the table for remote accesses.
    pub(crate) fn access(&self) -> RegionsRead<'_> {
        RegionsRead(self.regions.read().unpoisoned())
    }
}

impl RegionsRead<'_> {
    /// Whether the application registered this region: accesses to it are counted.
    pub(crate) fn is_users(&self, key: u64) -> bool {
        self.0.get(&key).is_some_and(|r| r.is_users)
    }

    /// The memory that a peer names, if the region permits `need` (`FI_REMOTE_READ` or
    /// `FI_REMOTE_WRITE`). All refusals have the same status, so that a peer cannot probe for keys.
    pub(crate) fn find(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        need: u64,
    ) -> core::result::Result<UserMem, Status> {
        let r = self.0.get(&key).ok_or(Status::RemoteBadKey)?;
        let off = addr.wrapping_sub(r.base);
        let inside = addr >= r.base && off <= r.len && len <= r.len - off.min(r.len);
        if r.access & need != need || !inside {
            return Err(Status::RemoteBadKey);
        }
        Ok(r.mem.part(off as usize, len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_no_order_and_no_pattern() {
        let buf = [0u8; 64];
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(Naming::default());
        let keys: Vec<u64> = (0..1000)
            .map(|_| t.insert(mem, FI_REMOTE_READ, None).unwrap().0)
            .collect();
        // Each of the 64 bits is set in about half of the 1000 keys: 100 more or less are 6
        // standard deviations.
        for bit in 0..64 {
            let ones = keys.iter().filter(|k| *k >> bit & 1 == 1).count();
            assert!((400..=600).contains(&ones), "bit {bit}: {ones} of 1000");
        }
    }

    #[test]
    fn a_region_is_removed_when_what_was_lent_of_it_is_returned() {
        let buf = [0u8; 64];
        let at = buf.as_ptr() as u64;
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = Arc::new(MemTable::new(Naming::default()));
        let key = || t.insert(mem, FI_REMOTE_READ, None).unwrap().0;
        let (first, second) = (key(), key());
        let lend = || MemLease::new(&t, &t.access());
        let found = |k| t.access().find(k, at, 64, FI_REMOTE_READ).is_ok();
        let (lease, returned) = (lend(), AtomicUsize::new(0));
        std::thread::scope(|s| {
            s.spawn(|| {
                t.remove(first).unwrap();
                assert_eq!(returned.load(Relaxed), 1);
            });
            while found(first) {
                yield_now();
            }
            // The other thread may return now if it does not wait.
            (0..1000).for_each(|_| yield_now());
            returned.store(1, Relaxed);
            let later = lend();
            drop(lease);
            // The first removal does not wait for `later`, the second does.
            s.spawn(|| {
                t.remove(second).unwrap();
                assert_eq!(returned.load(Relaxed), 2);
            });
            while found(second) {
                yield_now();
            }
            (0..1000).for_each(|_| yield_now());
            returned.store(2, Relaxed);
            drop(later);
        });
    }

    #[test]
    fn a_scalable_table_has_the_keys_asked_for() {
        let buf = [0u8; 64];
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(Naming {
            own_keys: true,
            offsets: true,
            ..Naming::default()
        });
        assert_eq!(t.insert(mem, FI_REMOTE_READ, Some(7)), Ok((7, 0)));
        assert_eq!(t.insert(mem, FI_REMOTE_READ, Some(7)), Err(FI_ENOKEY));
        let find = |a, l| t.access().find(7, a, l, FI_REMOTE_READ).map(|m| m.len());
        assert_eq!(find(0, 64), Ok(64));
        assert_eq!(find(1, 64), Err(Status::RemoteBadKey));
        t.remove(7).unwrap();
        assert_eq!(find(0, 1), Err(Status::RemoteBadKey));
    }

    #[test]
    fn every_access_is_checked_and_refusals_are_alike() {
        let mut buf = [0u8; 64];
        let at = buf.as_mut_ptr() as u64;
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(Naming::default());
        let (k, _) = t.insert(mem, FI_REMOTE_WRITE, None).unwrap();
        let find = |k, a, l, n| t.access().find(k, a, l, n).map(|m| m.len());
        assert_eq!(find(k, at, 64, FI_REMOTE_WRITE), Ok(64));
        assert_eq!(find(k, at + 64, 0, FI_REMOTE_WRITE), Ok(0));
        for (key, a, len, need) in [
            (k, at + 1, 64, FI_REMOTE_WRITE),
            (k, at - 1, 1, FI_REMOTE_WRITE),
            (k, at, u64::MAX, FI_REMOTE_WRITE),
            (k, at + 65, 0, FI_REMOTE_WRITE),
            (k, at, 1, FI_REMOTE_READ),
            (k ^ 1 << 50, at, 1, FI_REMOTE_WRITE),
            (0, at, 1, FI_REMOTE_WRITE),
        ] {
            assert_eq!(find(key, a, len, need), Err(Status::RemoteBadKey));
        }
        t.remove(k).unwrap();
        assert_eq!(t.remove(k), Err(FI_ENOKEY));
        assert_eq!(find(k, at, 1, FI_REMOTE_WRITE), Err(Status::RemoteBadKey));
    }
}
