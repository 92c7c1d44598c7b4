//! Starting reads and writes of remote memory (fi_rma(3)).
//!
//! [`rma`] checks a request against the endpoint's settings, looks up its peer and the route to the
//! peer's memory, and hands the request to the transport. As [`send`](mod@super::send) it is
//! compiled for calls without flags and with one buffer, and for all others.

use super::deferred::DeferredWork;
use super::{fences, live_port, notify_sleeper, resolve, too_long, wait};
use super::{UserOp, TX_FLAGS};
use crate::core::{memory, Result};
use crate::device::{Device, QueuePair};
use crate::hmem::{Piece, UserMem};
use crate::proto::{self, PeerId};
use crate::prov::contract::{Call, Common, RmaReq, SendBuffer, SendData};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, Ep, LiveEndpoint, TxMode};
use crate::prov::efa::poll::{poll, PollResult};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::progress::progress;
use crate::prov::efa::same_host::shm_rma::{self, BatchedAccess};
use crate::prov::efa::select::{choose_rma, route_or_keep, RmaRoute};
use crate::prov::reports::completion::{reported, rma_flags};
use crate::prov::reports::flags::known;
use crate::shm::{kind, AdapterRetry};
use crate::transport::{Completion, Payload, RemoteAddr, Report, Transport, Verdict};
use crate::types::*;
use crate::wire::{Iovs, RmaIov};

/// Most injected writes in a row before the endpoint is polled.
const UNPOLLED: u32 = 64;

/// Reads or writes remote memory. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an
/// unknown peer, `FI_EMSGSIZE` when it is too long, `FI_EOPNOTSUPP` where the endpoint has no RMA.
#[inline(always)]
pub(crate) fn rma<D: SendBuffer, C: Call>(s: &mut State, id: u32, r: &RmaReq<D, C>) -> Result<()> {
    let call = if r.write { "fi_writemsg" } else { "fi_readmsg" };
    known(r.common.flags(), TX_FLAGS, call)?;
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.deferred.is_empty() || fences(&r.common) {
        return rma_behind_fence(s, id, *r);
    }
    rma_now(s, id, r)
}

#[cold]
#[inline(never)]
fn rma_behind_fence<D: SendBuffer, C: Call>(s: &mut State, id: u32, r: RmaReq<D, C>) -> Result<()> {
    match wait(s, id, (r.peer, &r.common), || {
        DeferredWork::new(&r.to_general())
    })? {
        true => Ok(()),
        false => rma_now(s, id, &r.to_general()),
    }
}

/// As [`rma`], past any fence.
#[inline(always)]
pub(crate) fn rma_now<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    r: &RmaReq<D, C>,
) -> Result<()> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    let c = &ep.config;
    let (len, injected) = (r.data.len(), r.data.injected());
    if !c.rma || len > c.rma_max || injected && len > c.inject_rma_max {
        return access_error(ep, len, injected);
    }
    match s.avs.get(c.av).and_then(|av| av.known(r.peer)) {
        Some(peer) => rma_to(s, id, peer, r),
        None => rma_resolved(s, id, *r),
    }
}

/// The error of an access that the state or the settings of the endpoint forbid.
#[cold]
fn access_error(ep: &Ep, len: usize, injected: bool) -> Result<()> {
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    if !ep.config.rma {
        return Err(FI_EOPNOTSUPP);
    }
    if injected {
        let what = "injected write (FI_OPT_INJECT_RMA_SIZE)";
        too_long(what, len, ep.config.inject_rma_max)?;
    }
    too_long("RMA operation", len, ep.config.rma_max)
}

#[cold]
#[inline(never)]
fn rma_resolved<D: SendBuffer, C: Call>(s: &mut State, id: u32, r: RmaReq<D, C>) -> Result<()> {
    let peer = resolve(s, id, r.peer)?;
    rma_to(s, id, peer, &r.to_general())
}

/// What is reported of a read or write.
#[inline(always)]
fn completion<D: SendBuffer, C: Call>(peer: PeerId, r: &RmaReq<D, C>, entry: bool) -> Completion {
    Completion {
        context: r.common.context(),
        len: r.data.len(),
        flags: rma_flags(r.write),
        peer,
        report: reported(entry),
        remote: RemoteAddr {
            addr: r.addr,
            key: r.key,
        },
    }
}

