//! Bursts of operations to one peer, which share a system call.
//!
//! Three and more operations for one peer, without a poll in between, wait for each other, up to
//! [`TOGETHER`] of them; the next poll sends them off, or the adapter's thread if the application
//! has stopped to poll. Whether they wait: see [`crate::core::burst`].

use crate::core::burst::{BurstTrust, ALONE};
use crate::transport::PeerId;

/// Operations that leave together at most.
const TOGETHER: u32 = 16;
/// What a late burst costs: the adapter's thread sends it off after 2 ms at worst.
const LATE: i32 = 2048;

/// See the module text.
pub(super) struct PostBurst {
    /// Peer of the last operation, and its bytes.
    pub to: PeerId,
    pub len: usize,
    /// Peer of the burst, and its operations so far.
    of: PeerId,
    count: u32,
    trust: BurstTrust,
}

impl Default for PostBurst {
    fn default() -> PostBurst {
        PostBurst {
            to: 0,
            len: 0,
            of: 0,
            count: 0,
            trust: BurstTrust::new(LATE),
        }
    }
}

impl PostBurst {
    /// Whether the last operation, of the application, may wait for another.
    #[inline]
    pub(super) fn waits(&mut self) -> bool {
        if self.of != self.to {
            (self.of, self.count) = (self.to, 0);
        }
        self.count += 1;
        self.count > ALONE && self.trust.may_wait(self.len) && !self.count.is_multiple_of(TOGETHER)
    }

    /// A poll sends everything off.
    #[inline]
    pub(super) fn polled(&mut self) {
        self.count = 0;
        self.trust.end();
    }

    /// As after many bursts that ended soon.
    #[cfg(test)]
    pub(super) fn trust(&mut self) {
        self.trust.trust();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_wait_for_others_to_the_same_peer() {
        let mut b = PostBurst::default();
        let mut waiting = |to: PeerId, trusted: bool| {
            if trusted {
                b.trust();
            }
            b.to = to;
            let waiting = (0..20).filter(|_| b.waits()).count();
            b.polled();
            waiting
        };
        assert_eq!(waiting(1, false), 0);
        assert_eq!(waiting(1, true), 17);
        b.trust();
        for to in [1, 2, 1, 2, 1, 2] {
            b.to = to;
            assert!(!b.waits());
        }
    }
}
