//! Completion queues of a domain (fi_cq(3)): reading, which makes progress on its connections, and
//! waiting.

use super::TcpDomain;
use crate::core::yielding::YieldBackoff;
use crate::core::{errno, Errno, Result};
use crate::device::host;
use crate::device::wait::{wait_readable, WaitSet};
use crate::prov::contract::*;
use crate::prov::reports::cq::Cq;
use crate::prov::tcp::progress::{progress, settle};
use crate::types::*;
use std::sync::Arc;

/// Connections that are asked, before a yield, where their peers run.
const PEERS_ASKED: usize = 16;
/// Longest wait in milliseconds while connections are being made.
const MAKING_MS: i32 = 10;

impl TcpDomain {
    /// Yields the processor after empty polls: a polling caller may keep its peer from running.
    #[cold]
    fn offer(&self, id: u32) -> Errno {
        let (shared, waited_long) = {
            let s = self.lock();
            let conns = s.conns.iter().take(PEERS_ASKED);
            let shared = conns.filter_map(|(_, c)| c.shares_processor()).max();
            let cq = s.cqs.get(id);
            let waited_long = cq.is_some_and(|cq| cq.patience.waited_long());
            (shared, waited_long)
        };
        let ran = YieldBackoff::offer_to_peer(shared, waited_long, host::context_switches);
        if let Some(cq) = self.lock().cqs.get_mut(id) {
            cq.patience.offered(ran);
        }
        FI_EAGAIN
    }

    /// Arms the wait object; returns it, and the longest wait in milliseconds.
    fn arm(&self, id: u32) -> Result<(Arc<WaitSet>, i32)> {
        let mut s = self.lock_for_progress();
        let quiet = settle(&mut s);
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let wait = cq.wait.clone().ok_or(FI_ENOSYS)?;
        if cq.has_any() || cq.signaled {
            return Err(FI_EAGAIN);
        }
        wait.clear();
        cq.armed = true;
        Ok((wait, if quiet { -1 } else { MAKING_MS }))
    }
}

/// The shorter of two times, where negative ones are without end.
pub(super) fn shorter(a: i32, b: i32) -> i32 {
    match (a < 0, b < 0) {
        (true, _) => b,
        (_, true) => a,
        _ => a.min(b),
    }
}

impl CompletionQueues for TcpDomain {
    fn open_cq(self: &Arc<Self>, size: usize, wait_obj: fi_wait_obj) -> Result<OpenedQueue> {
        let mut cq = Cq::new(size, wait_obj)?;
        if cq.wait_obj == FI_WAIT_MUTEX_COND {
            cq.progress_wake = Some(Arc::clone(&self.wake));
            self.start_progress()?;
        }
        let (size, wait) = (cq.size, cq.wait.clone());
        let id = self.lock().cqs.insert(cq);
        Ok(OpenedQueue { id, size, wait })
    }

    fn close_cq(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s.eps.iter().any(|(_, e)| e.uses_cq(id));
        busy_unless(!used, "completion queue", "endpoints bound to it")?;
        s.cqs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    #[inline]
    fn read_cq<const NAMED: bool>(
        &self,
        id: u32,
        count: usize,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        {
            let mut s = self.lock_for_progress();
            let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
            let n = cq.take_ready(count, each);
            if n > 0 {
                return Ok(n);
            }
            progress(&mut s);
            let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
            cq.moved();
            let n = cq.take(count, each);
            if n > 0 {
                cq.patience.found();
                return Ok(n);
            }
            if cq.error_next() {
                return Err(FI_EAVAIL);
            }
            if let Some(vain) = cq.note_empty_poll() {
                return vain;
            }
        }
        Err(self.offer(id))
    }

    fn sread_cq(
        &self,
        id: u32,
        count: usize,
        threshold: usize,
        timeout_ms: i32,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        let until = deadline(timeout_ms);
        let mut done = 0;
        let end = |done| if done > 0 { Ok(done) } else { Err(FI_EAGAIN) };
        loop {
            match self.read_cq::<true>(id, count - done, move |i, e| each(done + i, e)) {
                Ok(n) => done += n,
                Err(FI_EAGAIN) => {}
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
            if done >= threshold.clamp(1, count.max(1)) || (count == 0 && done == 0) {
                return end(done);
            }
            {
                let mut s = self.lock();
                let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
                if core::mem::take(&mut cq.signaled) {
                    return end(done);
                }
            }
            let left = remaining(until);
            if left == 0 {
                return end(done);
            }
            match self.arm(id) {
                Ok((w, most)) => wait_readable(w.fd(), shorter(left, most)),
                Err(FI_EAGAIN) => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn read_cq_error(&self, id: u32) -> Result<ErrEntry> {
        let mut s = self.lock_for_progress();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        if !cq.error_next() {
            progress(&mut s);
        }
        s.cqs.get_mut(id).and_then(Cq::take_error).ok_or(FI_EAGAIN)
    }

    fn error_text(prov_errno: i32) -> String {
        errno::text(prov_errno).to_string()
    }

    fn cq_has_any(&self, id: u32) -> Result<bool> {
        let mut s = self.lock_for_progress();
        progress(&mut s);
        s.cqs.get(id).map(Cq::has_any).ok_or(FI_EBADF)
    }

    fn arm_cq(&self, id: u32) -> Result<Arc<WaitSet>> {
        let (wait, most) = self.arm(id)?;
        // While the application blocks without limit, only the progress thread handles connections
        // that are being made.
        if most >= 0 && !self.thread.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(FI_EAGAIN);
        }
        Ok(wait)
    }

    fn signal_cq(&self, id: u32) -> Result<()> {
        // Meant for another thread than the one that waits, whatever the threading model.
        let mut s = self.state.lock_from_library();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let w = cq.wait.clone().ok_or(FI_ENOSYS)?;
        cq.signaled = true;
        w.signal();
        Ok(())
    }
}
