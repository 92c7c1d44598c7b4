//! The sending side: how each peer is reached, and its ring.
//!
//! `transport` is what the provider sees of it: messages, reads, writes and atomics as records.
//! `route` finds out how a peer is reached, `rma` keeps what has been posted until it ends,
//! `copies` has what the system copies in the place of records.

mod copies;
mod rma;
mod route;
mod transport;

pub use transport::RecordHead;

use super::connection;
use super::events::{EventQueue, EventThread, RingEvent};
use super::kind;
use super::ring::{RecordHeader, RingSegment, RingWriter, WriteBlocked};
use super::rma::{
    AdapterRetry, Initiator, KeyHashes, LocalBuffer, OutstandingRma, RemoteMrTable, RmaDenied,
    RmaRequest, CLOSE_WAIT, VISIT,
};
use super::split_copy::{self, SplitCopy};
use crate::device::{host, QpAddr};
use crate::hmem::{Piece, UserMem};
use crate::transport::{
    Completion, Flow, PeerId, Poll, PollStatus, RemoteAddr, Sink, Status, Verdict,
};
use crate::types::*;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// A peer that has not taken our ring for so long, nanoseconds, is reached by the adapter.
const ANSWER: u64 = 200_000_000;

/// How packets reach a peer.
enum TxRoute {
    Unknown,
    /// It has no place for callers just now; since when.
    WriteBlocked(u64),
    /// It was called, and has not said that it reads the ring; since when.
    Calling(Box<TxRing>, u64),
    Adapter,
    Ring(Box<TxRing>),
}

impl TxRoute {
    /// Whether the peer was called, and it is not known yet how packets reach it.
    fn is_open(&self) -> bool {
        matches!(self, TxRoute::Calling(..) | TxRoute::WriteBlocked(_))
    }
}

/// A ring to a peer.
struct TxRing {
    ring: RingWriter,
    sock: Arc<OwnedFd>,
    conn: u64,
    to: QpAddr,
    /// The peer's memory, where the system lets us in.
    initiator: Option<Arc<Initiator>>,
    tags: KeyHashes,
    outstanding: OutstandingRma,
    /// What stopped the last record, until [`TxRings::arm`] has seen to it.
    stopped: Option<WriteBlocked>,
    /// Which words of the ring are of shared transfers, as bits, and how many there were.
    shares: u8,
    round: u16,
}

impl TxRing {
    /// Ends these transfers. A peer that has taken a chunk is waited for, unless it hangs or is
    /// dead: it writes to our memory.
    fn stop(&mut self, words: u8, thread: &EventThread) {
        let until = Instant::now() + CLOSE_WAIT;
        for word in (0..split_copy::WORDS).filter(|w| self.shares & words & 1 << w != 0) {
            while !SplitCopy::stop(word, self.ring.file())
                && Instant::now() < until
                && !thread.peer_exited(self.conn)
            {
                std::thread::yield_now();
            }
        }
        self.shares &= !words;
    }

    /// Turns the result of writing a record into a verdict, and wakes the reader where it waits.
    #[inline(always)]
    fn outcome(
        &mut self,
        written: core::result::Result<bool, WriteBlocked>,
        peer: PeerId,
        stopped: &mut Vec<PeerId>,
    ) -> Verdict {
        match written {
            Ok(false) => Verdict::Done,
            Ok(true) => {
                connection::wake(&self.sock);
                Verdict::Done
            }
            Err(why) => {
                if self.stopped.replace(why).is_none() {
                    stopped.push(peer);
                }
                Verdict::NoResources
            }
        }
    }
}

/// The way out: a ring to every peer that can be reached.
pub struct TxRings {
    pub(super) own: QpAddr,
    shared: Arc<EventQueue>,
    thread: &'static EventThread,
    routes: Vec<TxRoute>,
    /// Peers for whom something was stopped.
    stopped: Vec<PeerId>,
    /// Peers that accesses have been written to which are not known to be done.
    peers_outstanding: Vec<PeerId>,
    /// Accesses to peers that are gone.
    lost: VecDeque<(Completion, Status)>,
    /// Peers of which it is not known yet how packets reach them ([`TxRoute::is_open`]).
    calling: usize,
    /// Accesses that the adapter is to do.
    again: Vec<AdapterRetry>,
}

impl TxRings {
    /// Of the endpoint at `own`.
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
            stopped: Vec::new(),
            peers_outstanding: Vec::new(),
            lost: VecDeque::new(),
            calling: 0,
            again: Vec::new(),
        }
    }

    /// Whether the peer has been called and has not answered yet.
    pub fn is_calling(&self, peer: PeerId) -> bool {
        self.routes.get(peer as usize).is_some_and(TxRoute::is_open)
    }

    /// Whether there is a ring to a peer, or will be.
    pub(super) fn has_ring(&self, peer: PeerId) -> bool {
        let ring = matches!(self.routes.get(peer as usize), Some(TxRoute::Ring(_)));
        ring || self.is_calling(peer)
    }

    /// The number will be another peer's, to which there is no route yet.
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

    /// Sends a record of up to seven words to a peer that has a ring; to others `Unsupported`.
    #[inline]
    pub fn send_words(&mut self, peer: PeerId, what: RecordHeader, words: &[u64]) -> Verdict {
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        let written = out.ring.write_words(what, words);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`TxRings::send_words`], to a peer that nothing may have been sent to yet.
    pub fn tell(
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

    /// Whether a peer's ring has room for `count` records of `len` bytes now; also where there is
    /// no ring yet.
    #[inline]
    pub fn fits(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return true;
        };
        let fits = o.ring.fits(count, len);
        if !fits && o.stopped.replace(WriteBlocked::Room).is_none() {
            self.stopped.push(peer);
        }
        fits
    }

    /// Much is to be written to a peer.
    pub fn widen(&mut self, peer: PeerId) {
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.ring.widen();
        }
    }

    /// Asks peers that could not take a record to wake us when they can; `false` when one can now,
    /// and while one has been called that has not answered.
    pub fn arm(&mut self) -> bool {
        // Nobody wakes a sleeper when a peer does not answer.
        let mut quiet = self.calling == 0;
        for peer in self.stopped.drain(..) {
            if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) {
                quiet &= o.stopped.take().is_none_or(|why| o.ring.want(why));
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
                o.stop(u8::MAX, self.thread);
                if let Some(l) = &o.initiator {
                    l.clear();
                }
                self.thread.forget(o.conn);
            }
        }
    }
}
