//! Peers of a domain: from device address to the number that protocol and receive queues use.
//!
//! A peer keeps its number for as long as the domain is open, whether it is in an address vector or
//! was first heard of by a message.

use crate::device::QpAddr;
use crate::proto::PeerId;
use std::collections::HashMap;

/// See the module text.
#[derive(Debug, Default)]
pub struct Peers {
    by_addr: HashMap<QpAddr, PeerId>,
    /// The latest with a host and queue pair number, whatever its key.
    by_number: HashMap<([u8; 16], u16), PeerId>,
    addrs: Vec<QpAddr>,
}

impl Peers {
    /// Number of the peer of this device address.
    #[inline]
    pub fn of(&mut self, a: &QpAddr) -> PeerId {
        if let Some(p) = self.by_addr.get(a) {
            return *p;
        }
        let p = self.addrs.len() as PeerId;
        self.by_addr.insert(*a, p);
        self.by_number.insert((a.gid, a.qpn), p);
        self.addrs.push(*a);
        p
    }

    /// The peer of a device address; of one without its key the latest with its host and queue pair number.
    #[inline]
    pub fn found(&mut self, a: &QpAddr) -> Option<PeerId> {
        match a.qkey {
            0 => self.by_number.get(&(a.gid, a.qpn)).copied(),
            _ => Some(self.of(a)),
        }
    }

    /// Device address of a peer.
    #[inline]
    pub fn addr(&self, p: PeerId) -> Option<&QpAddr> {
        self.addrs.get(p as usize)
    }
}
