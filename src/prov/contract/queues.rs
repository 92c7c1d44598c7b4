//! Completion queues and counters (fi_cq(3), fi_cntr(3)), by number. `FI_EBADF` for a number there
//! is none of.

use super::completion::{Entry, ErrEntry};
use crate::core::Result;
use crate::device::wait::WaitSet;
use crate::types::*;
use std::sync::Arc;

/// A completion queue or counter that was opened.
pub struct OpenedQueue {
    /// Its number.
    pub id: u32,
    /// Entries it has; a counter has none.
    pub size: usize,
    /// What its readers wait on; `None` with FI_WAIT_NONE.
    pub wait: Option<Arc<WaitSet>>,
}

impl OpenedQueue {
    /// Descriptor of its wait object, which owns it and keeps it open as long as the queue.
    pub fn fd(&self) -> Option<i32> {
        self.wait.as_ref().map(|w| w.fd())
    }
}

/// Completion queues of a domain.
pub trait CompletionQueues {
    /// Opens a queue of at least `size` entries; 0: the provider's default.
    fn open_cq(self: &Arc<Self>, size: usize, wait_obj: fi_wait_obj) -> Result<OpenedQueue>;
    /// Closes it; `FI_EBUSY` while an endpoint reports there.
    fn close_cq(&self, cq: u32) -> Result<()>;

    /// fi_cq_read(3): gives up to `count` completions to `each`, with the place of each in the
    /// caller's buffer; makes progress first when there are none. `NAMED`: the caller asks for
    /// source addresses, whose look-up may be expensive. `FI_EAGAIN` when there are none,
    /// `FI_EAVAIL` when an error is next.
    fn read_cq<const NAMED: bool>(
        &self,
        cq: u32,
        count: usize,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize>;
    /// fi_cq_sread(3): waits up to `timeout_ms` (negative: without limit) for `threshold`
    /// completions and takes them out. `FI_EAGAIN` after the time-out or fi_cq_signal(3).
    fn sread_cq(
        &self,
        cq: u32,
        count: usize,
        threshold: usize,
        timeout_ms: i32,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize>;
    /// fi_cq_readerr(3): `FI_EAGAIN` when the next completion is no error.
    fn read_cq_error(&self, cq: u32) -> Result<ErrEntry>;
    /// What a provider error means, without the details of one completion (fi_cq_strerror(3)).
    fn error_text(prov_errno: i32) -> String;

    /// Makes progress; returns whether a completion or an error can be read then.
    fn find_completions(&self, cq: u32) -> Result<bool>;
    /// Prepares to wait (fi_trywait(3)). Returns for how many milliseconds a caller may sleep
    /// before it has to make progress (negative: without limit). `FI_EAGAIN` when there is
    /// something to read, or progress to be made first.
    fn arm_cq(&self, cq: u32) -> Result<i32>;
    /// fi_cq_signal(3): one blocked reader, or the next, returns. `FI_ENOSYS` without a wait
    /// object.
    fn signal_cq(&self, cq: u32) -> Result<()>;
}

/// Counters of a domain.
pub trait Counters {
    /// Opens a counter; its `size` is 0.
    fn open_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
    ) -> Result<OpenedQueue>;
    /// Closes it; `FI_EBUSY` while an endpoint, a region or deferred work uses it.
    fn close_cntr(&self, cntr: u32) -> Result<()>;
    /// How many operations have succeeded and how many failed, after progress of its endpoints.
    fn read_cntr(&self, cntr: u32) -> Result<(u64, u64)>;
    /// What [`Counters::read_cntr`] returned last.
    fn seen_cntr(&self, cntr: u32) -> Result<(u64, u64)>;
    /// fi_cntr_add(3), or with `set` fi_cntr_set(3); with `errors` the same for the number of
    /// errors.
    fn change_cntr(&self, cntr: u32, errors: bool, set: bool, n: u64) -> Result<()>;
    /// fi_cntr_wait(3): until the value is at least `threshold`. `FI_ETIMEDOUT` after `timeout_ms`
    /// (negative: without limit), `FI_EAVAIL` when an operation failed meanwhile.
    fn wait_cntr(&self, cntr: u32, threshold: u64, timeout_ms: i32) -> Result<()>;
    /// Prepares to wait, as [`CompletionQueues::arm_cq`]: `FI_EAGAIN` when the counter has reached
    /// `threshold` or counts more errors than `errors` already. No poll may come between this call
    /// and the wait: a poll disarms the counter.
    fn arm_cntr(&self, cntr: u32, threshold: u64, errors: u64) -> Result<i32>;
}
