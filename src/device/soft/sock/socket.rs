//! One UDP socket: the system calls, in batches and runs.

use super::name::{from_sys, to_sys, Name};
use super::{Datagram, RxDatagram, BATCH, SLOT, SLOTS};
use crate::core::Result;
use crate::device::host::above_standard;
use crate::device::local::errno;
use crate::hmem::MAX_SEGS;
use core::ffi::{c_int, c_void};
use core::mem::{size_of, zeroed};
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// A non-blocking UDP socket.
pub(super) struct Socket {
    fd: c_int,
    /// Connected to this address, which datagrams need not name.
    connected: Option<SocketAddr>,
    /// Slots that the next receive offers: one after an empty receive, and after the first that was
    /// not.
    slots: usize,
    /// The last receive was not empty.
    busy: bool,
}

/// sendmsg(2), without the two calls with which glibc's wrapper makes it a cancellation point.
fn sendmsg(fd: c_int, m: &libc::msghdr) -> isize {
    // SAFETY: `m` is a valid message; the caller answers for what it points to.
    unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const *m, libc::MSG_DONTWAIT) as isize }
}

/// An empty entry of a scatter/gather list.
const NO_PIECE: libc::iovec = libc::iovec {
    iov_base: core::ptr::null_mut(),
    iov_len: 0,
};

/// An empty message.
fn no_message() -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: NULL pointers with zero lengths.
    unsafe { zeroed() }
}

/// Points a message to a name; NULL for none.
#[inline(always)]
fn pointer(name: &Option<Name>) -> (*mut c_void, libc::socklen_t) {
    name.as_ref()
        .map_or((core::ptr::null_mut(), 0), |(n, len)| {
            ((&raw const *n).cast_mut().cast(), *len)
        })
}

/// Lists header and payload of a datagram; returns the number of entries.
fn fill(iov: &mut [libc::iovec; MAX_SEGS + 1], d: &Datagram) -> usize {
    iov[0] = libc::iovec {
        iov_base: d.head.as_ptr() as *mut c_void,
        iov_len: d.head_len,
    };
    let mut used = 1;
    for (p, v) in d.body.pieces().zip(iov.iter_mut().skip(1)) {
        *v = libc::iovec {
            iov_base: p.addr() as *mut c_void,
            iov_len: p.len(),
        };
        used += 1;
    }
    used
}

