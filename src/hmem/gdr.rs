//! GDRCopy, by libgdrapi.so.2: CUDA memory that the GPU's PCIe window (BAR1) maps for the
//! processor.
//!
//! A copy by CUDA's driver takes microseconds whatever its length; the processor copies a few
//! hundred bytes through the window in less. A region is mapped when the application registers it
//! and for as long as it stays registered. A mapping ends when its memory is freed, and an access
//! then faults; programs do free memory before they close its region, and get the same addresses
//! again. Each mapping therefore keeps the id of its allocation (CU_POINTER_ATTRIBUTE_BUFFER_ID),
//! and a copy compares it with the id at the address. The window is small (256 MiB on many GPUs)
//! and the program's own, so that mappings together take at most [`BUDGET`] bytes of it: memory
//! beyond that is copied by CUDA.

use super::dl::{find, functions, open};
use crate::core::params::hmem;
use crate::core::sync::{RwLock, Unpoisoned};
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Page of a GPU: mappings are made of whole ones.
const PAGE: usize = 64 << 10;
/// Most bytes mapped at a time, of all GPUs together.
const BUDGET: usize = 64 << 20;

functions! {
    GdrFunctions -> c_int;
    pin = c"gdr_pin_buffer": fn(*mut c_void, usize, usize, u64, u32, *mut u64);
    unpin = c"gdr_unpin_buffer": fn(*mut c_void, u64);
    map = c"gdr_map": fn(*mut c_void, u64, *mut usize, usize);
    unmap = c"gdr_unmap": fn(*mut c_void, u64, usize, usize);
    copy_in = c"gdr_copy_to_mapping": fn(u64, usize, *const u8, usize);
    copy_out = c"gdr_copy_from_mapping": fn(u64, *mut u8, usize, usize);
}

/// The library, with its connection to the driver (`gdr_t`), which is never closed.
pub(super) struct Gdr {
    f: GdrFunctions,
    driver: usize,
    /// By address of the memory and id.
    views: RwLock<BTreeMap<(usize, u64), MappedPages>>,
    mapped: AtomicUsize,
    next: AtomicU64,
}

/// Pages of a GPU that are mapped.
struct MappedPages {
    len: usize,
    /// Id of the allocation.
    buffer: u64,
    /// `gdr_mh_t`
    handle: u64,
    /// Address for the processor.
    view: usize,
}

impl Gdr {
    /// `None` without the library or its driver, or when it is not to be used.
    pub(super) fn new() -> Option<Gdr> {
        if !hmem().hmem_cuda_use_gdrcopy {
            return None;
        }
        let lib = open(c"libgdrapi.so.2", 0).or_else(|| open(c"libgdrapi.so", 0))?;
        let f = GdrFunctions::load(lib)?;
        // SAFETY: the function of this name has this type (gdrapi.h).
        let connect = unsafe { find::<unsafe extern "C" fn() -> *mut c_void>(lib, c"gdr_open") }?;
        // SAFETY: the function takes nothing.
        let driver = unsafe { connect() };
        if driver.is_null() {
            crate::info_log!(
                FI_LOG_CORE,
                "libgdrapi.so.2 is there, but not its driver (gdrdrv): CUDA copies short messages"
            );
            return None;
        }
        Some(Gdr {
            f,
            driver: driver as usize,
            views: RwLock::default(),
            mapped: AtomicUsize::new(0),
            next: AtomicU64::new(1),
        })
    }

    fn driver(&self) -> *mut c_void {
        self.driver as *mut c_void
    }

    /// Maps the pages around a range of allocation `buffer`; `None` when the budget is used up or
    /// the driver refuses. The mapping's id.
    pub(super) fn map(&self, at: usize, len: usize, buffer: u64) -> Option<u64> {
        let start = at & !(PAGE - 1);
        let len = at.checked_add(len)?.checked_next_multiple_of(PAGE)? - start;
        self.unmap_stale(start, len, buffer);
        let room = |used: usize| used.checked_add(len).filter(|sum| *sum <= BUDGET);
        let relaxed = Ordering::Relaxed;
        self.mapped.fetch_update(relaxed, relaxed, room).ok()?;
        let made = self.map_pages(start, len, buffer);
        if made.is_none() {
            self.mapped.fetch_sub(len, relaxed);
        }
        made
    }

