//! Memory regions of the software adapter: what peers may reach, by key.
//!
//! A remote access names a key, an address and a length; all three are checked against the table
//! before a byte moves, under a lock that `remove` waits for. Keys are 32 bits: a slot and random
//! bits that make a stale or guessed key miss. A domain without FI_MR_PROV_KEY has the keys that the application
//! asks for, one without FI_MR_VIRT_ADDR addresses regions by offset: see [`Naming`].

use crate::core::rng::Rng;
use crate::core::slab::Slab;
use crate::core::sync::{Mutex, RwLock, RwLockReadGuard};
use crate::core::Result;
use crate::device::Status;
use crate::hmem::UserMem;
use crate::types::*;
use std::collections::HashMap;

/// A key is the low bits of a slot, random bits, then the high bits of the slot.
const LOW: u32 = 12;
const SALT: u32 = 12;
const SLOTS: usize = 1 << 20;

#[derive(Debug)]
struct Region {
    mem: UserMem,
    base: u64,
    len: u64,
    access: u64,
    /// Random bits of its key; `None` for a key that the application chose.
    salt: Option<u32>,
}

#[derive(Default)]
struct Regions {
    slots: Slab<Region>,
    /// Slots by the keys that the application chose.
    named: HashMap<u32, u32>,
}

/// How peers name memory, as a domain's mr_mode says (fi_mr(3)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Naming {
    /// Keys are the application's choice.
    pub own_keys: bool,
    /// Addresses begin at 0 in every region.
    pub offsets: bool,
}

/// The table of one adapter in one process.
pub struct MemTable {
    regions: RwLock<Regions>,
    rng: Mutex<Rng>,
    naming: Naming,
}

/// The table while remote accesses run.
pub struct Access<'a>(RwLockReadGuard<'a, Regions>);

fn key_of(slot: u32, salt: u32) -> u32 {
    let n = slot + 1;
    n & ((1 << LOW) - 1) | salt << LOW | n >> LOW << (LOW + SALT)
}

fn split(key: u32) -> (u32, u32) {
    let n = key & ((1 << LOW) - 1) | key >> (LOW + SALT) << LOW;
    (n.wrapping_sub(1), key >> LOW & ((1 << SALT) - 1))
}

impl Regions {
    fn slot(&self, key: u32) -> Option<u32> {
        if let Some(slot) = self.named.get(&key) {
            return Some(*slot);
        }
        let (slot, salt) = split(key);
        let r = self.slots.get(slot)?;
        (r.salt == Some(salt)).then_some(slot)
    }
}

impl MemTable {
    /// An empty table whose keys depend on `seed`.
    pub fn new(seed: u64, naming: Naming) -> Self {
        MemTable {
            regions: RwLock::default(),
            rng: Mutex::new(Rng::new(seed)),
            naming,
        }
    }

    /// Adds a region and returns its key, and the address by which peers name its first byte. `FI_ENOMR` when the table is full. `wanted` is the application's key, which
    /// counts only where keys are its choice; `FI_ENOKEY` when it is in use there, or longer than 32 bits. Regions
    /// without one are the library's own, addressed as they lie.
    pub fn insert(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<(u64, u64)> {
        let offsets = self.naming.offsets && wanted.is_some();
        let wanted = match wanted.filter(|_| self.naming.own_keys) {
            None => None,
            Some(k) => Some(u32::try_from(k).map_err(|_| FI_ENOKEY)?),
        };
        let mut r = self.regions.write().unwrap_or_else(|e| e.into_inner());
        if r.slots.len() >= SLOTS - 2 {
            return Err(FI_ENOMR);
        }
        if wanted.is_some_and(|k| r.slot(k).is_some()) {
            return Err(FI_ENOKEY);
        }
        let salt = self.rng.lock().unwrap_or_else(|e| e.into_inner()).bits() >> 40;
        let salt = salt as u32 & ((1 << SALT) - 1);
        let base = if offsets { 0 } else { mem.addr() as u64 };
        let slot = r.slots.insert(Region {
            mem,
            base,
            len: mem.len() as u64,
            access,
            salt: wanted.is_none().then_some(salt),
        });
        let key = match wanted {
            Some(k) => {
                r.named.insert(k, slot);
                k
            }
            None => {
                // A key that the application has chosen hides ours: another salt then.
                let free = (0..1 << SALT)
                    .map(|i| (salt + i) & ((1 << SALT) - 1))
                    .find(|s| !r.named.contains_key(&key_of(slot, *s)));
                let salt = free.ok_or(FI_ENOMR)?;
                if let Some(region) = r.slots.get_mut(slot) {
                    region.salt = Some(salt);
                }
                key_of(slot, salt)
            }
        };
        Ok((u64::from(key), base))
    }

    /// Takes a region out; accesses under way have ended when it returns.
    /// `FI_ENOKEY` when there is none of this key.
    pub fn remove(&self, key: u64) -> Result<()> {
        let key = u32::try_from(key).map_err(|_| FI_ENOKEY)?;
        let mut r = self.regions.write().unwrap_or_else(|e| e.into_inner());
        let slot = r.slot(key).ok_or(FI_ENOKEY)?;
        r.named.remove(&key);
        r.slots.remove(slot);
        Ok(())
    }

    /// Keeps the table still for remote accesses.
    pub fn access(&self) -> Access<'_> {
        Access(self.regions.read().unwrap_or_else(|e| e.into_inner()))
    }
}

