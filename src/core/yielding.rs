//! Back-off that decides when a polling thread yields its CPU.
//!
//! If every process has a CPU, a yield only costs a system call; with more processes than CPUs, a
//! thread that does not yield keeps its peer from running. Where it is known on which processors
//! the peers were last, a thread yields soon if one of them was on this one, and seldom otherwise:
//! what else runs here would take the processor for milliseconds, and the peer's answer comes in
//! microseconds. Where it is not known, the duration of a yield tells the two cases apart: after a
//! yield during which another thread ran, the next one follows soon; after any other, the interval
//! doubles.

use std::time::{Duration, Instant};

/// Least and largest number of empty polls before a yield.
const SOON: u32 = 4;
const LATE: u32 = 4096;
/// A yield that takes at least this long has let another thread run.
const TAKEN: Duration = Duration::from_micros(2);

/// See the module text.
#[derive(Debug)]
pub struct YieldBackoff {
    polls: u32,
    limit: u32,
}

impl Default for YieldBackoff {
    fn default() -> Self {
        YieldBackoff {
            polls: 0,
            limit: SOON * 4,
        }
    }
}

impl YieldBackoff {
    /// Resets the count of empty polls, after a poll that found something.
    #[inline]
    pub fn found(&mut self) {
        self.polls = 0;
    }

    /// Counts an empty poll; returns whether to yield now.
    #[inline]
    pub fn note_empty_poll(&mut self) -> bool {
        self.polls += 1;
        self.polls >= self.limit
    }

    /// Whether to yield although no peer was on this processor: the thread has waited for long.
    pub fn waited_long(&self) -> bool {
        self.limit >= LATE
    }

    /// Yields, unless no peer was on this processor (`Some(false)`; `None`: not known) and the
    /// caller has not waited for long. Returns whether a peer may have run.
    #[cold]
    pub fn offer_to_peer(peer_here: Option<bool>, waited_long: bool) -> bool {
        let alone = peer_here == Some(false);
        let keep = alone && !waited_long;
        !keep && YieldBackoff::offer(std::thread::yield_now) && !alone
    }

    /// Yields with `offer`; returns whether another thread ran.
    #[cold]
    pub fn offer(offer: impl FnOnce()) -> bool {
        let before = Instant::now();
        offer();
        before.elapsed() >= TAKEN
    }

    /// Adjusts the interval after a yield; `taken`: another thread ran.
    #[cold]
    pub fn offered(&mut self, taken: bool) {
        self.polls = 0;
        self.limit = if taken {
            SOON
        } else {
            (self.limit * 2).min(LATE)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_that_are_taken_come_often_and_others_seldom() {
        let mut p = YieldBackoff::default();
        let until_offer = |p: &mut YieldBackoff| (1..).find(|_| p.note_empty_poll()).unwrap();
        assert_eq!(until_offer(&mut p), 16);
        for _ in 0..20 {
            p.offered(false);
        }
        assert_eq!(until_offer(&mut p), LATE as i32);
        p.offered(true);
        assert_eq!(until_offer(&mut p), SOON as i32);
        p.offered(true);
        p.note_empty_poll();
        p.found();
        assert_eq!(until_offer(&mut p), SOON as i32);
        assert!(YieldBackoff::offer(|| std::thread::sleep(TAKEN)));
    }
}
