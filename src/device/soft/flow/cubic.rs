//! Congestion control: CUBIC (RFC 9438), which leaves slow start by HyStart++ (RFC 9406).
//!
//! [`Cubic`] decides how many packets may be under way to one peer, and so shares a link with the
//! TCP connections on it. Acknowledgements and losses are its inputs; time is an argument, in
//! nanoseconds. The window grows only on acknowledgements of packets that were sent while the
//! window was full, so that an application that sends little does not collect a large one.

use super::{dist, MS, WINDOW};

/// Window of a new flow, packets: those of one burst that any receive buffer holds. TCP starts with
/// 10 (RFC 6928), for peers anywhere on the internet; our peers belong to one application.
const INITIAL: f64 = 64.0;
/// Least window, packets.
const LEAST: f64 = 2.0;
/// Factor of a reduction, and constant of the cubic function, 1/s^3 (RFC 9438, 4.1 and 4.6).
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Growth in packets a round trip that is as fair as TCP Reno's, for [`BETA`] (RFC 9438, 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The part of an acknowledgement that the congestion control uses.
pub(super) struct Acked {
    /// Packets newly acknowledged.
    pub packets: u32,
    /// The lowest of them was sent before the window stopped being full.
    pub limited: bool,
    /// Round-trip time of the last of them, if it was sent once, and the smoothed one; nanoseconds.
    pub rtt: Option<u64>,
    pub srtt: u64,
    /// Lowest number that is not acknowledged, and the next new number.
    pub una: u32,
    pub next: u32,
}

/// See the module text.
#[derive(Debug)]
pub(super) struct Cubic {
    window: f64,
    /// Slow start is over at this window.
    threshold: f64,
    /// Window before the last reduction, lowered if the one before it was larger (RFC 9438, 4.7).
    w_max: f64,
    /// Window before the last reduction.
    prior: f64,
    /// Window of Reno in the same place.
    w_est: f64,
    /// When the cubic function began, and when it reaches `w_max`, seconds from then.
    began: Option<u64>,
    k: f64,
    slow_start: HyStart,
}

impl Cubic {
    /// For a flow whose first packet is `first`.
    pub(super) fn new(first: u32) -> Cubic {
        Cubic {
            window: INITIAL,
            threshold: f64::INFINITY,
            w_max: 0.0,
            prior: 0.0,
            w_est: 0.0,
            began: None,
            k: 0.0,
            slow_start: HyStart::new(first),
        }
    }

    /// Packets that may be under way.
    #[inline]
    pub(super) fn window(&self) -> u32 {
        self.window as u32
    }

    /// Packets were acknowledged.
    pub(super) fn acked(&mut self, a: &Acked, now: u64) {
        if self.window < self.threshold {
            let growth = self.slow_start.growth(a);
            if a.limited {
                self.window += growth;
            }
            if self.slow_start.over {
                self.threshold = self.window;
            }
        } else if a.limited {
            self.avoid_congestion(a, now);
        } else {
            // The cubic function must not run ahead while the application sends little.
            self.began = None;
        }
        self.window = self.window.min(f64::from(WINDOW));
    }

    /// RFC 9438, 4.2 to 4.5.
    fn avoid_congestion(&mut self, a: &Acked, now: u64) {
        let began = *self.began.get_or_insert_with(|| {
            self.w_est = self.window;
            match self.window < self.w_max {
                true => self.k = ((self.w_max - self.window) / C).cbrt(),
                false => (self.w_max, self.k) = (self.window, 0.0),
            }
            now
        });
        let t = now.saturating_sub(began) as f64 / 1e9;
        let cubic = |t: f64| C * (t - self.k).powi(3) + self.w_max;
        let packets = f64::from(a.packets);
        let alpha = if self.w_est < self.prior { ALPHA } else { 1.0 };
        self.w_est += alpha * packets / self.window;
        if cubic(t) < self.w_est {
            self.window = self.window.max(self.w_est);
        } else {
            let target = cubic(t + a.srtt as f64 / 1e9).clamp(self.window, 1.5 * self.window);
            self.window += packets * (target - self.window) / self.window;
        }
    }

    /// Packets were lost; called once a round trip.
    pub(super) fn lost(&mut self) {
        self.prior = self.window;
        self.w_max = match self.window < self.w_max {
            true => self.window * (1.0 + BETA) / 2.0,
            false => self.window,
        };
        self.window = (self.window * BETA).max(LEAST);
        self.threshold = self.window;
        self.began = None;
    }

    /// The link was silent for several time-outs: what was known of it is old (RFC 9002, 7.6).
    pub(super) fn persistent_congestion(&mut self) {
        self.window = LEAST;
        self.began = None;
    }

    /// The flow starts again after a pause of more than a time-out: a large window is no longer
    /// known to fit (RFC 5681, 4.1).
    pub(super) fn restart_after_idle(&mut self) {
        if self.window > INITIAL {
            self.threshold = self.threshold.min(self.window).max(INITIAL);
            self.window = INITIAL;
            self.began = None;
        }
    }
}

/// HyStart++: slow start ends when round trips become longer, before packets are lost.
#[derive(Debug)]
struct HyStart {
    /// The round ends when this number is acknowledged.
    round_end: u32,
    last_min: u64,
    min: u64,
    samples: u32,
    /// Least round trip when conservative slow start began, and its rounds since.
    conservative: Option<(u64, u32)>,
    over: bool,
}

impl HyStart {
    // RFC 9406, 4.3.
    const MIN_RISE: u64 = 4 * MS;
    const MAX_RISE: u64 = 16 * MS;
    const SAMPLES: u32 = 8;
    const CONSERVATIVE_DIVISOR: f64 = 4.0;
    const CONSERVATIVE_ROUNDS: u32 = 5;
    /// Most packets that one acknowledgement adds, for a sender that does not pace.
    const MOST: u32 = 8;