/// As [`rma_now`], of this peer's memory.
#[inline(always)]
fn rma_to<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    peer: PeerId,
    r: &RmaReq<D, C>,
) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let mode = ep.tx_mode(&r.common, r.data.injected());
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let route = live.routes.rma(peer, r.write, r.cq_data.is_some());
    let simple = C::PLAIN || !r.common.is_work();
    let piece = r.data.piece().filter(|p| simple && !p.is_empty());
    match (route, piece) {
        (RmaRoute::Ring, Some(p)) if p.len() <= shm_rma::RING_RMA_MAX => {
            match ring_short(live, completion(peer, r, mode.entry), p, r) {
                Verdict::Queued => {}
                Verdict::Unsupported => return rma_slow_path(s, id, (peer, route), mode, *r),
                other => return other.result(),
            }
            live.notify_sleeper();
            if r.data.injected() {
                // Two endpoints that only write would fill each other's rings.
                live.unpolled += 1;
                if live.unpolled >= UNPOLLED {
                    poll_endpoint(s, id);
                }
            } else if live.rma.take_poll_due() {
                progress(s, id);
            }
            Ok(())
        }
        (RmaRoute::Adapter, Some(p))
            if p.len() <= ep.config.max_rdma && live.qp.takes(&Payload::Piece(p), r.key) =>
        {
            let done = completion(peer, r, mode.entry);
            let posted = match (r.write, r.data.injected()) {
                (true, true) => live.qp.put(done, Payload::Inject(p.as_inject()), r.cq_data),
                (true, false) => live.qp.put(done, Payload::Piece(p), r.cq_data),
                (false, _) => live.qp.get(done, Payload::Piece(p)),
            };
            if r.common.rings() {
                live.qp.ring_burst();
            }
            match posted {
                Verdict::Queued => Ok(()),
                other => other.result(),
            }
        }
        _ => rma_slow_path(s, id, (peer, route), mode, *r),
    }
}

/// Writes one record into the ring. If several accesses are under way, and long enough that the
/// target's two copies cost more than one copy here, adds the access to a batch that is copied
/// here.
#[inline(always)]
fn ring_short<D: SendBuffer, C: Call>(
    live: &mut LiveEndpoint,
    done: Completion,
    p: Piece,
    r: &RmaReq<D, C>,
) -> Verdict {
    let Some(h) = &mut live.shm_ep else {
        return Verdict::Unsupported;
    };
    let batched = p.len() >= shm_rma::BATCH_MIN[usize::from(r.write)];
    if batched && (h.tx.has_outstanding() || live.rma.gathers()) {
        let plain = r.cq_data.is_none() && !r.data.injected();
        if plain
            && live
                .rma
                .add_to_batch(&mut h.tx, r.write, BatchedAccess { mem: p, done })
        {
            return Verdict::Queued;
        }
    }
    match (r.write, r.data.injected()) {
        (true, true) => h.tx.put(done, Payload::Inject(p.as_inject()), r.cq_data),
        (true, false) => h.tx.put(done, Payload::Piece(p), r.cq_data),
        (false, _) => h.tx.get(done, Payload::Piece(p)),
    }
}

/// Polls the endpoint for a caller that only posts.
#[cold]
fn poll_endpoint(s: &mut State, id: u32) {
    if let Some(l) = s.eps.get_mut(id).and_then(|e| e.live.as_mut()) {
        l.unpolled = 0;
    }
    if let PollResult::More(_) = poll(s, id, u32::MAX, true, usize::MAX, |_, _| {}) {
        progress(s, id);
    }
}

/// As [`rma_to`], for all cases off the fast path.
#[inline(never)]
fn rma_slow_path<D: SendBuffer, C: Call>(
    s: &mut State,
    id: u32,
    way: (PeerId, RmaRoute),
    mode: TxMode,
    r: RmaReq<D, C>,
) -> Result<()> {
    rma_any(s, id, way, mode, &r.to_general())
}

/// Reads or writes by the route; chooses the route first if it is unknown.
fn rma_any(
    s: &mut State,
    id: u32,
    (peer, route): (PeerId, RmaRoute),
    mode: TxMode,
    r: &RmaReq<SendData>,
) -> Result<()> {
    memory::check_operation()?;
    let route = match route {
        RmaRoute::Unknown => {
            let chosen = choose_rma(s, id, peer, (r.write, r.cq_data.is_some()));
            route_or_keep(s, id, chosen, || DeferredWork::new(r))?
        }
        known => known,
    };
    let done = completion(peer, r, mode.entry);
    let sent = match route {
        RmaRoute::Ring => {
            live_port!(s, id, None => _ep, _proto, _, shm, port);
            match shm.start(&mut port, r, done) {
                Verdict::Unsupported => by_adapter(s, id, r, done),
                sent => sent,
            }
        }
        RmaRoute::Adapter => by_adapter(s, id, r, done),
        RmaRoute::Emulated | RmaRoute::Unknown => Verdict::Unsupported,
    };
    if sent == Verdict::Unsupported {
        by_protocol(s, id, r, done)?;
    } else {
        sent.result()?;
    }
    notify_sleeper(s, id);
    let live = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
    if live.is_some_and(|l| l.rma.take_poll_due()) {
        progress(s, id);
    }
    Ok(())
}

