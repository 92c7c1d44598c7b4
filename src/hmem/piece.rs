//! One piece of application memory, and copies in and out of it: a [`Piece`] is host memory, a
//! [`Segment`] is of any kind.

use super::interface;
use super::plain::{copy_across, copy_bytes};
use super::{MemKind, UserMem};
use core::ffi::c_void;
use core::marker::PhantomData;

/// One piece of host memory lent by the application for one operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    addr: usize,
    len: usize,
}

impl Piece {
    /// No memory at all.
    pub const EMPTY: Piece = Piece { addr: 0, len: 0 };

    /// Describes a piece of memory. `None` when the address is NULL and the length is not 0.
    ///
    /// # Safety
    /// As [`UserMem::new`].
    #[inline]
    pub unsafe fn new(at: *const c_void, len: usize) -> Option<Piece> {
        if len == 0 {
            return Some(Piece::EMPTY);
        }
        (!at.is_null()).then_some(Piece {
            addr: at as usize,
            len,
        })
    }

    /// `len` bytes from address 0 on; see [`UserMem::from_null`].
    pub(super) fn from_null(len: usize) -> Piece {
        Piece { addr: 0, len }
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is not one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, 0 when empty.
    #[inline]
    pub fn addr(&self) -> usize {
        self.addr
    }

    /// The part that starts at `off` and is at most `len` long.
    #[inline]
    pub fn part(self, off: usize, len: usize) -> Piece {
        let off = off.min(self.len);
        Piece {
            addr: self.addr + off,
            len: len.min(self.len - off),
        }
    }

    /// Copies `src` to the beginning of the piece and returns how many bytes fit.
    #[inline]
    pub fn store(&self, src: &[u8]) -> usize {
        let n = src.len().min(self.len);
        // SAFETY: the piece is the application's writable memory (see `new`) of at least `n` bytes.
        unsafe { copy_bytes(src.as_ptr(), self.addr as *mut u8, n) };
        n
    }

    /// Copies the beginning of the piece into `dst` and returns how many bytes there were.
    #[inline]
    pub fn load(&self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len);
        // SAFETY: as in `store`, with the directions exchanged.
        unsafe { copy_bytes(self.addr as *const u8, dst.as_mut_ptr(), n) };
        n
    }
}

/// Host memory to read, lent until the call returns (FI_INJECT).
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectBuf<'a> {
    piece: Piece,
    lent: PhantomData<&'a [u8]>,
}

impl Piece {
    /// The bytes for a call that copies them: a piece is lent for longer, until its operation
    /// completes.
    #[inline(always)]
    pub fn as_inject(&self) -> InjectBuf<'_> {
        InjectBuf {
            piece: *self,
            lent: PhantomData,
        }
    }
}

impl<'a> From<&'a [u8]> for InjectBuf<'a> {
    fn from(b: &'a [u8]) -> InjectBuf<'a> {
        let (addr, len) = (b.as_ptr() as usize, b.len());
        InjectBuf {
            piece: Piece { addr, len },
            lent: PhantomData,
        }
    }
}

impl<'a> InjectBuf<'a> {
    /// Describes `len` bytes. `None` when the address is NULL and the length is not 0.
    ///
    /// # Safety
    /// The bytes are readable, and do not change, for the lifetime.
    #[inline]
    pub unsafe fn new(at: *const c_void, len: usize) -> Option<InjectBuf<'a>> {
        // SAFETY: as promised by the caller; the piece is only read.
        let piece = unsafe { Piece::new(at, len) }?;
        let lent = PhantomData;
        Some(InjectBuf { piece, lent })
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        if self.piece.is_empty() {
            return &[];
        }
        // SAFETY: readable for as long as `'a` lasts, by the contract of the piece's constructor
        // (`new`, `Piece::new`, or the slice that it was made of).
        unsafe { core::slice::from_raw_parts(self.piece.addr as *const u8, self.piece.len) }
    }

    /// The memory as a [`Piece`], for an operation that only reads, and ends before the call
    /// returns.
    #[inline]
    pub fn piece(&self) -> Piece {
        self.piece
    }
}

impl From<Piece> for UserMem {
    fn from(p: Piece) -> UserMem {
        UserMem::of_piece(p)
    }
}

/// One piece of memory of any kind.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// Readable by the processor only if the kind is host memory.
    at: Piece,
    kind: MemKind,
}

