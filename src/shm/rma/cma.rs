//! Cross-memory attach: copies between this process and another (process_vm_readv(2) and
//! process_vm_writev(2)).

use crate::hmem::{self, Piece, UserMem};
use crate::shm::ring::RingSegment;

/// Pieces that one system call copies at most.
pub(crate) const MANY: usize = 16;

/// The local side of a copy.
#[derive(Clone, Copy)]
pub enum LocalBuffer<'a> {
    Mem(&'a UserMem),
    Piece(Piece),
    /// Bytes to write.
    Bytes(&'a [u8]),
    /// Shared memory: offset and length.
    Shared(&'a RingSegment, usize, usize),
}

impl LocalBuffer<'_> {
    /// Bytes.
    #[inline]
    pub fn byte_len(&self) -> usize {
        match self {
            LocalBuffer::Mem(m) => m.len(),
            LocalBuffer::Piece(p) => p.len(),
            LocalBuffer::Bytes(b) => b.len(),
            LocalBuffer::Shared(_, _, n) => *n,
        }
    }

    /// The memory if some of it is a device's, which the system cannot copy.
    fn of_device(&self) -> Option<&UserMem> {
        match self {
            LocalBuffer::Mem(m) => Some(*m).filter(|m| !m.is_host()),
            LocalBuffer::Piece(_) | LocalBuffer::Bytes(_) | LocalBuffer::Shared(..) => None,
        }
    }
}

/// Copies all of `local` to memory of another process (`write`), or fills it from there; device
/// memory by way of host memory. The error says whether nothing was copied.
pub(crate) fn copy_all(pid: i32, write: bool, local: &LocalBuffer, at: u64) -> Result<(), bool> {
    if let Some(mem) = local.of_device() {
        let through = |host: Piece, off: usize| {
            copy_all(
                pid,
                write,
                &LocalBuffer::Piece(host),
                at.wrapping_add(off as u64),
            )
            .is_ok()
        };
        let copied = match write {
            true => hmem::read_staged(mem, through),
            false => hmem::write_staged(mem, through),
        };
        if !copied {
            // Another route carries the access out.
            hmem::take_failure(mem);
            return Err(false);
        }
        return Ok(());
    }
    let mut off = 0;
    while off < local.byte_len() {
        match copy(pid, write, local, off, at) {
            0 => return Err(off == 0),
            n => off += n,
        }
    }
    Ok(())
}

/// Copies bytes between this process and another, the local bytes from `off` on. Returns how many
/// were copied.
pub(crate) fn copy(pid: i32, write: bool, local: &LocalBuffer, off: usize, at: u64) -> usize {
    let mut iov = [libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    }; crate::hmem::MAX_SEGS];
    let mut n = 0;
    let mut put = |(addr, len): (usize, usize)| {
        if let Some(to) = iov.get_mut(n) {
            to.iov_base = addr as *mut _;
            to.iov_len = len;
            n += 1;
        }
    };
    match local {
        LocalBuffer::Mem(m) => m
            .part(off, usize::MAX)
            .pieces()
            .for_each(|p| put((p.addr(), p.len()))),
        // The bytes are read-only.
        LocalBuffer::Bytes(_) if !write => return 0,
        LocalBuffer::Bytes(b) => {
            let b = b.get(off..).unwrap_or(&[]);
            put((b.as_ptr() as usize, b.len()));
        }
        LocalBuffer::Piece(p) => {
            let p = p.part(off, usize::MAX);
            put((p.addr(), p.len()));
        }
        LocalBuffer::Shared(m, at, n) => match m.address(*at, *n) {
            Some(a) => put((a + off.min(*n), n - off.min(*n))),
            None => return 0,
        },
    }
    let n = n as libc::c_ulong;
    let far = libc::iovec {
        iov_base: at.wrapping_add(off as u64) as *mut _,
        iov_len: local.byte_len().saturating_sub(off),
    };
    // SAFETY: the local pieces are lent by the application (see `UserMem::new`), a slice that is
    // only read, or lie in shared memory that stays mapped as long as the borrow; what is read or
    // written in the other process is what its table has published for that.
    let moved = unsafe {
        if write {
            libc::process_vm_writev(pid, iov.as_ptr(), n, &far, 1, 0)
        } else {
            libc::process_vm_readv(pid, iov.as_ptr(), n, &far, 1, 0)
        }
    };
    usize::try_from(moved).unwrap_or(0)
}

/// Whether the last call failed because there is no such process.
pub(crate) fn process_gone() -> bool {
    std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Copies up to [`MANY`] pieces to or from memory of another process by one system call. Returns
/// how many were copied, counted from the first.
pub(crate) fn copy_batch(
    pid: i32,
    write: bool,
    parts: impl Iterator<Item = (Piece, u64)>,
) -> usize {
    let none = libc::iovec {
        iov_base: core::ptr::null_mut(),
        iov_len: 0,
    };
    let (mut near, mut far, mut lens) = ([none; MANY], [none; MANY], [0; MANY]);
    let (mut n, mut all) = (0usize, 0);
    // Adjacent pieces are joined: the system has a cost for each piece.
    let mut ends = (0, 0);
    for (len, (piece, at)) in lens.iter_mut().zip(parts) {
        let begins = (piece.addr(), at as usize);
        if n == 0 || begins != ends {
            if let Some((to, of)) = near.get_mut(n).zip(far.get_mut(n)) {
                to.iov_base = begins.0 as *mut _;
                of.iov_base = begins.1 as *mut _;
            }
            n += 1;
        }
        *len = piece.len();
        let both = [near.get_mut(n - 1), far.get_mut(n - 1)];
        both.into_iter().flatten().for_each(|v| v.iov_len += *len);
        ends = (begins.0.wrapping_add(*len), begins.1.wrapping_add(*len));
        all += 1;
    }
    let count = n as libc::c_ulong;
    // SAFETY: the pieces are lent by the application (see `Piece::new`); what is read or
    // written in the other process is what it has named for that, as `copy` has it.
    let moved = unsafe {
        if write {
            libc::process_vm_writev(pid, near.as_ptr(), count, far.as_ptr(), count, 0)
        } else {
            libc::process_vm_readv(pid, near.as_ptr(), count, far.as_ptr(), count, 0)
        }
    };
    let mut left = usize::try_from(moved).unwrap_or(0);
    let whole = |len: &&usize| match left.checked_sub(**len) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    lens.iter().take(all).take_while(whole).count()
}