impl Socket {
    /// Opens a socket of the family of `local`, with buffers of `bytes` or as many as the system
    /// grants.
    pub(super) fn open(local: &SocketAddr, bytes: usize) -> Result<Socket> {
        let family = if local.is_ipv6() {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        let flags = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(family, flags, 0) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: the descriptor is new and owned here.
        let fd = above_standard(unsafe { OwnedFd::from_raw_fd(fd) })?.into_raw_fd();
        let s = Socket {
            fd,
            connected: None,
            slots: 1,
            busy: false,
        };
        let want = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        for (force, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if !s.set(libc::SOL_SOCKET, force, want) {
                s.set(libc::SOL_SOCKET, plain, want);
            }
        }
        Ok(s)
    }

    /// Sets an option; whether the system has it.
    fn set(&self, level: c_int, name: c_int, value: c_int) -> bool {
        // SAFETY: the option value is a c_int that outlives the call.
        unsafe {
            libc::setsockopt(
                self.fd,
                level,
                name,
                (&raw const value).cast(),
                size_of::<c_int>() as u32,
            ) == 0
        }
    }

    /// Has the kernel pass runs of datagrams as one (udp(7), UDP_GRO).
    pub(super) fn merge(&self) {
        self.set(libc::SOL_UDP, libc::UDP_GRO, 1);
    }

    /// Whether another socket of this user with the same setting may bind to the same port.
    pub(super) fn share_port(&self, on: bool) {
        self.set(libc::SOL_SOCKET, libc::SO_REUSEPORT, on.into());
    }

    /// Binds to `local`. Fails with the system's errno.
    pub(super) fn bind(&self, local: &SocketAddr) -> Result<()> {
        let (sys, len) = to_sys(local);
        // SAFETY: `sys` is a socket address of `len` bytes.
        match unsafe { libc::bind(self.fd, (&raw const sys).cast(), len) } {
            0 => Ok(()),
            _ => Err(errno()),
        }
    }

    /// Connects to `to`: only its datagrams are received, and datagrams go to it.
    pub(super) fn connect(&mut self, to: &SocketAddr) -> Result<()> {
        let (sys, len) = to_sys(to);
        // SAFETY: `sys` is a socket address of `len` bytes.
        if unsafe { libc::connect(self.fd, (&raw const sys).cast(), len) } != 0 {
            return Err(errno());
        }
        self.connected = Some(*to);
        Ok(())
    }

    /// Which network namespace it is in (socket(7)), where the system returns it.
    pub(super) fn namespace(&self) -> Option<u64> {
        let (mut cookie, mut len) = (0u64, size_of::<u64>() as u32);
        // SAFETY: the call writes at most the length given into a variable of that length.
        let got = unsafe {
            libc::getsockopt(
                self.fd,
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &mut len,
            )
        };
        (got == 0).then_some(cookie)
    }

    /// The port it is bound to, and the receive buffer granted.
    pub(super) fn port_and_buffer(&self) -> Result<(u16, usize)> {
        // SAFETY: all-zero is a valid sockaddr_storage.
        let mut name: libc::sockaddr_storage = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as u32;
        let mut size: c_int = 0;
        let mut size_len = size_of::<c_int>() as u32;
        // SAFETY: both calls write at most the lengths given into variables of those lengths.
        let ok = unsafe {
            libc::getsockname(self.fd, (&raw mut name).cast(), &mut len) == 0
                && libc::getsockopt(
                    self.fd,
                    libc::SOL_SOCKET,
                    libc::SO_RCVBUF,
                    (&raw mut size).cast(),
                    &mut size_len,
                ) == 0
        };
        if !ok {
            return Err(errno());
        }
        let port = from_sys(&name).map_or(0, |a| a.port());
        Ok((port, usize::try_from(size).unwrap_or(0)))
    }

    /// Has the kernel drop what `program` does not pass, where the system has socket filters.
    pub(super) fn filter(&self, program: &mut [libc::sock_filter]) {
        let filter = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the program is of `len` steps, and copied by the call.
        unsafe {
            libc::setsockopt(
                self.fd,
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const filter).cast(),
                size_of::<libc::sock_fprog>() as u32,
            );
        }
    }

    pub(super) fn fd(&self) -> c_int {
        self.fd
    }

    /// The address that it is connected to.
    #[inline(always)]
    pub(super) fn connected(&self) -> Option<&SocketAddr> {
        self.connected.as_ref()
    }

    /// The name that a message to `to` has to bear, if any.
    #[inline(always)]
    fn name(&self, to: &SocketAddr) -> Option<Name> {
        self.connected.is_none().then(|| to_sys(to))
    }

    /// Sends a batch; if connected, all of it to that address.
    pub(super) fn send(&self, batch: &[Datagram]) {
        // Clearing the message headers of a full batch takes thousands of instructions.
        match batch {
            [one] => self.send_one(one),
            _ if batch.len() <= 4 => self.send_some::<4>(batch),
            _ => batch.chunks(BATCH).for_each(|b| self.send_some::<BATCH>(b)),
        }
    }

    fn send_one(&self, d: &Datagram) {
        let name = self.name(&d.to);
        let (name, namelen) = pointer(&name);
        let mut body = d.body.pieces();
        let one = match (d.head_len, body.next(), body.next()) {
            (len, None, _) => Some((d.head.as_ptr() as usize, len.min(d.head.len()))),
            (0, Some(p), None) => Some((p.addr(), p.len())),
            _ => None,
        };
        if let Some((addr, len)) = one {
            // SAFETY: passes that many bytes, of the header or lent until the operation completes,
            // and an address of that length.
            unsafe {
                libc::syscall(
                    libc::SYS_sendto,
                    self.fd,
                    addr as *const c_void,
                    len,
                    libc::MSG_DONTWAIT,
                    name,
                    namelen,
                )
            };
            return;
        }
        let mut iov = [NO_PIECE; MAX_SEGS + 1];
        let mut m = no_message();
        (m.msg_name, m.msg_namelen) = (name, namelen);
        m.msg_iovlen = fill(&mut iov, d);
        m.msg_iov = iov.as_mut_ptr();
        sendmsg(self.fd, &m);
    }

