//! The words of a ring by which its two sides agree on accesses: the lock, how far they are done,
//! and how many have failed.

use crate::shm::ring::{RingSegment, LINE};
use crate::transport::Status;
use core::sync::atomic::Ordering::*;

/// Offsets of the lock's holder, of the position up to which accesses are done, and of the number
/// of failures.
pub(crate) const RING_LOCK: usize = 4 * LINE;
pub(crate) const DONE: usize = RING_LOCK + 8;
const FAULTS: usize = RING_LOCK + 16;
pub(crate) const FREE: u64 = 0;
pub(crate) const TARGET: u64 = 1;
pub(crate) const ORIGIN: u64 = 2;
/// Limit for the wait of an owner that closes while the target works on accesses or chunks.
pub(crate) const CLOSE_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Status of an access that failed, in its record's word.
const STATUS: u32 = 48;

/// In place of a status: the access was not done, and cannot be done from here; the adapter is to
/// do it.
pub(crate) const UNSUPPORTED: u8 = u8::MAX;

/// How an access ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RmaOutcome {
    Status(Status),
    /// Nothing was done, and the adapter is to do it.
    Unsupported,
}

/// The status in a record's word.
pub(crate) fn outcome_of(word: u64) -> RmaOutcome {
    RmaOutcome::Status(match (word >> STATUS) as u8 {
        0 => Status::Ok,
        UNSUPPORTED => return RmaOutcome::Unsupported,
        code => Status::from_code(code.into()).unwrap_or(Status::RemoteAbort),
    })
}

/// How far the accesses of a ring are done, and how many have failed.
#[inline]
pub(crate) fn done(ring: &RingSegment) -> (u64, u64) {
    let done = ring.word(DONE).load(Acquire);
    (done, ring.word(FAULTS).load(Relaxed))
}

/// Locks a ring for its writer, and leaves it so.
#[cfg(test)]
pub(crate) fn abandon(ring: &RingSegment) {
    ring.word(RING_LOCK).store(ORIGIN, SeqCst);
}

/// Records in the word at offset `word` that the access failed.
pub(crate) fn refuse(ring: &RingSegment, word: usize, code: u8) {
    let w = ring.word(word);
    w.store(w.load(Relaxed) | u64::from(code) << STATUS, Relaxed);
    ring.word(FAULTS).fetch_add(1, Relaxed);
}
