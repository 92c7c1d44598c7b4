//! Completion queues and counters in memory that the application brings, for devices that read them
//! by themselves (`cq_open_ext`, `cntr_open_ext` of `<rdma/fi_ext_efa.h>`).
//!
//! Such a queue has endpoints at it instead of the queue of their own. What the process sees of it
//! is read here: its endpoints take what is theirs, and leave each other's aside. What it does not
//! see is read by whoever it is for.

use super::qp::RECV;
use super::rings::{self, Completions};
use super::sys::*;
use super::Opened;
use crate::core::{Errno, Result};
use crate::device::QueueMemory;
use crate::types::*;
use core::mem::size_of;
use core::ptr::null_mut;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// VerbsMemory for a completion queue: `len` bytes from `offset` on of a dma-buf, which the process
/// sees at `at`, or not at all (0).
#[derive(Clone, Copy, Debug)]
pub struct QueuePlace {
    /// Where it is mapped, 0 if nowhere.
    pub at: usize,
    /// Bytes.
    pub len: u64,
    /// Where it begins in the dma-buf.
    pub offset: u64,
    /// Descriptor of the dma-buf.
    pub fd: u32,
}

/// What is there for the process to read.
struct CounterState {
    ring: Completions,
    /// What another endpoint has come across, by queue pair.
    aside: HashMap<u16, Vec<ibv_wc>>,
}

/// A completion queue of this kind. Thread safe.
pub struct ExternalQueue {
    dev: Arc<Opened>,
    cq: *mut ibv_cq,
    seen: Option<Mutex<CounterState>>,
}

// SAFETY: libibverbs takes calls from any thread, and the memory is read under a lock.
unsafe impl Send for ExternalQueue {}
// SAFETY: as above.
unsafe impl Sync for ExternalQueue {}

/// What a failed call of libibverbs left in `errno`.
fn errno() -> Errno {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EOPNOTSUPP) => FI_EOPNOTSUPP,
        Some(libc::ENOMEM) => FI_ENOMEM,
        _ => FI_EINVAL,
    }
}

fn unable<T>(what: &str, dev: &Opened, why: &str) -> Result<T> {
    let name = &dev.adapter.attr.name;
    crate::warn_log!(FI_LOG_CQ, "{name}: {what}: {why}");
    Err(FI_EOPNOTSUPP)
}

impl ExternalQueue {
    /// A queue of `entries`. `FI_EOPNOTSUPP` where adapter or libraries cannot, `FI_EINVAL` when
    /// the memory does not do.
    pub(super) fn open(
        dev: &Arc<Opened>,
        entries: usize,
        place: &QueuePlace,
    ) -> Result<ExternalQueue> {
        const WHAT: &str = "cq_open_ext";
        let a = dev.adapter;
        let can = |bit| a.limits.device_caps & bit != 0;
        if !can(CAP_CQ_DMABUF) {
            return unable(
                WHAT,
                dev,
                "the adapter, or its driver, takes no memory for queues",
            );
        }
        let Some(create) = a.lib.efadv_create_cq else {
            return unable(WHAT, dev, "libefa has no efadv_create_cq");
        };
        let mut attr = ibv_cq_init_attr_ex {
            cqe: entries as u32,
            cq_context: null_mut(),
            channel: null_mut(),
            comp_vector: 0,
            wc_flags: 0,
            comp_mask: 0,
            flags: 0,
            parent_domain: null_mut(),
        };
        let flag = |on, bit| if on { bit } else { 0 };
        let mut efa = efadv_cq_init_attr {
            comp_mask: 0,
            wc_flags: flag(can(CAP_CQ_SGID), WC_SGID) | flag(can(CAP_UNSOLICITED), WC_UNSOLICITED),
            flags: CQ_DMABUF,
            buffer: place.at as *mut u8,
            length: place.len,
            offset: place.offset,
            fd: place.fd.into(),
        };
        let len = size_of::<efadv_cq_init_attr>() as u32;
        // SAFETY: the context is open, the attributes are valid for the call.
        let cq = unsafe { create(a.context, &mut attr, &mut efa, len) };
        if cq.is_null() {
            let e = std::io::Error::last_os_error();
            let QueuePlace {
                len, offset, fd, ..
            } = place;
            crate::warn_log!(
                FI_LOG_CQ,
                "{}: {WHAT}: no queue of {entries} entries in {len} bytes at {offset} of \
                 descriptor {fd}: {e}. EINVAL: \
                 too few bytes (an entry takes 32, their number is rounded up to a power of two), \
                 or not contiguous",
                a.attr.name
            );
            return Err(errno());
        }
        let mut q = ExternalQueue {
            dev: Arc::clone(dev),
            cq,
            seen: None,
        };
        if place.at != 0 {
            let Some(c) = q.attr() else {
                return unable(WHAT, dev, "libefa does not give its queues out");
            };
            // SAFETY: the application's memory stays until the queue is closed.
            let Some(ring) = (unsafe { Completions::of(&c) }) else {
                return unable(WHAT, dev, "entries of a size that is not known");
            };
            q.seen = Some(Mutex::new(CounterState {
                ring,
                aside: HashMap::new(),
            }));
        }
        Ok(q)
    }

