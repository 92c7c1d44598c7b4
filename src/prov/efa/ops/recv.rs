//! Posting receives, peeking and claiming (fi_msg(3), fi_tagged(3)), and taking receives back
//! (fi_cancel(3)).

use crate::core::slab::Slab;
use crate::core::{memory, Result};
use crate::device::QueuePair;
use crate::proto::{self, CancelOutcome, PeekResult, Place, RecvArgs, RecvEntry, ANY};
use crate::prov::contract::{Call, Entry, Poster, RecvBuffer, RecvReq};
use crate::prov::efa::av::Av;
use crate::prov::efa::budget::{self, Holding};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, Ep, LiveEndpoint};
use crate::prov::efa::ops::deferred::cancel_triggered;
use crate::prov::efa::ops::{direct, short_op, UserOp, SRX_OWNER};
use crate::prov::efa::ops::{live_port, tag_fits};
use crate::prov::efa::peers::Peers;
use crate::prov::efa::poll::received;
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{reported, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::prov::reports::endpoint::{push_cancelled, push_peek};
use crate::prov::reports::flags::{known, RECV_FLAGS};
use crate::prov::reports::{reports, reports_call, CqBinding};
use crate::transport::{Completion, RemoteAddr, Verdict};
use crate::types::*;

/// The endpoint whose completion queue gets the result. A shared receive context has no queue, so
/// that its first endpoint's is used. `FI_ENOCQ` for a context without an endpoint.
fn answering(by: Poster, s: &State) -> Result<u32> {
    match by {
        Poster::Ep(id) => Ok(id),
        Poster::Srx(x) => first_user(&s.eps, x).map(|(id, _)| id).ok_or(FI_ENOCQ),
    }
}

/// The first endpoint of a shared receive context.
fn first_user(eps: &Slab<Ep>, srx: u32) -> Option<(u32, &Ep)> {
    eps.iter().find(|(_, e)| e.uses_srx(srx))
}

/// Posts a receive, or peeks, claims or discards. `FI_ENOCQ` for peeks at a shared receive
/// context without an endpoint, through whose completion queue to answer.
#[inline(always)]
pub(crate) fn recv<M: RecvBuffer, C: Call>(
    s: &mut State,
    by: Poster,
    r: &RecvReq<M, C>,
) -> Result<()> {
    if let (true, Poster::Ep(id)) = (C::PLAIN || only_reports(&r.common), by) {
        if let Some(posted) = recv_plain(s, id, r) {
            return posted;
        }
    }
    recv_slow_path(s, by, *r)
}

/// Whether the flags of a call say no more than whether its completion is reported.
#[inline(always)]
fn only_reports(c: &impl Call) -> bool {
    let few = |f: u64| f & !(FI_COMPLETION | FI_MORE) == 0;
    c.flags().is_some_and(few) && !c.is_work()
}

/// As [`recv`], for all cases off the fast path.
#[inline(never)]
fn recv_slow_path<M: RecvBuffer, C: Call>(
    s: &mut State,
    by: Poster,
    r: RecvReq<M, C>,
) -> Result<()> {
    recv_any(s, by, &r.to_general())
}

/// Posts a receive of a call without flags, or with the few of [`only_reports`], into one piece, to
/// the endpoint's own queue. `None`, and nothing done, when [`recv_slow_path`] has to post it.
#[inline(always)]
fn recv_plain<M: RecvBuffer, C: Call>(
    s: &mut State,
    id: u32,
    r: &RecvReq<M, C>,
) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let c = &ep.config;
    let (into, context) = (r.mem.piece()?, r.common.context());
    let report = match r.common.flags() {
        None => c.rx_entries,
        Some(flags) => reports(ep.rx, flags),
    };
    if c.receives_native {
        let q = ep.live.as_mut()?.qp.native()?;
        if r.tag.is_some() {
            return None;
        }
        let done = Completion {
            context,
            len: into.len(),
            flags: (FI_RECV | FI_MSG) as u32,
            peer: ANY,
            report: reported(report),
            remote: RemoteAddr::default(),
        };
        return match q.recv(done, into) {
            Verdict::Unsupported => None,
            posted => Some(posted.result()),
        };
    }
    let refused = |tag: u64| !c.tags || tag & c.tag_forbidden != 0;
    if !c.receives_plain || r.tag.is_some_and(|(tag, _)| refused(tag)) {
        return None;
    }
    let from = if r.src == FI_ADDR_UNSPEC || !c.directed {
        ANY
    } else {
        s.avs.get(c.av)?.known(r.src)?
    };
    let what = RecvEntry {
        context,
        into,
        report,
        tagged: r.tag.is_some(),
    };
    let q = s.rxqs.get_mut(ep.rxq)?;
    match q.post_entry(from, r.tag, what) {
        Some(()) => Some(Ok(())),
        None => receive_whole(s, id, from, r.tag, &what).map(Ok),
    }
}

