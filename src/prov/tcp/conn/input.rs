//! The receiving side of a connection: cuts bytes into headers and payloads, and puts these in
//! their places.
//!
//! A long payload is received straight into its place. Bytes after it, and everything short, are
//! received into a buffer that all connections share. The connection keeps the part of a header
//! that is not complete.

use super::super::progress::{MISSES, MUCH};
use super::super::recvq::{forget, SavedMsg, SavedState};
use super::super::state::{FailReason, MsgInfo, TcpState};
use super::super::wire::{self, Head, Malformed, XnetOp, BASE};
use super::end::{end, refuse};
use super::make::{control, control_needs};
use super::saved::{announced, is_ahead, save};
use super::{lost, post, Conn, ConnState, InBody, PayloadTarget, Phase, RegionKeys, Then};
use crate::core::slab::Slab;
use crate::device::stream::StreamRead;
use crate::hmem::{InjectBuf, UserMem};
use crate::prov::contract::SendData;
use crate::types::*;
use std::collections::HashSet;

/// A payload is received straight into its place while at least this much of it is missing.
const DIRECT_MIN: u64 = 4096;
/// Shortest long payload, and bytes that are received with the header of a message after one.
const LONG: u64 = 12 << 10;
const HEAD_ROOM: usize = 4096;
/// Bytes of messages that are received at once from a peer that is ahead of the application.
const AHEAD: usize = 2048;
/// Polls at which such a peer is passed over while the application takes its messages.
const PASSES: u8 = 64;
/// System calls for one connection before the next one is served.
const ROUNDS: u32 = 16;

/// Takes in what has arrived by a connection; whether something has.
#[inline]
pub(crate) fn receive(s: &mut TcpState, id: u32) -> bool {
    let ahead = is_ahead(s, id);
    if ahead && passes_over(s, id) {
        return false;
    }
    let mut buf = core::mem::take(&mut s.buf);
    if buf.is_empty() {
        // Called while the shared buffer has another connection's bytes.
        buf = vec![0; BASE * 256];
    }
    let mut any = false;
    for _ in 0..ROUNDS {
        let Some(c) = s.conns.get(id) else { break };
        if !c.is_read() || matches!(c.state, ConnState::Connecting | ConnState::Refused { .. }) {
            break;
        }
        let Some(stream) = &c.stream else { break };
        let direct = straight(c);
        // Long messages come one by one, each by two calls: see docs/design/042.
        let beyond = match &c.rx.phase {
            Phase::Body(_) if c.rx.long && !direct.is_empty() => 0,
            Phase::Head if ahead => AHEAD.min(buf.len()),
            Phase::Head if c.rx.long => HEAD_ROOM.min(buf.len()),
            _ => buf.len(),
        };
        let beyond = buf.get_mut(..beyond).unwrap_or_default();
        let room = direct.len() + beyond.len();
        let ends = beyond.is_empty();
        match stream.recv(&direct, beyond) {
            Ok(StreamRead::Bytes(n)) => {
                any = true;
                let much = n > MUCH || c.rx.long || ahead;
                s.misses = if much { MISSES } else { 0 };
                let first = n.min(direct.len());
                if first > 0 {
                    count_payload(s, id, first);
                }
                let rest = buf.get(..n - first).unwrap_or(&[]);
                if let Err(why) = consume(s, id, rest) {
                    refuse(s, id, why);
                    break;
                }
                if n < room || ends || ahead {
                    break;
                }
            }
            Ok(StreamRead::Nothing) => break,
            Ok(StreamRead::Closed) => {
                lost(s, id, FI_ECONNRESET, "the connection was ended by");
                break;
            }
            Err(e) => {
                lost(s, id, e, "receiving from");
                break;
            }
        }
    }
    if s.buf.len() < buf.len() {
        s.buf = buf;
    }
    any
}

/// Whether a peer that is ahead has to wait: while the application takes what has come, at most
/// [`PASSES`] times.
fn passes_over(s: &mut TcpState, id: u32) -> bool {
    let delivered = s.delivered;
    s.conns.get_mut(id).is_some_and(|c| {
        let again = delivered && c.rx.passed_over < PASSES;
        c.rx.passed_over = if again { c.rx.passed_over + 1 } else { 0 };
        again
    })
}

