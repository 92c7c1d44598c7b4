//! Connection set-up between two endpoints of one host: a Unix socket in the abstract namespace,
//! whose name is derived from the queue pair's address.
//!
//! The name exists as long as its socket and is visible in one network namespace only: a process
//! that can connect is on the same host. The name is a one-way hash of the address, because every
//! process can read such names. A connection carries one ring, from the connecting side to the
//! listening side: a greeting with the sender's address and the ring's descriptor, later single
//! bytes that wake the reader. The listening side answers once it has mapped the ring, and passes
//! its table of registered memory if it has one; the ring is used only after this answer. Later the
//! listening side may send a CTS through the connection, when no ring leads back. The end of the
//! connection tells each side that the other is gone. Both sides check that the other has their
//! user id, and the listening side checks that the caller's process is the one that listens at the
//! address in the greeting.

use crate::core::Result;
use crate::device::any::public_key;
use crate::device::host::above_standard;
use crate::device::local::{self, errno, Incoming};
use crate::device::QpAddr;
use crate::types::*;
use core::mem::size_of;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAGIC: [u8; 8] = *b"lfrshm05";
const TABLE: [u8; 8] = *b"lfrmem02";
const ACCEPTED: [u8; 8] = *b"lfracc01";
const CTS: [u8; 8] = *b"lfrwnt01";
/// Bytes of the answer: magic, address and value of the probe, padded to the greeting's length.
const ANSWER: usize = GREETING;
/// Bytes of a greeting: magic and the sender's address.
const GREETING: usize = 8 + 16 + 2 + 4 + 8;
/// Connections of other users that one call of [`accept`] refuses at most.
const CALLERS: usize = 64;
/// Connections not yet accepted that a listener may have.
const BACKLOG: i32 = 1024;

/// A greeting from the queue pair at this address.
fn emit_greeting(a: &QpAddr) -> [u8; GREETING] {
    let mut b = [0; GREETING];
    let parts: [&[u8]; 5] = [
        &MAGIC,
        &a.gid,
        &a.qpn.to_le_bytes(),
        &a.qkey.to_le_bytes(),
        &a.token.to_le_bytes(),
    ];
    let mut at = 0;
    for p in parts {
        if let Some(to) = b.get_mut(at..at + p.len()) {
            to.copy_from_slice(p);
        }
        at += p.len();
    }
    b
}

/// The sender of a greeting; `None` for another message.
fn parse_greeting(b: &[u8; GREETING]) -> Option<QpAddr> {
    let (magic, rest) = b.split_first_chunk::<8>()?;
    let (gid, rest) = rest.split_first_chunk::<16>()?;
    let (qpn, rest) = rest.split_first_chunk::<2>()?;
    let (qkey, rest) = rest.split_first_chunk::<4>()?;
    let (token, _) = rest.split_first_chunk::<8>()?;
    (*magic == MAGIC).then_some(QpAddr {
        gid: *gid,
        qpn: u16::from_le_bytes(*qpn),
        qkey: u32::from_le_bytes(*qkey),
        token: u64::from_le_bytes(*token),
    })
}

/// A message of this kind with two numbers.
fn emit_two(magic: [u8; 8], first: u64, second: u64) -> [u8; GREETING] {
    let mut b = [0; GREETING];
    let parts = [magic, first.to_le_bytes(), second.to_le_bytes()];
    for (to, from) in b.chunks_exact_mut(8).zip(parts) {
        to.copy_from_slice(&from);
    }
    b
}

/// The two numbers of a message with this magic; `None` for another magic.
fn parse_two(magic: [u8; 8], b: &[u8; GREETING]) -> Option<(u64, u64)> {
    let (kind, rest) = b.split_first_chunk::<8>()?;
    let (first, rest) = rest.split_first_chunk::<8>()?;
    let (second, _) = rest.split_first_chunk::<8>()?;
    (*kind == magic).then_some((u64::from_le_bytes(*first), u64::from_le_bytes(*second)))
}

