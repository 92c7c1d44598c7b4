//! Reliability between two queue pairs, as two state machines without sockets and clocks.
//!
//! [`TxFlow`] numbers packets, keeps them until they are acknowledged, decides what to send again
//! and how much may be under way. [`RxFlow`] remembers which numbers have arrived, so that each
//! packet takes effect once, in whatever order, and says so in acknowledgements. Time is an
//! argument, in nanoseconds. Numbers wrap; comparisons are by signed distance.

use super::packet::{MAX_ERRS, MAX_WORDS};
use crate::transport::Status;
use std::collections::{HashMap, VecDeque};

/// Packets under way at most, and numbers a receiver remembers above the lowest missing one.
pub(crate) const WINDOW: u32 = (MAX_WORDS * 64) as u32;
/// Partly received writes that are counted at once per peer; a correct peer has at most a window of
/// them.
const PARTIAL_MAX: usize = WINDOW as usize;
const MS: u64 = 1_000_000;
/// Shortest retransmission time-out: longer than a scheduler's pause on a busy machine.
const RTO_MIN: u64 = 5 * MS;
const RTO_MAX: u64 = 400 * MS;
/// Least reordering tolerance, nanoseconds: a packet sent this much earlier than an acknowledged
/// one counts as lost.
const REORDER_MIN: u64 = 300_000;
const RNR_MIN: u64 = 50_000;
const RNR_MAX: u64 = 20 * MS;

/// Signed distance from `b` to `a`.
#[inline]
pub(crate) fn dist(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}

/// One packet under way; `T` is what the queue pair needs to build it again.
#[derive(Debug)]
pub(crate) struct Pkt<T> {
    pub what: T,
    bytes: u32,
    sent_at: u64,
    acked: bool,
    /// Waits to be sent again.
    lost: bool,
    /// Not before this time, after "receiver not ready".
    not_before: u64,
    tries: u32,
}

/// The sending half. See the module text.
#[derive(Debug)]
pub(crate) struct TxFlow<T> {
    una: u32,
    next: u32,
    win: VecDeque<Pkt<T>>,
    bytes: u64,
    in_flight: u32,
    lost: u32,
    cwnd: u32,
    ssthresh: u32,
    recovery_point: u32,
    peer_bytes: u64,
    peer_packets: u32,
    srtt: u64,
    rttvar: u64,
    backoff: u32,
    newest_acked: u64,
    /// When the peer last acknowledged a packet or was not ready for one; begins when the first
    /// packet of an idle flow is sent.
    progress_at: u64,
}

impl<T> TxFlow<T> {
    /// A flow that assumes a receive window of `bytes` until the peer announces its window.
    pub(crate) fn new(first_psn: u32, bytes: u64) -> Self {
        TxFlow {
            una: first_psn,
            next: first_psn,
            win: VecDeque::new(),
            bytes: 0,
            in_flight: 0,
            lost: 0,
            cwnd: 64,
            ssthresh: WINDOW,
            recovery_point: first_psn,
            peer_bytes: bytes,
            peer_packets: WINDOW,
            srtt: 0,
            rttvar: 0,
            backoff: 0,
            newest_acked: 0,
            progress_at: 0,
        }
    }

    /// Lowest unacknowledged number.
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// Whether nothing is under way.
    pub(crate) fn idle(&self) -> bool {
        self.win.is_empty()
    }

    /// Whether one more packet of `bytes` may go now.
    pub(crate) fn may_send(&self, bytes: u32) -> bool {
        let span = self.win.len() as u32;
        span < WINDOW
            && self.in_flight < self.cwnd.min(self.peer_packets)
            && (self.in_flight == 0 || self.bytes + u64::from(bytes) <= self.peer_bytes)
    }

