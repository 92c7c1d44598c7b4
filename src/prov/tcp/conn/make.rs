//! Setting up connections.
//!
//! An endpoint connects when it first sends. Both sides may connect at once: the request of the
//! side with the larger address is used and the other refused; messages queued for the refused one
//! leave by the first. A request from a peer that has a connection already replaces it only if its
//! process id is another: the former process is gone then.
//!
//! Only what the system does has a time limit: the TCP connection. A peer that computes answers a
//! request when it makes progress again, and this process may compute as well; whether a peer's
//! host is gone the system finds out (keep-alive). A request whose connection ends before the
//! answer is sent again, until [`timeout`] was spent in pauses between the attempts.

use super::super::ep::TcpEp;
use super::super::msg;
use super::super::state::TcpState;
use super::super::wire::{
    emit_control, parse_control, Control, ControlKind, Hello, CONTROL, RDM_VERSION, VERSION_SEEN,
};
use super::end::{close_stream, drop_conn, end, lost, peer_text, refuse};
use super::input::receive;
use super::output::watch;
use super::{flush, Conn, ConnState, Phase};
use crate::core::{errno, params, Errno, Result};
use crate::device::stream::Stream;
use crate::proto::PeerId;
use crate::types::*;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Delay of the next attempt after a refusal, doubled each time up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long the failure of an attempt counts for a silent operation that tries again.
const UNREACHED_LIFE: Duration = Duration::from_secs(1);

/// A connection whose peer asks for another is given up when the peer has owed an acknowledgement
/// for so long.
const UNHEARD: Duration = Duration::from_secs(1);

/// Limit for a TCP connection to be established, and of all pauses before it is tried again.
pub(crate) fn timeout() -> Duration {
    Duration::from_millis(params::tcp().connect_timeout_ms as u64)
}

/// The connection to a peer, which may not be open yet; held by the endpoint's table. `silent`: for
/// an operation whose failure is not reported, so that the error of an attempt that has just failed
/// is returned in place of another attempt.
#[inline]
pub(crate) fn conn_for(s: &mut TcpState, ep: u32, peer: PeerId, silent: bool) -> Result<u32> {
    let known = s.eps.get(ep).ok_or(FI_EBADF)?.conns.get(&peer);
    match known {
        Some(c) => Ok(*c),
        None => connect(s, ep, peer, silent),
    }
}

#[cold]
fn connect(s: &mut TcpState, ep: u32, peer: PeerId, silent: bool) -> Result<u32> {
    crate::core::memory::check()?;
    let addr = s.peers.addr(peer);
    let e = s.eps.get_mut(ep).ok_or(FI_EBADF)?;
    let same = e.unreached.take_if(|u| Some(u.peer) == addr);
    if let Some(u) = same.filter(|u| silent && u.at.elapsed() < UNREACHED_LIFE) {
        return Err(u.why);
    }
    let mut c = Conn::new(ep, ConnState::Connecting, None, Instant::now() + timeout());
    c.peer = peer;
    s.peers.hold(peer);
    let id = s.conns.insert(c);
    if let Some(e) = s.eps.get_mut(ep) {
        e.conns.insert(peer, id);
    }
    s.making.push(id);
    // A blocked call has computed its time-out without this connection's deadline.
    s.wake_sleepers(ep);
    if let Err(e) = attempt(s, id) {
        // The call fails; nothing waits for the connection yet.
        cannot_connect(s, id, e);
        drop_conn(s, id);
        return Err(e);
    }
    Ok(id)
}

fn cannot_connect(s: &TcpState, id: u32, e: Errno) {
    let c = s.conns.get(id);
    let from = c.and_then(|c| s.eps.get(c.ep)).map(|e| e.addr);
    let peer = c.and_then(|c| s.peers.addr(c.peer));
    let local = |a: Option<SocketAddr>| a.is_some_and(|a| a.ip().is_loopback());
    let unreachable = matches!(e, FI_EINVAL | FI_ENETUNREACH | FI_EADDRNOTAVAIL);
    let why = match unreachable && local(from) && !local(peer) {
        true => "; an endpoint on loopback reaches its own host only",
        false => "",
    };
    crate::warn_limited!(
        FI_LOG_EP_CTRL,
        "connecting to {} from {}: {}{why}",
        peer_text(s, id),
        from.map_or(String::new(), |a| a.to_string()),
        errno::text(e)
    );
}

