//! Calls that block: fi_cq_sread(3) and fi_cntr_wait(3), the same for every provider.
//!
//! Each looks for what it waits for, for a moment if its waits are short ([`spin`](super::spin)),
//! arms the wait object and sleeps. A domain whose progress cannot wait for a descriptor alone
//! limits how long a call may sleep.

use super::cntr::Cntr;
use super::domain::ReportingDomain;
use super::spin::{SpinTrial, SPIN};
use crate::core::Result;
use crate::device::wait::{wait_interruptibly, WaitSet};
use crate::prov::contract::{deadline, remaining, shorter, CompletionQueues, Counters, Entry};
use crate::types::*;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After more than `FAILED_ARMS_MAX` failed attempts to arm in a row, a blocked reader pauses
/// before each retry.
const FAILED_ARMS_MAX: u32 = 64;
const PAUSE: Duration = Duration::from_micros(100);

/// Longest sleep of fi_cntr_wait(3), milliseconds. Threads that wait for different values of one
/// counter share its wait object: one that has to wait on may clear what another has not seen yet.
const COUNTER_SLEEP_MAX: i32 = 20;

/// Longest sleep, milliseconds, before a counter that other endpoints than those of its wait object
/// count for is looked at again.
pub(crate) const UNATTACHED_SLEEP_MAX: i32 = 2;

/// An armed wait object, and the longest sleep in milliseconds (negative: without limit).
pub(crate) type Armed = (Arc<WaitSet>, i32);

/// What fi_cq_sread(3) asks of a domain.
pub(crate) trait BlockingQueues: CompletionQueues + ReportingDomain {
    /// Makes progress and arms the wait object. `FI_EAGAIN` when there is something to read,
    /// `FI_ENOSYS` without a wait object.
    fn prepare_cq(&self, cq: u32) -> Result<Armed>;
}

/// What fi_cntr_wait(3) asks of a domain.
pub(crate) trait BlockingCounters: Counters + ReportingDomain {
    /// Runs `f` on a counter after progress of its endpoints.
    fn with_cntr<R>(&self, cntr: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R>;
    /// Makes progress and arms the wait object. `FI_EAGAIN` when the counter has reached
    /// `threshold` or does not count `errors` errors, `FI_ENOSYS` without a wait object.
    fn prepare_cntr(&self, cntr: u32, threshold: u64, errors: u64) -> Result<Armed>;
}

/// Arms a queue for a caller that waits by itself (fi_trywait(3), fi_wait(3)). A signal of
/// fi_cq_signal(3) is reported to it once.
pub(crate) fn arm(d: &impl BlockingQueues, cq: u32) -> Result<Armed> {
    let armed = d.prepare_cq(cq);
    if armed.as_ref().is_err_and(|e| *e == FI_EAGAIN) {
        d.with_cq(cq, |q| q.signaled = false)?;
    }
    armed
}

/// As [`arm`], for a counter.
pub(crate) fn arm_cntr(
    d: &impl BlockingCounters,
    cntr: u32,
    threshold: u64,
    errors: u64,
) -> Result<Armed> {
    d.with_cntr(cntr, |c| c.watched = true)?;
    d.prepare_cntr(cntr, threshold, errors)
}

/// The wait of one call: since when there was nothing.
#[derive(Default)]
struct Wait(Option<Instant>);

impl Wait {
    /// Notes that there is nothing. Whether to look again before sleeping.
    fn looks_again(&mut self, spins: bool) -> bool {
        let since = *self.0.get_or_insert_with(Instant::now);
        spins && since.elapsed() < SPIN
    }

