//! Counters (fi_cntr(3)): how many operations succeeded and how many failed.

use super::wait_object::WaitObject;
use crate::core::yielding::YieldBackoff;
use crate::core::Result;
use crate::device::any::ExternalCounter;
use crate::device::wait::WaitSet;
use crate::types::*;
use std::sync::Arc;

/// One counter.
pub(crate) struct Cntr {
    value: u64,
    errors: u64,
    /// The adapter counts in place of this counter.
    pub external: Option<Arc<ExternalCounter>>,
    /// Counts bytes instead of operations.
    pub bytes: bool,
    pub wait: WaitObject,
    /// The application waits for the wait object by itself (fi_trywait(3)), or has done so.
    pub watched: bool,
    /// When a program that reads in a loop yields its processor, and what it read last.
    pub backoff: YieldBackoff,
    last_read: (u64, u64),
}

impl Cntr {
    /// A counter at zero.
    pub(crate) fn new(events: fi_cntr_events, wait_obj: fi_wait_obj) -> Result<Cntr> {
        Ok(Cntr {
            value: 0,
            errors: 0,
            external: None,
            bytes: events == FI_CNTR_EVENTS_BYTES,
            wait: WaitObject::new(wait_obj)?,
            watched: false,
            backoff: YieldBackoff::default(),
            last_read: (0, 0),
        })
    }

    /// The value and the errors, for a program that reads them; and whether the caller is to yield
    /// the processor ([`YieldBackoff`]), because they have not changed for many reads.
    pub(crate) fn read(&mut self) -> ((u64, u64), bool) {
        let now = (self.value(), self.errors());
        if core::mem::replace(&mut self.last_read, now) != now {
            self.backoff.note_found();
            return (now, false);
        }
        (now, self.backoff.note_empty_poll())
    }

    /// The value and the errors, for a caller that waits.
    pub(crate) fn observe(&mut self) -> (u64, u64) {
        self.last_read = (self.value(), self.errors());
        self.last_read
    }

    /// What [`Cntr::read`] or [`Cntr::observe`] returned last.
    pub(crate) fn seen(&self) -> (u64, u64) {
        self.last_read
    }

    /// Arms the wait object ([`WaitObject::arm`]) while the value is less than `threshold` and the
    /// errors are `errors`.
    pub(crate) fn arm(&mut self, threshold: u64, errors: u64) -> Result<Arc<WaitSet>> {
        let found = self.value() >= threshold || self.errors() != errors;
        self.wait.arm(found)
    }

    /// An operation of `len` bytes has succeeded.
    #[inline]
    pub(crate) fn count(&mut self, len: usize) {
        self.add(if self.bytes { len as u64 } else { 1 });
    }

    /// How many operations have succeeded.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.external.as_ref().map_or(self.value, |c| c.read(false))
    }

    /// How many have failed.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.external.as_ref().map_or(self.errors, |c| c.read(true))
    }

    /// Adds to the value.
    pub(crate) fn add(&mut self, n: u64) {
        self.value = self.value.wrapping_add(n);
        self.wait.wake();
    }

    /// Adds to the errors.
    pub(crate) fn add_error(&mut self) {
        self.errors = self.errors.wrapping_add(1);
        self.wait.wake();
    }

    /// Sets (`set`) or raises the value, or the `errors`, for the application. `FI_EINVAL` for more
    /// than an adapter counts to.
    pub(crate) fn change(&mut self, errors: bool, set: bool, n: u64) -> Result<()> {
        if let Some(c) = &self.external {
            return c.change(errors, set, n);
        }
        let v = if errors {
            &mut self.errors
        } else {
            &mut self.value
        };
        *v = if set { n } else { v.wrapping_add(n) };
        self.wait.wake();
        Ok(())
    }
}
