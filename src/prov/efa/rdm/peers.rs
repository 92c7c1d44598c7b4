//! Peers of an endpoint: from `fi_addr_t` or device address to the protocol's number and back.

use crate::core::Result;
use crate::device::QpAddr;
use crate::proto::{self, PeerId};
use crate::prov::efa::av::Av;
use crate::types::*;
use std::collections::HashMap;

/// See the module text.
#[derive(Debug, Default)]
pub struct Peers {
    by_addr: HashMap<QpAddr, PeerId>,
    addrs: Vec<QpAddr>,
    /// By `fi_addr_t`; `PeerId::MAX` where not resolved yet.
    by_fi_addr: Vec<PeerId>,
}

const NONE: PeerId = PeerId::MAX;

impl Peers {
    /// Number of the peer of this device address.
    #[inline]
    pub fn of(&mut self, a: &QpAddr, proto: &mut proto::Endpoint) -> PeerId {
        if let Some(p) = self.by_addr.get(a) {
            return *p;
        }
        let p = proto.add_peer();
        self.by_addr.insert(*a, p);
        self.addrs.push(*a);
        p
    }

    /// Number of the peer of this `fi_addr_t`; `FI_EINVAL` when it is not in the vector.
    #[inline]
    pub fn resolve(
        &mut self,
        f: fi_addr_t,
        av: Option<&Av>,
        proto: &mut proto::Endpoint,
    ) -> Result<PeerId> {
        if let Some(p) = self.by_fi_addr.get(f as usize).filter(|p| **p != NONE) {
            return Ok(*p);
        }
        let a = av.ok_or(FI_ENOAV)?.lookup(f)?;
        let p = self.of(&a, proto);
        let at = f as usize;
        if self.by_fi_addr.len() <= at {
            self.by_fi_addr.resize(at + 1, NONE);
        }
        if let Some(slot) = self.by_fi_addr.get_mut(at) {
            *slot = p;
        }
        Ok(p)
    }

    /// Device address of a peer.
    #[inline]
    pub fn addr(&self, p: PeerId) -> Option<&QpAddr> {
        self.addrs.get(p as usize)
    }

    /// This `fi_addr_t` may come to mean someone else.
    pub fn forget(&mut self, f: fi_addr_t) {
        if let Some(slot) = self.by_fi_addr.get_mut(f as usize) {
            *slot = NONE;
        }
    }
}
