//! How a peer is reached: chosen once, and again when the endpoint's settings or the peer change.
//!
//! Every operation looks up the peer's [`PeerRoute`]. [`choose_message`] or [`choose_rma`] chooses
//! a missing route: it requests a ring from the peer's process if that is on this host, connects
//! the queue pair to the peer, and considers the features in the peer's handshake.
//! [`Routes::forget`] and [`Routes::clear`] cause a new choice: a ring was opened or closed, the
//! peer's handshake has arrived, an option was set.

use crate::core::{Errno, Result};
use crate::device::{Device, QueuePair};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, LiveEndpoint};
use crate::prov::efa::ops::deferred::DeferredWork;
use crate::prov::efa::ops::{resolve, wait_for_route};
use crate::transport::{PeerId, Transport};
use crate::types::*;
use crate::wire::extra;

/// How messages go to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MessageRoute {
    /// It is not known yet.
    #[default]
    Unknown,
    /// Records in the ring to the peer: whole messages, and rendezvous for long ones.
    Ring,
    /// Packets of the protocol, by the adapter.
    Packets,
    /// One work request for each message (efa-direct).
    Direct,
    /// One work request for each message, in front of which a receiver finds 40 bytes.
    Datagrams,
}

/// How a peer's memory is read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum RmaRoute {
    /// It is not known yet.
    #[default]
    Unknown,
    /// By records in the ring to the peer, or by cross-memory attach.
    Ring,
    /// By the adapter.
    Adapter,
    /// By messages of the protocol, which the peer answers.
    Emulated,
}

/// The routes from an endpoint to one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerRoute {
    message: MessageRoute,
    read: RmaRoute,
    write: RmaRoute,
    /// Writes with data for the peer's completion queue.
    write_data: RmaRoute,
}

/// The routes of an endpoint, by peer.
#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<PeerRoute>);

impl Routes {
    /// How messages go to a peer.
    #[inline(always)]
    pub(crate) fn message(&self, peer: PeerId) -> MessageRoute {
        match self.0.get(peer as usize) {
            Some(r) => r.message,
            None => MessageRoute::Unknown,
        }
    }

    /// How a peer's memory is read or written, with remote CQ data or without.
    #[inline(always)]
    pub(crate) fn rma(&self, peer: PeerId, write: bool, data: bool) -> RmaRoute {
        let Some(r) = self.0.get(peer as usize) else {
            return RmaRoute::Unknown;
        };
        match (write, data) {
            (false, _) => r.read,
            (true, false) => r.write,
            (true, true) => r.write_data,
        }
    }

    fn entry(&mut self, peer: PeerId) -> Result<&mut PeerRoute> {
        let i = peer as usize;
        if self.0.len() <= i {
            let more = i + 1 - self.0.len();
            self.0.try_reserve(more).map_err(|_| FI_ENOMEM)?;
            self.0.resize(i + 1, PeerRoute::default());
        }
        self.0.get_mut(i).ok_or(FI_ENOMEM)
    }

    /// Drops the routes to a peer that has changed.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        if let Some(r) = self.0.get_mut(peer as usize) {
            *r = PeerRoute::default();
        }
    }

    /// Drops all routes: settings or peers have changed.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The peer, on this host, has been called and has not answered yet: no route can be chosen. No
/// call of the application's returns this: its operation is kept ([`route_or_keep`]) and starts
/// when the peer has answered.
pub(crate) const ROUTE_PENDING: Errno = 1 << 16;

/// Finds the ring to a peer, or requests it; `false` when the peer has none. Then the queue pair is
/// connected to the peer.
fn ring_or_adapter(s: &mut State, id: u32, peer: PeerId) -> Result<bool> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let addr = s.peers.addr(peer).ok_or(FI_EINVAL)?;
    if let Some(h) = &mut live.shm_ep {
        if !h.tx.ensure_route(peer, addr) {
            return Err(ROUTE_PENDING);
        }
        if h.tx.has_route(peer) {
            return Ok(true);
        }
    }
    if !live.qp.connected(peer) {
        live.qp.connect(peer, addr)?;
    }
    Ok(false)
}

