//! The sending half of a flow: packets under way, what counts as lost, when to probe.
//!
//! Losses are found as RFC 9002, section 6, finds them: by acknowledgements of packets that were
//! sent later. A time without acknowledgements marks nothing as lost, because a peer whose
//! processor runs another process sends none, either: after it a probe (6.2) is sent, whose
//! acknowledgement shows what is missing. A packet that is sent again keeps its number, so that
//! only packets sent once measure round trips (Karn's algorithm) and show what was sent before
//! them.

use super::cubic::{Acked, Cubic};
use super::{dist, MS, WINDOW};
use std::collections::VecDeque;

/// Shortest probe time-out: longer than a scheduler's pause on a busy machine, and than a receiver
/// delays an acknowledgement.
const PROBE_MIN: u64 = 5 * MS;
const PROBE_MAX: u64 = 400 * MS;
/// Probe time-out before the first measured round trip.
const PROBE_FIRST: u64 = 40 * MS;
/// Probes without an answer after which congestion counts as persistent (RFC 9002, 7.6).
const PERSISTENT: u32 = 3;
/// A packet is lost when a packet this many numbers later was acknowledged (RFC 9002, 6.1.1). More
/// where the network reorders.
const REORDER_PACKETS: u32 = 3;
/// Least time after which an older packet than an acknowledged one is lost (6.1.2).
const REORDER_TIME: u64 = 300_000;
const RNR_MIN: u64 = 50_000;
const RNR_MAX: u64 = 20 * MS;

/// One packet under way; `T` is what the queue pair needs to build it again.
#[derive(Debug)]
struct Pkt<T> {
    what: T,
    bytes: u32,
    sent_at: u64,
    acked: bool,
    /// Waits to be sent again.
    lost: bool,
    /// Not before this time, after "receiver not ready".
    not_before: u64,
    tries: u32,
}

/// Sums over the packets of a window: those under way, and those that wait to be sent again.
#[derive(Debug, Default)]
struct WindowSums {
    bytes: u64,
    in_flight: u32,
    lost: u32,
}

impl WindowSums {
    /// A packet is sent.
    fn sent(&mut self, bytes: u32) {
        self.in_flight += 1;
        self.bytes += u64::from(bytes);
    }

