//! Address vectors (fi_av(3)): a table of peers, by index and by address.
//!
//! Both types hand out indices as `fi_addr_t`. The same address inserted twice is one entry that
//! has to be removed twice. With `rx_ctx_bits` an entry stands for a scalable endpoint: the top
//! bits of a `fi_addr_t` (fi_rx_addr(3)) choose one of its contexts, which are at consecutive
//! addresses. A vector with a name is shared with other processes, see `av_shared`.

use super::addr;
use super::av_shared::SharedAv;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::{Device, QpAddr};
use crate::proto::PeerId;
use crate::prov::efa::peers::Peers;
use crate::types::*;

#[derive(Debug)]
struct AvEntry {
    addr: QpAddr,
    /// The domain's number of the peer.
    peer: PeerId,
    inserted: u32,
}

impl AvEntry {
    /// An index of a vector that is shared by name, which stands for no address.
    fn gone() -> AvEntry {
        AvEntry {
            addr: QpAddr::default(),
            peer: PeerId::MAX,
            inserted: 0,
        }
    }
}

/// One address vector.
#[derive(Debug)]
pub(crate) struct Av {
    pub type_: fi_av_type,
    table: Slab<AvEntry>,
    /// Index of an entry by the number of its peer; `NONE` where there is no entry.
    by_peer: Vec<u32>,
    /// The peer of each entry that stands for one; `NONE` where there is no entry.
    peers: Vec<PeerId>,
    /// Endpoints bound to the vector, which cannot be closed before them.
    pub users: u32,
    /// Top bits of a `fi_addr_t` that choose a receive context, at most 8.
    rx_ctx_bits: u32,
    shared: Option<Box<SharedAv>>,
    /// Addresses that a reader of a shared vector has taken over.
    shared_read: usize,
}

const NONE: u32 = u32::MAX;

impl Av {
    /// An empty vector, sized for `count` peers.
    pub(crate) fn new(type_: fi_av_type, count: usize, rx_ctx_bits: u32) -> Av {
        let n = count.min(1 << 16);
        Av {
            type_,
            table: Slab::with_capacity(n),
            by_peer: Vec::new(),
            peers: Vec::new(),
            rx_ctx_bits,
            shared: None,
            shared_read: 0,
            users: 0,
        }
    }

    /// Inserts a raw address and returns its index. `FI_EINVAL` for an address that is too short,
    /// `FI_EADDRNOTAVAIL` for one whose GID is zero.
    pub(crate) fn insert(&mut self, raw: &[u8], peers: &mut Peers) -> Result<fi_addr_t> {
        let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
        if a.gid == [0; 16] {
            return Err(FI_EADDRNOTAVAIL);
        }
        let peer = peers.learn_inserted(&a);
        let slot = peer as usize;
        if self.by_peer.len() <= slot {
            self.by_peer.resize(slot + 1, NONE);
        }
        if let Some(at) = self.by_peer.get(slot).filter(|at| **at != NONE) {
            if let Some(e) = self.table.get_mut(*at) {
                e.inserted += 1;
                if a.token != 0 {
                    e.addr = a;
                }
            }
            return Ok(u64::from(*at));
        }
        let at = self.table.insert(AvEntry {
            addr: a,
            peer,
            inserted: 1,
        });
        if let Some(to) = self.by_peer.get_mut(slot) {
            *to = at;
        }
        self.set_peer(at, peer);
        peers.note_inserted(peer);
        let shared = self
            .shared
            .as_ref()
            .map_or(Ok(()), |s| s.put(at, &addr::to_raw(&a)));
        shared.map(|()| u64::from(at)).inspect_err(|_| {
            let _ = self.remove(u64::from(at));
            peers.note_removed(peer);
        })
    }

