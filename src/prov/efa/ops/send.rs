//! Starting sends (fi_msg(3), fi_tagged(3)).
//!
//! [`send`] checks a request against the endpoint's settings, looks up its peer and the route, and
//! hands the request to the transport. It is compiled for calls without flags and with one buffer,
//! where most conditions are then constant, and for all others.

use super::deferred::DeferredWork;
use super::{direct, fences, live_port, resolve, too_long, wait, UserOp};
use super::{notify_sleeper, TX_FLAGS};
use crate::core::{memory, Result};
use crate::device::{AmHeader, QueuePair};
use crate::proto::{PeerId, SendArgs};
use crate::prov::contract::{Call, MsgReq, SendBuffer, SendData};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, Ep, LiveEndpoint, TxMode};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host::{self, head_len, words_of};
use crate::prov::efa::select::{choose_message, route_or_keep, MessageRoute};
use crate::prov::reports::completion::{ended_entry, reported, send_flags, CntrKind};
use crate::prov::reports::flags::known;
use crate::shm::{kind, RecordHead, RecordHeader};
use crate::transport::{Completion, Payload, RemoteAddr, Report, Transport, Verdict};
use crate::types::*;

/// Sends a message. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an unknown
/// destination or a forbidden tag, `FI_EMSGSIZE` when it is too long, `FI_EOPNOTSUPP` for a tag
/// where messages have none.
#[inline(always)]
pub(crate) fn send<D: SendBuffer, C: Call>(s: &mut State, id: u32, r: &MsgReq<D, C>) -> Result<()> {
    known(r.common.flags(), TX_FLAGS, "fi_sendmsg")?;
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.deferred.is_empty() || fences(&r.common) {
        return send_behind_fence(s, id, *r);
    }
    send_now(s, id, r)
}

#[cold]
#[inline(never)]
fn send_behind_fence<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    r: MsgReq<D, C>,
) -> Result<()> {
    match wait(s, id, (r.to, &r.common), || {
        DeferredWork::new(&r.to_general())
    })? {
        true => Ok(()),
        false => send_now(s, id, &r.to_general()),
    }
}

/// As [`send`], past any fence.
#[inline(always)]
pub(crate) fn send_now<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    r: &MsgReq<D, C>,
) -> Result<()> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    let c = &ep.config;
    let injected = r.data.injected();
    if r.data.len() > c.longest(r.tag.is_some(), injected) {
        return too_long_message(ep, r.data.len(), r.tag.is_some(), injected);
    }
    if r.tag.is_some_and(|t| !c.tags || t & c.tag_forbidden != 0) {
        return refused_tag(ep, r.tag);
    }
    match s.avs.get(c.av).and_then(|av| av.known(r.to)) {
        Some(peer) => send_to(s, id, peer, r),
        None => send_resolved(s, id, *r),
    }
}

#[cold]
#[inline(never)]
fn send_resolved<D: SendBuffer, C: Call>(s: &mut State, id: u32, r: MsgReq<D, C>) -> Result<()> {
    let peer = resolve(s, id, r.to)?;
    send_to(s, id, peer, &r.to_general())
}

#[cold]
fn too_long_message(ep: &Ep, len: usize, tagged: bool, injected: bool) -> Result<()> {
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let longest = |injected| ep.config.longest(tagged, injected);
    too_long("message", len, longest(false))?;
    let what = "inject (tx_attr->inject_size)";
    let unsent = direct::unsent(ep.kind);
    too_long(what, len - unsent, longest(injected) - unsent)
}

/// The error for a refused tag: the endpoint has no tags, or collectives use it (mem_tag_format).
#[cold]
fn refused_tag(ep: &Ep, tag: Option<u64>) -> Result<()> {
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    if !ep.config.tags {
        return Err(FI_EOPNOTSUPP);
    }
    super::tag_fits(ep.caps, tag)
}

/// What is reported of a send.
#[inline(always)]
fn completion<D: SendBuffer, C: Call>(peer: PeerId, r: &MsgReq<D, C>, entry: bool) -> Completion {
    Completion {
        context: r.common.context(),
        len: r.data.len(),
        flags: send_flags(r.tag.is_some()),
        peer,
        report: reported(entry),
        remote: RemoteAddr::default(),
    }
}

