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
use crate::device::{DmaBuf, MrObserver, Status};
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering::*};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

struct VerbsRegion {
    mr: Arc<RegionRef>,
    mem: UserMem,
    access: u64,
    local_write: bool,
    users: u32,
    published: bool,
}

#[derive(Default)]
struct RegionTable {
    by_key: HashMap<u32, VerbsRegion>,
    /// By first byte and key: one past the last byte.
    by_addr: BTreeMap<(usize, u32), usize>,
    /// Length of the longest region, bytes: no search goes back further.
    longest: usize,
}

impl RegionTable {
    /// A region around these bytes that permits what is asked.
    fn around(&self, addr: usize, len: usize, fits: impl Fn(&VerbsRegion) -> bool) -> Option<u32> {
        let end = addr.checked_add(len)?;
        let from = addr.saturating_sub(self.longest);
        self.by_addr
            .range((from, 0)..=(addr, u32::MAX))
            .rev()
            .find(|((_, key), last)| **last >= end && self.by_key.get(key).is_some_and(&fits))
            .map(|((_, key), _)| *key)
    }
}

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
        })
    }

    /// The protection domain.
    pub(crate) fn pd(&self) -> *mut ibv_pd {
        self.pd
    }

    /// Tells `to` of all regions from now on.
    pub(crate) fn publish(&self, to: Arc<dyn MrObserver>) {
        *self.directory.lock().unwrap_or_else(|e| e.into_inner()) = Some(to);
    }

    fn table(&self) -> std::sync::MutexGuard<'_, RegionTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn register(&self, addr: usize, len: usize, access: c_int) -> Result<RegionRef> {
        // SAFETY: the kernel checks the range and pins it; its bytes are the application's (see
        // `UserMem::new`), or ours.
        let mr = unsafe { (self.adapter.lib.ibv_reg_mr)(self.pd, addr as *mut _, len, access) };
        self.registered(mr, (addr, len), access)
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
            lkey: r.mr.lkey(),
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

    /// Registers memory and returns its key. VerbsMemory without a byte has a key that is good for
    /// nothing. `own`: by the library, which may share a region of the application. `from`: the
    /// dma-buf it is of.
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
        let mut t = self.table();
        if own {
            if let Some(key) = t.around(addr, len, |r| access & !r.access == 0) {
                if let Some(r) = t.by_key.get_mut(&key) {
                    r.users += 1;
                    return Ok(u64::from(key));
                }
            }
        }
        let rights = self.rights(access);
        // A range has to have a byte to be registered.
        static NOTHING: u64 = 0;
        let mr = match from {
            Some(from) => Arc::new(self.register_dmabuf(from, (addr, len), rights)?),
            None if len == 0 => {
                Arc::new(self.register(core::ptr::from_ref(&NOTHING) as usize, 1, 0)?)
            }
            None if own => self.keep(addr, len, rights)?,
            None => Arc::new(self.register(addr, len, rights)?),
        };
        let key = mr.rkey();
        if let Some(r) = t.by_key.get_mut(&key) {
            // Kept, and another operation uses it.
            r.users += 1;
            return Ok(key.into());
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
            d.add(key.into(), addr as u64, &mem, access);
        }
        Ok(key.into())
    }

    /// Withdraws a registration, or one user of it.
    pub(crate) fn remove(&self, key: u64) -> Result<()> {
        let k = u32::try_from(key).map_err(|_| FI_EINVAL)?;
        let mut t = self.table();
        let r = t.by_key.get_mut(&k).ok_or(FI_EINVAL)?;
        r.users -= 1;
        if r.users > 0 {
            return Ok(());
        }
        let r = t.by_key.remove(&k).ok_or(FI_EINVAL)?;
        self.withdrawn.fetch_add(1, AcqRel);
        t.by_addr.remove(&(r.mem.addr(), k));
        drop(t);
        if r.published {
            let d = self.directory.lock().unwrap_or_else(|e| e.into_inner());
            if let Some(d) = d.as_ref() {
                d.remove(key);
            }
        }
        // What is kept stays registered.
        Arc::into_inner(r.mr).map_or(Ok(()), RegionRef::withdraw)
    }

    /// A region's local key.
    pub(crate) fn lkey_of(&self, key: u64) -> Option<u32> {
        let t = self.table();
        let r = t.by_key.get(&u32::try_from(key).ok()?)?;
        Some(r.mr.lkey())
    }

    /// See [`crate::device::Device::query_mr`].
    pub(crate) fn query(&self, key: u64) -> Result<[u16; 4]> {
        let query = self.adapter.lib.efadv_query_mr.ok_or(FI_ENOSYS)?;
        let k = u32::try_from(key).map_err(|_| FI_EINVAL)?;
        let t = self.table();
        let r = t.by_key.get(&k).ok_or(FI_EINVAL)?;
        let mut a = efadv_mr_attr::default();
        let len = core::mem::size_of::<efadv_mr_attr>() as u32;
        // SAFETY: what is in the table is registered; the answer has a place.
        match unsafe { query(r.mr.mr, &mut a, len) } {
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
        let k = u32::try_from(key).map_err(|_| Status::RemoteBadKey)?;
        let t = self.table();
        let r = t.by_key.get(&k).ok_or(Status::RemoteBadKey)?;
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
