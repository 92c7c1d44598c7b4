//! The UDP socket of a queue pair, in batches: `sendmmsg`, `recvmmsg` and segmentation offload.
//!
//! Headers and payload are sent from where they are, by scatter/gather lists. A run of datagrams of
//! one size to one receiver is sent as one message (`UDP_SEGMENT`) and received as one (`UDP_GRO`),
//! which [`Sock::recv`] splits.

use crate::core::Result;
use crate::device::host::above_standard;
use crate::device::local::errno;
use crate::device::wait::no_descriptor;
use crate::hmem::{UserMem, MAX_SEGS};
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

/// Datagrams per system call.
pub(crate) const BATCH: usize = 32;
/// Receive slots per system call, each for one datagram or one run of them.
pub(crate) const SLOTS: usize = 16;
/// Bytes of a receive slot.
pub(crate) const SLOT: usize = 65536;

/// One datagram on its way out.
pub(crate) struct Datagram {
    pub to: SocketAddr,
    /// Header, copied.
    pub head: [u8; super::packet::HEAD_MAX],
    pub head_len: usize,
    /// Payload, by reference.
    pub body: UserMem,
}

impl Datagram {
    /// Header and payload in one piece, for a datagram that is held back.
    pub(crate) fn flatten(&self) -> Vec<u8> {
        let mut v = self.head.get(..self.head_len).unwrap_or(&[]).to_vec();
        let at = v.len();
        v.resize(at + self.body.len(), 0);
        if let Some(to) = v.get_mut(at..) {
            self.body.load(0, to);
        }
        v
    }
}

/// Datagrams of one batch. Their places are reused, so that a datagram is written once, where the
/// system call reads it.
#[derive(Default)]
pub(crate) struct Batch {
    places: Vec<Datagram>,
    len: usize,
}

impl Batch {
    /// The next datagram, to `to`, whose header and payload are still to be set.
    #[inline(always)]
    pub(crate) fn add(&mut self, to: SocketAddr) -> &mut Datagram {
        if self.len == self.places.len() {
            self.places.push(Datagram {
                to,
                head: [0; super::packet::HEAD_MAX],
                head_len: 0,
                body: UserMem::EMPTY,
            });
        }
        self.len += 1;
        let d = &mut self.places[self.len - 1];
        d.to = to;
        d
    }

