//! Application memory, by kind: host memory and device memory.
//!
//! The layers above hold no pointers. They hold a [`UserMem`], up to four pieces of memory that the
//! application lent for one operation, and copy in and out of it by offset. Each piece has a
//! [`MemKind`]. Only this room accesses application memory by processor, and only host memory; an
//! [`Interface`] copies device memory. A [`Piece`] is always host memory: the processor, the system
//! or a peer may access it directly.
//!
//! This room relies on one promise, stated at [`UserMem::new`]: the memory that the application
//! passed stays valid until the operation completes. Everything else is checked. `atomic` changes
//! elements in place, `arith` has the arithmetic of each operation and type.

pub mod arith;
pub mod atomic;
mod bounce;
mod cuda;
mod desc;
pub(crate) mod dl;
#[cfg(test)]
pub(crate) mod fake;
#[cfg(any(test, feature = "internals"))]
pub mod fenced;
mod gdr;
mod interface;
mod neuron;
mod owned;
mod piece;
mod plain;
mod rocr;
mod running;
mod shared;
mod staging;
mod synapse;

pub(crate) use bounce::BounceBuffers;
pub use desc::MemKind;
pub(crate) use interface::{
    any as any_device, copies, device_memory_expected, expect_device_memory, export, owner,
    peer_to_peer, present, registered, share, take_failure, why_none, CpuMapping,
};
pub use interface::{ExportedBuf, Interface, IpcHandle, IPC_WORDS};
#[cfg(test)]
pub(crate) use owned::leaked;
pub use owned::{combine, copy, Owned};
pub use piece::{InjectBuf, Piece, Segment};
pub use plain::{copy_across, copy_bytes, prefetch_read, prefetch_write, prefetch_write_16};
pub(crate) use shared::{PendingCopy, SharedMemory};
pub(crate) use staging::{read_staged, write_staged};

use core::ffi::c_void;

