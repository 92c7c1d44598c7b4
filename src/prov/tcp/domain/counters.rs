//! Counters of a domain (fi_cntr(3)).

use super::queues::shorter;
use super::TcpDomain;
use crate::core::Result;
use crate::device::wait::{wait_readable, WaitSet};
use crate::prov::contract::*;
use crate::prov::reports::cntr::Cntr;
use crate::prov::tcp::progress::{progress, settle};
use crate::types::*;
use std::sync::Arc;

impl TcpDomain {
    /// Runs `f` on a counter after progress of the domain.
    fn with_cntr<R>(&self, id: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R> {
        let mut s = self.lock_for_progress();
        progress(&mut s);
        s.cntrs.get_mut(id).map(f).ok_or(FI_EBADF)
    }

    /// Arms the wait object; returns it, and the longest wait in milliseconds.
    fn prepare(&self, id: u32, threshold: u64, errors: u64) -> Result<(Arc<WaitSet>, i32)> {
        let mut s = self.lock_for_progress();
        let quiet = settle(&mut s);
        let c = s.cntrs.get_mut(id).ok_or(FI_EBADF)?;
        let wait = c.wait.clone().ok_or(FI_ENOSYS)?;
        if c.value() >= threshold || c.errors() != errors {
            return Err(FI_EAGAIN);
        }
        wait.clear();
        c.armed = true;
        Ok((wait, if quiet { -1 } else { 10 }))
    }
}

impl Counters for TcpDomain {
    fn open_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
    ) -> Result<OpenedQueue> {
        let mut c = Cntr::new(events, wait_obj)?;
        if c.wait_obj == FI_WAIT_MUTEX_COND {
            c.progress_wake = Some(Arc::clone(&self.wake));
            self.start_progress()?;
        }
        let wait = c.wait.clone();
        let id = self.lock().cntrs.insert(c);
        Ok(OpenedQueue { id, size: 0, wait })
    }

    fn close_cntr(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s
            .eps
            .iter()
            .any(|(_, e)| e.cntrs.each().any(|(_, c)| c == id))
            || s.mr_cntrs.iter().any(|(_, c, _)| *c == id);
        busy_unless(!used, "counter", "endpoints or memory regions bound to it")?;
        s.cntrs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    fn read_cntr(&self, id: u32) -> Result<(u64, u64)> {
        self.with_cntr(id, |c| (c.value(), c.errors()))
    }

    fn change_cntr(&self, id: u32, errors: bool, set: bool, n: u64) -> Result<()> {
        self.with_cntr(id, |c| c.change(errors, set, n))?
    }

    fn arm_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<Arc<WaitSet>> {
        self.prepare(id, threshold, errors).map(|(w, _)| w)
    }

    fn wait_cntr(&self, id: u32, threshold: u64, timeout_ms: i32) -> Result<()> {
        let until = deadline(timeout_ms);
        let (errors, waits) = self.with_cntr(id, |c| (c.errors(), c.wait.is_some()))?;
        loop {
            let (value, now) = self.with_cntr(id, |c| (c.value(), c.errors()))?;
            if value >= threshold {
                return Ok(());
            }
            if now != errors {
                return Err(FI_EAVAIL);
            }
            let left = remaining(until);
            if left == 0 {
                return Err(FI_ETIMEDOUT);
            }
            if !waits {
                // Without a wait object there is nothing to sleep on.
                std::thread::yield_now();
                continue;
            }
            match self.prepare(id, threshold, errors) {
                Ok((w, most)) => wait_readable(w.fd(), shorter(left, most)),
                Err(FI_EAGAIN) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
