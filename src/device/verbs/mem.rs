//! Registered memory: what peers may touch, and what the adapter may read and write on our behalf.
//!
//! Regions of the application are kept by key, for operations carried out in software, and by
//! address, so that a buffer that lies in one needs no registration of its own. A registration of
//! our own that lies in a region of the application shares its key. Long ones of our own are kept
//! for the next operation (`mr_cache`) where the system tells what becomes of memory; elsewhere
//! nothing is kept beyond its last user.

use super::list::Adapter;
use super::sys::*;
use crate::core::{params, Result};
use crate::device::mr_cache::{Cache, Limits};
use crate::device::{DmaBuf, MrObserver};
use crate::hmem::{MemKind, UserMem};
use crate::transport::Status;
use crate::types::*;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

struct VerbsRegion {
    /// `None`: device memory that the adapter cannot reach, which is copied.
    mr: Option<Arc<RegionRef>>,
    mem: UserMem,
    access: u64,
    local_write: bool,
    users: u32,
    published: bool,
}

#[derive(Default)]
struct RegionTable {
    by_key: HashMap<u64, VerbsRegion>,
    /// By first byte and key: one past the last byte.
    by_addr: BTreeMap<(usize, u64), usize>,
    /// Length of the longest region, bytes: no search goes back further.
    longest: usize,
}

impl RegionTable {
    /// A region around these bytes that the adapter knows, and that permits what is asked.
    fn around(&self, addr: usize, len: usize, fits: impl Fn(&VerbsRegion) -> bool) -> Option<u64> {
        let end = addr.checked_add(len)?;
        let from = addr.saturating_sub(self.longest);
        let fits = |r: &VerbsRegion| r.mr.is_some() && fits(r);
        self.by_addr
            .range((from, 0)..=(addr, u64::MAX))
            .rev()
            .find(|((_, key), last)| **last >= end && self.by_key.get(key).is_some_and(fits))
            .map(|((_, key), _)| *key)
    }
}

/// Least key of a region that the adapter does not know: the adapter's keys are shorter.
pub(crate) const OWN_KEYS: u64 = 1 << 32;

/// Where bytes of the application were found to be registered; good until something is withdrawn.
#[derive(Clone, Copy, Default)]
pub(crate) struct FoundRegion {
    from: usize,
    to: usize,
    lkey: u32,
    write: bool,
    /// What [`VerbsMemory::withdrawn`] was.
    at: u64,
}

/// Registered memory of a protection domain. Thread safe.
pub(crate) struct VerbsMemory {
    adapter: &'static Adapter,
    pd: *mut ibv_pd,
    table: Mutex<RegionTable>,
    /// Registrations withdrawn so far.
    withdrawn: AtomicU64,
    directory: Mutex<Option<Arc<dyn MrObserver>>>,
    kept: Option<Cache<RegionRef>>,
    /// Next key of a region that the adapter does not know.
    next_own_key: AtomicU64,
}

// SAFETY: protection domains may be used by any thread.
unsafe impl Send for VerbsMemory {}
// SAFETY: as above; the rest is behind locks.
unsafe impl Sync for VerbsMemory {}

/// A registration, withdrawn when dropped.
pub(crate) struct RegionRef {
    lib: &'static Lib,
    mr: *mut ibv_mr,
}

// SAFETY: a registration may be used and withdrawn by any thread.
unsafe impl Send for RegionRef {}
// SAFETY: as above; what is read of it does not change.
unsafe impl Sync for RegionRef {}

impl RegionRef {
    /// Its local key.
    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: registered, and not withdrawn before `self` goes.
        unsafe { (*self.mr).lkey }
    }

    /// The key that peers name it by.
    fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.mr).rkey }
    }

    /// Withdraws it; `FI_EBUSY` when the adapter still uses it.
    fn withdraw(self) -> Result<()> {
        let lent = core::mem::ManuallyDrop::new(self);
        // SAFETY: registered once, withdrawn once. The adapter refuses what still uses the key.
        match unsafe { (lent.lib.ibv_dereg_mr)(lent.mr) } {
            0 => Ok(()),
            _ => Err(FI_EBUSY),
        }
    }
}

impl Drop for RegionRef {
    fn drop(&mut self) {
        // SAFETY: registered once, withdrawn once; the adapter is done with it (the owner's
        // promise).
        unsafe { (self.lib.ibv_dereg_mr)(self.mr) };
    }
}

