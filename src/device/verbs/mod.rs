//! Real EFA adapters, through libibverbs and libefa.
//!
//! `sys` finds the libraries, `list` the adapters. A domain has a [`VerbsDevice`]: a protection
//! domain with its registered memory (`mem`) and address handles. `rings` drives the adapter's
//! queues in place where libefa maps them; elsewhere libibverbs drives them. `qp` is a queue pair:
//! it copies packets into registered slots (`pool`) to send them, and out of posted slots when they
//! arrive; reads and writes access memory directly where it is registered. `external` has
//! completion queues and counters in memory of the application's.

mod cqe;
mod external;
mod forks;
mod list;
mod mem;
pub mod poll;
mod pool;
mod qp;
mod rings;
pub mod sys;
pub mod transport;

use super::{AdapterAttr, Device, DmaBuf, MrObserver, PacketQp, QpAddr, RawQp};
use crate::core::sync::{Mutex, Unpoisoned};
use crate::core::Result;
use crate::hmem::UserMem;
use crate::transport::Status;
use crate::types::*;
pub use external::{count, CounterPlaces, ExternalCounter, ExternalQueue, QueuePlace};
pub use list::{adapters, Adapter};
use mem::VerbsMemory;
use qp::Mode;
pub use qp::VerbsQp;
use std::collections::HashMap;
use std::sync::Arc;
use sys::*;

/// Send queue depth and receive queue depth of a packet queue pair. Each entry has memory for one
/// packet: with 8,928-byte packets, a queue pair takes 13 MB.
pub const SENDS: usize = 512;
pub const RECVS: usize = 1024;
/// Deepest send queue that an application may ask for.
pub const SENDS_MOST: usize = 4096;

/// Queue depths of a queue pair whose work requests are the application's own operations; they name
/// the application's memory.
pub const RAW_SENDS: usize = 1024;
pub const RAW_RECVS: usize = 4096;

/// An address handle.
#[derive(Clone, Copy)]
struct Handle {
    ah: *mut core::ffi::c_void,
    number: u16,
}

// SAFETY: address handles may be used by any thread.
unsafe impl Send for Handle {}

/// An adapter as a domain uses it: protection domain, registered memory and address handles.
struct OpenAdapter {
    adapter: &'static Adapter,
    memory: VerbsMemory,
    /// Address handles by GID. They stay as long as the domain: there is one per host, and a host
    /// needs one to access our memory.
    handles: Mutex<HashMap<[u8; 16], Handle>>,
}

impl OpenAdapter {
    /// The address handle of a host. `FI_EHOSTUNREACH` when the adapter cannot reach it.
    fn handle(&self, gid: &[u8; 16]) -> Result<Handle> {
        let mut all = self.handles.lock().unpoisoned();
        if let Some(h) = all.get(gid) {
            return Ok(*h);
        }
        let mut attr = ibv_ah_attr {
            dgid: *gid,
            is_global: 1,
            port_num: 1,
            ..ibv_ah_attr::default()
        };
        let lib = self.adapter.lib;
        let mut answer = efadv_ah_attr::default();
        let len = core::mem::size_of::<efadv_ah_attr>() as u32;
        // SAFETY: the protection domain is open; the attributes are valid for the calls.
        let ah = unsafe { (lib.ibv_create_ah)(self.memory.pd(), &mut attr) };
        if ah.is_null() {
            let e = std::io::Error::last_os_error();
            let gid = std::net::Ipv6Addr::from(*gid);
            crate::warn_log!(
                FI_LOG_AV,
                "no address handle for {gid}: {e}. EINVAL: not reachable from adapter {} (another \
                 availability zone, or a wrong address); ENOMEM: too many",
                self.adapter.attr.name
            );
            return Err(FI_EHOSTUNREACH);
        }
        // SAFETY: the handle has just been made.
        if unsafe { (lib.efadv_query_ah)(ah, &mut answer, len) } != 0 {
            // SAFETY: as above, and nothing uses it.
            unsafe { (lib.ibv_destroy_ah)(ah) };
            return Err(FI_EIO);
        }
        let h = Handle {
            ah,
            number: answer.ahn,
        };
        all.insert(*gid, h);
        Ok(h)
    }

    /// The GID of the host that an address handle number stands for.
    fn host(&self, number: u16) -> Option<[u8; 16]> {
        let all = self.handles.lock().unpoisoned();
        all.iter()
            .find(|(_, h)| h.number == number)
            .map(|(gid, _)| *gid)
    }
}

