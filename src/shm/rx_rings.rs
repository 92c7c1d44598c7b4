//! The receiving side: the rings of peers, which a poll reads.

use super::events::{EventQueue, EventThread, RingEvent};
use super::kind;
use super::ring::{asymmetric_fence, Lookup, Record, RingReader};
use super::rma::{names_device_regions, RemoteMrTable, CLOSE_WAIT};
use crate::device::{HeldPeers, QpAddr};
use crate::transport::{Flow, PeerId, Poll, PollStatus, Sink};
use std::sync::atomic::Ordering::*;
use std::sync::Arc;

/// Polls without a record after which a ring is not in use, and is parked if more than
/// [`AWAKE_RINGS`] are active.
pub(super) const IDLE_POLLS: u64 = 4096;
/// Polls from one look for idle rings to the next.
const PARK_INTERVAL: u64 = 256;
/// Number of active rings up to which none is parked: to look at one takes a nanosecond or two, and
/// a wake-up five thousand and more.
pub(super) const AWAKE_RINGS: usize = 16;
/// Records taken from one ring before the next one's turn.
const BURST: u32 = 64;
/// A ring from a peer.
struct RxRing {
    ring: RingReader,
    from: QpAddr,
    /// The peer's number at the caller of [`RxRings::poll_all`].
    peer: Option<PeerId>,
    conn: u64,
    /// The poll that has read its last record.
    used: u64,
    /// The last look has found a record.
    filled: bool,
    ended: bool,
    /// The peer is known to be gone, and not only this ring.
    peer_gone: bool,
}

impl RxRing {
    /// Whether it has been empty for [`IDLE_POLLS`] polls, with the number of the current one.
    fn is_idle(&self, polls: u64) -> bool {
        polls - self.used >= IDLE_POLLS
    }

    /// Notes a record in this poll.
    #[inline(always)]
    fn mark_used(&mut self, poll: u64) {
        (self.used, self.filled) = (poll, true);
    }

    /// Whether there is a record; a look at an empty ring touches nothing else.
    #[inline(always)]
    fn ready(&mut self) -> bool {
        if !self.ring.ready() {
            self.filled = false;
            return false;
        }
        true
    }

    /// Takes the record of this kind and length that was looked at. `true` when the writer has to
    /// be woken.
    #[inline]
    fn mark_taken(&mut self, kind: u8, len: usize) -> bool {
        let wake = self.ring.take(len);
        if kind >= kind::WRITE {
            self.ring.mark_done(kind, len);
        }
        wake
    }

    /// Marks the ring of a writer that is gone: it is read to its end.
    fn end(&mut self) {
        self.ended = true;
        self.ring.ignore_writer_lock();
    }
}

/// A record of a ring, and its writer.
pub struct PeerRecord<'a> {
    pub from: PeerId,
    pub record: &'a Record<'a>,
}

/// The receiving side of an endpoint: the rings of peers.
pub struct RxRings {
    shared: Arc<EventQueue>,
    thread: &'static EventThread,
    /// Rings that a poll reads, and rings that wait for a wake-up.
    active: Vec<RxRing>,
    parked: Vec<RxRing>,
    held: HeldPeers,
    /// The ring that a poll begins with.
    turn: usize,
    /// Polls so far, and the last one that has read a record or in which a ring was woken.
    polls: u64,
    last_used: u64,
    /// The poll that looks for rings to park or to drop.
    next_park: u64,
    /// A thread may wait on the descriptor, and the active rings ask for a wake-up. Stays set until
    /// there is an event: the thread that polls meanwhile may be another.
    armed: bool,
    pub(super) gone_peers: Vec<QpAddr>,
    /// Connections that have ended, and connections that peers have accepted, for the sending side.
    pub(super) disconnected: Vec<u64>,
    pub(super) accepted: Vec<(u64, Option<RemoteMrTable>)>,
    /// CTS received from connections: the connection, the message's number here and there.
    cts: Vec<(u64, u32, u32)>,
}

