//! Accesses that have been written into a ring and are not known to be done.
//!
//! Each access carries a [`Completion`], which a poll returns when the access ends. The record of
//! an access is kept until then, because it holds the answer to a read. This module decides which
//! accesses go into the ring at all, by the course of the last ones: a target that does not poll is
//! waited for once, for [`WAIT`], and then bypassed for a while.

use super::{done, is_target_only, Executed, Initiator, LocalBuffer, RmaOutcome};
use crate::core::fifo::Fifo;
use crate::device::host::now;
use crate::hmem::Piece;
use crate::shm::events::EventThread;
use crate::shm::kind;
use crate::shm::ring::RingWriter;
use crate::transport::{Completion, Flow, Status};
use core::sync::atomic::{compiler_fence, Ordering::*};
use std::collections::VecDeque;
use std::sync::Arc;

/// Nanoseconds without progress after which a target is not waited for: longer than the pauses of a
/// process on a shared processor, some 130 us.
const WAIT: u64 = 300_000;
/// The clock is read once every so many polls without progress.
const CLOCK_EVERY: u32 = 64;
/// Accesses that bypass the ring after a target did not poll: the first time, and at most. Doubled
/// each time.
const BACKOFF: (u32, u32) = (8, 8192);
/// Maximum operations per fallback; bounds how long a target that polls again is bypassed.
const BATCH: usize = 8;
/// Every so many unsignaled accesses one goes into the ring; from then on the events thread polls
/// for them.
const BURST: u32 = 16;

/// A read, write or atomic of a peer's memory, which its [`Completion`] names.
#[derive(Clone, Copy)]
pub(crate) struct RmaRequest<'a> {
    /// An access of [`kind`].
    pub kind: u8,
    /// The caller's flags, without the highest bit.
    pub flags: u8,
    /// The caller's word.
    pub word: u64,
    /// What is written, or operands.
    pub data: LocalBuffer<'a>,
    /// Where what was read goes.
    pub into: Piece,
    /// The application may never poll for its end.
    pub unsignaled: bool,
}

#[derive(Clone, Copy, Default)]
struct OutstandingOp {
    start: u64,
    end: u64,
    into: Piece,
    /// What is written, unless the application has it back already.
    from: Piece,
    write: bool,
    flags: u8,
    done: Completion,
    atomic: bool,
}

/// A read or write that cannot be done through shared memory after all: the adapter is to do it.
pub struct AdapterRetry {
    pub done: Completion,
    pub write: bool,
    /// As in [`RmaRequest::flags`] and [`RmaRequest::word`].
    pub flags: u8,
    pub word: u64,
    pub mem: Piece,
    /// What is written, where the application has its memory back.
    pub bytes: Option<Box<[u8]>>,
}

impl OutstandingOp {
    #[cold]
    fn again(&self, ring: &RingWriter) -> AdapterRetry {
        let (word, data) = ring.contents(self.start, self.done.len);
        let lent = if self.write { self.from } else { self.into };
        AdapterRetry {
            done: self.done,
            write: self.write,
            flags: self.flags,
            word,
            mem: lent,
            bytes: (self.write && lent.is_empty()).then_some(data),
        }
    }
}

/// The outstanding accesses of one ring.
#[derive(Default)]
pub(crate) struct OutstandingRma {
    ops: Fifo<OutstandingOp>,
    /// The position that the target reported last, and how many failures have been reported.
    done: u64,
    faults: u64,
    /// Atomics and messages among them: what comes after one cannot be executed from here.
    atomics: u32,
    /// Accesses that are still to bypass the ring, and the length of the last back-off.
    backoff_left: u32,
    backoff: u32,
    /// Its reader was polling when last tested, or was to be woken.
    awake: bool,
    /// [`Initiator::count`] at the last poll.
    back: u64,
    /// Unsignaled accesses that were executed from here.
    unsignaled: u32,
    /// Polls without progress, and since when (nanoseconds).
    empty_polls: u32,
    since: u64,
}

impl OutstandingRma {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Counts the back-off down. Returns whether reads and writes go into the ring at present.
    #[inline]
    pub(crate) fn admit_rma(&mut self, ring: &RingWriter) -> bool {
        if self.backoff_left > 0 {
            self.backoff_left -= 1;
            return false;
        }
        if ring.reader_armed() && self.awake {
            // The reader has not polled for long, or found no record: the next attempt follows
            // after the back-off of a failure, and wakes the reader.
            self.awake = false;
            self.back_off();
            return false;
        }
        self.atomics == 0
    }

    fn back_off(&mut self) {
        self.backoff = (2 * self.backoff).clamp(BACKOFF.0, BACKOFF.1);
        self.backoff_left = self.backoff;
    }

    /// Counts the back-off down. Returns whether an access is to go into the ring.
    #[inline]
    pub(crate) fn admit_request(
        &mut self,
        a: &RmaRequest,
        ring: &RingWriter,
        initiator: Option<&Initiator>,
    ) -> bool {
        if is_target_only(a.kind) {
            return true;
        }
        let Some(initiator) = initiator else {
            return false;
        };
        if !self.admit_rma(ring) {
            return false;
        }
        if a.unsignaled && !initiator.watched.load(Relaxed) {
            self.unsignaled += 1;
            return self.unsignaled >= BURST;
        }
        true
    }