impl Drop for OpenAdapter {
    fn drop(&mut self) {
        let all = self.handles.get_mut().unpoisoned();
        for (_, h) in all.drain() {
            // SAFETY: made once, destroyed once; queue pairs, which use it, hold `self`.
            unsafe { (self.adapter.lib.ibv_destroy_ah)(h.ah) };
        }
    }
}

/// See the module text. Thread safe.
pub struct VerbsDevice(Arc<OpenAdapter>);

impl VerbsDevice {
    /// A protection domain on an adapter.
    pub fn open(adapter: &'static Adapter, local: bool) -> Result<VerbsDevice> {
        Ok(VerbsDevice(Arc::new(OpenAdapter {
            adapter,
            memory: VerbsMemory::new(adapter, local)?,
            handles: Mutex::default(),
        })))
    }

    /// Opens a completion queue in memory of the application's. `FI_EOPNOTSUPP`, `FI_EINVAL`.
    pub fn open_queue(&self, entries: usize, place: &QueuePlace) -> Result<ExternalQueue> {
        ExternalQueue::open(&self.0, entries, place)
    }

    /// Opens a hardware counter of operations or of `bytes` that has to count to `most`.
    /// `FI_EOPNOTSUPP`, `FI_EINVAL`.
    pub fn open_counter(
        &self,
        places: &CounterPlaces,
        bytes: bool,
        most: u64,
    ) -> Result<ExternalCounter> {
        ExternalCounter::open(&self.0, places, bytes, most)
    }

    /// Whether each aligned 128 bytes of what a peer sends, or else writes, reach memory in order.
    pub fn keeps_order(&self, sends: bool) -> bool {
        VerbsQp::open(Arc::clone(&self.0), Mode::Direct, &RawQp::default())
            .is_ok_and(|qp| qp.keeps_order(sends))
    }

    /// Reports regions to the observer `to` from now on.
    pub fn publish(&mut self, to: Arc<dyn MrObserver>) {
        self.0.memory.publish(to);
    }
}

impl Device for VerbsDevice {
    type Qp = VerbsQp;

    fn attr(&self) -> &AdapterAttr {
        &self.0.adapter.attr
    }

    fn open_qp(&self, qpn: u16, packets: PacketQp) -> Result<VerbsQp> {
        if qpn != 0 {
            crate::info_log!(
                FI_LOG_EP_CTRL,
                "queue pair number {qpn} was asked for: the adapter chooses its own"
            );
        }
        let wanted = RawQp {
            qpn,
            datagram: false,
            unsolicited: true,
            inline: 0,
            sends: packets.sends,
            completions: packets.completions,
            low_latency: packets.low_latency,
            rnr_retry: packets.rnr_retry,
            ..RawQp::default()
        };
        let mut qp = VerbsQp::open(Arc::clone(&self.0), Mode::Packets, &wanted)?;
        qp.reports_rnr = packets.rnr_reported;
        Ok(qp)
    }

    fn open_raw(&self, wanted: &RawQp) -> Result<VerbsQp> {
        let mode = match wanted.datagram {
            true => Mode::Datagram,
            false => Mode::Direct,
        };
        VerbsQp::open(Arc::clone(&self.0), mode, wanted)
    }

    fn open_group(&self, _: u16, _: usize) -> Result<Vec<VerbsQp>> {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "scalable endpoints: {} does not give out queue pair numbers in a row",
            self.attr().name
        );
        Err(FI_ENOSYS)
    }

    fn reg_mr(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<u64> {
        self.0.memory.insert(mem, access, wanted.is_none(), None)
    }

    fn reg_dmabuf(
        &self,
        mem: UserMem,
        from: DmaBuf,
        access: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        let own = wanted.is_none();
        self.0.memory.insert(mem, access, own, Some(from))
    }

    fn dereg_mr(&self, key: u64) -> Result<()> {
        self.0.memory.remove(key)
    }

    fn release_mr(&self, key: u64) {
        self.0.memory.release(key);
    }

    fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status> {
        self.0.memory.target(key, addr, len, access)
    }

    fn query_mr(&self, key: u64) -> Result<[u16; 4]> {
        self.0.memory.query(key)
    }

    fn lkey(&self, key: u64) -> Option<u32> {
        self.0.memory.lkey_of(key)
    }

    fn reach(&self, peer: &QpAddr) -> Result<()> {
        self.0.handle(&peer.gid).map(|_| ())
    }
}