    /// Sends the first `N` of a batch.
    fn send_some<const N: usize>(&self, batch: &[Datagram]) {
        // SAFETY: all-zero is valid for these plain C structs; NULL pointers with zero lengths.
        let mut msgs: [libc::mmsghdr; N] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut names: [libc::sockaddr_storage; N] = unsafe { zeroed() };
        let mut iovs = [[NO_PIECE; MAX_SEGS + 1]; N];
        let n = batch.len().min(N);
        for (((d, m), name), iov) in batch
            .iter()
            .zip(msgs.iter_mut())
            .zip(names.iter_mut())
            .zip(iovs.iter_mut())
        {
            if self.connected.is_none() {
                (*name, m.msg_hdr.msg_namelen) = to_sys(&d.to);
                m.msg_hdr.msg_name = (name as *mut libc::sockaddr_storage).cast();
            }
            m.msg_hdr.msg_iovlen = fill(iov, d);
            m.msg_hdr.msg_iov = iov.as_mut_ptr();
        }
        let mut at = 0;
        while at < n {
            let Some(rest) = msgs.get_mut(at..n) else {
                return;
            };
            // SAFETY: `rest` describes that many messages; names, headers and lists live on this
            // frame, and bodies are application memory lent until the operation completes.
            let sent = unsafe {
                libc::sendmmsg(
                    self.fd,
                    rest.as_mut_ptr(),
                    rest.len() as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            // One datagram that cannot go must not hold up the others.
            at += if sent > 0 { sent as usize } else { 1 };
            if sent < 0 && errno() == libc::EAGAIN {
                return;
            }
        }
    }

    /// Sends datagrams of equal size to one receiver with one system call and one pass through the
    /// network stack; the network card, or the kernel just before it, splits them (udp(7),
    /// UDP_SEGMENT). `false` where that is not possible.
    pub(super) fn send_run(&self, run: &[Datagram], segment: usize) -> bool {
        let Some(first) = run.first() else {
            return true;
        };
        let mut iovs = [NO_PIECE; BATCH * 2];
        let mut used = 0;
        for d in run {
            let pieces = core::iter::once((d.head.as_ptr() as usize, d.head_len))
                .chain(d.body.pieces().map(|p| (p.addr(), p.len())));
            for (addr, len) in pieces {
                let Some(v) = iovs.get_mut(used) else {
                    return false;
                };
                *v = libc::iovec {
                    iov_base: addr as *mut c_void,
                    iov_len: len,
                };
                used += 1;
            }
        }
        let name = self.name(&first.to);
        let (name, namelen) = pointer(&name);
        let mut control = [0u64; 4];
        let mut m = no_message();
        (m.msg_name, m.msg_namelen) = (name, namelen);
        m.msg_iov = iovs.as_mut_ptr();
        m.msg_iovlen = used;
        m.msg_control = control.as_mut_ptr().cast();
        // SAFETY: plain arithmetic on a length.
        m.msg_controllen = unsafe { libc::CMSG_SPACE(2) } as usize;
        // SAFETY: `control` is aligned and large enough for one header with two bytes of data.
        unsafe {
            let c = libc::CMSG_FIRSTHDR(&m);
            if c.is_null() {
                return false;
            }
            (*c).cmsg_level = libc::SOL_UDP;
            (*c).cmsg_type = libc::UDP_SEGMENT;
            (*c).cmsg_len = libc::CMSG_LEN(2) as usize;
            libc::CMSG_DATA(c)
                .cast::<u16>()
                .write_unaligned(segment as u16);
        }
        sendmsg(self.fd, &m) >= 0 || errno() == libc::EAGAIN
    }

    /// Receives datagrams into `arena`, of [`new_arena`](super::new_arena), and appends them to
    /// `out`. Returns whether there were any, and whether there may be more; the call has failed,
    /// with errno(3), if there were none.
    pub(super) fn recv(&mut self, arena: &mut [u8], out: &mut Vec<RxDatagram>) -> (bool, bool) {
        let (found, offered) = match self.slots {
            1 => (self.recv_one(arena, out), 1),
            2 => (self.recv_some::<2>(arena, out), 2),
            _ => (self.recv_some::<SLOTS>(arena, out), SLOTS),
        };
        self.slots = match self.busy {
            true => (2 * found).max(1),
            false => 1,
        };
        self.busy = found > 0;
        (found > 0, found == offered)
    }

    /// As `recv`, for one slot: most calls find the socket empty.
    fn recv_one(&self, arena: &mut [u8], out: &mut Vec<RxDatagram>) -> usize {
        // SAFETY: all-zero is a valid sockaddr_storage.
        let mut name: libc::sockaddr_storage = unsafe { zeroed() };
        let mut control = [0u64; 4];
        let Some(slot) = arena.get_mut(..SLOT) else {
            return 0;
        };
        let mut iov = libc::iovec {
            iov_base: slot.as_mut_ptr().cast(),
            iov_len: SLOT,
        };
        let mut m = no_message();
        prepare(&mut m, &mut name, &mut iov, &mut control);
        // SAFETY: the message names memory of the lengths given, exclusively ours. (Not by glibc's
        // wrapper: see `sendmsg`.)
        let n =
            unsafe { libc::syscall(libc::SYS_recvmsg, self.fd, &raw mut m, libc::MSG_DONTWAIT) };
        let Ok(len) = usize::try_from(n) else {
            return 0;
        };
        split(&m, &name, len, 0, out);
        1
    }

    /// Receives up to `N` runs of datagrams.
    fn recv_some<const N: usize>(&self, arena: &mut [u8], out: &mut Vec<RxDatagram>) -> usize {
        // SAFETY: all-zero is valid for these plain C structs.
        let mut msgs: [libc::mmsghdr; N] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut names: [libc::sockaddr_storage; N] = unsafe { zeroed() };
        let mut control = [[0u64; 4]; N];
        let mut iovs = [NO_PIECE; N];
        let mut n = 0;
        for ((((m, name), iov), ctl), slot) in msgs
            .iter_mut()
            .zip(names.iter_mut())
            .zip(iovs.iter_mut())
            .zip(control.iter_mut())
            .zip(arena.chunks_exact_mut(SLOT))
        {
            *iov = libc::iovec {
                iov_base: slot.as_mut_ptr().cast(),
                iov_len: SLOT,
            };
            prepare(&mut m.msg_hdr, name, iov, ctl);
            n += 1;
        }
        // SAFETY: each of the `n` messages names memory of the lengths given, exclusively ours.
        let got = unsafe {
            libc::recvmmsg(
                self.fd,
                msgs.as_mut_ptr(),
                n,
                libc::MSG_DONTWAIT,
                core::ptr::null_mut(),
            )
        };
        let got = usize::try_from(got).unwrap_or(0);
        for (i, (m, name)) in msgs.iter().zip(names.iter()).take(got).enumerate() {
            split(&m.msg_hdr, name, m.msg_len as usize, i * SLOT, out);
        }
        got
    }

    /// Closes the socket; every later call finds none.
    pub(super) fn close(&mut self) {
        let fd = core::mem::replace(&mut self.fd, -1);
        if fd >= 0 {
            // SAFETY: the descriptor is ours and closed once.
            unsafe { libc::close(fd) };
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.close();
    }
}

/// Has a message received into a slot.
fn prepare(
    m: &mut libc::msghdr,
    name: &mut libc::sockaddr_storage,
    slot: &mut libc::iovec,
    control: &mut [u64; 4],
) {
    m.msg_name = (name as *mut libc::sockaddr_storage).cast();
    m.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
    m.msg_iov = slot;
    m.msg_iovlen = 1;
    m.msg_control = control.as_mut_ptr().cast();
    m.msg_controllen = size_of::<[u64; 4]>();
}

/// Appends the datagrams of a received message, which lie at `base`.
fn split(
    m: &libc::msghdr,
    name: &libc::sockaddr_storage,
    len: usize,
    base: usize,
    out: &mut Vec<RxDatagram>,
) {
    let Some(from) = from_sys(name) else { return };
    let len = len.min(SLOT);
    let step = gro_size(m).filter(|s| *s > 0).unwrap_or(len.max(1));
    let mut at = 0;
    while at < len {
        let part = step.min(len - at);
        out.push(RxDatagram {
            from,
            at: base + at,
            len: part,
        });
        at += part;
    }
}

/// Size of the datagrams that the kernel has merged into one message, if it has.
fn gro_size(m: &libc::msghdr) -> Option<usize> {
    if m.msg_controllen == 0 {
        return None;
    }
    // SAFETY: the kernel filled the control buffer that `m` names, which is still in place.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(m);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_UDP && (*c).cmsg_type == libc::UDP_GRO {
                let size = libc::CMSG_DATA(c).cast::<c_int>().read_unaligned();
                return usize::try_from(size).ok();
            }
            c = libc::CMSG_NXTHDR(m, c);
        }
    }
    None
}