    /// Removes mappings of earlier allocations at these addresses, whose regions are still open.
    fn unmap_stale(&self, start: usize, len: usize, buffer: u64) {
        let all = self.views.read().unpoisoned();
        let overlaps = |at: usize, p: &MappedPages| at < start + len && start < at + p.len;
        let stale = all
            .iter()
            .filter(|((at, _), p)| p.buffer != buffer && overlaps(*at, p));
        let ids: Vec<u64> = stale.map(|((_, id), _)| *id).collect();
        drop(all);
        for id in ids {
            self.unmap(id);
        }
    }

    fn map_pages(&self, start: usize, len: usize, buffer: u64) -> Option<u64> {
        let (mut handle, mut view) = (0, 0);
        // SAFETY: there is a place for each answer; the driver checks the range. A pin whose pages
        // cannot be mapped is given up.
        unsafe {
            if (self.f.pin)(self.driver(), start, len, 0, 0, &mut handle) != 0 {
                return None;
            }
            if (self.f.map)(self.driver(), handle, &mut view, len) != 0 {
                (self.f.unpin)(self.driver(), handle);
                return None;
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let pages = MappedPages {
            len,
            buffer,
            handle,
            view,
        };
        let mut all = self.views.write().unpoisoned();
        all.insert((start, id), pages);
        Some(id)
    }

    /// Removes a mapping; no copy uses it when the call returns.
    pub(super) fn unmap(&self, id: u64) {
        let mut all = self.views.write().unpoisoned();
        let Some(key) = all.keys().find(|(_, i)| *i == id).copied() else {
            return;
        };
        let Some(p) = all.remove(&key) else {
            return;
        };
        drop(all);
        // SAFETY: made by `map_pages`, and removed above: no other call finds it.
        unsafe {
            (self.f.unmap)(self.driver(), p.handle, p.view, p.len);
            (self.f.unpin)(self.driver(), p.handle);
        }
        self.mapped.fetch_sub(p.len, Ordering::Relaxed);
    }

    /// Runs `copy` with the handle and the processor's address of a short range. `false` when it is
    /// too long or not mapped, or the copy failed. `buffer` returns the id of the allocation that
    /// is at the address now.
    fn with_view(
        &self,
        (at, len): (usize, usize),
        buffer: impl FnOnce(usize) -> Option<u64>,
        copy: impl FnOnce(u64, usize) -> c_int,
    ) -> bool {
        if len > hmem().shm_max_gdrcopy_size {
            return false;
        }
        let all = self.views.read().unpoisoned();
        let Some(((start, _), p)) = all.range(..=(at, u64::MAX)).next_back() else {
            return false;
        };
        let off = at - start;
        let inside = off <= p.len && len <= p.len - off;
        inside && buffer(at) == Some(p.buffer) && copy(p.handle, p.view + off) == 0
    }

    /// Copies to device memory; `false` when CUDA must do it. `buffer` is as in `with_view`.
    ///
    /// # Safety
    /// `from` has `len` readable bytes.
    pub(super) unsafe fn copy_in(
        &self,
        (to, from, len): (usize, *const u8, usize),
        buffer: impl FnOnce(usize) -> Option<u64>,
    ) -> bool {
        // SAFETY: `with_view` found the mapping, which stays until the copy is done.
        self.with_view((to, len), buffer, |handle, view| unsafe {
            (self.f.copy_in)(handle, view, from, len)
        })
    }

    /// Copies from device memory; `false` when CUDA must do it. `buffer` is as in `with_view`.
    ///
    /// # Safety
    /// `to` has `len` writable bytes.
    pub(super) unsafe fn copy_out(
        &self,
        (to, from, len): (*mut u8, usize, usize),
        buffer: impl FnOnce(usize) -> Option<u64>,
    ) -> bool {
        // SAFETY: as in `copy_in`.
        self.with_view((from, len), buffer, |handle, view| unsafe {
            (self.f.copy_out)(handle, to, view, len)
        })
    }
}