    fn attr(&self) -> Option<efadv_cq_attr> {
        // SAFETY: the queue is open.
        unsafe { rings::query_cq(self.dev.adapter.lib, self.cq) }
    }

    /// Where it is. `FI_EOPNOTSUPP` where libefa does not say.
    pub fn memory(&self) -> Result<QueueMemory> {
        self.attr().map(|c| rings::memory(&c)).ok_or(FI_EOPNOTSUPP)
    }

    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Whether the process can read it.
    pub fn seen(&self) -> bool {
        self.seen.is_some()
    }

    /// Takes what there is for a queue pair. `direct`: its requests have been written by us, not by
    /// libefa, which would not know them.
    pub(super) fn take(&self, qpn: u16, direct: bool, each: &mut dyn FnMut(&ibv_wc)) {
        let Some(seen) = &self.seen else { return };
        let mut s = seen.lock().unwrap_or_else(|e| e.into_inner());
        for wc in s.aside.remove(&qpn).unwrap_or_default() {
            each(&wc);
        }
        loop {
            let found = match direct {
                true => s.ring.next().map(|c| (c.qpn(), c.wc(RECV))),
                false => {
                    let mut wc = ibv_wc::default();
                    // SAFETY: the queue is open, there is room for one completion.
                    let n = unsafe { ((*(*self.cq).context).poll_cq)(self.cq, 1, &mut wc) };
                    (n == 1).then_some((wc.qp_num as u16, wc))
                }
            };
            match found {
                None => return,
                Some((of, wc)) if of == qpn => each(&wc),
                Some((of, wc)) => s.aside.entry(of).or_default().push(wc),
            }
        }
    }
}

impl Drop for ExternalQueue {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; queue pairs, which use it, hold it.
        unsafe { (self.dev.adapter.lib.ibv_destroy_cq)(self.cq) };
    }
}

/// What an adapter counts: successes and errors of operations whose kinds are bits ([`count`]).
/// Thread safe.
pub struct ExternalCounter {
    dev: Arc<Opened>,
    calls: &'static CounterFunctions,
    at: *mut ibv_comp_cntr,
    seen: bool,
}

// SAFETY: libibverbs takes calls from any thread.
unsafe impl Send for ExternalCounter {}
// SAFETY: as above.
unsafe impl Sync for ExternalCounter {}

/// Kinds of operations that a counter counts.
pub mod count {
    pub const SEND: u32 = 1;
    pub const RECV: u32 = 1 << 1;
    pub const READ: u32 = 1 << 2;
    pub const REMOTE_READ: u32 = 1 << 3;
    pub const WRITE: u32 = 1 << 4;
    pub const REMOTE_WRITE: u32 = 1 << 5;
}

/// Where the numbers of a counter are: successes, errors; memory of the library's without.
pub type CounterPlaces = [Option<fi_efa_memory_location>; 2];

const NOWHERE: fi_efa_memory_location = fi_efa_memory_location {
    ptr: null_mut(),
    dmabuf: fi_efa_memory_location_dmabuf {
        offset: 0,
        fd: 0,
        reserved: 0,
    },
    r#type: 0,
    reserved: [0; 7],
};