    /// The datagrams, and none any more.
    pub(crate) fn take(&mut self) -> &mut [Datagram] {
        let len = core::mem::take(&mut self.len);
        self.places.get_mut(..len).unwrap_or(&mut [])
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Datagrams that the kernel passes to a socket; it drops the others at their sender's cost.
pub(crate) enum SocketFilter {
    /// Datagrams that present this verification tag, and HELLOs that present this key and token.
    /// `open`: or no token.
    Open {
        vtag: u32,
        qkey: u32,
        token: u64,
        open: bool,
    },
    /// Datagrams sealed by one of these keys.
    Sealed([u32; 2]),
}

/// Where a received datagram lies in the arena.
#[derive(Clone, Copy)]
pub(crate) struct RxDatagram {
    pub from: SocketAddr,
    pub at: usize,
    pub len: usize,
}

/// A bound, non-blocking UDP socket.
pub(crate) struct Sock {
    fd: c_int,
    port: u16,
    rcvbuf: usize,
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

fn to_sys(a: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut s: libc::sockaddr_storage = unsafe { zeroed() };
    match a {
        SocketAddr::V4(v) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_in fits into a sockaddr_storage, which is aligned for it.
            unsafe { (&raw mut s).cast::<libc::sockaddr_in>().write(sin) };
            (s, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(v) => {
            let sin = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v.ip().octets(),
                },
                sin6_scope_id: v.scope_id(),
            };
            // SAFETY: as above, for sockaddr_in6.
            unsafe { (&raw mut s).cast::<libc::sockaddr_in6>().write(sin) };
            (s, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

fn from_sys(s: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(s.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this storage holds a sockaddr_in.
            let v = unsafe { (&raw const *s).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let v = unsafe { (&raw const *s).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v.sin6_port)))
        }
        _ => None,
    }
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

impl Sock {
    fn opt(&self, level: c_int, name: c_int, value: c_int) -> bool {
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

    /// Opens a socket bound to `ip` and `port` (0: any). Fails with the system's errno,
    /// `FI_EADDRINUSE` for a port that is taken.
    pub(crate) fn bind(ip: IpAddr, port: u16, want_rcvbuf: usize) -> Result<Sock> {
        let family = if ip.is_ipv6() {
            libc::AF_INET6
        } else {
            libc::AF_INET
        };
        let flags = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers are passed.
        let fd = unsafe { libc::socket(family, flags, 0) };
        if fd < 0 {
            return Err(no_descriptor("no endpoint: socket(2)"));
        }
        // SAFETY: the descriptor is nobody else's.
        let fd = above_standard(unsafe { OwnedFd::from_raw_fd(fd) })?.into_raw_fd();
        let mut s = Sock {
            fd,
            port: 0,
            rcvbuf: 0,
            slots: 1,
            busy: false,
        };
        let want = c_int::try_from(want_rcvbuf).unwrap_or(c_int::MAX);
        for (force, plain) in [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            if !s.opt(libc::SOL_SOCKET, force, want) {
                s.opt(libc::SOL_SOCKET, plain, want);
            }
        }
        let (sys, len) = to_sys(&SocketAddr::new(ip, port));
        // SAFETY: `sys` is a socket address of `len` bytes.
        if unsafe { libc::bind(fd, (&raw const sys).cast(), len) } != 0 {
            let e = errno();
            crate::info_log!(
                FI_LOG_EP_CTRL,
                "bind(2) to {ip}, port {port}: {}",
                crate::core::errno::text(e)
            );
            return Err(e);
        }
        // SAFETY: all-zero is a valid sockaddr_storage.
        let mut name: libc::sockaddr_storage = unsafe { zeroed() };
        let mut len = size_of::<libc::sockaddr_storage>() as u32;
        let mut size: c_int = 0;
        let mut size_len = size_of::<c_int>() as u32;
        // SAFETY: both calls write at most the lengths given into variables of those lengths.
        let ok = unsafe {
            libc::getsockname(fd, (&raw mut name).cast(), &mut len) == 0
                && libc::getsockopt(
                    fd,
                    libc::SOL_SOCKET,
                    libc::SO_RCVBUF,
                    (&raw mut size).cast(),
                    &mut size_len,
                ) == 0
        };
        if !ok {
            return Err(errno());
        }
        s.port = from_sys(&name).map_or(0, |a| a.port());
        s.rcvbuf = usize::try_from(size).unwrap_or(0);
        Ok(s)
    }

    /// Has the kernel pass runs of datagrams as one (udp(7), UDP_GRO), which costs every receive a
    /// little.
    pub(crate) fn merge(&self) {
        self.opt(libc::SOL_UDP, libc::UDP_GRO, 1);
    }

    /// Has the kernel drop datagrams that the engine would reject by verification tag or key, where
    /// the system has socket filters (socket(7), SO_ATTACH_FILTER).
    pub(crate) fn attach_filter(&self, vtag: SocketFilter) {
        use super::{packet, seal};
        // Filters see a datagram from its UDP header on, and load big-endian numbers.
        const UDP: usize = 8;
        let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        let load = |size: u32, at: usize| {
            step(libc::BPF_LD | size | libc::BPF_ABS, 0, 0, (UDP + at) as u32)
        };
        let equal =
            |k: u32, jt: u8, jf: u8| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, jf, k);
        let answer = |k: u32| step(libc::BPF_RET | libc::BPF_K, 0, 0, k);
        let magic = |m: u16| u32::from(m.swap_bytes());
        let (drop, pass) = (answer(0), answer(u32::MAX));
        let mut program = match vtag {
            SocketFilter::Open {
                vtag,
                qkey,
                token,
                open,
            } => {
                let word = |v: u64| (v as u32).swap_bytes();
                // A service that is open takes HELLOs without a token, others only with theirs.
                let also = if open { 0 } else { token };
                vec![
                    load(libc::BPF_H, 0),
                    equal(magic(packet::MAGIC), 0, 14),
                    load(libc::BPF_B, packet::KIND_AT),
                    equal(packet::HELLO.into(), 2, 0),
                    load(libc::BPF_W, packet::VTAG_AT),
                    equal(vtag.swap_bytes(), 11, 10),
                    load(libc::BPF_W, packet::VTAG_AT),
                    equal(qkey.swap_bytes(), 0, 8),
                    load(libc::BPF_W, packet::DST_AT),
                    equal(word(also), 0, 2),
                    load(libc::BPF_W, packet::DST_AT + 4),
                    equal(word(also >> 32), 5, 0),
                    load(libc::BPF_W, packet::DST_AT),
                    equal(word(token), 0, 2),
                    load(libc::BPF_W, packet::DST_AT + 4),
                    equal(word(token >> 32), 1, 0),
                    drop,
                    pass,
                ]
            }
            SocketFilter::Sealed([first, second]) => vec![
                load(libc::BPF_H, 0),
                equal(magic(seal::MAGIC), 0, 3),
                load(libc::BPF_W, seal::KEY_AT),
                equal(first.swap_bytes(), 2, 0),
                equal(second.swap_bytes(), 1, 0),
                drop,
                pass,
            ],
        };
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

    /// The descriptor, for epoll.
    pub(crate) fn fd(&self) -> c_int {
        self.fd
    }

    /// The port it is bound to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Receive buffer granted, as the kernel counts it (bookkeeping included).
    pub(crate) fn rcvbuf(&self) -> usize {
        self.rcvbuf
    }

    /// Sends a batch. What the kernel does not take is lost, as on any network.
    pub(crate) fn send(&self, batch: &[Datagram]) {
        // Clearing the message headers of a full batch takes thousands of instructions.
        match batch {
            [one] => self.send_one(one),
            _ if batch.len() <= 4 => self.send_some::<4>(batch),
            _ => batch.chunks(BATCH).for_each(|b| self.send_some::<BATCH>(b)),
        }
    }

    fn send_one(&self, d: &Datagram) {
        let (mut name, namelen) = to_sys(&d.to);
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
                    &raw const name,
                    namelen,
                )
            };
            return;
        }
        let mut iov = [NO_PIECE; MAX_SEGS + 1];
        let mut m = no_message();
        m.msg_name = (&raw mut name).cast();
        m.msg_namelen = namelen;
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
            let (sys, len) = to_sys(&d.to);
            *name = sys;
            m.msg_hdr.msg_name = (name as *mut libc::sockaddr_storage).cast();
            m.msg_hdr.msg_namelen = len;
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
    pub(crate) fn send_run(&self, run: &[Datagram], segment: usize) -> bool {
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
        let (mut name, namelen) = to_sys(&first.to);
        let mut control = [0u64; 4];
        let mut m = no_message();
        m.msg_name = (&raw mut name).cast();
        m.msg_namelen = namelen;
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

    /// Receives datagrams into `arena`, which holds `SLOTS * SLOT` bytes, and appends them to
    /// `out`. Returns whether there may be more.
    pub(crate) fn recv(&mut self, arena: &mut [u8], out: &mut Vec<RxDatagram>) -> bool {
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
        found == offered
    }

    /// As [`Sock::recv`], for one slot: most calls find the socket empty.
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

impl Sock {
    /// Closes the socket; every later call finds none.
    pub(crate) fn close(&mut self) {
        // SAFETY: the descriptor is ours and closed once; closing -1 does nothing.
        unsafe { libc::close(core::mem::replace(&mut self.fd, -1)) };
    }
}

impl Drop for Sock {
    fn drop(&mut self) {
        self.close();
    }
}
