//! Memory regions of the software adapter: what peers may reach, by key.
//!
//! A remote access names a key, an address and a length; all three are checked against the table
//! before a byte moves, under a lock that `remove` waits for. Keys are 32 bits: a slot and random
//! bits that make a stale or guessed key miss.

use crate::core::rng::Rng;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::Status;
use crate::hmem::UserMem;
use crate::types::*;
use std::sync::{Mutex, RwLock, RwLockReadGuard};

const SLOT_BITS: u32 = 20;

#[derive(Debug)]
struct Region {
    mem: UserMem,
    base: u64,
    len: u64,
    access: u64,
    salt: u32,
}

/// The table of one adapter in one process.
pub struct MemTable {
    regions: RwLock<Slab<Region>>,
    rng: Mutex<Rng>,
}

/// The table while remote accesses run.
pub struct Access<'a>(RwLockReadGuard<'a, Slab<Region>>);

fn split(key: u32) -> (u32, u32) {
    (
        (key & ((1 << SLOT_BITS) - 1)).wrapping_sub(1),
        key >> SLOT_BITS,
    )
}

impl MemTable {
    /// An empty table whose keys depend on `seed`.
    pub fn new(seed: u64) -> Self {
        MemTable {
            regions: RwLock::default(),
            rng: Mutex::new(Rng::new(seed)),
        }
    }

    /// Adds a region that remote peers address by its virtual addresses, and returns its key.
    /// `FI_ENOMR` when the table is full.
    pub fn insert(&self, mem: UserMem, access: u64) -> Result<u64> {
        let salt = (self.rng.lock().unwrap_or_else(|e| e.into_inner()).bits() >> 40) as u32 & 0xfff;
        let mut r = self.regions.write().unwrap_or_else(|e| e.into_inner());
        if r.len() >= (1 << SLOT_BITS) - 2 {
            return Err(FI_ENOMR);
        }
        let base = mem.addr() as u64;
        let len = mem.len() as u64;
        let slot = r.insert(Region {
            mem,
            base,
            len,
            access,
            salt,
        });
        Ok(u64::from((slot + 1) | salt << SLOT_BITS))
    }

    /// Takes a region out; accesses under way have ended when it returns.
    /// `FI_ENOKEY` when there is none of this key.
    pub fn remove(&self, key: u64) -> Result<()> {
        let (slot, salt) = split(u32::try_from(key).map_err(|_| FI_ENOKEY)?);
        let mut r = self.regions.write().unwrap_or_else(|e| e.into_inner());
        if r.get(slot).is_none_or(|x| x.salt != salt) {
            return Err(FI_ENOKEY);
        }
        r.remove(slot);
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
        let (slot, salt) = split(key);
        let r = self
            .0
            .get(slot)
            .filter(|r| r.salt == salt)
            .ok_or(Status::RemoteBadKey)?;
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
    fn every_access_is_checked() {
        let mut buf = [0u8; 64];
        let at = buf.as_mut_ptr() as u64;
        // SAFETY: `buf` outlives the table.
        let mem = unsafe { UserMem::new([(buf.as_ptr().cast(), buf.len())]) }.unwrap();
        let t = MemTable::new(1);
        let key = t.insert(mem, FI_REMOTE_WRITE).unwrap();
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
            find(k ^ 1 << 25, at, 1, FI_REMOTE_WRITE),
            Err(Status::RemoteBadKey)
        );
        assert_eq!(find(0, at, 1, FI_REMOTE_WRITE), Err(Status::RemoteBadKey));
        t.remove(key).unwrap();
        assert_eq!(t.remove(key), Err(FI_ENOKEY));
        assert_eq!(find(k, at, 1, FI_REMOTE_WRITE), Err(Status::RemoteBadKey));
    }
}