/// Begins to connect.
fn attempt(s: &mut TcpState, id: u32) -> Result<()> {
    let Some(c) = s.conns.get_mut(id) else {
        return Ok(());
    };
    let to = s.peers.addr(c.peer).ok_or(FI_EINVAL)?;
    let from = s.eps.get(c.ep).ok_or(FI_EBADF)?.addr;
    let stream = Stream::connect(from, to)?;
    stream.tune(params::tcp().nodelay);
    s.poller.add(stream.fd(), u64::from(id), false, true)?;
    c.stream = Some(stream);
    c.state = ConnState::Connecting;
    c.deadline = Instant::now() + timeout();
    c.rx.phase = Phase::Control(Vec::new());
    Ok(())
}

/// Sends a control message, which an empty socket takes whole.
pub(crate) fn send_control(c: &Conn, kind: ControlKind, data: &[u8]) -> Result<()> {
    let bytes = emit_control(kind, data);
    let stream = c.stream.as_ref().ok_or(FI_ENOTCONN)?;
    match stream.send_bytes(&bytes, false)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(FI_EIO),
    }
}

/// What a request or an answer of this endpoint carries.
fn our_hello(ep: &TcpEp, version: u8) -> Hello {
    Hello {
        version,
        features: 0,
        port: ep.addr.port(),
        pid: std::process::id(),
    }
}

/// Handles a writable socket: it has connected or failed to, or has room again.
pub(crate) fn writable(s: &mut TcpState, id: u32) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if c.state != ConnState::Connecting {
        return flush(s, id);
    }
    let Some(stream) = &c.stream else { return };
    let e = stream.error();
    if e != 0 {
        return lost(s, id, e, "connecting to");
    }
    let Some(ep) = s.eps.get(c.ep) else { return };
    let said = match &ep.msg {
        Some(m) => send_control(c, ControlKind::Request, m.request_data()),
        None => send_control(c, ControlKind::Request, &our_hello(ep, RDM_VERSION).emit()),
    };
    c.state = ConnState::Requested;
    s.making.retain(|m| *m != id);
    if let Err(e) = said {
        return lost(s, id, e, "connecting to");
    }
    watch(s, id);
}

/// Bytes that are missing of a control message that begins with these; `None` if they are
/// malformed.
pub(crate) fn control_needs(bytes: &[u8]) -> Option<usize> {
    let Some(head) = bytes.first_chunk::<CONTROL>() else {
        return Some(CONTROL - bytes.len());
    };
    let data = parse_control(head).ok()?.data;
    Some((CONTROL + data).saturating_sub(bytes.len()))
}

/// Processes a control message.
pub(super) fn control(s: &mut TcpState, id: u32, bytes: &[u8]) {
    let parsed = bytes
        .split_first_chunk::<CONTROL>()
        .ok_or("its control message is too short")
        .and_then(|(head, data)| Ok((parse_control(head)?, Hello::parse(data))));
    let (control, hello) = match parsed {
        Ok(p) => p,
        Err(why) => return refuse(s, id, why),
    };
    let Some(c) = s.conns.get(id) else { return };
    if s.eps.get(c.ep).is_some_and(|e| e.msg.is_some()) {
        let data = bytes.get(CONTROL..).unwrap_or(&[]);
        return msg::handle_answer(s, id, &control, data);
    }
    match (c.state, control.kind) {
        (ConnState::Requested, ControlKind::Reject) => handle_reject(s, id),
        (ConnState::Requested, ControlKind::Accept) => match hello {
            Ok(h) => handle_accept(s, id, &control, &h),
            Err(why) => refuse(s, id, why),
        },
        (ConnState::Accepted, ControlKind::Request) => match hello {
            Ok(h) => handle_request(s, id, &control, &h),
            Err(why) => refuse(s, id, why),
        },
        _ => refuse(s, id, "its control message comes at the wrong time"),
    }
}