    /// The call ends.
    fn end(&self, spin: &mut SpinTrial) {
        if let Some(since) = self.0 {
            spin.ended(since.elapsed());
        }
    }
}

/// See [`CompletionQueues::sread_cq`].
pub(crate) fn sread(
    d: &impl BlockingQueues,
    cq: u32,
    count: usize,
    threshold: usize,
    timeout_ms: i32,
    each: impl Fn(usize, &Entry) + Copy,
) -> Result<usize> {
    let mut wait = Wait::default();
    let read = read_or_wait(d, cq, (count, threshold), timeout_ms, each, &mut wait);
    if wait.0.is_some() {
        let _ = d.with_cq(cq, |q| wait.end(&mut q.wait.spin));
    }
    read
}

fn read_or_wait(
    d: &impl BlockingQueues,
    cq: u32,
    (count, threshold): (usize, usize),
    timeout_ms: i32,
    each: impl Fn(usize, &Entry) + Copy,
    wait: &mut Wait,
) -> Result<usize> {
    let until = deadline(timeout_ms);
    let mut done = 0;
    let mut failed_arms = 0;
    let end = |done| if done > 0 { Ok(done) } else { Err(FI_EAGAIN) };
    loop {
        match d.read_cq::<true>(cq, count - done, move |i, e| each(done + i, e)) {
            Ok(n) => {
                done += n;
                failed_arms = 0;
            }
            Err(FI_EAGAIN) => {}
            Err(e) if done == 0 => return Err(e),
            Err(_) => return Ok(done),
        }
        if done >= threshold.clamp(1, count.max(1)) || (count == 0 && done == 0) {
            return end(done);
        }
        let (signaled, spins) = d.with_cq(cq, |q| {
            let signaled = core::mem::take(&mut q.signaled);
            (signaled, q.wait.spin.spins())
        })?;
        if signaled {
            return end(done);
        }
        let left = remaining(until);
        if left == 0 {
            return end(done);
        }
        if wait.looks_again(spins) {
            continue;
        }
        match d.prepare_cq(cq) {
            Ok((w, most)) => {
                failed_arms = 0;
                match wait_interruptibly(w.fd(), shorter(left, most)) {
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => return Ok(done),
                    Ok(()) => {}
                }
            }
            Err(FI_EAGAIN) => {
                // Something has arrived that cannot be taken yet, for example while a peer works on
                // it.
                failed_arms += 1;
                if failed_arms > FAILED_ARMS_MAX {
                    std::thread::sleep(PAUSE);
                }
            }
            Err(e) => return Err(e),
        }
    }
}

/// See [`Counters::wait_cntr`].
pub(crate) fn wait_cntr(
    d: &impl BlockingCounters,
    cntr: u32,
    threshold: u64,
    timeout_ms: i32,
) -> Result<()> {
    let mut wait = Wait::default();
    let counted = count_or_wait(d, cntr, threshold, timeout_ms, &mut wait);
    if wait.0.is_some() {
        let _ = d.with_cntr(cntr, |c| wait.end(&mut c.wait.spin));
    }
    counted
}

fn count_or_wait(
    d: &impl BlockingCounters,
    cntr: u32,
    threshold: u64,
    timeout_ms: i32,
    wait: &mut Wait,
) -> Result<()> {
    let until = deadline(timeout_ms);
    // What the progress of this call finds is a change.
    let errors = d.peek_cntr(cntr, Cntr::errors)?;
    let waits = d.with_cntr(cntr, |c| c.wait.set.is_some())?;
    loop {
        let ((value, now), watched, spins) =
            d.with_cntr(cntr, |c| (c.observe(), c.watched, c.wait.spin.spins()))?;
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
        if watched {
            // To arm the object would clear what its watcher has not seen yet.
            std::thread::sleep(PAUSE);
            continue;
        }
        if wait.looks_again(spins) {
            std::thread::yield_now();
            continue;
        }
        match d.prepare_cntr(cntr, threshold, errors) {
            Ok((w, most)) => {
                let most = shorter(COUNTER_SLEEP_MAX, most);
                wait_interruptibly(w.fd(), shorter(left, most))?;
            }
            Err(FI_EAGAIN) => {}
            Err(e) => return Err(e),
        }
    }
}
