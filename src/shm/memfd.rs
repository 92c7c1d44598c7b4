//! Memory that two processes share: an anonymous file (memfd) mapped by both.
//!
//! Such a file has no name and is freed with its last user, even if that process crashes. A process
//! that receives a file from a peer checks the seal against shrinking: a peer that could truncate
//! the file would kill us with SIGBUS. The contents may change at any time; they are accessed by
//! atomic loads and stores and by copies only.

use crate::core::Result;
use crate::device::host::above_standard;
use crate::types::*;
use core::ffi::c_void;
use core::sync::atomic::AtomicU64;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A mapped file. An access beyond its end goes to offset 0 instead.
pub(crate) struct MemfdMap {
    at: *mut u8,
    len: usize,
    /// Open until it has been passed to the peer: the mapping needs no descriptor.
    fd: Option<OwnedFd>,
}

// SAFETY: the mapping lives as long as the value, and is only reached as the module text describes.
unsafe impl Send for MemfdMap {}
// SAFETY: as above.
unsafe impl Sync for MemfdMap {}

/// File system type of huge pages (statfs(2)): an access to a hole of such a file, too, raises
/// SIGBUS.
const HUGETLBFS: i64 = 0x958458f6;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Most bytes that a file may have.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the struct is valid for the call.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

impl MemfdMap {
    /// A new file of `len` bytes, all zero. `FI_ENOMEM` when there is no memory or no descriptor
    /// for it.
    pub(crate) fn create(len: usize) -> Result<MemfdMap> {
        if file_size_limit() < len as u64 {
            // A longer file would end the program (SIGXFSZ).
            crate::warn_limited!(
                FI_LOG_MR,
                "no shared memory: files are limited to {} bytes (ulimit -f), wanted {len}",
                file_size_limit()
            );
            return Err(FI_ENOMEM);
        }
        // SAFETY: the name is a C string; the descriptor is owned from here on.
        let fd = unsafe {
            let fd = libc::memfd_create(
                c"libfabric-efa".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            );
            if fd < 0 {
                let e = std::io::Error::last_os_error();
                crate::warn_limited!(FI_LOG_MR, "no shared memory: memfd_create(2): {e}");
                return Err(FI_ENOMEM);
            }
            above_standard(OwnedFd::from_raw_fd(fd))?
        };
        // SAFETY: plain numbers are passed.
        let sealed = unsafe {
            libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) == 0
        };
        if !sealed {
            return Err(FI_ENOMEM);
        }
        MemfdMap::mapped(fd, len, true, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// A file that a peer made. `FI_EINVAL` when it is not sealed or not of a length in `lens`.
    pub(crate) fn open(fd: OwnedFd, lens: core::ops::RangeInclusive<usize>) -> Result<MemfdMap> {
        MemfdMap::checked(fd, lens, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// As [`MemfdMap::open`], for a file that only its maker writes: nothing may be stored in it.
    pub(crate) fn open_to_read(
        fd: OwnedFd,
        lens: core::ops::RangeInclusive<usize>,
    ) -> Result<MemfdMap> {
        MemfdMap::checked(fd, lens, libc::PROT_READ)
    }

    /// Forbids other processes to write to the file. Linux before 5.1 has no such seal; peers are
    /// trusted not to write there.
    pub(crate) fn forbid_writing(&self) {
        // SAFETY: plain numbers are passed.
        unsafe { libc::fcntl(self.fd(), libc::F_ADD_SEALS, libc::F_SEAL_FUTURE_WRITE) };
    }

    fn checked(fd: OwnedFd, lens: core::ops::RangeInclusive<usize>, prot: i32) -> Result<MemfdMap> {
        // SAFETY: `stat` is a place for the answer, read only when the call succeeded.
        let len = unsafe {
            let seals = libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS);
            let mut stat: libc::stat = core::mem::zeroed();
            let mut fs: libc::statfs = core::mem::zeroed();
            if libc::fstatfs(fd.as_raw_fd(), &mut fs) != 0 || fs.f_type as i64 == HUGETLBFS {
                return Err(FI_EINVAL);
            }
            if seals < 0
                || seals & libc::F_SEAL_SHRINK == 0
                || libc::fstat(fd.as_raw_fd(), &mut stat) != 0
            {
                return Err(FI_EINVAL);
            }
            usize::try_from(stat.st_size).map_err(|_| FI_EINVAL)?
        };
        if !lens.contains(&len) {
            return Err(FI_EINVAL);
        }
        MemfdMap::mapped(fd, len, false, prot)
    }

    fn mapped(fd: OwnedFd, len: usize, keep: bool, prot: i32) -> Result<MemfdMap> {
        // SAFETY: a fresh mapping of a file of at least this length; nothing else refers to it.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(FI_ENOMEM);
        }
        Ok(MemfdMap {
            at: at.cast(),
            len,
            fd: keep.then_some(fd),
        })
    }

    /// Its descriptor, to be passed on; -1 after [`MemfdMap::close_fd`].
    pub(crate) fn fd(&self) -> i32 {
        self.fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Closes the descriptor; the memory stays.
    pub(crate) fn close_fd(&mut self) {
        self.fd = None;
    }

    #[inline]
    fn place(&self, off: usize, len: usize) -> *mut u8 {
        // Callers compute offsets within the file; this check is the last defence.
        let fits = off <= self.len && len <= self.len - off;
        let off = if fits { off } else { 0 };
        // SAFETY: `off` is at most `self.len`, the length of the mapping, or 0.
        unsafe { self.at.add(off) }
    }

    /// The word at `off`, a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, off: usize) -> &AtomicU64 {
        let p = self.place(off & !7, 8);
        // SAFETY: aligned, within the mapping, and shared memory is only ever used atomically.
        unsafe { AtomicU64::from_ptr(p.cast()) }
    }

    /// `N` words from `off` on, a multiple of 8.
    #[inline]
    pub(crate) fn words<const N: usize>(&self, off: usize) -> &[AtomicU64; N] {
        let p = self.place(off & !7, 8 * N);
        // SAFETY: as in `word`: aligned and within the mapping, which is longer than `N` words.
        unsafe { &*p.cast::<[AtomicU64; N]>() }
    }

    /// Its first byte.
    #[inline(always)]
    pub(super) fn start(&self) -> *mut u8 {
        self.at
    }
}

impl Drop for MemfdMap {
    fn drop(&mut self) {
        // SAFETY: mapped by `mapped` with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast::<c_void>(), self.len) };
    }
}
