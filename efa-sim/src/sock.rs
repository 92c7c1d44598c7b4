//! The Unix socket between programs and the device process.

use crate::door::{Reply, Request, REPLY, REQUEST};
use core::mem::{size_of, zeroed};
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

fn owned(fd: i32) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: a descriptor that the kernel has just given us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

const KIND: i32 = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;

/// Listens at `path`.
pub fn listen(path: &Path) -> Result<OwnedFd> {
    // SAFETY: the address is filled in and as long as stated.
    unsafe {
        let s = owned(libc::socket(libc::AF_UNIX, KIND | libc::SOCK_NONBLOCK, 0))?;
        let mut a: libc::sockaddr_un = zeroed();
        a.sun_family = libc::AF_UNIX as _;
        let name = path.as_os_str().as_encoded_bytes();
        if name.len() >= a.sun_path.len() {
            return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, b) in a.sun_path.iter_mut().zip(name) {
            *to = *b as _;
        }
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        if libc::bind(s.as_raw_fd(), (&raw const a).cast(), len) != 0
            || libc::listen(s.as_raw_fd(), 1024) != 0
        {
            return Err(Error::last_os_error());
        }
        Ok(s)
    }
}

/// Accepts a waiting connection of a program.
pub fn accept(at: &OwnedFd) -> Option<OwnedFd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    owned(unsafe {
        libc::accept4(
            at.as_raw_fd(),
            core::ptr::null_mut(),
            core::ptr::null_mut(),
            flags,
        )
    })
    .ok()
}

/// A connected pair of sockets that keeps message boundaries: one event per read.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let mut two = [0; 2];
    // SAFETY: a place for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, KIND, 0, two.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok((owned(two[0])?, owned(two[1])?))
}

/// Result of reading a request.
pub enum Incoming {
    Nothing,
    Gone,
    Asked(Request),
}

/// Reads a request without waiting.
pub fn read_request(from: &OwnedFd) -> Incoming {
    let mut b = [0u8; REQUEST];
    match receive(from, &mut b) {
        Ok(n) if n == REQUEST => {
            let word = |at: usize| u32::from_ne_bytes(b[at..at + 4].try_into().unwrap_or_default());
            let long = |at: usize| u64::from_ne_bytes(b[at..at + 8].try_into().unwrap_or_default());
            Incoming::Asked(Request {
                op: word(0),
                pid: word(4),
                a: long(8),
                b: long(16),
            })
        }
        Ok(_) => Incoming::Gone,
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Incoming::Nothing,
        Err(_) => Incoming::Gone,
    }
}

/// Receives without waiting.
pub fn receive(from: &OwnedFd, into: &mut [u8]) -> Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: the buffer is as long as stated.
    let n = unsafe {
        libc::recv(
            from.as_raw_fd(),
            into.as_mut_ptr().cast(),
            into.len(),
            flags,
        )
    };
    usize::try_from(n).map_err(|_| Error::last_os_error())
}

/// Sends without waiting; whether it went out.
pub fn send(to: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the buffer is as long as stated.
    let n = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    n == bytes.len() as isize
}

/// Replies, with a descriptor or without.
pub fn reply(to: &OwnedFd, r: &Reply, fd: Option<BorrowedFd>) {
    let mut room = [0u64; 8];
    // SAFETY: the parts are ours and as long as stated; the control message has room for one
    // descriptor.
    unsafe {
        let mut part = libc::iovec {
            iov_base: core::ptr::from_ref(r).cast_mut().cast(),
            iov_len: REPLY,
        };
        let mut m: libc::msghdr = zeroed();
        m.msg_iov = &mut part;
        m.msg_iovlen = 1;
        if let Some(fd) = fd {
            m.msg_control = room.as_mut_ptr().cast();
            m.msg_controllen = libc::CMSG_SPACE(4) as usize;
            let c = libc::CMSG_FIRSTHDR(&m);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(4) as usize;
            libc::CMSG_DATA(c)
                .cast::<i32>()
                .write_unaligned(fd.as_raw_fd());
        }
        libc::sendmsg(to.as_raw_fd(), &m, libc::MSG_NOSIGNAL);
    }
}

/// Waits until one of these is readable, for `us` microseconds at most.
pub fn wait(fds: &[BorrowedFd], us: i64) {
    let mut list: Vec<libc::pollfd> = fds
        .iter()
        .map(|f| libc::pollfd {
            fd: f.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let t = libc::timespec {
        tv_sec: us / 1_000_000,
        tv_nsec: us % 1_000_000 * 1000,
    };
    // SAFETY: the list is as long as stated.
    unsafe { libc::ppoll(list.as_mut_ptr(), list.len() as _, &t, core::ptr::null()) };
}

/// Makes the calling process end with its parent, also after exec.
pub fn end_with_parent() -> Result<()> {
    // SAFETY: plain numbers are passed.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
