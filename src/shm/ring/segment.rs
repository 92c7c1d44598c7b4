//! The file of a ring: a page of control words, and the bytes of its records.
//!
//! Its length is a power of two, so that a mask keeps an offset within the file: every message
//! accesses the words.

use super::layout::{LINE, READER_GONE};
use crate::core::Result;
use crate::hmem::{self, copy_across, copy_bytes, Piece, UserMem};
use crate::shm::memfd::MemfdMap;
use core::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering::*};
use std::os::fd::OwnedFd;

/// Bytes of records.
pub(crate) const SIZE: usize = 1 << 20;
/// Offset of the records. The bytes between the first page and this offset are never touched, and
/// take no memory.
pub(crate) const DATA: usize = SIZE;
/// Bytes of the file.
pub(crate) const FILE: usize = DATA + SIZE;
const _: () = assert!(FILE.is_power_of_two());
/// Lines that are requested before they are written, at most: where more are written, the first
/// hide the others' time. Half as many made messages of 8 KiB a twentieth slower.
const LINES_REQUESTED: usize = 7 * AT_ONCE;
/// Lines that [`hmem::prefetch_write_16`] requests.
const AT_ONCE: usize = 16;

/// See the module text.
pub struct RingSegment(MemfdMap);

impl RingSegment {
    /// A new file. `FI_ENOMEM` when there is no memory for it.
    pub fn create() -> Result<RingSegment> {
        MemfdMap::create(FILE).map(RingSegment)
    }

    /// A file that a peer made; `FI_EINVAL` when it is not one of these.
    pub fn open(fd: OwnedFd) -> Result<RingSegment> {
        MemfdMap::open(fd, FILE..=FILE).map(RingSegment)
    }

    /// Its descriptor, to be passed on; -1 after [`RingSegment::close_fd`].
    pub fn fd(&self) -> i32 {
        self.0.fd()
    }

    /// Closes the descriptor; the memory stays.
    pub fn close_fd(&mut self) {
        self.0.close_fd();
    }

    /// Whether the reader has released the ring. The reader's process sees a region that was marked
    /// as in use before this call, in every interleaving of the two.
    #[inline(always)]
    pub(crate) fn reader_gone(&self) -> bool {
        self.word(READER_GONE).load(Acquire) != 0
    }

    /// See [`RingSegment::reader_gone`].
    pub(super) fn end_reading(&self) {
        self.word(READER_GONE).store(1, Release);
        fence(SeqCst);
    }

    #[inline(always)]
    fn place(&self, off: usize) -> *mut u8 {
        // SAFETY: the mapping has FILE bytes (see `create` and `open`), and the mask keeps the
        // offset below that.
        unsafe { self.0.start().add(off & (FILE - 1)) }
    }

    /// Where `len` bytes from `off` on are, if they are all within the file.
    #[inline(always)]
    fn span(&self, off: usize, len: usize) -> Option<*mut u8> {
        let off = off & (FILE - 1);
        (len <= FILE - off).then(|| self.place(off))
    }

    /// Where `len` bytes from `off` on are in our memory; `None` beyond the end.
    pub fn address(&self, off: usize, len: usize) -> Option<usize> {
        self.span(off, len).map(|p| p as usize)
    }

    /// The word at `off`, a multiple of 8.
    #[inline(always)]
    pub fn word(&self, off: usize) -> &AtomicU64 {
        // SAFETY: aligned, within the mapping, and shared memory is only ever used atomically.
        unsafe { AtomicU64::from_ptr(self.place(off & !7).cast()) }
    }