/// As [`send_now`], to this peer.
#[inline(always)]
fn send_to<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    peer: PeerId,
    r: &MsgReq<D, C>,
) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let mode = ep.send_mode(&r.common, r.data.injected());
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let piece = r.data.piece();
    let simple = !mode.delivery && (C::PLAIN || !r.common.is_work());
    match (live.routes.message(peer), piece) {
        (MessageRoute::Ring, Some(p)) if simple && r.data.len() <= record_max(&r.data) => {
            let Some(h) = &mut live.shm_ep else {
                return send_slow_path(s, id, (peer, MessageRoute::Ring), mode, *r);
            };
            let (words, flags) = words_of(r.tag, r.cq_data);
            let what = RecordHeader {
                kind: kind::MESSAGE,
                flags,
                message: true,
            };
            let done = completion(peer, r, mode.entry);
            let head = RecordHead::words(what, words, head_len(flags) / 8);
            match h.tx.am_short(done, head, p.as_inject()) {
                Verdict::Done => {}
                Verdict::Unsupported => {
                    return send_slow_path(s, id, (peer, MessageRoute::Ring), mode, *r)
                }
                other => return other.result(),
            }
            ep.cntrs.count(&mut s.cntrs, CntrKind::Send, done.len);
            if mode.entry {
                if let Some(q) = ep.config.tx_cq.and_then(|q| s.cqs.get_mut(q)) {
                    q.push(ended_entry(&done));
                }
            }
            Ok(())
        }
        (MessageRoute::Direct, Some(p)) if simple && r.common.rings() => {
            let done = || completion(peer, r, mode.entry);
            match live.qp.send_piece(done, r.cq_data, p, r.data.injected()) {
                Verdict::Queued => Ok(()),
                other => other.result(),
            }
        }
        (MessageRoute::Packets, Some(p)) if simple && r.data.len() <= ep.config.packet_max => {
            let LiveEndpoint { qp, proto, .. } = live;
            let Some((head, len)) = proto.eager_head(peer, r.tag, r.cq_data) else {
                return send_slow_path(s, id, (peer, MessageRoute::Packets), mode, *r);
            };
            let done = completion(peer, r, mode.entry);
            let head = AmHeader::padded(&head, len);
            let sent = match r.data.injected() {
                true => qp.am_short(done, head, p.as_inject()),
                false => qp.am_zcopy(done, head, Payload::Piece(p)),
            };
            match sent {
                Verdict::Queued => {
                    proto.commit_eager_tx(peer);
                    if r.common.rings() {
                        qp.ring_burst();
                    }
                    Ok(())
                }
                other => other.result(),
            }
        }
        (route, _) => send_slow_path(s, id, (peer, route), mode, *r),
    }
}

/// Longest message that is one record of a ring.
#[inline(always)]
fn record_max(data: &impl SendBuffer) -> usize {
    match data.injected() {
        true => same_host::INJECTED_RECORD,
        false => same_host::rendezvous::FIRST,
    }
}

/// As [`send_to`], for all cases off the fast path.
#[inline(never)]
fn send_slow_path<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    way: (PeerId, MessageRoute),
    mode: TxMode,
    r: MsgReq<D, C>,
) -> Result<()> {
    send_any(s, id, way, mode, &r.to_general())
}

/// Sends a message by its route; chooses the route first if it is unknown.
fn send_any(
    s: &mut State,
    id: u32,
    (peer, route): (PeerId, MessageRoute),
    mode: TxMode,
    r: &MsgReq<SendData>,
) -> Result<()> {
    memory::check_operation()?;
    match route {
        MessageRoute::Unknown => {
            let chosen = choose_message(s, id, peer);
            route_or_keep(s, id, chosen, || DeferredWork::new(r))?;
            send_to(s, id, peer, r)
        }
        MessageRoute::Ring => by_ring(s, id, peer, mode, r),
        MessageRoute::Packets => by_protocol(s, id, peer, mode, r),
        MessageRoute::Direct | MessageRoute::Datagrams => by_adapter(s, id, peer, mode, r),
    }
}