impl RxRings {
    /// The receiving side of an endpoint.
    pub(super) fn new(shared: Arc<EventQueue>, thread: &'static EventThread) -> RxRings {
        RxRings {
            shared,
            thread,
            active: Vec::new(),
            parked: Vec::new(),
            held: HeldPeers::None,
            turn: 0,
            polls: 0,
            last_used: 0,
            next_park: PARK_INTERVAL,
            armed: false,
            gone_peers: Vec::new(),
            disconnected: Vec::new(),
            accepted: Vec::new(),
            cts: Vec::new(),
        }
    }

    /// Takes the CTS that peers without a ring to us have sent for our messages: the connection,
    /// the number of the message here and there.
    pub fn take_cts(&mut self) -> Vec<(u64, u32, u32)> {
        core::mem::take(&mut self.cts)
    }

    /// Whether a ring of this peer is read.
    pub(super) fn has_ring(&self, peer: PeerId) -> bool {
        let all = self.active.iter().chain(&self.parked);
        all.filter_map(|i| i.peer).any(|p| p == peer)
    }

    pub(super) fn fd(&self) -> i32 {
        self.shared.wait.fd()
    }

    /// Whether nothing has happened since [`RxRings::arm`].
    #[inline]
    pub fn armed(&self) -> bool {
        self.armed
    }

    pub(super) fn signal(&self) {
        self.shared.signal();
    }

    /// Whether a peer ran last on the processor of word `own`. `None` when no peer's is known.
    pub(super) fn shares_processor(&self, own: u64) -> Option<bool> {
        let all = self.active.iter().chain(&self.parked);
        let known = all.filter_map(|i| super::cpu::shared(i.ring.writer_cpu(), own));
        known.reduce(|a, b| a || b)
    }

