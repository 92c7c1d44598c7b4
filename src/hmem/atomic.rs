//! Atomic operations on application memory.
//!
//! Aligned elements of up to eight bytes are changed by the processor's compare-and-swap, so that
//! they are atomic with respect to other processes and to C atomics of the application. Longer or
//! unaligned elements, and those in device memory, are atomic only with respect to each other
//! within this process, under one lock.

use super::arith::{Element, ELEMENT_MAX};
use super::{MemKind, Piece, Segment, UserMem};
use crate::core::process::PerProcess;
use crate::core::sync::Mutex;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering::SeqCst};

static LONG: PerProcess<Mutex<()>> = PerProcess::new();

/// Appends the elements of `size` bytes in `mem` to `former`. Aligned elements of 4 and 8 bytes are
/// read by one load, all others under the lock.
pub fn fetch(mem: &UserMem, size: usize, former: &mut Vec<u8>) {
    for p in mem.pieces() {
        for at in (0..p.len() / size * size).step_by(size) {
            load(p.part(at, size), former);
        }
    }
}

fn load(mem: Segment, former: &mut Vec<u8>) {
    let (addr, size) = (mem.addr(), mem.len());
    if mem.kind() == MemKind::Host && addr.is_multiple_of(size.max(1)) {
        // SAFETY: `size` bytes from `addr` on are the application's (see `UserMem::new`), and
        // aligned.
        unsafe {
            match size {
                4 => {
                    let v = AtomicU32::from_ptr(addr as *mut u32).load(SeqCst);
                    return former.extend_from_slice(&v.to_ne_bytes());
                }
                8 => {
                    let v = AtomicU64::from_ptr(addr as *mut u64).load(SeqCst);
                    return former.extend_from_slice(&v.to_ne_bytes());
                }
                _ => {}
            }
        }
    }
    let _alone = LONG.lock();
    let mut old = [0u8; ELEMENT_MAX];
    if let Some(old) = old.get_mut(..size) {
        mem.load(old);
        former.extend_from_slice(old);
    }
}

/// Applies `f` to all elements of `size` bytes in `mem`, and appends their former values to
/// `former`. `src` has one operand for each element, `cmp` one compare value for each or nothing;
/// `f` gets an empty slice where they are shorter.
pub fn apply(mem: &UserMem, size: usize, f: Element, src: &[u8], cmp: &[u8], former: &mut Vec<u8>) {
    let mut done = 0;
    for p in mem.pieces() {
        for at in (0..p.len() / size * size).step_by(size) {
            let from = done + at;
            // A read carries no operands.
            let s = src.get(from..from + size).unwrap_or(&[]);
            let c = cmp.get(from..from + size).unwrap_or(&[]);
            one(p.part(at, size), f, s, c, former);
        }
        done += p.len();
    }
}

macro_rules! swap {
    ($atomic:ty, $int:ty, $addr:expr, $f:expr, $src:expr, $cmp:expr) => {{
        // SAFETY: the address is the application's writable memory of at least this size (see
        // `UserMem::new`), and aligned, as the caller checked.
        let cell = unsafe { <$atomic>::from_ptr($addr as *mut $int) };
        let mut old = cell.load(SeqCst);
        loop {
            let new = $f(&old.to_ne_bytes(), $src, $cmp);
            let new = <$int>::from_ne_bytes(new.first_chunk().copied().unwrap_or_default());
            match cell.compare_exchange_weak(old, new, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        let mut former = [0; WORD];
        if let Some(to) = former.first_chunk_mut() {
            *to = old.to_ne_bytes();
        }
        Some(former)
    }};
}

/// Longest element that the processor changes atomically, bytes.
pub const WORD: usize = 8;

/// Applies `f` to one element and returns its former value, padded to [`WORD`] bytes. `None`, and
/// nothing done, where the processor cannot change the element atomically.
pub fn word(mem: Piece, f: Element, src: &[u8], cmp: &[u8]) -> Option<[u8; WORD]> {
    let (addr, size) = (mem.addr(), mem.len());
    if !addr.is_multiple_of(size.max(1)) {
        return None;
    }
    match size {
        1 => swap!(AtomicU8, u8, addr, f, src, cmp),
        2 => swap!(AtomicU16, u16, addr, f, src, cmp),
        4 => swap!(AtomicU32, u32, addr, f, src, cmp),
        8 => swap!(AtomicU64, u64, addr, f, src, cmp),
        _ => None,
    }
}

fn one(mem: Segment, f: Element, src: &[u8], cmp: &[u8], former: &mut Vec<u8>) {
    if let Some(old) = mem.host().and_then(|m| word(m, f, src, cmp)) {
        return former.extend_from_slice(old.get(..mem.len()).unwrap_or(&[]));
    }
    let _alone = LONG.lock();
    let mut old = [0u8; ELEMENT_MAX];
    let Some(old) = old.get_mut(..mem.len()) else {
        return;
    };
    mem.load(old);
    let new = f(old, src, cmp);
    mem.store(new.get(..mem.len()).unwrap_or(&[]));
    former.extend_from_slice(old);
}

#[cfg(test)]
mod tests {
    use super::super::arith::element;
    use super::*;
    use crate::types::*;

    #[test]
    fn aligned_and_unaligned_elements_change_and_report_what_they_were() {
        let mut buf = [0u64; 4];
        for shift in [0usize, 3] {
            buf = [10, 20, 30, 40];
            let bytes: Vec<u8> = buf.iter().flat_map(|v| v.to_ne_bytes()).collect();
            let base = buf.as_mut_ptr() as *mut u8;
            // SAFETY: within `buf`, which lives on.
            let mem = unsafe { UserMem::new([(base.add(shift) as *const core::ffi::c_void, 16)]) }
                .unwrap();
            let src: Vec<u8> = [1u64, 2].iter().flat_map(|v| v.to_ne_bytes()).collect();
            let mut former = Vec::new();
            apply(
                &mem,
                8,
                element(FI_UINT64, FI_SUM).unwrap(),
                &src,
                &[],
                &mut former,
            );
            assert_eq!(former, bytes[shift..shift + 16]);
            if shift == 0 {
                assert_eq!(buf, [11, 22, 30, 40]);
            }
        }
        assert_ne!(buf[0], 10);
    }
}
