//! TCP sockets: non-blocking connections that send from and receive into application memory without
//! a copy, and listeners.

mod gather;
mod listener;

use super::host::processor;
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_int;
pub(crate) use gather::Gather;
pub(crate) use listener::{StreamListener, BACKLOG};
use socket2::{Domain, SockAddr, Socket, TcpKeepalive, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Flags of calls that send. System calls of the data path go through syscall(2): the functions of
/// the C library are cancellation points, which cost 30 ns each in a process with several threads.
const SEND_FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

fn send_flags(more: bool) -> c_int {
    SEND_FLAGS | if more { libc::MSG_MORE } else { 0 }
}

/// A connected socket, or one that is being connected. Never blocks.
#[derive(Debug)]
pub(crate) struct Stream(Socket);

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRead {
    /// Number of bytes received.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The peer has closed the connection.
    Closed,
}

fn io_errno(e: &io::Error) -> c_int {
    e.raw_os_error().unwrap_or(FI_EIO)
}

/// The result of a system call that failed: errors that mean "try later" are not errors, nor is a
/// shortage of memory in the kernel.
fn last() -> Result<StreamRead, c_int> {
    let e = io::Error::last_os_error();
    match (e.kind(), io_errno(&e)) {
        (ErrorKind::WouldBlock | ErrorKind::Interrupted, _) | (_, libc::ENOBUFS | FI_ENOMEM) => {
            Ok(StreamRead::Nothing)
        }
        (_, e) => Err(e),
    }
}

/// Has the kernel choose the port at connect(2), so that connections to different peers can share
/// one.
fn late_port(s: &Socket) {
    let on: c_int = 1;
    // SAFETY: the option's value is a c_int that outlives the call.
    unsafe {
        libc::setsockopt(
            s.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            core::mem::size_of::<c_int>() as u32,
        );
    }
}

fn begin_connect(s: &Socket, to: SocketAddr) -> io::Result<()> {
    match s.connect(&SockAddr::from(to)) {
        Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        r => r,
    }
}

impl Stream {
    /// Begins to connect to `to`, from address `from` and any port. The connection is established
    /// when the socket is writable and [`Stream::error`] is 0.
    pub(crate) fn connect(from: SocketAddr, to: SocketAddr) -> Result<Stream, c_int> {
        let go = || -> io::Result<Stream> {
            let s = above_standard(Socket::new(Domain::for_address(to), Type::STREAM, None)?)?;
            s.set_nonblocking(true)?;
            let mut from = from;
            from.set_port(0);
            if !from.ip().is_unspecified() && from.is_ipv4() == to.is_ipv4() {
                late_port(&s);
                s.bind(&SockAddr::from(from))?;
            }
            begin_connect(&s, to)?;
            Ok(Stream(s))
        };
        go().map_err(|e| io_errno(&e))
    }

    /// Two streams that are connected with each other, for tests.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn pair() -> Result<(Stream, Stream), c_int> {
        let pair = Socket::pair(Domain::UNIX, Type::STREAM, None);
        let (a, b) = pair.map_err(|e| io_errno(&e))?;
        Ok((Stream(a), Stream(b)))
    }

    /// As [`Stream::pair`], by TCP.
    #[cfg(all(test, not(miri)))]
    pub(crate) fn tcp_pair() -> io::Result<(Stream, Stream)> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let near = std::net::TcpStream::connect(listener.local_addr()?)?;
        let far = listener.accept()?.0;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok((Stream(near.into()), Stream(far.into())))
    }

    /// Sets the socket options of every connection.
    pub(crate) fn tune(&self, nodelay: bool) {
        let _ = self.0.set_tcp_nodelay(nodelay);
        self.probe_after(Duration::from_secs(30), Duration::from_secs(10));
    }

    /// The peer may have lost this connection: asks its system at once.
    pub(crate) fn expect_reset(&self) {
        let second = Duration::from_secs(1);
        self.probe_after(second, second);
    }

    /// Whether data sent at least `limit` ago is not acknowledged, no segment of the peer has
    /// arrived since, and everything that it has sent was received. The system probes for a missing
    /// acknowledgement only by sending the data again, after up to two minutes.
    pub(crate) fn is_unheard(&self, limit: Duration) -> bool {
        let Some([.., unacked, _, _, _, _, sent, _, _, heard]) = self.info() else {
            return false;
        };
        let mut unread = 0;
        // SAFETY: FIONREAD writes an int.
        let asked = unsafe { libc::ioctl(self.fd(), libc::FIONREAD, &raw mut unread) };
        let old = |ms: u32| u128::from(ms) >= limit.as_millis();
        asked == 0 && unread == 0 && unacked > 0 && old(sent) && old(heard)
    }

    /// `struct tcp_info` of <linux/tcp.h> up to `tcpi_last_ack_recv`; `None` where the system has
    /// none.
    fn info(&self) -> Option<[u32; 15]> {
        let mut info = [0u32; 15];
        let mut len = size_of_val(&info) as libc::socklen_t;
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_INFO);
        let at = (&raw mut info).cast();
        // SAFETY: the kernel writes at most `len` bytes, the size of `info`.
        let r = unsafe { libc::getsockopt(self.fd(), level, name, at, &raw mut len) };
        (r == 0 && len as usize == size_of_val(&info)).then_some(info)
    }

    /// From now on the system drops what arrives from the peer, as if the way were cut; `false`
    /// where it does not tell what is unacknowledged ([`Stream::is_unheard`]).
    #[cfg(all(test, not(miri)))]
    pub(crate) fn cut_off(&self) -> bool {
        let keeps_nothing = (libc::BPF_RET | libc::BPF_K) as u16;
        let none = [socket2::SockFilter::new(keeps_nothing, 0, 0, 0)];
        self.0.attach_filter(&none).unwrap();
        self.info().is_some()
    }

    fn probe_after(&self, idle: Duration, interval: Duration) {
        let keepalive = TcpKeepalive::new()
            .with_time(idle)
            .with_interval(interval)
            .with_retries(3);
        let _ = self.0.set_tcp_keepalive(&keepalive);
    }

    /// Error of a connection attempt, or of the connection; 0: none.
    pub(crate) fn error(&self) -> c_int {
        match self.0.take_error() {
            Ok(None) => 0,
            Ok(Some(e)) => io_errno(&e),
            Err(e) => io_errno(&e),
        }
    }

    pub(crate) fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Address of the other side.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr().ok()?.as_socket()
    }

    /// Address of this side.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()?.as_socket()
    }

    /// Whether the peer is on this host and was on the caller's processor when it sent last. `None`
    /// where the system does not tell.
    pub(crate) fn shares_processor(&self) -> Option<bool> {
        let [ours, theirs] = [self.local_addr()?, self.peer_addr()?].map(|a| a.ip());
        if ours != theirs && !theirs.is_loopback() {
            return Some(false);
        }
        // On one host the sender's processor takes its packets in.
        let theirs = self.0.cpu_affinity().ok()?;
        Some(theirs == usize::from(processor()?))
    }

    /// Sends as much as the socket takes, and returns the number of bytes; 0 when there is no room.
    /// `more`: they may wait in the socket for others that follow soon, or for [`Stream::push`].
    #[inline]
    pub(crate) fn send(&self, g: &Gather, more: bool) -> Result<usize, c_int> {
        // SAFETY: all-zero is a valid message header.
        let mut m: libc::msghdr = unsafe { core::mem::zeroed() };
        m.msg_iov = g.iov.as_ptr().cast_mut();
        m.msg_iovlen = g.count as _;
        // SAFETY: the first `count` pieces are readable memory: slices that outlive `g`, and what
        // the application lent (see `UserMem::new`); the kernel only reads.
        let n =
            unsafe { libc::syscall(libc::SYS_sendmsg, self.fd(), &raw const m, send_flags(more)) };
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => last().map(|_| 0),
        }
    }

    /// As [`Stream::send`], for one piece.
    #[inline]
    pub(crate) fn send_bytes(&self, b: &[u8], more: bool) -> Result<usize, c_int> {
        let flags = send_flags(more);
        let (at, to) = (b.as_ptr(), core::ptr::null::<libc::sockaddr>());
        // SAFETY: the kernel only reads, and no further than the slice goes; there is no address.
        let n = unsafe { libc::syscall(libc::SYS_sendto, self.fd(), at, b.len(), flags, to, 0) };
        match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => last().map(|_| 0),
        }
    }

    /// Sends off what was left waiting for more: the option does so each time that it is set
    /// (tcp(7)).
    pub(crate) fn push(&self) {
        let _ = self.0.set_tcp_nodelay(true);
    }

    /// Bytes that one packet carries at most; 0 where there are no packets.
    pub(crate) fn segment(&self) -> usize {
        self.0.tcp_mss().map_or(0, |n| n as usize)
    }

    /// Receives into `first`, which is host memory, and then into `then`. At least one of them is
    /// not empty.
    #[inline]
    pub(crate) fn recv(&self, first: &UserMem, then: &mut [u8]) -> Result<StreamRead, c_int> {
        let n = if first.is_empty() {
            let (at, room) = (then.as_mut_ptr(), then.len());
            let (flags, none) = (libc::MSG_DONTWAIT, core::ptr::null_mut::<c_int>());
            // SAFETY: `then` is writable; the sender's address is not asked for.
            unsafe { libc::syscall(libc::SYS_recvfrom, self.fd(), at, room, flags, none, none) }
        } else {
            let mut g = Gather::new();
            g.mem(first);
            g.push(then.as_mut_ptr().cast_const(), then.len());
            // SAFETY: the pieces are writable: the application lent them for this (see
            // `UserMem::new`), and `then` is a slice; the socket does not block.
            unsafe { libc::syscall(libc::SYS_readv, self.fd(), g.iov.as_ptr(), g.count) }
        };
        match usize::try_from(n) {
            Ok(0) => Ok(StreamRead::Closed),
            Ok(n) => Ok(StreamRead::Bytes(n)),
            Err(_) => last(),
        }
    }

    /// Ends the connection in both directions.
    pub(crate) fn shut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// Sends no more: the peer sees the end behind what it has been sent.
    pub(crate) fn shut_sending(&self) {
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

/// [`above_standard`](super::host::above_standard) for sockets.
fn above_standard(s: Socket) -> io::Result<Socket> {
    let moved = super::host::above_standard(s.into());
    moved
        .map(Socket::from)
        .map_err(io::Error::from_raw_os_error)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    /// The processors that this thread may use.
    fn allowed() -> Vec<usize> {
        // SAFETY: an empty set is a valid one, and the call writes into it.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::sched_getaffinity(0, core::mem::size_of_val(&set), &mut set);
            (0..libc::CPU_SETSIZE as usize)
                .filter(|c| libc::CPU_ISSET(*c, &set))
                .collect()
        }
    }

    /// Moves this thread to a processor.
    fn move_to(cpu: usize) {
        // SAFETY: an empty set is a valid one, `cpu` comes from a set, and the call only reads.
        unsafe {
            let mut set: libc::cpu_set_t = core::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, core::mem::size_of_val(&set), &set);
        }
    }

    #[test]
    fn a_peer_shares_the_processor_that_it_sent_from() {
        let all = allowed();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        let stream = Stream(receiver.try_clone().unwrap().into());
        let mut told = |from: usize| {
            move_to(from);
            sender.write_all(&[1; 64]).unwrap();
            move_to(all[0]);
            receiver.read_exact(&mut [0; 64]).unwrap();
            stream.shares_processor()
        };
        assert_eq!(told(all[0]), Some(true));
        if let Some(other) = all.get(1) {
            assert_eq!(told(*other), Some(false));
        }
    }
}