    /// Tracks an access that was written at `start`. Returns whether it is the only one.
    #[inline]
    pub(crate) fn track(
        &mut self,
        ring: &mut RingWriter,
        initiator: Option<&Arc<Initiator>>,
        a: &RmaRequest,
        start: u64,
        done: Completion,
        thread: &'static EventThread,
    ) -> bool {
        // The access wakes a blocked reader.
        self.awake = true;
        let first = self.ops.is_empty();
        let end = ring.at();
        let atomic = is_target_only(a.kind);
        if first {
            ring.keep(Some(start));
            // Everything before this access is done.
            self.done = self.done.max(start);
            (self.empty_polls, self.since) = (0, 0);
        }
        if atomic {
            self.atomics += 1;
        } else if let Some(l) = initiator {
            l.track(start, end, self.done);
            // `watched` is read now: the thread checks once more after it has cleared that flag.
            compiler_fence(SeqCst);
            if a.unsignaled && !l.watched.load(Relaxed) {
                self.unsignaled = 0;
                thread.watch_initiator(l);
            }
        }
        self.ops.push(OutstandingOp {
            start,
            end,
            into: a.into,
            from: match a.data {
                LocalBuffer::Piece(p) if !a.unsignaled => p,
                _ => Piece::EMPTY,
            },
            write: a.kind == kind::WRITE,
            flags: a.flags,
            done,
            atomic,
        });
        first
    }

    /// Offers the accesses that have ended to `each`, and returns its answer to the last one.
    /// `again` gets the accesses that the adapter is to do.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        ring: &mut RingWriter,
        initiator: Option<&Initiator>,
        mut again: impl FnMut(AdapterRetry),
        mut each: impl FnMut(&Completion, Status) -> Flow,
    ) -> Flow {
        let (done, faults) = done(ring.file());
        let Some(first) = self.ops.get(0) else {
            return Flow::Taken;
        };
        if done < first.end {
            self.count_empty_poll(ring, initiator);
            return Flow::Taken;
        }
        self.done = done.min(ring.at());
        (self.empty_polls, self.since) = (0, 0);
        let mut flow = Flow::Taken;
        while let Some(d) = self
            .ops
            .get(0)
            .filter(|d| d.end <= done && flow == Flow::Taken)
        {
            let mut status = Status::Ok;
            if faults != self.faults {
                match ring.access_outcome(d.start) {
                    RmaOutcome::Status(s) => status = s,
                    RmaOutcome::Unsupported => {
                        again(d.again(ring));
                        self.faults = self.faults.wrapping_add(1);
                        self.atomics -= u32::from(d.atomic);
                        self.ops.drop_first();
                        continue;
                    }
                }
            }
            if status == Status::Ok && !d.into.is_empty() {
                ring.copy_answer(d.start, d.into);
            }
            flow = each(&d.done, status);
            if flow == Flow::Deferred {
                break;
            }
            // A failure may be counted before its access is reported as done: `faults` counts the
            // failures that were offered.
            if status != Status::Ok {
                self.faults = self.faults.wrapping_add(1);
            }
            self.atomics -= u32::from(d.atomic);
            self.ops.drop_first();
        }
        let kept = self.ops.get(0).map(|d| d.start);
        ring.keep(kept);
        if let (Some(l), Some(at)) = (initiator, kept) {
            l.begins(at);
        }
        if flow == Flow::Taken {
            self.update_backoff(initiator);
        }
        flow
    }

    /// Clears the back-off when the target did the last accesses itself.
    #[inline]
    fn update_backoff(&mut self, initiator: Option<&Initiator>) {
        let Some(l) = initiator else { return };
        let back = l.count();
        if back == self.back {
            self.backoff = 0;
            return;
        }
        self.back = back;
        self.back_off();
    }

    /// Counts a poll without progress; after many, executes what the target does not.
    #[inline]
    pub(crate) fn count_empty_poll(&mut self, ring: &RingWriter, initiator: Option<&Initiator>) {
        self.empty_polls += 1;
        if self.empty_polls.is_multiple_of(CLOCK_EVERY) {
            self.fall_back(ring, initiator);
        }
    }

    #[cold]
    fn fall_back(&mut self, ring: &RingWriter, initiator: Option<&Initiator>) {
        let Some(l) = initiator else { return };
        let t = now();
        let moved = done(ring.file()).0 > self.done;
        if self.since == 0 || moved {
            self.since = t;
        } else if t.saturating_sub(self.since) >= WAIT {
            match l.execute_pending(BATCH) {
                Executed::LockHeld => self.since = t,
                // Nothing can be executed from here: later accesses bypass the ring.
                Executed::Count(0) => {
                    self.since = t;
                    self.back_off();
                }
                Executed::Count(_) => {}
            }
        }
    }

    /// Executes whatever can be executed from here, before the owner blocks. `false` when the end
    /// of the rest raises no event.
    pub(crate) fn settle(&mut self, ring: &RingWriter, initiator: Option<&Initiator>) -> bool {
        if let Some(l) = initiator {
            while l.pending().is_some() {
                match l.execute_pending(usize::MAX) {
                    Executed::Count(n) if n > 0 => self.back = l.count(),
                    // The target holds the lock, or only atomics are left.
                    _ => break,
                }
            }
        }
        let Some(d) = self.ops.get(0) else {
            return true;
        };
        let ended = || done(ring.file()).0 >= d.end;
        // A target wakes initiators that wait for atomics only.
        !ended() && d.atomic && ring.request_done_wakeup(ended)
    }

    /// Ends all accesses of a peer that is gone: those that are not done fail.
    pub(crate) fn abort(
        &mut self,
        ring: &mut RingWriter,
        lost: &mut VecDeque<(Completion, Status)>,
    ) {
        // Nothing is retried over the adapter for a peer that is gone.
        let mut refused = Vec::new();
        self.poll(
            ring,
            None,
            |a| refused.push(a.done),
            |done, status| {
                lost.push_back((*done, status));
                Flow::Taken
            },
        );
        let gone = Status::RemoteUnresponsive;
        lost.extend(refused.into_iter().map(|done| (done, gone)));
        while let Some(d) = self.ops.remove(0) {
            lost.push_back((d.done, gone));
        }
    }
}