/// Whether an answer is an acceptance, with or without a table.
fn accepts(b: &[u8; ANSWER]) -> bool {
    b.first_chunk::<8>()
        .is_some_and(|m| *m == ACCEPTED || *m == TABLE)
}

/// A one-way hash of 64 bits: identifies an address without revealing it. The address of a service
/// is no secret, but its token cannot be derived from host and number alone.
fn digest(a: &QpAddr) -> u64 {
    let token = match a.qkey == public_key(a.qpn) {
        true => 0,
        false => a.token,
    };
    let mut h = SipHasher24::new_with_keys(0x6c66_722d_7368_6d31, 0x6e61_6d65);
    h.write(&a.gid);
    h.write(&a.qpn.to_le_bytes());
    h.write(&a.qkey.to_le_bytes());
    h.write(&token.to_le_bytes());
    h.finish()
}

fn name(a: &QpAddr) -> String {
    format!("libfabric-efa/{:016x}", digest(a))
}

/// Listens for peers of the queue pair at `own`.
pub(crate) fn listen(own: &QpAddr) -> Result<OwnedFd> {
    local::listen(&name(own), BACKLOG)
}

/// Connects to the queue pair at `to` and passes a ring; returns the socket and the id of the
/// peer's process. `FI_EAGAIN` while the peer's backlog is full, another errno when the peer cannot
/// be reached through shared memory.
pub(crate) fn connect(own: &QpAddr, to: &QpAddr, ring: i32) -> Result<(OwnedFd, i32)> {
    let (fd, pid) = local::connect(&name(to))?;
    send_message(&fd, &emit_greeting(own), Some(ring))?;
    Ok((fd, pid))
}

/// Whether process `pid`, which claims address `from`, is the process that listens there.
pub(crate) fn owns(from: &QpAddr, pid: i32) -> bool {
    pid > 0 && local::connect(&name(from)).is_ok_and(|(_, listens)| listens == pid)
}

/// Accepts a caller's ring, with a table of registered memory if there is one.
pub(crate) fn answer(fd: &OwnedFd, table: Option<(i32, u64, u64)>) -> Result<()> {
    let b = match table {
        Some((_, at, value)) => emit_two(TABLE, at, value),
        None => emit_two(ACCEPTED, 0, 0),
    };
    send_message(fd, &b, table.map(|(f, _, _)| f))
}

/// Sends a CTS through this connection, when no ring leads back to the caller that owns its ring:
/// asks for the rest of message `number`, which has number `here` at this side.
pub(crate) fn send_cts(fd: &OwnedFd, number: u32, here: u32) -> Result<()> {
    send_message(fd, &emit_two(CTS, number.into(), here.into()), None)
}

/// Descriptors that fit into [`ControlBuffer`].
const FILES: usize = 16;

/// Room for descriptors beside a message, aligned as the kernel requires.
#[repr(C, align(8))]
struct ControlBuffer([u8; 64]);

/// A header for a message of these bytes, with room for descriptors.
fn message_header(iov: &mut libc::iovec, control: &mut ControlBuffer) -> libc::msghdr {
    // SAFETY: a message header of zeros names nothing.
    let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
    m.msg_iov = iov;
    m.msg_iovlen = 1;
    m.msg_control = control.0.as_mut_ptr().cast();
    m.msg_controllen = control.0.len() as _;
    m
}

/// Sends a message, with a descriptor if there is one.
fn send_message(fd: &OwnedFd, bytes: &[u8; GREETING], file: Option<i32>) -> Result<()> {
    let mut iov = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    let mut m = message_header(&mut iov, &mut control);
    // SAFETY: the control buffer is larger than one descriptor needs, and the header points into
    // it.
    unsafe {
        m.msg_controllen = 0;
        if let Some(file) = file {
            m.msg_controllen = libc::CMSG_SPACE(size_of::<i32>() as u32) as _;
            let c = libc::CMSG_FIRSTHDR(&m);
            (*c).cmsg_level = libc::SOL_SOCKET;
            (*c).cmsg_type = libc::SCM_RIGHTS;
            (*c).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as _;
            libc::CMSG_DATA(c).cast::<i32>().write_unaligned(file);
        }
        match libc::sendmsg(fd.as_raw_fd(), &m, libc::MSG_NOSIGNAL) {
            n if n == GREETING as isize => Ok(()),
            _ => Err(errno()),
        }
    }
}

