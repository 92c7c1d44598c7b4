//! The target's side of accesses, as part of [`RingReader`](crate::shm::ring::RingReader).

use super::lock::{outcome_of, refuse, RmaOutcome, DONE, FREE, RING_LOCK, TARGET};
use crate::shm::kind;
use crate::shm::ring::RingSegment;
use crate::transport::Status;
use core::sync::atomic::Ordering::*;

/// The target reports its progress after so many accesses or bytes, and when it has no more.
const REPORT_EVERY: u32 = 8;
const REPORT_BYTES: usize = 4 << 10;

/// See the module text.
#[derive(Default)]
pub(crate) struct TargetLock {
    held: bool,
    /// Whatever lies before this has been done by the writer.
    done: u64,
    unreported: u32,
    /// The writer may block until these are done.
    wakes: bool,
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
            // What it was doing is done again: the same bytes to the same place.
            claim.store(TARGET, Relaxed);
            self.held = true;
        }
        if self.held {
            self.done = ring.word(DONE).load(Relaxed);
        }
        self.held
    }

    /// The writer is gone.
    pub(crate) fn inherit(&mut self) {
        self.writer_gone = true;
    }

    /// Whether the record at `at` is not to be done any more.
    #[inline]
    pub(crate) fn is_done(&self, at: u64) -> bool {
        at < self.done
    }

    /// The record before `at`, of `len` bytes, is done.
    #[inline]
    pub(crate) fn advance(&mut self, ring: &RingSegment, at: u64, len: usize) {
        self.unreported += 1;
        if self.unreported >= REPORT_EVERY || len >= REPORT_BYTES {
            self.unreported = 0;
            ring.word(DONE).store(at.max(self.done), Release);
        }
    }

    /// The writer may block until what was taken is done.
    pub(crate) fn wakes(&mut self) {
        self.wakes = true;
    }

    /// Unlocks; everything before `at` is done. Whether the writer may be blocked.
    #[inline]
    pub(crate) fn settle(&mut self, ring: &RingSegment, at: u64) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        self.unreported = 0;
        ring.word(DONE).store(at.max(self.done), Release);
        ring.word(RING_LOCK).store(FREE, Release);
        core::mem::take(&mut self.wakes)
    }
}

/// What the target does with an access, at the record's offsets.
#[derive(Clone, Copy)]
pub struct RmaResponse<'a> {
    pub(in crate::shm) map: &'a RingSegment,
    /// Of the record's word.
    pub(in crate::shm) word: usize,
}

/// Whether an access is the target's alone.
#[inline]
pub(crate) fn is_target_s(kind: u8) -> bool {
    kind > kind::READ
}

impl RmaResponse<'_> {
    /// How it went when the writer did it.
    pub fn status(&self) -> core::result::Result<(), Status> {
        match outcome_of(self.map.word(self.word).load(Relaxed)) {
            RmaOutcome::Status(Status::Ok) => Ok(()),
            RmaOutcome::Status(s) => Err(s),
            RmaOutcome::Unsupported => Err(Status::RemoteAbort),
        }
    }

    /// It failed.
    #[cold]
    pub fn refuse(&self, status: Status) {
        refuse(self.map, self.word, status as u8);
    }
}
