//! Bounce buffers of a queue pair: registered memory, divided into slots of one packet each.

use super::mem::{RegionRef, VerbsMemory};
use super::sys::ibv_sge;
use crate::core::Result;
use crate::hmem::{copy_bytes, BounceBuffers, Piece, UserMem};
use crate::types::*;
use core::ffi::c_void;

/// See the module text.
pub(crate) struct Pool {
    at: *mut u8,
    bytes: usize,
    slot: usize,
    lent: Option<RegionRef>,
    /// For copies from and to device memory.
    bounce: Option<BounceBuffers>,
}

// SAFETY: the memory belongs to the value; the queue pair tracks the adapter's accesses.
unsafe impl Send for Pool {}

/// Slots begin at multiples of this.
const ALIGN: usize = 64;
const HUGE: usize = 2 << 20;

impl Pool {
    /// Allocates `count` slots of `len` bytes, on huge pages if they may be used
    /// (`forks`) and are available, on ordinary pages otherwise. `FI_ENOMEM`.
    pub(crate) fn new(memory: &VerbsMemory, count: usize, len: usize) -> Result<Pool> {
        let slot = len.next_multiple_of(ALIGN);
        let bytes = (count * slot).next_multiple_of(HUGE / 512);
        let map = |bytes: usize, flags: i32| {
            // SAFETY: a fresh anonymous mapping.
            unsafe {
                libc::mmap(
                    core::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                    -1,
                    0,
                )
            }
        };
        let whole = bytes.next_multiple_of(HUGE);
        let huge = match memory.huge_pages() {
            true => map(whole, libc::MAP_HUGETLB),
            false => libc::MAP_FAILED,
        };
        let (at, bytes) = match huge {
            p if p != libc::MAP_FAILED => (p, whole),
            _ => (map(bytes, 0), bytes),
        };
        if at == libc::MAP_FAILED {
            return Err(FI_ENOMEM);
        }
        let mut p = Pool {
            at: at.cast(),
            bytes,
            slot,
            lent: None,
            bounce: Some(BounceBuffers::new(at as usize, bytes)),
        };
        p.lent = Some(memory.lend(at as usize, bytes)?);
        Ok(p)
    }

    /// Bytes of a slot.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.slot
    }

    /// Its local key.
    #[inline]
    fn lkey(&self) -> u32 {
        self.lent.as_ref().map_or(0, RegionRef::lkey)
    }

    #[inline]
    fn place(&self, slot: u16) -> *mut u8 {
        let off = usize::from(slot) * self.slot;
        assert!(off + self.slot <= self.bytes, "slot {slot}");
        // SAFETY: within the mapping, as checked.
        unsafe { self.at.add(off) }
    }

    /// Address of a slot, for the adapter.
    #[inline]
    fn addr(&self, slot: u16) -> u64 {
        self.place(slot) as u64
    }

    /// Scatter-gather entry of the first `len` bytes of a slot.
    #[inline]
    pub(crate) fn sge(&self, slot: u16, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.addr(slot),
            length: len as u32,
            lkey: self.lkey(),
        }
    }

    /// Copies `bytes` into a slot from `off` on, as far as they fit.
    #[inline]
    pub(crate) fn put(&mut self, slot: u16, off: usize, bytes: &[u8]) {
        let n = bytes.len().min(self.slot.saturating_sub(off));
        // SAFETY: `n` bytes from there lie within the slot; no request with it is posted, so the
        // adapter does not touch it, and `self` is borrowed mutably.
        unsafe { copy_bytes(bytes.as_ptr(), self.place(slot).add(off.min(self.slot)), n) };
    }

    /// As [`Pool::put`], from one piece of application memory.
    #[inline]
    pub(crate) fn put_piece(&mut self, slot: u16, off: usize, p: Piece) {
        let n = p.len().min(self.slot.saturating_sub(off));
        // SAFETY: as in `put`; the piece is readable (see `Piece::new`).
        unsafe {
            let to = self.place(slot).add(off.min(self.slot));
            copy_bytes(p.addr() as *const u8, to, n);
        }
    }

    /// As [`Pool::put`], from application memory.
    pub(crate) fn put_mem(&mut self, slot: u16, off: usize, mem: &UserMem) {
        let room = self.slot.saturating_sub(off);
        // SAFETY: as in `put`, `room` bytes.
        let to = unsafe {
            core::slice::from_raw_parts_mut(self.place(slot).add(off.min(self.slot)), room)
        };
        let n = mem.len().min(room);
        mem.load(0, to.get_mut(..n).unwrap_or(&mut []));
    }

    /// The first bytes of a slot that the adapter has filled.
    #[inline]
    pub(crate) fn bytes(&self, slot: u16, len: usize) -> &[u8] {
        // SAFETY: within the slot; the adapter is done with it.
        unsafe { core::slice::from_raw_parts(self.place(slot), len.min(self.slot)) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.lent = None;
        self.bounce = None;
        // SAFETY: mapped in `new` with this length, and no longer registered.
        unsafe { libc::munmap(self.at.cast::<c_void>(), self.bytes) };
    }
}
