//! Domains (fi_domain(3)): the objects of a domain, behind one lock.
//!
//! The modules implement the traits of `prov::contract`, each named as the trait's module; `thread`
//! makes progress without calls of the application. [`State`] holds everything the data path
//! touches. Objects are identified by their index in its tables; a domain that has open objects
//! cannot be closed (`FI_EBUSY`).

mod addresses;
mod counters;
mod endpoints;
mod extensions;
mod memory;
mod queues;
mod thread;
mod transfers;

use super::av::Av;
use crate::core::slab::Slab;
use crate::core::{Info, Result};
use crate::device::any::Naming;
use crate::device::any::{self, Dev};
use crate::device::domain_lock::{DomainGuard, DomainLock};
use crate::device::{Device, MrObserver};
use crate::hmem::CpuMapping;
use crate::proto::RecvQueue;
use crate::prov::contract::{Domain, Fabric};
use crate::prov::efa::endpoint::srx::Srx;
use crate::prov::efa::endpoint::{DomainUse, Ep};
use crate::prov::efa::ops::collective::CollectiveState;
use crate::prov::efa::ops::triggers::Triggers;
use crate::prov::efa::ops::UserOp;
use crate::prov::efa::peers::Peers;
use crate::prov::progress_thread::{self, ProgressThread};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::cq::Cq;
use crate::prov::reports::domain::{DomainState, ReportingDomain};
use crate::shm::MrTable;
use crate::types::*;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::Arc;
use thread::Polls;

/// Everything of a domain that the data path touches.
pub(crate) struct State {
    pub dev: Arc<Dev>,
    pub eps: Slab<Ep>,
    pub cqs: Slab<Cq>,
    pub cntrs: Slab<Cntr>,
    pub avs: Slab<Av>,
    pub srxs: Slab<Srx>,
    /// Receive queues of endpoints and shared receive contexts.
    pub rxqs: Slab<RecvQueue>,
    /// Operations of all endpoints.
    pub ops: Slab<UserOp>,
    pub peers: Peers,
    /// Operations that wait for a counter.
    pub triggers: Triggers,
    /// Counters bound to memory regions: key, counter, kinds of access (fi_mr_bind(3)).
    pub mr_cntrs: Vec<(u64, u32, u64)>,
    /// Regions of device memory that are mapped for the processor, by key.
    pub mapped: HashMap<u64, CpuMapping>,
    /// Collective groups, and operations under way in them.
    pub colls: CollectiveState,
    /// The table of memory regions that peers on the same host may read.
    pub table: Option<Arc<MrTable>>,
    /// What the progress thread reads about polls of the application.
    pub polls: Polls,
    /// Decides how often idle adapters are polled.
    pub domain_use: DomainUse,
    /// Bytes of unexpected messages per receive queue before senders wait.
    pub budget: usize,
    /// The most that the multiples of `budget` may be, which apply while receives are posted.
    pub budget_most: usize,
}

/// A domain. Thread safe: its state is behind one lock.
pub(crate) struct EfaDomain {
    pub fabric: Arc<Fabric>,
    /// The info it was opened with.
    pub info: Info,
    state: DomainLock<State>,
    mrs: AtomicU32,
    thread: ProgressThread,
}

impl EfaDomain {
    /// Whether its endpoints have no protocol (fabric `efa-direct`).
    pub(crate) fn direct(&self) -> bool {
        self.fabric.name == super::info::DIRECT
    }

    /// The state, exclusively, for a data transfer; control calls use `lock_control`.
    #[inline(always)]
    pub(crate) fn lock(&self) -> DomainGuard<'_, State> {
        self.state.enter()
    }

    /// The state, exclusively, for a control call ([`DomainLock::enter_control`]).
    fn lock_control(&self) -> DomainGuard<'_, State> {
        self.state.enter_control()
    }
}

impl DomainState for State {
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

impl ReportingDomain for EfaDomain {
    type State = State;

    fn state(&self) -> &DomainLock<State> {
        &self.state
    }

    fn regions(&self) -> &AtomicU32 {
        &self.mrs
    }
}

impl Domain for EfaDomain {
    fn open(fabric: Arc<Fabric>, info: Info) -> Result<Arc<EfaDomain>> {
        crate::core::memory::check()?;
        crate::shm::prepare();
        let asked = info.domain.as_ref().and_then(|d| d.name.as_deref());
        let device = |n: &'_ str| {
            let of = ["-rdm", "-dgrm"].iter().find_map(|end| n.strip_suffix(end));
            of.map(str::to_string)
        };
        let unknown = || {
            let names = any::list().unwrap_or_default();
            let names: Vec<String> = names.iter().map(|d| format!("{}-rdm", d.name)).collect();
            crate::warn_log!(
                FI_LOG_DOMAIN,
                "fi_domain: name: wanted {}, had {} (or -dgrm)",
                asked.unwrap_or(""),
                names.join(", ")
            );
            FI_EINVAL
        };
        let name = match asked {
            Some(n) => Some(device(n).ok_or_else(unknown)?),
            None => None,
        };
        let mut dev = match Dev::open(name.as_deref(), Naming::of(&info)) {
            Err(FI_ENODEV) => return Err(unknown()),
            d => d?,
        };
        let hardware = dev.attr().is_hardware();
        let seed = std::process::id() as u64 ^ crate::device::host::now();
        let params = crate::core::params::efa();
        let (budget, budget_most) = params.unexpected_size_now();
        let attach = params.enable_shm_transfer && params.shm_attach;
        let table = attach
            .then(|| MrTable::new(seed).ok().map(Arc::new))
            .flatten();
        if let Some(t) = &table {
            dev.publish(Arc::clone(t) as Arc<dyn MrObserver>);
        }
        let dev = Arc::new(dev);
        let (single, auto) = (info.has_serial_calls(), info.has_auto_progress());
        let thread = ProgressThread::new()?;
        fabric.hold();
        let d = Arc::new(EfaDomain {
            fabric,
            info,
            state: DomainLock::new(
                State {
                    dev,
                    eps: Slab::default(),
                    cqs: Slab::default(),
                    cntrs: Slab::default(),
                    avs: Slab::default(),
                    srxs: Slab::default(),
                    rxqs: Slab::default(),
                    ops: Slab::with_capacity(256),
                    peers: Peers::default(),
                    triggers: Triggers::default(),
                    mr_cntrs: Vec::new(),
                    mapped: HashMap::new(),
                    colls: CollectiveState::default(),
                    table,
                    polls: Polls::default(),
                    domain_use: DomainUse::default(),
                    budget,
                    budget_most,
                },
                single,
            ),
            mrs: AtomicU32::new(0),
            thread,
        });
        // An EFA adapter executes the work requests of efa-direct without progress of ours.
        let alone = d.direct() && hardware;
        if auto && !alone {
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

/// Arms these endpoints; `false` when one of them has something to do already.
fn arm_eps(eps: &mut Slab<Ep>, list: &[u32]) -> bool {
    let mut quiet = true;
    for id in list {
        if let Some(ep) = eps.get_mut(*id) {
            quiet &= ep.arm();
        }
    }
    quiet
}