/// Reads or writes by the adapter; `Unsupported`, and nothing done, when it cannot.
fn by_adapter(s: &mut State, id: u32, r: &RmaReq<SendData>, done: Completion) -> Verdict {
    let mut go = || -> Result<Verdict> {
        live_port!(s, id, None => ep, _proto, port);
        port.connect(done.peer)?;
        let mem = r.data.lent();
        let data = match &r.data {
            SendData::User(_) => Payload::User(&mem),
            SendData::Inject(b) => Payload::Inject(*b),
        };
        if !port.qp.takes(&data, r.key) {
            return Ok(Verdict::Unsupported);
        }
        if !port.qp.room() {
            return Ok(Verdict::NoResources);
        }
        let max = ep.config.max_rdma;
        let many = mem.len() > max;
        if many {
            // Room for all parts, or, of more than a queue holds, for as many as it may have free.
            let parts = mem.len().div_ceil(max.max(1));
            if !port
                .qp
                .room_for(done.peer, parts.min(port.dev.attr().sq_depth / 2))
            {
                return Ok(Verdict::NoResources);
            }
        }
        // Host memory, one part, no deferred work: no operation record is needed.
        let own = !many && mem.is_host() && r.common.work.is_none();
        let mut done = done;
        if !own {
            let mut op = rma_op(id, r, done);
            op.late_imm = r.cq_data.filter(|_| many);
            done.report = Report::Op(port.ops.insert(op));
        }
        let posted = match (many, r.write) {
            (true, _) => post_parts(&mut port, done, &mem, (r.write, max)),
            (false, true) => port.qp.put(done, data, r.cq_data),
            (false, false) => port.qp.get(done, data),
        };
        match posted {
            Verdict::Queued if r.common.rings() => port.qp.ring_burst(),
            Verdict::Queued => {}
            _ => drop(done.op().and_then(|ctx| port.ops.remove(ctx))),
        }
        Ok(posted)
    };
    go().unwrap_or_else(Verdict::Failed)
}

/// Has the peer read or write, by messages of the protocol. `FI_EINVAL` on fabric efa-direct, which
/// has none.
fn by_protocol(s: &mut State, id: u32, r: &RmaReq<SendData>, done: Completion) -> Result<()> {
    let inject = r.data.inject_bytes();
    live_port!(s, id, inject => ep, proto, port);
    if ep.kind != EndpointKind::Rdm {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "read or write of {} bytes with key {:#x}: the adapter takes keys of 32 bits, and \
             registered memory in one piece unless it fits into a packet ({} bytes)",
            done.len,
            r.key,
            port.dev.attr().mtu
        );
        return Err(FI_EINVAL);
    }
    if !port.qp.room() {
        return Err(FI_EAGAIN);
    }
    let ctx = port.ops.insert(rma_op(id, r, done));
    let (peer, len) = (done.peer, done.len as u64);
    let target = RmaIov {
        addr: r.addr,
        len,
        key: r.key,
    };
    let target = Iovs::new(&[target]).ok_or(FI_EINVAL)?;
    let posted = if r.write {
        let a = proto::WriteArgs {
            peer,
            ctx,
            len,
            to: target,
            cq_data: r.cq_data,
            inject: inject.is_some(),
        };
        proto.write(&a, &mut port)
    } else {
        let a = proto::ReadArgs {
            peer,
            ctx,
            len,
            from: target,
        };
        proto.read(&a, &mut port)
    };
    port.posted(ctx, posted, &r.common)
}

/// The operation of a read or write.
pub(crate) fn rma_op(id: u32, r: &RmaReq<SendData>, done: Completion) -> UserOp {
    let mut op = UserOp::new(id, r.data.lent(), done);
    op.work = r.common.work;
    op
}

