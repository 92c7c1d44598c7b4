//! Whether a blocked caller polls for a moment before it sleeps.
//!
//! To sleep and to be woken takes tens of microseconds, of which the message needs one. So a caller
//! whose waits are short polls first, up to [`SPIN`]. Where that is in vain, because messages come
//! regularly but not so soon, it is tried again after more and more waits: what arrives seldom
//! costs no processor time.

use std::time::Duration;

/// Longest time for which a caller polls before it sleeps.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// A wait that was no longer than this may be shorter without the sleep.
const SHORT: Duration = Duration::from_micros(100);
/// Most waits without polling between two trials.
const PAUSE_MAX: u32 = 64;

/// See the module text; one for each wait object.
#[derive(Debug, Default)]
pub(crate) struct SpinTrial {
    /// The last wait was short.
    short: bool,
    /// Waits until the next trial, and after the next one that fails.
    pause: u32,
    backoff: u32,
}

impl SpinTrial {
    /// Whether the next wait begins with polling.
    pub(crate) fn spins(&self) -> bool {
        self.short && self.pause == 0
    }

    /// A wait has ended, which began as [`SpinTrial::spins`] said.
    pub(crate) fn ended(&mut self, waited: Duration) {
        match (self.spins(), waited <= SPIN) {
            (true, true) => self.backoff = 0,
            (true, false) => {
                self.backoff = (self.backoff * 2).clamp(1, PAUSE_MAX);
                self.pause = self.backoff;
            }
            (false, _) => self.pause = self.pause.saturating_sub(1),
        }
        self.short = waited <= SHORT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `n` waits of so many microseconds begin with polling.
    fn trials(t: &mut SpinTrial, n: u32, us: u64) -> u32 {
        let mut some = 0;
        for _ in 0..n {
            some += u32::from(t.spins());
            t.ended(Duration::from_micros(us));
        }
        some
    }

    #[test]
    fn short_waits_begin_with_polling_and_long_ones_do_not() {
        let mut t = SpinTrial::default();
        assert_eq!(trials(&mut t, 100, 60), 7, "1, 2, 4, ... waits apart");
        assert_eq!(trials(&mut t, 100, 2_000), 0);
        t = SpinTrial::default();
        assert_eq!(trials(&mut t, 1, 60) + trials(&mut t, 100, 2), 100);
        assert_eq!(trials(&mut t, 100, 2_000), 1);
        assert_eq!(trials(&mut t, 1, 60), 0);
        assert_eq!(trials(&mut t, 100, 2), 100);
    }
}
