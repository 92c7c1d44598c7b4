//! Memory of the library's own in the form of application memory, and copies between any two
//! [`UserMem`].

use super::arith::{Element, ELEMENT_MAX};
use super::UserMem;
use core::ffi::c_void;

/// A buffer of the library's own for operations.
#[derive(Debug)]
pub struct Owned {
    mem: UserMem,
    /// Not a `Box`: moving a box invalidates pointers into it.
    _bytes: Vec<u8>,
}

impl Owned {
    /// A buffer of `len` zero bytes.
    ///
    /// # Safety
    /// The result is kept, wherever it moves, until every operation that uses its memory is over.
    pub unsafe fn new(len: usize) -> Owned {
        let mut bytes = vec![0u8; len];
        let at = bytes.as_mut_ptr().cast::<c_void>().cast_const();
        // SAFETY: the bytes stay where they are for as long as the caller promised.
        let mem = unsafe { UserMem::new([(at, len)]) }.unwrap_or(UserMem::EMPTY);
        Owned { mem, _bytes: bytes }
    }

    /// The buffer, for operations.
    pub fn mem(&self) -> UserMem {
        self.mem
    }
}

/// Memory for a test, which stays.
#[cfg(test)]
pub(crate) fn leaked(bytes: &[u8]) -> UserMem {
    let bytes = bytes.to_vec().leak();
    // SAFETY: the bytes stay for good, and nothing else refers to them.
    unsafe { UserMem::new([(bytes.as_ptr().cast::<c_void>(), bytes.len())]) }.expect("one piece")
}

/// Bytes moved at a time, a multiple of every element's size.
const CHUNK: usize = 4096;

/// Copies as much as the shorter of both has.
pub fn copy(from: &UserMem, into: &UserMem) {
    let mut buf = [0; CHUNK];
    let mut off = 0;
    loop {
        let n = from.load(off, &mut buf);
        if n == 0 {
            return;
        }
        into.store(off, buf.get(..n).unwrap_or(&[]));
        off += n;
    }
}

/// Stores `f(low, high)` of every element of `size` bytes into `into`, which may be `low` or
/// `high`.
pub fn combine(f: Element, size: usize, low: &UserMem, high: &UserMem, into: &UserMem) {
    let (mut a, mut b) = ([0; CHUNK], [0; CHUNK]);
    let mut off = 0;
    loop {
        let n = low.load(off, &mut a).min(high.load(off, &mut b));
        if n == 0 || size == 0 || size > ELEMENT_MAX {
            return;
        }
        let pairs = a.chunks_exact_mut(size).zip(b.chunks_exact(size));
        for (x, y) in pairs.take(n / size) {
            let new = f(x, y, &[]);
            x.copy_from_slice(new.get(..size).unwrap_or(&[]));
        }
        into.store(off, a.get(..n).unwrap_or(&[]));
        off += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hmem::arith;
    use crate::types::*;

    #[test]
    fn long_arrays_are_combined_in_place() {
        let n = 3 * CHUNK / 8 + 5;
        // SAFETY: both live to the end of the test.
        let (a, b) = unsafe { (Owned::new(8 * n), Owned::new(8 * n)) };
        let (x, y) = (a.mem(), b.mem());
        for i in 0..n as u64 {
            x.store(8 * i as usize, &i.to_ne_bytes());
            y.store(8 * i as usize, &(1000 * i).to_ne_bytes());
        }
        let sum = arith::element(FI_UINT64, FI_SUM).unwrap();
        combine(sum, 8, &x, &y, &y);
        copy(&y, &x);
        let mut got = [0; 8];
        for i in 0..n as u64 {
            x.load(8 * i as usize, &mut got);
            assert_eq!(u64::from_ne_bytes(got), 1001 * i);
        }
    }
}
