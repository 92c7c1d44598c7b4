//! Registered memory: regions that peers may access, and buffers of our own operations.
//!
//! The table finds regions of the application by key, for operations carried out in software, and
//! by address, so that a buffer inside a region needs no registration of its own. Long internal
//! registrations are cached for later operations (`mr_cache`) where the system reports changes of
//! the address space; elsewhere a registration ends with its last user. An operation shares the key
//! of a region of the application around its memory where applications register all of it
//! (FI_MR_LOCAL), and where a registration of its own would not be kept. A region ends when the
//! application closes it, also while operations share it.

use super::list::Adapter;
use super::sys::*;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::{params, Result};
use crate::device::mr_cache::{Cache, Limits};
use crate::device::{DmaBuf, MrObserver};
use crate::hmem::{MemKind, UserMem};
use crate::transport::Status;
use crate::types::*;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::sync::Arc;

struct VerbsRegion {
    /// `None`: device memory that the adapter cannot reach; operations copy it.
    mr: Option<Arc<RegionRef>>,
    mem: UserMem,
    access: u64,
    /// Verbs access flags.
    rights: c_int,
    /// Operations that use it.
    users: u32,
    /// The application's.
    published: bool,
}

#[derive(Default)]
struct RegionTable {
    by_key: HashMap<u64, VerbsRegion>,
    /// End of each region (one past the last byte), by first byte and key.
    by_addr: BTreeMap<(usize, u64), usize>,
    /// Length of the longest region, bytes: no search goes back further.
    longest: usize,
    /// Operations that shared a region which was closed, by key: their release is still to come.
    closed: HashMap<u64, u32>,
}

impl RegionTable {
    /// A region of the application that contains these bytes, is registered with the adapter, and
    /// satisfies `fits`. Internal registrations belong to the operation that made them: they end
    /// with it, and the cache alone checks whether their memory is still the same.
    fn around(&self, addr: usize, len: usize, fits: impl Fn(&VerbsRegion) -> bool) -> Option<u64> {
        let end = addr.checked_add(len)?;
        let from = addr.saturating_sub(self.longest);
        let fits = |r: &VerbsRegion| r.published && r.mr.is_some() && fits(r);
        self.by_addr
            .range((from, 0)..=(addr, u64::MAX))
            .rev()
            .find(|((_, key), last)| **last >= end && self.by_key.get(key).is_some_and(fits))
            .map(|((_, key), _)| *key)
    }
}

/// Lowest key of a region that is not registered with the adapter, whose own keys have 32 bits.
pub(crate) const OWN_KEYS: u64 = 1 << 32;

/// Result of the last look-up by address; valid until a registration is withdrawn.
#[derive(Clone, Copy, Default)]
pub(crate) struct FoundRegion {
    from: usize,
    len: usize,
    lkey: u32,
    write: bool,
    /// Value of [`VerbsMemory::withdrawn`] at the look-up.
    at: u64,
}

/// Registered memory of a protection domain. Thread safe.
pub(crate) struct VerbsMemory {
    adapter: &'static Adapter,
    pd: *mut ibv_pd,
    /// The application closes no region that an operation uses.
    local: bool,
    table: Mutex<RegionTable>,
    /// Registrations withdrawn so far.
    withdrawn: AtomicU64,
    directory: Mutex<Option<Arc<dyn MrObserver>>>,
    kept: Option<Cache<RegionRef>>,
    /// Next key of a region that is not registered with the adapter.
    next_own_key: AtomicU64,
}

// SAFETY: `pd` is only passed to libibverbs, whose calls are safe from any thread.
unsafe impl Send for VerbsMemory {}
// SAFETY: as above; the rest is behind locks.
unsafe impl Sync for VerbsMemory {}

/// A registration, withdrawn when dropped.
pub(crate) struct RegionRef {
    lib: &'static Lib,
    mr: *mut ibv_mr,
}

// SAFETY: a registration may be used and withdrawn by any thread.
unsafe impl Send for RegionRef {}
// SAFETY: as above; what is read of it does not change.
unsafe impl Sync for RegionRef {}

impl RegionRef {
    /// Its local key.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: registered, and not withdrawn before `self` goes.
        unsafe { (*self.mr).lkey }
    }

    /// Its remote key.
    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }
}