    /// Adds a packet that is sent now and returns its sequence number.
    pub(crate) fn push(&mut self, what: T, bytes: u32, now: u64) -> u32 {
        if self.win.is_empty() {
            self.progress_at = now;
        }
        let psn = self.next;
        self.next = self.next.wrapping_add(1);
        self.bytes += u64::from(bytes);
        self.in_flight += 1;
        self.win.push_back(Pkt {
            what,
            bytes,
            sent_at: now,
            acked: false,
            lost: false,
            not_before: 0,
            tries: 1,
        });
        psn
    }

    /// The packet of this number, if it is still under way.
    pub(crate) fn get(&self, psn: u32) -> Option<&T> {
        let p = self.win.get(psn.wrapping_sub(self.una) as usize)?;
        (!p.acked).then_some(&p.what)
    }

    fn rto(&self) -> u64 {
        let base = if self.srtt == 0 {
            40 * MS
        } else {
            self.srtt + 4 * self.rttvar
        };
        (base.max(RTO_MIN) << self.backoff.min(8)).min(RTO_MAX)
    }

    fn measure(&mut self, rtt: u64) {
        if self.srtt == 0 {
            self.srtt = rtt;
            self.rttvar = rtt / 2;
        } else {
            let err = self.srtt.abs_diff(rtt);
            self.rttvar = (3 * self.rttvar + err) / 4;
            self.srtt = (7 * self.srtt + rtt) / 8;
        }
    }

    fn ack_one(&mut self, at: usize, now: u64, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let Some(p) = self.win.get_mut(at) else {
            return;
        };
        if p.acked {
            return;
        }
        p.acked = true;
        if p.lost {
            p.lost = false;
            self.lost -= 1;
        } else {
            self.in_flight -= 1;
            self.bytes -= u64::from(p.bytes);
        }
        if p.tries == 1 {
            let rtt = now.saturating_sub(p.sent_at);
            self.newest_acked = self.newest_acked.max(p.sent_at);
            done.push(p.what.clone());
            self.measure(rtt.max(1));
        } else {
            done.push(p.what.clone());
        }
        self.progress_at = now;
        self.backoff = 0;
        if self.cwnd < self.ssthresh {
            self.cwnd += 1;
        } else if self.cwnd < WINDOW && dist(self.una, self.recovery_point) >= 0 {
            // One more per window's worth of acknowledgements.
            self.cwnd += u32::from(at == 0);
        }
    }

    fn retire(&mut self) {
        while self.win.front().is_some_and(|p| p.acked) {
            self.win.pop_front();
            self.una = self.una.wrapping_add(1);
        }
    }

    /// All numbers below `cum` have arrived. Finished packets are appended to `done`.
    pub(crate) fn ack_below(&mut self, cum: u32, now: u64, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let n = dist(cum, self.una);
        if n <= 0 || n as usize > self.win.len() {
            return;
        }
        for at in 0..n as usize {
            self.ack_one(at, now, done);
        }
        self.retire();
    }

    /// One number above the cumulative one has arrived.
    pub(crate) fn ack_sel(&mut self, psn: u32, now: u64, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let at = psn.wrapping_sub(self.una) as usize;
        if at < self.win.len() {
            self.ack_one(at, now, done);
        }
    }

    /// Ends the processing of one acknowledgement: gaps that are old enough count as lost.
    pub(crate) fn detect_losses(&mut self) {
        self.retire();
        let slack = (self.srtt / 4).max(REORDER_MIN);
        let newest = self.newest_acked;
        let mut found = false;
        for p in self.win.iter_mut() {
            if !p.acked && !p.lost && p.sent_at + slack < newest {
                p.lost = true;
                self.lost += 1;
                self.in_flight -= 1;
                self.bytes -= u64::from(p.bytes);
                found |= p.not_before == 0;
            }
        }
        if found {
            self.reduce_cwnd();
        }
    }

    /// Halves the window, once per window of packets.
    fn reduce_cwnd(&mut self) {
        if dist(self.una, self.recovery_point) >= 0 {
            self.ssthresh = (self.cwnd / 2).max(8);
            self.cwnd = self.ssthresh;
            self.recovery_point = self.next;
        }
    }

