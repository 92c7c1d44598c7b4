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
//! Without a peer on this processor others may wait for it all the same: where there are more ranks
//! than processors and their peers are on other hosts, those of one processor take turns. They give
//! it back long before a process that computes does. So the time that a yield took decides whether
//! its use by another thread brings the next one soon.
//!
//! An application may yield itself between its polls, as MPICH does where ranks share a processor.
//! Then other threads have run more than once from one yield of ours to the next, and ours, which
//! are more switches of threads, become rare.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Least and largest number of empty polls before a yield.
const SOON: u32 = 4;
const LATE: u32 = 4096;
/// Empty polls before a yield where the application yields itself.
const OTHERS: u32 = 32;
/// A yield that takes longer than this went to a thread that computes: the kernel's time slices
/// are longer, and what a thread does between two waits for messages is shorter.
const TURN: Duration = Duration::from_micros(500);

thread_local! {
    /// Context switches of this thread up to the last yield.
    static SWITCHES: Cell<u64> = const { Cell::new(0) };
}

/// See the module text.
#[derive(Debug)]
pub struct YieldBackoff {
    polls: u32,
    limit: u32,
    /// Others that wait, too, ran during the last yield.
    takes_turns: bool,
}

impl Default for YieldBackoff {
    fn default() -> Self {
        YieldBackoff {
            polls: 0,
            limit: SOON * 4,
            takes_turns: false,
        }
    }
}

impl YieldBackoff {
    /// Resets the count of empty polls, after a poll that found something.
    #[inline]
    pub fn note_found(&mut self) {
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

    /// Whether to yield although no peer was on this processor: the thread has waited for long,
    /// or takes turns with others.
    pub fn yields_alone(&self) -> bool {
        self.takes_turns || self.limit >= LATE
    }

    /// Yields, unless no peer was on this processor (`Some(false)`; `None`: not known) and
    /// [`YieldBackoff::yields_alone`] does not hold. Returns how often others that wait, too, may
    /// have run since the last yield.
    #[cold]
    pub fn yield_to_peer(
        peer_here: Option<bool>,
        yields_alone: bool,
        switches: impl FnOnce() -> u64,
    ) -> u64 {
        let alone = peer_here == Some(false);
        if alone && !yields_alone {
            return 0;
        }
        let start = Instant::now();
        let ran = YieldBackoff::yield_by(std::thread::yield_now, switches);
        match peer_here == Some(true) || is_turn(start.elapsed()) {
            true => ran,
            false => 0,
        }
    }

    /// Yields by `give_up`; returns how often other threads have run since the last yield, as the
    /// context switches of this thread tell.
    #[cold]
    pub fn yield_by(give_up: impl FnOnce(), switches: impl FnOnce() -> u64) -> u64 {
        give_up();
        let now = switches();
        now.wrapping_sub(SWITCHES.replace(now))
    }

    /// Adjusts the interval after a yield; `ran`: how often other threads have run since the last.
    #[cold]
    pub fn note_yield(&mut self, ran: u64) {
        self.polls = 0;
        self.takes_turns = ran > 0;
        self.limit = match ran {
            0 => (self.limit * 2).min(LATE),
            1 => SOON,
            _ => OTHERS,
        };
    }
}

/// Whether a yield that took so long went to threads that wait for messages, too.
fn is_turn(took: Duration) -> bool {
    took <= TURN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_yield_that_others_used_is_repeated_soon() {
        let mut p = YieldBackoff::default();
        (0..20).for_each(|_| p.note_yield(0));
        assert!(p.yields_alone());
        p.note_yield(1);
        assert!(p.yields_alone(), "as long as turns are taken");
        p.note_yield(0);
        assert!(!p.yields_alone(), "until it has waited for long");
        let calls = Cell::new(0);
        let switches = || calls.replace(calls.get() + 1);
        assert_eq!(YieldBackoff::yield_to_peer(Some(false), false, switches), 0);
        assert_eq!(calls.get(), 0, "no yield");
        YieldBackoff::yield_to_peer(Some(false), true, switches);
        assert_eq!(calls.get(), 1, "a yield");
        assert_eq!(YieldBackoff::yield_to_peer(Some(true), false, switches), 1);
        assert!(is_turn(Duration::from_micros(60)) && !is_turn(Duration::from_micros(700)));
    }

    #[test]
    fn yields_that_others_use_come_often_and_others_seldom() {
        let mut p = YieldBackoff::default();
        let until_yield = |p: &mut YieldBackoff| (1..).find(|_| p.note_empty_poll()).unwrap();
        assert_eq!(until_yield(&mut p), 16);
        for _ in 0..20 {
            p.note_yield(0);
        }
        assert_eq!(until_yield(&mut p), LATE as i32);
        p.note_yield(1);
        assert_eq!(until_yield(&mut p), SOON as i32);
        p.note_yield(1);
        p.note_empty_poll();
        p.note_found();
        assert_eq!(until_yield(&mut p), SOON as i32);
        let switches = Cell::new(7);
        let ran_during = |more| {
            YieldBackoff::yield_by(|| switches.set(switches.get() + more), || switches.get())
        };
        ran_during(0);
        assert_eq!([0, 1, 0, 3].map(ran_during), [0, 1, 0, 3]);
        p.note_yield(3);
        assert_eq!(until_yield(&mut p), OTHERS as i32);
    }
}
