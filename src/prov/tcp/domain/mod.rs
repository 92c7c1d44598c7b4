//! Domains (fi_domain(3)): the contract's traits over one state behind one lock.

mod addresses;
mod counters;
mod endpoints;
mod queues;
mod thread;
mod transfers;

use super::bursts;
use super::state::TcpState;
use crate::core::slab::Slab;
use crate::core::{params, Info, Result};
use crate::device::domain_lock::{DomainGuard, DomainLock};
use crate::device::mem_table::{MemTable, Naming};
use crate::device::poller::Poller;
use crate::prov::contract::{Domain, Fabric};
use crate::prov::progress_thread::{self, ProgressThread};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::cq::Cq;
use crate::prov::reports::domain::{DomainState, ReportingDomain};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// A domain. Thread safe: its state is behind one lock.
pub(crate) struct TcpDomain {
    fabric: Arc<Fabric>,
    /// Capabilities of endpoints, of the info that it was opened with.
    caps: u64,
    /// Format of the addresses of that info.
    addr_format: u32,
    state: DomainLock<TcpState>,
    mrs: AtomicU32,
    thread: ProgressThread,
    /// Calls that made progress since the thread asked.
    calls: AtomicU32,
}

impl TcpDomain {
    /// The state, exclusively, for a data transfer; control calls use `lock_control`.
    #[inline(always)]
    fn lock(&self) -> DomainGuard<'_, TcpState> {
        self.state.enter()
    }

    /// The state, exclusively, for a control call ([`DomainLock::enter_control`]).
    fn lock_control(&self) -> DomainGuard<'_, TcpState> {
        self.state.enter_control()
    }

    /// The state, for a call that makes progress or takes completions, which ends a burst.
    #[inline(always)]
    fn lock_for_progress(&self) -> DomainGuard<'_, TcpState> {
        if self.thread.started() {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
        let mut s = self.state.enter();
        bursts::end(&mut s);
        s
    }
}

impl DomainState for TcpState {
    fn report_tables(&mut self) -> (&mut Slab<Cq>, &mut Slab<Cntr>) {
        (&mut self.cqs, &mut self.cntrs)
    }

    fn is_empty(&self) -> bool {
        self.eps.is_empty()
            && self.cqs.is_empty()
            && self.cntrs.is_empty()
            && self.avs.is_empty()
            && self.srxs.is_empty()
    }
}

impl ReportingDomain for TcpDomain {
    type State = TcpState;

    fn state(&self) -> &DomainLock<TcpState> {
        &self.state
    }

    fn regions(&self) -> &AtomicU32 {
        &self.mrs
    }
}

impl Domain for TcpDomain {
    fn open(fabric: Arc<Fabric>, info: Info) -> Result<Arc<TcpDomain>> {
        crate::core::memory::check()?;
        let poller = Poller::new()?;
        let thread = ProgressThread::new()?;
        thread.wake.add(poller.fd());
        let mem = MemTable::new(Naming::of(&info));
        let state = TcpState::new(poller, mem, params::tcp().saved_total_now());
        fabric.hold();
        let d = Arc::new(TcpDomain {
            fabric,
            caps: info.caps,
            addr_format: info.addr_format,
            state: DomainLock::new(state, info.has_serial_calls()),
            mrs: AtomicU32::new(0),
            thread,
            calls: AtomicU32::new(0),
        });
        if info.has_auto_progress() && !params::tcp().disable_auto_progress {
            if let Err(e) = d.start_progress() {
                d.fabric.release();
                return Err(e);
            }
        }
        Ok(d)
    }

    fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    fn start_progress(self: &Arc<Self>) -> Result<()> {
        progress_thread::start(self)
    }

    fn close(&self) -> Result<()> {
        self.close_unused()
    }
}