/// The place of what comes next, if it is known and large.
#[inline]
fn straight(c: &Conn) -> UserMem {
    let Phase::Body(b) = &c.rx.phase else {
        return UserMem::EMPTY;
    };
    let left = b.msg.len - b.off;
    if left < DIRECT_MIN {
        return UserMem::EMPTY;
    }
    let mem = match &b.to {
        PayloadTarget::Recv(p) => &p.mem,
        PayloadTarget::Read(_, m) | PayloadTarget::Write(m) => m,
        PayloadTarget::Saved(_) | PayloadTarget::Drop => return UserMem::EMPTY,
    };
    let most = usize::try_from(left).unwrap_or(usize::MAX);
    mem.part(usize::try_from(b.off).unwrap_or(usize::MAX), most)
}

/// Counts `n` bytes of the payload that are in their place.
fn count_payload(s: &mut TcpState, id: u32, n: usize) {
    let Some(c) = s.conns.get_mut(id) else { return };
    if let Phase::Body(b) = &mut c.rx.phase {
        b.off += n as u64;
        if b.off == b.msg.len {
            let b = *b;
            finish(s, id, &b);
        }
    }
}

/// Processes received bytes.
pub(crate) fn consume(
    s: &mut TcpState,
    id: u32,
    mut bytes: &[u8],
) -> core::result::Result<(), Malformed> {
    while !bytes.is_empty() {
        let Some(c) = s.conns.get_mut(id) else {
            return Ok(());
        };
        match &mut c.rx.phase {
            Phase::Head => bytes = head(s, id, bytes)?,
            Phase::Body(b) => {
                let left = usize::try_from(b.msg.len - b.off).unwrap_or(usize::MAX);
                let (now, rest) = bytes.split_at(left.min(bytes.len()));
                store_payload(&mut s.saved, b, now);
                bytes = rest;
                count_payload(s, id, now.len());
            }
            Phase::Held { .. } => {
                c.rx.stash.extend_from_slice(bytes);
                return Ok(());
            }
            Phase::Control(v) => {
                // Takes no more than a control message has, so that the buffer stays bounded.
                let needs = control_needs(v).ok_or("it does not speak this protocol")?;
                let (now, rest) = bytes.split_at(needs.min(bytes.len()));
                v.extend_from_slice(now);
                bytes = rest;
                if control_needs(v).ok_or("it does not speak this protocol")? == 0 {
                    let whole = core::mem::take(v);
                    control(s, id, &whole);
                }
            }
        }
    }
    Ok(())
}

/// Puts the next bytes of a payload into their place.
#[inline(always)]
fn store_payload(saved: &mut Slab<SavedMsg>, b: &InBody, bytes: &[u8]) {
    let at = usize::try_from(b.off).unwrap_or(usize::MAX);
    match &b.to {
        PayloadTarget::Recv(p) => {
            p.mem.store(at, bytes);
        }
        PayloadTarget::Read(_, m) | PayloadTarget::Write(m) => {
            m.store(at, bytes);
        }
        PayloadTarget::Saved(n) => {
            let Some(m) = saved.get_mut(*n) else { return };
            if let Some(to) = m.bytes.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
                m.have = at + bytes.len();
            }
        }
        PayloadTarget::Drop => {}
    }
}

/// Takes a header, or as much of it as has arrived; returns the bytes after it.
#[inline]
fn head<'a>(
    s: &mut TcpState,
    id: u32,
    bytes: &'a [u8],
) -> core::result::Result<&'a [u8], Malformed> {
    let Some(c) = s.conns.get_mut(id) else {
        return Ok(&[]);
    };
    let order = c.order;
    if c.rx.have == 0 {
        // The usual case: all of it is here.
        if let Some(base) = bytes.first_chunk::<BASE>() {
            let len = wire::head_len(base)?;
            if let Some((head, rest)) = bytes.split_at_checked(len) {
                begin(s, id, &wire::parse(head, order)?)?;
                return Ok(rest);
            }
        }
    }
    let rx = &mut c.rx;
    let want = match rx.head.first_chunk::<BASE>() {
        Some(base) if rx.have >= BASE => wire::head_len(base)?,
        _ => BASE,
    };
    let (now, rest) = bytes.split_at((want - rx.have).min(bytes.len()));
    if let Some(to) = rx.head.get_mut(rx.have..rx.have + now.len()) {
        to.copy_from_slice(now);
    }
    rx.have += now.len();
    if rx.have < want {
        return Ok(rest);
    }
    let len = match rx.head.first_chunk::<BASE>() {
        Some(base) => wire::head_len(base)?,
        None => BASE,
    };
    if rx.have == len {
        let parsed = wire::parse(rx.head.get(..len).unwrap_or(&[]), order)?;
        rx.have = 0;
        begin(s, id, &parsed)?;
    }
    Ok(rest)
}