/// Copies the unexpected message that a plain receive matches, if all of it is there.
#[inline(never)]
fn receive_whole(
    s: &mut State,
    id: u32,
    from: u32,
    tag: Option<(u64, u64)>,
    r: &RecvEntry,
) -> Option<()> {
    let ep = s.eps.get(id)?;
    let q = s.rxqs.get_mut(ep.rxq)?;
    let u = q.take_whole(id, from, tag, r.into.len())?;
    r.into.store(&u.payload);
    ep.cntrs
        .count(&mut s.cntrs, CntrKind::Recv, u.payload.len());
    if let (true, Some(cq)) = (r.report, ep.rx.and_then(|b| s.cqs.get_mut(b.cq))) {
        let av = s.avs.get(ep.config.av).filter(|_| ep.config.source);
        let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(u.from));
        cq.push(received(r, u.payload.len(), (u.tag, u.cq_data), src));
    }
    if ep.holding != Holding::None {
        budget::watch(s, id);
    }
    Some(())
}

/// Where a receive is posted, and what holds for every receive there.
struct Destination {
    rxq: u32,
    /// The peer it is directed at, or [`ANY`].
    src: u32,
    /// Whether successes are reported.
    report: Option<CqBinding>,
    default_flags: u64,
    min_multi: usize,
    /// The owner of its operation record: what is in the queue of a shared context stays there
    /// when an endpoint is closed.
    owner: u32,
}

/// The queue of an endpoint or of a shared receive context, for the receive `r`.
fn destination(s: &mut State, by: Poster, r: &RecvReq) -> Result<Destination> {
    match by {
        Poster::Ep(id) => {
            let ep = s.eps.get(id).ok_or(FI_EBADF)?;
            if !ep.enabled() {
                return Err(FI_EOPBADSTATE);
            }
            tag_fits(ep.caps, r.tag.map(|(tag, _)| tag))?;
            let (avs, peers) = (&s.avs, &mut s.peers);
            let av = || ep.av.and_then(|a| avs.get(a));
            Ok(Destination {
                rxq: ep.rxq,
                src: source(av, peers, ep.caps, r.src)?,
                report: ep.rx,
                default_flags: ep.rx_flags,
                min_multi: ep.opts.min_multi_recv,
                owner: ep.srx.map_or(id, |x| SRX_OWNER | x),
            })
        }
        Poster::Srx(id) => {
            let x = s.srxs.get(id).ok_or(FI_EBADF)?;
            let (eps, avs, peers) = (&s.eps, &s.avs, &mut s.peers);
            let av = || avs.get(first_user(eps, id)?.1.av?);
            Ok(Destination {
                rxq: x.rxq,
                src: source(av, peers, x.caps, r.src)?,
                report: Some(CqBinding::everything()),
                default_flags: x.rx_flags,
                min_multi: x.min_multi_recv,
                owner: SRX_OWNER | id,
            })
        }
    }
}

/// The peer that a receive is directed at: without FI_DIRECTED_RECV the source is not looked at
/// (fi_msg(3)), nor is the address vector.
fn source<'a>(
    av: impl FnOnce() -> Option<&'a Av>,
    peers: &mut Peers,
    caps: u64,
    src: fi_addr_t,
) -> Result<u32> {
    if src == FI_ADDR_UNSPEC || caps & FI_DIRECTED_RECV == 0 {
        return Ok(ANY);
    }
    av().ok_or(FI_ENOAV)?.peer(src, peers)
}

