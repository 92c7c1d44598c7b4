//! Completion queues of a domain (fi_cq(3)): reading, which moves endpoints along, and waiting.

use super::fabric::busy_unless;
use super::{arm_eps, Domain, State};
use crate::core::yielding::Patience;
use crate::core::{Errno, Result};
use crate::device::any::QueuePlace;
use crate::device::wait::{wait_readable, WaitSet};
use crate::prov::efa::cq::{Cq, Entry, ErrEntry};
use crate::prov::efa::eq::{deadline, remaining};
use crate::prov::efa::rdm;
use crate::prov::efa::rdm::fast_path::{self, Polled};
use crate::types::*;
use std::sync::Arc;

/// A sleeper that finds in vain for so many times that there is something pauses for so long.
const VAIN: u32 = 64;
const PAUSE: std::time::Duration = std::time::Duration::from_micros(100);

impl Domain {
    /// Opens a completion queue and returns its number.
    pub fn open_cq(self: &Arc<Self>, mut cq: Cq) -> Result<u32> {
        if cq.wait_obj == FI_WAIT_MUTEX_COND {
            cq.poke = Some(Arc::clone(&self.wake));
            self.progress_thread()?;
        }
        Ok(self.lock().cqs.insert(cq))
    }

    /// A completion queue of `entries` in memory of the application's. `FI_EOPNOTSUPP` where the
    /// adapter has no such things, `FI_EINVAL` for memory that does not do.
    pub fn open_external_cq(
        self: &Arc<Self>,
        mut cq: Cq,
        entries: usize,
        place: &QueuePlace,
    ) -> Result<u32> {
        let q = self.lock().dev.open_queue(entries, place)?;
        cq.external = Some(Arc::new(q));
        self.open_cq(cq)
    }

    /// Closes a completion queue; `FI_EBUSY` while an endpoint reports there.
    pub fn close_cq(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s.eps.iter().any(|(_, e)| e.uses_cq(id));
        busy_unless(!used, "completion queue", "endpoints bound to it")?;
        s.cqs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    /// fi_cq_read(3): takes up to `count` completions out; when there are none, moves the endpoints
    /// along first. `NAMED`: who has sent is asked for, which costs to find out. `FI_EAGAIN` when
    /// there are none, `FI_EAVAIL` when an error is next.
    #[inline(always)]
    pub fn read_cq<const NAMED: bool>(
        &self,
        id: u32,
        count: usize,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        {
            let mut s = self.lock();
            let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
            if cq.has_any() {
                let n = cq.take_ready(count, each);
                if n > 0 {
                    return Ok(n);
                }
            } else if let Some(found) = fast_path::read::<NAMED>(&mut s, id, count, each) {
                return found;
            }
            if let Some(n) = poll_cq(&mut s, id, count, each)? {
                return Ok(n);
            }
        }
        Err(self.offer(id))
    }

    /// Whoever polls in vain may be keeping the one it waits for from running.
    #[cold]
    fn offer(&self, id: u32) -> Errno {
        let taken = match crate::shm::attend() {
            true => false,
            false => Patience::offer(std::thread::yield_now),
        };
        if let Some(cq) = self.lock().cqs.get_mut(id) {
            cq.patience.offered(taken);
        }
        FI_EAGAIN
    }

    /// Whether a completion or an error can be read.
    pub fn cq_has_any(&self, id: u32) -> Result<bool> {
        let mut s = self.lock();
        progress_cq(&mut s, id);
        s.cqs.get(id).map(Cq::has_any).ok_or(FI_EBADF)
    }

    /// fi_cq_readerr(3).
    pub fn read_cq_error(&self, id: u32) -> Result<ErrEntry> {
        let mut s = self.lock();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        if !cq.error_next() {
            progress_cq(&mut s, id);
        }
        s.cqs.get_mut(id).and_then(Cq::take_error).ok_or(FI_EAGAIN)
    }

    /// Prepares to wait for a completion queue: `FI_EAGAIN` when there is something to read.
    pub fn arm_cq(&self, id: u32) -> Result<Arc<WaitSet>> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cq(s, id);
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let wait = cq.wait.clone().ok_or(FI_ENOSYS)?;
        if cq.has_any() || cq.signaled {
            return Err(FI_EAGAIN);
        }
        wait.clear();
        cq.armed = true;
        if arm_eps(&mut s.eps, &cq.eps) {
            Ok(wait)
        } else {
            cq.armed = false;
            Err(FI_EAGAIN)
        }
    }

