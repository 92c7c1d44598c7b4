//! Application memory, by kind. Host memory is one of them; device memory follows later.
//!
//! The layers above never hold a pointer: they hold a [`UserMem`], up to four pieces of memory that
//! the application lent for the life of one operation, and copy in and out of it by offset.
//! This room trusts one thing, stated at [`UserMem::new`]: that what the application said to be its
//! buffer is its buffer until the operation completes. Everything else is checked. `atomic` changes
//! elements in place, `arith` knows what each operation does to each type.

pub mod arith;
pub mod atomic;
#[cfg(any(test, feature = "internals"))]
pub mod fenced;
mod owned;
mod plain;

pub use owned::{combine, copy, Owned};
pub use plain::{copy_across, copy_bytes};

use core::ffi::c_void;

/// Most pieces of memory in one operation (`iov_limit`).
pub const MAX_SEGS: usize = 4;

/// One piece of memory lent by the application for one operation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Piece {
    addr: usize,
    len: usize,
}

impl Piece {
    /// No memory at all.
    pub const EMPTY: Piece = Piece { addr: 0, len: 0 };

    /// Takes note of a piece of memory. `None` when it is NULL and has a length.
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
}

impl Piece {
    /// The part that starts at `off` and is at most `len` long.
    #[inline]
    pub fn part(self, off: usize, len: usize) -> Piece {
        let off = off.min(self.len);
        Piece {
            addr: self.addr + off,
            len: len.min(self.len - off),
        }
    }
}

impl Piece {
    /// Copies `src` to its beginning and returns how many bytes had room.
    #[inline]
    pub fn store(&self, src: &[u8]) -> usize {
        let n = src.len().min(self.len);
        // SAFETY: the piece is the application's writable memory (see `new`) of at least `n` bytes.
        unsafe { copy_bytes(src.as_ptr(), self.addr as *mut u8, n) };
        n
    }

    /// Copies its beginning into `dst` and returns how many bytes there were.
    #[inline]
    pub fn load(&self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len);
        // SAFETY: as in `store`, with the directions exchanged.
        unsafe { copy_bytes(self.addr as *const u8, dst.as_mut_ptr(), n) };
        n
    }
}

impl From<Piece> for UserMem {
    fn from(p: Piece) -> UserMem {
        let mut m = UserMem::EMPTY;
        if p.len > 0 {
            (m.segs[0], m.count, m.len) = (p, 1, p.len);
        }
        m
    }
}

/// Memory lent by the application for one operation.
#[derive(Clone, Copy, Debug)]
pub struct UserMem {
    segs: [Piece; MAX_SEGS],
    count: u8,
    len: usize,
}

impl UserMem {
    /// No memory at all.
    pub const EMPTY: UserMem = UserMem {
        segs: [Piece::EMPTY; MAX_SEGS],
        count: 0,
        len: 0,
    };

    /// Takes note of pieces of memory. `None` when there are more than [`MAX_SEGS`], when their
    /// lengths overflow, or when a piece of non-zero length is NULL.
    ///
    /// # Safety
    /// Until the operation that uses the result completes, every piece is memory that may be read,
    /// and written if the operation stores into it; nothing else relies on its contents meanwhile.
    pub unsafe fn new(pieces: impl IntoIterator<Item = (*const c_void, usize)>) -> Option<UserMem> {
        let mut m = UserMem::EMPTY;
        for (addr, len) in pieces {
            if len == 0 {
                continue;
            }
            if addr.is_null() {
                return None;
            }
            let seg = m.segs.get_mut(m.count as usize)?;
            *seg = Piece {
                addr: addr as usize,
                len,
            };
            m.count += 1;
            m.len = m.len.checked_add(len)?;
        }
        Some(m)
    }

    /// The one piece it is; `None` when there are several.
    #[inline]
    pub fn one(&self) -> Option<Piece> {
        match self.count {
            0 => Some(Piece::EMPTY),
            1 => Some(self.segs[0]),
            _ => None,
        }
    }

    /// Bytes in all pieces together.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is not one byte.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, 0 when empty: for completion entries and error texts.
    pub fn addr(&self) -> usize {
        self.segs[0].addr
    }

    /// The part that starts at `off` and is at most `len` long.
    pub fn part(&self, mut off: usize, mut len: usize) -> UserMem {
        let mut m = UserMem::EMPTY;
        for s in self.segs.iter().take(self.count as usize) {
            if off >= s.len {
                off -= s.len;
                continue;
            }
            let n = (s.len - off).min(len);
            if n == 0 {
                break;
            }
            if let Some(to) = m.segs.get_mut(m.count as usize) {
                *to = Piece {
                    addr: s.addr + off,
                    len: n,
                };
                m.count += 1;
                m.len += n;
            }
            off = 0;
            len -= n;
        }
        m
    }

    /// This memory followed by `more`; `None` when that is too many pieces.
    pub fn join(mut self, more: &UserMem) -> Option<UserMem> {
        for s in more.segs.iter().take(more.count as usize) {
            *self.segs.get_mut(self.count as usize)? = *s;
            self.count += 1;
            self.len += s.len;
        }
        Some(self)
    }

    /// The pieces as (address, length), for a system call or a device.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.segs
            .iter()
            .take(self.count as usize)
            .map(|s| (s.addr, s.len))
    }

    /// Copies `src` into the memory from byte `off` on and returns how many bytes had room.
    #[inline]
    pub fn store(&self, off: usize, src: &[u8]) -> usize {
        let to = self.part(off, src.len());
        let mut done = 0;
        for (addr, len) in to.pieces() {
            // SAFETY: the piece is the application's writable memory (see `new`); `part` keeps the
            // pieces within it and their sum within `src`. Distinct objects do not overlap.
            unsafe {
                copy_bytes(src.as_ptr().add(done), addr as *mut u8, len);
            }
            done += len;
        }
        done
    }

    /// Copies from byte `off` on into `dst` and returns how many bytes there were.
    #[inline]
    pub fn load(&self, off: usize, dst: &mut [u8]) -> usize {
        let from = self.part(off, dst.len());
        let mut done = 0;
        for (addr, len) in from.pieces() {
            // SAFETY: as in `store`, with the directions exchanged.
            unsafe {
                copy_bytes(addr as *const u8, dst.as_mut_ptr().add(done), len);
            }
            done += len;
        }
        done
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
