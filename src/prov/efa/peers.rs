//! Peers of a domain: from device address to the number that protocol and receive queues use.
//!
//! A peer keeps its number while anything refers to it: an address vector, state of an endpoint, a
//! message or a receive. [`reclaim`] frees the numbers of those that have gone, so that peers that
//! come and go leave nothing behind.

use crate::core::slab::Slab;
use crate::device::any::public_key;
use crate::device::QpAddr;
use crate::proto::PeerId;
use crate::prov::efa::domain::State;
use crate::types::FI_ADDR_NOTAVAIL;
use std::collections::{HashMap, VecDeque};

/// Most peers that one call of [`reclaim`] checks.
const CHECKED: usize = 16;

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    by_addr: HashMap<QpAddr, PeerId>,
    /// The latest peer with a GID and queue pair number, whatever its qkey.
    by_number: HashMap<([u8; 16], u16), PeerId>,
    all: Slab<KnownPeer>,
    /// Peers that may have gone, each once.
    gone: VecDeque<PeerId>,
    /// Peers whose addresses have become known in full.
    completed: Vec<PeerId>,
    /// Peers that were inserted again after they had been removed.
    renewed: Vec<PeerId>,
}

#[derive(Debug)]
struct KnownPeer {
    addr: QpAddr,
    /// The peer is listed in `gone`.
    listed: bool,
    /// The peer was removed from a vector, and not inserted since.
    removed: bool,
}

impl Peers {
    /// Number of the peer with this device address; an unknown address gets a new number. The
    /// address `a` may be out of date: its token replaces none that is stored.
    #[inline]
    pub(crate) fn learn(&mut self, a: &QpAddr) -> PeerId {
        if let Some(p) = self.by_addr.get(a).copied() {
            if a.token != 0 && self.addr(p).is_some_and(|known| known.token == 0) {
                self.complete(p, a);
            }
            return p;
        }
        self.add(a)
    }

    /// As [`Peers::learn`], for an address that the application inserts: its token is the peer's.
    pub(crate) fn learn_inserted(&mut self, a: &QpAddr) -> PeerId {
        match self.by_addr.get(a).copied() {
            Some(p) if a.token != 0 => {
                self.complete(p, a);
                p
            }
            Some(p) => p,
            None => self.add(a),
        }
    }

    fn add(&mut self, a: &QpAddr) -> PeerId {
        let p = self.all.insert(KnownPeer {
            addr: *a,
            listed: false,
            removed: false,
        });
        self.by_addr.insert(*a, p);
        self.by_number.insert((a.gid, a.qpn), p);
        p
    }

    /// Completes the address of a peer that was known only as the sender of a message. That of a
    /// service which the application has named by its number stays: the service may begin again
    /// under the same number, with another token.
    fn complete(&mut self, p: PeerId, a: &QpAddr) {
        let by_number = |k: &KnownPeer| k.addr.token == 0 && k.addr.qkey == public_key(a.qpn);
        let known = self.all.get_mut(p);
        let known = known.filter(|k| k.addr.token != a.token && !by_number(k));
        if let Some(known) = known {
            known.addr.token = a.token;
            self.completed.push(p);
        }
    }

    /// The peer with this device address, as [`Peers::learn`]. For an address without a qkey: the
    /// latest peer with its GID and queue pair number.
    #[inline]
    pub(crate) fn learn_source(&mut self, a: &QpAddr) -> Option<PeerId> {
        match a.qkey {
            0 => self.by_number.get(&(a.gid, a.qpn)).copied(),
            _ => Some(self.learn(a)),
        }
    }

    /// Device address of a peer.
    #[inline]
    pub(crate) fn addr(&self, p: PeerId) -> Option<&QpAddr> {
        self.all.get(p).map(|p| &p.addr)
    }

    /// Lists a peer that may be unused: [`reclaim`] frees its number if nothing refers to it.
    pub(crate) fn list_for_reclaim(&mut self, p: PeerId) {
        if let Some(known) = self.all.get_mut(p).filter(|k| !k.listed) {
            known.listed = true;
            self.gone.push_back(p);
        }
    }