/// Processes a header: finds a place for its payload.
#[inline]
fn begin(s: &mut TcpState, id: u32, h: &Head) -> core::result::Result<(), Malformed> {
    let Some(c) = s.conns.get_mut(id) else {
        return Ok(());
    };
    let msg = MsgInfo {
        from: c.peer,
        tag: matches!(h.op, XnetOp::Tagged | XnetOp::TaggedRts).then_some(h.tag),
        cq_data: h.cq_data,
        len: h.payload,
    };
    match h.op {
        XnetOp::Msg if h.op_data == wire::ACK => {
            if h.payload != 0 {
                return Err("its acknowledgement has a payload");
            }
            let n = c.unacked.pop_front();
            let n = n.ok_or("it acknowledges what was not sent")?;
            s.tx_done(&n);
        }
        XnetOp::Msg | XnetOp::Tagged => message(s, id, h, msg),
        XnetOp::ReadReq => read_request(s, id, h, msg)?,
        XnetOp::ReadRsp => {
            let (n, mem) = c.reads.pop_front().ok_or("it answers no read")?;
            if h.payload != mem.len() as u64 {
                c.reads.push_front((n, mem));
                return Err("its answer to a read has another length");
            }
            let to = PayloadTarget::Read(n, mem);
            begin_payload(s, id, InBody::new(to, msg, false));
        }
        XnetOp::Write => {
            let (mem, keys) = regions(s, h, FI_REMOTE_WRITE)?;
            let b = InBody::new(PayloadTarget::Write(mem), msg, h.wants_ack());
            begin_payload(s, id, InBody { keys, ..b });
        }
        XnetOp::TaggedRts => {
            if h.payload != 0 || h.op_data == 0 {
                return Err("its announcement is malformed");
            }
            let msg = MsgInfo {
                len: h.announced,
                ..msg
            };
            announced(s, id, h, msg)?;
        }
        XnetOp::Cts => {
            let at = c.rts.iter().position(|(n, _)| *n == h.op_data);
            let at = at.ok_or("it asks for a message that was not announced")?;
            let (_, (op, mem)) = c.rts.swap_remove(at);
            let mut data = Head::new(XnetOp::Data, mem.len() as u64);
            data.op_data = h.op_data;
            let then = match op.confirmed {
                true => Then::Acknowledged(op),
                false => Then::Done(op),
            };
            post(s, id, &data, &SendData::User(mem), then);
        }
        XnetOp::Data => {
            let at = c.cts.iter().position(|(n, _)| *n == h.op_data);
            let at = at.ok_or("it sends a message that was not asked for")?;
            let (number, (place, msg, ack)) = c.cts.swap_remove(at);
            if h.payload != msg.len {
                c.cts.push((number, (place, msg, ack)));
                return Err("its message has another length than was announced");
            }
            begin_payload(s, id, InBody::new(PayloadTarget::Recv(place), msg, ack));
        }
    }
    Ok(())
}

/// Receives a payload from here on; an empty one has ended.
#[inline]
pub(super) fn begin_payload(s: &mut TcpState, id: u32, b: InBody) {
    if b.msg.len == 0 {
        return finish(s, id, &b);
    }
    if let Some(c) = s.conns.get_mut(id) {
        c.rx.long = b.msg.len >= LONG;
        c.rx.phase = Phase::Body(b);
    }
}

/// Puts a message into its receive, or saves it.
#[inline]
fn message(s: &mut TcpState, id: u32, h: &Head, msg: MsgInfo) {
    let Some(ep) = s.conns.get(id).and_then(|c| s.eps.get(c.ep)) else {
        return;
    };
    let Some(q) = s.rxqs.get_mut(ep.rxq) else {
        return;
    };
    match q.place(&mut s.recvs, msg.from, msg.tag, msg.len) {
        Some(p) => {
            let b = InBody::new(PayloadTarget::Recv(p), msg, h.wants_ack());
            begin_payload(s, id, b);
        }
        None => save(s, id, h, msg),
    }
}