impl Access<'_> {
    /// The memory a peer names, if it may use it in the way `need` says
    /// (`FI_REMOTE_READ` or `FI_REMOTE_WRITE`).
    pub fn find(
        &self,
        key: u32,
        addr: u64,
        len: u64,
        need: u64,
    ) -> core::result::Result<UserMem, Status> {
        let slot = self.0.slot(key).ok_or(Status::RemoteBadKey)?;
        let r = self.0.slots.get(slot).ok_or(Status::RemoteBadKey)?;
        if r.access & need != need {
            return Err(Status::RemoteBadKey);
        }
        let off = addr.checked_sub(r.base).ok_or(Status::RemoteBadAddress)?;
        if off > r.len || len > r.len - off {
            return Err(Status::RemoteBadAddress);
        }
        Ok(r.mem.part(off as usize, len as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_name_their_slot() {
        for slot in [0, 1, 4094, 4095, 4096, SLOTS as u32 - 3] {
            for salt in [0, 1, 0xfff] {
                assert_eq!(split(key_of(slot, salt)), (slot, salt));
                assert_ne!(key_of(slot, salt), 0);
            }
        }
    }

    #[test]
    fn a_scalable_table_has_the_keys_asked_for() {
        let buf = [0u8; 64];
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(
            1,
            Naming {
                own_keys: true,
                offsets: true,
            },
        );
        assert_eq!(t.insert(mem, FI_REMOTE_READ, Some(7)), Ok((7, 0)));
        assert_eq!(t.insert(mem, FI_REMOTE_READ, Some(7)), Err(FI_ENOKEY));
        assert_eq!(t.insert(mem, FI_REMOTE_READ, Some(1 << 40)), Err(FI_ENOKEY));
        let find = |a, l| t.access().find(7, a, l, FI_REMOTE_READ).map(|m| m.len());
        assert_eq!(find(0, 64), Ok(64));
        assert_eq!(find(1, 64), Err(Status::RemoteBadAddress));
        t.remove(7).unwrap();
        assert_eq!(find(0, 1), Err(Status::RemoteBadKey));
    }

    #[test]
    fn every_access_is_checked() {
        let mut buf = [0u8; 64];
        let at = buf.as_mut_ptr() as u64;
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(1, Naming::default());
        let (key, _) = t.insert(mem, FI_REMOTE_WRITE, None).unwrap();
        assert_ne!(key, 0);
        let k = key as u32;
        let find = |k, a, l, n| t.access().find(k, a, l, n).map(|m| m.len());
        assert_eq!(find(k, at, 64, FI_REMOTE_WRITE), Ok(64));
        assert_eq!(find(k, at + 64, 0, FI_REMOTE_WRITE), Ok(0));
        assert_eq!(
            find(k, at + 1, 64, FI_REMOTE_WRITE),
            Err(Status::RemoteBadAddress)
        );
        assert_eq!(
            find(k, at - 1, 1, FI_REMOTE_WRITE),
            Err(Status::RemoteBadAddress)
        );
        assert_eq!(
            find(k, at, u64::MAX, FI_REMOTE_WRITE),
            Err(Status::RemoteBadAddress)
        );
        assert_eq!(find(k, at, 1, FI_REMOTE_READ), Err(Status::RemoteBadKey));
        assert_eq!(
            find(k ^ 1 << 20, at, 1, FI_REMOTE_WRITE),
            Err(Status::RemoteBadKey)
        );
        assert_eq!(find(0, at, 1, FI_REMOTE_WRITE), Err(Status::RemoteBadKey));
        t.remove(key).unwrap();
        assert_eq!(t.remove(key), Err(FI_ENOKEY));
        assert_eq!(find(k, at, 1, FI_REMOTE_WRITE), Err(Status::RemoteBadKey));
    }
}