    /// The peers of its entries.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.table.iter().map(|(_, e)| e.peer)
    }

    /// As [`Av::insert`], and makes the peer reachable for the adapter. `FI_EHOSTUNREACH` when the
    /// adapter cannot reach the peer.
    pub(crate) fn insert_reached(
        &mut self,
        raw: &[u8],
        peers: &mut Peers,
        dev: &impl Device,
    ) -> Result<fi_addr_t> {
        let at = self.insert(raw, peers)?;
        let reached = self.lookup(at).and_then(|to| dev.reach(&to));
        reached.map(|()| at).inspect_err(|_| {
            let peer = self.peer(at, peers);
            if let (Ok(true), Ok(peer)) = (self.remove(at), peer) {
                peers.note_removed(peer);
            }
        })
    }

    /// Shares the vector with other processes under a name, or opens an existing one as reader.
    /// Errors as [`SharedAv::open`].
    pub(crate) fn share(&mut self, name: &str, reader: bool, peers: &mut Peers) -> Result<()> {
        self.shared = Some(Box::new(SharedAv::open(name, reader)?));
        if reader {
            self.refresh(peers)?;
        }
        Ok(())
    }

    /// Adds the addresses that another process has inserted.
    pub(crate) fn refresh(&mut self, peers: &mut Peers) -> Result<()> {
        let Some(s) = &self.shared else {
            return Ok(());
        };
        let list = s.read()?;
        for raw in list.iter().skip(self.shared_read) {
            if self.insert(raw, peers).is_err() {
                // An index without an address stays occupied, so that later indices match.
                self.table.insert(AvEntry::gone());
            }
        }
        self.shared_read = self.shared_read.max(list.len());
        Ok(())
    }

    /// Whether another process owns the vector and this process only reads it.
    pub(crate) fn read_only(&self) -> bool {
        self.shared.as_ref().is_some_and(|s| s.reader())
    }

    /// Removes an entry. Returns whether it is gone now; `FI_EINVAL` when there is none.
    pub(crate) fn remove(&mut self, fi_addr: fi_addr_t) -> Result<bool> {
        let at = u32::try_from(fi_addr).map_err(|_| FI_EINVAL)?;
        let e = self.table.get_mut(at).filter(|e| e.inserted > 0);
        let e = e.ok_or(FI_EINVAL)?;
        e.inserted -= 1;
        if e.inserted > 0 {
            return Ok(false);
        }
        self.set_peer(at, NONE);
        // A process that reads the vector keeps what it has read under an index: the index never
        // stands for another peer.
        let gone = match (&self.shared, self.table.get_mut(at)) {
            (Some(_), Some(e)) => Some(core::mem::replace(e, AvEntry::gone())),
            _ => self.table.remove(at),
        };
        if let Some(to) = gone.and_then(|e| self.by_peer.get_mut(e.peer as usize)) {
            *to = NONE;
        }
        if let Some(s) = &self.shared {
            s.put(at, &[0; addr::LEN])?;
        }
        Ok(true)
    }

    /// Address of an entry; `FI_EINVAL` when there is none.
    #[inline]
    pub(crate) fn lookup(&self, fi_addr: fi_addr_t) -> Result<QpAddr> {
        let at = u32::try_from(fi_addr).map_err(|_| FI_EINVAL)?;
        let e = self.table.get(at).filter(|e| e.inserted > 0);
        e.map(|e| e.addr).ok_or(FI_EINVAL)
    }

    /// The peer an entry stands for; `FI_EINVAL` when there is none.
    #[inline]
    pub(crate) fn peer(&self, fi_addr: fi_addr_t, peers: &mut Peers) -> Result<PeerId> {
        match self.known(fi_addr) {
            Some(p) => Ok(p),
            None if self.rx_ctx_bits > 0 => self.context(fi_addr, peers),
            None => Err(FI_EINVAL),
        }
    }

    /// The peer, for addresses that name no context of an endpoint.
    #[inline(always)]
    pub(crate) fn known(&self, fi_addr: fi_addr_t) -> Option<PeerId> {
        let peer = *self.peers.get(fi_addr as usize)?;
        if peer == NONE {
            return None;
        }
        Some(peer)
    }

    /// Sets the peer of an entry.
    fn set_peer(&mut self, at: u32, peer: PeerId) {
        if self.rx_ctx_bits > 0 {
            return;
        }
        let i = at as usize;
        if self.peers.len() <= i {
            self.peers.resize(i + 1, NONE);
        }
        if let Some(p) = self.peers.get_mut(i) {
            *p = peer;
        }
    }

    #[inline(always)]
    fn inserted(&self, at: u64) -> Option<&AvEntry> {
        let at = u32::try_from(at).ok()?;
        self.table.get(at).filter(|e| e.inserted > 0)
    }

    #[cold]
    fn context(&self, fi_addr: fi_addr_t, peers: &mut Peers) -> Result<PeerId> {
        let shift = 64 - self.rx_ctx_bits;
        let e = self
            .inserted(fi_addr & ((1 << shift) - 1))
            .ok_or(FI_EINVAL)?;
        match (fi_addr >> shift) as u16 {
            0 => Ok(e.peer),
            i => Ok(peers.learn(&QpAddr {
                qpn: e.addr.qpn.checked_add(i).ok_or(FI_EINVAL)?,
                ..e.addr
            })),
        }
    }

    /// Index of a peer's entry, `FI_ADDR_NOTAVAIL` when it was not inserted.
    #[inline]
    pub(crate) fn reverse(&self, peer: PeerId) -> fi_addr_t {
        match self.by_peer.get(peer as usize) {
            Some(at) if *at != NONE => u64::from(*at),
            _ => FI_ADDR_NOTAVAIL,
        }
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// One more than the largest address that was ever used.
    pub(crate) fn end(&self) -> usize {
        self.table.end()
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
            ..Default::default()
        })
    }

    #[test]
    fn insert_lookup_remove() {
        let mut v = Av::new(FI_AV_TABLE, 4, 0);
        let p = &mut Peers::default();
        let a = v.insert(&raw(1), p).unwrap();
        let b = v.insert(&raw(2), p).unwrap();
        assert_eq!((a, b), (0, 1));
        assert_eq!(v.insert(&raw(1), p), Ok(a));
        assert_eq!(v.insert(&raw(0), p), Err(FI_EADDRNOTAVAIL));
        assert_eq!(v.lookup(a).unwrap().gid, [1; 16]);
        assert_eq!(v.reverse(v.peer(b, p).unwrap()), b);
        assert_eq!(v.remove(a), Ok(false));
        assert_eq!(v.remove(a), Ok(true));
        assert_eq!(v.remove(a), Err(FI_EINVAL));
        assert_eq!(v.lookup(a), Err(FI_EINVAL));
        assert_eq!(v.lookup(FI_ADDR_NOTAVAIL), Err(FI_EINVAL));
        assert_eq!(v.insert(&raw(3), p), Ok(a));
    }

    #[test]
    fn an_index_of_a_shared_vector_never_stands_for_another_peer() {
        let name = format!("test-av-{}", crate::device::host::random());
        let open = |reader| {
            let (mut v, mut p) = (Av::new(FI_AV_TABLE, 4, 0), Peers::default());
            v.share(&name, reader, &mut p).unwrap();
            (v, p)
        };
        let (mut owner, mut p) = open(false);
        let a = owner.insert(&raw(1), &mut p).unwrap();
        let b = owner.insert(&raw(2), &mut p).unwrap();
        let (mut early, mut known) = open(true);
        assert_eq!(owner.remove(a), Ok(true));
        assert_eq!(owner.remove(a), Err(FI_EINVAL));
        let (mut late, mut seen) = open(true);
        let c = owner.insert(&raw(3), &mut p).unwrap();
        assert!(c > b);
        early.refresh(&mut known).unwrap();
        late.refresh(&mut seen).unwrap();
        for v in [&owner, &early, &late] {
            assert_eq!(v.lookup(c).unwrap().gid, [3; 16]);
        }
        assert_eq!(owner.lookup(a), Err(FI_EINVAL));
        assert_eq!(late.lookup(a), Err(FI_EINVAL));
    }

    #[test]
    fn rx_ctx_bits_of_an_address_choose_the_receive_context() {
        let mut v = Av::new(FI_AV_TABLE, 4, 2);
        let p = &mut Peers::default();
        let a = v.insert(&raw(1), p).unwrap();
        let base = v.lookup(a).unwrap();
        for i in 0..4u64 {
            let peer = v.peer(a | i << 62, p).unwrap();
            assert_eq!(p.addr(peer).unwrap().qpn, base.qpn + i as u16);
        }
    }
}