/// Handles the refusal of our request: the peer's own is on its way, or ours is tried again.
pub(super) fn handle_reject(s: &mut TcpState, id: u32) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if let Some(stream) = c.stream.take() {
        close_stream(&mut s.poller, &stream);
    }
    let wait = (RETRY * 2u32.saturating_pow(c.refused.min(10))).min(RETRY_MAX);
    c.refused += 1;
    c.waited += wait;
    c.state = ConnState::Refused {
        again: Instant::now() + wait,
    };
    if c.waited > timeout() {
        return too_late(s, id);
    }
    if !s.making.contains(&id) {
        s.making.push(id);
    }
}

/// Ends a connection that could not be made in time.
fn too_late(s: &mut TcpState, id: u32) {
    let ms = params::tcp().connect_timeout_ms;
    let text = format!("no connection within {ms} ms (FI_TCP_CONNECT_TIMEOUT_MS)");
    end(s, id, FI_ETIMEDOUT, &text);
}

/// Whether messages may be announced on a connection of this version.
fn announces(version: u8) -> bool {
    version & !VERSION_SEEN >= 1
}

/// Handles the acceptance of our request.
fn handle_accept(s: &mut TcpState, id: u32, control: &Control, h: &Hello) {
    let Some(c) = s.conns.get_mut(id) else { return };
    c.announces = h.version & VERSION_SEEN != 0 && announces(h.version);
    c.remote_pid = h.pid;
    open(s, id, control);
}

/// Opens a connection for messages, and sends what is queued.
fn open(s: &mut TcpState, id: u32, control: &Control) {
    let Some(c) = s.conns.get_mut(id) else { return };
    c.set_order(control.order);
    c.opened();
    s.making.retain(|m| *m != id);
    s.last_active = id;
    flush(s, id);
}

/// The addresses of both endpoints of a caller's connection: the peer's, and ours.
fn endpoint_addrs(s: &TcpState, id: u32, h: &Hello) -> Option<[SocketAddr; 2]> {
    let c = s.conns.get(id)?;
    let stream = c.stream.as_ref()?;
    let mut peer = stream.peer_addr()?;
    peer.set_port(h.port);
    let mut own = s.eps.get(c.ep)?.addr;
    // An endpoint that listens at all addresses takes the address that the peer connected to.
    if let (true, Some(l)) = (own.ip().is_unspecified(), stream.local_addr()) {
        own.set_ip(l.ip());
    }
    Some([peer, own])
}

/// The version that an acceptance names: the lower of both, marked as answered; 0 to a peer that
/// names none.
fn common_version(h: &Hello) -> u8 {
    match h.version {
        0 => 0,
        v => v.min(RDM_VERSION) | VERSION_SEEN,
    }
}

/// Drops our own connection to a peer for the one that the peer has made: what is queued for ours
/// leaves by the peer's.
fn replace_own_request(s: &mut TcpState, own: u32, accepted: u32) {
    let Some(mut old) = s.conns.remove(own) else {
        return;
    };
    if let Some(stream) = &old.stream {
        close_stream(&mut s.poller, stream);
    }
    s.peers.release(old.peer);
    s.making.retain(|m| *m != own);
    if let Some(c) = s.conns.get_mut(accepted) {
        c.tx.take_over(&mut old.tx);
        c.rts = core::mem::take(&mut old.rts);
    }
}