/// As [`recv`], any receive.
pub(crate) fn recv_any(s: &mut State, by: Poster, r: &RecvReq) -> Result<()> {
    known(r.common.flags, RECV_FLAGS, "fi_recvmsg")?;
    memory::check_receive()?;
    let to = destination(s, by, r)?;
    let flags = r.common.flags_or(to.default_flags);
    let (tag, ignore) = r.tag.unwrap_or((0, 0));
    // Tagged buffers would need FI_TAGGED_MULTI_RECV, which is not offered.
    let multi = r.tag.is_none() && flags & FI_MULTI_RECV != 0;
    let mut args = RecvArgs {
        src: to.src,
        ctx: proto::NO_CTX,
        len: r.mem.len() as u64,
        tagged: r.tag.is_some(),
        tag,
        ignore,
        multi: multi.then_some(to.min_multi as u64),
    };
    let asked = r.common.flags.unwrap_or(0) & (FI_PEEK | FI_CLAIM | FI_DISCARD);
    if asked == FI_DISCARD {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_recvmsg: FI_DISCARD: wanted together with FI_PEEK or FI_CLAIM"
        );
        return Err(FI_EBADFLAGS);
    }
    if asked & FI_PEEK != 0 {
        let id = answering(by, s)?;
        return peek(s, id, to.rxq, &args, r, asked);
    }
    let claimed = match asked & FI_CLAIM {
        0 => None,
        _ => Some(claimed(s, to.rxq, r)?),
    };
    if let (Some(u), true) = (&claimed, asked & FI_DISCARD != 0) {
        let found = u.peeked();
        start(s, Place::nowhere(), u);
        report_peek(s, answering(by, s)?, &args, r, Some(found));
        return Ok(());
    }
    let kind = if r.tag.is_some() { FI_TAGGED } else { FI_MSG };
    let done = Completion {
        context: r.common.context,
        len: r.mem.len(),
        flags: (FI_RECV | kind) as u32,
        peer: to.src,
        report: reported(reports_call(to.report, flags, &r.common)),
        remote: RemoteAddr { addr: 0, key: tag },
    };
    let mut op = UserOp::new(to.owner, r.mem, done);
    op.multi = multi;
    op.work = r.common.work;
    args.ctx = s.ops.insert(op);
    if let Poster::Ep(id) = by {
        if s.eps.get(id).is_some_and(|ep| ep.kind != EndpointKind::Rdm) {
            return raw_recv(s, id, to.rxq, &args);
        }
    }
    match claimed {
        Some(u) => {
            start(s, Place::whole(args.ctx, args.len), &u);
            Ok(())
        }
        None => post(s, to.rxq, &args),
    }
}

/// The message that a peek has claimed for the context of `r`.
fn claimed(s: &mut State, rxq: u32, r: &RecvReq) -> Result<proto::UnexpectedMessage> {
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
    q.claimed(r.common.context).ok_or_else(|| {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_recvmsg: FI_CLAIM: no message was claimed with this context"
        );
        FI_EINVAL
    })
}

/// Posts a receive that has an operation record, at an endpoint without protocol.
fn raw_recv(s: &mut State, id: u32, rxq: u32, args: &RecvArgs) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let short = args.len < direct::unsent(ep.kind) as u64;
    let done = match live.qp.native() {
        _ if args.tagged => Err(FI_EOPNOTSUPP),
        _ if short => Err(FI_EINVAL),
        Some(q) => direct::recv(q, &s.ops, args.ctx),
        None => post(s, rxq, args),
    };
    done.inspect_err(|_| {
        s.ops.remove(args.ctx);
    })
}

/// Posts a receive that has an operation record, and starts the unexpected messages that match it.
pub(crate) fn post(s: &mut State, rxq: u32, args: &RecvArgs) -> Result<()> {
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
    if let Some(u) = q.post(args) {
        start(s, Place::whole(args.ctx, args.len), &u);
    } else if args.multi.is_some() {
        let owner = s.ops.get(args.ctx).map_or(0, |op| op.owner);
        let next = |s: &mut State| {
            let (q, ops) = (s.rxqs.get_mut(rxq)?, &mut s.ops);
            q.fill(args, |r| ops.insert(short_op(owner, &r)))
        };
        while let Some((u, place)) = next(s) {
            start(s, place, &u);
        }
    }
    Ok(())
}

/// Starts an unexpected message, which may be another endpoint's, on its receive.
fn start(s: &mut State, place: Place, u: &proto::UnexpectedMessage) {
    let id = u.ep;
    let go = |s: &mut State| -> Result<()> {
        live_port!(s, id, None => ep, proto, rendezvous, _, port);
        let q = s.rxqs.get_mut(ep.rxq).ok_or(FI_EBADF)?;
        match (&u.coming, &u.written) {
            (Some(c), _) => rendezvous.placed(c, place, q, &mut port),
            (_, Some(w)) => port.wrote(place.ctx, u.from, w.len, w.data),
            _ => proto.start_unexpected(place, u, q, &mut port),
        }
        port.qp.ring();
        Ok(())
    };
    // This fails only if the endpoint is closed, and then its messages are gone, too.
    let _ = go(s);
    crate::prov::efa::budget::watch(s, id);
    // The next call that makes progress copies the rest of a long message: wake a blocked one.
    super::notify_sleeper(s, id);
}

