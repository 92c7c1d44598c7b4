//! Address vectors (fi_av(3)): a table of peers, by index and by address.
//!
//! Both types hand out indices as `fi_addr_t`. The same address inserted twice is one entry that
//! has to be removed twice.

use super::addr;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::QpAddr;
use crate::types::*;
use std::collections::HashMap;

#[derive(Debug)]
struct Entry {
    addr: QpAddr,
    inserted: u32,
}

/// One address vector.
#[derive(Debug)]
pub struct Av {
    pub type_: fi_av_type,
    table: Slab<Entry>,
    by_addr: HashMap<QpAddr, u32>,
    /// Endpoints bound to it; it cannot be closed before them.
    pub users: u32,
}

impl Av {
    /// An empty vector, sized for `count` peers.
    pub fn new(type_: fi_av_type, count: usize) -> Av {
        let n = count.min(1 << 16);
        Av {
            type_,
            table: Slab::with_capacity(n),
            by_addr: HashMap::with_capacity(n),
            users: 0,
        }
    }

    /// Inserts a raw address and returns its index; `FI_EADDRNOTAVAIL` for one that is no address
    /// (too short, or all zero).
    pub fn insert(&mut self, raw: &[u8]) -> Result<fi_addr_t> {
        let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
        if a.gid == [0; 16] {
            return Err(FI_EADDRNOTAVAIL);
        }
        if let Some(at) = self.by_addr.get(&a) {
            if let Some(e) = self.table.get_mut(*at) {
                e.inserted += 1;
            }
            return Ok(u64::from(*at));
        }
        let at = self.table.insert(Entry {
            addr: a,
            inserted: 1,
        });
        self.by_addr.insert(a, at);
        Ok(u64::from(at))
    }

    /// Removes an entry. Returns whether it is gone now; `FI_EINVAL` when there is none.
    pub fn remove(&mut self, fi_addr: fi_addr_t) -> Result<bool> {
        let at = u32::try_from(fi_addr).map_err(|_| FI_EINVAL)?;
        let e = self.table.get_mut(at).ok_or(FI_EINVAL)?;
        e.inserted -= 1;
        if e.inserted > 0 {
            return Ok(false);
        }
        if let Some(e) = self.table.remove(at) {
            self.by_addr.remove(&e.addr);
        }
        Ok(true)
    }

    /// Address of an entry; `FI_EINVAL` when there is none.
    #[inline]
    pub fn lookup(&self, fi_addr: fi_addr_t) -> Result<QpAddr> {
        let at = u32::try_from(fi_addr).map_err(|_| FI_EINVAL)?;
        self.table.get(at).map(|e| e.addr).ok_or(FI_EINVAL)
    }

    /// Index of an address, `FI_ADDR_NOTAVAIL` when it was not inserted.
    pub fn reverse(&self, a: &QpAddr) -> fi_addr_t {
        self.by_addr
            .get(a)
            .map_or(FI_ADDR_NOTAVAIL, |at| u64::from(*at))
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether nothing is inserted.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(n: u8) -> [u8; 32] {
        addr::to_raw(&QpAddr {
            gid: [n; 16],
            qpn: 1,
            qkey: 2,
        })
    }

    #[test]
    fn insert_lookup_remove() {
        let mut v = Av::new(FI_AV_TABLE, 4);
        let a = v.insert(&raw(1)).unwrap();
        let b = v.insert(&raw(2)).unwrap();
        assert_eq!((a, b), (0, 1));
        assert_eq!(v.insert(&raw(1)), Ok(a));
        assert_eq!(v.insert(&raw(0)), Err(FI_EADDRNOTAVAIL));
        assert_eq!(v.lookup(a).unwrap().gid, [1; 16]);
        assert_eq!(v.reverse(&v.lookup(b).unwrap()), b);
        assert_eq!(v.remove(a), Ok(false));
        assert_eq!(v.remove(a), Ok(true));
        assert_eq!(v.remove(a), Err(FI_EINVAL));
        assert_eq!(v.lookup(a), Err(FI_EINVAL));
        assert_eq!(v.lookup(FI_ADDR_NOTAVAIL), Err(FI_EINVAL));
        assert_eq!(v.insert(&raw(3)), Ok(a));
    }
}
