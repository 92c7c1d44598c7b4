//! Admission: only processes of the same user may open a session with a service on this host.
//!
//! A queue pair whose number the application chose (a service) has no secret in its address. It
//! listens on a Unix socket in the abstract namespace, named after its address. A caller connects,
//! both sides check the other's user id (SO_PEERCRED), and the caller sends a call with its address
//! and token. The WELCOME goes to that address by UDP, so that a process that sends another's
//! address gains nothing. The adapter's thread accepts connections (`thread`); [`ask`] does not
//! block.

use crate::core::Result;
use crate::device::local::{self, Incoming};
use crate::device::QpAddr;
use crate::types::*;
use std::os::fd::{AsRawFd, OwnedFd};

/// Bytes of a call: gid, queue pair number, key, verification tag, token.
const CALL: usize = 16 + 2 + 4 + 4 + 8;

/// The content of a call: the caller's address and verification tag, and the token it has chosen.
pub(crate) struct Caller {
    pub addr: QpAddr,
    pub vtag: u32,
    pub token: u64,
}
/// Connections that may wait to be accepted (listen(2)).
const BACKLOG: i32 = 256;

fn name(a: &QpAddr) -> String {
    let gid = u128::from_be_bytes(a.gid);
    format!("libfabric-efa-admit/{gid:032x}/{}", a.qpn)
}

/// Most accepted connections without a call; the oldest is closed when there are more.
const WAITING: usize = 256;

/// Where a service accepts callers.
pub(crate) struct AdmissionListener {
    socket: OwnedFd,
    /// Accepted connections whose call has not arrived: a caller may be preempted between
    /// connect(2) and its send.
    waiting: Vec<OwnedFd>,
}

/// Listens for callers of the service at `own`. `FI_EADDRINUSE` when another process has the name.
pub(crate) fn listen(own: &QpAddr) -> Result<AdmissionListener> {
    let socket = local::listen(&name(own), BACKLOG).map_err(|e| {
        if e == FI_EMFILE {
            return e;
        }
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "service {}: another process holds the socket by which callers on this host are \
             admitted",
            own.qpn
        );
        FI_EADDRINUSE
    })?;
    Ok(AdmissionListener {
        socket,
        waiting: Vec::new(),
    })
}

/// Asks the service at `to` to admit us. `false` when no service listens there; `true` also when
/// the service cannot answer now, or belongs to another user (with a log line).
pub(crate) fn ask(own: &Caller, to: &QpAddr) -> bool {
    let fd = match local::connect(&name(to)) {
        Ok((fd, _)) => fd,
        // The service has too many callers or another user, or this process has no descriptor left.
        Err(FI_EAGAIN | FI_EACCES | FI_EMFILE | libc::ENFILE | FI_ENOMEM) => return true,
        Err(_) => return false,
    };
    send_call(&fd, own);
    true
}

/// Sends a call; `false` when it cannot be sent now.
fn send_call(fd: &OwnedFd, own: &Caller) -> bool {
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
    local::send(fd, &call)
}

impl AdmissionListener {
    /// The listening socket's descriptor, for epoll.
    pub(crate) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// Accepts at most `most` connections of our user and hands every call that has come to
    /// `each`. `wait_for` gets the descriptor of a connection whose call is still to come:
    /// `accept` has to be called again when the descriptor is readable.
    pub(crate) fn accept(
        &mut self,
        most: usize,
        mut each: impl FnMut(Caller),
        mut wait_for: impl FnMut(i32),
    ) {
        self.waiting.retain(|fd| match receive(fd) {
            CallStatus::Later => true,
            CallStatus::Call(caller) => {
                each(caller);
                false
            }
            CallStatus::Invalid => false,
        });
        for _ in 0..most {
            let fd = match local::accept(&self.socket) {
                Ok(Incoming::Process(fd, _)) => fd,
                Ok(Incoming::OtherUser) => continue,
                Ok(Incoming::NoCaller) | Err(_) => return,
            };
            match receive(&fd) {
                CallStatus::Call(caller) => each(caller),
                CallStatus::Invalid => {}
                CallStatus::Later => {
                    if self.waiting.len() >= WAITING {
                        self.waiting.remove(0);
                    }
                    wait_for(fd.as_raw_fd());
                    self.waiting.push(fd);
                }
            }
        }
    }
}

/// State of the call on a connection.
enum CallStatus {
    Call(Caller),
    /// The call has not arrived yet.
    Later,
    /// The peer has sent something other than a call, or has closed the connection.
    Invalid,
}

fn receive(fd: &OwnedFd) -> CallStatus {
    let mut call = [0u8; CALL];
    match local::recv(fd, &mut call) {
        Some(CALL) => parse(&call).map_or(CallStatus::Invalid, CallStatus::Call),
        Some(_) => CallStatus::Invalid,
        None => CallStatus::Later,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(qpn: u16) -> Caller {
        let addr = QpAddr {
            gid: [7; 16],
            qpn,
            qkey: 3,
            token: 0,
        };
        Caller {
            addr,
            vtag: 4,
            token: 5,
        }
    }

    #[test]
    fn a_call_that_comes_after_its_connection_was_accepted_counts() {
        // The name contains the process id: concurrent runs of this test use different names.
        let mut own = caller(1).addr;
        own.gid[..4].copy_from_slice(&std::process::id().to_be_bytes());
        let mut l = listen(&own).unwrap();
        let (fd, _) = local::connect(&name(&own)).unwrap();
        let (mut calls, mut watched) = (Vec::new(), 0);
        l.accept(8, |c| calls.push(c.addr), |_| watched += 1);
        assert_eq!((calls.len(), watched), (0, 1));
        assert!(send_call(&fd, &caller(9)));
        l.accept(8, |c| calls.push(c.addr), |_| watched += 1);
        assert_eq!((calls.as_slice(), watched), (&[caller(9).addr][..], 1));
        assert!(l.waiting.is_empty());
    }

    #[test]
    fn connections_without_a_call_are_bounded_and_end_with_their_callers() {
        let mut own = caller(2).addr;
        own.gid[..4].copy_from_slice(&std::process::id().to_be_bytes());
        let mut l = listen(&own).unwrap();
        let mut open = Vec::new();
        for _ in 0..WAITING + 10 {
            open.push(local::connect(&name(&own)).unwrap());
            l.accept(8, |_| panic!("a caller that has not called"), |_| {});
        }
        assert_eq!(l.waiting.len(), WAITING);
        open.clear();
        l.accept(8, |_| panic!("a caller that has not called"), |_| {});
        assert!(l.waiting.is_empty());
    }
}
