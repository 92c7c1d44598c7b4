//! Counters of a domain (fi_cntr(3)).

use super::{arm_eps, EfaDomain, OpenedQueue, State};
use crate::core::Result;
use crate::device::wait::{wait_readable, WaitSet};
use crate::prov::contract::*;
use crate::prov::efa::ops::deferred;
use crate::prov::efa::progress::progress;
use crate::prov::reports::cntr::Cntr;
use crate::types::*;
use std::sync::Arc;

impl EfaDomain {
    /// Adds a counter to the domain.
    pub(super) fn insert_cntr(self: &Arc<Self>, mut c: Cntr) -> Result<OpenedQueue> {
        if c.wait_obj == FI_WAIT_MUTEX_COND {
            c.progress_wake = Some(Arc::clone(&self.wake));
            self.start_progress()?;
        }
        let wait = c.wait.clone();
        let id = self.lock().cntrs.insert(c);
        Ok(OpenedQueue { id, size: 0, wait })
    }

    /// Runs `f` on a counter after making progress on its endpoints.
    fn with_cntr<R>(&self, id: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let r = s.cntrs.get_mut(id).map(f).ok_or(FI_EBADF);
        if !s.triggers.is_empty() {
            deferred::fire(s);
        }
        r
    }
}

impl Counters for EfaDomain {
    fn open_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
    ) -> Result<OpenedQueue> {
        self.insert_cntr(Cntr::new(events, wait_obj)?)
    }

    fn read_cntr(&self, id: u32) -> Result<(u64, u64)> {
        self.with_cntr(id, |c| (c.value(), c.errors()))
    }

    fn change_cntr(&self, id: u32, errors: bool, set: bool, n: u64) -> Result<()> {
        self.with_cntr(id, |c| c.change(errors, set, n))?
    }

    fn close_cntr(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s.eps.iter().any(|(_, e)| e.uses_cntr(id))
            || s.mr_cntrs.iter().any(|(_, c, _)| *c == id);
        busy_unless(!used, "counter", "endpoints or memory regions bound to it")?;
        s.cntrs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    fn arm_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<Arc<WaitSet>> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let c = s.cntrs.get_mut(id).ok_or(FI_EBADF)?;
        let wait = c.wait.clone().ok_or(FI_ENOSYS)?;
        if c.value() >= threshold || c.errors() != errors {
            return Err(FI_EAGAIN);
        }
        wait.clear();
        c.armed = arm_eps(&mut s.eps, &c.eps);
        match c.armed {
            true => Ok(wait),
            false => Err(FI_EAGAIN),
        }
    }

    fn wait_cntr(&self, id: u32, threshold: u64, timeout_ms: i32) -> Result<()> {
        let until = deadline(timeout_ms);
        let seen = |c: &mut Cntr| c.external.as_ref().is_none_or(|c| c.seen());
        if !self.with_cntr(id, seen)? {
            crate::warn_log!(
                FI_LOG_CNTR,
                "fi_cntr_wait: this counter is in memory that only a device sees"
            );
            return Err(FI_EOPNOTSUPP);
        }
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
            match self.arm_cntr(id, threshold, errors) {
                Ok(w) => wait_readable(w.fd(), left),
                Err(FI_EAGAIN) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn progress_cntr(s: &mut State, id: u32) {
    // A counter of a memory region counts accesses through every endpoint.
    if s.cntrs.get(id).is_some_and(|c| c.eps.is_empty()) {
        let all = s.eps.select(|_| true);
        for ep in all {
            progress(s, ep);
        }
        return;
    }
    let mut i = 0;
    while let Some(ep) = s.cntrs.get(id).and_then(|c| c.eps.get(i).copied()) {
        progress(s, ep);
        i += 1;
    }
}