    /// Notes that a peer was removed from a vector, and lists it for [`reclaim`].
    pub(crate) fn note_removed(&mut self, p: PeerId) {
        if let Some(known) = self.all.get_mut(p) {
            known.removed = true;
        }
        self.list_for_reclaim(p);
    }

    /// Notes that a peer was inserted into a vector that did not have it.
    pub(crate) fn note_inserted(&mut self, p: PeerId) {
        if let Some(known) = self.all.get_mut(p).filter(|k| k.removed) {
            known.removed = false;
            self.renewed.push(p);
        }
    }

    fn remove(&mut self, p: PeerId) {
        if let Some(KnownPeer { addr: a, .. }) = self.all.remove(p) {
            self.by_addr.remove(&a);
            let number = (a.gid, a.qpn);
            if self.by_number.get(&number) == Some(&p) {
                self.by_number.remove(&number);
            }
        }
    }
}

/// Frees numbers of peers that have gone.
#[cold]
pub(crate) fn reclaim(s: &mut State) {
    remove_unused(s, CHECKED);
}

/// As [`reclaim`], for as many peers as are listed.
pub(crate) fn reclaim_all(s: &mut State) {
    remove_unused(s, usize::MAX);
}

/// Checks up to `most` of the listed peers; those that are used stay listed.
fn remove_unused(s: &mut State, most: usize) {
    for _ in 0..s.peers.gone.len().min(most) {
        let Some(p) = s.peers.gone.pop_front() else {
            return;
        };
        if s.peers.all.get(p).is_none() {
            continue;
        }
        if is_used(s, p) {
            s.peers.gone.push_back(p);
            continue;
        }
        for (_, e) in s.eps.iter_mut() {
            e.forget_peer(p);
        }
        s.peers.remove(p);
    }
}

/// Makes endpoints use the completed addresses of peers that were known in part. Called after
/// addresses have been inserted into a vector.
pub(crate) fn readdress(s: &mut State) {
    for p in core::mem::take(&mut s.peers.completed) {
        for (_, e) in s.eps.iter_mut() {
            e.readdress(p);
        }
    }
}

/// Makes the endpoints of a vector take peers that were inserted again for new ones. Called after
/// addresses have been inserted.
pub(crate) fn renew(s: &mut State, av: u32) {
    for p in core::mem::take(&mut s.peers.renewed) {
        for (_, e) in s.eps.iter_mut().filter(|(_, e)| e.av() == Some(av)) {
            e.renew_peer(p);
        }
    }
}

/// Whether anything refers to a peer.
fn is_used(s: &State, p: PeerId) -> bool {
    let inserted = |(_, a): (u32, &crate::prov::efa::av::Av)| a.reverse(p) != FI_ADDR_NOTAVAIL;
    s.avs.iter().any(inserted)
        || s.eps.iter().any(|(_, e)| e.knows_peer(p))
        || s.rxqs.iter().any(|(_, q)| q.mentions(p))
        || s.ops.iter().any(|(_, o)| o.done.peer == p)
        || s.triggers.any(|t| t.work.peer() == Some(p))
        || s.colls.mentions(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_was_named_by_its_number_keeps_that_name() {
        let mut peers = Peers::default();
        for (qkey, keeps) in [(public_key(7), true), (99, false)] {
            let named = QpAddr {
                qpn: 7,
                qkey,
                ..QpAddr::default()
            };
            let p = peers.learn(&named);
            let heard = QpAddr { token: 5, ..named };
            assert_eq!(peers.learn(&heard), p);
            assert_eq!(peers.addr(p).unwrap().token == 0, keeps);
        }
    }

    #[test]
    fn late_news_of_a_peer_do_not_undo_what_the_application_has_inserted() {
        let mut peers = Peers::default();
        let first = QpAddr {
            qpn: 7,
            qkey: public_key(7),
            token: 5,
            ..QpAddr::default()
        };
        let p = peers.learn_inserted(&first);
        let again = QpAddr { token: 6, ..first };
        assert_eq!(peers.learn_inserted(&again), p);
        assert_eq!(peers.learn(&first), p);
        assert_eq!(peers.addr(p).unwrap().token, 6);
    }
}
