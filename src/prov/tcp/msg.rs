//! Connected endpoints (FI_EP_MSG, fi_cm(3)): one connection each, which the application makes and
//! ends, and whose events its event queue reports.
//!
//! The connection is a [`Conn`] as those of RDM endpoints. This module has the differences: the
//! side that requests, the data in control messages, and the report of the end.

use super::conn::{self, end, watch, Conn, ConnState};
use super::ep::{self, TcpEp};
use super::passive::TcpRequest;
use super::state::TcpState;
use super::wire::{Control, ControlKind, CONTROL_DATA_MAX};
use crate::core::{errno, params, Result};
use crate::device::stream::{Stream, StreamListener};
use crate::types::*;
use std::net::SocketAddr;
use std::time::Instant;

/// State of the connection of an endpoint.
#[derive(Default)]
pub(crate) enum MsgState {
    /// Nothing yet.
    #[default]
    New,
    /// A request, to be accepted.
    Requested(TcpRequest),
    /// A connection, which may not be open yet, and the application's data in its request.
    Conn(u32, Vec<u8>),
    /// The connection has ended.
    Over,
}

impl MsgState {
    /// The connection's number. `FI_ENOTCONN` without one.
    #[inline]
    pub(crate) fn conn(&self) -> Result<u32> {
        match self {
            MsgState::Conn(id, _) => Ok(*id),
            _ => Err(FI_ENOTCONN),
        }
    }

    /// The application's data in the connection's request.
    pub(crate) fn request_data(&self) -> &[u8] {
        match self {
            MsgState::Conn(_, data) => data,
            _ => &[],
        }
    }
}

/// The endpoint, for a call of fi_cm(3) that brings data for the peer.
fn connected_ep<'a>(s: &'a mut TcpState, id: u32, data: &[u8]) -> Result<&'a mut TcpEp> {
    let e = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if e.msg.is_none() {
        return Err(FI_ENOSYS);
    }
    if e.eq.is_none() {
        return Err(FI_ENOEQ);
    }
    if data.len() > CONTROL_DATA_MAX {
        return Err(FI_EINVAL);
    }
    Ok(e)
}

/// A new connection of an endpoint with `peer`. Fails when its socket cannot be watched.
fn add_conn(
    s: &mut TcpState,
    id: u32,
    state: ConnState,
    stream: Stream,
    peer: Option<SocketAddr>,
    request_data: &[u8],
) -> Result<u32> {
    let fd = stream.fd();
    let mut c = Conn::new(id, state, Some(stream), Instant::now() + conn::timeout());
    if let Some(peer) = peer {
        c.peer = s.peers.hold_addr(peer);
    }
    let n = s.conns.insert(c);
    let open = state == ConnState::Open;
    if let Err(e) = s.poller.add(fd, u64::from(n), open, !open) {
        conn::drop_conn(s, n);
        return Err(e);
    }
    if let Some(e) = s.eps.get_mut(id) {
        e.msg = Some(MsgState::Conn(n, request_data.to_vec()));
    }
    Ok(n)
}

/// fi_connect(3). `FI_EINVAL` for an endpoint that has or had a connection, or a request.
pub(crate) fn connect(s: &mut TcpState, id: u32, to: SocketAddr, data: &[u8]) -> Result<()> {
    crate::core::memory::check()?;
    let e = connected_ep(s, id, data)?;
    if !matches!(e.msg, Some(MsgState::New)) || e.addr.is_ipv4() != to.is_ipv4() {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_connect: {to}: wanted a new endpoint, and an address of the kind of its own"
        );
        return Err(FI_EINVAL);
    }
    ep::enable(s, id)?;
    let e = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let socket = e.listener.as_ref().ok_or(FI_EINVAL)?;
    let stream = socket.connect(to).inspect_err(|err| {
        let text = errno::text(*err);
        crate::info_log!(FI_LOG_EP_CTRL, "fi_connect: connecting to {to}: {text}");
    })?;
    e.listener = None;
    stream.tune(params::tcp().nodelay);
    let n = add_conn(s, id, ConnState::Connecting, stream, Some(to), data)?;
    s.making.push(n);
    Ok(())
}

