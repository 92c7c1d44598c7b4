//! The UDP socket of a queue pair, in batches: `sendmmsg`, `recvmmsg` and segmentation offload.
//!
//! Headers and payload are sent from where they are, by scatter/gather lists. A run of datagrams of
//! one size to one receiver is sent as one message (`UDP_SEGMENT`) and received as one (`UDP_GRO`),
//! which [`Sock::recv`] splits.
//!
//! While most datagrams come from one peer, a second socket on the same port is connected to it
//! ([`frequent`]): the kernel then looks up no route for a datagram in either direction. Datagrams
//! of others arrive at the first socket, as they always do. The second exists only while the
//! application polls: a blocked call waits for the first ([`Sock::leave_peer`]).

mod filter;
mod frequent;
mod name;
mod socket;

use crate::core::{memory, Result};
use crate::device::host::zeroed;
use crate::device::local::errno;
use crate::device::wait::no_descriptor;
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_int;
pub(crate) use filter::SocketFilter;
use frequent::FrequentPeer;
use socket::Socket;
use std::net::{IpAddr, SocketAddr};

/// Datagrams per system call.
pub(crate) const BATCH: usize = 32;
/// Receive slots per system call, each for one datagram or one run of them.
pub(crate) const SLOTS: usize = 16;
/// Bytes of a receive slot.
pub(crate) const SLOT: usize = 65536;

/// Memory to receive datagrams into; of one slot where memory is scarce, `None` where there is
/// none.
pub(crate) fn new_arena() -> Option<Vec<u8>> {
    let slots = match memory::is_scarce() {
        true => 1,
        false => SLOTS,
    };
    zeroed(slots * SLOT)
}

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

/// Where a received datagram lies in the arena.
#[derive(Clone, Copy)]
pub(crate) struct RxDatagram {
    pub from: SocketAddr,
    pub at: usize,
    pub len: usize,
}

/// Receives of which one reads the first socket while there is a connected one.
const OTHERS_EVERY: u32 = 8;
/// Nanoseconds after which the next one does that finds the connected socket empty.
const OTHERS_WAIT: u64 = 20_000;
/// Receives that may fail before a socket counts as empty.
const LEAVING_ERRORS: u8 = 64;

/// A bound, non-blocking UDP socket, and perhaps one that is connected to the most frequent peer.
pub(crate) struct Sock {
    /// Takes in what the connected socket does not.
    first: Socket,
    connected: Option<Socket>,
    /// What is left in the connected socket is read; then it is closed. So many receives may fail.
    leaving: Option<u8>,
    frequent: FrequentPeer,
    /// Counts receives while there is a connected socket, and when the last one read the first.
    turn: u32,
    first_read: u64,
    /// The last receive is one of so many that might have found what it found.
    share: u32,
    ip: IpAddr,
    port: u16,
    /// Buffer asked for, bytes.
    wanted: usize,
    rcvbuf: usize,
    merges: bool,
    filter: Option<SocketFilter>,
}

impl Sock {
    /// Opens a socket bound to `ip` and `port` (0: any). Fails with the system's errno,
    /// `FI_EADDRINUSE` for a port that is taken.
    pub(crate) fn bind(ip: IpAddr, port: u16, want_rcvbuf: usize) -> Result<Sock> {
        let local = SocketAddr::new(ip, port);
        let first = Socket::open(&local, want_rcvbuf)
            .map_err(|_| no_descriptor("no endpoint: socket(2)"))?;
        first.bind(&local).inspect_err(|e| {
            crate::info_log!(
                FI_LOG_EP_CTRL,
                "bind(2) to {ip}, port {port}: {}",
                crate::core::errno::text(*e)
            );
        })?;
        let (port, rcvbuf) = first.port_and_buffer()?;
        Ok(Sock {
            first,
            connected: None,
            leaving: None,
            first_read: 0,
            share: 1,
            frequent: FrequentPeer::new(local),
            turn: 0,
            ip,
            port,
            wanted: want_rcvbuf,
            rcvbuf,
            merges: false,
            filter: None,
        })
    }

    /// Has the kernel pass runs of datagrams as one (udp(7), UDP_GRO), which costs every receive a
    /// little.
    pub(crate) fn merge(&mut self) {
        self.merges = true;
        self.both().for_each(Socket::merge);
    }

    /// Has the kernel drop datagrams that the engine would reject by verification tag or key, where
    /// the system has socket filters (socket(7), SO_ATTACH_FILTER).
    pub(crate) fn attach_filter(&mut self, filter: SocketFilter) {
        let mut program = filter.program();
        self.both().for_each(|s| s.filter(&mut program));
        self.filter = Some(filter);
    }

    /// The sockets that there are.
    fn both(&self) -> impl Iterator<Item = &Socket> {
        core::iter::once(&self.first).chain(&self.connected)
    }

    /// The descriptor of the socket that is always there, for epoll.
    pub(crate) fn fd(&self) -> c_int {
        self.first.fd()
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
        self.toward(batch).send(batch);
    }

