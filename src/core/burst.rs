//! Whether messages of a burst may wait for those that follow.
//!
//! A message that leaves alone costs its sender a system call and the way through two kernels, most
//! of which is shared by messages that leave together. They may wait until the next call that makes
//! progress; but an application that computes before that call would have its peers wait. So the
//! messages of a burst wait only while the application is known to end its bursts soon. What
//! waiting gains and loses is counted in messages, each of which gains a microsecond or so: a burst
//! that ended soon adds its messages, one that ended late takes off what such a delay is worth.
//! While the sum is not negative, messages wait. (A system that takes the processor away for a
//! moment looks like an application that computes, but does so seldom.)

use std::time::{Duration, Instant};

/// Messages of a burst that never wait.
pub(crate) const ALONE: u32 = 2;
/// What an application that has just begun has to gain first: eight bursts of 64 messages, less
/// those that never wait.
const TO_BEGIN: i32 = 8 * (64 - ALONE as i32);
/// The most that late bursts are remembered for, beside one of them: 256 such bursts.
const REMEMBERED: i32 = 256 * (64 - ALONE as i32);
/// Bytes of a message that count: a longer one is copied when its turn comes, not when posted.
const LEN_MOST: usize = 64 << 10;
/// A burst ended soon if it took no longer than this, and for each of its messages [`EACH`] and
/// half a nanosecond a byte. Where messages did not wait the time holds a system call for each,
/// up to 5 us with 4 KiB, and [`EACH_ALONE`] takes the place of [`EACH`].
const SOON: Duration = Duration::from_micros(50);
const EACH: u64 = 4_000;
const EACH_ALONE: u64 = 16_000;

/// See the module text.
#[derive(Debug)]
pub(crate) struct BurstTrust {
    /// When the burst sent its first message that could wait.
    since: Option<Instant>,
    /// Messages since then, and nanoseconds that they may take.
    count: i32,
    allowed: u64,
    /// Gains and losses so far: messages wait while it is not negative.
    sum: i32,
    /// What a late burst costs.
    late: i32,
}

impl BurstTrust {
    /// A burst that ends late loses as much as so many messages gain by waiting.
    pub(crate) const fn new(late: i32) -> BurstTrust {
        BurstTrust {
            since: None,
            count: 0,
            allowed: 0,
            sum: -TO_BEGIN,
            late,
        }
    }

    /// A message of `len` bytes that could wait; whether it may.
    #[inline]
    pub(crate) fn may_wait(&mut self, len: usize) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let may = self.sum >= 0;
        self.count = self.count.saturating_add(1);
        self.allowed += if may { EACH } else { EACH_ALONE } + len.min(LEN_MOST) as u64 / 2;
        may
    }

    /// The message of the last [`BurstTrust::may_wait`], which was `true`, has left alone all the
    /// same.
    pub(crate) fn left_alone(&mut self) {
        self.count -= 1;
        self.allowed += EACH_ALONE - EACH;
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
        self.sum = match took <= SOON + Duration::from_nanos(self.allowed) {
            true => self.sum.saturating_add(self.count).min(2 * self.late),
            false => (self.sum - self.late).max(-self.late - REMEMBERED),
        };
        (self.count, self.allowed) = (0, 0);
    }

    /// As after many bursts that ended soon.
    #[cfg(test)]
    pub(crate) fn trust(&mut self) {
        self.sum = self.late;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A burst of 64 messages of so many bytes that took so long; whether 62 could wait.
    fn burst(b: &mut BurstTrust, len: usize, took: Duration) -> bool {
        let waits = (0..62).filter(|_| b.may_wait(len)).count() == 62;
        assert!(b.since.take().is_some());
        b.judge(took);
        waits
    }

    /// Bursts in a row whose messages do not wait.
    fn alone(b: &mut BurstTrust) -> usize {
        (0..).take_while(|_| !burst(b, 8, SOON)).count()
    }

    #[test]
    fn messages_wait_while_bursts_end_soon() {
        let b = &mut BurstTrust::new(2048);
        let late = SOON + Duration::from_micros(62 * 16 + 1);
        assert_eq!(alone(b), 8);
        assert!(burst(b, 8, late), "a burst waits until it ends late");
        assert_eq!(alone(b), 33, "little was gained before");
        for _ in 0..=2 * 2048 / 62 {
            assert!(burst(b, 8, SOON));
        }
        for _ in 0..10 {
            assert!(burst(b, 8, late), "seldom");
            (0..34).for_each(|_| assert!(burst(b, 8, SOON)));
        }
        for _ in 0..100 {
            burst(b, 8, late);
        }
        assert_eq!(alone(b), (2048 + REMEMBERED as usize).div_ceil(62));
        let sum = b.sum;
        b.end();
        assert_eq!(b.sum, sum, "nothing could wait: nothing is learnt");
    }

    #[test]
    fn what_the_messages_themselves_take_is_not_late() {
        let b = &mut BurstTrust::new(2048);
        let each = |us: u64| SOON + Duration::from_micros(62 * us);
        assert!((0..8).all(|_| !burst(b, 8, each(16))), "a system call each");
        assert!(burst(b, 8, each(4)) && burst(b, 65536, each(36)));
        assert!(b.sum > 0 && burst(b, 1 << 30, each(40)) && b.sum < 0);
    }

    #[test]
    fn a_message_that_cannot_wait_gains_nothing_and_has_its_time() {
        let b = &mut BurstTrust::new(2048);
        b.trust();
        let before = b.sum;
        for _ in 0..10 {
            assert!(b.may_wait(8));
            b.left_alone();
        }
        b.judge(SOON + Duration::from_micros(160));
        assert_eq!(b.sum, before);
    }
}
