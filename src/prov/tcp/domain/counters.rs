//! Counters of a domain (fi_cntr(3)).

use super::TcpDomain;
use crate::core::Result;
use crate::prov::contract::*;
use crate::prov::reports::blocking::{self, Armed, BlockingCounters, UNATTACHED_SLEEP_MAX};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::domain::ReportingDomain;
use crate::prov::reports::PolledObject;
use crate::prov::tcp::progress::{progress_for, settle};
use crate::types::*;
use std::sync::Arc;

impl Counters for TcpDomain {
    fn open_cntr(
        self: &Arc<Self>,
        events: fi_cntr_events,
        wait_obj: fi_wait_obj,
    ) -> Result<OpenedQueue> {
        self.insert_cntr(Cntr::new(events, wait_obj)?)
    }

    fn close_cntr(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        let used = s
            .eps
            .iter()
            .any(|(_, e)| e.cntrs.each().any(|(_, c)| c == id))
            || s.mr_cntrs.iter().any(|(_, c, _)| *c == id);
        busy_unless(!used, "counter", "endpoints or memory regions bound to it")?;
        s.cntrs.remove(id).map(|_| ()).ok_or(FI_EBADF)
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

    fn arm_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<i32> {
        let (_, most) = blocking::arm_cntr(self, id, threshold, errors)?;
        Ok(self.sleep_limit(most))
    }

    fn wait_cntr(&self, id: u32, threshold: u64, timeout_ms: i32) -> Result<()> {
        blocking::wait_cntr(self, id, threshold, timeout_ms)
    }
}

impl BlockingCounters for TcpDomain {
    fn with_cntr<R>(&self, id: u32, f: impl FnOnce(&mut Cntr) -> R) -> Result<R> {
        let mut s = self.lock_for_progress();
        progress_for(&mut s, PolledObject::Cntr(id));
        s.cntrs.get_mut(id).map(f).ok_or(FI_EBADF)
    }

    fn prepare_cntr(&self, id: u32, threshold: u64, errors: u64) -> Result<Armed> {
        let mut s = self.lock_for_progress();
        let most = settle(&mut s);
        let c = s.cntrs.get_mut(id).ok_or(FI_EBADF)?;
        let set = c.arm(threshold, errors)?;
        // The sockets are in no wait set of such a counter: progress finds what they bring.
        let found_by_calls = c.wait.eps.is_empty() && !self.thread.started();
        let most = match found_by_calls {
            true => shorter(most, UNATTACHED_SLEEP_MAX),
            false => most,
        };
        Ok((set, most))
    }
}
