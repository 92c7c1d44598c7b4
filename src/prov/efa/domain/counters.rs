//! Counters of a domain (fi_cntr(3)).

use super::queues::{arm_with_endpoints, Turn};
use super::{EfaDomain, State};
use crate::core::Result;
use crate::prov::contract::*;
use crate::prov::efa::ops::deferred;
use crate::prov::efa::poll::{self, PollResult};
use crate::prov::efa::progress::progress;
use crate::prov::reports::blocking::{self, Armed, BlockingCounters, UNATTACHED_SLEEP_MAX};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::domain::ReportingDomain;
use crate::prov::reports::PolledObject;
use crate::types::*;
use std::sync::Arc;

impl Counters for EfaDomain {
    fn open_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
    ) -> Result<OpenedQueue> {
        self.insert_cntr(Cntr::new(events, wait_obj)?)
    }

    fn read_cntr(&self, id: u32) -> Result<(u64, u64)> {
        let (read, yields) = self.with_cntr(id, Cntr::read)?;
        match yields {
            true => {
                self.yield_processor(PolledObject::Cntr(id));
            }
            false => self.end_empty_poll(),
        }
        Ok(read)
    }

    fn seen_cntr(&self, id: u32) -> Result<(u64, u64)> {
        self.peek_cntr(id, Cntr::seen)
    }

    fn change_cntr(&self, id: u32, errors: bool, set: bool, n: u64) -> Result<()> {
        self.with_cntr(id, |c| c.change(errors, set, n))?
    }

    fn close_cntr(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        let used = s.eps.iter().any(|(_, e)| e.uses_cntr(id))
            || s.mr_cntrs.iter().any(|(_, c, _)| *c == id)
            || deferred::uses_cntr(&s, id);
        let by =
            "endpoints or memory regions bound to it, or work that it starts or that counts there";
        busy_unless(!used, "counter", by)?;
        s.cntrs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    fn arm_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<i32> {
        let armed = blocking::arm_cntr(self, id, threshold, errors);
        armed.map(|(_, most)| most)
    }

    fn wait_cntr(&self, id: u32, threshold: u64, timeout_ms: i32) -> Result<()> {
        let seen = |c: &Cntr| c.external.as_ref().is_none_or(|c| c.seen());
        if !self.peek_cntr(id, seen)? {
            crate::warn_log!(
                FI_LOG_CNTR,
                "fi_cntr_wait: this counter is in memory that only a device sees"
            );
            return Err(FI_EOPNOTSUPP);
        }
        blocking::wait_cntr(self, id, threshold, timeout_ms)
    }
}

impl BlockingCounters for EfaDomain {
    fn with_cntr<R>(&self, id: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let r = s.cntrs.get_mut(id).map(f).ok_or(FI_EBADF);
        if s.triggers.len() > 0 {
            deferred::fire(s);
        }
        r
    }

    fn prepare_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<Armed> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cntr(s, id);
        let c = s.cntrs.get_mut(id).ok_or(FI_EBADF)?;
        let set = c.arm(threshold, errors)?;
        let (set, most) = arm_with_endpoints(set, &mut c.wait, &mut s.eps)?;
        // What raises no event of its endpoints is found by progress, the thread's or a caller's.
        let found_by_calls = counts_for_all(s, id) && !self.thread.started();
        Ok((
            set,
            if found_by_calls {
                UNATTACHED_SLEEP_MAX
            } else {
                most
            },
        ))
    }
}

/// Whether any endpoint may change a counter: one of a memory region counts accesses through every
/// endpoint, one of no endpoint may count the ends of deferred work.
fn counts_for_all(s: &State, id: u32) -> bool {
    let alone = s.cntrs.get(id).is_some_and(|c| c.wait.eps.is_empty());
    alone || s.mr_cntrs.iter().any(|(_, c, _)| *c == id)
}

/// Makes progress on every endpoint that may change a counter.
fn progress_cntr(s: &mut State, id: u32) {
    if counts_for_all(s, id) {
        for ep in 0..s.eps.end() as u32 {
            poll_endpoint(s, ep, true);
        }
        return;
    }
    let mut turn = Turn::begin(s, PolledObject::Cntr(id));
    while let Some((ep, in_turn)) = turn.next(s) {
        poll_endpoint(s, ep, in_turn);
    }
    turn.end(s);
}

/// Makes progress on an endpoint; the adapter of an idle one is polled only if it is `in_turn`.
fn poll_endpoint(s: &mut State, id: u32, in_turn: bool) {
    const NO_QUEUE: u32 = u32::MAX;
    if let PollResult::More(_) = poll::poll(s, id, NO_QUEUE, in_turn, 0, |_, _| {}) {
        progress(s, id);
    }
}