/// Handles the request of a peer.
fn handle_request(s: &mut TcpState, id: u32, control: &Control, h: &Hello) {
    let Some(ep) = s.conns.get(id).map(|c| c.ep) else {
        return;
    };
    if let Some(e) = s.eps.get_mut(ep) {
        e.callers.retain(|c| *c != id);
    }
    let Some([from, own]) = endpoint_addrs(s, id, h) else {
        return end(s, id, FI_ENOTCONN, "the peer is gone");
    };
    let peer = s.peers.hold_addr(from);
    if let Some(c) = s.conns.get_mut(id) {
        c.peer = peer;
    }
    let mut former = s.eps.get(ep).and_then(|e| e.conns.get(&peer).copied());
    if let Some(f) = former {
        // The former connection may have ended unnoticed.
        receive(s, f);
        former = s.eps.get(ep).and_then(|e| e.conns.get(&peer).copied());
    }
    let is_unheard = |old: &Conn| old.stream.as_ref().is_some_and(|o| o.is_unheard(UNHEARD));
    let mut ourselves = false;
    if let Some((f, old)) = former.and_then(|f| Some((f, s.conns.get(f)?))) {
        match old.state {
            // The requests of both may have crossed. But if the peer has lost the connection, or
            // its endpoint is a new one, that shows once this one is read to its end, and the
            // peer's next request is taken.
            ConnState::Open if old.remote_pid == h.pid && !is_unheard(old) => {
                if let Some(stream) = &old.stream {
                    stream.expect_reset();
                }
                return turn_away(s, id, h);
            }
            ConnState::Open | ConnState::Accepted => {
                let why = match old.remote_pid == h.pid {
                    true => "the peer has lost the connection",
                    false => "the peer was started anew",
                };
                end(s, f, FI_ECONNRESET, why);
                former = None;
            }
            ConnState::Refused { .. } => {}
            ConnState::Connecting | ConnState::Requested if from == own => {
                (ourselves, former) = (true, None);
            }
            ConnState::Connecting | ConnState::Requested if from < own => {
                return turn_away(s, id, h);
            }
            ConnState::Connecting | ConnState::Requested => {}
        }
    }
    let (Some(c), Some(e)) = (s.conns.get_mut(id), s.eps.get(ep)) else {
        return;
    };
    let hello = our_hello(e, common_version(h)).emit();
    if let Err(err) = send_control(c, ControlKind::Accept, &hello) {
        return end(s, id, err, "the answer to its request could not be sent");
    }
    c.announces = announces(h.version);
    c.remote_pid = h.pid;
    if let Some(f) = former {
        replace_own_request(s, f, id);
    }
    if !ourselves {
        if let Some(e) = s.eps.get_mut(ep) {
            e.conns.insert(peer, id);
        }
    }
    open(s, id, control);
}

/// Refuses a request, because our own request or the open connection is to be used.
fn turn_away(s: &mut TcpState, id: u32, h: &Hello) {
    if let Some(c) = s.conns.get(id) {
        let _ = send_control(c, ControlKind::Reject, &h.emit());
    }
    drop_conn(s, id);
}

