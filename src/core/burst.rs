//! Whether messages of a burst may wait for those that follow.
//!
//! A message that leaves alone costs its sender a system call and the way through two kernels, most
//! of which is shared by messages that leave together. They may wait until the next call that makes
//! progress; but an application that computes before that call would have its peers wait. So the
//! messages of a burst wait only while the application is known to end its bursts soon
//! ([`TRUSTED`]): one that took long costs it this trust for the next [`FIRST_PENALTY`], and twice
//! as many each time until [`FORGIVEN`] bursts in a row have ended soon. A system that took the
//! processor away for a moment looks like an application that computes, but does so seldom.

use std::time::{Duration, Instant};

/// Messages of a burst that never wait.
pub(crate) const ALONE: u32 = 2;
/// Bursts in a row that ended soon, after which messages wait.
const TRUSTED: i32 = 8;
/// Bursts without waiting after one that did not end soon; at first, and at most.
const FIRST_PENALTY: i32 = 8;
const LONGEST_PENALTY: i32 = 256;
/// Bursts in a row that ended soon, after which the penalty is the first again.
const FORGIVEN: i32 = 256;
/// A burst ended soon if it took no longer than this, and for each of its messages [`EACH`], or
/// [`EACH_ALONE`] where they did not wait: then its time holds a system call for each, which take
/// up to 5 us with 4 KiB.
const SOON: Duration = Duration::from_micros(50);
const EACH: Duration = Duration::from_micros(4);
const EACH_ALONE: Duration = Duration::from_micros(16);

/// See the module text.
#[derive(Debug)]
pub(crate) struct BurstTrust {
    /// When the burst sent its first message that could wait.
    since: Option<Instant>,
    /// Messages since then.
    count: u32,
    /// Bursts in a row that ended soon, up to [`FORGIVEN`]; negative after one that did not.
    trust: i32,
    /// Bursts without waiting after the next one that does not end soon.
    penalty: i32,
}

impl Default for BurstTrust {
    fn default() -> BurstTrust {
        BurstTrust {
            since: None,
            count: 0,
            trust: 0,
            penalty: FIRST_PENALTY,
        }
    }
}

impl BurstTrust {
    /// A message that could wait; whether it may.
    #[inline]
    pub(crate) fn may_wait(&mut self) -> bool {
        self.since.get_or_insert_with(Instant::now);
        self.count += 1;
        self.trust >= TRUSTED
    }

    /// The burst has ended.
    #[inline]
    pub(crate) fn end(&mut self) {
        if let Some(since) = self.since.take() {
            self.judge(since.elapsed());
        }
    }

    /// Learns from a burst that has taken so long.
    #[cold]
    fn judge(&mut self, took: Duration) {
        let each = if self.trust >= TRUSTED {
            EACH
        } else {
            EACH_ALONE
        };
        if took > SOON + each * self.count {
            self.trust = -self.penalty;
            self.penalty = LONGEST_PENALTY.min(self.penalty * 2);
        } else if self.trust < FORGIVEN {
            self.trust += 1;
        } else {
            self.penalty = FIRST_PENALTY;
        }
        self.count = 0;
    }

    /// As after [`TRUSTED`] bursts that ended soon.
    #[cfg(test)]
    pub(crate) fn trust(&mut self) {
        self.trust = TRUSTED;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst of ten messages that took so long; whether they could wait.
    fn burst(b: &mut BurstTrust, took: Duration) -> bool {
        let waits = (0..10).filter(|_| b.may_wait()).count() == 10;
        assert!(b.since.take().is_some());
        b.judge(took);
        waits
    }

    #[test]
    fn messages_wait_while_bursts_end_soon() {
        let b = &mut BurstTrust::default();
        let (soon, late) = (SOON + 10 * EACH, SOON + 11 * EACH);
        for _ in 0..TRUSTED {
            assert!(!burst(b, soon));
        }
        assert!(burst(b, soon) && burst(b, late));
        for _ in 0..FIRST_PENALTY + TRUSTED {
            assert!(!burst(b, late), "messages that leave alone have more time");
        }
        assert!(burst(b, soon));
        b.end();
        assert_eq!(
            b.trust,
            TRUSTED + 1,
            "nothing could wait: nothing is learnt"
        );
    }

    #[test]
    fn bursts_that_end_late_again_and_again_cost_more_each_time() {
        let b = &mut BurstTrust::default();
        let (soon, late) = (SOON, SOON + 11 * EACH_ALONE);
        let mut alone = Vec::new();
        for _ in 0..8 {
            alone.push((0..).take_while(|_| !burst(b, soon)).count());
            assert!(!burst(b, late) || b.trust < 0);
        }
        assert_eq!(alone, [8, 16, 24, 40, 72, 136, 264, 264]);
        let after: Vec<_> = (0..2 * FORGIVEN + TRUSTED + LONGEST_PENALTY)
            .map(|_| burst(b, soon))
            .collect();
        assert!(after.last() == Some(&true));
        burst(b, late);
        assert_eq!(b.trust, -FIRST_PENALTY, "forgiven");
    }
}