/// Sends a message as one work request of the adapter.
fn by_adapter(
    s: &mut State,
    id: u32,
    peer: PeerId,
    mode: TxMode,
    r: &MsgReq<SendData>,
) -> Result<()> {
    live_port!(s, id, None => ep, _proto, port);
    port.connect(peer)?;
    let done = completion(peer, r, mode.entry);
    let ctx = port.ops.insert(send_op(id, r, done));
    let posted = direct::send(&mut port, ep.kind, ctx, peer, r);
    port.posted(ctx, posted, &r.common)
}

fn send_op(id: u32, r: &MsgReq<SendData>, done: Completion) -> UserOp {
    let mut op = UserOp::new(id, r.data.lent(), done);
    op.work = r.common.work;
    op
}

/// Sends a message to a peer on this host: as one record, by rendezvous, or, when the protocol has
/// to confirm it, as packets in the ring.
fn by_ring(s: &mut State, id: u32, peer: PeerId, mode: TxMode, r: &MsgReq<SendData>) -> Result<()> {
    live_port!(s, id, None => ep, _proto, rendezvous, _, port);
    let Some(rings) = &mut port.rings else {
        return Err(FI_EOPNOTSUPP);
    };
    let done = completion(peer, r, mode.entry);
    let sent = match (mode.delivery, ep.kind, &r.data) {
        (true, EndpointKind::Direct, data) if r.common.work.is_none() => {
            let head = same_host::confirmed_head(r.cq_data);
            rings.am_bcopy(done, head, payload(data))
        }
        (false, _, data) if data.len() <= record_max(data) => {
            let (words, flags) = words_of(r.tag, r.cq_data);
            let what = RecordHeader {
                kind: kind::MESSAGE,
                flags,
                message: true,
            };
            let head = RecordHead::words(what, words, head_len(flags) / 8);
            let sent = rings.am_bcopy(done, head, payload(data));
            if sent == Verdict::Done {
                port.end(send_op(id, r, done), Ok(()));
            }
            sent
        }
        (delivery, kind, SendData::User(mem)) if !delivery || kind == EndpointKind::Rdm => {
            // A send of host memory needs no operation record, unless it is deferred work.
            let own = r.common.work.is_none() && mem.is_host();
            let ctx = (!own).then(|| port.ops.insert(send_op(id, r, done)));
            let done = match ctx {
                Some(ctx) => Completion {
                    report: Report::Op(ctx),
                    ..done
                },
                None => done,
            };
            let sent = rendezvous.send(&mut port, (r.tag, r.cq_data), mem, (done, delivery));
            if let Some(ctx) = ctx.filter(|_| !matches!(sent, Verdict::Done | Verdict::Queued)) {
                port.ops.remove(ctx);
            }
            sent
        }
        _ => Verdict::Unsupported,
    };
    match (sent, ep.kind) {
        (Verdict::Unsupported, EndpointKind::Rdm) => by_protocol(s, id, peer, mode, r),
        // The ring has gone.
        (Verdict::Unsupported, _) => by_adapter(s, id, peer, mode, r),
        (other, _) => {
            notify_sleeper(s, id);
            other.result()
        }
    }
}

/// The data of a message, as a transport takes it.
fn payload<'a>(data: &'a SendData) -> Payload<'a> {
    match data {
        SendData::User(m) => Payload::User(m),
        SendData::Inject(b) => Payload::Inject(*b),
    }
}

/// Sends a message by the protocol.
fn by_protocol(
    s: &mut State,
    id: u32,
    peer: PeerId,
    mode: TxMode,
    r: &MsgReq<SendData>,
) -> Result<()> {
    let inject = r.data.inject_bytes();
    live_port!(s, id, inject => _ep, proto, port);
    let done = Completion {
        remote: RemoteAddr {
            addr: 0,
            key: r.tag.unwrap_or(0),
        },
        ..completion(peer, r, mode.entry)
    };
    let ctx = port.ops.insert(send_op(id, r, done));
    let args = SendArgs {
        peer,
        ctx,
        len: r.data.len() as u64,
        tag: r.tag,
        cq_data: r.cq_data,
        receipt: mode.delivery,
        inject: inject.is_some(),
    };
    let posted = proto.send(&args, &mut port);
    port.posted(ctx, posted, &r.common)?;
    notify_sleeper(s, id);
    Ok(())
}
