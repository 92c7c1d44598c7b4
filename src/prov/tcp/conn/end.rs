//! Ending connections: by an error of the system, by a peer that violates the protocol, or with the
//! endpoint.

use super::super::ep::Unreached;
use super::super::msg;
use super::super::state::{TcpState, NO_CONN};
use super::input::fail_incoming;
use super::make::handle_reject;
use super::{Conn, ConnState};
use crate::core::{errno, Errno};
use crate::device::poller::Poller;
use crate::device::stream::Stream;
use crate::proto::PeerId;
use crate::prov::reports::completion::CntrKind;
use crate::types::*;
use std::time::Instant;

/// Ends a connection whose peer violates the protocol.
pub(crate) fn refuse(s: &mut TcpState, id: u32, why: &str) {
    let from = s.conns.get(id).and_then(|c| c.stream.as_ref());
    let from = from.and_then(Stream::peer_addr);
    let from = from.map_or("?".to_string(), |a| a.to_string());
    crate::warn_log!(FI_LOG_EP_DATA, "the connection with {from} is ended: {why}");
    end(s, id, FI_EPROTO, &format!("protocol error: {why}"));
}

/// Ends a connection that the system reports as failed with this errno. An RDM endpoint's request
/// that has no answer yet is sent again.
#[cold]
pub(crate) fn lost(s: &mut TcpState, id: u32, e: Errno, doing: &str) {
    let requested = s.conns.get(id).filter(|c| c.state == ConnState::Requested);
    let ep = requested.and_then(|c| s.eps.get(c.ep));
    if ep.is_some_and(|e| e.msg.is_none()) {
        return handle_reject(s, id);
    }
    let text = log_lost(s, id, e, doing);
    end(s, id, e, &text);
}

pub(super) fn log_lost(s: &TcpState, id: u32, e: Errno, doing: &str) -> String {
    let text = format!("{doing} {}: {}", peer_text(s, id), errno::text(e));
    crate::info_log!(FI_LOG_EP_CTRL, "{text}");
    text
}

pub(super) fn peer_text(s: &TcpState, id: u32) -> String {
    let addr = s.conns.get(id).and_then(|c| s.peers.addr(c.peer));
    addr.map_or("a caller".to_string(), |a| a.to_string())
}

/// Ends a connection: everything that needs it fails.
#[cold]
pub(crate) fn end(s: &mut TcpState, id: u32, e: Errno, text: &str) {
    let Some(mut c) = s.conns.remove(id) else {
        return;
    };
    let peer = s.peers.addr(c.peer);
    forget_conn(s, id, &c);
    msg::report_end(s, c.ep, (id, c.state), e, &[]);
    let why = (e, text.to_string());
    fail_incoming(s, id, &mut c, &why);
    let queued: Vec<_> = c.tx.drain().collect();
    let attempt = !matches!(c.state, ConnState::Open | ConnState::Accepted);
    if let Some(peer) = peer.filter(|_| attempt && queued.is_empty()) {
        // A silent operation was refused while there was no connection, and is tried again.
        if let Some(ep) = s.eps.get_mut(c.ep) {
            ep.unreached = Some(Unreached {
                peer,
                why: e,
                at: Instant::now(),
            });
        }
    }
    let sent = c.unacked.iter().copied();
    let reads = c.reads.iter().map(|(n, _)| *n);
    let announced = c.rts.iter().map(|(_, (n, _))| *n);
    // In the order in which they were posted, as far as that is known.
    let mut unreported = 0;
    let counted = s
        .eps
        .get(c.ep)
        .is_some_and(|e| e.cntrs.any(&CntrKind::INITIATED));
    for n in sent.chain(reads).chain(announced).chain(queued) {
        unreported += usize::from(n.silent && !counted);
        s.tx_failed(&n, &why);
    }
    if unreported > 0 {
        crate::warn_limited!(
            FI_LOG_EP_DATA,
            "{unreported} injected messages or writes may not have arrived: {text}"
        );
    }
    for (_, (place, msg, _)) in &c.cts {
        s.recv_done(c.ep, place, msg, Some(why.clone()));
    }
    msg::flush_receives(s, c.ep);
}

/// Drops a connection without a report of its operations. Receives of a shared receive context,
/// which stays open, are reported: they end with FI_ECANCELED.
pub(crate) fn drop_conn(s: &mut TcpState, id: u32) {
    let Some(c) = s.conns.remove(id) else {
        return;
    };
    forget_conn(s, id, &c);
    let shared = s.eps.get(c.ep).is_some_and(|e| e.srx.is_some());
    let why = (FI_ECANCELED, "the endpoint was closed".to_string());
    for (place, msg) in c.incoming() {
        match shared {
            true => s.recv_done(c.ep, place, msg, Some(why.clone())),
            false => drop(s.recvs.remove(place.recv)),
        }
    }
}

fn forget_conn(s: &mut TcpState, id: u32, c: &Conn) {
    s.making.retain(|m| *m != id);
    s.full -= u32::from(c.tx.waits());
    if s.last_active == id {
        s.last_active = NO_CONN;
    }
    if let Some(stream) = &c.stream {
        close_stream(&mut s.poller, stream);
    }
    if c.state == ConnState::Accepted {
        if let Some(e) = s.eps.get_mut(c.ep) {
            e.callers.retain(|c| *c != id);
        }
    }
    leave_to_others(s, id, (c.ep, c.peer));
    s.peers.release(c.peer);
}

/// Has the next message to a connection's peer take another connection.
pub(super) fn leave_to_others(s: &mut TcpState, id: u32, (ep, peer): (u32, PeerId)) {
    if let Some(e) = s.eps.get_mut(ep) {
        if e.conns.get(&peer) == Some(&id) {
            e.conns.remove(&peer);
        }
    }
}

/// Takes a socket out of the poller and shuts it down: a forked child may have it as well.
pub(super) fn close_stream(poller: &mut Poller, stream: &Stream) {
    poller.remove(stream.fd());
    stream.shut();
}
