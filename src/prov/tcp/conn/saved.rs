//! Messages that came before their receive: saved in memory, left in the socket (the connection is
//! held), or announced by their sender, which waits to be asked (CTS).

use super::super::recvq::{forget, RecvPlace, SavedMsg, SavedState};
use super::super::state::{MsgInfo, TcpState};
use super::super::wire::{Head, Malformed, XnetOp};
use super::end::refuse;
use super::input::{begin_payload, consume};
use super::output::watch;
use super::{post, InBody, PayloadTarget, Phase, Then};
use crate::core::{memory, params};
use crate::device::host::{now, zeroed};
use crate::hmem::{InjectBuf, UserMem};
use crate::proto::PeerId;
use crate::prov::contract::SendData;

/// Bytes of messages without a receive that each peer may have, although others have used up
/// FI_TCP_SAVED_TOTAL.
const SHARE: usize = 256 << 10;

/// Messages left in their sockets for want of memory are tried again after this time, nanoseconds.
const RETAKE_NS: u64 = 5_000_000;

/// Whether so many of the peer's messages wait for a receive that its next ones are taken in a few
/// at a time. Otherwise an application whose peers send faster than it receives would get to its
/// receives only when the memory for messages is used up.
pub(super) fn is_ahead(s: &mut TcpState, id: u32) -> bool {
    if s.saved.is_empty() {
        return false;
    }
    let peer = s.conns.get(id).map(|c| c.peer);
    let saved = peer.and_then(|p| s.peers.saved(p));
    saved.is_some_and(|bytes| *bytes > SHARE)
}

/// Whether the parameters allow a message of `len` bytes to be saved.
fn is_within_limits(
    s: &mut TcpState,
    id: u32,
    (ep, rxq): (u32, u32),
    from: PeerId,
    len: usize,
) -> bool {
    let p = params::tcp();
    let kept = s.rxqs.get(rxq).map_or(0, |q| q.bytes);
    let room = s.saved_total.checked_sub(kept + SavedMsg::RECORD);
    let full = room.is_none_or(|room| len > room);
    // What one peer has sent does not hold up the messages of the others.
    let own = s.peers.saved(from).map_or(usize::MAX, |saved| *saved);
    let shares = len.saturating_add(own) <= SHARE.min(s.saved_total);
    let many = || {
        let mine = |m: &SavedMsg| m.conn == id && m.ep == ep && m.state != SavedState::Held;
        let of = s.saved.iter().filter(|(_, m)| mine(m));
        p.max_saved > 0 && of.count() >= p.max_saved
    };
    len <= p.max_saved_size && (!full || shares) && !many()
}

/// Memory for a message; `None` where there is none. A peer determines the size: one that leaves
/// too little of the reserve for the receives is refused.
fn room(len: usize) -> Option<Vec<u8>> {
    match len {
        _ if memory::short() => None,
        0 => Some(Vec::new()),
        _ => zeroed(len).filter(|_| !memory::short()),
    }
}

/// Saves the messages that were left in their sockets for want of memory: the receives posted next
/// may be for those behind them.
pub(crate) fn retake(s: &mut TcpState) {
    if memory::short() || now() < s.retake_at {
        return;
    }
    s.retake_at = now() + RETAKE_NS;
    for number in core::mem::take(&mut s.starved) {
        let Some(m) = s.saved.get(number).filter(|m| m.state == SavedState::Held) else {
            continue;
        };
        let (conn, ep, msg) = (m.conn, m.ep, info_of(m));
        let len = usize::try_from(msg.len).unwrap_or(usize::MAX);
        let Some(rxq) = s.eps.get(ep).map(|e| e.rxq) else {
            continue;
        };
        if !is_within_limits(s, conn, (ep, rxq), msg.from, len) {
            continue;
        }
        let Some(bytes) = room(len) else {
            s.starved.push(number);
            continue;
        };
        if let (Some(m), Some(q)) = (s.saved.get_mut(number), s.rxqs.get_mut(rxq)) {
            (m.state, m.bytes) = (SavedState::Coming, bytes);
            q.bytes += len;
        }
        if let Some(saved) = s.peers.saved(msg.from) {
            *saved += len;
        }
        resume(s, conn, PayloadTarget::Saved(number), msg);
    }
}

/// Saves a message that has no receive: in memory, or by leaving it in the socket.
pub(super) fn save(s: &mut TcpState, id: u32, h: &Head, msg: MsgInfo) {
    let Some(ep) = s.conns.get(id).map(|c| c.ep) else {
        return;
    };
    let Some(rxq) = s.eps.get(ep).map(|e| e.rxq) else {
        return;
    };
    let len = usize::try_from(msg.len).unwrap_or(usize::MAX);
    let allowed = is_within_limits(s, id, (ep, rxq), msg.from, len);
    let room = match allowed {
        true => room(len),
        false => None,
    };
    let held = room.is_none();
    let state = match held {
        true => SavedState::Held,
        false => SavedState::Coming,
    };
    let m = SavedMsg {
        ep,
        conn: id,
        from: msg.from,
        tag: msg.tag,
        cq_data: msg.cq_data,
        len: msg.len,
        state,
        bytes: room.unwrap_or_default(),
        have: 0,
    };
    let number = keep(s, rxq, m);
    if held && allowed {
        memory::explain("messages without a receive stay in their sockets");
        s.starved.push(number);
        s.retake_at = now() + RETAKE_NS;
    }
    if !held {
        let b = InBody::new(PayloadTarget::Saved(number), msg, h.wants_ack());
        return begin_payload(s, id, b);
    }
    if let Some(c) = s.conns.get_mut(id) {
        c.rx.phase = Phase::Held { ack: h.wants_ack() };
    }
    watch(s, id);
}