/// Bytes of a page of the system.
pub(crate) fn page_size() -> usize {
    // SAFETY: only a number is passed.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Most pieces of memory in one operation (`iov_limit`).
pub const MAX_SEGS: usize = 4;

/// Memory lent by the application for one operation.
#[derive(Clone, Copy, Debug)]
pub struct UserMem {
    segs: [Piece; MAX_SEGS],
    len: usize,
    count: u8,
    kinds: [MemKind; MAX_SEGS],
}

impl UserMem {
    /// No memory at all.
    pub const EMPTY: UserMem = UserMem {
        segs: [Piece::EMPTY; MAX_SEGS],
        len: 0,
        count: 0,
        kinds: [MemKind::Host; MAX_SEGS],
    };

    /// Describes pieces of host memory. `None` when there are more than [`MAX_SEGS`], when their
    /// lengths overflow, or when a piece of non-zero length is NULL.
    ///
    /// # Safety
    /// Until the operation that uses the result completes, every piece is memory that may be read,
    /// and written if the operation stores into it; nothing else relies on its contents meanwhile.
    pub unsafe fn new(pieces: impl IntoIterator<Item = (*const c_void, usize)>) -> Option<UserMem> {
        let host = |(addr, len)| (addr, len, MemKind::Host);
        // SAFETY: as the caller vouches.
        unsafe { UserMem::of_kinds(pieces.into_iter().map(host)) }
    }

    /// All host memory from address 0 on, `len` bytes: a region of the whole address space.
    ///
    /// # Safety
    /// Every part of it that is used is memory as [`UserMem::new`] says.
    pub unsafe fn from_null(len: usize) -> UserMem {
        UserMem::of_piece(Piece::from_null(len))
    }

    /// As [`UserMem::new`], for pieces of any kind.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn of_kinds(
        pieces: impl IntoIterator<Item = (*const c_void, usize, MemKind)>,
    ) -> Option<UserMem> {
        let mut m = UserMem::EMPTY;
        for (addr, len, kind) in pieces {
            if len == 0 {
                continue;
            }
            // SAFETY: as the caller vouches.
            let piece = unsafe { Piece::new(addr, len) }?;
            m.push(piece, kind)?;
        }
        Some(m)
    }

    fn push(&mut self, p: Piece, kind: MemKind) -> Option<()> {
        let at = usize::from(self.count);
        *self.segs.get_mut(at)? = p;
        *self.kinds.get_mut(at)? = kind;
        self.count += 1;
        self.len = self.len.checked_add(p.len())?;
        Some(())
    }

    #[inline]
    fn of_piece(p: Piece) -> UserMem {
        let mut m = UserMem::EMPTY;
        if !p.is_empty() {
            (m.segs[0], m.count, m.len) = (p, 1, p.len());
        }
        m
    }

    /// Whether all pieces are host memory.
    #[inline]
    pub fn is_host(&self) -> bool {
        self.kinds == [MemKind::Host; MAX_SEGS]
    }

    /// The only piece, of any kind; `None` when there are none or several.
    #[inline]
    pub fn single(&self) -> Option<Segment> {
        (self.count == 1).then(|| Segment::new(self.segs[0], self.kinds[0]))
    }

    /// The only piece, which is host memory, or an empty one without pieces; `None` when there are
    /// several, or it is device memory.
    #[inline]
    pub fn one(&self) -> Option<Piece> {
        match self.count {
            0 => Some(Piece::EMPTY),
            1 if self.kinds[0] == MemKind::Host => Some(self.segs[0]),
            _ => None,
        }
    }

    /// Bytes in all pieces together.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the memory is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, 0 when empty: for completion entries and error texts.
    pub fn addr(&self) -> usize {
        self.segs[0].addr()
    }

    /// The part that starts at `off` and is at most `len` long.
    #[inline]
    pub fn part(&self, off: usize, len: usize) -> UserMem {
        if self.count > 1 {
            return self.part_of_several(off, len);
        }
        let p = self.segs[0].part(off, len);
        UserMem {
            kinds: self.kinds,
            ..UserMem::of_piece(p)
        }
    }

    #[cold]
    fn part_of_several(&self, mut off: usize, mut len: usize) -> UserMem {
        let mut m = UserMem::EMPTY;
        let all = self.segs.iter().zip(self.kinds);
        for (s, kind) in all.take(self.count as usize) {
            if off >= s.len() {
                off -= s.len();
                continue;
            }
            let piece = s.part(off, len);
            if piece.is_empty() || m.push(piece, kind).is_none() {
                break;
            }
            off = 0;
            len -= piece.len();
        }
        m
    }

    /// This memory followed by `more`; `None` when that is too many pieces.
    pub fn join(mut self, more: &UserMem) -> Option<UserMem> {
        let all = more.segs.iter().zip(more.kinds);
        for (s, kind) in all.take(more.count as usize) {
            self.push(*s, kind)?;
        }
        Some(self)
    }

    /// The pieces.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = Segment> + '_ {
        let all = self.segs.iter().zip(self.kinds);
        all.take(self.count as usize)
            .map(|(s, kind)| Segment::new(*s, kind))
    }

    /// Copies `src` into the memory from byte `off` on and returns how many bytes were copied: as
    /// many as fit, unless a device failed.
    #[inline]
    pub fn store(&self, off: usize, src: &[u8]) -> usize {
        let to = self.part(off, src.len());
        let (mut at, mut done) = (0, 0);
        for p in to.pieces() {
            // SAFETY: the pieces together have at most as many bytes as `src`.
            done += unsafe { p.copy_in(src.as_ptr().add(at), p.len()) };
            at += p.len();
        }
        done
    }

    /// Copies from byte `off` on into `dst` and returns how many bytes were copied: as many as
    /// there were, unless a device failed.
    #[inline]
    pub fn load(&self, off: usize, dst: &mut [u8]) -> usize {
        let from = self.part(off, dst.len());
        let (mut at, mut done) = (0, 0);
        for p in from.pieces() {
            // SAFETY: the pieces together have at most as many bytes as `dst`.
            done += unsafe { p.copy_out(dst.as_mut_ptr().add(at), p.len()) };
            at += p.len();
        }
        done
    }

    /// As [`UserMem::store`], for memory that no operation of this process reports on: returns
    /// whether everything that fits was copied, and leaves no failure for `take_failure`.
    #[inline]
    pub fn try_store(&self, off: usize, src: &[u8]) -> bool {
        let fits = self.len.saturating_sub(off).min(src.len());
        self.store(off, src) == fits || self.drop_failure()
    }

    /// As [`UserMem::load`], see [`UserMem::try_store`].
    #[inline]
    pub fn try_load(&self, off: usize, dst: &mut [u8]) -> bool {
        let there = self.len.saturating_sub(off).min(dst.len());
        self.load(off, dst) == there || self.drop_failure()
    }

    #[cold]
    fn drop_failure(&self) -> bool {
        take_failure(self);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_span_pieces_and_copies_stay_inside() {
        let mut a = [1u8, 2, 3];
        let mut b = [4u8, 5, 6, 7];
        let pieces = [
            (a.as_mut_ptr() as *const c_void, a.len()),
            (core::ptr::null(), 0),
            (b.as_mut_ptr() as *const c_void, b.len()),
        ];
        // SAFETY: both arrays outlive `m` and nothing else touches them meanwhile.
        let m = unsafe { UserMem::new(pieces) }.unwrap();
        assert_eq!(m.len(), 7);
        let mut out = [0u8; 4];
        assert_eq!(m.load(2, &mut out), 4);
        assert_eq!(out, [3, 4, 5, 6]);
        assert_eq!(m.store(5, &[9, 9, 9, 9]), 2);
        assert_eq!(m.part(6, 9).len(), 1);
        assert_eq!(m.part(7, 1).len(), 0);
        assert_eq!(b, [4, 5, 9, 9]);
    }

    #[test]
    fn device_memory_is_copied_by_its_interface_alone() {
        let mut host = [1u8, 2, 3];
        // SAFETY: `host` outlives the result.
        let near = unsafe { UserMem::new([(host.as_mut_ptr().cast_const().cast(), 3)]) };
        let far = fake::alloc(&[7; 4]);
        let m = near.unwrap().join(&far).unwrap();
        assert!(!m.is_host() && m.part(0, 3).one().is_some() && m.part(3, 4).one().is_none());
        assert_eq!(m.store(1, &[10, 11, 12, 13]), 4);
        assert_eq!(fake::bytes(&m), [1, 10, 11, 12, 13, 7, 7]);
        // A copy that fails, or whose kind has no interface, is not reported as copied.
        for (addr, kind) in [(1usize << 40, fake::KIND), (8, MemKind::Neuron)] {
            // SAFETY: the memory is never accessed.
            let m = unsafe { UserMem::of_kinds([(addr as *const c_void, 8, kind)]) }.unwrap();
            assert_eq!((m.store(0, &[0; 8]), m.load(0, &mut [0; 8])), (0, 0));
        }
    }

    #[test]
    fn bad_pieces_are_refused() {
        // SAFETY: nothing is read or written through the result.
        unsafe {
            assert!(UserMem::new([(core::ptr::null(), 1)]).is_none());
            let p = 8usize as *const c_void;
            assert!(UserMem::new([(p, usize::MAX), (p, 2)]).is_none());
            assert!(UserMem::new(vec![(p, 1); 5]).is_none());
        }
    }
}
