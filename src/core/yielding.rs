//! Back-off that decides when a polling thread yields its CPU.
//!
//! If every process has a CPU, a yield only costs a system call; with more processes than CPUs, a
//! thread that does not yield keeps its peer from running. Where it is known on which processors
//! the peers were last, a thread yields soon if one of them was on this one, and seldom otherwise:
//! what else runs here would take the processor for milliseconds, and the peer's answer comes in
//! microseconds. Where it is not known, the context switches of the thread tell the two cases
//! apart: after a yield during which another thread ran, the next one follows soon; after any
//! other, the interval doubles.
//!
//! An application may yield itself between its polls, as MPICH does where ranks share a processor.
//! Then other threads have run more than once from one yield of ours to the next, and ours, which
//! are more switches of threads, become rare.

use std::cell::Cell;

/// Least and largest number of empty polls before a yield.
const SOON: u32 = 4;
const LATE: u32 = 4096;
/// Empty polls before a yield where the application yields itself.
const OTHERS: u32 = 32;

thread_local! {
    /// Context switches of this thread up to the last yield.
    static SWITCHES: Cell<u64> = const { Cell::new(0) };
}

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

    /// Empty polls since the last yield, or the last poll that found something.
    pub fn polls(&self) -> u64 {
        u64::from(self.polls)
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
    /// caller has not waited for long. Returns how often peers may have run since the last yield.
    #[cold]
    pub fn offer_to_peer(
        peer_here: Option<bool>,
        waited_long: bool,
        switches: impl FnOnce() -> u64,
    ) -> u64 {
        let alone = peer_here == Some(false);
        if alone && !waited_long {
            return 0;
        }
        let ran = YieldBackoff::offer(std::thread::yield_now, switches);
        if alone {
            0
        } else {
            ran
        }
    }

    /// Yields with `offer`; returns how often other threads have run since the last yield, as the
    /// context switches of this thread tell.
    #[cold]
    pub fn offer(offer: impl FnOnce(), switches: impl FnOnce() -> u64) -> u64 {
        offer();
        let now = switches();
        now.wrapping_sub(SWITCHES.replace(now))
    }

    /// Adjusts the interval after a yield; `ran`: how often other threads have run since the last.
    #[cold]
    pub fn offered(&mut self, ran: u64) {
        self.polls = 0;
        self.limit = match ran {
            0 => (self.limit * 2).min(LATE),
            1 => SOON,
            _ => OTHERS,
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
            p.offered(0);
        }
        assert_eq!(until_offer(&mut p), LATE as i32);
        p.offered(1);
        assert_eq!(until_offer(&mut p), SOON as i32);
        p.offered(1);
        p.note_empty_poll();
        p.found();
        assert_eq!(until_offer(&mut p), SOON as i32);
        let switches = Cell::new(7);
        let offer =
            |more| YieldBackoff::offer(|| switches.set(switches.get() + more), || switches.get());
        offer(0);
        assert_eq!([0, 1, 0, 3].map(offer), [0, 1, 0, 3]);
        p.offered(3);
        assert_eq!(until_offer(&mut p), OTHERS as i32);
    }
}
