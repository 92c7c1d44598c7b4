//! State of an enabled endpoint: its queue pair, its protocol, its rings, and operations that wait.

use super::failure;
use crate::device::any::{AnyQp, OwnRequests};
use crate::device::{Events, QueuePair};
use crate::proto::{self, Failure, PeerId};
use crate::prov::efa::peers::Peers;
use crate::prov::efa::same_host;
use crate::prov::efa::same_host::rendezvous::Rendezvous;
use crate::prov::efa::same_host::shm_rma::ShmRma;
use crate::prov::efa::select::Routes;
use crate::shm::ShmEndpoint;
use crate::transport::Status;
use std::collections::HashMap;
use std::time::Instant;

/// State that an endpoint has from fi_enable(3) on.
pub(crate) struct LiveEndpoint {
    pub(crate) qp: AnyQp,
    pub(crate) proto: proto::Endpoint,
    pub(crate) events: Events,
    /// How each peer is reached.
    pub(crate) routes: Routes,
    /// Writes in several parts whose immediate data is still to be posted.
    pub(crate) late_imms: Vec<u32>,
    /// What is under way with peers on this host: packets, reads, copies of their device memory.
    /// Dropped before `shm_ep`, which has that memory open.
    pub(crate) shm: same_host::ShmState,
    /// Rings from and to peers on the same host.
    pub(crate) shm_ep: Option<ShmEndpoint>,
    /// Long messages to and from these peers, and accesses to their memory.
    pub(crate) rendezvous: Rendezvous,
    pub(crate) rma: ShmRma,
    /// Scratch for a protocol packet from a ring.
    pub(crate) packet: Vec<u8>,
    /// Injected writes since the endpoint was last polled.
    pub(crate) unpolled: u32,
    /// Empty polls of the adapter in a row, and polls that have skipped it since ([`super::idle`]).
    pub(crate) empty_polls: u32,
    pub(crate) skipped_polls: u32,
    /// A poll of the adapter is a system call; when it was last polled while idle.
    pub(crate) costly_poll: bool,
    pub(crate) idle_poll_at: u64,
    /// When packets to a peer were last lost.
    pub(crate) losses: HashMap<PeerId, Instant>,
    pub(crate) wakeup: Wakeup,
}

/// Whether a caller may be blocked until the descriptor is readable (see `Ep::arm`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    Off,
    Armed,
    /// The descriptor was made readable for an operation that raises no event. A poll of another
    /// caller may clear it before the blocked one has seen it.
    Signalled,
}

impl LiveEndpoint {
    /// The queue pair as a source of the application's own completions, if there is nothing to do
    /// beside taking them.
    #[inline(always)]
    pub(crate) fn own_requests(&mut self) -> Option<OwnRequests<'_>> {
        match self.late_imms.is_empty() {
            true => self.qp.native().map(OwnRequests),
            false => None,
        }
    }

    /// A number that changes with most polls.
    pub(crate) fn poll_counts(&self) -> u64 {
        u64::from(self.skipped_polls) + (u64::from(self.empty_polls) << 32)
    }

    /// Polls the rings, and counts an empty poll. Returns whether only the adapter may have
    /// something to do.
    #[inline]
    pub(crate) fn poll_idle(&mut self) -> bool {
        let idle = |h: &mut ShmEndpoint| !h.tx.has_outstanding() && h.rx.poll_idle();
        self.idle() && self.shm_ep.as_mut().is_none_or(idle)
    }

    /// Whether nothing waits to be done, the rings aside.
    #[inline]
    pub(crate) fn idle(&self) -> bool {
        let lost = self.shm_ep.as_ref().is_some_and(ShmEndpoint::lost);
        let shm = self.shm.load()
            | self.rma.load()
            | self.rendezvous.load()
            | usize::from(self.rendezvous.more());
        let open = shm | self.proto.load() | self.late_imms.len();
        open == 0 && !lost
    }

    /// Takes the peers on this host that are gone; the last poll has taken their last packets.
    #[inline]
    pub(crate) fn lost(&mut self, peers: &mut Peers) -> Vec<(PeerId, Failure)> {
        match &mut self.shm_ep {
            Some(h) if h.lost() => {
                let why = failure(Status::RemoteUnresponsive);
                // Rings have come or gone.
                self.routes.clear();
                h.gone().iter().map(|a| (peers.learn(a), why)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Wakes a caller that is blocked on the descriptor: an operation was posted whose completion
    /// raises no event.
    #[inline(always)]
    pub(crate) fn notify_sleeper(&mut self) {
        if self.wakeup == Wakeup::Armed {
            self.signal();
        }
    }

    #[cold]
    pub(crate) fn signal(&mut self) {
        let idle = self.idle();
        if let Some(h) = self
            .shm_ep
            .as_ref()
            .filter(|h| !idle || h.tx.has_outstanding())
        {
            self.wakeup = Wakeup::Signalled;
            h.signal();
        }
    }

    /// Returns whether the adapter or the rings are no longer armed although a blocked caller
    /// relies on that. Clears the state.
    #[inline]
    pub(crate) fn take_arm_lost(&mut self) -> bool {
        let hears = |h: &ShmEndpoint| h.rx.armed();
        let hears = || self.qp.armed() && self.shm_ep.as_ref().is_none_or(hears);
        let lost = self.wakeup != Wakeup::Off && !hears();
        if lost {
            self.wakeup = Wakeup::Off;
        }
        lost
    }

    pub(crate) fn wait_fd(&self) -> i32 {
        self.shm_ep
            .as_ref()
            .map_or(self.qp.wait_fd(), ShmEndpoint::fd)
    }
}
