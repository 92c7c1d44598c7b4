//! The way out: which way packets reach each peer, and its ring.

use super::connection;
use super::events::{EventQueue, EventThread, RingEvent};
use super::kind;
use super::ring::{RecordHeader, RingSegment, RingWriter, WriteBlocked, RECORD_MAX};
use super::rma::{
    AdapterRetry, Completion, Initiator, KeyHashes, LocalBuffer, OutstandingRma, RemoteMrTable,
    RmaCompletion, RmaDenied, RmaRequest, CLOSE_WAIT, VISIT,
};
use super::split_copy::{self, SplitCopy};
use super::{PeerIndex, Verdict};
use crate::device::wait::wait_readable;
use crate::device::{host, QpAddr};
use crate::hmem::{Piece, UserMem};
use crate::types::*;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// A peer that has not taken our ring for so long, nanoseconds, is reached by the adapter.
const ANSWER: u64 = 200_000_000;
/// So many nanoseconds the first operation itself waits for it.
const ANSWER_AT_ONCE: u64 = 10_000_000;

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
        peer: PeerIndex,
        stopped: &mut Vec<PeerIndex>,
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
    stopped: Vec<PeerIndex>,
    /// Peers that accesses have been written to which are not known to be done.
    peers_outstanding: Vec<PeerIndex>,
    /// Accesses to peers that are gone.
    lost: VecDeque<(PeerIndex, RmaCompletion)>,
    /// Peers of which it is not known yet how packets reach them ([`TxRoute::is_open`]).
    calling: usize,
    /// Accesses that the adapter is to do.
    again: Vec<(PeerIndex, AdapterRetry)>,
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

    /// First contact: finds out how the peer is reached. `false` while that is not known: the peer
    /// gets no packet in another way meanwhile, for messages keep their order only on one. One that
    /// does not answer for [`ANSWER`] is reached by the adapter.
    #[cold]
    fn call(&mut self, peer: PeerIndex, addr: &QpAddr) -> bool {
        let at = peer as usize;
        if self.routes.len() <= at {
            let more = at + 1 - self.routes.len();
            if self.routes.try_reserve(more).is_err() {
                return false;
            }
            self.routes.resize_with(at + 1, || TxRoute::Unknown);
        }
        let now = host::now();
        let late = |since: u64| now.saturating_sub(since) > ANSWER;
        let since_full = match self.routes.get(at) {
            Some(TxRoute::Unknown) => None,
            Some(TxRoute::WriteBlocked(since)) => Some(*since),
            Some(TxRoute::Calling(out, since)) => {
                if !late(*since) {
                    // Whoever polls for an answer may keep the thread that hears it from running.
                    EventThread::attend();
                    return false;
                }
                self.thread.forget(out.conn);
                self.set_route(at, TxRoute::Adapter);
                return true;
            }
            _ => return true,
        };
        let route = match self.open(addr) {
            Ok(out) => TxRoute::Calling(Box::new(out), now),
            Err(FI_EAGAIN) if !since_full.is_some_and(late) => {
                TxRoute::WriteBlocked(since_full.unwrap_or(now))
            }
            Err(_) => TxRoute::Adapter,
        };
        self.set_route(at, route);
        self.hear_answer(at);
        matches!(
            self.routes.get(at),
            Some(TxRoute::Ring(_) | TxRoute::Adapter)
        )
    }

    /// From now on packets reach a peer this way; returns how they did.
    fn set_route(&mut self, at: usize, route: TxRoute) -> TxRoute {
        let Some(r) = self.routes.get_mut(at) else {
            return TxRoute::Unknown;
        };
        let (before, after) = (r.is_open(), route.is_open());
        self.calling = self.calling + usize::from(after) - usize::from(before);
        core::mem::replace(r, route)
    }

    /// Waits a moment for the answer to a call: the peer's thread gives it whatever its owner does,
    /// and who has sent one message need not poll for it to leave.
    fn hear_answer(&mut self, at: usize) {
        let end = host::now() + ANSWER_AT_ONCE;
        while let Some(TxRoute::Calling(out, _)) = self.routes.get(at) {
            let (conn, sock) = (out.conn, Arc::clone(&out.sock));
            EventThread::attend();
            match self.shared.answer(conn) {
                Some(RingEvent::Accepted(_, visit)) => self.accepted(conn, visit),
                Some(_) => return,
                None if host::now() >= end => return,
                None => wait_readable(sock.as_raw_fd(), 1),
            }
        }
    }

    fn open(&self, addr: &QpAddr) -> crate::core::Result<TxRing> {
        if addr.gid != self.own.gid {
            return Err(FI_EHOSTUNREACH);
        }
        let mut ring = RingWriter::new()?;
        let (sock, pid) = connection::connect(&self.own, addr, ring.fd())?;
        ring.passed();
        let sock = Arc::new(sock);
        let conn = self.thread.called(&self.shared, Arc::clone(&sock), pid);
        Ok(TxRing {
            ring,
            sock,
            conn,
            to: *addr,
            initiator: None,
            tags: KeyHashes::default(),
            outstanding: OutstandingRma::default(),
            stopped: None,
            shares: 0,
            round: 0,
        })
    }

    /// The peer of a connection reads our ring, and may let us into its memory.
    pub(super) fn accepted(&mut self, conn: u64, visit: Option<RemoteMrTable>) {
        let to = |r: &TxRoute| matches!(r, TxRoute::Calling(o, _) if o.conn == conn);
        let Some(at) = self.routes.iter().position(to) else {
            return;
        };
        let TxRoute::Calling(mut o, _) = self.set_route(at, TxRoute::Adapter) else {
            return;
        };
        if let Some(visit) = visit {
            let ring = Arc::clone(o.ring.file());
            o.initiator = Some(Arc::new(Initiator::new(ring, visit)));
        }
        self.set_route(at, TxRoute::Ring(o));
    }

    /// Asks a peer to which no ring leads for the rest of message `number` of its, which is our
    /// `here`.
    pub fn send_cts(&self, from: &QpAddr, number: u32, here: u32) -> Verdict {
        self.thread.send_cts(&self.shared, from, number, here)
    }

    /// The peer that a ring leads to by connection `conn`.
    pub fn peer_of(&self, conn: u64) -> Option<PeerIndex> {
        let of = |r: &TxRoute| matches!(r, TxRoute::Ring(o) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        PeerIndex::try_from(at).ok()
    }

    /// Whether the peer has been called and has not answered yet.
    pub fn is_calling(&self, peer: PeerIndex) -> bool {
        self.routes.get(peer as usize).is_some_and(TxRoute::is_open)
    }

    /// Whether there is a ring to a peer, or will be.
    pub(super) fn has_ring(&self, peer: PeerIndex) -> bool {
        let ring = matches!(self.routes.get(peer as usize), Some(TxRoute::Ring(_)));
        ring || self.is_calling(peer)
    }

    /// The number will be another peer's, to which there is no route yet.
    pub fn forget_peer(&mut self, peer: PeerIndex) {
        if let TxRoute::Calling(o, _) = self.set_route(peer as usize, TxRoute::Unknown) {
            self.thread.forget(o.conn);
        }
    }

    /// Whether a peer is known to be reached by the adapter alone.
    #[inline]
    pub fn uses_adapter(&self, peer: PeerIndex) -> bool {
        matches!(self.routes.get(peer as usize), Some(TxRoute::Adapter))
    }

    /// Of the ring to a peer whose memory can be reached from here.
    #[inline]
    fn initiator(&self, peer: PeerIndex) -> Option<&Initiator> {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(o)) => o.initiator.as_deref(),
            _ => None,
        }
    }

    /// Whether the peer's memory can be reached from here.
    #[inline]
    pub fn reaches_memory(&self, peer: PeerIndex) -> bool {
        self.initiator(peer).is_some()
    }

    /// Writes `local` to a peer's region, or fills it from there. Whether the peer wants to hear of
    /// it.
    pub fn cma_access(
        &mut self,
        peer: PeerIndex,
        write: bool,
        local: &LocalBuffer,
        (key, addr): (u64, u64),
    ) -> core::result::Result<bool, RmaDenied> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Err(RmaDenied::Unsupported);
        };
        let v = o
            .initiator
            .as_ref()
            .ok_or(RmaDenied::Unsupported)?
            .mr_table();
        let tag = o.tags.of(key);
        v.access(o.ring.file().word(VISIT), write, local, tag, addr)?;
        Ok(v.events())
    }

    /// As [`TxRings::access`], pieces, up to [`MANY`](super::MANY), by one call of the system: how
    /// many are there, from the first on.
    pub fn access_batch(
        &mut self,
        peer: PeerIndex,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return 0;
        };
        let mark = o.ring.file().word(VISIT);
        let tag = o.tags.of(key);
        let all = |l: &Arc<Initiator>| l.mr_table().access_batch(mark, write, tag, parts);
        o.initiator.as_ref().map_or(0, all)
    }

    /// Writes `local` to a peer's memory, or fills it from there, where the peer has said. `false`
    /// when that did not work.
    pub fn cma_copy(&self, peer: PeerIndex, write: bool, local: &LocalBuffer, at: u64) -> bool {
        self.initiator(peer)
            .is_some_and(|l| l.mr_table().cma_copy(write, local, at))
    }

    /// Fills pieces of memory, up to [`MANY`](super::MANY), from where the peer has said, by one
    /// call of the system: how many are filled, from the first on.
    pub fn cma_read_batch(
        &self,
        peer: PeerIndex,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        self.initiator(peer)
            .map_or(0, |l| l.mr_table().cma_read_batch(parts))
    }

    /// A transfer of so many chunks that the peer may help with; `None` when there are too many
    /// already.
    pub fn open_split(&mut self, peer: PeerIndex, chunks: u32) -> Option<SplitCopy> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return None;
        };
        let word = o.shares.trailing_ones() as u8;
        if word >= split_copy::WORDS {
            return None;
        }
        o.shares |= 1 << word;
        o.round = o.round.wrapping_add(1);
        let share = SplitCopy {
            word,
            round: o.round,
            chunks,
        };
        share.open(o.ring.file());
        Some(share)
    }

    fn shared(&self, peer: PeerIndex) -> Option<&RingSegment> {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(o)) => Some(o.ring.file()),
            _ => None,
        }
    }

    /// Copies chunks of a transfer of ours as long as there are some: how many; `None` when `copy`
    /// could not do one.
    pub fn copy_split(
        &self,
        peer: PeerIndex,
        s: SplitCopy,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.shared(peer).map_or(Some(0), |ring| s.work(ring, copy))
    }

    /// Whether all are.
    pub fn split_done(&self, peer: PeerIndex, s: SplitCopy) -> bool {
        self.shared(peer).is_some_and(|ring| s.over(ring))
    }

    /// As [`TxRings::split_done`]; it ends then.
    pub fn end_split(&mut self, peer: PeerIndex, s: SplitCopy) -> bool {
        let over = self.split_done(peer, s);
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize).filter(|_| over) {
            o.shares &= !(1 << s.word);
        }
        over
    }

    /// A transfer ends before it is over: nothing is written by the peer any more when this
    /// returns.
    pub fn stop_split(&mut self, peer: PeerIndex, s: SplitCopy) {
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.stop(1 << s.word, self.thread);
        }
    }

    /// The peer of a connection that has ended. What is sent to it from now on, the adapter answers
    /// with an error. Of one that never read our ring nothing is lost: it is reached by the
    /// adapter.
    pub(super) fn disconnect(&mut self, conn: u64) -> Option<QpAddr> {
        let of =
            |r: &TxRoute| matches!(r, TxRoute::Ring(o) | TxRoute::Calling(o, _) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        let TxRoute::Ring(mut o) = self.set_route(at, TxRoute::Adapter) else {
            return None;
        };
        let peer = at as PeerIndex;
        self.peers_outstanding.retain(|p| *p != peer);
        o.outstanding.abort(&mut o.ring, peer, &mut self.lost);
        Some(o.to)
    }

    /// Writes an access into a peer's ring, whose end [`TxRings::poll_done`] tells. `Unsupported`
    /// where it is better done from here, or cannot be done by the peer.
    #[inline(always)]
    pub fn post(&mut self, peer: PeerIndex, a: &RmaRequest, note: Completion) -> Verdict {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        if !o
            .outstanding
            .accepts_rma(a, &o.ring, o.initiator.as_deref())
        {
            return Verdict::Unsupported;
        }
        let what = RecordHeader {
            kind: a.kind,
            flags: a.flags | kind::ACCESS,
            message: a.kind == kind::CONFIRMED,
        };
        let words = [a.key, a.addr, a.word];
        let written = match o.ring.access(what, words, &a.data, a.into.len()) {
            Ok((wake, start)) => {
                let (l, t) = (o.initiator.as_ref(), self.thread);
                if o.outstanding.track(&mut o.ring, l, a, start, note, t) {
                    self.peers_outstanding.push(peer);
                }
                Ok(wake)
            }
            Err(why) => {
                o.outstanding
                    .count_empty_poll(&o.ring, o.initiator.as_deref());
                Err(why)
            }
        };
        o.outcome(written, peer, &mut self.stopped)
    }

    /// Whether accesses to a peer go into its ring just now.
    pub fn takes_rma(&mut self, peer: PeerIndex) -> bool {
        match self.routes.get_mut(peer as usize) {
            Some(TxRoute::Ring(o)) => o.initiator.is_some() && o.outstanding.takes_rma(&o.ring),
            _ => false,
        }
    }

    /// As a process leaves it that ends in the middle of [`Initiator::execute_pending`].
    #[cfg(test)]
    pub fn claim_for_ever(&self, peer: PeerIndex) {
        if let Some(TxRoute::Ring(o)) = self.routes.get(peer as usize) {
            super::rma::abandon(o.ring.file());
        }
    }

    /// Whether a read or write of a peer's region is known to be permitted, and possible from here.
    pub fn permits(
        &mut self,
        peer: PeerIndex,
        (key, addr): (u64, u64),
        len: usize,
        write: bool,
    ) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return false;
        };
        let tag = o.tags.of(key);
        let l = o.initiator.as_ref();
        l.is_some_and(|l| l.mr_table().permits(tag, addr, len, write))
    }

    /// Whether a peer wants to hear of every access.
    pub fn wants_events(&self, peer: PeerIndex) -> bool {
        self.initiator(peer).is_some_and(|l| l.mr_table().events())
    }

    /// Whether [`TxRings::poll_done`] may have something to say.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        !(self.peers_outstanding.is_empty() && self.lost.is_empty() && self.again.is_empty())
    }

    /// What the adapter is to do.
    pub fn take_retries(&mut self) -> Vec<(PeerIndex, AdapterRetry)> {
        core::mem::take(&mut self.again)
    }

    /// An access that cannot be done through shared memory, or that the adapter has no room for
    /// now.
    pub fn add_retry(&mut self, peer: PeerIndex, a: AdapterRetry) {
        self.again.push((peer, a));
    }

    /// Whether there is something for [`TxRings::take_retries`].
    pub fn has_retries(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether accesses to a peer are not known to be done.
    pub fn has_outstanding_to(&self, peer: PeerIndex) -> bool {
        self.peers_outstanding.contains(&peer)
            || self.lost.iter().any(|(p, _)| *p == peer)
            || self.again.iter().any(|(p, _)| *p == peer)
    }

    /// Tells of accesses that have ended, until `each` will not hear of one, which it is told of
    /// again then. `false` in that case, and when some are for [`TxRings::take_retries`].
    #[inline]
    pub fn poll_done(&mut self, mut each: impl FnMut(PeerIndex, &RmaCompletion) -> bool) -> bool {
        while let Some((peer, e)) = self.lost.front() {
            if !each(*peer, e) {
                return false;
            }
            self.lost.pop_front();
        }
        let mut at = 0;
        while let Some(peer) = self.peers_outstanding.get(at).copied() {
            let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
                self.peers_outstanding.swap_remove(at);
                continue;
            };
            let initiator = o.initiator.as_deref();
            let again = |a| self.again.push((peer, a));
            if !o
                .outstanding
                .poll_done(&mut o.ring, initiator, again, |e| each(peer, e))
            {
                return false;
            }
            if o.outstanding.is_empty() {
                self.peers_outstanding.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.again.is_empty()
    }

    /// Executes every access that can be executed from here, before the caller blocks; `false` when
    /// some are left whose end raises no event.
    pub fn settle(&mut self) -> bool {
        let mut all = self.lost.is_empty() && self.again.is_empty();
        for peer in &self.peers_outstanding {
            if let Some(TxRoute::Ring(o)) = self.routes.get_mut(*peer as usize) {
                all &= o.outstanding.settle(&o.ring, o.initiator.as_deref());
            }
        }
        all
    }

    /// Finds out how a peer is reached whom nothing was sent to yet: what is read or written now
    /// goes by the adapter, what comes later perhaps not. `false` when it has too many callers just
    /// now.
    #[inline]
    pub fn ensure_route(&mut self, peer: PeerIndex, addr: &QpAddr) -> bool {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(_) | TxRoute::Adapter) => true,
            _ => self.call(peer, addr),
        }
    }

    /// Hands a packet of up to [`RECORD_MAX`] bytes to a peer: `head`, then `body` or, without one,
    /// `bytes`.
    #[inline]
    pub fn send(
        &mut self,
        peer: PeerIndex,
        addr: &QpAddr,
        what: RecordHeader,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> Verdict {
        if !self.ensure_route(peer, addr) {
            return Verdict::NoResources;
        }
        let len = head.len() + body.len() + bytes.len();
        let Some(TxRoute::Ring(out)) = self
            .routes
            .get_mut(peer as usize)
            .filter(|_| len <= RECORD_MAX)
        else {
            return Verdict::Unsupported;
        };
        let written = out.ring.write(what, head, body, bytes);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`TxRings::send`], a record of up to two words and a piece of memory, to a peer that was
    /// sent to before; to others `Unsupported`.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        peer: PeerIndex,
        what: RecordHeader,
        words: ([u64; 2], usize),
        body: Piece,
    ) -> Verdict {
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        let written = out.ring.write_short(what, words.0, words.1, body);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`TxRings::send_short`], a record of up to seven words.
    #[inline]
    pub fn send_words(&mut self, peer: PeerIndex, what: RecordHeader, words: &[u64]) -> Verdict {
        let Some(TxRoute::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        let written = out.ring.write_words(what, words);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`TxRings::send_words`], to a peer that nothing may have been sent to yet.
    pub fn tell(
        &mut self,
        peer: PeerIndex,
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
    pub fn fits(&mut self, peer: PeerIndex, count: usize, len: usize) -> bool {
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
    pub fn widen(&mut self, peer: PeerIndex) {
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
