//! Completion queues and counters in memory that the application brings, for devices that read them
//! by themselves (`cq_open_ext`, `cntr_open_ext` of `<rdma/fi_ext_efa.h>`).
//!
//! Endpoints are bound to such a queue in place of their own completion queue. If the queue is
//! mapped into the process, endpoints poll it here: each takes its own completions, and keeps those
//! of other endpoints for them. A queue that is not mapped is polled only by the device it is for.

use super::qp::RECV;
use super::rings::{self, Completions};
use super::sys::*;
use super::OpenAdapter;
use crate::core::sync::{Mutex, Unpoisoned};
use crate::core::{Errno, Result};
use crate::device::QueueMemory;
use crate::types::*;
use core::mem::size_of;
use core::ptr::null_mut;
use std::collections::HashMap;
use std::sync::Arc;

/// Memory for a completion queue: `len` bytes of a dma-buf from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct QueuePlace {
    /// Address at which the process has mapped the memory; 0 if it is not mapped.
    pub at: usize,
    /// Bytes.
    pub len: u64,
    /// Offset in the dma-buf.
    pub offset: u64,
    /// Descriptor of the dma-buf.
    pub fd: u32,
}

/// Polling state of a mapped queue.
struct ExternalCqState {
    ring: Completions,
    /// Completions that another endpoint's poll has taken, by queue pair.
    deferred: HashMap<u16, Vec<ibv_wc>>,
}

/// A completion queue in the application's memory. Thread safe.
pub struct ExternalQueue {
    dev: Arc<OpenAdapter>,
    cq: *mut ibv_cq,
    seen: Option<Mutex<ExternalCqState>>,
}

// SAFETY: libibverbs takes calls from any thread, and the memory is read under a lock.
unsafe impl Send for ExternalQueue {}
// SAFETY: as above.
unsafe impl Sync for ExternalQueue {}

/// The error of a failed libibverbs call, from `errno`.
fn errno() -> Errno {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EOPNOTSUPP) => FI_EOPNOTSUPP,
        Some(libc::ENOMEM) => FI_ENOMEM,
        _ => FI_EINVAL,
    }
}

fn unable<T>(what: &str, dev: &OpenAdapter, why: &str) -> Result<T> {
    let name = &dev.adapter.attr.name;
    crate::warn_log!(FI_LOG_CQ, "{name}: {what}: {why}");
    Err(FI_EOPNOTSUPP)
}

impl ExternalQueue {
    /// A queue of `entries`. `FI_EOPNOTSUPP` where the adapter or its libraries do not support one,
    /// `FI_EINVAL` when the memory is not suitable.
    pub(super) fn open(
        dev: &Arc<OpenAdapter>,
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
            q.seen = Some(Mutex::new(ExternalCqState {
                ring,
                deferred: HashMap::new(),
            }));
        }
        Ok(q)
    }

    fn attr(&self) -> Option<efadv_cq_attr> {
        // SAFETY: the queue is destroyed by `drop` alone.
        unsafe { rings::query_cq(self.dev.adapter.lib, self.cq) }
    }

    /// Where the queue is. `FI_EOPNOTSUPP` where libefa does not report that.
    pub fn memory(&self) -> Result<QueueMemory> {
        self.attr().map(|c| rings::memory(&c)).ok_or(FI_EOPNOTSUPP)
    }

    pub(super) fn cq(&self) -> *mut ibv_cq {
        self.cq
    }

    /// Whether the process can read the queue.
    pub fn seen(&self) -> bool {
        self.seen.is_some()
    }

    /// Takes the completions of a queue pair. `direct`: we write the queue pair's work requests
    /// ourselves, so that libefa has no record of them and cannot poll for them.
    pub(super) fn take(&self, qpn: u16, direct: bool, each: &mut dyn FnMut(&ibv_wc)) {
        let Some(seen) = &self.seen else { return };
        let mut s = seen.lock().unpoisoned();
        for wc in s.deferred.remove(&qpn).unwrap_or_default() {
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
                Some((of, wc)) => s.deferred.entry(of).or_default().push(wc),
            }
        }
    }
}

impl ExternalQueue {
    /// Drops the completions of a queue pair that is destroyed: another may get its number.
    pub(super) fn forget(&self, qpn: u16, direct: bool) {
        self.take(qpn, direct, &mut |_| {});
    }
}

impl Drop for ExternalQueue {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once; queue pairs, which use it, hold it.
        unsafe { (self.dev.adapter.lib.ibv_destroy_cq)(self.cq) };
    }
}

/// A hardware counter of successes and errors of operations; their kinds are bits ([`count`]).
/// Thread safe.
pub struct ExternalCounter {
    dev: Arc<OpenAdapter>,
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

/// Where the values of a counter are: successes, errors. `None`: in memory of libefa's.
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
    /// A counter at zero, of operations or of `bytes`, that has to count to `most`. `FI_EOPNOTSUPP`
    /// where the adapter or its libraries do not support one.
    pub(super) fn open(
        dev: &Arc<OpenAdapter>,
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

    /// Whether the process can read the counter.
    pub fn seen(&self) -> bool {
        self.seen
    }

    /// The success or error value; 0 where only a device can read it.
    pub fn read(&self, errors: bool) -> u64 {
        let mut v = 0;
        // SAFETY: the counter is open, the answer has its place.
        unsafe { (self.calls.read[usize::from(errors)])(self.at, &mut v) };
        v
    }

    /// Sets (`set`) or adds to the success or error value. `FI_EINVAL` for more than the adapter
    /// counts to.
    pub fn change(&self, errors: bool, set: bool, n: u64) -> Result<()> {
        let by = if set {
            &self.calls.set
        } else {
            &self.calls.raise
        };
        // SAFETY: the counter is destroyed by `drop` alone.
        match unsafe { (by[usize::from(errors)])(self.at, n) } {
            0 => Ok(()),
            e => Err(e.abs().max(1)),
        }
    }

    /// Attaches the counter to a new queue pair, for operations of `kinds`.
    pub(super) fn attach(&self, qp: *mut ibv_qp, kinds: u32) -> Result<()> {
        let mut attr = ibv_qp_attach_comp_cntr_attr {
            comp_mask: 0,
            op_mask: kinds,
        };
        // SAFETY: the counter is destroyed by `drop` alone; `qp` is the caller's new queue pair.
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