/// Ends connections that are not established in time, and repeats refused requests.
pub(crate) fn expire(s: &mut TcpState) {
    let now = Instant::now();
    for id in s.making.clone() {
        let Some(c) = s.conns.get(id) else {
            s.making.retain(|m| *m != id);
            continue;
        };
        if c.state == ConnState::Connecting && now >= c.deadline {
            // The poller may not have reported the connection yet.
            match c.stream.as_ref().and_then(Stream::peer_addr) {
                Some(_) => writable(s, id),
                None => too_late(s, id),
            }
            continue;
        }
        if matches!(c.state, ConnState::Refused { again } if now >= again) {
            if let Err(e) = attempt(s, id) {
                lost(s, id, e, "connecting to");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prov::tcp::hostile::{connected, Connected};
    use crate::prov::tcp::progress::poll_sockets;
    use crate::prov::tcp::wire::ByteOrder;
    use std::net::TcpListener;

    fn rdm_endpoint() -> (TcpState, u32) {
        let Connected { mut s, ep, .. } =
            connected(ByteOrder::Host, Stream::pair().unwrap()).unwrap();
        s.eps.get_mut(ep).unwrap().msg = None;
        (s, ep)
    }

    /// This process, or its peer, has not made progress for longer than the time limit.
    #[test]
    fn a_peer_that_computes_is_waited_for_and_one_that_hangs_up_is_called_again() {
        let (mut s, ep) = rdm_endpoint();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = s.peers.hold_addr(listener.local_addr().unwrap());
        let id = conn_for(&mut s, ep, peer, false).unwrap();
        let caller = listener.accept().unwrap();
        // The poller may tell of the socket only after the limit.
        s.conns.get_mut(id).unwrap().deadline = Instant::now();
        while s.conns.get(id).unwrap().state != ConnState::Requested {
            poll_sockets(&mut s);
        }
        assert!(s.making.is_empty());
        poll_sockets(&mut s);
        assert!(s.conns.get(id).is_some());
        drop(caller);
        while s.conns.get(id).unwrap().state == ConnState::Requested {
            poll_sockets(&mut s);
        }
        listener.set_nonblocking(true).unwrap();
        while listener.accept().is_err() {
            poll_sockets(&mut s);
        }
        assert!(s.conns.get(id).unwrap().waited <= RETRY);
        // Only so long.
        s.conns.get_mut(id).unwrap().waited = timeout();
        handle_reject(&mut s, id);
        assert!(s.conns.get(id).is_none());
    }

    /// The end of an attempt that an unsignaled operation began is not reported at once.
    #[test]
    fn a_failed_attempt_is_returned_by_the_next_unsignaled_operation_alone() {
        let (mut s, ep) = rdm_endpoint();
        // An address that no other test uses.
        let closed = TcpListener::bind("127.91.17.3:0").unwrap();
        let addr = closed.local_addr().unwrap();
        drop(closed);
        let peer = s.peers.hold_addr(addr);
        let fail = |s: &mut TcpState| {
            let id = conn_for(s, ep, peer, true).unwrap();
            while s.conns.get(id).is_some() {
                poll_sockets(s);
            }
        };
        fail(&mut s);
        let failed = &mut s.eps.get_mut(ep).unwrap().unreached;
        failed.as_mut().unwrap().at = Instant::now();
        assert_eq!(conn_for(&mut s, ep, peer, true), Err(FI_ECONNREFUSED));
        fail(&mut s);
        assert!(conn_for(&mut s, ep, peer, false).is_ok());
    }

    /// The way to the peer was cut for so long that its system has given the connection up, while
    /// ours waits for a while before it sends the data again.
    #[test]
    #[cfg(not(miri))]
    fn a_peer_that_has_lost_its_connection_is_heard_although_it_owes_an_acknowledgement() {
        let (mut s, ep) = rdm_endpoint();
        let open = |s: &mut TcpState| {
            let (near, far) = Stream::tcp_pair().unwrap();
            let c = Conn::new(ep, ConnState::Accepted, Some(near), Instant::now());
            let id = s.conns.insert(c);
            let request = Hello {
                version: RDM_VERSION,
                features: 0,
                port: 1,
                pid: 1,
            };
            let bytes = emit_control(ControlKind::Request, &request.emit());
            far.send_bytes(&bytes, false).unwrap();
            while s
                .conns
                .get(id)
                .is_some_and(|c| c.state == ConnState::Accepted)
            {
                receive(s, id);
            }
            (id, far)
        };
        let (lost, far) = open(&mut s);
        if !far.cut_off() {
            eprintln!("left out: the system does not tell what is acknowledged");
            return;
        }
        let near = |s: &TcpState, f: &dyn Fn(&Stream) -> bool| {
            let c = s.conns.get(lost).and_then(|c| c.stream.as_ref());
            c.is_some_and(f)
        };
        assert!(near(&s, &|n| n.send_bytes(&[0; 8], false) == Ok(8)));
        let (refused, _far) = open(&mut s);
        assert!(s.conns.get(refused).is_none());
        let until = Instant::now() + Duration::from_secs(60);
        while !near(&s, &|n| n.is_unheard(UNHEARD)) {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
        let (again, _far) = open(&mut s);
        assert!(s.conns.get(lost).is_none() && s.conns.get(again).is_some());
    }
}
