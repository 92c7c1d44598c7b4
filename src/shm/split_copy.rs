//! A split copy: two processes copy a long message, read or write, each taking the next chunk
//! whenever it polls.
//!
//! The word that counts the chunks is in the ring of the side that opens the copy: the receiver of
//! a message, the initiator of an access. A chunk that could not be copied ends the copy for both.
//! The word's upper part numbers the transfers that use the word, so that a late helper finds no
//! chunk to copy. A peer that writes false counts spoils this transfer only: the number of every
//! chunk is checked.

use super::ring::{RingSegment, LINE};
use core::sync::atomic::{AtomicU64, Ordering::*};

/// Words of a ring that count chunks.
pub(crate) const WORDS: u8 = 8;
/// Offset of the first word; each word has a cache line of its own.
const AT: usize = 16 * LINE;
/// Bits of a word: chunks taken, chunks done (from `DONE` on), number of the transfer (from `ROUND`
/// on).
const DONE: u32 = 24;
const ROUND: u32 = 48;
const MASK: u64 = (1 << DONE) - 1;
/// Bit of the count of chunks taken: no more chunks may be taken.
const STOPPED: u64 = 1 << (DONE - 1);
/// Bit of the count of chunks taken: a chunk could not be copied, and no more may be taken.
const FAILED: u64 = 1 << (DONE - 2);
/// Attempts to take a chunk while the peer takes chunks, too; bounded against a hostile peer.
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

    /// From the number that the other side sent.
    pub fn of(packed: u64) -> SplitCopy {
        SplitCopy {
            word: packed as u8,
            round: (packed >> 16) as u16,
            chunks: (packed >> 32) as u32 & (FAILED - 1) as u32,
        }
    }

    fn at(self, ring: &RingSegment) -> &AtomicU64 {
        ring.word(AT + usize::from(self.word % WORDS) * LINE)
    }

    /// Initialises the word: no chunk is taken.
    pub(super) fn open(self, ring: &RingSegment) {
        self.at(ring).store(u64::from(self.round) << ROUND, Release);
    }

    /// Copies up to `most` chunks while there are any. Returns how many, or `None` when `copy`
    /// failed.
    pub(super) fn work(
        self,
        ring: &RingSegment,
        most: u32,
        mut copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        let mut n = 0;
        while n < most {
            let Some(c) = self.take(ring) else { break };
            let copied = copy(c);
            if !copied {
                self.fail(ring);
            }
            self.mark_copied(ring);
            if !copied {
                return None;
            }
            n += 1;
        }
        Some(n)
    }

    /// Takes a chunk to copy; `None` when there are no more.
    pub(super) fn take(self, ring: &RingSegment) -> Option<u32> {
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

    /// Lets no more chunks be taken, because one cannot be copied.
    fn fail(self, ring: &RingSegment) {
        self.at(ring).fetch_or(FAILED, AcqRel);
    }

    /// Whether a chunk could not be copied.
    pub(super) fn failed(self, ring: &RingSegment) -> bool {
        self.at(ring).load(Acquire) & FAILED != 0
    }

    /// Counts a chunk that is copied, or given up: its taker touches it no more.
    pub(super) fn mark_copied(self, ring: &RingSegment) {
        self.at(ring).fetch_add(1 << DONE, AcqRel);
    }

    /// Lets no more chunks be taken. Returns `false` while a chunk that was taken is not copied
    /// yet; the caller then asks again.
    pub(super) fn stop(word: u8, ring: &RingSegment) -> bool {
        let at = SplitCopy {
            word,
            round: 0,
            chunks: 0,
        };
        let word = at.at(ring);
        let w = word.fetch_or(STOPPED, AcqRel);
        (w >> DONE & MASK) >= (w & MASK & !(STOPPED | FAILED))
    }

    /// Whether all chunks are copied.
    pub(super) fn over(self, ring: &RingSegment) -> bool {
        let w = self.at(ring).load(Acquire);
        w & FAILED == 0 && (w >> DONE & MASK) as u32 >= self.chunks
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
        let none = share.work(&ring, 0, |_| panic!("a chunk beyond `most`"));
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
        // The side that stops waits for the chunk that is being copied.
        assert!(!SplitCopy::stop(3, &ring));
        assert_eq!(next.take(&ring), None);
        next.mark_copied(&ring);
        assert!(SplitCopy::stop(3, &ring));
        // A chunk that could not be copied is not missed by the side that waits.
        let last = SplitCopy {
            round: 9,
            chunks: 1,
            ..share
        };
        last.open(&ring);
        assert_eq!(last.work(&ring, 1, |_| false), None);
        assert!(last.failed(&ring) && !last.over(&ring));
        assert!(SplitCopy::stop(3, &ring));
    }
}
