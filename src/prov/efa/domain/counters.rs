//! Counters of a domain (fi_cntr(3)).

use super::fabric::busy_unless;
use super::{arm_eps, Domain, State};
use crate::core::Result;
use crate::device::any::CounterPlaces;
use crate::device::wait::{wait_readable, WaitSet};
use crate::prov::efa::cntr::Cntr;
use crate::prov::efa::eq::{deadline, remaining};
use crate::prov::efa::rdm::{self, work};
use crate::types::*;
use std::sync::Arc;

impl Domain {
    /// Opens a counter and returns its number.
    pub fn open_cntr(self: &Arc<Self>, mut c: Cntr) -> Result<u32> {
        if c.wait_obj == FI_WAIT_MUTEX_COND {
            c.poke = Some(Arc::clone(&self.wake));
            self.progress_thread()?;
        }
        Ok(self.lock().cntrs.insert(c))
    }

    /// A counter of the adapter's, whose numbers are where the application says. Errors as
    /// [`Domain::open_external_cq`].
    pub fn open_external_cntr(
        self: &Arc<Self>,
        mut c: Cntr,
        places: &CounterPlaces,
    ) -> Result<u32> {
        let d = self.info.domain.as_ref();
        let most = d.map_or(0, |d| d.max_cntr_value.max(d.max_err_cntr_value));
        let n = self.lock().dev.open_counter(places, c.bytes, most)?;
        c.external = Some(Arc::new(n));
        self.open_cntr(c)
    }

    /// Closes a counter; `FI_EBUSY` while an endpoint reports there.
    pub fn close_cntr(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s.eps.iter().any(|(_, e)| e.uses_cntr(id))
            || s.mr_cntrs.iter().any(|(_, c, _)| *c == id);
        busy_unless(!used, "counter", "endpoints or memory regions bound to it")?;
        s.cntrs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    /// Runs `f` on a counter after moving its endpoints along.
    pub fn with_cntr<R>(&self, id: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let r = s.cntrs.get_mut(id).map(f).ok_or(FI_EBADF);
        if !s.triggers.is_empty() {
            work::fire(s);
        }
        r
    }

    /// Prepares to wait for a counter: `FI_EAGAIN` when it has reached `threshold` or counts more
    /// errors than `errors` already. Between this and the wait nothing may poll, which would
    /// disarm.
    pub fn arm_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<Arc<WaitSet>> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let c = s.cntrs.get_mut(id).ok_or(FI_EBADF)?;
        let wait = c.wait.clone().ok_or(FI_ENOSYS)?;
        if c.value() >= threshold || c.errors() != errors {
            return Err(FI_EAGAIN);
        }
        wait.clear();
        c.armed = true;
        if arm_eps(&mut s.eps, &c.eps) {
            Ok(wait)
        } else {
            Err(FI_EAGAIN)
        }
    }

    /// fi_cntr_wait(3): until the value is at least `threshold`. `FI_ETIMEDOUT` after `timeout_ms`,
    /// `FI_EAVAIL` when an operation failed meanwhile. Without a wait object it polls.
    /// `FI_EOPNOTSUPP` for a counter in memory of a device.
    pub fn wait_cntr(&self, id: u32, threshold: u64, timeout_ms: i32) -> Result<()> {
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
    // A counter of a memory region hears of every endpoint.
    if s.cntrs.get(id).is_some_and(|c| c.eps.is_empty()) {
        let all = s.eps.select(|_| true);
        for ep in all {
            rdm::progress(s, ep);
        }
        return;
    }
    let mut i = 0;
    while let Some(ep) = s.cntrs.get(id).and_then(|c| c.eps.get(i).copied()) {
        rdm::progress(s, ep);
        i += 1;
    }
}
