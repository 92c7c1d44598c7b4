//! The target's side of accesses, as part of [`RingReader`](crate::shm::ring::RingReader).

use super::lock::{outcome_of, refuse, RmaOutcome, DONE, FREE, RING_LOCK, TARGET};
use crate::shm::kind;
use crate::shm::ring::RingSegment;
use crate::transport::Status;
use core::sync::atomic::Ordering::*;

/// The target reports its progress after so many accesses or bytes, and at the end of a poll.
const REPORT_EVERY: u32 = 8;
const REPORT_BYTES: usize = 4 << 10;

/// See the module text.
#[derive(Default)]
pub(crate) struct TargetLock {
    held: bool,
    /// The writer has done the accesses before this position.
    done: u64,
    unreported: u32,
    /// The writer may block until the taken accesses are done.
    wake_writer: bool,
    /// The writer is gone, and a lock that it holds is void.
    writer_gone: bool,
}

impl TargetLock {
    /// Locks the accesses, unless that is so already; `false` when the writer works on them.
    #[inline]
    pub(crate) fn take(&mut self, ring: &RingSegment) -> bool {
        if self.held {
            return true;
        }
        let claim = ring.word(RING_LOCK);
        self.held = claim
            .compare_exchange(FREE, TARGET, Acquire, Relaxed)
            .is_ok();
        if !self.held && self.writer_gone {
            // An access that the writer has begun is repeated: the same bytes to the same place.
            claim.store(TARGET, Relaxed);
            self.held = true;
        }
        if self.held {
            self.done = ring.word(DONE).load(Relaxed);
        }
        self.held
    }

    /// Ignores the writer's lock from now on: the writer is gone.
    pub(crate) fn ignore_writer_lock(&mut self) {
        self.writer_gone = true;
    }

    /// Whether the writer has done the record at `at` already.
    #[inline]
    pub(crate) fn is_done(&self, at: u64) -> bool {
        at < self.done
    }

    /// Counts the record before `at`, of `len` bytes, as done; reports the progress now and then.
    #[inline]
    pub(crate) fn advance(&mut self, ring: &RingSegment, at: u64, len: usize) {
        self.unreported += 1;
        if self.unreported >= REPORT_EVERY || len >= REPORT_BYTES {
            self.unreported = 0;
            ring.word(DONE).store(at.max(self.done), Release);
        }
    }

    /// Notes that the writer may block until the taken accesses are done.
    pub(crate) fn wake_writer(&mut self) {
        self.wake_writer = true;
    }

    /// Unlocks, and reports everything before `at` as done. Returns whether the writer may be
    /// blocked.
    #[inline]
    pub(crate) fn settle(&mut self, ring: &RingSegment, at: u64) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        self.unreported = 0;
        ring.word(DONE).store(at.max(self.done), Release);
        ring.word(RING_LOCK).store(FREE, Release);
        core::mem::take(&mut self.wake_writer)
    }
}

/// The target's result of an access, in the access's record.
#[derive(Clone, Copy)]
pub struct RmaResponse<'a> {
    pub(in crate::shm) map: &'a RingSegment,
    /// Offset of the record's word.
    pub(in crate::shm) word: usize,
}

/// Whether only the target may execute the access.
#[inline]
pub(crate) fn is_target_only(kind: u8) -> bool {
    kind > kind::READ
}

impl RmaResponse<'_> {
    /// Status of an access that the writer has done.
    pub fn status(&self) -> core::result::Result<(), Status> {
        match outcome_of(self.map.word(self.word).load(Relaxed)) {
            RmaOutcome::Status(Status::Ok) => Ok(()),
            RmaOutcome::Status(s) => Err(s),
            RmaOutcome::Unsupported => Err(Status::RemoteAbort),
        }
    }

    /// Reports that the access failed.
    #[cold]
    pub fn refuse(&self, status: Status) {
        refuse(self.map, self.word, status as u8);
    }
}
