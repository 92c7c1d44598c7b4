//! Fabrics and domains (fi_fabric(3), fi_domain(3)): who owns what, and one lock per domain.
//!
//! [`State`] holds everything the data path touches. Objects are numbers in its tables; a parent
//! counts its children and refuses to close before them (`FI_EBUSY`).

use super::av::Av;
use super::cntr::Cntr;
use super::cq::{Cq, Entry, ErrEntry};
use super::eq::{deadline, remaining};
use super::rdm::coll::Colls;
use super::rdm::quick::{self, Polled};
use super::rdm::work::{self, Trigger};
pub use super::rdm::Poster;
use super::rdm::{AtomicRoom, Ep, OpKind, Peers, Srx, UserOp};
use crate::core::slab::Slab;
use crate::core::yielding::Patience;
use crate::core::{Errno, Info, Result};
use crate::device::any::{self, Dev, Qp};
use crate::device::gate::{Gate, Inside};
use crate::device::soft::Naming;
pub use crate::device::verbs::{CounterPlaces, QueuePlace};
use crate::device::wait::{wait_readable, WaitSet};
pub use crate::device::DmaBuf;
pub use crate::device::QueueMemory;
use crate::device::{Device, Directory, QueuePair};
use crate::hmem::UserMem;
use crate::proto::RecvQueue;
use crate::shm::Table;
use crate::types::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

/// A fabric: a name, an API version, children.
pub struct Fabric {
    pub api: u32,
    pub name: String,
    children: AtomicU32,
}

impl Fabric {
    /// Opens a fabric of this name for an application of API version `api`.
    /// `FI_ENODATA` when the provider has no such fabric.
    pub fn open(name: Option<&str>, api: u32) -> Result<Arc<Fabric>> {
        let name = name.unwrap_or(super::info::FABRIC);
        if name != super::info::FABRIC && name != super::info::DIRECT {
            crate::warn_log!(
                FI_LOG_FABRIC,
                "fi_fabric: name: wanted {name}, had {}, {}",
                super::info::DIRECT,
                super::info::FABRIC
            );
            return Err(FI_ENODATA);
        }
        Ok(Arc::new(Fabric {
            api,
            name: name.to_string(),
            children: AtomicU32::new(0),
        }))
    }

    /// A child was opened.
    pub fn hold(&self) {
        self.children.fetch_add(1, Ordering::Relaxed);
    }

    /// A child was closed.
    pub fn release(&self) {
        self.children.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it may be closed; `FI_EBUSY` while it has children.
    pub fn may_close(&self) -> Result<()> {
        busy_unless(
            self.children.load(Ordering::Relaxed) == 0,
            "fabric",
            "domains or event queues",
        )
    }
}

/// `FI_EBUSY`, with a line that says why, unless `free`.
fn busy_unless(free: bool, what: &str, users: &str) -> Result<()> {
    if free {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_DOMAIN,
        "fi_close: this {what} still has open {users}"
    );
    Err(FI_EBUSY)
}

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
    pub table: Option<Arc<Table>>,
    /// Bytes of unexpected messages per receive queue before senders wait.
    pub budget: usize,
}

/// A domain. Thread safe: its state is behind one lock.
pub struct Domain {
    pub fabric: Arc<Fabric>,
    /// The info it was opened with.
    pub info: Info,
    state: Gate<State>,
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

/// How the application that opens a domain names its memory. One whose memory is no target needs no names.
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
        let table = near.then(|| Table::new(seed).ok().map(Arc::new)).flatten();
        if let Some(t) = &table {
            dev.publish(Arc::clone(t) as Arc<dyn Directory>);
        }
        let single = info
            .domain
            .as_ref()
            .is_some_and(|d| d.threading == FI_THREAD_DOMAIN);
        fabric.hold();
        let d = Arc::new(Domain {
            fabric,
            info,
            state: Gate::new(
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
            wake: Arc::new(WaitSet::new()?),
        });
        if auto {
            d.progress_thread()?;
        }
        Ok(d)
    }

    /// See `fi_efa_ops_domain` (fi_efa(7)).
    pub fn query_mr(&self, mr: &Mr) -> Result<[u16; 4]> {
        self.lock().dev.query_mr(mr.key)
    }

    /// A region's local key, at a real adapter.
    pub fn lkey(&self, mr: &Mr) -> Option<u32> {
        self.lock().dev.lkey(mr.key)
    }

    /// A peer as the adapter's requests name it: address handle, queue pair number, key. `FI_EINVAL` for an unknown one,
    /// `FI_EOPNOTSUPP` without a real adapter.
    pub fn way_to(&self, ep: u32, addr: fi_addr_t) -> Result<(u16, u16, u32)> {
        let mut s = self.lock();
        let s = &mut *s;
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        let av = e.av().and_then(|a| s.avs.get(a)).ok_or(FI_EINVAL)?;
        let to = av.lookup(addr)?;
        match e.qp_mut().ok_or(FI_EINVAL)? {
            Qp::Verbs(q) => Ok((q.handle_of(&to)?, to.qpn, to.qkey)),
            Qp::Soft(_) => Err(FI_EOPNOTSUPP),
        }
    }

