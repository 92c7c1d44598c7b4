//! The sending side: the route to each peer, and its ring.
//!
//! `transport` is the provider's view: messages, reads, writes and atomics as records. `route`
//! finds out how a peer is reached, `rma` keeps posted accesses until they end, `copies` makes
//! cross-memory copies in place of records, and `device` starts copies by a device.

mod copies;
mod device;
mod rma;
mod route;
mod transport;

pub use transport::RecordHead;

use super::connection;
use super::events::{EventQueue, EventThread, RingEvent};
use super::kind;
use super::ring::{RecordHeader, RingSegment, RingWriter, WriteBlocked};
use super::rma::{
    AdapterRetry, Initiator, KeyHashes, LocalBuffer, OutstandingRma, RegionUse, RemoteMrTable,
    RmaDenied, RmaRequest, CLOSE_WAIT, COPY_KEY,
};
use super::split_copy::{self, SplitCopy};
use crate::core::slab::Slab;
use crate::device::{host, QpAddr};
use crate::hmem::{PendingCopy, Piece, SharedMemory, UserMem};
use crate::transport::{
    Completion, Flow, PeerId, Poll, PollStatus, RemoteAddr, Sink, Status, Verdict,
};
use crate::types::*;
use device::{DeviceCopy, DeviceMarks};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Nanoseconds without progress of a reader after which all of its ring is used.
const STALL: u64 = 1_000_000;

/// Nanoseconds after which a peer that has not accepted our ring is reached through the adapter,
/// unless its process is stopped.
const ANSWER: u64 = 2_000_000_000;

/// A request that the peer has not answered.
#[derive(Clone, Copy)]
struct RingRequest {
    /// Since when the peer may answer, nanoseconds.
    since: u64,
    /// The peer's process was found stopped: it answers when it continues.
    stopped: bool,
}

/// How packets reach a peer.
enum TxRoute {
    Unknown,
    /// The peer's backlog is full; since when, nanoseconds.
    BacklogFull(u64),
    /// A ring was sent, and the peer has not accepted it yet.
    Calling(Box<TxRing>, RingRequest),
    Adapter,
    Ring(Box<TxRing>),
}

impl TxRoute {
    /// Whether the route to the peer is being looked for, and no event says when it is found. An
    /// `Unknown` route is not: nothing was sent to the peer yet. Nor is that to a stopped peer: its
    /// answer, or its end, is an event.
    fn is_pending(&self) -> bool {
        match self {
            TxRoute::Calling(_, call) => !call.stopped,
            TxRoute::BacklogFull(_) => true,
            _ => false,
        }
    }

    /// The ring to the peer, accepted or not.
    fn ring(&self) -> Option<&TxRing> {
        match self {
            TxRoute::Ring(r) | TxRoute::Calling(r, _) => Some(r),
            _ => None,
        }
    }
}

/// A ring to a peer.
struct TxRing {
    ring: RingWriter,
    sock: Arc<OwnedFd>,
    conn: u64,
    to: QpAddr,
    /// Access to the peer's memory, where the system permits it.
    initiator: Option<Arc<Initiator>>,
    tags: KeyHashes,
    outstanding: OutstandingRma,
    /// Why the last record was not written, until [`TxRings::arm`] has asked for a wake-up.
    blocked_by: Option<WriteBlocked>,
    /// How far the reader had come when a record found no room, and since when, nanoseconds.
    stalled: Option<(u64, u64)>,
    /// Words of the ring in use by split copies, as bits, and the number of the last split copy.
    split_words: u8,
    split_round: u16,
    /// Where the ring was when the present half of these numbers began.
    half_began: u64,
    device_marks: DeviceMarks,
}

impl TxRing {
    /// Ends all split copies, when the endpoint is closed. Waits for a peer that has taken a chunk,
    /// because the peer writes to our memory, unless it hangs or has ended.
    fn end_split_copies(&mut self, thread: &EventThread) {
        let until = Instant::now() + CLOSE_WAIT;
        for word in (0..split_copy::WORDS).filter(|w| self.split_words & 1 << w != 0) {
            while !SplitCopy::stop(word, self.ring.file())
                && Instant::now() < until
                && !thread.peer_exited(self.conn)
            {
                std::thread::yield_now();
            }
        }
        self.split_words = 0;
    }

    /// Turns the result of writing a record into a verdict, and wakes the reader where it waits.
    #[inline(always)]
    fn outcome(
        &mut self,
        written: core::result::Result<bool, WriteBlocked>,
        peer: PeerId,
        blocked_peers: &mut Vec<PeerId>,
    ) -> Verdict {
        match written {
            Ok(false) => Verdict::Done,
            Ok(true) => {
                connection::wake(&self.sock);
                Verdict::Done
            }
            Err(why) => {
                if self.note_blocked(why) {
                    blocked_peers.push(peer);
                }
                Verdict::NoResources
            }
        }
    }

    /// Notes that a record was not written. Uses all of the ring once the reader has taken nothing
    /// for [`STALL`]: it computes, and the sender should not wait for it. Returns whether this is
    /// the first record since [`TxRings::arm`].
    #[cold]
    fn note_blocked(&mut self, why: WriteBlocked) -> bool {
        if why == WriteBlocked::Room && !self.ring.is_wide() {
            let (taken, now) = (self.ring.taken(), host::now());
            match self.stalled {
                Some((at, since)) if at == taken => {
                    if now.saturating_sub(since) > STALL {
                        self.ring.widen();
                    }
                }
                _ => self.stalled = Some((taken, now)),
            }
        }
        self.blocked_by.replace(why).is_none()
    }
}