    /// The half word at `off`, a multiple of 4.
    #[inline(always)]
    pub fn half(&self, off: usize) -> &AtomicU32 {
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.place(off & !3).cast()) }
    }

    /// The words of the line that `off` is in.
    #[inline(always)]
    pub fn line(&self, off: usize) -> &[AtomicU64; 8] {
        // SAFETY: as in `word`; a line lies within the mapping as a whole.
        unsafe { &*self.place(off & !63).cast::<[AtomicU64; 8]>() }
    }

    /// Requests the line `n` lines behind the one at `off` in the records, which will be read.
    #[inline(always)]
    pub fn prefetch_read(&self, off: usize, n: usize) {
        let records: *const u8 = self.place(DATA).cast();
        hmem::prefetch_read(records.wrapping_add((off + n * LINE) % SIZE));
    }

    /// Requests the first lines behind the one at `off` in the records, which will be written: `n`,
    /// or as many as make a difference.
    #[inline(always)]
    pub fn prefetch_write(&self, off: usize, n: usize) {
        let records: *const u8 = self.place(DATA).cast();
        let mut at = off;
        if n >= AT_ONCE {
            return self.prefetch_many(off, n);
        }
        for _ in 0..n {
            at = (at + LINE) % SIZE;
            hmem::prefetch_write(records.wrapping_add(at));
        }
    }

    /// As [`RingSegment::prefetch_write`], of many lines: an instruction or a little more each. No
    /// record goes over the end of the ring.
    #[inline(never)]
    fn prefetch_many(&self, off: usize, n: usize) {
        let at = (off + LINE) % SIZE;
        let n = n.min((SIZE - at) / LINE);
        let first: *const u8 = self.place(DATA + at).cast();
        let line = |i: usize| first.wrapping_add(i * LINE);
        if n >= LINES_REQUESTED {
            // The count is a constant: the compiler leaves no loop.
            return (0..LINES_REQUESTED)
                .step_by(AT_ONCE)
                .for_each(|i| hmem::prefetch_write_16(line(i)));
        }
        let mut i = 0;
        while i + AT_ONCE <= n {
            hmem::prefetch_write_16(line(i));
            i += AT_ONCE;
        }
        (i..n).for_each(|i| hmem::prefetch_write(line(i)));
    }

    /// Copies bytes in; nothing when they do not fit.
    #[inline]
    pub fn put(&self, off: usize, bytes: &[u8]) {
        if let Some(at) = self.span(off, bytes.len()) {
            // SAFETY: within the mapping; the peer may read meanwhile, and may observe torn bytes.
            unsafe { copy_across(bytes.as_ptr(), at, bytes.len()) };
        }
    }

    /// As [`RingSegment::put_mem`], one piece.
    #[inline(always)]
    pub fn put_piece(&self, off: usize, p: Piece) {
        if let Some(at) = self.span(off, p.len()) {
            // SAFETY: within the mapping, and the piece is readable (see `Piece::new`).
            unsafe { copy_across(p.addr() as *const u8, at, p.len()) };
        }
    }

    /// As [`RingSegment::get_mem`], into one piece, which has `len` bytes.
    #[inline(always)]
    pub fn get_piece(&self, off: usize, len: usize, into: Piece) {
        if let Some(at) = self.span(off, len).filter(|_| len <= into.len()) {
            // SAFETY: within the mapping, and the piece is writable (see `Piece::new`).
            unsafe { copy_bytes(at, into.addr() as *mut u8, len) };
        }
    }

    /// Copies application memory in; nothing when it does not fit.
    #[inline]
    pub fn put_mem(&self, off: usize, mem: &UserMem) {
        let Some(mut at) = self.span(off, mem.len()) else {
            return;
        };
        for p in mem.pieces() {
            // SAFETY: the pieces together fit, as checked.
            unsafe {
                p.copy_across(at, p.len());
                at = at.add(p.len());
            }
        }
    }

    /// Copies `len` bytes out into application memory, which has as many; nothing when they are not
    /// there.
    #[inline]
    pub fn get_mem(&self, off: usize, len: usize, into: &UserMem) {
        let Some(mut at) = self.span(off, len) else {
            return;
        };
        for p in into.part(0, len).pieces() {
            // SAFETY: the pieces together have at most as many bytes as are there.
            unsafe {
                p.copy_in(at, p.len());
                at = at.add(p.len());
            }
        }
    }

    /// Copies bytes out; nothing when they are not there.
    #[inline(always)]
    pub fn load(&self, off: usize, into: &mut [u8]) {
        if let Some(at) = self.span(off, into.len()) {
            // SAFETY: within the mapping, as long as `into`; the peer may write meanwhile, and its
            // writes may be observed torn.
            unsafe { copy_bytes(at, into.as_mut_ptr(), into.len()) };
        }
    }

    /// Appends `len` bytes to `into`; nothing when they are not there.
    #[inline]
    pub fn get(&self, off: usize, len: usize, into: &mut Vec<u8>) {
        let Some(at) = self.span(off, len) else {
            return;
        };
        into.reserve(len);
        // SAFETY: within the mapping, and `into` has room; a peer that writes meanwhile changes
        // what the bytes are, not how many.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            copy_bytes(at, end, len);
            into.set_len(into.len() + len);
        }
    }
}