/// The next connection from a process of our user, among the next [`CALLERS`]; `None` when there is
/// none. An error when no descriptor is left for the connection.
pub(crate) fn accept(listener: &OwnedFd) -> Result<Option<(OwnedFd, i32)>> {
    for _ in 0..CALLERS {
        match local::accept(listener)? {
            Incoming::NoCaller => break,
            Incoming::OtherUser => {}
            Incoming::Process(fd, pid) => return Ok(Some((fd, pid))),
        }
    }
    Ok(None)
}

/// A message received from a connection.
pub(crate) enum ConnEvent {
    Nothing,
    /// A ring of the queue pair at this address.
    Ring(QpAddr, OwnedFd),
    /// The peer has mapped our ring. With the peer's table of registered memory, and address and
    /// value of a probe, if the peer has sent them.
    Accepted(Option<((u64, u64), OwnedFd)>),
    /// CTS: the peer asks for the rest of our message: its number here, and at the receiver.
    Cts(u32, u32),
    /// A byte to wake us.
    Wake,
    /// The peer has closed the connection, or its message is malformed.
    End,
}

/// Reads from a connection.
pub(crate) fn receive(fd: &OwnedFd) -> ConnEvent {
    let mut bytes = [0u8; GREETING];
    let mut iov = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut control = ControlBuffer([0; 64]);
    let mut m = message_header(&mut iov, &mut control);
    // Every received descriptor is owned, so that surplus ones are closed; a message has one.
    let mut files: [Option<OwnedFd>; FILES] = Default::default();
    let mut count = 0;
    // SAFETY: both buffers are as long as the header says; the descriptors of a control message are
    // `cmsg_len` bytes in all, installed for us, and owned at once.
    let n = unsafe {
        let n = libc::recvmsg(fd.as_raw_fd(), &mut m, libc::MSG_CMSG_CLOEXEC);
        let mut c = match n {
            0.. => libc::CMSG_FIRSTHDR(&m),
            _ => core::ptr::null_mut(),
        };
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_RIGHTS {
                let bytes = ((*c).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let at = libc::CMSG_DATA(c).cast::<i32>();
                for i in 0..bytes / size_of::<i32>() {
                    let file = OwnedFd::from_raw_fd(at.add(i).read_unaligned());
                    if let Some(to) = files.get_mut(count) {
                        *to = above_standard(file).ok();
                    }
                    count += 1;
                }
            }
            c = libc::CMSG_NXTHDR(&m, c);
        }
        n
    };
    let [first, ..] = files;
    match (n, first.filter(|_| count == 1)) {
        (n, _) if n < 0 && errno() == FI_EAGAIN => ConnEvent::Nothing,
        (1, None) if count == 0 => ConnEvent::Wake,
        (n, file) if n == GREETING as isize && count <= 1 => {
            if let Some((number, there)) = parse_two(CTS, &bytes) {
                return ConnEvent::Cts(number as u32, there as u32);
            }
            match (parse_greeting(&bytes), parse_two(TABLE, &bytes), file) {
                (Some(from), _, Some(file)) => ConnEvent::Ring(from, file),
                (_, Some(probe), Some(file)) => ConnEvent::Accepted(Some((probe, file))),
                // Also a table that came without its descriptor: the ring is used without the
                // table.
                _ if accepts(&bytes) => ConnEvent::Accepted(None),
                _ => ConnEvent::End,
            }
        }
        _ => ConnEvent::End,
    }
}

/// Wakes the reader of a connection's ring. A full socket means that wake-ups are waiting there
/// already.
pub(crate) fn wake(fd: &OwnedFd) {
    local::send(fd, b"w");
}