impl ExternalCounter {
    /// A counter at zero, of operations or of `bytes`, which shall count to `most`. `FI_EOPNOTSUPP`
    /// where adapter or libraries cannot.
    pub(super) fn open(
        dev: &Arc<Opened>,
        places: &CounterPlaces,
        bytes: bool,
        most: u64,
    ) -> Result<ExternalCounter> {
        const WHAT: &str = "cntr_open_ext";
        let a = dev.adapter;
        let Some(calls) = &a.lib.counters else {
            return unable(WHAT, dev, "libefa has no counters (rdma-core before 65)");
        };
        let counts_to = a.attr.raw.counts_to;
        if counts_to == 0 {
            return unable(WHAT, dev, "the adapter, or its driver, counts nothing");
        }
        if most > counts_to {
            crate::warn_log!(
                FI_LOG_CNTR,
                "{WHAT}: max_cntr_value, max_err_cntr_value of the domain: wanted {most}, the \
                 adapter counts to {counts_to} \
                 (fi_getinfo says so from API version 2.5 on)"
            );
            return Err(FI_EOPNOTSUPP);
        }
        let mut attr = ibv_comp_cntr_init_attr {
            r#type: if bytes { COUNT_BYTES } else { COUNT_REQUESTS },
            ..ibv_comp_cntr_init_attr::default()
        };
        let [comp, err] = places;
        let mut efa = efadv_comp_cntr_init_attr {
            comp_mask: 0,
            flags: u32::from(comp.is_some()) | u32::from(err.is_some()) << 1,
            reserved: 0,
            comp_cntr_ext_mem: comp.unwrap_or(NOWHERE),
            err_cntr_ext_mem: err.unwrap_or(NOWHERE),
        };
        let len = size_of_val(&efa) as u32;
        // SAFETY: as above, and the attributes are valid for the call.
        let at = unsafe { (calls.create)(a.context, &mut attr, &mut efa, len) };
        if at.is_null() {
            let e = std::io::Error::last_os_error();
            crate::warn_log!(
                FI_LOG_CNTR,
                "{}: {WHAT}: no counter: {e}. EFAULT, EINVAL: the memory does not do (8 bytes, \
                 aligned); ENOMEM: too many",
                a.attr.name
            );
            return Err(errno());
        }
        Ok(ExternalCounter {
            dev: Arc::clone(dev),
            calls,
            at,
            seen: places.iter().flatten().all(|p| !p.ptr.is_null()),
        })
    }

    /// Whether the process can read it.
    pub fn seen(&self) -> bool {
        self.seen
    }

    /// Its value, or its errors; 0 where only a device sees them.
    pub fn read(&self, errors: bool) -> u64 {
        let mut v = 0;
        // SAFETY: the counter is open, the answer has its place.
        unsafe { (self.calls.read[usize::from(errors)])(self.at, &mut v) };
        v
    }

    /// Sets (`set`) or raises its value or errors. `FI_EINVAL` for more than the adapter counts to.
    pub fn change(&self, errors: bool, set: bool, n: u64) -> Result<()> {
        let by = if set {
            &self.calls.set
        } else {
            &self.calls.raise
        };
        // SAFETY: the counter is open.
        match unsafe { (by[usize::from(errors)])(self.at, n) } {
            0 => Ok(()),
            e => Err(e.abs().max(1)),
        }
    }

    /// Lets it count what is in `kinds` of a queue pair that has just been made.
    pub(super) fn attach(&self, qp: *mut ibv_qp, kinds: u32) -> Result<()> {
        let mut attr = ibv_qp_attach_comp_cntr_attr {
            comp_mask: 0,
            op_mask: kinds,
        };
        // SAFETY: both are open.
        match unsafe { (self.calls.attach)(qp, self.at, &mut attr) } {
            0 => Ok(()),
            e => {
                let text = crate::core::errno::text(e.abs());
                let name = &self.dev.adapter.attr.name;
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "{name}: a counter cannot count kinds {kinds:#x} of a queue pair: {text}"
                );
                Err(FI_EOPNOTSUPP)
            }
        }
    }
}

impl Drop for ExternalCounter {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; queue pairs, which it counts for, hold it.
        unsafe { (self.calls.destroy)(self.at) };
    }
}
