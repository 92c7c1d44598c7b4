//! Counters (fi_cntr(3)): how many operations succeeded and how many failed.

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
    pub wait_obj: fi_wait_obj,
    /// Counts bytes instead of operations.
    pub bytes: bool,
    pub wait: Option<Arc<WaitSet>>,
    pub armed: bool,
    /// With FI_WAIT_MUTEX_COND: wakes the domain's progress thread. Only that thread takes the
    /// mutex, and not under the domain's lock: a caller may hold the mutex during a call.
    pub progress_wake: Option<Arc<WaitSet>>,
    /// Something has come since the thread last signalled the condition.
    pub news: bool,
    pub eps: Vec<u32>,
}

impl Cntr {
    /// A counter at zero.
    pub(crate) fn new(events: fi_cntr_events, wait_obj: fi_wait_obj) -> Result<Cntr> {
        let wait = match wait_obj {
            FI_WAIT_NONE => None,
            _ => Some(Arc::new(WaitSet::new()?)),
        };
        Ok(Cntr {
            value: 0,
            errors: 0,
            external: None,
            wait_obj,
            bytes: events == FI_CNTR_EVENTS_BYTES,
            wait,
            armed: false,
            progress_wake: None,
            news: false,
            eps: Vec::new(),
        })
    }

    fn wake(&mut self) {
        if let Some(p) = &self.progress_wake {
            self.news = true;
            p.signal();
        }
        if self.armed {
            self.armed = false;
            if let Some(w) = &self.wait {
                w.signal();
            }
        }
    }

    /// Wakes blocked readers: another thread has taken the event that they wait for.
    pub(crate) fn signal(&mut self) {
        if self.armed {
            self.wake();
        }
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
        self.wake();
    }

    /// Adds to the errors.
    pub(crate) fn add_error(&mut self, n: u64) {
        self.errors = self.errors.wrapping_add(n);
        self.wake();
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
        self.wake();
        Ok(())
    }

    /// Lets an endpoint report here from now on; `fd` joins the wait set.
    pub(crate) fn attach(&mut self, ep: u32, fd: i32) {
        if !self.eps.contains(&ep) {
            self.eps.push(ep);
            if let Some(w) = &self.wait {
                w.add(fd);
            }
        }
    }

    /// An endpoint is closed.
    pub(crate) fn detach(&mut self, ep: u32, fd: i32) {
        self.eps.retain(|e| *e != ep);
        if let Some(w) = &self.wait {
            w.remove(fd);
        }
    }
}
