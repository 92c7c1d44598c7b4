//! Memory of a fuzz harness, with bytes on both sides that nothing may change.

use super::{Piece, UserMem};
use core::ffi::c_void;
use std::collections::HashMap;

/// Initial value of every byte.
pub const UNTOUCHED: u8 = 0xa5;
/// Bytes on each side.
const BESIDE: usize = 4096;

/// See the module text.
pub struct FencedBuf {
    bytes: Vec<u8>,
    len: usize,
}

impl FencedBuf {
    /// Memory of `len` bytes.
    pub fn new(len: usize) -> FencedBuf {
        let bytes = vec![UNTOUCHED; len + 2 * BESIDE];
        FencedBuf { bytes, len }
    }

    /// The memory to pass to the library, which may use it as long as this value lives.
    pub fn mem(&mut self) -> UserMem {
        self.piece().into()
    }

    /// As [`FencedBuf::mem`].
    pub fn piece(&mut self) -> Piece {
        let at = self.bytes.as_mut_ptr().wrapping_add(BESIDE);
        // SAFETY: the harness keeps the memory until whatever it tests is gone.
        unsafe { Piece::new(at as *const c_void, self.len) }.unwrap_or(Piece::EMPTY)
    }

    /// Address of the first byte.
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

/// Buffers that the code under test may use until the operation that holds each ends.
#[derive(Default)]
pub struct LentBuffers {
    /// By the operation's number: the buffer, and whether the operation stores to it.
    lent: HashMap<u64, (FencedBuf, bool)>,
    /// Buffers of ended operations, with the bytes that each held at that end.
    returned: Vec<(FencedBuf, Vec<u8>)>,
}

impl LentBuffers {
    /// Operation `id` holds `memory`; `stores` when it may store to the buffer.
    pub fn lend(&mut self, id: u64, memory: FencedBuf, stores: bool) {
        self.lent.insert(id, (memory, stores));
    }

    /// Operation `id` has ended. Panics when it ends twice or has stored where it must not.
    pub fn end(&mut self, id: u64) {
        let Some((memory, stores)) = self.lent.remove(&id) else {
            panic!("operation {id} ends twice");
        };
        memory.check("a buffer");
        if stores {
            self.retire(memory);
        } else {
            assert!(memory.is_untouched(), "a store to what is sent");
        }
    }

    /// Nothing may store to `memory` from now on.
    pub fn retire(&mut self, memory: FencedBuf) {
        let left = memory.inside().to_vec();
        self.returned.push((memory, left));
    }

    /// Operations under way.
    pub fn count(&self) -> usize {
        self.lent.len()
    }

    /// Panics when an operation is under way, or something was stored to a buffer after its end.
    pub fn check_all_ended(&self) {
        assert!(self.lent.is_empty(), "operations do not end");
        for (memory, left) in &self.returned {
            memory.check("a buffer that is no longer lent");
            let same = memory.inside() == left.as_slice();
            assert!(same, "a store to what is no longer lent");
        }
    }
}
