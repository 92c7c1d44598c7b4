//! Bound TCP sockets: they listen, or connect from the address they have.

use super::{above_standard, begin_connect, io_errno, Stream};
use crate::device::wait::poll_fd;
use core::ffi::c_int;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;

/// Default backlog of a listener.
pub(crate) const BACKLOG: c_int = 4096;

/// A bound socket that accepts connections.
#[derive(Debug)]
pub(crate) struct StreamListener {
    socket: Socket,
    addr: SocketAddr,
}

impl StreamListener {
    /// Binds an address; port 0 means any free port. With `reuse`, also one of which old
    /// connections are left, or that another socket has and does not listen at. `FI_EADDRINUSE`,
    /// `FI_EADDRNOTAVAIL` and other errors of bind(2).
    pub(crate) fn bind(at: SocketAddr, reuse: bool) -> Result<StreamListener, c_int> {
        let go = || -> io::Result<StreamListener> {
            let socket = above_standard(Socket::new(Domain::for_address(at), Type::STREAM, None)?)?;
            socket.set_nonblocking(true)?;
            socket.set_reuse_address(reuse)?;
            socket.bind(&SockAddr::from(at))?;
            let addr = socket.local_addr()?.as_socket().unwrap_or(at);
            Ok(StreamListener { socket, addr })
        };
        go().map_err(|e| io_errno(&e))
    }

    /// Begins to accept connections; `backlog` as for listen(2).
    pub(crate) fn listen(&self, backlog: c_int) -> Result<(), c_int> {
        self.socket.listen(backlog).map_err(|e| io_errno(&e))
    }

    /// Stops listening and frees the address, although the socket is still open.
    pub(crate) fn stop(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Begins to connect from the bound address instead of listening, as [`Stream::connect`].
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<Stream, c_int> {
        let go = || -> io::Result<Stream> {
            begin_connect(&self.socket, to)?;
            Ok(Stream(self.socket.try_clone()?))
        };
        go().map_err(|e| io_errno(&e))
    }

    /// Accepts the next connection. `None` when there is none; an error when it cannot be accepted
    /// now.
    pub(crate) fn accept(&self) -> Result<Option<(Stream, SocketAddr)>, c_int> {
        let accepted = self.socket.accept();
        match accepted.and_then(|(s, from)| Ok((above_standard(s)?, from))) {
            Ok((s, from)) => {
                let nonblocking = s.set_nonblocking(true).is_ok();
                let from = from.as_socket().filter(|_| nonblocking);
                Ok(from.map(|from| (Stream(s), from)))
            }
            Err(e) => match e.kind() {
                // InvalidInput: it has been stopped.
                ErrorKind::WouldBlock
                | ErrorKind::Interrupted
                | ErrorKind::ConnectionAborted
                | ErrorKind::InvalidInput => Ok(None),
                // Without a descriptor accept(2) fails although no connection waits.
                _ if !poll_fd(self.fd(), libc::POLLIN, 0) => Ok(None),
                _ => Err(io_errno(&e)),
            },
        }
    }

    /// The bound address.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }
}
