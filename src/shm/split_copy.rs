//! A transfer that two processes share: each copies the next chunk of a long message when it is
//! free.
//!
//! The word that says how far they have come is in the ring from the one that has the place to the
//! one that has the message. Its upper part tells one transfer from another at the same word, so
//! that a late helper finds nothing to do. A side that lies in it spoils this transfer, nothing
//! else: a chunk is one of those that are there.

use super::ring::{RingSegment, LINE};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Words of a ring.
pub(crate) const WORDS: u8 = 8;
/// Where they are, a line for each.
const AT: usize = 16 * LINE;
/// Bits of a word: chunks taken, chunks done, which transfer.
const DONE: u32 = 24;
const ROUND: u32 = 48;
const MASK: u64 = (1 << DONE) - 1;
/// Bit of the chunks taken: there are no more.
const STOPPED: u64 = 1 << (DONE - 1);
/// Somebody else takes a chunk at the same time, but not for ever.
const TRIES: u32 = 1000;

/// A transfer of so many chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitCopy {
    pub word: u8,
    pub round: u16,
    pub chunks: u32,
}

impl SplitCopy {
    /// As one number, for the other side.
    pub fn packed(self) -> u64 {
        u64::from(self.word) | u64::from(self.round) << 16 | u64::from(self.chunks) << 32
    }

    /// From what the other side says.
    pub fn of(packed: u64) -> SplitCopy {
        SplitCopy {
            word: packed as u8,
            round: (packed >> 16) as u16,
            chunks: (packed >> 32) as u32 & (STOPPED - 1) as u32,
        }
    }

    fn at(self, ring: &RingSegment) -> &AtomicU64 {
        ring.word(AT + usize::from(self.word % WORDS) * LINE)
    }

    /// Nothing is taken yet.
    pub(super) fn open(self, ring: &RingSegment) {
        self.at(ring).store(u64::from(self.round) << ROUND, Release);
    }

    /// Copies up to `most` chunks, as long as there are some: how many; `None` when `copy` could
    /// not do one.
    pub(super) fn work(
        self,
        ring: &RingSegment,
        most: u32,
        mut copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut n = 0;
        while n < most {
            let Some(c) = self.take(ring) else { break };
            if !copy(c) {
                return None;
            }
            self.did(ring);
            n += 1;
        }
        Some(n)
    }

    /// Takes a chunk to copy; `None` when there are no more.
    fn take(self, ring: &RingSegment) -> Option<u32> {
        let word = self.at(ring);
        for _ in 0..TRIES {
            let w = word.load(Acquire);
            let next = (w & MASK) as u32;
            if (w >> ROUND) as u16 != self.round || next >= self.chunks {
                return None;
            }
            if word.compare_exchange(w, w + 1, AcqRel, Relaxed).is_ok() {
                return Some(next);
            }
        }
        None
    }

    /// A chunk is copied.
    fn did(self, ring: &RingSegment) {
        self.at(ring).fetch_add(1 << DONE, AcqRel);
    }

    /// No more chunks are taken; `false` while one that was is not copied yet. To be asked again
    /// until then.
    pub(super) fn stop(word: u8, ring: &RingSegment) -> bool {
        let at = SplitCopy {
            word,
            round: 0,
            chunks: 0,
        };
        let word = at.at(ring);
        let w = word.fetch_or(STOPPED, AcqRel);
        (w >> DONE & MASK) >= (w & MASK & !STOPPED)
    }

    /// Whether all are.
    pub(super) fn over(self, ring: &RingSegment) -> bool {
        let w = self.at(ring).load(Acquire);
        (w >> DONE & MASK) as u32 >= self.chunks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_is_taken_once_and_late_helpers_find_none() {
        let ring = RingSegment::create().unwrap();
        let share = SplitCopy {
            word: 3,
            round: 7,
            chunks: 1000,
        };
        assert_eq!(SplitCopy::of(share.packed()), share);
        share.open(&ring);
        let takes = || {
            let mut mine = Vec::new();
            let n = share.work(&ring, 1000, |c| {
                mine.push(c);
                true
            });
            assert_eq!(n, Some(mine.len() as u32));
            mine
        };
        let none = share.work(&ring, 0, |_| panic!("a chunk that nobody wants"));
        assert_eq!(none, Some(0));
        let mut all = std::thread::scope(|s| {
            let other = s.spawn(takes);
            let mut all = takes();
            all.append(&mut other.join().unwrap());
            all
        });
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<u32>>());
        assert!(share.over(&ring));
        let next = SplitCopy { round: 8, ..share };
        next.open(&ring);
        assert_eq!(share.take(&ring), None);
        assert_eq!(next.take(&ring), Some(0));
        assert!(!next.over(&ring));
        // Who stops waits for the chunk that is being copied.
        assert!(!SplitCopy::stop(3, &ring));
        assert_eq!(next.take(&ring), None);
        next.did(&ring);
        assert!(SplitCopy::stop(3, &ring));
    }
}
