//! The way out: which way packets reach each peer, and its ring.

use super::bed::Bed;
use super::claim::{self, Ledger, ACCESS, GOODBYE};
use super::debts::{Access, Again, Debts, Ended, Note};
use super::ring::{Full, Writer};
use super::share::{self, Share};
use super::sock;
use super::table::{Denied, Local, Tags, Visit, VISIT};
use super::thread::{News, Shared, Thread};
use super::{PeerId, Sent, What, RECORD_MAX};
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
enum Route {
    Unknown,
    /// It has no place for callers just now; since when.
    Full(u64),
    /// It was called, and has not said that it reads the ring; since when.
    Calling(Box<Out>, u64),
    Adapter,
    Ring(Box<Out>),
}

impl Route {
    /// Whether the peer was called, and it is not known yet how packets reach it.
    fn is_open(&self) -> bool {
        matches!(self, Route::Calling(..) | Route::Full(_))
    }
}

/// A ring to a peer.
struct Out {
    ring: Writer,
    sock: Arc<OwnedFd>,
    conn: u64,
    to: QpAddr,
    /// The peer's memory, where the system lets us in.
    ledger: Option<Arc<Ledger>>,
    tags: Tags,
    debts: Debts,
    /// What stopped the last record, until [`Outbox::arm`] has seen to it.
    stopped: Option<Full>,
    /// Which words of the ring are of shared transfers, as bits, and how many there were.
    shares: u8,
    round: u16,
}

impl Out {
    /// Ends these transfers. A peer that has taken a chunk is waited for, unless it hangs or is
    /// dead: it writes to our memory.
    fn stop(&mut self, words: u8, thread: &Thread) {
        let until = Instant::now() + GOODBYE;
        for word in (0..share::WORDS).filter(|w| self.shares & words & 1 << w != 0) {
            while !Share::stop(word, self.ring.file())
                && Instant::now() < until
                && !thread.peer_exited(self.conn)
            {
                std::thread::yield_now();
            }
        }
        self.shares &= !words;
    }

    /// What came of writing a record.
    #[inline(always)]
    fn outcome(
        &mut self,
        written: core::result::Result<bool, Full>,
        peer: PeerId,
        stopped: &mut Vec<PeerId>,
    ) -> Sent {
        match written {
            Ok(false) => Sent::Done,
            Ok(true) => {
                sock::wake(&self.sock);
                Sent::Done
            }
            Err(why) => {
                if self.stopped.replace(why).is_none() {
                    stopped.push(peer);
                }
                Sent::Busy
            }
        }
    }
}

/// The way out: a ring to every peer that can be reached.
pub struct Outbox {
    pub(super) own: QpAddr,
    shared: Arc<Shared>,
    thread: &'static Thread,
    routes: Vec<Route>,
    /// Peers for whom something was stopped.
    stopped: Vec<PeerId>,
    /// Peers that accesses have been written to which are not known to be done.
    debtors: Vec<PeerId>,
    /// Accesses to peers that are gone.
    lost: VecDeque<(PeerId, Ended)>,
    /// Peers of which it is not known yet how packets reach them ([`Route::is_open`]).
    calling: usize,
    /// Accesses that the adapter is to do.
    again: Vec<(PeerId, Again)>,
}

impl Outbox {
    /// Of the endpoint at `own`.
    pub(super) fn new(own: QpAddr, shared: Arc<Shared>, thread: &'static Thread) -> Outbox {
        Outbox {
            own,
            shared,
            thread,
            routes: Vec::new(),
            stopped: Vec::new(),
            debtors: Vec::new(),
            lost: VecDeque::new(),
            calling: 0,
            again: Vec::new(),
        }
    }

