//! Fabrics and domains (fi_fabric(3), fi_domain(3)): who owns what, and one lock per domain.
//!
//! `fabric` is the former; `memory`, `queues` and `counters` are what belongs to a domain, `thread`
//! moves it along without calls. [`State`] holds everything the data path touches. Objects are
//! numbers in its tables; a parent counts its children and refuses to close before them
//! (`FI_EBUSY`).

mod counters;
mod fabric;
mod memory;
mod queues;
mod thread;

use super::av::Av;
use super::cntr::Cntr;
use super::cq::Cq;
use super::rdm::coll::Colls;
use super::rdm::work::Trigger;
pub use super::rdm::Poster;
use super::rdm::{self, AtomicRoom, Ep, Peers, Srx, UserOp};
use crate::core::slab::Slab;
use crate::core::{Info, Result};
use crate::device::any::Naming;
use crate::device::any::{self, Dev};
pub use crate::device::any::{CounterPlaces, QueuePlace};
use crate::device::domain_lock::{DomainGuard, DomainLock};
use crate::device::wait::WaitSet;
use crate::device::{Device, MrObserver};
pub use crate::device::{DmaBuf, QueueMemory};
use crate::proto::RecvQueue;
use crate::shm::MrTable;
use crate::types::*;
use fabric::busy_unless;
pub use fabric::Fabric;
pub use queues::progress_cq;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

/// Everything of a domain that the data path touches.
pub struct State {
    pub dev: Dev,
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
    pub triggers: Vec<Trigger>,
    /// Counters bound to memory regions: key, counter, kinds of access (fi_mr_bind(3)).
    pub mr_cntrs: Vec<(u64, u32, u64)>,
    /// Collective groups, and operations under way in them.
    pub colls: Colls,
    /// What peers on the same host may know of our memory.
    pub table: Option<Arc<MrTable>>,
    /// Bytes of unexpected messages per receive queue before senders wait.
    pub budget: usize,
}

/// A domain. Thread safe: its state is behind one lock.
pub struct Domain {
    pub fabric: Arc<Fabric>,
    /// The info it was opened with.
    pub info: Info,
    state: DomainLock<State>,
    mrs: AtomicU32,
    /// Some wait object needs completions to be found without a call (see `progress_thread`).
    thread: AtomicBool,
    closing: AtomicBool,
    /// Wakes the progress thread.
    wake: Arc<WaitSet>,
}

/// A registered region, as the caller's `fid_mr` remembers it.
#[derive(Debug)]
pub struct Mr {
    pub key: u64,
}

/// How the application that opens a domain names its memory. One whose memory is no target needs no
/// names.
fn naming(info: &Info) -> Naming {
    let mode = info.domain.as_ref().map_or(FI_MR_BASIC, |d| d.mr_mode);
    let plain = mode & FI_MR_BASIC != 0 || !crate::core::check::rma_target(info.caps);
    Naming {
        own_keys: !plain && mode & FI_MR_PROV_KEY == 0,
        offsets: !plain && mode & FI_MR_VIRT_ADDR == 0,
    }
}

impl Domain {
    /// Opens a domain on the adapter that `info` names. `FI_EINVAL` when it names another one.
    pub fn open(fabric: Arc<Fabric>, info: Info) -> Result<Arc<Domain>> {
        crate::core::memory::check()?;
        super::params::define();
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
        let mut dev = match Dev::open(name.as_deref(), naming(&info)) {
            Err(FI_ENODEV) => return Err(unknown()),
            d => d?,
        };
        let auto = info
            .domain
            .as_ref()
            .is_some_and(|d| d.progress == FI_PROGRESS_AUTO);
        let seed = std::process::id() as u64 ^ crate::device::host::now();
        let near = crate::core::params::efa_bool("enable_shm_transfer", true)
            && crate::core::params::efa_bool("shm_attach", true);
        let table = near
            .then(|| MrTable::new(seed).ok().map(Arc::new))
            .flatten();
        if let Some(t) = &table {
            dev.publish(Arc::clone(t) as Arc<dyn MrObserver>);
        }
        let single = info
            .domain
            .as_ref()
            .is_some_and(|d| d.threading == FI_THREAD_DOMAIN);
        let wake = Arc::new(WaitSet::new()?);
        fabric.hold();
        let d = Arc::new(Domain {
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
                    triggers: Vec::new(),
                    mr_cntrs: Vec::new(),
                    colls: Colls::default(),
                    table,
                    budget: crate::core::params::efa_size("unexpected_size", 64 << 20),
                },
                single,
            ),
            mrs: AtomicU32::new(0),
            thread: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            wake,
        });
        if auto {
            if let Err(e) = d.progress_thread() {
                d.fabric.release();
                return Err(e);
            }
        }
        Ok(d)
    }

    /// Whether its endpoints speak no protocol (fabric `efa-direct`).
    pub fn direct(&self) -> bool {
        self.fabric.name == super::info::DIRECT
    }

    /// Opens an endpoint as `info` describes it. `FI_EINVAL` for an info of another endpoint type.
    pub fn open_ep(&self, info: &Info) -> Result<u32> {
        crate::core::memory::check()?;
        let mut s = self.lock();
        let e = Ep::new(info, self.direct(), s.dev.attr())?;
        Ok(s.eps.insert(e))
    }

    /// What bounds atomics.
    pub fn atomic_room(&self) -> AtomicRoom {
        AtomicRoom::of(self.lock().dev.attr())
    }

    /// The state, exclusively, for a thread of the application.
    #[inline(always)]
    pub fn lock(&self) -> DomainGuard<'_, State> {
        self.state.enter()
    }

    /// Closes the domain; `FI_EBUSY` while objects are open.
    pub fn close(&self) -> Result<()> {
        {
            let s = self.lock();
            let empty = s.eps.is_empty()
                && s.cqs.is_empty()
                && s.cntrs.is_empty()
                && s.avs.is_empty()
                && s.srxs.is_empty();
            let free = empty && self.mrs.load(Ordering::Relaxed) == 0;
            busy_unless(
                free,
                "domain",
                "endpoints, queues, counters, address vectors or memory regions",
            )?;
        }
        self.closing.store(true, Ordering::SeqCst);
        self.wake.signal();
        self.fabric.release();
        Ok(())
    }

    // ---- address vectors -----------------------------------------------------------------

    /// Closes an address vector; `FI_EBUSY` while an endpoint uses it.
    pub fn close_av(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        // Also by endpoints that are not enabled yet.
        let used = s.avs.get(id).is_some_and(|a| a.users > 0)
            || s.eps.iter().any(|(_, e)| e.av() == Some(id));
        busy_unless(!used, "address vector", "endpoints bound to it")?;
        s.avs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    /// Removes a peer from a vector.
    pub fn remove_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<()> {
        let mut s = self.lock();
        let s = &mut *s;
        let av = s.avs.get_mut(id).ok_or(FI_EBADF)?;
        let peer = av.peer(fi_addr, &mut s.peers);
        if av.remove(fi_addr)? {
            peer.into_iter().for_each(|p| s.peers.may_be_gone(p));
            rdm::reclaim(s);
        }
        Ok(())
    }
}

/// Arms these endpoints; `false` when one of them has something already.
fn arm_eps(eps: &mut Slab<Ep>, list: &[u32]) -> bool {
    let mut quiet = true;
    for id in list {
        if let Some(ep) = eps.get_mut(*id) {
            quiet &= ep.arm();
        }
    }
    quiet
}