    /// Whether any ring is in use: one of its last [`IDLE_POLLS`] polls has found a record.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.used_within(IDLE_POLLS)
    }

    /// Whether idle rings are to be parked.
    #[inline]
    fn is_crowded(&self) -> bool {
        self.active.len() > AWAKE_RINGS
    }

    /// Whether one of the last `polls` polls has found a record.
    #[inline]
    pub fn used_within(&self, polls: u64) -> bool {
        !self.active.is_empty() && self.polls - self.last_used < polls
    }

    /// A poll that finds nothing, which is the usual case. Returns `false` when there may be a
    /// record or an event; nothing has been done then.
    #[inline]
    pub fn poll_idle(&mut self) -> bool {
        if self.shared.news.load(Acquire) || self.active.iter_mut().any(RxRing::ready) {
            return false;
        }
        self.polls += 1;
        self.park_if_due();
        true
    }

    /// As [`Poll::poll`], of messages only, up to `budget` in all.
    #[inline(never)]
    pub fn poll_messages<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PeerRecord<'a>>,
    {
        self.poll_rings::<true, S>(budget, sink)
    }

    /// Offers records to a sink. All rings are looked at: where processes share a processor, a
    /// message that a poll leaves behind waits until the others have run. `MESSAGES`: takes no
    /// other records, and `budget` in all, not of each ring; the next poll begins where this one
    /// has stopped.
    #[inline(always)]
    fn poll_rings<const MESSAGES: bool, S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PeerRecord<'a>>,
    {
        if self.shared.news.load(Acquire) {
            return PollStatus::Deferred;
        }
        self.polls += 1;
        let n = self.active.len();
        let mut found = PollStatus::Empty;
        let mut left = budget;
        let mut at = self.turn;
        for _ in 0..n {
            at = if at >= n { 0 } else { at };
            let Some(i) = self.active.get_mut(at) else {
                break;
            };
            at += 1;
            if !i.ready() {
                continue;
            }
            let burst = i.filled;
            // A ring that was empty at the last poll has one message, mostly: a look behind that
            // message takes the cache line from its writer.
            let most = if MESSAGES && !burst { 1 } else { left };
            let (mut taken, mut wake) = (0, false);
            let mut flow = Flow::Taken;
            while flow == Flow::Taken && taken < most {
                if burst {
                    i.ring.prefetch();
                }
                let (kind, len);
                (flow, kind, len) = match (i.ring.next_record(), i.peer) {
                    (Lookup::Nothing, _) => break,
                    (Lookup::Record(r), Some(from)) => {
                        (sink.message(PeerRecord { from, record: &r }), r.kind, r.len)
                    }
                    _ => (Flow::Deferred, 0, 0),
                };
                if flow == Flow::Deferred {
                    break;
                }
                wake |= match MESSAGES {
                    true => i.ring.take(len),
                    false => i.mark_taken(kind, len),
                };
                taken += 1;
            }
            if i.ring.settle() | wake {
                self.thread.wake(i.conn);
            }
            if taken > 0 {
                i.mark_used(self.polls);
                self.last_used = self.polls;
                found = PollStatus::Taken;
                if MESSAGES {
                    left = left.saturating_sub(taken);
                }
            }
            match flow {
                Flow::Deferred if !MESSAGES || taken == 0 => return PollStatus::Deferred,
                Flow::Taken if left > 0 => {}
                _ => {
                    self.turn = at;
                    return PollStatus::Taken;
                }
            }
        }
        self.park_if_due();
        found
    }

    /// Offers all records that have arrived: `each` gets the peer's address, a place for its
    /// number, and the record. A deferred record is offered again by the next poll. Returns whether
    /// there were any records.
    #[inline]
    pub fn poll_all(
        &mut self,
        mut each: impl FnMut(&QpAddr, &mut Option<PeerId>, &Record) -> Flow,
    ) -> bool {
        if self.shared.news.load(Acquire) {
            self.take_events();
        }
        self.polls += 1;
        let mut some = false;
        let thread = self.thread;
        for i in &mut self.active {
            if !i.ready() {
                continue;
            }
            let mut n = 0;
            while n < BURST {
                let (kind, len) = match i.ring.next_record() {
                    Lookup::Nothing => break,
                    Lookup::Record(r) => match each(&i.from, &mut i.peer, &r) {
                        Flow::Deferred => {
                            n += 1;
                            break;
                        }
                        _ => (r.kind, r.len),
                    },
                    Lookup::Broken => {
                        (i.ended, i.peer_gone) = (true, true);
                        self.next_park = 0;
                        break;
                    }
                };
                if i.mark_taken(kind, len) {
                    thread.wake(i.conn);
                }
                n += 1;
            }
            if i.ring.settle() {
                thread.wake(i.conn);
            }
            if n > 0 {
                i.mark_used(self.polls);
                self.last_used = self.polls;
                some = true;
            }
        }
        self.park_if_due();
        some
    }

    /// Ends a poll that has looked at all rings.
    #[inline(always)]
    fn park_if_due(&mut self) {
        if self.polls >= self.next_park {
            self.park_idle();
        }
    }

    /// Parks rings that have been empty for [`IDLE_POLLS`] polls, until [`AWAKE_RINGS`] are left,
    /// and drops rings of peers that are gone.
    #[cold]
    #[inline(never)]
    fn park_idle(&mut self) {
        let polls = self.polls;
        let parks = self.is_crowded() && self.active.iter().any(|i| i.is_idle(polls));
        if parks {
            for i in self.active.iter().filter(|i| i.is_idle(polls)) {
                i.ring.arm_wakeup();
            }
            asymmetric_fence();
        }
        let mut at = 0;
        while let Some(i) = self.active.get(at) {
            if i.ended && i.used < polls {
                let i = self.active.swap_remove(at);
                self.thread.forget(i.conn);
                // A caller gives its ring up when the answer comes late, and goes by the adapter.
                if i.ring.was_used() || i.peer_gone {
                    self.gone_peers.push(i.from);
                }
            } else if self.is_crowded() && i.is_idle(polls) && i.ring.can_sleep() {
                let i = self.active.swap_remove(at);
                self.parked.push(i);
            } else {
                // A writer that need not wake us must not try to.
                if parks && i.is_idle(polls) && !self.armed {
                    i.ring.disarm_wakeup();
                }
                at += 1;
            }
        }
        self.next_park = match self.active.iter().any(|i| i.ended) {
            true => 0,
            false => polls + PARK_INTERVAL,
        };
    }

    fn wake(&mut self, conn: u64) -> Option<&mut RxRing> {
        if let Some(at) = self.parked.iter().position(|i| i.conn == conn) {
            self.last_used = self.polls;
            let mut i = self.parked.swap_remove(at);
            i.ring.disarm_wakeup();
            i.mark_used(self.polls);
            self.active.push(i);
            return self.active.last_mut();
        }
        self.active.iter_mut().find(|i| i.conn == conn)
    }

    /// How many rings there are.
    #[cfg(test)]
    pub fn count_for_tests(&self) -> usize {
        self.active.len() + self.parked.len()
    }

    /// How many rings wait for a wake-up.
    #[cfg(test)]
    pub fn parked_for_tests(&self) -> usize {
        self.parked.len()
    }

    /// Processes the events that the events thread has queued, without reading the rings.
    #[cfg(test)]
    pub fn take_events_for_tests(&mut self) {
        self.take_events();
    }

    #[cold]
    fn take_events(&mut self) {
        if self.armed {
            self.armed = false;
            self.shared.wait.clear();
            for i in &self.active {
                i.ring.disarm_wakeup();
            }
        }
        for n in self.shared.take() {
            match n {
                RingEvent::Ring(conn, from, ring) => {
                    ring.hold(self.held.includes(&from));
                    self.last_used = self.polls;
                    self.active.push(RxRing {
                        ring,
                        peer: None,
                        from,
                        conn,
                        used: self.polls,
                        filled: true,
                        ended: false,
                        peer_gone: false,
                    });
                }
                RingEvent::Accepted(conn, remote_table) => self.accepted.push((conn, remote_table)),
                RingEvent::Cts(conn, number, there) => self.cts.push((conn, number, there)),
                RingEvent::Awake(conn) => {
                    self.wake(conn);
                }
                RingEvent::End(conn) if self.end_ring(conn, false) => {}
                RingEvent::End(conn) => self.disconnected.push(conn),
            }
        }
    }

    /// Has the ring of this connection read to its end, and then dropped; `false` without one.
    fn end_ring(&mut self, conn: u64, peer_gone: bool) -> bool {
        let Some(i) = self.wake(conn) else {
            return false;
        };
        i.peer_gone |= peer_gone;
        i.end();
        self.next_park = 0;
        true
    }

    /// Marks the ring of a peer that is gone, if there is one, to be read to its end.
    pub(super) fn read_to_end(&mut self, from: &QpAddr) -> bool {
        let all = self.active.iter().chain(&self.parked);
        let Some(conn) = all.filter(|i| i.from == *from).map(|i| i.conn).next() else {
            return false;
        };
        self.end_ring(conn, true)
    }

    /// Pauses the messages of these peers, and lets those of others continue; wakes writers that
    /// wait for that.
    pub fn hold(&mut self, held: HeldPeers) {
        self.held = held;
        for i in self.active.iter().chain(&self.parked) {
            if i.ring.hold(self.held.includes(&i.from)) {
                self.thread.wake(i.conn);
            }
        }
    }

    /// Asks for a signal on the descriptor; `false` when there is something already.
    pub fn arm(&mut self) -> bool {
        self.armed = true;
        // A signal may arrive after its event has been processed.
        self.shared.wait.clear();
        for i in &self.active {
            i.ring.arm_wakeup();
        }
        asymmetric_fence();
        let awake = self.active.iter().all(|i| !i.ended && i.ring.can_sleep());
        awake && !self.shared.news.load(SeqCst)
    }
}

impl Poll for RxRings {
    type Message<'a> = PeerRecord<'a>;

    #[inline(always)]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PeerRecord<'a>>,
    {
        self.poll_rings::<false, S>(budget, sink)
    }
}

impl Drop for RxRings {
    fn drop(&mut self) {
        // Peers' devices may still copy to and from our memory: once the rings are gone, fi_close
        // of a region cannot check that.
        let until = std::time::Instant::now() + CLOSE_WAIT;
        let copies = |i: &RxRing| {
            let gone = i.ended || self.thread.peer_exited(i.conn);
            !gone && names_device_regions(i.ring.file())
        };
        let all = || self.active.iter().chain(&self.parked);
        while all().any(copies) && std::time::Instant::now() < until {
            EventThread::poll_events();
            std::thread::yield_now();
        }
        self.thread.close_incoming(&self.shared);
    }
}
