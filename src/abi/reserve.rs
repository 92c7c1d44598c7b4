//! The library's allocator: malloc(3), and a reserve for when that fails, so that no shortage ends
//! the host program.
//!
//! Rust's collections end the process when an allocation fails. Here none does: what malloc
//! refuses, up to [`LARGEST`], comes from a static reserve, whose pages take memory only once they
//! are used. `core::memory` tells the library how much of it is used up: it takes in less and less
//! meanwhile. Larger allocations can fail, and are made with `try_reserve` or `Map::create`.
//!
//! Invariant: a unit of the reserve belongs to at most one allocation, which its bit says; the bits
//! are behind one lock.

use crate::core::memory::{self, RESERVE};
use crate::core::sync::{Mutex, Unpoisoned};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;

/// Bytes of a unit of the reserve, and of the largest allocation from it.
const UNIT: usize = 256;
const UNITS: usize = RESERVE / UNIT;
const LARGEST: usize = 16 << 20;
/// What malloc aligns by itself.
const ALIGNED: usize = 16;

#[repr(C, align(4096))]
struct Bytes(UnsafeCell<[u8; RESERVE]>);
// SAFETY: its bytes are reached through allocations alone, which do not overlap.
unsafe impl Sync for Bytes {}

static BYTES: Bytes = Bytes(UnsafeCell::new([0; RESERVE]));
static USED: Mutex<[u64; UNITS / 64]> = Mutex::new([0; UNITS / 64]);

/// See the module text.
pub struct Allocator;

fn units(size: usize) -> usize {
    size.div_ceil(UNIT).max(1)
}

fn set(used: &mut [u64; UNITS / 64], at: usize, count: usize, on: bool) {
    for u in at..at + count {
        if let Some(w) = used.get_mut(u / 64) {
            match on {
                true => *w |= 1 << (u % 64),
                false => *w &= !(1 << (u % 64)),
            }
        }
    }
}

/// Takes memory from the reserve; null when there is none for this layout.
#[cold]
fn take(layout: Layout) -> *mut u8 {
    let (count, step) = (units(layout.size()), layout.align().div_ceil(UNIT));
    if layout.size() > LARGEST || layout.align() > 4096 {
        return core::ptr::null_mut();
    }
    let mut used = USED.lock().unpoisoned();
    let mut at = 0;
    while at + count <= UNITS {
        let is_used = |u: usize| used.get(u / 64).is_none_or(|w| w >> (u % 64) & 1 == 1);
        match (at..at + count).rev().find(|u| is_used(*u)) {
            None => {
                set(&mut used, at, count, true);
                memory::add_use(count * UNIT);
                // SAFETY: the units lie within the reserve.
                return unsafe { BYTES.0.get().cast::<u8>().add(at * UNIT) };
            }
            Some(u) => at = (u + 1).next_multiple_of(step),
        }
    }
    core::ptr::null_mut()
}

/// Where in the reserve memory is; `None` for malloc's.
fn place(p: *mut u8) -> Option<usize> {
    let off = (p as usize).wrapping_sub(BYTES.0.get() as usize);
    (off < RESERVE).then_some(off / UNIT)
}

#[cold]
fn give(at: usize, layout: Layout) {
    let count = units(layout.size());
    let mut used = USED.lock().unpoisoned();
    set(&mut used, at, count, false);
    memory::sub_use(count * UNIT);
}

// SAFETY: memory comes from malloc, which is as long and aligned as asked for, or from the reserve,
// whose units are handed out once; what is given back goes where it came from. Nothing here
// unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: plain numbers are passed.
        let p = unsafe {
            match layout.align() <= ALIGNED {
                true => libc::malloc(layout.size()),
                false => {
                    let mut p = core::ptr::null_mut();
                    match libc::posix_memalign(&mut p, layout.align(), layout.size()) {
                        0 => p,
                        _ => core::ptr::null_mut(),
                    }
                }
            }
        };
        match p.is_null() {
            false => p.cast(),
            true => take(layout),
        }
    }

    /// calloc(3) takes fresh pages of the system as they are: they cost nothing until they are
    /// used.
    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: plain numbers are passed.
            let p = unsafe { libc::calloc(1, layout.size()) };
            if !p.is_null() {
                return p.cast();
            }
        }
        // SAFETY: the layout is our caller's; what is there has its size.
        unsafe {
            let p = self.alloc(layout);
            if !p.is_null() {
                p.write_bytes(0, layout.size());
            }
            p
        }
    }

    #[inline]
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        match place(p) {
            // SAFETY: what is not of the reserve is malloc's.
            None => unsafe { libc::free(p.cast()) },
            Some(at) => give(at, layout),
        }
    }

    #[inline]
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if place(p).is_none() && layout.align() <= ALIGNED {
            // SAFETY: `p` is malloc's.
            let new = unsafe { libc::realloc(p.cast(), size) };
            if !new.is_null() {
                return new.cast();
            }
        }
        // SAFETY: the alignment is that of a valid layout, and the size below isize::MAX, as our
        // caller vouches; both are as long as what is copied; `p` is given back with its own
        // layout.
        unsafe {
            let wanted = Layout::from_size_align_unchecked(size, layout.align());
            let new = self.alloc(wanted);
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(p, new, layout.size().min(size));
                self.dealloc(p, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_hands_out_what_it_has_and_takes_it_back() {
        let big = Layout::from_size_align(LARGEST, 64).unwrap();
        let small = Layout::from_size_align(300, 4096).unwrap();
        let all: Vec<*mut u8> = (0..RESERVE / LARGEST).map(|_| take(big)).collect();
        assert!(all.iter().all(|p| !p.is_null()) && memory::short());
        assert!(take(small).is_null());
        give(place(all[1]).unwrap(), big);
        let p = take(small);
        assert_eq!(p, all[1]);
        assert_eq!(p as usize % 4096, 0);
        // SAFETY: the allocation has as many bytes.
        unsafe { p.write_bytes(7, 300) };
        give(place(p).unwrap(), small);
        for (i, p) in all.into_iter().enumerate() {
            if i != 1 {
                give(place(p).unwrap(), big);
            }
        }
        assert!(!memory::short());
        let huge = Layout::from_size_align(LARGEST + 1, 8).unwrap();
        assert!(take(huge).is_null());
    }
}