    /// An enabled endpoint's queues in memory. `FI_EINVAL` before, `FI_EOPNOTSUPP` where they are not to be had.
    pub fn queue_memory(&self, ep: u32) -> Result<[QueueMemory; 3]> {
        let mut s = self.lock();
        let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
        match e.qp_mut().ok_or(FI_EINVAL)? {
            Qp::Verbs(q) => q.queues(),
            Qp::Soft(_) => Err(FI_EOPNOTSUPP),
        }
    }

    /// The memory of a completion queue: the application's, or that of the one endpoint which reports there.
    pub fn cq_memory(&self, cq: u32) -> Result<QueueMemory> {
        let eps = {
            let s = self.lock();
            let q = s.cqs.get(cq).ok_or(FI_EBADF)?;
            if let Some(x) = &q.external {
                return x.memory();
            }
            q.eps.clone()
        };
        match eps.as_slice() {
            [one] => self.queue_memory(*one).map(|[_, _, c]| c),
            _ => Err(FI_EOPNOTSUPP),
        }
    }

    /// Whether its endpoints speak no protocol (fabric `efa-direct`).
    pub fn direct(&self) -> bool {
        self.fabric.name == super::info::DIRECT
    }

    /// Opens an endpoint as `info` describes it. `FI_EINVAL` for an info of another endpoint type.
    pub fn open_ep(&self, info: &Info) -> Result<u32> {
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
    pub fn lock(&self) -> Inside<'_, State> {
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

    // ---- memory --------------------------------------------------------------------------

    /// Registers memory (fi_mr(3)). `FI_ENOMR` when the adapter's table is full.
    /// `FI_ENOKEY` when `wanted` counts (`FI_EFA_SOFT_MR_MODE`) and is taken.
    pub fn reg_mr(
        &self,
        mem: UserMem,
        from: Option<DmaBuf>,
        access: u64,
        wanted: u64,
    ) -> Result<Mr> {
        let dev = &self.lock().dev;
        let key = match from {
            None => dev.reg_mr(mem, access, Some(wanted))?,
            Some(from) => dev.reg_dmabuf(mem, from, access, Some(wanted))?,
        };
        self.mrs.fetch_add(1, Ordering::Relaxed);
        Ok(Mr { key })
    }

    /// Withdraws a registration.
    pub fn close_mr(&self, mr: &Mr) -> Result<()> {
        let mut s = self.lock();
        s.dev.dereg_mr(mr.key)?;
        // What peers were doing to it in software stops here.
        for (_, op) in s.ops.iter_mut() {
            if op.kind != OpKind::User && op.keys.contains(&mr.key) {
                op.mem = UserMem::EMPTY;
            }
        }
        s.mr_cntrs.retain(|(key, _, _)| *key != mr.key);
        self.mrs.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// fi_mr_bind(3) with a counter: `kinds` are FI_REMOTE_READ and FI_REMOTE_WRITE.
    pub fn bind_mr(&self, mr: &Mr, cntr: u32, kinds: u64) -> Result<()> {
        if kinds == 0 || kinds & !(FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
            return Err(FI_EBADFLAGS);
        }
        let mut s = self.lock();
        if s.cntrs.get(cntr).ok_or(FI_EBADF)?.external.is_some() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_bind: an adapter counts for endpoints: wanted a counter of fi_cntr_open"
            );
            return Err(FI_EOPNOTSUPP);
        }
        s.mr_cntrs.push((mr.key, cntr, kinds));
        for (_, ep) in s.eps.iter_mut() {
            if let Some(qp) = ep.qp_mut() {
                qp.report_remote();
            }
        }
        if let Some(t) = &s.table {
            t.want_events();
        }
        Ok(())
    }

    // ---- queues --------------------------------------------------------------------------

    /// Opens a completion queue and returns its number.
    pub fn open_cq(self: &Arc<Self>, mut cq: Cq) -> Result<u32> {
        if cq.wait_obj == FI_WAIT_MUTEX_COND {
            cq.poke = Some(Arc::clone(&self.wake));
            self.progress_thread()?;
        }
        Ok(self.lock().cqs.insert(cq))
    }

    /// A completion queue of `entries` in memory of the application's. `FI_EOPNOTSUPP` where the adapter has no such things, `FI_EINVAL`
    /// for memory that does not do.
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

