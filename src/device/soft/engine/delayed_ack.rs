//! When the acknowledgement of a message waits for a packet to go with.
//!
//! Where traffic goes both ways an acknowledgement costs nothing if it waits for the answer. Where
//! the application computes instead of polling, the acknowledgement leaves with the next pass of
//! the thread, a millisecond later. Each such delay asks for twice as many prompt answers before
//! the next acknowledgement waits: as TCP leaves its "pingpong" mode, but for longer each time.

/// Nanoseconds within which a packet is an answer to a message.
const PROMPT: u64 = 100_000;
/// Nanoseconds after which an acknowledgement is late.
const LATE: u64 = 300_000;
/// Answers that are asked for after the first delay, and at most: an acknowledgement that goes
/// alone costs some 4 us, and a delay 1 ms.
const NEEDED: (u16, u16) = (4, 256);

/// The delay of acknowledgements to one peer.
#[derive(Debug, Default)]
pub(super) struct DelayedAck {
    /// Something was sent to the peer since the last acknowledgement that went alone.
    replied: bool,
    /// When the last message ended that has had no answer; 0 for none.
    ended_at: u64,
    /// Its acknowledgement waits.
    waits: bool,
    /// Prompt answers since the last delay, and how many are needed.
    answers: u16,
    needed: u16,
}

impl DelayedAck {
    /// A message has ended, for whose end its sender may wait. Returns whether to acknowledge at
    /// once.
    pub(super) fn message_ended(&mut self, now: u64) -> bool {
        self.ended_at = now;
        self.waits = self.replied && self.answers >= self.needed;
        !self.waits
    }

    /// A packet goes to the peer, with the acknowledgement.
    pub(super) fn sent(&mut self, now: u64) {
        (self.replied, self.waits) = (true, false);
        if self.ended_at != 0 {
            let prompt = now.saturating_sub(self.ended_at) <= PROMPT;
            self.answers = self.answers.saturating_add(u16::from(prompt));
            self.ended_at = 0;
        }
    }

    /// An acknowledgement goes alone, because the application does not poll: a sender has waited
    /// for it in vain if it is late.
    pub(super) fn not_polled(&mut self, now: u64) {
        if self.waits && now.saturating_sub(self.ended_at) >= LATE {
            self.answers = 0;
            self.needed = (2 * self.needed).clamp(NEEDED.0, NEEDED.1);
        }
    }

    /// An acknowledgement has gone alone.
    pub(super) fn went_alone(&mut self) {
        (self.replied, self.waits) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` messages, each answered after `pause`. Returns how many were acknowledged at once.
    fn exchange(d: &mut DelayedAck, n: u32, pause: u64) -> u32 {
        let mut alone = 0;
        for i in 1..=u64::from(n) {
            let at = i * 10_000_000;
            if d.message_ended(at) {
                alone += 1;
                d.went_alone();
            } else if pause > LATE {
                d.not_polled(at + LATE);
                d.went_alone();
            }
            d.sent(at + pause);
        }
        alone
    }

    #[test]
    fn answers_carry_acknowledgements_until_one_is_late() {
        let mut d = DelayedAck::default();
        assert_eq!(exchange(&mut d, 100, 5_000), 1);
        // Only the first of many waits in vain.
        assert_eq!(exchange(&mut d, 100, 5_000_000), 99);
        // Prompt answers count again.
        assert_eq!(exchange(&mut d, 100, 5_000), 4);
        // What goes alone without a message that waits is no delay.
        d.not_polled(u64::MAX);
        assert_eq!(exchange(&mut d, 10, 5_000_000), 9);
        assert_eq!(exchange(&mut d, 100, 5_000), 8);
    }
}
