//! Who may call a service on this host: processes of its own user.
//!
//! A queue pair whose number the application chose has no secret in its address. It listens on a
//! Unix socket of the abstract namespace, named after its address; a caller connects, both sides
//! look at the other's user id (SO_PEERCRED), and the caller names its address and token. What
//! follows, the WELCOME, goes to that address by UDP, so that a process that names another's gains
//! nothing. The socket accepts in the adapter's thread (`thread`); calling never waits.

use crate::core::Result;
use crate::device::QpAddr;
use crate::types::*;
use core::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of a call: gid, queue pair number, key, verification tag, token.
const CALL: usize = 16 + 2 + 4 + 4 + 8;

/// Who calls: its address, its verification tag, and the token that it has named.
pub struct Caller {
    pub addr: QpAddr,
    pub vtag: u32,
    pub token: u64,
}
/// Callers that may wait to be accepted.
const BACKLOG: i32 = 256;

fn name(a: &QpAddr) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero bytes are a valid address.
    let mut u: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    u.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let gid = u128::from_be_bytes(a.gid);
    let text = format!("libfabric-efa-admit/{gid:032x}/{}", a.qpn);
    // The first byte stays zero: an abstract name.
    for (to, from) in u.sun_path.iter_mut().skip(1).zip(text.bytes()) {
        *to = from as core::ffi::c_char;
    }
    let len = core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
    (u, len as libc::socklen_t)
}

fn socket() -> Option<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain numbers are passed; the descriptor is owned from here on.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
    }
}

/// User id of the process at the other end.
fn user(fd: &OwnedFd) -> Option<libc::uid_t> {
    // SAFETY: `cred` is a place of `len` bytes for the answer.
    unsafe {
        let mut cred: libc::ucred = core::mem::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let at = (&raw mut cred).cast();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let r = libc::getsockopt(fd.as_raw_fd(), level, name, at, &mut len);
        (r == 0).then_some(cred.uid)
    }
}

fn same_user(fd: &OwnedFd) -> bool {
    // SAFETY: takes nothing and cannot fail.
    user(fd) == Some(unsafe { libc::geteuid() })
}

/// Listens for callers of the service at `own`. `FI_EADDRINUSE` when somebody has the name.
pub fn listen(own: &QpAddr) -> Result<OwnedFd> {
    let fd = socket().ok_or(FI_EMFILE)?;
    let (u, len) = name(own);
    // SAFETY: `u` has `len` bytes that count.
    let bound = unsafe {
        libc::bind(fd.as_raw_fd(), (&raw const u).cast(), len) == 0
            && libc::listen(fd.as_raw_fd(), BACKLOG) == 0
    };
    if !bound {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "service {}: another process holds the socket by which callers on this host are admitted",
            own.qpn
        );
        return Err(FI_EADDRINUSE);
    }
    Ok(fd)
}

/// Asks the service at `to` to admit us. `false` when there is no such
/// service; `true` also when it cannot answer now, or is another user's, which a line says.
pub fn ask(own: &Caller, to: &QpAddr) -> bool {
    let Some(fd) = socket() else { return true };
    let (u, len) = name(to);
    // SAFETY: `u` has `len` bytes that count.
    let r = unsafe { libc::connect(fd.as_raw_fd(), (&raw const u).cast(), len) };
    if r != 0 {
        let e = std::io::Error::last_os_error().raw_os_error();
        return e == Some(libc::EAGAIN);
    }
    if !same_user(&fd) {
        crate::warn_limited!(
            FI_LOG_EP_CTRL,
            "service {} on this host runs as user {}: wanted the caller's own",
            to.qpn,
            user(&fd).unwrap_or(u32::MAX)
        );
        return true;
    }
    let mut call = [0u8; CALL];
    let parts: [&[u8]; 5] = [
        &own.addr.gid,
        &own.addr.qpn.to_le_bytes(),
        &own.addr.qkey.to_le_bytes(),
        &own.vtag.to_le_bytes(),
        &own.token.to_le_bytes(),
    ];
    let bytes = parts.into_iter().flatten();
    call.iter_mut()
        .zip(bytes)
        .for_each(|(to, from)| *to = *from);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `call` has as many bytes as are sent.
    unsafe { libc::send(fd.as_raw_fd(), call.as_ptr().cast(), CALL, flags) };
    true
}

/// Takes the calls that wait, at most `most`: each of our user.
pub fn accept(listener: &OwnedFd, most: usize, mut each: impl FnMut(Caller)) {
    for _ in 0..most {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let none = core::ptr::null_mut();
        // SAFETY: no address is asked for; the descriptor is owned from here on.
        let fd = unsafe {
            let fd = libc::accept4(listener.as_raw_fd(), none, core::ptr::null_mut(), flags);
            if fd < 0 {
                return;
            }
            OwnedFd::from_raw_fd(fd)
        };
        if !same_user(&fd) {
            crate::warn_limited!(FI_LOG_EP_CTRL, "a caller of another user was refused");
            continue;
        }
        let mut call = [0u8; CALL];
        // SAFETY: `call` has room for as many bytes as are asked for.
        let n = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recv(fd.as_raw_fd(), call.as_mut_ptr().cast(), CALL, flags)
        };
        if n != CALL as isize {
            continue;
        }
        if let Some(caller) = parse(&call) {
            each(caller);
        }
    }
}

fn parse(call: &[u8; CALL]) -> Option<Caller> {
    let (gid, rest) = call.split_first_chunk::<16>()?;
    let (qpn, rest) = rest.split_first_chunk::<2>()?;
    let (qkey, rest) = rest.split_first_chunk::<4>()?;
    let (vtag, rest) = rest.split_first_chunk::<4>()?;
    let (token, _) = rest.split_first_chunk::<8>()?;
    let addr = QpAddr {
        gid: *gid,
        qpn: u16::from_le_bytes(*qpn),
        qkey: u32::from_le_bytes(*qkey),
        token: 0,
    };
    Some(Caller {
        addr,
        vtag: u32::from_le_bytes(*vtag),
        token: u64::from_le_bytes(*token),
    })
}