/// Posts an operation that is longer than the adapter's largest request, in several. Only the first
/// can be refused: nothing has happened then.
fn post_parts(
    port: &mut EpPort,
    whole: Completion,
    mem: &UserMem,
    (write, max): (bool, usize),
) -> Verdict {
    let (mut off, mut parts) = (0, 0);
    while off < mem.len() {
        let part = mem.part(off, max);
        let done = Completion {
            len: part.len(),
            remote: RemoteAddr {
                addr: whole.remote.addr.wrapping_add(off as u64),
                ..whole.remote
            },
            ..whole
        };
        let posted = match write {
            true => port.qp.put(done, Payload::User(&part), None),
            false => port.qp.get(done, Payload::User(&part)),
        };
        match posted {
            Verdict::Queued => parts += 1,
            refused if parts == 0 => return refused,
            // The queue ran full in the middle: the parts posted so far end with the error below.
            refused => {
                let errno = refused.result().err().unwrap_or(FI_EOTHER);
                if let Some(op) = whole.op().and_then(|ctx| port.ops.get_mut(ctx)) {
                    op.failed = Some(proto::Failure { errno, status: 0 });
                }
                break;
            }
        }
        off += part.len();
    }
    if let Some(op) = whole.op().and_then(|ctx| port.ops.get_mut(ctx)) {
        op.parts = parts;
    }
    Verdict::Queued
}

/// Posts to the adapter what could not be done through shared memory.
pub(crate) fn retry_by_adapter(
    s: &mut State,
    id: u32,
    peer: PeerId,
    r: &RmaReq<SendData>,
) -> Result<()> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    let mode = ep.tx_mode(&r.common, false);
    let done = completion(peer, r, mode.entry);
    match by_adapter(s, id, r, done) {
        Verdict::Unsupported => by_protocol(s, id, r, done),
        sent => sent.result(),
    }
}

/// Retries by the adapter the accesses that shared memory could not carry out.
pub(crate) fn retry_refused(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(live) = &mut ep.live else { return };
    // These accesses are older than operations that wait behind fences.
    for r in live.rma.take_refused().into_iter().rev() {
        let part = r.done;
        let op = part.op().and_then(|ctx| s.ops.remove(ctx));
        let done = op.as_ref().map_or(part, |op| op.done);
        let entry = done.report == Report::Entry;
        let again = RmaReq {
            data: SendData::User(r.mem),
            peer: FI_ADDR_NOTAVAIL,
            addr: part.remote.addr,
            key: part.remote.key,
            write: r.write,
            cq_data: r.cq_data,
            common: Common {
                context: done.context,
                flags: Some(if entry { FI_COMPLETION } else { 0 }),
                alias: None,
                work: op.and_then(|op| op.work),
            },
        };
        ep.deferred
            .push_front(DeferredWork::by_adapter(&again, part.peer));
    }
    let again = live.shm_ep.as_mut().map(|h| h.tx.take_retries());
    for a in again.into_iter().flatten() {
        post_retry(s, id, a);
    }
}

/// Posts to the adapter an access that shared memory could not carry out. Keeps the access while
/// the queue has no room.
fn post_retry(s: &mut State, id: u32, a: AdapterRetry) {
    let go = |s: &mut State| -> Result<()> {
        live_port!(s, id, None => _ep, _proto, port);
        let _ = port.connect(a.done.peer);
        let data = a.flags & kind::WITH_DATA != 0;
        let imm = (a.write && data).then_some(a.word);
        let key = a.done.remote.key;
        if !port.qp.takes(&Payload::Piece(a.mem), key) && a.done.op().is_none() {
            // The adapter does not reach the region: its process carries the access out.
            let data = match &a.bytes {
                Some(b) => SendData::Inject((&**b).into()),
                None => SendData::User(a.mem.into()),
            };
            let r = RmaReq {
                data,
                peer: FI_ADDR_NOTAVAIL,
                addr: a.done.remote.addr,
                key,
                write: a.write,
                cq_data: imm,
                common: Common::default(),
            };
            return by_protocol(s, id, &r, a.done);
        }
        let posted = match &a.bytes {
            Some(b) => port.qp.put(a.done, Payload::Inject((&**b).into()), imm),
            None if a.write => port.qp.put(a.done, Payload::Piece(a.mem), imm),
            None => port.qp.get(a.done, Payload::Piece(a.mem)),
        };
        match posted.result() {
            Ok(()) => port.qp.ring(),
            Err(FI_EAGAIN) => return Err(FI_EAGAIN),
            Err(errno) => {
                let why = crate::proto::Failure { errno, status: 0 };
                match a.done.op() {
                    Some(ctx) => port.part_done(ctx, Some(why)),
                    None => port.complete(&a.done, Err(why)),
                }
            }
        }
        Ok(())
    };
    if go(s) == Err(FI_EAGAIN) {
        let live = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
        if let Some(h) = live.and_then(|l| l.shm_ep.as_mut()) {
            h.tx.add_retry(a);
        }
    }
}