    /// First contact: finds out how the peer is reached. `false` while that is not known: the peer
    /// gets no packet in another way meanwhile, for messages keep their order only on one. One that
    /// does not answer for [`ANSWER`] is reached by the adapter.
    #[cold]
    fn call(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        let at = peer as usize;
        if self.routes.len() <= at {
            let more = at + 1 - self.routes.len();
            if self.routes.try_reserve(more).is_err() {
                return false;
            }
            self.routes.resize_with(at + 1, || Route::Unknown);
        }
        let now = host::now();
        let late = |since: u64| now.saturating_sub(since) > ANSWER;
        let since_full = match self.routes.get(at) {
            Some(Route::Unknown) => None,
            Some(Route::Full(since)) => Some(*since),
            Some(Route::Calling(out, since)) => {
                if !late(*since) {
                    // Whoever polls for an answer may keep the thread that hears it from running.
                    Thread::attend();
                    return false;
                }
                self.thread.forget(out.conn);
                self.set_route(at, Route::Adapter);
                return true;
            }
            _ => return true,
        };
        let route = match self.open(addr) {
            Ok(out) => Route::Calling(Box::new(out), now),
            Err(FI_EAGAIN) if !since_full.is_some_and(late) => {
                Route::Full(since_full.unwrap_or(now))
            }
            Err(_) => Route::Adapter,
        };
        self.set_route(at, route);
        self.hear_answer(at);
        matches!(self.routes.get(at), Some(Route::Ring(_) | Route::Adapter))
    }

    /// From now on packets reach a peer this way; returns how they did.
    fn set_route(&mut self, at: usize, route: Route) -> Route {
        let Some(r) = self.routes.get_mut(at) else {
            return Route::Unknown;
        };
        let (before, after) = (r.is_open(), route.is_open());
        self.calling = self.calling + usize::from(after) - usize::from(before);
        core::mem::replace(r, route)
    }

    /// Waits a moment for the answer to a call: the peer's thread gives it whatever its owner does,
    /// and who has sent one message need not poll for it to leave.
    fn hear_answer(&mut self, at: usize) {
        let end = host::now() + ANSWER_AT_ONCE;
        while let Some(Route::Calling(out, _)) = self.routes.get(at) {
            let (conn, sock) = (out.conn, Arc::clone(&out.sock));
            Thread::attend();
            match self.shared.answer(conn) {
                Some(News::Accepted(_, visit)) => self.accepted(conn, visit),
                Some(_) => return,
                None if host::now() >= end => return,
                None => wait_readable(sock.as_raw_fd(), 1),
            }
        }
    }

    fn open(&self, addr: &QpAddr) -> crate::core::Result<Out> {
        if addr.gid != self.own.gid {
            return Err(FI_EHOSTUNREACH);
        }
        let mut ring = Writer::new()?;
        let (sock, pid) = sock::connect(&self.own, addr, ring.fd())?;
        ring.passed();
        let sock = Arc::new(sock);
        let conn = self.thread.called(&self.shared, Arc::clone(&sock), pid);
        Ok(Out {
            ring,
            sock,
            conn,
            to: *addr,
            ledger: None,
            tags: Tags::default(),
            debts: Debts::default(),
            stopped: None,
            shares: 0,
            round: 0,
        })
    }

    /// The peer of a connection reads our ring, and may let us into its memory.
    pub(super) fn accepted(&mut self, conn: u64, visit: Option<Visit>) {
        let to = |r: &Route| matches!(r, Route::Calling(o, _) if o.conn == conn);
        let Some(at) = self.routes.iter().position(to) else {
            return;
        };
        let Route::Calling(mut o, _) = self.set_route(at, Route::Adapter) else {
            return;
        };
        if let Some(visit) = visit {
            let ring = Arc::clone(o.ring.file());
            o.ledger = Some(Arc::new(Ledger::new(ring, visit)));
        }
        self.set_route(at, Route::Ring(o));
    }

    /// Asks a peer to which no ring leads for the rest of message `number` of its, which is our
    /// `here`.
    pub fn send_cts(&self, from: &QpAddr, number: u32, here: u32) -> Sent {
        self.thread.send_cts(&self.shared, from, number, here)
    }