    /// Sets the receive window that the peer announces.
    pub(crate) fn window(&mut self, bytes: u32, packets: u16) {
        self.peer_bytes = u64::from(bytes.max(1));
        self.peer_packets = u32::from(packets).clamp(1, WINDOW);
    }

    /// The peer had no receive buffer for a packet (RNR): schedules a retransmission after a
    /// back-off.
    pub(crate) fn not_ready(&mut self, psn: u32, now: u64) {
        let at = psn.wrapping_sub(self.una) as usize;
        self.progress_at = now;
        if let Some(p) = self.win.get_mut(at).filter(|p| !p.acked) {
            let wait = (RNR_MIN << p.tries.min(10)).min(RNR_MAX);
            p.not_before = now + wait;
            if !p.lost {
                p.lost = true;
                self.lost += 1;
                self.in_flight -= 1;
                self.bytes -= u64::from(p.bytes);
            }
        }
    }

    /// Next packet to send again, marked as sent now.
    pub(crate) fn resend(&mut self, now: u64) -> Option<(u32, &T)> {
        if self.lost == 0 {
            return None;
        }
        let (cwnd, in_flight) = (self.cwnd.min(self.peer_packets), self.in_flight);
        if in_flight >= cwnd {
            return None;
        }
        let at = self
            .win
            .iter()
            .position(|p| p.lost && !p.acked && p.not_before <= now)?;
        let p = self.win.get_mut(at)?;
        p.lost = false;
        p.not_before = 0;
        p.sent_at = now;
        p.tries = p.tries.saturating_add(1);
        self.lost -= 1;
        self.in_flight += 1;
        self.bytes += u64::from(p.bytes);
        Some((self.una.wrapping_add(at as u32), &p.what))
    }

    /// Runs the retransmission timer: marks packets that have waited too long as lost.
    pub(crate) fn tick(&mut self, now: u64) {
        let rto = self.rto();
        let sent = |p: &&Pkt<T>| !p.acked && !p.lost;
        let oldest = self.win.iter().filter(sent).map(|p| p.sent_at).min();
        if oldest.is_some_and(|at| now >= at + rto) {
            let limit = now - rto;
            for p in self
                .win
                .iter_mut()
                .filter(|p| !p.acked && !p.lost && p.sent_at <= limit)
            {
                p.lost = true;
                self.lost += 1;
                self.in_flight -= 1;
                self.bytes -= u64::from(p.bytes);
            }
            self.backoff += 1;
            self.recovery_point = self.una;
            self.reduce_cwnd();
        }
    }

    /// How long the peer has been silent while something was under way.
    pub(crate) fn silence(&self, now: u64) -> u64 {
        if self.win.is_empty() {
            0
        } else {
            now.saturating_sub(self.progress_at)
        }
    }

    /// Marks all packets under way as lost, when the peer has accepted none of them.
    pub(crate) fn send_again(&mut self) {
        for p in self.win.iter_mut().filter(|p| !p.acked && !p.lost) {
            p.lost = true;
            self.lost += 1;
            self.in_flight -= 1;
            self.bytes -= u64::from(p.bytes);
        }
    }

    /// Everything still under way, for a flow that is given up.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.in_flight = 0;
        self.lost = 0;
        self.bytes = 0;
        self.una = self.next;
        self.win.drain(..).filter(|p| !p.acked).map(|p| p.what)
    }
}

/// Bytes received so far of a write that raises an event.
#[derive(Debug, Default)]
struct PartialWrite {
    got: u32,
}

/// The receiving half. See the module text.
#[derive(Debug)]
pub(crate) struct RxFlow {
    next: u32,
    bits: [u64; MAX_WORDS],
    /// Packets received since the last acknowledgement, duplicates included.
    pub unacked: u32,
    /// Polls since the last packet arrived.
    pub idle_polls: u32,
    refused: Vec<(u32, Status)>,
    not_ready: Vec<u32>,
    partial: HashMap<u32, PartialWrite>,
}