/// What is kept of registrations of our own, if anything is.
fn cache(regions: usize) -> Option<Cache<RegionRef>> {
    let p = params::efa();
    if !p.mr_cache_enable {
        return None;
    }
    Cache::new(Limits {
        // Applications want some of the adapter's.
        count: p.mr_max_cached_count.unwrap_or((regions / 4).min(1024)),
        bytes: p.mr_max_cached_size.unwrap_or(usize::MAX),
    })
}

impl VerbsMemory {
    /// A new protection domain.
    pub(crate) fn new(adapter: &'static Adapter) -> Result<VerbsMemory> {
        // SAFETY: the context is open.
        let pd = unsafe { (adapter.lib.ibv_alloc_pd)(adapter.context) };
        if pd.is_null() {
            return Err(FI_ENOMEM);
        }
        Ok(VerbsMemory {
            adapter,
            pd,
            table: Mutex::default(),
            withdrawn: AtomicU64::new(1),
            directory: Mutex::new(None),
            kept: cache(adapter.attr.identity.as_ref().map_or(0, |i| i.regions)),
            next_own_key: AtomicU64::new(OWN_KEYS),
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    /// Whether packets may lie on huge pages.
    pub(crate) fn huge_pages(&self) -> bool {
        self.adapter.huge_pages
    }

    /// Tells `to` of all regions from now on.
    pub(crate) fn publish(&self, to: Arc<dyn MrObserver>) {
        *self.directory.lock().unwrap_or_else(|e| e.into_inner()) = Some(to);
    }

    fn table(&self) -> std::sync::MutexGuard<'_, RegionTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn register(&self, addr: usize, len: usize, access: c_int) -> Result<RegionRef> {
        let mr = self.reg_mr(addr, len, access);
        self.registered(mr, (addr, len), access)
    }

    fn reg_mr(&self, addr: usize, len: usize, access: c_int) -> *mut ibv_mr {
        // SAFETY: the kernel checks the range and pins it; its bytes are the application's (see
        // `UserMem::new`), or ours.
        unsafe { (self.adapter.lib.ibv_reg_mr)(self.pd, addr as *mut _, len, access) }
    }

    /// A dma-buf that is known by the addresses from `addr` on.
    fn register_dmabuf(
        &self,
        from: DmaBuf,
        (addr, len): (usize, usize),
        access: c_int,
    ) -> Result<RegionRef> {
        let Some(reg) = self.adapter.lib.ibv_reg_dmabuf_mr else {
            crate::warn_log!(
                FI_LOG_MR,
                "FI_MR_DMABUF: this libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34)"
            );
            return Err(FI_EOPNOTSUPP);
        };
        // SAFETY: the kernel checks descriptor, offset and length.
        let mr = unsafe { reg(self.pd, from.offset, len, addr as u64, from.fd, access) };
        self.registered(mr, (addr, len), access)
    }

    /// Device memory: as a dma-buf, which the application brings or the device's interface exports,
    /// or else by its address. `None`, with a line, where the adapter cannot reach it.
    fn register_device(
        &self,
        kind: MemKind,
        at: (usize, usize),
        from: Option<DmaBuf>,
        access: c_int,
    ) -> Option<Arc<RegionRef>> {
        if params::hmem().hmem_disable_p2p || at.1 == 0 {
            return None;
        }
        let dmabuf = |from| self.register_dmabuf(from, at, access);
        let exported = match from {
            Some(from) => dmabuf(from),
            None => crate::hmem::export(kind, at.0, at.1).and_then(|e| {
                dmabuf(DmaBuf {
                    fd: e.fd.as_raw_fd(),
                    offset: e.offset,
                })
            }),
        };
        let lib = self.adapter.lib;
        let by_address = || Some(self.reg_mr(at.0, at.1, access)).filter(|mr| !mr.is_null());
        let done = exported.ok();
        let done = done.or_else(|| by_address().map(|mr| RegionRef { lib, mr }));
        if done.is_none() {
            crate::warn_log!(
                FI_LOG_MR,
                "device memory ({kind:?}) of {} bytes at {:#x}: adapter {} cannot reach it by \
                 dma-buf nor by address (nvidia-peermem): wanted peer-to-peer, had copies",
                at.1,
                at.0,
                self.adapter.attr.name
            );
        }
        done.map(Arc::new)
    }

    /// What came of a registration.
    fn registered(
        &self,
        mr: *mut ibv_mr,
        (addr, len): (usize, usize),
        access: c_int,
    ) -> Result<RegionRef> {
        if !mr.is_null() {
            let lib = self.adapter.lib;
            return Ok(RegionRef { lib, mr });
        }
        let e = std::io::Error::last_os_error();
        let regions = self.adapter.attr.identity.as_ref().map_or(0, |i| i.regions);
        let (errno, why) = match e.raw_os_error() {
            Some(libc::ENOMEM) => (
                FI_ENOMR,
                format!(
                    "the locked memory (ulimit -l) or the adapter's {regions} regions are used up"
                ),
            ),
            Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS) => (
                FI_EOPNOTSUPP,
                "the adapter, the kernel or libefa cannot register this kind of memory, or for \
                 this access"
                    .into(),
            ),
            Some(libc::EFAULT | libc::EINVAL | libc::EBADF) => {
                (FI_EINVAL, "no such memory, or it may not be written".into())
            }
            _ => (FI_EIO, "the adapter refuses it".into()),
        };
        crate::warn_log!(
            FI_LOG_MR,
            "registration of {len} bytes at {addr:#x}, access {access:#x}, failed: {e}: {why}"
        );
        Err(errno)
    }

    /// VerbsMemory of our own for packets, which the adapter reads and writes.
    pub(crate) fn lend(&self, addr: usize, len: usize, write: bool) -> Result<RegionRef> {
        self.register(addr, len, if write { ACCESS_LOCAL_WRITE } else { 0 })
    }

    /// VerbsMemory of the application for an operation, which the adapter reads or writes.
    pub(crate) fn borrow(&self, addr: usize, len: usize, write: bool) -> Result<Arc<RegionRef>> {
        self.keep(addr, len, if write { ACCESS_LOCAL_WRITE } else { 0 })
    }

    /// A registration of ours, which may have been kept since an operation before.
    fn keep(&self, addr: usize, len: usize, access: c_int) -> Result<Arc<RegionRef>> {
        let make = || self.register(addr, len, access);
        match &self.kept {
            Some(c) => c.get(addr, len, access, make),
            None => make().map(Arc::new),
        }
    }

    /// The local key of bytes that lie in a region of the application; `last` is where the bytes
    /// before were.
    #[inline(always)]
    pub(crate) fn lkey(
        &self,
        last: &mut FoundRegion,
        addr: usize,
        len: usize,
        write: bool,
    ) -> Option<u32> {
        let now = self.withdrawn.load(Acquire);
        let inside = addr >= last.from && addr <= last.to && len <= last.to - addr;
        if inside && last.at == now && (last.write || !write) {
            return Some(last.lkey);
        }
        self.find(last, addr, len, write)
    }

    #[cold]
    fn find(&self, last: &mut FoundRegion, addr: usize, len: usize, write: bool) -> Option<u32> {
        // What is withdrawn from here on is seen the next time.
        let at = self.withdrawn.load(Acquire);
        let t = self.table();
        let key = t.around(addr, len, |r| !write || r.local_write)?;
        let r = t.by_key.get(&key)?;
        *last = FoundRegion {
            from: r.mem.addr(),
            to: r.mem.addr() + r.mem.len(),
            lkey: r.mr.as_ref()?.lkey(),
            write: r.local_write,
            at,
        };
        Some(last.lkey)
    }

    /// What the adapter may do with memory of this access (fi_mr(3)): also what peers do to serve a
    /// send by reading.
    fn rights(&self, access: u64) -> c_int {
        let caps = &self.adapter.attr.caps;
        let mut r = 0;
        if access & (FI_RECV | FI_READ | FI_REMOTE_WRITE) != 0 || access == 0 {
            r |= ACCESS_LOCAL_WRITE;
        }
        let read = FI_REMOTE_READ | FI_SEND | if caps.rdma_write { 0 } else { FI_WRITE };
        if caps.rdma_read && access & read != 0 {
            r |= ACCESS_REMOTE_READ;
        }
        if caps.rdma_write && access & FI_REMOTE_WRITE != 0 {
            r |= ACCESS_REMOTE_WRITE;
        }
        r
    }

    /// Registers memory and returns its key. Memory without a byte has a key that is good for
    /// nothing; that of device memory which the adapter cannot reach is above those of the adapter.
    /// `own`: by the library, which may share a region of the application. `from`: the dma-buf it
    /// is of.
    pub(crate) fn insert(
        &self,
        mem: UserMem,
        access: u64,
        own: bool,
        from: Option<DmaBuf>,
    ) -> Result<u64> {
        let mut pieces = mem.pieces();
        let (first, None) = (pieces.next(), pieces.next()) else {
            return Err(FI_EINVAL);
        };
        let (addr, len) = first.map_or((0, 0), |p| (p.addr(), p.len()));
        let kind = first.map_or(MemKind::Host, |p| p.kind());
        let mut t = self.table();
        if own {
            if let Some(key) = t.around(addr, len, |r| access & !r.access == 0) {
                if let Some(r) = t.by_key.get_mut(&key) {
                    r.users += 1;
                    return Ok(key);
                }
            }
            if kind != MemKind::Host {
                return Err(FI_EOPNOTSUPP);
            }
        }
        let rights = self.rights(access);
        // A range has to have a byte to be registered.
        static NOTHING: u64 = 0;
        let mr = match from {
            _ if kind != MemKind::Host => self.register_device(kind, (addr, len), from, rights),
            Some(from) => Some(Arc::new(self.register_dmabuf(from, (addr, len), rights)?)),
            None if len == 0 => {
                let nothing = core::ptr::from_ref(&NOTHING) as usize;
                Some(Arc::new(self.register(nothing, 1, 0)?))
            }
            None if own => Some(self.keep(addr, len, rights)?),
            None => Some(Arc::new(self.register(addr, len, rights)?)),
        };
        let key = match &mr {
            Some(mr) => u64::from(mr.rkey()),
            None => self.next_own_key.fetch_add(1, Relaxed),
        };
        if let Some(r) = t.by_key.get_mut(&key) {
            // Kept, and another operation uses it.
            r.users += 1;
            return Ok(key);
        }
        let permitted = if own { access } else { access | FI_SEND };
        let r = VerbsRegion {
            mr,
            mem,
            access: permitted,
            local_write: rights & ACCESS_LOCAL_WRITE != 0,
            users: 1,
            published: !own,
        };
        t.by_key.insert(key, r);
        t.by_addr.insert((addr, key), addr + len);
        t.longest = t.longest.max(len);
        drop(t);
        let d = self.directory.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(d) = d.as_ref().filter(|_| !own) {
            d.add(key, addr as u64, &mem, access);
        }
        Ok(key)
    }

    /// Withdraws a registration, or one user of it.
    pub(crate) fn remove(&self, key: u64) -> Result<()> {
        let mut t = self.table();
        let r = t.by_key.get_mut(&key).ok_or(FI_EINVAL)?;
        r.users -= 1;
        if r.users > 0 {
            return Ok(());
        }
        let r = t.by_key.remove(&key).ok_or(FI_EINVAL)?;
        self.withdrawn.fetch_add(1, AcqRel);
        t.by_addr.remove(&(r.mem.addr(), key));
        drop(t);
        if r.published {
            let d = self.directory.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(d) = d.as_ref() {
                d.remove(key);
            }
        }
        // What is kept stays registered.
        let last = r.mr.and_then(Arc::into_inner);
        last.map_or(Ok(()), RegionRef::withdraw)
    }

    /// A region's local key.
    pub(crate) fn lkey_of(&self, key: u64) -> Option<u32> {
        let t = self.table();
        Some(t.by_key.get(&key)?.mr.as_ref()?.lkey())
    }

    /// See [`crate::device::Device::query_mr`].
    pub(crate) fn query(&self, key: u64) -> Result<[u16; 4]> {
        let query = self.adapter.lib.efadv_query_mr.ok_or(FI_ENOSYS)?;
        let t = self.table();
        let r = t.by_key.get(&key).ok_or(FI_EINVAL)?;
        let mr = r.mr.as_ref().ok_or(FI_ENOSYS)?;
        let mut a = efadv_mr_attr::default();
        let len = core::mem::size_of::<efadv_mr_attr>() as u32;
        // SAFETY: what is in the table is registered; the answer has a place.
        match unsafe { query(mr.mr, &mut a, len) } {
            0 => Ok([
                a.ic_id_validity,
                a.recv_ic_id,
                a.rdma_read_ic_id,
                a.rdma_recv_ic_id,
            ]),
            _ => Err(FI_ENOSYS),
        }
    }

    /// See [`crate::device::Device::target`].
    pub(crate) fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status> {
        let t = self.table();
        let r = t.by_key.get(&key).ok_or(Status::RemoteBadKey)?;
        if access & !r.access != 0 {
            return Err(Status::RemoteBadKey);
        }
        let off = addr.checked_sub(r.mem.addr() as u64);
        let all = r.mem.len() as u64;
        match off {
            Some(off) if off <= all && len <= all - off => {
                Ok(r.mem.part(off as usize, len as usize))
            }
            _ => Err(Status::RemoteBadAddress),
        }
    }
}

impl Drop for VerbsMemory {
    fn drop(&mut self) {
        let t = self.table.get_mut().unwrap_or_else(|e| e.into_inner());
        t.by_key.clear();
        if let Some(c) = &self.kept {
            c.clear();
        }
        // SAFETY: nobody else has the domain any more.
        unsafe { (self.adapter.lib.ibv_dealloc_pd)(self.pd) };
    }
}
