//! A list of the memory that one system call sends, or receives into.

use crate::hmem::{UserMem, MAX_SEGS};
use std::marker::PhantomData;

/// Pieces of memory that one call sends at most.
pub(crate) const GATHER_MAX: usize = 16;

/// Memory that one call sends, in order.
pub(crate) struct Gather<'a> {
    pub(super) iov: [libc::iovec; GATHER_MAX],
    pub(super) count: usize,
    len: usize,
    /// Bytes at most.
    most: usize,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// An empty list.
    #[inline]
    pub(crate) fn new() -> Gather<'a> {
        Self::limited(usize::MAX)
    }

    /// An empty list that leaves out what goes beyond `most` bytes.
    #[inline]
    pub(crate) fn limited(most: usize) -> Gather<'a> {
        let none = libc::iovec {
            iov_base: core::ptr::null_mut(),
            iov_len: 0,
        };
        Gather {
            iov: [none; GATHER_MAX],
            count: 0,
            len: 0,
            most,
            bytes: PhantomData,
        }
    }

    /// Whether there is room for a header and the pieces of one operation, and for half of the
    /// bytes.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.count + MAX_SEGS < GATHER_MAX && self.len < self.most / 2
    }

    /// Bytes in all pieces together.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) fn push(&mut self, at: *const u8, len: usize) {
        let len = len.min(self.most - self.len);
        if len == 0 {
            return;
        }
        if let Some(v) = self.iov.get_mut(self.count) {
            v.iov_base = at.cast_mut().cast();
            v.iov_len = len;
            self.count += 1;
            self.len += len;
        }
    }

    /// Appends bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, b: &'a [u8]) {
        self.push(b.as_ptr(), b.len());
    }

    /// Appends application memory, which has to be host memory.
    #[inline]
    pub(crate) fn mem(&mut self, m: &UserMem) {
        for p in m.pieces().filter_map(|p| p.host()) {
            self.push(p.addr() as *const u8, p.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limited_list_leaves_out_what_goes_beyond() {
        let mut g = Gather::limited(100);
        g.bytes(&[0; 40]);
        assert!(g.has_room());
        g.bytes(&[0; 40]);
        assert_eq!((g.has_room(), g.len()), (false, 80));
        g.bytes(&[0; 40]);
        g.bytes(&[0; 40]);
        assert_eq!((g.len(), g.count), (100, 3));
    }
}