fn keep(s: &mut TcpState, rxq: u32, m: SavedMsg) -> u32 {
    s.peers.hold(m.from);
    if let Some(saved) = s.peers.saved(m.from) {
        *saved += m.cost();
    }
    let number = s.saved.insert(m);
    if let (Some(q), Some(m)) = (s.rxqs.get_mut(rxq), s.saved.get(number)) {
        q.keep(number, m);
    }
    number
}

/// Processes the announcement of a message; asks for the message when it has a receive.
pub(super) fn announced(
    s: &mut TcpState,
    id: u32,
    h: &Head,
    msg: MsgInfo,
) -> core::result::Result<(), Malformed> {
    let Some(c) = s.conns.get(id) else {
        return Ok(());
    };
    let same = |state| matches!(state, SavedState::Announced { number, .. } if number == h.op_data);
    let known = |m: &SavedMsg| m.conn == id && same(m.state);
    if c.cts.iter().any(|(n, _)| *n == h.op_data) || s.saved.iter().any(|(_, m)| known(m)) {
        return Err("it announces two messages by one number");
    }
    let Some(ep) = s.eps.get(c.ep) else {
        return Ok(());
    };
    let (id_ep, rxq) = (c.ep, ep.rxq);
    let Some(q) = s.rxqs.get_mut(rxq) else {
        return Ok(());
    };
    if let Some(p) = q.place(&mut s.recvs, msg.from, msg.tag, msg.len) {
        send_cts(s, id, h.op_data, p, msg, h.wants_ack());
        return Ok(());
    }
    let m = SavedMsg {
        ep: id_ep,
        conn: id,
        from: msg.from,
        tag: msg.tag,
        cq_data: msg.cq_data,
        len: msg.len,
        state: SavedState::Announced {
            number: h.op_data,
            ack: h.wants_ack(),
        },
        bytes: Vec::new(),
        have: 0,
    };
    keep(s, rxq, m);
    Ok(())
}

/// Asks for an announced message (CTS).
fn send_cts(s: &mut TcpState, id: u32, number: u8, p: RecvPlace, msg: MsgInfo, ack: bool) {
    if let Some(c) = s.conns.get_mut(id) {
        c.cts.push((number, (p, msg, ack)));
    }
    let mut h = Head::new(XnetOp::Cts, 0);
    h.op_data = number;
    post(
        s,
        id,
        &h,
        &SendData::Inject(InjectBuf::default()),
        Then::Nothing,
    );
}

fn info_of(m: &SavedMsg) -> MsgInfo {
    MsgInfo {
        from: m.from,
        tag: m.tag,
        cq_data: m.cq_data,
        len: m.len,
    }
}

/// Gives a saved message, which is in no queue any more, to a receive.
pub(crate) fn deliver(s: &mut TcpState, number: u32, p: RecvPlace) {
    s.delivered = true;
    let Some(m) = s.saved.get(number) else { return };
    let (conn, state, msg) = (m.conn, m.state, info_of(m));
    let here = m.bytes.get(..m.have).unwrap_or(&[]);
    match state {
        SavedState::Whole => {
            p.mem.store(0, here);
            let ep = m.ep;
            // `forget` comes last: the completion needs the peer, which it releases.
            s.recv_done(ep, &p, &msg, None);
            forget(s, number);
        }
        SavedState::Coming => {
            p.mem.store(0, here);
            redirect(s, conn, number, PayloadTarget::Recv(p));
            forget(s, number);
        }
        SavedState::Held => {
            forget(s, number);
            resume(s, conn, PayloadTarget::Recv(p), msg);
        }
        SavedState::Announced { number: n, ack } => {
            forget(s, number);
            send_cts(s, conn, n, p, msg, ack);
        }
    }
}

/// Drops a saved message, which is in no queue any more.
pub(crate) fn discard(s: &mut TcpState, number: u32) {
    let Some(m) = forget(s, number) else { return };
    match m.state {
        SavedState::Whole => {}
        SavedState::Coming => redirect(s, m.conn, number, PayloadTarget::Drop),
        SavedState::Held => resume(s, m.conn, PayloadTarget::Drop, info_of(&m)),
        SavedState::Announced { number, ack } => {
            // Its bytes have to come, for its sender waits to send them.
            let p = RecvPlace::whole(u32::MAX, UserMem::EMPTY);
            send_cts(s, m.conn, number, p, info_of(&m), ack);
        }
    }
}

/// Redirects the rest of a message that was being saved.
fn redirect(s: &mut TcpState, id: u32, number: u32, to: PayloadTarget) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if let Phase::Body(b) = &mut c.rx.phase {
        if matches!(b.to, PayloadTarget::Saved(n) if n == number) {
            b.to = to;
        }
    }
}

/// Reads a held connection again; its message goes to `to`.
fn resume(s: &mut TcpState, id: u32, to: PayloadTarget, msg: MsgInfo) {
    let Some(c) = s.conns.get_mut(id) else { return };
    let Phase::Held { ack } = c.rx.phase else {
        return;
    };
    c.rx.phase = Phase::Head;
    let stash = core::mem::take(&mut c.rx.stash);
    begin_payload(s, id, InBody::new(to, msg, ack));
    if let Err(why) = consume(s, id, &stash) {
        return refuse(s, id, why);
    }
    watch(s, id);
}
