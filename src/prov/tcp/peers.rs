//! Peers of a domain by number, and address vectors (fi_av(3)), which map them to the application's
//! numbers.
//!
//! A number belongs to a peer as long as something refers to it: an entry of an address vector, a
//! connection, a message that waits for its receive. Every keeper of a number holds a reference.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::proto::PeerId;
use crate::types::*;
use std::collections::HashMap;
use std::net::SocketAddr;

/// The peer of a connection whose request has not arrived.
pub(crate) const UNKNOWN_PEER: PeerId = PeerId::MAX - 1;

#[derive(Debug)]
struct TcpPeer {
    addr: SocketAddr,
    holds: u32,
    /// Bytes of its messages that wait for a receive.
    saved: usize,
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct TcpPeers {
    all: Slab<TcpPeer>,
    by_addr: HashMap<SocketAddr, PeerId>,
}

impl TcpPeers {
    /// The number of an address, held.
    pub(crate) fn hold_addr(&mut self, addr: SocketAddr) -> PeerId {
        if let Some(id) = self.by_addr.get(&addr).copied() {
            self.hold(id);
            return id;
        }
        let id = self.all.insert(TcpPeer {
            addr,
            holds: 1,
            saved: 0,
        });
        self.by_addr.insert(addr, id);
        id
    }

    /// Adds a reference to a peer.
    pub(crate) fn hold(&mut self, id: PeerId) {
        if let Some(p) = self.all.get_mut(id) {
            p.holds += 1;
        }
    }

    /// Drops a reference; the last one removes the peer.
    pub(crate) fn release(&mut self, id: PeerId) {
        let Some(p) = self.all.get_mut(id) else {
            return;
        };
        p.holds -= 1;
        if p.holds == 0 {
            if let Some(p) = self.all.remove(id) {
                self.by_addr.remove(&p.addr);
            }
        }
    }

    /// Bytes of a peer's messages that wait for a receive.
    pub(crate) fn saved(&mut self, id: PeerId) -> Option<&mut usize> {
        self.all.get_mut(id).map(|p| &mut p.saved)
    }

    /// Its address.
    pub(crate) fn addr(&self, id: PeerId) -> Option<SocketAddr> {
        self.all.get(id).map(|p| p.addr)
    }
}

#[derive(Debug)]
struct TcpAvEntry {
    peer: PeerId,
    inserted: u32,
}

/// One address vector.
#[derive(Debug)]
pub(crate) struct TcpAv {
    pub type_: fi_av_type,
    /// Objects that refer to it.
    pub users: u32,
    entries: Slab<TcpAvEntry>,
    by_peer: HashMap<PeerId, u32, crate::core::hash::ByWords>,
}

impl TcpAv {
    pub(crate) fn new(type_: fi_av_type, count: usize) -> TcpAv {
        TcpAv {
            type_,
            users: 0,
            entries: Slab::with_capacity(count.min(1 << 16)),
            by_peer: HashMap::default(),
        }
    }

    /// Inserts an address. One that is there already is one entry that has to be removed twice.
    pub(crate) fn insert(&mut self, addr: SocketAddr, peers: &mut TcpPeers) -> fi_addr_t {
        let peer = peers.hold_addr(addr);
        if let Some(at) = self.by_peer.get(&peer).copied() {
            peers.release(peer);
            if let Some(e) = self.entries.get_mut(at) {
                e.inserted += 1;
            }
            return u64::from(at);
        }
        let at = self.entries.insert(TcpAvEntry { peer, inserted: 1 });
        self.by_peer.insert(peer, at);
        u64::from(at)
    }

    /// Removes an entry; `FI_EINVAL` when there is none.
    pub(crate) fn remove(&mut self, addr: fi_addr_t, peers: &mut TcpPeers) -> Result<()> {
        let at = u32::try_from(addr).map_err(|_| FI_EINVAL)?;
        let e = self.entries.get_mut(at).ok_or(FI_EINVAL)?;
        e.inserted -= 1;
        if e.inserted == 0 {
            let peer = e.peer;
            self.entries.remove(at);
            self.by_peer.remove(&peer);
            peers.release(peer);
        }
        Ok(())
    }

    /// Releases every peer, as the vector is closed.
    pub(crate) fn clear(&mut self, peers: &mut TcpPeers) {
        for (_, e) in self.entries.iter() {
            peers.release(e.peer);
        }
    }

    /// The peer an entry stands for; `FI_EINVAL` when there is none.
    #[inline]
    pub(crate) fn peer(&self, addr: fi_addr_t) -> Result<PeerId> {
        let at = u32::try_from(addr).map_err(|_| FI_EINVAL)?;
        self.entries.get(at).map(|e| e.peer).ok_or(FI_EINVAL)
    }

    /// A peer's entry, `FI_ADDR_NOTAVAIL` when it was not inserted.
    #[inline]
    pub(crate) fn reverse(&self, peer: PeerId) -> fi_addr_t {
        let at = self.by_peer.get(&peer);
        at.map_or(FI_ADDR_NOTAVAIL, |at| u64::from(*at))
    }

    /// One more than the largest address that was ever used.
    pub(crate) fn end(&self) -> usize {
        self.entries.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_free_after_its_last_reference() {
        let (mut p, mut v) = (TcpPeers::default(), TcpAv::new(FI_AV_TABLE, 2));
        let addr = |n: u16| SocketAddr::from(([127, 0, 0, 1], n));
        let a = v.insert(addr(1), &mut p);
        assert_eq!(v.insert(addr(1), &mut p), a);
        let b = v.insert(addr(2), &mut p);
        assert_eq!((a, b), (0, 1));
        let peer = v.peer(b).unwrap();
        assert_eq!((v.reverse(peer), p.addr(peer)), (b, Some(addr(2))));
        p.hold(peer);
        v.remove(b, &mut p).unwrap();
        assert_eq!(v.reverse(peer), FI_ADDR_NOTAVAIL);
        assert_eq!(p.addr(peer), Some(addr(2)));
        p.release(peer);
        assert_eq!(p.addr(peer), None);
        assert_eq!(v.remove(b, &mut p), Err(FI_EINVAL));
        v.remove(a, &mut p).unwrap();
        assert_eq!(v.peer(a), Ok(0));
        v.remove(a, &mut p).unwrap();
        assert_eq!(v.peer(a), Err(FI_EINVAL));
    }
}