impl Segment {
    pub(super) fn new(at: Piece, kind: MemKind) -> Segment {
        Segment { at, kind }
    }

    /// Address of the first byte, for a device.
    #[inline]
    pub fn addr(&self) -> usize {
        self.at.addr
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.at.len
    }

    /// Whether there is not one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at.is_empty()
    }

    /// Its kind.
    #[inline]
    pub fn kind(&self) -> MemKind {
        self.kind
    }

    /// The piece if it is host memory.
    #[inline]
    pub fn host(&self) -> Option<Piece> {
        (self.kind == MemKind::Host).then_some(self.at)
    }

    /// The part that starts at `off` and is at most `len` long.
    #[inline]
    pub fn part(&self, off: usize, len: usize) -> Segment {
        Segment::new(self.at.part(off, len), self.kind)
    }

    /// As [`Segment::copy_in`], from a slice.
    #[inline]
    pub fn store(&self, src: &[u8]) -> usize {
        // SAFETY: `src` is borrowed: `src.len()` bytes are readable during the call.
        unsafe { self.copy_in(src.as_ptr(), src.len()) }
    }

    /// As [`Segment::copy_out`], into a slice.
    #[inline]
    pub fn load(&self, dst: &mut [u8]) -> usize {
        // SAFETY: `dst` is borrowed mutably: `dst.len()` bytes are writable during the call.
        unsafe { self.copy_out(dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies `len` bytes to the beginning of the segment and returns how many were copied: as many
    /// as fit, or none if a device failed.
    ///
    /// # Safety
    /// `from` has `len` readable bytes, which another process may write to meanwhile.
    #[inline(always)]
    pub unsafe fn copy_in(&self, from: *const u8, len: usize) -> usize {
        let n = len.min(self.at.len);
        if self.kind != MemKind::Host {
            // SAFETY: as the caller vouches.
            return unsafe { self.device_in(from, n) };
        }
        // SAFETY: the piece is the application's writable memory (see `Piece::new`) of at least `n`
        // bytes.
        unsafe { copy_bytes(from, self.at.addr as *mut u8, n) };
        n
    }

    /// Copies `len` bytes from the beginning of the segment and returns how many were copied: as
    /// many as there are, or none if a device failed.
    ///
    /// # Safety
    /// `to` has `len` writable bytes, which another process may read meanwhile.
    #[inline(always)]
    pub unsafe fn copy_out(&self, to: *mut u8, len: usize) -> usize {
        let n = len.min(self.at.len);
        if self.kind != MemKind::Host {
            // SAFETY: as the caller vouches.
            return unsafe { self.device_out(to, n) };
        }
        // SAFETY: as in `copy_in`, with the directions exchanged.
        unsafe { copy_bytes(self.at.addr as *const u8, to, n) };
        n
    }

    /// As [`Segment::copy_out`], to memory that is in another processor's cache.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn copy_across(&self, to: *mut u8, len: usize) -> usize {
        if self.kind != MemKind::Host {
            // SAFETY: as the caller vouches.
            return unsafe { self.copy_out(to, len) };
        }
        let n = len.min(self.at.len);
        // SAFETY: as in `copy_out`.
        unsafe { copy_across(self.at.addr as *const u8, to, n) };
        n
    }

    /// As [`Segment::copy_in`], to device memory.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn device_in(&self, from: *const u8, len: usize) -> usize {
        // SAFETY: as the caller vouches.
        let done = unsafe { interface::of(self.kind).copy_in(self.at.addr, from, len) };
        done.map_or_else(|_| self.failed(len), |()| len)
    }

    /// As [`Segment::copy_out`], from device memory. If the copy fails, `to` is filled with zeros:
    /// its former contents may be of another message.
    ///
    /// # Safety
    /// As there.
    #[inline(never)]
    unsafe fn device_out(&self, to: *mut u8, len: usize) -> usize {
        // SAFETY: as the caller vouches.
        let done = unsafe { interface::of(self.kind).copy_out(to, self.at.addr, len) };
        if done.is_ok() {
            return len;
        }
        // SAFETY: as the caller vouches.
        unsafe { to.write_bytes(0, len) };
        self.failed(len)
    }

    /// Records the failure, which the completion of the operation reports.
    fn failed(&self, len: usize) -> usize {
        interface::note_failure(self.at.addr, len);
        0
    }
}
