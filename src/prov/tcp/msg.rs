//! Connected endpoints (FI_EP_MSG, fi_cm(3)): one connection each, which the application makes and
//! ends, and hears of by its event queue.
//!
//! The connection is a [`Conn`] as those of RDM endpoints; what differs is here: whose request it
//! is, what is said in control messages, and what its end means.

use super::conn::{self, end, watch, Conn, ConnState};
use super::ep::{self, TcpEp};
use super::passive::TcpRequest;
use super::state::TcpState;
use super::wire::{Control, ControlKind, CONTROL_DATA_MAX};
use crate::core::{errno, params, Result};
use crate::device::stream::Stream;
use crate::prov::contract::{Entry, ErrEntry};
use crate::prov::reports::completion::CntrKind;
use crate::types::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// What a connected endpoint has besides what every endpoint has.
#[derive(Default)]
pub(crate) enum MsgSide {
    /// Nothing yet.
    #[default]
    New,
    /// A request, to be accepted.
    Asked(TcpRequest),
    /// A connection, which may not be open yet, and what its request says.
    Conn(u32, Vec<u8>),
    /// It had one.
    Over,
}

impl MsgSide {
    /// The connection's number. `FI_ENOTCONN` without one.
    #[inline]
    pub(crate) fn conn(&self) -> Result<u32> {
        match self {
            MsgSide::Conn(id, _) => Ok(*id),
            _ => Err(FI_ENOTCONN),
        }
    }
}

/// The endpoint and its side, for a call of fi_cm(3).
fn side<'a>(s: &'a mut TcpState, id: u32, data: &[u8]) -> Result<&'a mut TcpEp> {
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

/// A new connection of an endpoint.
fn add(s: &mut TcpState, id: u32, state: ConnState, stream: Stream, greeting: &[u8]) -> u32 {
    stream.tune(params::tcp().nodelay);
    let (fd, peer) = (stream.fd(), stream.peer_addr());
    let wait = Duration::from_millis(params::tcp().connect_timeout_ms as u64);
    let mut c = Conn::new(id, state, Some(stream), Instant::now() + wait);
    if let Some(peer) = peer {
        c.peer = s.peers.hold_addr(peer);
    }
    let n = s.conns.insert(c);
    let open = state == ConnState::Open;
    s.poller.add(fd, u64::from(n), open, !open);
    if let Some(e) = s.eps.get_mut(id) {
        e.msg = Some(MsgSide::Conn(n, greeting.to_vec()));
    }
    n
}

/// fi_connect(3). `FI_EINVAL` for an endpoint that has or had a connection, or a request.
pub(crate) fn connect(s: &mut TcpState, id: u32, to: SocketAddr, data: &[u8]) -> Result<()> {
    crate::core::memory::check()?;
    let e = side(s, id, data)?;
    if !matches!(e.msg, Some(MsgSide::New)) || e.addr.is_ipv4() != to.is_ipv4() {
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
    let n = add(s, id, ConnState::Connecting, stream, data);
    let peer = s.peers.hold_addr(to);
    if let Some(c) = s.conns.get_mut(n) {
        let former = core::mem::replace(&mut c.peer, peer);
        s.peers.release(former);
    }
    s.making.push(n);
    Ok(())
}

/// fi_accept(3). `FI_EINVAL` for an endpoint that was not opened for a request.
pub(crate) fn accept(s: &mut TcpState, id: u32, data: &[u8]) -> Result<()> {
    let e = side(s, id, data)?;
    if !matches!(e.msg, Some(MsgSide::Asked(_))) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_accept: wanted an endpoint of the request that FI_CONNREQ brought, not yet accepted"
        );
        return Err(FI_EINVAL);
    }
    ep::enable(s, id)?;
    let e = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let Some(MsgSide::Asked(r)) = e.msg.replace(MsgSide::Over) else {
        return Err(FI_EINVAL);
    };
    let n = add(s, id, ConnState::Open, r.stream, &[]);
    s.hot = n;
    // First: as soon as the caller knows, its next request may be reported.
    report(s, id, FI_CONNECTED, &[]);
    if let Some(c) = s.conns.get_mut(n) {
        c.set_order(r.order);
        if let Err(err) = conn::say(c, ControlKind::Accept, data) {
            // FI_SHUTDOWN tells.
            conn::lost(s, n, err, "accepting");
        }
    }
    Ok(())
}

/// fi_shutdown(3). `FI_ENOTCONN` without a connection.
pub(crate) fn shutdown(s: &mut TcpState, id: u32) -> Result<()> {
    let e = s.eps.get(id).ok_or(FI_EBADF)?;
    let n = e.msg.as_ref().ok_or(FI_ENOSYS)?.conn()?;
    conn::send_rest(s, n);
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

/// What an endpoint's request says.
pub(crate) fn greeting(e: &TcpEp) -> &[u8] {
    match &e.msg {
        Some(MsgSide::Conn(_, data)) => data,
        _ => &[],
    }
}

fn report(s: &TcpState, id: u32, event: u32, data: &[u8]) {
    if let Some(eq) = s.eps.get(id).and_then(|e| e.eq.as_ref()) {
        eq.report(event, data);
    }
}

/// The answer to our request.
pub(super) fn answered(s: &mut TcpState, n: u32, control: &Control, data: &[u8]) {
    let Some(c) = s.conns.get_mut(n) else { return };
    let id = c.ep;
    match (c.state, control.kind) {
        (ConnState::Requested, ControlKind::Accept) => {
            c.set_order(control.order);
            c.opened();
            s.hot = n;
            watch(s, n);
            report(s, id, FI_CONNECTED, data);
        }
        (ConnState::Requested, ControlKind::Reject) => {
            over(s, id, (n, ConnState::Requested), FI_ECONNREFUSED, data);
            end(s, n, FI_ECONNREFUSED, "the peer has rejected the request");
        }
        _ => conn::refuse(s, n, "its control message comes at the wrong time"),
    }
}

/// A connection of an endpoint ends: the application hears of it, once, and posted receives with
/// it.
pub(super) fn over(s: &mut TcpState, id: u32, (n, state): (u32, ConnState), err: i32, data: &[u8]) {
    let Some(e) = s.eps.get_mut(id) else { return };
    if !matches!(e.msg, Some(MsgSide::Conn(at, _)) if at == n) {
        return;
    }
    e.msg = Some(MsgSide::Over);
    if let Some(eq) = &e.eq {
        match state {
            ConnState::Open => eq.report(FI_SHUTDOWN, &[]),
            _ => eq.report_failed(err, data),
        }
    }
}

/// No message comes any more for the receives that an endpoint has posted.
pub(super) fn flush_receives(s: &mut TcpState, id: u32) {
    let Some(e) = s.eps.get(id).filter(|e| e.msg.is_some() && e.srx.is_none()) else {
        return;
    };
    let Some(q) = s.rxqs.get_mut(e.rxq) else {
        return;
    };
    while let Some(r) = q.cancel(|_| true).and_then(|n| s.recvs.remove(n)) {
        e.cntrs.count_error(&mut s.cntrs, CntrKind::Recv);
        let Some(cq) = e.rx.and_then(|b| s.cqs.get_mut(b.cq)) else {
            continue;
        };
        let multi = if r.multi.is_some() { FI_MULTI_RECV } else { 0 };
        cq.push_error(ErrEntry {
            entry: Entry {
                context: r.context,
                flags: r.flags | multi,
                src: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            },
            err: FI_ECANCELED,
            text: "the connection has ended".to_string(),
            ..ErrEntry::default()
        });
    }
}
