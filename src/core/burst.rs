//! Whether messages of a burst may wait for those that follow.
//!
//! A message that leaves alone costs its sender a system call and the way through two kernels, most
//! of which is shared by messages that leave together. They may wait until the next call that makes
//! progress; but an application that computes before that call would have its peers wait. So the
//! messages of a burst wait only while the application is known to end its bursts soon
//! ([`TRUSTED`]): one that took long costs it this trust for the next [`PENALTY`].

use std::time::{Duration, Instant};

/// Messages of a burst that never wait.
pub(crate) const ALONE: u32 = 2;
/// Bursts in a row that ended soon, after which messages wait.
const TRUSTED: i32 = 8;
/// Bursts without waiting after one that did not end soon.
const PENALTY: i32 = 256;
/// A burst ended soon if it took no longer than this, and [`EACH`] for each of its messages.
const SOON: Duration = Duration::from_micros(50);
const EACH: Duration = Duration::from_micros(4);

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct BurstTrust {
    /// When the burst sent its first message that could wait.
    since: Option<Instant>,
    /// Messages since then.
    count: u32,
    /// Bursts in a row that ended soon, up to [`TRUSTED`]; negative after one that did not.
    trust: i32,
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
        self.trust = match took <= SOON + EACH * self.count {
            true => TRUSTED.min(self.trust + 1),
            false => -PENALTY,
        };
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

    #[test]
    fn messages_wait_while_bursts_end_soon() {
        let mut b = BurstTrust::default();
        let mut burst = |took| {
            let waits = (0..10).filter(|_| b.may_wait()).count() == 10;
            assert!(b.since.take().is_some());
            b.judge(took);
            waits
        };
        let (soon, late) = (SOON + 10 * EACH, SOON + 11 * EACH);
        for _ in 0..TRUSTED {
            assert!(!burst(soon));
        }
        assert!(burst(soon) && burst(late));
        for _ in 0..PENALTY + TRUSTED {
            assert!(!burst(soon));
        }
        assert!(burst(soon));
        b.end();
        assert_eq!(b.trust, TRUSTED, "nothing could wait: nothing is learnt");
    }
}