    /// As [`Sock::send`], for datagrams of `segment` bytes to one receiver, of which only the last
    /// may be shorter, in one pass through the network stack (udp(7), UDP_SEGMENT). `false` where
    /// that is not possible.
    pub(crate) fn send_run(&self, run: &[Datagram], segment: usize) -> bool {
        self.toward(run).send_run(run, segment)
    }

    /// The socket by which the batch goes.
    #[inline(always)]
    fn toward(&self, batch: &[Datagram]) -> &Socket {
        match &self.connected {
            Some(s) if batch.iter().all(|d| s.connected() == Some(&d.to)) => s,
            _ => &self.first,
        }
    }

    /// Receives datagrams into `arena`, of [`new_arena`], and appends them to
    /// `out`. Returns whether there may be more.
    pub(crate) fn recv(&mut self, arena: &mut [u8], out: &mut Vec<RxDatagram>, now: u64) -> bool {
        self.share = 1;
        let Some(s) = self.connected.as_mut() else {
            return self.first.recv(arena, out).1;
        };
        if let Some(errors) = self.leaving {
            let (found, _) = s.recv(arena, out);
            if !found {
                // Errors that ICMP messages have caused come before what is in the socket.
                self.leaving = errors.checked_sub(1).filter(|_| errno() != libc::EAGAIN);
                if self.leaving.is_none() {
                    self.close_connected();
                }
            }
            return true;
        }
        self.turn = self.turn.wrapping_add(1);
        if !self.turn.is_multiple_of(OTHERS_EVERY) {
            let (found, more) = s.recv(arena, out);
            if found || now < self.first_read + OTHERS_WAIT {
                return more;
            }
        }
        self.first_read = now;
        self.share = OTHERS_EVERY - 1;
        self.first.recv(arena, out).1
    }

    /// The last receive found a datagram of this peer, and none of another sender.
    #[inline]
    pub(crate) fn heard(&mut self, from: SocketAddr) {
        self.frequent.heard(from, self.share);
        if self.connected.is_some() && !self.frequent.is(self.peer()) {
            self.leave_peer();
        }
    }

    /// The peer that has a socket of its own.
    pub(crate) fn peer(&self) -> Option<&SocketAddr> {
        self.connected.as_ref().and_then(Socket::connected)
    }

    /// Connects a socket to the peer that most datagrams come from, if it pays. The caller polls,
    /// and calls [`Sock::leave_peer`] before a wait for datagrams at [`Sock::fd`].
    #[inline(always)]
    pub(crate) fn connect_to_frequent(&mut self) {
        if let (None, Some(to)) = (&self.connected, self.frequent.settled()) {
            self.connect_to(to);
        }
    }

    #[cold]
    fn connect_to(&mut self, to: SocketAddr) {
        match self.second(&to) {
            Ok(s) => self.connected = Some(s),
            Err(e) => {
                self.frequent.pass_over();
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "no socket for {to} alone: {}",
                    crate::core::errno::text(e)
                );
            }
        }
        // The first socket has what came before.
        self.turn = OTHERS_EVERY - 1;
    }

    /// A socket on the same port, connected to `to`. Both sockets have SO_REUSEPORT only meanwhile:
    /// no other process shares the port, and another endpoint finds it taken.
    fn second(&self, to: &SocketAddr) -> Result<Socket> {
        let local = SocketAddr::new(self.ip, self.port);
        let mut s = Socket::open(&local, self.wanted)?;
        // The thread that polls may have entered another network namespace.
        if s.namespace() != self.first.namespace() {
            return Err(FI_ENETUNREACH);
        }
        if self.merges {
            s.merge();
        }
        if let Some(f) = &self.filter {
            s.filter(&mut f.program());
        }
        self.first.share_port(true);
        s.share_port(true);
        let bound = s.bind(&local);
        self.first.share_port(false);
        s.share_port(false);
        bound?;
        s.connect(to)?;
        Ok(s)
    }

    /// Has what comes from now on go to the first socket; the connected one is read until it is
    /// empty, and closed then: the following receives do so, which return that there may be more.
    pub(crate) fn leave_peer(&mut self) {
        let Some(s) = self.connected.as_mut().filter(|_| self.leaving.is_none()) else {
            return;
        };
        // No peer sends from this port. A child of fork(2) may keep the socket open.
        let no_peer = SocketAddr::new(self.ip, 1);
        match s.connect(&no_peer) {
            Ok(()) => self.leaving = Some(LEAVING_ERRORS),
            Err(_) => self.close_connected(),
        }
    }

    /// What is in the connected socket is still to be read.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Closes the connected socket with what is in it, which its sender repeats.
    pub(crate) fn disconnect(&mut self) {
        self.leave_peer();
        self.close_connected();
    }

    fn close_connected(&mut self) {
        self.connected = None;
        self.leaving = None;
        self.frequent.forget();
    }

    /// Closes the socket; every later call finds none.
    pub(crate) fn close(&mut self) {
        self.disconnect();
        self.first.close();
    }
}

#[cfg(test)]
mod tests;
