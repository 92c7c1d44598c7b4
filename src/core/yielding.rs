//! When to offer the processor while polling in vain.
//!
//! With a processor for every process, giving it up costs a system call for nothing; with more
//! processes than processors, keeping it keeps the one we wait for from running. Which it is shows
//! when it is offered: did somebody take it? Then we offer it soon again, otherwise twice as late
//! as the last time.

use std::time::{Duration, Instant};

/// Polls in vain before the processor is offered: at least, at most.
const SOON: u32 = 4;
const LATE: u32 = 4096;
/// An offer that took longer was taken.
const TAKEN: Duration = Duration::from_micros(2);

/// See the module text.
#[derive(Debug)]
pub struct Patience {
    polls: u32,
    limit: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            polls: 0,
            limit: SOON * 4,
        }
    }
}

impl Patience {
    /// A poll found something.
    #[inline]
    pub fn found(&mut self) {
        self.polls = 0;
    }

    /// A poll found nothing; whether to offer the processor now.
    #[inline]
    pub fn missed(&mut self) -> bool {
        self.polls += 1;
        self.polls >= self.limit
    }

    /// Offers the processor with `offer`; whether somebody took it.
    #[cold]
    pub fn offer(offer: impl FnOnce()) -> bool {
        let before = Instant::now();
        offer();
        before.elapsed() >= TAKEN
    }

    /// Takes note of an offer, which was taken or not.
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
        let mut p = Patience::default();
        let until_offer = |p: &mut Patience| (1..).find(|_| p.missed()).unwrap();
        assert_eq!(until_offer(&mut p), 16);
        for _ in 0..20 {
            p.offered(false);
        }
        assert_eq!(until_offer(&mut p), LATE as i32);
        p.offered(true);
        assert_eq!(until_offer(&mut p), SOON as i32);
        p.offered(true);
        p.missed();
        p.found();
        assert_eq!(until_offer(&mut p), SOON as i32);
        assert!(Patience::offer(|| std::thread::sleep(TAKEN)));
    }
}