/// fi_accept(3). `FI_EINVAL` for an endpoint that was not opened for a request.
pub(crate) fn accept(s: &mut TcpState, id: u32, data: &[u8]) -> Result<()> {
    let e = connected_ep(s, id, data)?;
    if !matches!(e.msg, Some(MsgState::Requested(_))) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_accept: wanted an endpoint of the request that FI_CONNREQ brought, not yet accepted"
        );
        return Err(FI_EINVAL);
    }
    ep::enable(s, id)?;
    let e = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let Some(MsgState::Requested(r)) = e.msg.replace(MsgState::Over) else {
        return Err(FI_EINVAL);
    };
    let peer = r.stream.peer_addr();
    let n = add_conn(s, id, ConnState::Open, r.stream, peer, &[])?;
    s.last_active = n;
    // Reported before the answer is sent, after which the peer may send its next request.
    report(s, id, FI_CONNECTED, &[]);
    if let Some(c) = s.conns.get_mut(n) {
        c.set_order(r.order);
        if let Err(err) = conn::send_control(c, ControlKind::Accept, data) {
            // FI_SHUTDOWN reports the failure.
            conn::lost(s, n, err, "accepting");
        }
    }
    Ok(())
}

/// FI_GET_FD: the connection's socket, or the one that is bound and not yet connected.
pub(crate) fn socket(s: &TcpState, id: u32) -> Result<i32> {
    let e = s.eps.get(id).ok_or(FI_EBADF)?;
    let fd = match e.msg.as_ref().ok_or(FI_ENOSYS)? {
        MsgState::Conn(n, _) => s.conns.get(*n).and_then(Conn::fd),
        _ => e.listener.as_ref().map(StreamListener::fd),
    };
    fd.ok_or(FI_EOPBADSTATE)
}

/// fi_shutdown(3), also of what has ended already: both sides may call it. `FI_ENOTCONN` before
/// there is a connection.
pub(crate) fn shutdown(s: &mut TcpState, id: u32) -> Result<()> {
    let e = s.eps.get(id).ok_or(FI_EBADF)?;
    if matches!(e.msg, Some(MsgState::Over)) {
        return Ok(());
    }
    let n = e.msg.as_ref().ok_or(FI_ENOSYS)?.conn()?;
    end(
        s,
        n,
        FI_ECANCELED,
        "the connection was ended by fi_shutdown",
    );
    Ok(())
}

/// Address of the peer (fi_getpeer(3)). `FI_ENOTCONN` without one.
pub(crate) fn peer(s: &TcpState, id: u32) -> Result<SocketAddr> {
    let e = s.eps.get(id).ok_or(FI_EBADF)?;
    let n = e.msg.as_ref().ok_or(FI_ENOSYS)?.conn()?;
    let c = s.conns.get(n).ok_or(FI_ENOTCONN)?;
    s.peers.addr(c.peer).ok_or(FI_ENOTCONN)
}

fn report(s: &TcpState, id: u32, event: u32, data: &[u8]) {
    if let Some(eq) = s.eps.get(id).and_then(|e| e.eq.as_ref()) {
        eq.report(event, data);
    }
}

/// Processes the answer to our request.
pub(super) fn handle_answer(s: &mut TcpState, n: u32, control: &Control, data: &[u8]) {
    let Some(c) = s.conns.get_mut(n) else { return };
    let id = c.ep;
    match (c.state, control.kind) {
        (ConnState::Requested, ControlKind::Accept) => {
            c.set_order(control.order);
            c.opened();
            s.last_active = n;
            watch(s, n);
            report(s, id, FI_CONNECTED, data);
        }
        (ConnState::Requested, ControlKind::Reject) => {
            report_end(s, id, (n, ConnState::Requested), FI_ECONNREFUSED, data);
            end(s, n, FI_ECONNREFUSED, "the peer has rejected the request");
        }
        _ => conn::refuse(s, n, "its control message comes at the wrong time"),
    }
}

/// Reports the end of an endpoint's connection to the application, once.
pub(super) fn report_end(
    s: &mut TcpState,
    id: u32,
    (n, state): (u32, ConnState),
    err: i32,
    data: &[u8],
) {
    let Some(e) = s.eps.get_mut(id) else { return };
    if !matches!(e.msg, Some(MsgState::Conn(at, _)) if at == n) {
        return;
    }
    e.msg = Some(MsgState::Over);
    if let Some(eq) = &e.eq {
        match state {
            ConnState::Open => eq.report(FI_SHUTDOWN, &[]),
            _ => eq.report_failed(err, data),
        }
    }
}

/// Cancels the receives that an endpoint has posted: no message arrives for them any more.
pub(super) fn flush_receives(s: &mut TcpState, id: u32) {
    let Some(e) = s.eps.get(id).filter(|e| e.msg.is_some() && e.srx.is_none()) else {
        return;
    };
    let rxq = e.rxq;
    while let Some(n) = s.rxqs.get_mut(rxq).and_then(|q| q.cancel(|_| true)) {
        if let Some(r) = s.recvs.remove(n) {
            s.recv_cancelled(id, &r, "the connection has ended");
        }
    }
}