    /// The peer that a ring leads to by connection `conn`.
    pub fn peer_of(&self, conn: u64) -> Option<PeerId> {
        let of = |r: &Route| matches!(r, Route::Ring(o) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        PeerId::try_from(at).ok()
    }

    /// Whether the peer has been called and has not answered yet.
    pub fn is_calling(&self, peer: PeerId) -> bool {
        self.routes.get(peer as usize).is_some_and(Route::is_open)
    }

    /// Whether there is a ring to a peer, or will be.
    pub(super) fn has_ring(&self, peer: PeerId) -> bool {
        let ring = matches!(self.routes.get(peer as usize), Some(Route::Ring(_)));
        ring || self.is_calling(peer)
    }

    /// The number will be another peer's, to which there is no route yet.
    pub fn forget_peer(&mut self, peer: PeerId) {
        if let Route::Calling(o, _) = self.set_route(peer as usize, Route::Unknown) {
            self.thread.forget(o.conn);
        }
    }

    /// Whether a peer is known to be reached by the adapter alone.
    #[inline]
    pub fn leaves(&self, peer: PeerId) -> bool {
        matches!(self.routes.get(peer as usize), Some(Route::Adapter))
    }

    /// Of the ring to a peer whose memory can be reached from here.
    #[inline]
    fn ledger(&self, peer: PeerId) -> Option<&Ledger> {
        match self.routes.get(peer as usize) {
            Some(Route::Ring(o)) => o.ledger.as_deref(),
            _ => None,
        }
    }

    /// Whether the peer's memory can be reached from here.
    #[inline]
    pub fn visits(&self, peer: PeerId) -> bool {
        self.ledger(peer).is_some()
    }

    /// Writes `local` to a peer's region, or fills it from there. Whether the peer wants to hear of
    /// it.
    pub fn access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &Local,
        (key, addr): (u64, u64),
    ) -> core::result::Result<bool, Denied> {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Err(Denied::Elsewhere);
        };
        let v = o.ledger.as_ref().ok_or(Denied::Elsewhere)?.visit();
        let tag = o.tags.of(key);
        v.access(o.ring.file().word(VISIT), write, local, tag, addr)?;
        Ok(v.events())
    }

    /// As [`Outbox::access`], pieces, up to [`MANY`](super::MANY), by one call of the system: how
    /// many are there, from the first on.
    pub fn access_all(
        &mut self,
        peer: PeerId,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return 0;
        };
        let mark = o.ring.file().word(VISIT);
        let tag = o.tags.of(key);
        let all = |l: &Arc<Ledger>| l.visit().access_all(mark, write, tag, parts);
        o.ledger.as_ref().map_or(0, all)
    }

    /// Writes `local` to a peer's memory, or fills it from there, where the peer has said. `false`
    /// when that did not work.
    pub fn carry(&self, peer: PeerId, write: bool, local: &Local, at: u64) -> bool {
        self.ledger(peer)
            .is_some_and(|l| l.visit().carry(write, local, at))
    }

    /// Fills pieces of memory, up to [`MANY`](super::MANY), from where the peer has said, by one
    /// call of the system: how many are filled, from the first on.
    pub fn bring(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        self.ledger(peer).map_or(0, |l| l.visit().bring(parts))
    }

    /// A transfer of so many chunks that the peer may help with; `None` when there are too many
    /// already.
    pub fn open_share(&mut self, peer: PeerId, chunks: u32) -> Option<Share> {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return None;
        };
        let word = o.shares.trailing_ones() as u8;
        if word >= share::WORDS {
            return None;
        }
        o.shares |= 1 << word;
        o.round = o.round.wrapping_add(1);
        let share = Share {
            word,
            round: o.round,
            chunks,
        };
        share.open(o.ring.file());
        Some(share)
    }

    fn shared(&self, peer: PeerId) -> Option<&Bed> {
        match self.routes.get(peer as usize) {
            Some(Route::Ring(o)) => Some(o.ring.file()),
            _ => None,
        }
    }

    /// Copies chunks of a transfer of ours as long as there are some: how many; `None` when `copy`
    /// could not do one.
    pub fn work_share(&self, peer: PeerId, s: Share, copy: impl FnMut(u32) -> bool) -> Option<u32> {
        self.shared(peer).map_or(Some(0), |ring| s.work(ring, copy))
    }

    /// Whether all are.
    pub fn share_over(&self, peer: PeerId, s: Share) -> bool {
        self.shared(peer).is_some_and(|ring| s.over(ring))
    }

    /// As [`Outbox::share_over`]; it ends then.
    pub fn end_share(&mut self, peer: PeerId, s: Share) -> bool {
        let over = self.share_over(peer, s);
        if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize).filter(|_| over) {
            o.shares &= !(1 << s.word);
        }
        over
    }

    /// A transfer ends before it is over: nothing is written by the peer any more when this
    /// returns.
    pub fn stop_share(&mut self, peer: PeerId, s: Share) {
        if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.stop(1 << s.word, self.thread);
        }
    }

    /// The peer of a connection that has ended. What is sent to it from now on, the adapter
    /// answers: nobody is there. Of one that never read our ring nothing is lost: it is reached by
    /// the adapter.
    pub(super) fn hang_up(&mut self, conn: u64) -> Option<QpAddr> {
        let of = |r: &Route| matches!(r, Route::Ring(o) | Route::Calling(o, _) if o.conn == conn);
        let at = self.routes.iter().position(of)?;
        let Route::Ring(mut o) = self.set_route(at, Route::Adapter) else {
            return None;
        };
        let peer = at as PeerId;
        self.debtors.retain(|p| *p != peer);
        o.debts.write_off(&mut o.ring, peer, &mut self.lost);
        Some(o.to)
    }

    /// Writes an access into a peer's ring, whose end [`Outbox::reap`] tells. `Elsewhere` where it
    /// is better done from here, or cannot be done by the peer.
    #[inline(always)]
    pub fn post(&mut self, peer: PeerId, a: &Access, note: Note) -> Sent {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Sent::Elsewhere;
        };
        if !o.debts.trusts(a, &o.ring, o.ledger.as_deref()) {
            return Sent::Elsewhere;
        }
        let what = What {
            kind: a.kind,
            flags: a.flags | ACCESS,
            message: a.kind == claim::MESSAGE,
        };
        let words = [a.key, a.addr, a.word];
        let written = match o.ring.access(what, words, &a.data, a.into.len()) {
            Ok((wake, start)) => {
                let (l, t) = (o.ledger.as_ref(), self.thread);
                if o.debts.owe(&mut o.ring, l, a, start, note, t) {
                    self.debtors.push(peer);
                }
                Ok(wake)
            }
            Err(why) => {
                o.debts.press(&o.ring, o.ledger.as_deref());
                Err(why)
            }
        };
        o.outcome(written, peer, &mut self.stopped)
    }

    /// Whether accesses to a peer go into its ring just now.
    pub fn willing(&mut self, peer: PeerId) -> bool {
        match self.routes.get_mut(peer as usize) {
            Some(Route::Ring(o)) => o.ledger.is_some() && o.debts.willing(&o.ring),
            _ => false,
        }
    }

    /// As a process leaves it that ends in the middle of [`Ledger::take_back`].
    #[cfg(test)]
    pub fn claim_for_ever(&self, peer: PeerId) {
        if let Some(Route::Ring(o)) = self.routes.get(peer as usize) {
            claim::leave(o.ring.file());
        }
    }

    /// Whether a read or write of a peer's region is known to be permitted, and possible from here.
    pub fn permits(
        &mut self,
        peer: PeerId,
        (key, addr): (u64, u64),
        len: usize,
        write: bool,
    ) -> bool {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return false;
        };
        let tag = o.tags.of(key);
        let l = o.ledger.as_ref();
        l.is_some_and(|l| l.visit().permits(tag, addr, len, write))
    }

    /// Whether a peer wants to hear of every access.
    pub fn counts(&self, peer: PeerId) -> bool {
        self.ledger(peer).is_some_and(|l| l.visit().events())
    }

    /// Whether [`Outbox::reap`] may have something to say.
    #[inline]
    pub fn owes(&self) -> bool {
        !(self.debtors.is_empty() && self.lost.is_empty() && self.again.is_empty())
    }

    /// What the adapter is to do.
    pub fn take_again(&mut self) -> Vec<(PeerId, Again)> {
        core::mem::take(&mut self.again)
    }

    /// An access that cannot be done through shared memory, or that the adapter has no room for
    /// now.
    pub fn do_again(&mut self, peer: PeerId, a: Again) {
        self.again.push((peer, a));
    }

    /// Whether there is something for [`Outbox::take_again`].
    pub fn has_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether accesses to a peer are not known to be done.
    pub fn owes_to(&self, peer: PeerId) -> bool {
        self.debtors.contains(&peer)
            || self.lost.iter().any(|(p, _)| *p == peer)
            || self.again.iter().any(|(p, _)| *p == peer)
    }

    /// Tells of accesses that have ended, until `each` will not hear of one, which it is told of
    /// again then. `false` in that case, and when some are for [`Outbox::take_again`].
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(PeerId, &Ended) -> bool) -> bool {
        while let Some((peer, e)) = self.lost.front() {
            if !each(*peer, e) {
                return false;
            }
            self.lost.pop_front();
        }
        let mut at = 0;
        while let Some(peer) = self.debtors.get(at).copied() {
            let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
                self.debtors.swap_remove(at);
                continue;
            };
            let ledger = o.ledger.as_deref();
            let again = |a| self.again.push((peer, a));
            if !o.debts.reap(&mut o.ring, ledger, again, |e| each(peer, e)) {
                return false;
            }
            if o.debts.is_empty() {
                self.debtors.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.again.is_empty()
    }

    /// Has every access done that can be done from here, before the caller sleeps; `false` when
    /// some are left that nobody will wake it for.
    pub fn settle(&mut self) -> bool {
        let mut all = self.lost.is_empty() && self.again.is_empty();
        for peer in &self.debtors {
            if let Some(Route::Ring(o)) = self.routes.get_mut(*peer as usize) {
                all &= o.debts.settle(&o.ring, o.ledger.as_deref());
            }
        }
        all
    }

    /// Finds out how a peer is reached whom nothing was sent to yet: what is read or written now
    /// goes by the adapter, what comes later perhaps not. `false` when it has too many callers just
    /// now.
    #[inline]
    pub fn acquaint(&mut self, peer: PeerId, addr: &QpAddr) -> bool {
        match self.routes.get(peer as usize) {
            Some(Route::Ring(_) | Route::Adapter) => true,
            _ => self.call(peer, addr),
        }
    }

    /// Hands a packet of up to [`RECORD_MAX`] bytes to a peer: `head`, then `body` or, without one,
    /// `bytes`.
    #[inline]
    pub fn send(
        &mut self,
        peer: PeerId,
        addr: &QpAddr,
        what: What,
        head: &[u8],
        body: &UserMem,
        bytes: &[u8],
    ) -> Sent {
        if !self.acquaint(peer, addr) {
            return Sent::Busy;
        }
        let len = head.len() + body.len() + bytes.len();
        let Some(Route::Ring(out)) = self
            .routes
            .get_mut(peer as usize)
            .filter(|_| len <= RECORD_MAX)
        else {
            return Sent::Elsewhere;
        };
        let written = out.ring.write(what, head, body, bytes);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`Outbox::send`], a record of up to two words and a piece of memory, to a peer that was
    /// sent to before; to others `Elsewhere`.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        peer: PeerId,
        what: What,
        words: ([u64; 2], usize),
        body: Piece,
    ) -> Sent {
        let Some(Route::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Sent::Elsewhere;
        };
        let written = out.ring.write_short(what, words.0, words.1, body);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`Outbox::send_short`], a record of up to seven words.
    #[inline]
    pub fn send_words(&mut self, peer: PeerId, what: What, words: &[u64]) -> Sent {
        let Some(Route::Ring(out)) = self.routes.get_mut(peer as usize) else {
            return Sent::Elsewhere;
        };
        let written = out.ring.write_words(what, words);
        out.outcome(written, peer, &mut self.stopped)
    }

    /// As [`Outbox::send_words`], to a peer that nothing may have been sent to yet.
    pub fn tell(&mut self, peer: PeerId, addr: &QpAddr, what: What, words: &[u64]) -> Sent {
        match self.acquaint(peer, addr) {
            true => self.send_words(peer, what, words),
            false => Sent::Busy,
        }
    }

    /// Whether a peer's ring has room for `count` records of `len` bytes now; also where there is
    /// no ring yet.
    #[inline]
    pub fn fits(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return true;
        };
        let fits = o.ring.fits(count, len);
        if !fits && o.stopped.replace(Full::Room).is_none() {
            self.stopped.push(peer);
        }
        fits
    }

    /// Much is to be written to a peer.
    pub fn widen(&mut self, peer: PeerId) {
        if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.ring.widen();
        }
    }

    /// Asks peers that could not take a record to wake us when they can; `false` when one can now,
    /// and while one has been called that has not answered.
    pub fn arm(&mut self) -> bool {
        // Nobody wakes a sleeper when a peer does not answer.
        let mut quiet = self.calling == 0;
        for peer in self.stopped.drain(..) {
            if let Some(Route::Ring(o)) = self.routes.get_mut(peer as usize) {
                quiet &= o.stopped.take().is_none_or(|why| o.ring.want(why));
            }
        }
        quiet
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        for r in &mut self.routes {
            if let Route::Calling(o, _) = r {
                self.thread.forget(o.conn);
            }
            if let Route::Ring(o) = r {
                o.stop(u8::MAX, self.thread);
                if let Some(l) = &o.ledger {
                    l.clear();
                }
                self.thread.forget(o.conn);
            }
        }
    }
}