/// Whether a route to this peer of a deferred operation can be chosen; `ROUTE_PENDING` if not yet.
/// Other errors are the operation's own to find.
pub(crate) fn answered(s: &mut State, id: u32, to: fi_addr_t) -> Result<()> {
    let peer = resolve(s, id, to);
    match peer.and_then(|peer| ring_or_adapter(s, id, peer)) {
        Err(ROUTE_PENDING) => Err(ROUTE_PENDING),
        _ => Ok(()),
    }
}

/// The route that was chosen for an operation; while the peer has not answered, the operation is
/// kept. `FI_EAGAIN` when there are too many of those.
pub(crate) fn route_or_keep<T>(
    s: &mut State,
    id: u32,
    chosen: Result<T>,
    work: impl FnOnce() -> DeferredWork,
) -> Result<T> {
    if matches!(chosen, Err(ROUTE_PENDING)) {
        wait_for_route(s, id, work())?;
    }
    chosen
}

/// Chooses how messages go to a peer.
#[cold]
pub(crate) fn choose_message(s: &mut State, id: u32, peer: PeerId) -> Result<MessageRoute> {
    let ring = ring_or_adapter(s, id, peer)?;
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let route = match (ring, ep.kind) {
        (true, _) => MessageRoute::Ring,
        (false, EndpointKind::Rdm) => MessageRoute::Packets,
        (false, EndpointKind::Direct) => MessageRoute::Direct,
        (false, EndpointKind::Dgram) => MessageRoute::Datagrams,
    };
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    live.routes.entry(peer)?.message = route;
    Ok(route)
}

/// Chooses how a peer's memory is read, or written, with data for its completion queue or without.
#[cold]
pub(crate) fn choose_rma(
    s: &mut State,
    id: u32,
    peer: PeerId,
    (write, data): (bool, bool),
) -> Result<RmaRoute> {
    let ring = ring_or_adapter(s, id, peer)?;
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let (kind, own) = (
        ep.kind,
        [ep.rdma_read, ep.rdma_write, ep.rdma_write]
            .map(|on| on || ep.kind == EndpointKind::Direct),
    );
    let LiveEndpoint {
        qp, proto, routes, ..
    } = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let caps = s.dev.attr().caps;
    let theirs = match kind {
        EndpointKind::Rdm => proto.features_of(peer),
        EndpointKind::Direct | EndpointKind::Dgram => None,
    };
    // Whether a write with data takes a receive has to be the same on both sides.
    let alike = |f: u64| (f & extra::UNSOLICITED_WRITE_RECV != 0) == caps.unsolicited;
    let able = match theirs {
        _ if kind == EndpointKind::Direct => [true; 3],
        Some(f) => {
            let writes = f & extra::RDMA_WRITE != 0;
            [f & extra::RDMA_READ != 0, writes, writes && alike(f)]
        }
        None => [caps.homogeneous; 3],
    };
    let most = qp.caps(peer);
    let native = match ring {
        true => RmaRoute::Ring,
        false => RmaRoute::Adapter,
    };
    let can = [most.get, most.put, most.put].map(|n| n > 0);
    let mut all = [RmaRoute::Emulated; 3];
    for (i, r) in all.iter_mut().enumerate() {
        if own[i] && able[i] && (ring || can[i]) {
            *r = native;
        }
    }
    let [read, written, written_data] = all;
    // Keeps the routes only if the peer's features are certain: from its handshake, or the same for
    // all.
    if theirs.is_some() || kind == EndpointKind::Direct || caps.homogeneous {
        let e = routes.entry(peer)?;
        (e.read, e.write, e.write_data) = (read, written, written_data);
    }
    Ok(match (write, data) {
        (false, _) => read,
        (true, false) => written,
        (true, true) => written_data,
    })
}