impl Drop for RegionRef {
    fn drop(&mut self) {
        // SAFETY: registered once, withdrawn once; the adapter is done with it (the owner's
        // promise).
        let e = unsafe { (self.lib.ibv_dereg_mr)(self.mr) };
        if e != 0 {
            // The adapter was removed, or has failed: it accesses no memory any more.
            crate::warn_limited!(
                FI_LOG_MR,
                "the adapter has not withdrawn a registration: {}",
                crate::core::errno::text(e.abs())
            );
        }
    }
}

/// The cache of internal registrations; `None` if it is disabled or the system has no support.
fn cache(regions: usize) -> Option<Cache<RegionRef>> {
    let p = params::efa();
    if !p.mr_cache_enable {
        return None;
    }
    Cache::new(Limits {
        // Leaves most of the adapter's regions to applications.
        count: p.mr_max_cached_count.unwrap_or((regions / 4).min(1024)),
        bytes: p.mr_max_cached_size.unwrap_or(usize::MAX),
    })
}

impl VerbsMemory {
    /// A new protection domain. `local`: as `Naming::local`.
    pub(crate) fn new(adapter: &'static Adapter, local: bool) -> Result<VerbsMemory> {
        // SAFETY: the context of an adapter that is `'static` stays open.
        let pd = unsafe { (adapter.lib.ibv_alloc_pd)(adapter.context) };
        if pd.is_null() {
            crate::warn_log!(
                FI_LOG_DOMAIN,
                "{}: no protection domain: {}. EIO: the adapter has failed, or was removed; \
                 ENOMEM: too many are open",
                adapter.attr.name,
                std::io::Error::last_os_error()
            );
            return Err(FI_ENOMEM);
        }
        Ok(VerbsMemory {
            adapter,
            pd,
            local,
            table: Mutex::default(),
            withdrawn: AtomicU64::new(1),
            directory: Mutex::new(None),
            kept: cache(adapter.attr.identity.as_ref().map_or(0, |i| i.regions)),
            next_own_key: AtomicU64::new(OWN_KEYS),
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    /// Whether packet buffers may use huge pages.
    pub(crate) fn huge_pages(&self) -> bool {
        self.adapter.huge_pages
    }

    /// Reports regions to the observer `to` from now on.
    pub(crate) fn publish(&self, to: Arc<dyn MrObserver>) {
        *self.directory.lock().unpoisoned() = Some(to);
    }

    fn table(&self) -> MutexGuard<'_, RegionTable> {
        self.table.lock().unpoisoned()
    }

    fn register(&self, addr: usize, len: usize, access: c_int) -> Result<RegionRef> {
        let mut mr = self.reg_mr(addr, len, access);
        if let (true, Some(kept)) = (mr.is_null(), &self.kept) {
            // Registrations that no operation uses may hold what is missing.
            let full = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOMEM);
            if full && kept.clear() {
                mr = self.reg_mr(addr, len, access);
            }
        }
        self.registered(mr, (addr, len), access)
    }

    fn reg_mr(&self, addr: usize, len: usize, access: c_int) -> *mut ibv_mr {
        // SAFETY: the kernel checks the range and pins it; its bytes are the application's (see
        // `UserMem::new`), or ours.
        unsafe { (self.adapter.lib.ibv_reg_mr)(self.pd, addr as *mut _, len, access) }
    }

    /// Registers a dma-buf whose addresses begin at `addr`.
    fn register_dmabuf(
        &self,
        from: DmaBuf,
        (addr, len): (usize, usize),
        access: c_int,
    ) -> Result<RegionRef> {
        let Some(reg) = self.adapter.lib.ibv_reg_dmabuf_mr else {
            crate::warn_log!(
                FI_LOG_MR,
                "FI_MR_DMABUF: this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)"
            );
            return Err(FI_EOPNOTSUPP);
        };
        // SAFETY: the kernel checks descriptor, offset and length.
        let mr = unsafe { reg(self.pd, from.offset, len, addr as u64, from.fd, access) };
        self.registered(mr, (addr, len), access)
    }

    /// Registers device memory: as a dma-buf that the application passed or the device's interface
    /// exports, or else by its address. `None`, and a log line, where the adapter cannot reach the
    /// memory.
    fn register_device(
        &self,
        kind: MemKind,
        at: (usize, usize),
        from: Option<DmaBuf>,
        access: c_int,
    ) -> Option<Arc<RegionRef>> {
        if params::hmem().hmem_disable_p2p || at.1 == 0 {
            return None;
        }
        let dmabuf = |from| self.register_dmabuf(from, at, access);
        let exported = match from {
            Some(from) => dmabuf(from),
            None => crate::hmem::export(kind, at.0, at.1).and_then(|e| {
                dmabuf(DmaBuf {
                    fd: e.fd.as_raw_fd(),
                    offset: e.offset,
                })
            }),
        };
        let lib = self.adapter.lib;
        let by_address = || Some(self.reg_mr(at.0, at.1, access)).filter(|mr| !mr.is_null());
        let done = exported.ok();
        let done = done.or_else(|| by_address().map(|mr| RegionRef { lib, mr }));
        if done.is_none() {
            crate::warn_log!(
                FI_LOG_MR,
                "device memory ({kind:?}) of {} bytes at {:#x}: adapter {} cannot reach it by \
                 dma-buf nor by address (nvidia-peermem): wanted peer-to-peer, had copies",
                at.1,
                at.0,
                self.adapter.attr.name
            );
        }
        done.map(Arc::new)
    }

    /// The result of a registration: logs a failure and maps its errno.
    fn registered(
        &self,
        mr: *mut ibv_mr,
        (addr, len): (usize, usize),
        access: c_int,
    ) -> Result<RegionRef> {
        if !mr.is_null() {
            let lib = self.adapter.lib;
            return Ok(RegionRef { lib, mr });
        }
        let e = std::io::Error::last_os_error();
        let regions = self.adapter.attr.identity.as_ref().map_or(0, |i| i.regions);
        let (errno, why) = match e.raw_os_error() {
            Some(libc::ENOMEM) => (
                FI_ENOMR,
                format!(
                    "the locked memory (ulimit -l) or the adapter's {regions} regions are used up"
                ),
            ),
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => (
                FI_EOPNOTSUPP,
                "the adapter, the kernel or libefa cannot register this kind of memory, or for \
                 this access"
                    .into(),
            ),
            Some(libc::EFAULT | libc::EINVAL | libc::EBADF) => {
                (FI_EINVAL, "no such memory, or it may not be written".into())
            }
            _ => (FI_EIO, "the adapter refuses it".into()),
        };
        crate::warn_log!(
            FI_LOG_MR,
            "registration of {len} bytes at {addr:#x}, access {access:#x}, failed: {e}: {why}"
        );
        Err(errno)
    }

    /// Registers memory of our own for packets, which the adapter reads and writes.
    pub(crate) fn lend(&self, addr: usize, len: usize) -> Result<RegionRef> {
        self.register(addr, len, ACCESS_LOCAL_WRITE)
    }

    /// Registers memory of the application for one operation, which reads or writes that memory.
    pub(crate) fn borrow(&self, addr: usize, len: usize, write: bool) -> Result<Arc<RegionRef>> {
        self.keep(addr, len, if write { ACCESS_LOCAL_WRITE } else { 0 })
    }

    /// A registration of an operation's own that is kept, and does not end with a region of the
    /// application; `None` where none is kept, or no such region ends early.
    fn kept_alone(&self, addr: usize, len: usize, access: c_int) -> Result<Option<Arc<RegionRef>>> {
        match &self.kept {
            Some(c) if !self.local => {
                c.get_kept(addr, len, access, || self.register(addr, len, access))
            }
            _ => Ok(None),
        }
    }

    /// An internal registration, from the cache if there is one.
    fn keep(&self, addr: usize, len: usize, access: c_int) -> Result<Arc<RegionRef>> {
        let make = || self.register(addr, len, access);
        match &self.kept {
            Some(c) => c.get(addr, len, access, make),
            None => make().map(Arc::new),
        }
    }

    /// The local key of bytes that lie in a registered region; `last` caches the previous look-up.
    #[inline(always)]
    pub(crate) fn lkey(
        &self,
        last: &mut FoundRegion,
        addr: usize,
        len: usize,
        write: bool,
    ) -> Option<u32> {
        let off = addr.wrapping_sub(last.from);
        let inside = off <= last.len && len <= last.len - off;
        let known = inside && last.at == self.withdrawn.load(Acquire) && (last.write || !write);
        (known || self.find(last, addr, len, write)).then_some(last.lkey)
    }

    /// Looks up the region for [`VerbsMemory::lkey`]; `false` when there is none.
    #[cold]
    fn find(&self, last: &mut FoundRegion, addr: usize, len: usize, write: bool) -> bool {
        // Read before the look-up: a withdrawal after this line makes `last` stale.
        let at = self.withdrawn.load(Acquire);
        let t = self.table();
        let key = t.around(addr, len, |r| !write || r.rights & ACCESS_LOCAL_WRITE != 0);
        let region = key.and_then(|key| t.by_key.get(&key));
        let Some((r, mr)) = region.and_then(|r| Some((r, r.mr.as_ref()?))) else {
            return false;
        };
        *last = FoundRegion {
            from: r.mem.addr(),
            len: r.mem.len(),
            lkey: mr.lkey(),
            write: r.rights & ACCESS_LOCAL_WRITE != 0,
            at,
        };
        true
    }

    /// Verbs access flags for memory of this access (fi_mr(3)). FI_SEND, and FI_WRITE without RDMA
    /// writes, include remote reads: in the read-based protocols the peer reads the buffer.
    fn rights(&self, access: u64) -> c_int {
        let caps = &self.adapter.attr.caps;
        let mut r = 0;
        if access & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0 || access == 0 {
            r |= ACCESS_LOCAL_WRITE;
        }
        let read = FI_REMOTE_READ | FI_SEND | if caps.rdma_write { 0 } else { FI_WRITE };
        if caps.rdma_read && access & read != 0 {
            r |= ACCESS_REMOTE_READ;
        }
        if caps.rdma_write && access & FI_REMOTE_WRITE != 0 {
            r |= ACCESS_REMOTE_WRITE;
        }
        r
    }

    /// Registers memory and returns its key. The key of empty memory permits no access; the key of
    /// device memory that the adapter cannot reach is [`OWN_KEYS`] or above. `own` marks an
    /// internal registration, which may share a region of the application. `from` is the dma-buf of
    /// the memory, if the application passed one.
    pub(crate) fn insert(
        &self,
        mem: UserMem,
        access: u64,
        own: bool,
        from: Option<DmaBuf>,
    ) -> Result<u64> {
        let mut pieces = mem.pieces();
        let (first, None) = (pieces.next(), pieces.next()) else {
            return Err(FI_EINVAL);
        };
        let (addr, len) = first.map_or((0, 0), |p| (p.addr(), p.len()));
        let kind = first.map_or(MemKind::Host, |p| p.kind());
        let rights = self.rights(access);
        if own && kind != MemKind::Host {
            return self.shared(addr, len, rights).ok_or(FI_EOPNOTSUPP);
        }
        // The adapter registers no empty range: registers one byte in its place.
        static NOTHING: u64 = 0;
        let mr = match from {
            _ if kind != MemKind::Host => self.register_device(kind, (addr, len), from, rights),
            Some(from) => Some(Arc::new(self.register_dmabuf(from, (addr, len), rights)?)),
            None if len == 0 => {
                let nothing = core::ptr::from_ref(&NOTHING) as usize;
                Some(Arc::new(self.register(nothing, 1, 0)?))
            }
            None if own => match self.kept_alone(addr, len, rights) {
                Ok(Some(mr)) => Some(mr),
                other => match self.shared(addr, len, rights) {
                    Some(key) => return Ok(key),
                    None => other.and_then(|_| self.keep(addr, len, rights)).map(Some)?,
                },
            },
            None => Some(Arc::new(self.register(addr, len, rights)?)),
        };
        // Not while the adapter's driver pins memory, which may take seconds.
        let mut t = self.table();
        let key = match &mr {
            Some(mr) => u64::from(mr.rkey()),
            None => self.next_own_key.fetch_add(1, Relaxed),
        };
        if let Some(r) = t.by_key.get_mut(&key) {
            // From the cache, while another operation uses it.
            r.users += 1;
            return Ok(key);
        }
        let r = VerbsRegion {
            mr,
            mem,
            access,
            rights,
            users: u32::from(own),
            published: !own,
        };
        t.by_key.insert(key, r);
        t.by_addr.insert((addr, key), addr + len);
        t.longest = t.longest.max(len);
        drop(t);
        let d = self.directory.lock().unpoisoned();
        if let Some(d) = d.as_ref().filter(|_| !own) {
            d.add(key, addr as u64, &mem, access);
        }
        Ok(key)
    }

    /// The key of a region of the application around these bytes, for one more operation.
    fn shared(&self, addr: usize, len: usize, rights: c_int) -> Option<u64> {
        let mut t = self.table();
        let key = t.around(addr, len, |r| rights & !r.rights == 0)?;
        t.by_key.get_mut(&key)?.users += 1;
        Some(key)
    }

    /// Withdraws a region of the application: from now on no peer reaches the memory by its key.
    /// `FI_EINVAL` for an unknown key.
    pub(crate) fn remove(&self, key: u64) -> Result<()> {
        let mut t = self.table();
        let users = t.by_key.get(&key).filter(|r| r.published).map(|r| r.users);
        let users = users.ok_or(FI_EINVAL)?;
        if users > 0 {
            // Another region may get the key before they end: then it does not matter which of
            // the operations releases which, for all of them do.
            *t.closed.entry(key).or_default() += users;
        }
        let withdrawn = self.take_out(t, key);
        let d = self.directory.lock().unpoisoned();
        if let Some(d) = d.as_ref() {
            d.remove(key);
        }
        drop(d);
        drop(withdrawn);
        Ok(())
    }

    /// Ends an operation's use of a key; withdraws an internal registration with its last use.
    pub(crate) fn release(&self, key: u64) {
        let mut t = self.table();
        if let Some(left) = t.closed.get_mut(&key) {
            *left -= 1;
            if *left == 0 {
                t.closed.remove(&key);
            }
            return;
        }
        let Some(r) = t.by_key.get_mut(&key) else {
            return;
        };
        r.users = r.users.saturating_sub(1);
        if r.users == 0 && !r.published {
            drop(self.take_out(t, key));
        }
    }

    /// Takes a registration out of the table. It is withdrawn when the result is dropped, unless
    /// the cache keeps it.
    fn take_out(&self, mut t: MutexGuard<RegionTable>, key: u64) -> Option<VerbsRegion> {
        let r = t.by_key.remove(&key)?;
        self.withdrawn.fetch_add(1, AcqRel);
        t.by_addr.remove(&(r.mem.addr(), key));
        Some(r)
    }

    /// A region's local key.
    pub(crate) fn lkey_of(&self, key: u64) -> Option<u32> {
        let t = self.table();
        Some(t.by_key.get(&key)?.mr.as_ref()?.lkey())
    }

    /// See [`crate::device::Device::query_mr`].
    pub(crate) fn query(&self, key: u64) -> Result<[u16; 4]> {
        let query = self.adapter.lib.efadv_query_mr.ok_or(FI_ENOSYS)?;
        let t = self.table();
        let r = t.by_key.get(&key).ok_or(FI_EINVAL)?;
        let mr = r.mr.as_ref().ok_or(FI_ENOSYS)?;
        let mut a = efadv_mr_attr::default();
        let len = core::mem::size_of::<efadv_mr_attr>() as u32;
        // SAFETY: an entry of the table is registered; the out-parameter has the right type.
        match unsafe { query(mr.mr, &mut a, len) } {
            0 => Ok([
                a.ic_id_validity,
                a.recv_ic_id,
                a.rdma_read_ic_id,
                a.rdma_recv_ic_id,
            ]),
            _ => Err(FI_ENOSYS),
        }
    }

    /// See [`crate::device::Device::target`].
    pub(crate) fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status> {
        let t = self.table();
        let r = t.by_key.get(&key).ok_or(Status::RemoteBadKey)?;
        if access & !r.access != 0 {
            return Err(Status::RemoteBadKey);
        }
        let off = addr.checked_sub(r.mem.addr() as u64);
        let all = r.mem.len() as u64;
        match off {
            Some(off) if off <= all && len <= all - off => {
                Ok(r.mem.part(off as usize, len as usize))
            }
            _ => Err(Status::RemoteBadAddress),
        }
    }
}

impl Drop for VerbsMemory {
    fn drop(&mut self) {
        let t = self.table.get_mut().unpoisoned();
        t.by_key.clear();
        if let Some(c) = &self.kept {
            c.clear();
        }
        // SAFETY: the domain has no other users any more.
        unsafe { (self.adapter.lib.ibv_dealloc_pd)(self.pd) };
    }
}
