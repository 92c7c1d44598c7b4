//! Memory of a fuzz harness, with bytes on both sides that nothing may change.

use super::{Piece, UserMem};
use core::ffi::c_void;

/// What every byte holds until somebody stores there.
pub const UNTOUCHED: u8 = 0xa5;
/// Bytes on each side.
const BESIDE: usize = 4096;

/// See the module text.
pub struct Fenced {
    bytes: Vec<u8>,
    len: usize,
}

impl Fenced {
    pub fn new(len: usize) -> Fenced {
        let bytes = vec![UNTOUCHED; len + 2 * BESIDE];
        Fenced { bytes, len }
    }

    /// The memory as the library gets it, to be used as long as this value lives.
    pub fn mem(&mut self) -> UserMem {
        self.piece().into()
    }

    /// As [`Fenced::mem`].
    pub fn piece(&mut self) -> Piece {
        let at = self.bytes.as_mut_ptr().wrapping_add(BESIDE);
        // SAFETY: the harness keeps the memory until whatever it tests is gone.
        unsafe { Piece::new(at as *const c_void, self.len) }.unwrap_or(Piece::EMPTY)
    }

    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64 + BESIDE as u64
    }

    /// The bytes as they are now: the library writes to them behind the compiler's back.
    pub fn inside(&self) -> &[u8] {
        let bytes = core::hint::black_box(&self.bytes);
        bytes.get(BESIDE..BESIDE + self.len).unwrap_or(&[])
    }

    /// Whether nothing was stored inside.
    pub fn is_untouched(&self) -> bool {
        self.inside().iter().all(|b| *b == UNTOUCHED)
    }

    /// Panics when something was stored outside.
    pub fn check(&self, what: &str) {
        let bytes = core::hint::black_box(&self.bytes);
        let beside = |b: &[u8]| b.iter().all(|b| *b == UNTOUCHED);
        let ends = bytes.get(..BESIDE).is_some_and(beside)
            && bytes.get(BESIDE + self.len..).is_some_and(beside);
        assert!(ends, "a store beside {what}");
    }
}