impl RxFlow {
    /// A flow whose first packet is `una`.
    pub(crate) fn new(una: u32) -> Self {
        RxFlow {
            next: una,
            bits: [0; MAX_WORDS],
            unacked: 0,
            idle_polls: 0,
            refused: Vec::new(),
            not_ready: Vec::new(),
            partial: HashMap::new(),
        }
    }

    fn slot(psn: u32) -> (usize, u64) {
        let at = psn % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn seen(&self, psn: u32) -> bool {
        let (w, b) = Self::slot(psn);
        self.bits.get(w).is_some_and(|x| x & b != 0)
    }

    /// Whether this number is within the window and has not arrived yet.
    pub(crate) fn fresh(&self, psn: u32) -> bool {
        let d = dist(psn, self.next);
        (0..WINDOW as i32).contains(&d) && !self.seen(psn)
    }

    /// Records that a packet has arrived.
    pub(crate) fn take(&mut self, psn: u32) {
        let (w, b) = Self::slot(psn);
        if let Some(x) = self.bits.get_mut(w) {
            *x |= b;
        }
        while self.seen(self.next) {
            let (w, b) = Self::slot(self.next);
            if let Some(x) = self.bits.get_mut(w) {
                *x &= !b;
            }
            self.next = self.next.wrapping_add(1);
        }
        self.mark_unacked();
    }

    /// Records that an acknowledgement is due, for new packets and for duplicates.
    pub(crate) fn mark_unacked(&mut self) {
        self.unacked += 1;
        self.idle_polls = 0;
    }

    /// Refuses a packet with a status. `false` when too many refusals are pending: the packet then
    /// counts as lost, and the sender retransmits it.
    pub(crate) fn refuse(&mut self, psn: u32, status: Status) -> bool {
        if self.refused.len() >= MAX_ERRS {
            return false;
        }
        self.refused.push((psn, status));
        self.take(psn);
        true
    }

    /// Records that there is no buffer for this packet now (RNR).
    pub(crate) fn not_ready(&mut self, psn: u32) {
        if self.not_ready.len() < MAX_ERRS {
            self.not_ready.push(psn);
        }
        self.mark_unacked();
    }

    /// Drops the refusals below `una`: the sender has received them.
    pub(crate) fn forget_refusals(&mut self, una: u32) {
        self.refused.retain(|(psn, _)| dist(*psn, una) >= 0);
    }

    /// Lowest missing number.
    pub(crate) fn cum(&self) -> u32 {
        self.next
    }

    /// Whether an acknowledgement has to name refused packets.
    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether the cumulative number alone does not describe what has arrived.
    pub(crate) fn needs_detail(&self) -> bool {
        !self.refused.is_empty() || !self.not_ready.is_empty() || self.bits.iter().any(|w| *w != 0)
    }

    /// Which numbers from `cum()` on have arrived, 64 a word.
    pub(crate) fn words(&self, out: &mut [u64; MAX_WORDS]) -> usize {
        let mut used = 0;
        if self.bits.iter().all(|w| *w == 0) {
            return 0;
        }
        for (i, word) in out.iter_mut().enumerate() {
            *word = 0;
            for b in 0..64u32 {
                let psn = self.next.wrapping_add(i as u32 * 64 + b);
                if self.seen(psn) {
                    *word |= 1 << b;
                    used = i + 1;
                }
            }
        }
        used
    }

    /// Refused and not-ready packets to name in an acknowledgement; the latter are named once.
    pub(crate) fn errors(&mut self) -> Vec<(u32, Status)> {
        let mut v = self.refused.clone();
        let room = MAX_ERRS - v.len();
        let n = self.not_ready.len().min(room);
        v.extend(
            self.not_ready
                .drain(..n)
                .map(|p| (p, Status::RemoteNotReady)),
        );
        v
    }

    /// Records that the pending acknowledgement is sent.
    pub(crate) fn acked(&mut self) {
        self.unacked = 0;
        self.idle_polls = 0;
    }

    /// Whether parts of write `op` can be counted: at most [`PARTIAL_MAX`] writes are, at once.
    pub(crate) fn counts(&self, op: u32, len: u32, total: u32) -> bool {
        len >= total || self.partial.len() < PARTIAL_MAX || self.partial.contains_key(&op)
    }

    /// Counts `len` bytes of write `op` with immediate; `true` when all `total` are here.
    pub(crate) fn write_part(&mut self, op: u32, len: u32, total: u32) -> bool {
        if len >= total {
            return true;
        }
        let p = self.partial.entry(op).or_default();
        p.got = p.got.saturating_add(len);
        if p.got >= total {
            self.partial.remove(&op);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_and_each_is_fresh_once() {
        let mut r = RxFlow::new(u32::MAX - 1);
        for psn in [0, u32::MAX, u32::MAX - 1, 1] {
            assert!(r.fresh(psn));
            r.take(psn);
            assert!(!r.fresh(psn));
        }
        assert_eq!(r.cum(), 2);
        assert!(!r.fresh(2u32.wrapping_add(WINDOW)));
        assert!(!r.fresh(1));
    }

    /// Two flows over a network that loses, doubles and reorders: all arrives, once.
    #[test]
    fn everything_arrives_once_over_a_bad_network() {
        for seed in 0..200u64 {
            let mut rng = crate::core::rng::Rng::new(seed);
            let mut tx: TxFlow<u32> = TxFlow::new(u32::MAX - 20, 1 << 20);
            let mut rx = RxFlow::new(u32::MAX - 20);
            let (mut now, mut sent, mut got, mut done) = (0u64, 0u32, Vec::new(), Vec::new());
            let mut air: Vec<(u64, u32, u32)> = Vec::new();
            let mut acks: Vec<(u64, u32, Vec<u64>)> = Vec::new();
            while done.len() < 300 {
                now += 50_000;
                assert!(now < 300_000 * MS, "seed {seed} stuck: {} done", done.len());
                while sent < 300 && tx.may_send(100) {
                    let psn = tx.push(sent, 100, now);
                    air.push((now + rng.below(2 * MS), psn, sent));
                    sent += 1;
                }
                tx.tick(now);
                while let Some((psn, what)) = tx.resend(now) {
                    air.push((now + rng.below(2 * MS), psn, *what));
                }
                let mut again = Vec::new();
                air.retain(|(at, psn, what)| {
                    if *at > now {
                        return true;
                    }
                    if rng.below(100) < 10 {
                        return false;
                    }
                    if rng.below(100) < 10 {
                        again.push((now + rng.below(4 * MS), *psn, *what));
                    }
                    if rx.fresh(*psn) {
                        rx.take(*psn);
                        got.push(*what);
                    }
                    let mut w = [0; MAX_WORDS];
                    let n = rx.words(&mut w);
                    acks.push((now + rng.below(MS), rx.cum(), w[..n].to_vec()));
                    false
                });
                air.extend(again);
                acks.retain(|(at, cum, words)| {
                    if *at > now {
                        return true;
                    }
                    if rng.below(100) >= 10 {
                        tx.ack_below(*cum, now, &mut done);
                        for (i, w) in words.iter().enumerate() {
                            for b in (0..64).filter(|b| w >> b & 1 == 1) {
                                tx.ack_sel(cum.wrapping_add(i as u32 * 64 + b), now, &mut done);
                            }
                        }
                        tx.detect_losses();
                    }
                    false
                });
            }
            got.sort_unstable();
            assert!(got.iter().copied().eq(0..300), "seed {seed}");
            done.sort_unstable();
            assert!(done.iter().copied().eq(0..300), "seed {seed}");
            assert!(tx.idle());
        }
    }
}