    /// fi_cq_sread(3): waits up to `timeout_ms` (negative: without limit) for `threshold`
    /// completions and takes them out. `FI_EAGAIN` after the time-out or fi_cq_signal(3).
    pub fn sread_cq(
        &self,
        id: u32,
        count: usize,
        threshold: usize,
        timeout_ms: i32,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        let until = deadline(timeout_ms);
        let mut done = 0;
        let mut vain = 0;
        loop {
            match self.read_cq::<true>(id, count - done, move |i, e| each(done + i, e)) {
                Ok(n) => done += n,
                Err(FI_EAGAIN) => {}
                Err(e) if done == 0 => return Err(e),
                Err(_) => return Ok(done),
            }
            if done >= threshold.clamp(1, count.max(1)) || (count == 0 && done == 0) {
                return if done > 0 { Ok(done) } else { Err(FI_EAGAIN) };
            }
            {
                let mut s = self.lock();
                let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
                if core::mem::take(&mut cq.signaled) {
                    return if done > 0 { Ok(done) } else { Err(FI_EAGAIN) };
                }
            }
            let left = remaining(until);
            if left == 0 {
                return if done > 0 { Ok(done) } else { Err(FI_EAGAIN) };
            }
            match self.arm_cq(id) {
                Ok(w) => wait_readable(w.fd(), left),
                Err(FI_EAGAIN) => {
                    // Something is there that nobody can take yet, as while a peer works on it.
                    vain += 1;
                    if vain > VAIN {
                        std::thread::sleep(PAUSE);
                    }
                    continue;
                }
                Err(e) => return Err(e),
            }
            vain = 0;
        }
    }

    /// fi_cq_signal(3): one blocked or coming reader returns. `FI_ENOSYS` without a wait object.
    pub fn signal_cq(&self, id: u32) -> Result<()> {
        // Meant for another thread than the one that waits, whatever the threading model.
        let mut s = self.state.lock_from_library();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let w = cq.wait.clone().ok_or(FI_ENOSYS)?;
        cq.signaled = true;
        w.signal();
        Ok(())
    }
}

/// [`Domain::read_cq`] when nothing is there that can be taken at once. `Ok(None)`: in vain, as
/// often before.
#[inline(never)]
fn poll_cq(
    s: &mut State,
    id: u32,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Result<Option<usize>> {
    // What is there comes first.
    let waiting = s.cqs.get(id).ok_or(FI_EBADF)?.has_any();
    let n = quick_cq(s, id, if waiting { 0 } else { count }, each);
    let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
    cq.moved();
    let n = if n == 0 { cq.take(count, each) } else { n };
    if n == 0 && cq.error_next() {
        return Err(FI_EAVAIL);
    }
    if n > 0 {
        cq.patience.found();
        return Ok(Some(n));
    }
    cq.missed().transpose()
}

/// As [`progress_cq`]: up to `count` completions that come the short way go to `each`, and their
/// number is returned; 0 must be asked for where there are some already. Others are in the queue
/// then.
#[inline(always)]
fn quick_cq(s: &mut State, id: u32, count: usize, each: impl Fn(usize, &Entry) + Copy) -> usize {
    let mut n = 0;
    let mut i = 0;
    while let Some(ep) = s.cqs.get(id).and_then(|c| c.eps.get(i).copied()) {
        match fast_path::poll(s, ep, id, count - n, |k, e| each(n + k, e)) {
            Polled::All(more) => n += more,
            Polled::More(more) => {
                n += more;
                rdm::progress(s, ep);
            }
        }
        if n > 0 && n == count {
            break;
        }
        i += 1;
    }
    n
}

/// Moves every endpoint that reports to a queue along.
#[inline]
pub fn progress_cq(s: &mut State, id: u32) {
    let mut i = 0;
    while let Some(ep) = s.cqs.get(id).and_then(|c| c.eps.get(i).copied()) {
        rdm::progress(s, ep);
        i += 1;
    }
}