    /// A packet is no longer under way.
    fn ended(&mut self, bytes: u32) {
        self.in_flight -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// A packet under way counts as lost.
    fn lose<T>(&mut self, p: &mut Pkt<T>) {
        p.lost = true;
        self.lost += 1;
        self.ended(p.bytes);
    }
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct TxFlow<T> {
    una: u32,
    next: u32,
    win: VecDeque<Pkt<T>>,
    sums: WindowSums,
    cubic: Cubic,
    /// Packets below this number were sent while the congestion window was full.
    limited_to: u32,
    recovery_point: u32,
    recovery_at: u64,
    peer_bytes: u64,
    peer_packets: u32,
    /// Round trip, smoothed, and its variation; nanoseconds (RFC 9002, 5.3).
    srtt: u64,
    rttvar: u64,
    /// Probes sent since the last acknowledgement.
    probes: u32,
    last_sent: u64,
    /// Number and time of the newest packet that was sent once and is acknowledged.
    newest: u32,
    newest_at: u64,
    reorder: u32,
    /// What the acknowledgement being processed has acknowledged so far: packets, and the time at
    /// which the newest of them was sent.
    acked: u32,
    acked_at: Option<u64>,
    /// When the peer last acknowledged a packet or was not ready for one; begins when the first
    /// packet of an idle flow is sent.
    progress_at: u64,
    /// The oldest packet at the last acknowledgement, and since when it is the oldest that the peer
    /// could have taken.
    oldest: u32,
    oldest_since: u64,
}

impl<T> TxFlow<T> {
    /// A flow that assumes a receive window of `bytes` until the peer announces its window.
    pub(crate) fn new(first_psn: u32, bytes: u64) -> Self {
        TxFlow {
            una: first_psn,
            next: first_psn,
            win: VecDeque::new(),
            sums: WindowSums::default(),
            cubic: Cubic::new(first_psn),
            limited_to: first_psn,
            recovery_point: first_psn,
            recovery_at: 0,
            peer_bytes: bytes,
            peer_packets: WINDOW,
            srtt: 0,
            rttvar: 0,
            probes: 0,
            last_sent: 0,
            newest: first_psn.wrapping_sub(1),
            newest_at: 0,
            reorder: REORDER_PACKETS,
            acked: 0,
            acked_at: None,
            progress_at: 0,
            oldest: first_psn,
            oldest_since: 0,
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

    /// Packets that may be under way.
    fn window(&self) -> u32 {
        self.cubic.window().min(self.peer_packets)
    }

    /// Whether one more packet of `bytes` may go now.
    pub(crate) fn may_send(&mut self, bytes: u32) -> bool {
        if self.sums.in_flight >= self.window() {
            self.limited_to = self.next;
            return false;
        }
        let fits = self.sums.bytes + u64::from(bytes) <= self.peer_bytes;
        self.has_number() && (self.sums.in_flight == 0 || fits)
    }

    /// Adds a packet that is sent now and returns its sequence number.
    pub(crate) fn push(&mut self, what: T, bytes: u32, now: u64) -> u32 {
        if self.win.is_empty() {
            self.progress_at = now;
            (self.oldest, self.oldest_since) = (self.next, now);
            if now.saturating_sub(self.last_sent) > PROBE_MAX {
                self.cubic.restart_after_idle();
            }
        }
        let psn = self.next;
        self.next = self.next.wrapping_add(1);
        self.sums.sent(bytes);
        self.last_sent = now;
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

    fn probe_timeout(&self) -> u64 {
        let base = match self.srtt {
            0 => PROBE_FIRST,
            srtt => srtt + 4 * self.rttvar,
        };
        (base.max(PROBE_MIN) << self.probes.min(8)).min(PROBE_MAX)
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

    fn ack_one(&mut self, at: usize, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let Some(p) = self.win.get_mut(at).filter(|p| !p.acked) else {
            return;
        };
        p.acked = true;
        done.push(p.what.clone());
        self.acked += 1;
        let psn = self.una.wrapping_add(at as u32);
        if p.lost {
            p.lost = false;
            self.sums.lost -= 1;
            if p.not_before == 0 {
                // It was late, not lost: this network reorders.
                let by = dist(self.newest, psn).max(0) as u32;
                self.reorder = self.reorder.max(by + 1).min(WINDOW);
            }
        } else {
            self.sums.ended(p.bytes);
        }
        if p.tries == 1 && dist(psn, self.newest) > 0 {
            self.newest = psn;
            self.newest_at = p.sent_at;
            self.acked_at = Some(p.sent_at);
        }
    }

    fn retire(&mut self) {
        while self.win.front().is_some_and(|p| p.acked) {
            self.win.pop_front();
            self.una = self.una.wrapping_add(1);
        }
    }

    /// All numbers below `cum` have arrived. Finished packets are appended to `done`.
    pub(crate) fn ack_below(&mut self, cum: u32, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let n = dist(cum, self.una);
        if n <= 0 || n as usize > self.win.len() {
            return;
        }
        for at in 0..n as usize {
            self.ack_one(at, done);
        }
        self.retire();
    }

    /// One number above the cumulative one has arrived.
    pub(crate) fn ack_sel(&mut self, psn: u32, done: &mut Vec<T>)
    where
        T: Clone,
    {
        let at = psn.wrapping_sub(self.una) as usize;
        if at < self.win.len() {
            self.ack_one(at, done);
        }
    }

    /// Ends the processing of one acknowledgement: measures, lets the window grow, finds losses.
    pub(crate) fn ack_end(&mut self, now: u64) {
        self.retire();
        if self.una != self.oldest {
            (self.oldest, self.oldest_since) = (self.una, now);
        }
        let packets = core::mem::take(&mut self.acked);
        if packets > 0 {
            self.progress_at = now;
            let silent = self.probes > PERSISTENT;
            self.probes = 0;
            let rtt = self.acked_at.take().map(|at| now.saturating_sub(at).max(1));
            if let Some(rtt) = rtt {
                self.measure(rtt);
            }
            if dist(self.una, self.recovery_point) >= 0 {
                let acked = Acked {
                    packets,
                    limited: dist(self.una, self.limited_to) <= 0,
                    rtt,
                    srtt: self.srtt,
                    una: self.una,
                    next: self.next,
                };
                self.cubic.acked(&acked, now);
            }
            if self.detect_losses(now) && silent {
                self.cubic.persistent_congestion();
            }
        }
    }

    /// Marks packets as lost that were sent long enough before an acknowledged one. Returns whether
    /// there were any.
    fn detect_losses(&mut self, now: u64) -> bool {
        let backoff = (self.srtt + self.srtt / 8).max(REORDER_TIME);
        let (una, newest, newest_at, reorder) =
            (self.una, self.newest, self.newest_at, self.reorder);
        let mut found = false;
        let mut latest = 0;
        for (at, p) in self.win.iter_mut().enumerate() {
            let ahead = dist(newest, una.wrapping_add(at as u32));
            if p.tries == 1 && ahead <= 0 {
                // Whatever follows was sent later.
                break;
            }
            if p.acked || p.lost || p.sent_at > newest_at {
                continue;
            }
            let far = p.tries == 1 && ahead >= reorder as i32;
            if far || now.saturating_sub(p.sent_at) > backoff {
                self.sums.lose(p);
                if p.not_before == 0 {
                    found = true;
                    latest = latest.max(p.sent_at);
                }
            }
        }
        // Once a round trip.
        if found && latest >= self.recovery_at {
            self.recovery_at = now;
            self.cubic.lost();
            self.recovery_point = self.next;
        }
        found
    }

    /// Sets the receive window that the peer announces.
    pub(crate) fn window_of_peer(&mut self, bytes: u32, packets: u16) {
        self.peer_bytes = u64::from(bytes.max(1));
        self.peer_packets = u32::from(packets).clamp(1, WINDOW);
    }

    /// The peer had no receive buffer for a packet (RNR): schedules a retransmission after a
    /// back-off.
    pub(crate) fn not_ready(&mut self, psn: u32, now: u64) {
        let at = psn.wrapping_sub(self.una) as usize;
        self.progress_at = now;
        self.probes = 0;
        if at == 0 {
            self.oldest_since = now;
        }
        if let Some(p) = self.win.get_mut(at).filter(|p| !p.acked) {
            let wait = (RNR_MIN << p.tries.min(10)).min(RNR_MAX);
            p.not_before = now + wait;
            if !p.lost {
                self.sums.lose(p);
            }
        }
    }

    /// Next packet to send again, marked as sent now.
    pub(crate) fn resend(&mut self, now: u64) -> Option<(u32, &T)> {
        if self.sums.lost == 0 || self.sums.in_flight >= self.window() {
            return None;
        }
        let at = self
            .win
            .iter()
            .position(|p| p.lost && !p.acked && p.not_before <= now)?;
        self.again(at, now)
    }

    fn again(&mut self, at: usize, now: u64) -> Option<(u32, &T)> {
        let p = self.win.get_mut(at)?;
        if p.lost {
            p.lost = false;
            self.sums.lost -= 1;
            self.sums.sent(p.bytes);
        }
        p.not_before = 0;
        p.sent_at = now;
        p.tries = p.tries.saturating_add(1);
        self.last_sent = now;
        Some((self.una.wrapping_add(at as u32), &p.what))
    }

    /// Runs the timers. `true`: the peer is silent, and a probe is due.
    pub(crate) fn tick(&mut self, now: u64) -> bool {
        self.detect_losses(now);
        let due = self.sums.in_flight > 0 && now >= self.last_sent + self.probe_timeout();
        self.probes += u32::from(due);
        due
    }

    /// Whether the window has a number left for a new packet.
    pub(crate) fn has_number(&self) -> bool {
        (self.win.len() as u32) < WINDOW
    }

    /// The probe where there is no room for a new packet: the oldest one under way, sent again.
    pub(crate) fn resend_oldest(&mut self, now: u64) -> Option<(u32, &T)> {
        let at = self.win.iter().position(|p| !p.acked && !p.lost)?;
        self.again(at, now)
    }

    /// How long the peer has been silent while something was under way.
    pub(crate) fn silence(&self, now: u64) -> u64 {
        if self.win.is_empty() {
            0
        } else {
            now.saturating_sub(self.progress_at)
        }
    }

    /// For how long one packet has not arrived, whatever else did.
    pub(crate) fn stuck(&self, now: u64) -> u64 {
        match self.win.is_empty() {
            true => 0,
            false => now.saturating_sub(self.oldest_since),
        }
    }

    /// The caller itself has paused for so long, up to `now`: the pause does not count as a time
    /// without acknowledgements.
    pub(crate) fn discount_pause(&mut self, pause: u64, now: u64) {
        self.progress_at = now.min(self.progress_at.saturating_add(pause));
        self.oldest_since = now.min(self.oldest_since.saturating_add(pause));
    }

    /// Marks all packets under way as lost, when the peer has accepted none of them.
    pub(crate) fn send_again(&mut self) {
        for p in self.win.iter_mut().filter(|p| !p.acked && !p.lost) {
            self.sums.lose(p);
        }
    }

    /// Everything still under way, for a flow that is given up.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.sums = WindowSums::default();
        self.una = self.next;
        self.win.drain(..).filter(|p| !p.acked).map(|p| p.what)
    }
}