/// FI_PEEK, with FI_CLAIM or FI_DISCARD (fi_msg(3), fi_tagged(3)): reports through the completion
/// queue, with `FI_ENOMSG` when no message matches. Considers only messages that have arrived; the
/// application makes progress when it reads the queue for the result.
fn peek(s: &mut State, id: u32, rxq: u32, args: &RecvArgs, r: &RecvReq, asked: u64) -> Result<()> {
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
    let found = q.peek(args);
    let mut dropped = None;
    if found.is_some() {
        if asked & FI_CLAIM != 0 {
            q.claim(args, r.common.context);
        } else if asked & FI_DISCARD != 0 {
            dropped = q.take(args);
        }
    }
    if let Some(u) = dropped {
        start(s, Place::nowhere(), &u);
    }
    report_peek(s, id, args, r, found);
    Ok(())
}

/// The completion of a peek, or of a claimed message that was discarded.
fn report_peek(s: &mut State, id: u32, args: &RecvArgs, r: &RecvReq, found: Option<PeekResult>) {
    let Some(ep) = s.eps.get(id) else { return };
    let av = ep.av.and_then(|a| s.avs.get(a));
    let source = ep.caps & FI_SOURCE != 0;
    let Some(cq) = ep.rx.and_then(|b| s.cqs.get_mut(b.cq)) else {
        return;
    };
    let kind = if args.tagged { FI_TAGGED } else { FI_MSG };
    let mut entry = Entry {
        context: r.common.context,
        flags: FI_RECV | kind,
        tag: args.tag,
        src: FI_ADDR_NOTAVAIL,
        ..Entry::default()
    };
    if let Some(p) = &found {
        entry.len = usize::try_from(p.len).unwrap_or(usize::MAX);
        entry.tag = p.tag;
        entry.data = p.cq_data.unwrap_or(0);
        if p.cq_data.is_some() {
            entry.flags |= FI_REMOTE_CQ_DATA;
        }
        if let Some(av) = av.filter(|_| source) {
            entry.src = av.reverse(p.from);
        }
    }
    push_peek(cq, entry, found.is_some());
}

/// fi_cancel(3): the first posted receive of this context, or an operation that has not been
/// triggered, ends with FI_ECANCELED. Where there is none, its completion has been written.
pub(crate) fn cancel(s: &mut State, by: Poster, context: usize) -> Result<()> {
    let rxq = match by {
        Poster::Ep(id) => {
            let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
            if !ep.enabled() {
                return Err(FI_EOPBADSTATE);
            }
            ep.rxq
        }
        Poster::Srx(id) => s.srxs.get(id).ok_or(FI_EBADF)?.rxq,
    };
    let ops = &s.ops;
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
    let hit = q.cancel(context, |ctx| {
        ops.get(ctx).is_some_and(|o| o.done.context == context)
    });
    let op = match hit {
        Some(CancelOutcome::Now(ctx)) => s.ops.remove(ctx).ok_or(FI_ENOENT)?,
        Some(CancelOutcome::RecvEntry(r)) => short_op(0, &r),
        Some(CancelOutcome::Later) => return Ok(()),
        None => {
            if let Poster::Ep(id) = by {
                cancel_triggered(s, id, context);
            }
            return Ok(());
        }
    };
    let hears = answering(by, s).ok().and_then(|id| s.eps.get(id));
    if let Some(ep) = hears {
        let text = "the receive was cancelled by fi_cancel";
        report_cancelled((&mut s.cqs, &mut s.cntrs), ep, &op, text);
    }
    Ok(())
}

/// Reports a receive at this endpoint's completion queue and counter as cancelled.
pub(crate) fn report_cancelled(
    (cqs, cntrs): (&mut Slab<Cq>, &mut Slab<Cntr>),
    ep: &Ep,
    op: &UserOp,
    text: &str,
) {
    for c in op.cntrs(ep.cntrs.of(CntrKind::Recv)).into_iter().flatten() {
        if let Some(c) = cntrs.get_mut(c) {
            c.add_error();
        }
    }
    let entry = Entry {
        context: op.done.context,
        flags: u64::from(op.done.flags) | if op.multi { FI_MULTI_RECV } else { 0 },
        tag: op.done.remote.key,
        src: FI_ADDR_NOTAVAIL,
        ..Entry::default()
    };
    push_cancelled(ep.rx.and_then(|b| cqs.get_mut(b.cq)), entry, text);
}