    fn new(first: u32) -> HyStart {
        HyStart {
            round_end: first,
            last_min: u64::MAX,
            min: u64::MAX,
            samples: 0,
            conservative: None,
            over: false,
        }
    }

    /// By how many packets the window grows.
    fn growth(&mut self, a: &Acked) -> f64 {
        if let Some(rtt) = a.rtt {
            self.min = self.min.min(rtt);
            self.samples += 1;
        }
        let packets = f64::from(a.packets.min(Self::MOST));
        let growth = match self.conservative {
            None => packets,
            Some(_) => packets / Self::CONSERVATIVE_DIVISOR,
        };
        self.check_delay();
        if dist(a.una, self.round_end) >= 0 {
            self.round_end = a.next;
            self.last_min = self.min;
            (self.min, self.samples) = (u64::MAX, 0);
            if let Some((_, rounds)) = &mut self.conservative {
                *rounds += 1;
                self.over = *rounds >= Self::CONSERVATIVE_ROUNDS;
            }
        }
        growth
    }

    fn check_delay(&mut self) {
        if self.samples < Self::SAMPLES || self.last_min == u64::MAX {
            return;
        }
        match self.conservative {
            None => {
                let rise = (self.last_min / 8).clamp(Self::MIN_RISE, Self::MAX_RISE);
                if self.min >= self.last_min + rise {
                    self.conservative = Some((self.min, 0));
                }
            }
            // The rise was a coincidence.
            Some((baseline, _)) if self.min < baseline => self.conservative = None,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(packets: u32, limited: bool) -> Acked {
        Acked {
            packets,
            limited,
            rtt: Some(100_000),
            srtt: 100_000,
            una: 0,
            next: 0,
        }
    }

    /// The window follows the function of RFC 9438, 4.2: concave up to `w_max` at K seconds, flat
    /// there, convex behind it.
    #[test]
    fn the_window_is_a_cubic_function_of_time() {
        let mut c = Cubic::new(0);
        c.window = 1000.0;
        c.lost();
        assert_eq!(c.window(), 700);
        let k = (300.0f64 / 0.4).cbrt();
        let at = |c: &mut Cubic, seconds: f64| {
            // Many acknowledgements, so that the window is the value of the function.
            let now = (seconds * 1e9) as u64;
            for _ in 0..20_000 {
                let mut a = ack(1, true);
                a.srtt = 0;
                c.w_est = 0.0;
                c.acked(&a, now);
            }
            c.window
        };
        at(&mut c, 0.0);
        for t in [1.0, 3.0, 6.0, k - 1.0] {
            let want = 0.4 * (t - k).powi(3) + 1000.0;
            assert!((at(&mut c, t) - want).abs() < 2.0, "{t} s: {}", c.window);
        }
        assert!((at(&mut c, k) - 1000.0).abs() < 2.0);
    }

    /// Where round trips are short, the window grows by Reno's rate, not by the cubic function's.
    #[test]
    fn short_round_trips_grow_as_reno_does() {
        let mut c = Cubic::new(0);
        c.window = 100.0;
        c.lost();
        for round in 0..10u64 {
            let n = c.window();
            for _ in 0..n {
                c.acked(&ack(1, true), round * 100_000);
            }
        }
        assert!((74..77).contains(&c.window()), "{}", c.window());
    }

    #[test]
    fn an_application_that_sends_little_gets_no_larger_window() {
        let mut c = Cubic::new(0);
        for now in 0..10_000 {
            c.acked(&ack(1, false), now * 10_000);
        }
        assert_eq!(c.window(), INITIAL as u32);
        for now in 0..64 {
            c.acked(&ack(1, true), now);
        }
        assert_eq!(c.window(), 2 * INITIAL as u32);
    }

    #[test]
    fn two_losses_in_a_row_lower_the_former_maximum() {
        let mut c = Cubic::new(0);
        c.window = 1000.0;
        c.lost();
        assert_eq!(c.w_max, 1000.0);
        c.lost();
        assert_eq!((c.window(), c.w_max), (489, 700.0 * 0.85));
        for _ in 0..100 {
            c.lost();
        }
        assert_eq!(c.window(), LEAST as u32);
    }

    /// Round trips that become longer by more than 4 ms end slow start, by way of a slower growth.
    #[test]
    fn slow_start_ends_when_round_trips_become_longer() {
        let mut c = Cubic::new(0);
        let mut psn = 0u32;
        for round in 0..20u64 {
            let rtt = if round < 3 { MS } else { 6 * MS };
            let n = c.window();
            for _ in 0..n {
                psn = psn.wrapping_add(1);
                let next = psn.wrapping_add(c.window());
                let (una, rtt) = (psn, Some(rtt));
                let a = Acked {
                    rtt,
                    una,
                    next,
                    ..ack(1, true)
                };
                c.acked(&a, round * 6 * MS);
            }
            if c.threshold.is_finite() {
                assert!((7..=9).contains(&round), "round {round}");
                return;
            }
        }
        panic!("slow start never ended: {}", c.window());
    }

    #[test]
    fn a_pause_returns_to_slow_start() {
        let mut c = Cubic::new(0);
        c.window = 800.0;
        c.lost();
        c.restart_after_idle();
        assert_eq!((c.window(), c.threshold as u32), (INITIAL as u32, 560));
        for now in 0..1000 {
            c.acked(&ack(1, true), now);
        }
        assert!(c.window() >= 560);
        c.persistent_congestion();
        assert_eq!(c.window(), LEAST as u32);
    }
}
