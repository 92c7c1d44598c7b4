//! Completion queues (fi_cq(3)).
//!
//! Completions and errors come out in the order they went in. A queue that is full grows: nothing
//! is overwritten and nothing is lost (FI_RM_ENABLED). Entries are written into the caller's buffer
//! by `abi`, in the queue's format; an error keeps its text until the next one is read.

use super::wait_object::WaitObject;
use crate::core::fifo::Fifo;
use crate::core::yielding::YieldBackoff;
use crate::core::Result;
use crate::device::any::ExternalQueue;
use crate::device::wait::WaitSet;
use crate::prov::contract::{Entry, ErrEntry};
use crate::types::*;
use std::collections::VecDeque;
use std::sync::Arc;

/// One completion queue.
pub(crate) struct Cq {
    pub size: usize,
    pub wait: WaitObject,
    /// fi_cq_signal(3) was called and no reader has noticed yet.
    pub signaled: bool,
    /// Reads that found nothing since the last that did.
    pub backoff: YieldBackoff,
    /// The adapter writes their completions into memory of the application.
    pub external: Option<Arc<ExternalQueue>>,
    entries: Fifo<Entry>,
    /// Errors with the number of completions that come before each.
    errors: VecDeque<(u64, ErrEntry)>,
    put: u64,
    taken: u64,
    /// Reads in a row that took queued completions without progress.
    unmoved: u32,
}

/// Reads in a row that take queued completions before a read makes progress again.
const UNMOVED: u32 = 16;

/// Size of a queue whose size was left open.
pub(crate) const DEFAULT_SIZE: usize = 8192;

impl Cq {
    /// An empty queue.
    pub(crate) fn new(size: usize, wait_obj: fi_wait_obj) -> Result<Cq> {
        let size = if size == 0 { DEFAULT_SIZE } else { size };
        Ok(Cq {
            size,
            wait: WaitObject::new(wait_obj)?,
            signaled: false,
            backoff: YieldBackoff::default(),
            external: None,
            entries: Fifo::with_capacity(size.min(1024)),
            errors: VecDeque::new(),
            put: 0,
            taken: 0,
            unmoved: 0,
        })
    }

    /// Adds a completion.
    #[inline(always)]
    pub(crate) fn push(&mut self, e: Entry) {
        self.entries.push(e);
        self.put += 1;
        self.wait.wake();
    }

    /// Arms the wait object ([`WaitObject::arm`]) unless there is something to read.
    pub(crate) fn arm(&mut self) -> Result<Arc<WaitSet>> {
        let found = self.has_any() || self.signaled;
        self.wait.arm(found)
    }

    /// Has one blocked reader, or the next, return (fi_cq_signal(3)). `FI_ENOSYS` without a wait
    /// object.
    pub(crate) fn interrupt(&mut self) -> Result<()> {
        let w = self.wait.set.as_ref().ok_or(FI_ENOSYS)?;
        self.signaled = true;
        w.signal();
        Ok(())
    }

    /// Notes that the endpoints have made progress.
    #[inline]
    pub(crate) fn moved(&mut self) {
        self.unmoved = 0;
    }

    /// Adds an error.
    pub(crate) fn push_error(&mut self, e: ErrEntry) {
        crate::info_log!(FI_LOG_CQ, "error completion: {}", e.text);
        self.errors.push_back((self.put, e));
        self.wait.wake();
    }

    /// Completions that can be read before the next error.
    pub(crate) fn ready(&self) -> usize {
        match self.errors.front() {
            Some((before, _)) => (before - self.taken.min(*before)) as usize,
            None => self.entries.len(),
        }
    }

    /// Whether the next thing to read is an error.
    pub(crate) fn error_next(&self) -> bool {
        self.errors
            .front()
            .is_some_and(|(before, _)| *before <= self.taken)
    }

    /// Whether anything can be read.
    pub(crate) fn has_any(&self) -> bool {
        !self.entries.is_empty() || !self.errors.is_empty()
    }

    /// As [`Cq::take`], where there are completions and no errors. Returns 0 when the caller is to
    /// make progress first, now and then even with completions queued: an application that posts
    /// and reads in turn finds one every time.
    #[inline(always)]
    pub(crate) fn take_ready(&mut self, count: usize, each: impl FnMut(usize, &Entry)) -> usize {
        if self.entries.is_empty() || !self.errors.is_empty() || self.unmoved >= UNMOVED {
            return 0;
        }
        self.unmoved += 1;
        self.take(count, each)
    }

    /// Counts a read that has found nothing; `None` when the caller is to yield the processor
    /// ([`YieldBackoff`]).
    #[inline]
    pub(crate) fn note_empty_poll(&mut self) -> Option<Result<usize>> {
        match self.backoff.note_empty_poll() {
            true => None,
            false => Some(Err(FI_EAGAIN)),
        }
    }

    /// Takes up to `count` completions out, in order.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: usize, each: impl FnMut(usize, &Entry)) -> usize {
        let n = self.entries.take(self.ready().min(count), each);
        self.taken += n as u64;
        n
    }

    /// Takes the next error out, if it is its turn.
    pub(crate) fn take_error(&mut self) -> Option<ErrEntry> {
        if self.error_next() {
            self.errors.pop_front().map(|(_, e)| e)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_place_and_nothing_is_lost() {
        let mut q = Cq::new(2, FI_WAIT_NONE).unwrap();
        for i in 0..5 {
            if i == 3 {
                q.push_error(ErrEntry {
                    err: FI_EIO,
                    ..ErrEntry::default()
                });
            }
            q.push(Entry {
                context: i,
                ..Entry::default()
            });
        }
        let mut seen = Vec::new();
        assert_eq!(q.take(10, |_, e| seen.push(e.context)), 3);
        assert!(q.error_next());
        assert_eq!(q.take(10, |_, _| ()), 0);
        assert_eq!(q.take_error().unwrap().err, FI_EIO);
        assert!(q.take_error().is_none());
        assert_eq!(q.take(1, |_, e| seen.push(e.context)), 1);
        assert_eq!(q.take(9, |_, e| seen.push(e.context)), 1);
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        assert!(!q.has_any());
    }
}