/// The registered memory that a peer names, if the peer has the right `need` to it.
fn regions(
    s: &TcpState,
    h: &Head,
    need: u64,
) -> core::result::Result<(UserMem, RegionKeys), Malformed> {
    let table = s.mem.access();
    let mut mem = UserMem::EMPTY;
    let mut keys = RegionKeys::default();
    for (v, key) in h.iovs.as_slice().iter().zip(&mut keys) {
        let part = table.find(v.key, v.addr, v.len, need);
        let part =
            part.map_err(|_| "it names memory that it may not use so (key, address, length)")?;
        mem = mem
            .join(&part)
            .ok_or("it names memory in too many pieces")?;
        *key = Some(v.key);
    }
    Ok((mem, keys))
}

/// Answers a peer's read.
fn read_request(
    s: &mut TcpState,
    id: u32,
    h: &Head,
    msg: MsgInfo,
) -> core::result::Result<(), Malformed> {
    if h.payload != 0 {
        return Err("its read has a payload");
    }
    let (mem, keys) = regions(s, h, FI_REMOTE_READ)?;
    let msg = MsgInfo {
        len: mem.len() as u64,
        ..msg
    };
    let answer = Head::new(XnetOp::ReadRsp, msg.len);
    let then = Then::RemoteRead(msg, keys);
    post(s, id, &answer, &SendData::User(mem), then);
    Ok(())
}

/// Handles a payload that is complete and in its place.
#[inline]
fn finish(s: &mut TcpState, id: u32, b: &InBody) {
    let Some(c) = s.conns.get_mut(id) else { return };
    c.rx.phase = Phase::Head;
    let ep = c.ep;
    match &b.to {
        PayloadTarget::Recv(p) => s.recv_done(ep, p, &b.msg, None),
        PayloadTarget::Saved(n) => {
            if let Some(m) = s.saved.get_mut(*n) {
                m.state = SavedState::Whole;
            }
        }
        PayloadTarget::Read(n, _) => s.tx_done(n),
        PayloadTarget::Write(_) => s.remote_done(ep, true, &b.msg, &b.keys),
        PayloadTarget::Drop => {}
    }
    if b.ack {
        let mut h = Head::new(XnetOp::Msg, 0);
        h.op_data = wire::ACK;
        post(
            s,
            id,
            &h,
            &SendData::Inject(InjectBuf::default()),
            Then::Nothing,
        );
    }
}

/// Fails what a connection was receiving when it ended.
pub(super) fn fail_incoming(s: &mut TcpState, id: u32, c: &mut Conn, why: &FailReason) {
    if let Phase::Body(b) = &c.rx.phase {
        match &b.to {
            PayloadTarget::Recv(p) => s.recv_done(c.ep, p, &b.msg, Some(why.clone())),
            PayloadTarget::Read(n, _) => s.tx_failed(n, why),
            PayloadTarget::Saved(_) | PayloadTarget::Write(_) | PayloadTarget::Drop => {}
        }
    }
    // Messages that are not whole never will be.
    let part = |m: &SavedMsg| m.conn == id && m.state != SavedState::Whole;
    let gone: HashSet<u32> = s.saved.select(part).into_iter().collect();
    if gone.is_empty() {
        return;
    }
    let rxq = s.eps.get(c.ep).map(|e| e.rxq);
    if let Some(q) = rxq.and_then(|q| s.rxqs.get_mut(q)) {
        q.drop_messages(|n| gone.contains(&n));
    }
    for n in gone {
        forget(s, n);
    }
}

/// Stops reads and writes of a region that is closed.
pub(crate) fn region_closed(s: &mut TcpState, key: u64) {
    let mut beyond = Vec::new();
    for (id, c) in s.conns.iter_mut() {
        if !c.tx.region_closed(key) {
            beyond.push(id);
        }
        if let Phase::Body(b) = &mut c.rx.phase {
            if matches!(b.to, PayloadTarget::Write(_)) && b.keys.contains(&Some(key)) {
                b.to = PayloadTarget::Drop;
            }
        }
    }
    for id in beyond {
        let text = "a region was closed of which it still reads too much";
        end(s, id, FI_ECANCELED, text);
    }
}
