//! Unix sockets by which processes of one host and one user connect.
//!
//! A listener has a name in the abstract namespace: the name exists as long as the socket, in one
//! network namespace. Every user can read and bind such names, so both sides ask the kernel for the
//! other's user (SO_PEERCRED), and refuse another user. Messages keep their boundaries
//! (SOCK_SEQPACKET); no call blocks.

use super::host::{above_standard, user};
use super::wait::poll_fd;
use crate::core::process::PerProcess;
use crate::core::{Errno, Result};
use crate::types::*;
use core::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What [`accept`] found.
pub enum Incoming {
    /// No caller waits.
    NoCaller,
    /// A process of another user, which was refused.
    OtherUser,
    /// A process of our user, with its pid; 0 for a process in a PID namespace not visible from
    /// here.
    Process(OwnedFd, i32),
}

/// How often [`send`] asks a kernel that has no memory for a message.
const SEND_TRIES: u32 = 100;

/// The errno of the last system call.
pub fn errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(FI_EOTHER)
}

fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero bytes are a valid address.
    let mut u: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    u.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays zero: an abstract name.
    for (to, from) in u.sun_path.iter_mut().skip(1).zip(name.bytes()) {
        *to = from as core::ffi::c_char;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    (
        u,
        len.min(size_of::<libc::sockaddr_un>()) as libc::socklen_t,
    )
}

fn socket() -> Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers are passed; the descriptor is owned from here on.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 {
            return Err(errno());
        }
        above_standard(OwnedFd::from_raw_fd(fd))
    }
}

/// Credentials of the process at the other end.
fn credentials(fd: &OwnedFd) -> Option<libc::ucred> {
    // SAFETY: `cred` is a place of `len` bytes for the answer.
    unsafe {
        let mut cred: libc::ucred = core::mem::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let at = (&raw mut cred).cast();
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let r = libc::getsockopt(fd.as_raw_fd(), level, option, at, &mut len);
        (r == 0).then_some(cred)
    }
}

fn is_our_user(cred: &libc::ucred) -> bool {
    let me = user();
    cred.uid == me && !stands_for_many(me)
}

/// Whether the kernel shows this number in place of every user that has none in this user namespace
/// (user_namespaces(7)): then it identifies no user.
fn stands_for_many(uid: u32) -> bool {
    static OVERFLOW: PerProcess<u32> = PerProcess::new();
    let overflow = OVERFLOW.get_or_init(|| {
        let said = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
        said.and_then(|s| s.trim().parse().ok())
            .unwrap_or(OVERFLOW_UID)
    });
    uid == *overflow && !every_user_has_a_number()
}

/// The usual number for users without one.
const OVERFLOW_UID: u32 = 65_534;

/// Whether this is the first user namespace, or one with all of its users.
fn every_user_has_a_number() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Listens at a name; `backlog` as for listen(2). `FI_EADDRINUSE` when the name is taken, or
/// another errno of socket(2).
pub fn listen(name: &str, backlog: i32) -> Result<OwnedFd> {
    let fd = socket()?;
    let (u, len) = address(name);
    // SAFETY: the first `len` bytes of `u` are the address.
    let bound = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const u).cast(), len) == 0
            && libc::listen(fd.as_raw_fd(), backlog) == 0
    };
    match bound {
        true => Ok(fd),
        false => Err(errno()),
    }
}

/// Connects to the listener of a name, a process of our user; the result has its pid. `FI_EAGAIN`
/// when the listener's backlog is full, `FI_EACCES` when the listener is of another user,
/// `FI_ECONNREFUSED` when there is none.
pub fn connect(name: &str) -> Result<(OwnedFd, i32)> {
    let fd = socket()?;
    let (u, len) = address(name);
    // SAFETY: the first `len` bytes of `u` are the address.
    let r = unsafe { libc::connect(fd.as_raw_fd(), (&raw const u).cast(), len) };
    if r != 0 {
        return Err(errno());
    }
    let cred = credentials(&fd).ok_or(FI_EACCES)?;
    if !is_our_user(&cred) {
        crate::warn_limited!(
            FI_LOG_EP_CTRL,
            "{name} on this host is of user {}: wanted the caller's own",
            cred.uid
        );
        return Err(FI_EACCES);
    }
    Ok((fd, cred.pid))
}

/// Accepts the next caller of a listener. `Err` when there is no descriptor or no memory for one.
pub fn accept(listener: &OwnedFd) -> Result<Incoming> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let (addr, len) = (core::ptr::null_mut(), core::ptr::null_mut());
    // SAFETY: no address is asked for; the descriptor is owned from here on.
    let fd = unsafe {
        let fd = libc::accept4(listener.as_raw_fd(), addr, len, flags);
        if fd < 0 {
            return match errno() {
                // Without a descriptor accept(2) fails although no connection waits.
                e @ (FI_EMFILE | libc::ENFILE | FI_ENOMEM)
                    if poll_fd(listener.as_raw_fd(), libc::POLLIN, 0) =>
                {
                    Err(e)
                }
                _ => Ok(Incoming::NoCaller),
            };
        }
        above_standard(OwnedFd::from_raw_fd(fd))?
    };
    Ok(match credentials(&fd).filter(is_our_user) {
        Some(cred) => Incoming::Process(fd, cred.pid),
        None => {
            crate::warn_limited!(FI_LOG_EP_CTRL, "a caller of another user was refused");
            Incoming::OtherUser
        }
    })
}

/// Sends a message; `false` when it cannot be sent now: the other side has to read first, or is
/// gone. A kernel that has no memory for the message is asked again, up to [`SEND_TRIES`] times:
/// no event would say when to repeat it.
pub fn send(fd: &OwnedFd, bytes: &[u8]) -> bool {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    for _ in 0..SEND_TRIES {
        // SAFETY: as many bytes are sent as there are.
        let n = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
        if n >= 0 || !matches!(errno(), libc::ENOBUFS | libc::ENOMEM) {
            return n == bytes.len() as isize;
        }
        std::thread::yield_now();
    }
    false
}

/// Receives a message and returns its length: 0 when the connection has ended, `None` when no
/// message has arrived yet.
pub fn recv(fd: &OwnedFd, into: &mut [u8]) -> Option<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: at most as many bytes are written as there is room for.
    let n = unsafe { libc::recv(fd.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), flags) };
    match usize::try_from(n) {
        Ok(n) => Some(n),
        Err(_) if matches!(errno(), FI_EAGAIN | libc::EINTR) => None,
        Err(_) => Some(0),
    }
}