    /// fi_cq_read(3): takes up to `count` completions out; when there are none, moves the endpoints along first. `NAMED`: who has
    /// sent is asked for, which costs to find out. `FI_EAGAIN` when there are none, `FI_EAVAIL` when an error is next.
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
            } else if let Some(found) = quick::read::<NAMED>(&mut s, id, count, each) {
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
                Err(FI_EAGAIN) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// fi_cq_signal(3): one blocked or coming reader returns. `FI_ENOSYS` without a wait object.
    pub fn signal_cq(&self, id: u32) -> Result<()> {
        // Meant for another thread than the one that waits, whatever the threading model.
        let mut s = self.state.enter_aside();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let w = cq.wait.clone().ok_or(FI_ENOSYS)?;
        cq.signaled = true;
        w.signal();
        Ok(())
    }

    // ---- counters ------------------------------------------------------------------------

    /// Opens a counter and returns its number.
    pub fn open_cntr(self: &Arc<Self>, mut c: Cntr) -> Result<u32> {
        if c.wait_obj == FI_WAIT_MUTEX_COND {
            c.poke = Some(Arc::clone(&self.wake));
            self.progress_thread()?;
        }
        Ok(self.lock().cntrs.insert(c))
    }

    /// A counter of the adapter's, whose numbers are where the application says. Errors as [`Domain::open_external_cq`].
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
    /// errors than `errors` already. Between this and the wait nothing may poll, which would disarm.
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

    /// fi_cntr_wait(3): until the value is at least `threshold`. `FI_ETIMEDOUT` after
    /// `timeout_ms`, `FI_EAVAIL` when an operation failed meanwhile. Without a wait object it polls.
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

    // ---- address vectors -----------------------------------------------------------------

    /// Closes an address vector; `FI_EBUSY` while an endpoint uses it.
    pub fn close_av(&self, id: u32) -> Result<()> {
        let mut s = self.lock();
        let used = s.avs.get(id).is_some_and(|a| a.users > 0);
        busy_unless(!used, "address vector", "endpoints bound to it")?;
        s.avs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    /// Removes a peer from a vector.
    pub fn remove_addr(&self, id: u32, fi_addr: fi_addr_t) -> Result<()> {
        let mut s = self.lock();
        s.avs.get_mut(id).ok_or(FI_EBADF)?.remove(fi_addr)?;
        Ok(())
    }

    // ---- progress without calls ----------------------------------------------------------

    /// Starts the thread that moves this domain's endpoints along when nobody calls
    /// (FI_PROGRESS_AUTO, FI_WAIT_MUTEX_COND). It sleeps while nothing arrives.
    pub fn progress_thread(self: &Arc<Self>) -> Result<()> {
        if self.thread.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let me = Arc::downgrade(self);
        let t = std::thread::Builder::new()
            .name("fi-progress".into())
            .stack_size(256 << 10);
        t.spawn(move || run_progress(&me))
            .map(|_| ())
            .map_err(|_| FI_EAGAIN)
    }

    /// Descriptor of a new endpoint, for the progress thread.
    pub fn watch(&self, fd: i32) {
        self.wake.add(fd);
        self.wake.signal();
    }

    /// An endpoint is closed.
    pub fn unwatch(&self, fd: i32) {
        self.wake.remove(fd);
    }
}

fn run_progress(domain: &Weak<Domain>) {
    crate::device::host::block_signals();
    loop {
        let Some(d) = domain.upgrade() else { return };
        if d.closing.load(Ordering::SeqCst) {
            return;
        }
        d.wake.clear();
        let mut tell: Vec<Arc<WaitSet>> = Vec::new();
        let quiet = {
            let mut s = d.state.enter_aside();
            let s = &mut *s;
            let all = s.eps.select(|_| true);
            for id in &all {
                super::rdm::progress(s, *id);
            }
            let cqs = s.cqs.iter_mut().map(|(_, q)| (&mut q.news, &q.wait));
            let cntrs = s.cntrs.iter_mut().map(|(_, c)| (&mut c.news, &c.wait));
            for (news, wait) in cqs.chain(cntrs) {
                if core::mem::take(news) {
                    tell.extend(wait.clone());
                }
            }
            arm_eps(&mut s.eps, &all)
        };
        for w in tell {
            w.broadcast();
        }
        if quiet {
            // Looks around now and then: the domain may be gone without a signal.
            wait_readable(d.wake.fd(), 100);
        }
    }
}

/// [`Domain::read_cq`] when nothing is there that can be taken at once. `Ok(None)`: in vain, as often before.
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

/// As [`progress_cq`]: up to `count` completions that come the short way go to `each`, and their number is returned; 0 must be
/// asked for where there are some already. Others are in the queue then.
#[inline(always)]
fn quick_cq(s: &mut State, id: u32, count: usize, each: impl Fn(usize, &Entry) + Copy) -> usize {
    let mut n = 0;
    let mut i = 0;
    while let Some(ep) = s.cqs.get(id).and_then(|c| c.eps.get(i).copied()) {
        match quick::poll(s, ep, id, count - n, |k, e| each(n + k, e)) {
            Polled::All(more) => n += more,
            Polled::More(more) => {
                n += more;
                super::rdm::progress(s, ep);
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
        super::rdm::progress(s, ep);
        i += 1;
    }
}

fn progress_cntr(s: &mut State, id: u32) {
    // A counter of a memory region hears of every endpoint.
    if s.cntrs.get(id).is_some_and(|c| c.eps.is_empty()) {
        let all = s.eps.select(|_| true);
        for ep in all {
            super::rdm::progress(s, ep);
        }
        return;
    }
    let mut i = 0;
    while let Some(ep) = s.cntrs.get(id).and_then(|c| c.eps.get(i).copied()) {
        super::rdm::progress(s, ep);
        i += 1;
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