/// The sending side of an endpoint: a route to every peer.
pub struct TxRings {
    pub(super) own: QpAddr,
    shared: Arc<EventQueue>,
    thread: &'static EventThread,
    routes: Vec<TxRoute>,
    /// Peers whose ring has not taken a record.
    blocked_peers: Vec<PeerId>,
    /// Peers with accesses that are not known to be done.
    peers_outstanding: Vec<PeerId>,
    /// Accesses to peers that are gone.
    lost: VecDeque<(Completion, Status)>,
    /// Peers of which it is not known yet how packets reach them ([`TxRoute::is_pending`]).
    pending_routes: usize,
    /// Accesses that the adapter is to do.
    retries: Vec<AdapterRetry>,
    /// Where this process ran when it was published last.
    cpu: u64,
    /// Copies between this process's memory and peers' device memory, and what of that is open
    /// here.
    device_copies: Slab<DeviceCopy>,
    pub(crate) open_memory: SharedMemory,
}

impl TxRings {
    /// The sending side of the endpoint at `own`.
    pub(super) fn new(
        own: QpAddr,
        shared: Arc<EventQueue>,
        thread: &'static EventThread,
    ) -> TxRings {
        TxRings {
            own,
            shared,
            thread,
            routes: Vec::new(),
            blocked_peers: Vec::new(),
            peers_outstanding: Vec::new(),
            lost: VecDeque::new(),
            pending_routes: 0,
            retries: Vec::new(),
            cpu: 0,
            device_copies: Slab::default(),
            open_memory: SharedMemory::default(),
        }
    }

    /// Publishes where this process runs, if it has moved.
    pub(super) fn publish_cpu(&mut self, word: u64) {
        if self.cpu == word {
            return;
        }
        self.cpu = word;
        for r in self.routes.iter().filter_map(TxRoute::ring) {
            r.ring.set_cpu(word);
        }
    }

    /// Whether the route to the peer is being looked for: it has been called and has not answered
    /// yet, or its backlog was full.
    pub fn is_route_pending(&self, peer: PeerId) -> bool {
        self.routes
            .get(peer as usize)
            .is_some_and(TxRoute::is_pending)
    }

    /// Whether there is a ring to a peer, or will be.
    pub(super) fn has_ring(&self, peer: PeerId) -> bool {
        let ring = matches!(self.routes.get(peer as usize), Some(TxRoute::Ring(_)));
        ring || self.is_route_pending(peer)
    }

    /// Forgets a peer: its number will belong to another peer, to which there is no route yet.
    pub fn forget_peer(&mut self, peer: PeerId) {
        if let TxRoute::Calling(o, _) = self.set_route(peer as usize, TxRoute::Unknown) {
            self.thread.forget(o.conn);
        }
    }

    /// Whether records can go to a peer now.
    #[inline]
    pub fn has_route(&self, peer: PeerId) -> bool {
        matches!(self.routes.get(peer as usize), Some(TxRoute::Ring(_)))
    }

    /// The peer, called or with a ring, whose queue pair has this number, and its address; a GID of
    /// zeros is any.
    #[cold]
    pub fn peer_at(&self, gid: &[u8; 16], qpn: u16) -> Option<(PeerId, QpAddr)> {
        let to = |r: &TxRoute| match r {
            TxRoute::Ring(o) | TxRoute::Calling(o, _) => Some(o.to),
            _ => None,
        };
        let all = self.routes.iter().enumerate();
        all.filter_map(|(at, r)| Some((at as PeerId, to(r)?)))
            .find(|(_, a)| a.qpn == qpn && (*gid == [0; 16] || a.gid == *gid))
    }

    /// Sends a record of up to seven words to a peer that has a ring; to others `Unsupported`.
    #[inline]
    pub fn send_words(&mut self, peer: PeerId, what: RecordHeader, words: &[u64]) -> Verdict {
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        let written = out.ring.write_words(what, words);
        out.outcome(written, peer, &mut self.blocked_peers)
    }

    /// As [`TxRings::send_words`], for a peer that may have no route yet.
    pub fn send_words_routed(
        &mut self,
        peer: PeerId,
        addr: &QpAddr,
        what: RecordHeader,
        words: &[u64],
    ) -> Verdict {
        match self.ensure_route(peer, addr) {
            true => self.send_words(peer, what, words),
            false => Verdict::NoResources,
        }
    }

    /// Whether a peer's ring has room for `count` records of `len` bytes now; `true` where there is
    /// no ring yet. A ring without room is remembered for [`TxRings::arm`].
    #[inline]
    pub fn check_room(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return true;
        };
        let fits = o.ring.find_room(count, len);
        if !fits && o.note_blocked(WriteBlocked::Room) {
            self.blocked_peers.push(peer);
        }
        fits
    }

    /// Asks peers that could not take a record to wake us when they can. Returns `false` when a
    /// peer can now, and while a connection request is not answered.
    pub fn arm(&mut self) -> bool {
        // No event arrives when a peer does not answer: the caller must not block.
        if self.pending_routes > 0 {
            self.check_late_calls();
        }
        let mut quiet = self.pending_routes == 0;
        for peer in self.blocked_peers.drain(..) {
            if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) {
                quiet &= o
                    .blocked_by
                    .take()
                    .is_none_or(|why| o.ring.request_wakeup(why));
            }
        }
        quiet
    }
}

impl Drop for TxRings {
    fn drop(&mut self) {
        for r in &mut self.routes {
            if let TxRoute::Calling(o, _) = r {
                self.thread.forget(o.conn);
            }
            if let TxRoute::Ring(o) = r {
                o.end_split_copies(self.thread);
                if let Some(l) = &o.initiator {
                    l.clear();
                }
                self.thread.forget(o.conn);
            }
        }
    }
}
