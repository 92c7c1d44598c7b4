//! Memory: what the device shares with programs (queues and doorbells), and that of the programs
//! themselves.
//!
//! Shared memory is accessed by atomic words alone, because the program on the other side may write
//! at any time. Memory of programs is copied through the kernel (process_vm_readv(2)), which checks
//! every address: a bad address is an error, as it is to an adapter.

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::rc::Rc;

/// Bytes of a page.
pub const PAGE: usize = 4096;

/// Memory of a file, mapped in this process until it is dropped.
pub struct Mapping {
    at: *mut u8,
    len: usize,
    /// Offset of the requested range within the first page.
    skip: usize,
}

fn errno(or: i32) -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(or)
}

impl Mapping {
    /// Maps `len` bytes from `offset` on of a file that is long enough. `Err`: the errno.
    fn new(file: &File, offset: u64, len: usize) -> Result<Mapping, i32> {
        let skip = offset as usize % PAGE;
        let len = len.checked_add(skip).ok_or(libc::EINVAL)?;
        let from = (offset - skip as u64) as libc::off_t;
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                from,
            )
        };
        match at {
            libc::MAP_FAILED => Err(errno(libc::EINVAL)),
            at => Ok(Mapping {
                at: at.cast(),
                len,
                skip,
            }),
        }
    }

    /// Maps `len` bytes from `offset` on of the file that a program has open as `fd`: a dma-buf
    /// to the adapter. `Err`: the errno.
    pub fn of_program(pid: u32, fd: i32, offset: u64, len: u64) -> Result<Mapping, i32> {
        // SAFETY: numbers are passed; descriptors are owned as they are made.
        let file = unsafe {
            let own = |fd: i64| match i32::try_from(fd) {
                Ok(fd) if fd >= 0 => Ok(File::from_raw_fd(fd)),
                _ => Err(errno(libc::EBADF)),
            };
            let program = own(libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0))?;
            own(libc::syscall(
                libc::SYS_pidfd_getfd,
                program.as_raw_fd(),
                fd,
                0,
            ))?
        };
        let offset = offset + exported_from(&file);
        // A mapping beyond the end of the file succeeds, and fails only on access: check the size.
        // SAFETY: a plain structure, of which zero is a value.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: there is a place for the answer.
        let known = unsafe { libc::fstat(file.as_raw_fd(), &mut stat) } == 0;
        let ends = if known { stat.st_size } else { -1 };
        if ends < 0 || offset.checked_add(len).is_none_or(|w| w > ends as u64) {
            return Err(libc::EINVAL);
        }
        Mapping::new(
            &file,
            offset,
            usize::try_from(len).map_err(|_| libc::EINVAL)?,
        )
    }

    /// Address of the first byte, in this process.
    pub fn start(&self) -> u64 {
        (self.at as usize + self.skip) as u64
    }

    fn word32(&self, off: usize) -> &AtomicU32 {
        let off = off + self.skip;
        assert!(off.is_multiple_of(4) && off + 4 <= self.len, "offset {off}");
        // SAFETY: aligned and within the mapping, which lives as long as `self`.
        unsafe { AtomicU32::from_ptr(self.at.add(off).cast()) }
    }

    fn word64(&self, off: usize) -> &AtomicU64 {
        let off = off + self.skip;
        assert!(off.is_multiple_of(8) && off + 8 <= self.len, "offset {off}");
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at.add(off).cast()) }
    }

    /// Loads the 32-bit word at `off` (acquire).
    pub fn load(&self, off: usize) -> u32 {
        self.word32(off).load(Acquire)
    }

    /// Stores the 32-bit word at `off` (release).
    pub fn store(&self, off: usize, v: u32) {
        self.word32(off).store(v, Release);
    }

    /// Copies `into.len()` bytes, a multiple of 8, from `off`.
    pub fn read(&self, off: usize, into: &mut [u8]) {
        for (i, to) in into.chunks_exact_mut(8).enumerate() {
            to.copy_from_slice(&self.word64(off + 8 * i).load(Relaxed).to_ne_bytes());
        }
    }

    /// Writes an entry. The first word holds the phase bit, so it is stored last (release).
    pub fn publish(&self, off: usize, entry: &[u8]) {
        let word = |i: usize| {
            let mut b = [0; 8];
            b.copy_from_slice(&entry[8 * i..8 * i + 8]);
            u64::from_ne_bytes(b)
        };
        for i in 1..entry.len() / 8 {
            self.word64(off + 8 * i).store(word(i), Relaxed);
        }
        self.word64(off).store(word(0), Release);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// An anonymous file, mapped here and by a program.
pub struct Shared {
    memory: Mapping,
    file: File,
}

impl Shared {
    /// `len` bytes, rounded up to pages, all zero.
    pub fn new(len: usize) -> Result<Rc<Shared>, i32> {
        let len = len.max(1).next_multiple_of(PAGE);
        // SAFETY: the name is a C string; the descriptor is owned from here on.
        let file = unsafe {
            let fd = libc::memfd_create(c"efa-sim".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(libc::ENOMEM);
            }
            File::from_raw_fd(fd)
        };
        file.set_len(len as u64).map_err(|_| libc::ENOMEM)?;
        let memory = Mapping::new(&file, 0, len).map_err(|_| libc::ENOMEM)?;
        Ok(Rc::new(Shared { memory, file }))
    }

    /// The file's descriptor, to pass to the program.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

impl Deref for Shared {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.memory
    }
}

/// Copies between our memory and a program's; `Err` when not all of it is there.
fn copy(pid: u32, at: u64, ours: *mut u8, len: usize, write: bool) -> Result<(), ()> {
    let mut done = 0;
    while done < len {
        // SAFETY: `ours` is `len` bytes of ours, writable where the call writes (see the callers);
        // the other side's addresses are checked by the kernel.
        let n = unsafe {
            let here = libc::iovec {
                iov_base: ours.add(done).cast(),
                iov_len: len - done,
            };
            let there = libc::iovec {
                iov_base: (at + done as u64) as *mut _,
                iov_len: len - done,
            };
            let pid = pid as libc::pid_t;
            if write {
                libc::process_vm_writev(pid, &here, 1, &there, 1, 0)
            } else {
                libc::process_vm_readv(pid, &here, 1, &there, 1, 0)
            }
        };
        if n <= 0 {
            return Err(());
        }
        done += n as usize;
    }
    Ok(())
}

/// Reads a program's memory.
pub fn fetch(pid: u32, at: u64, into: &mut [u8]) -> Result<(), ()> {
    copy(pid, at, into.as_mut_ptr(), into.len(), false)
}

/// Writes to a program's memory.
pub fn store(pid: u32, at: u64, from: &[u8]) -> Result<(), ()> {
    copy(pid, at, from.as_ptr().cast_mut(), from.len(), true)
}

/// Offset at which a dma-buf begins in its file: the descriptor's position for one of `gpu-sim`, 0
/// for others.
fn exported_from(file: &File) -> u64 {
    let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if !name.is_ok_and(|n| n.to_string_lossy().contains("memfd:gpu-sim")) {
        return 0;
    }
    // SAFETY: numbers are passed; the position stays.
    let at = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_CUR) };
    u64::try_from(at).unwrap_or(0)
}
