//! Starting operations: sends, receives, reads, writes and atomics (fi_msg(3), fi_tagged(3),
//! fi_rma(3), fi_atomic(3)).
//!
//! A request is borrowed from the caller for the length of the call. One that must wait, for a
//! fence, a trigger or a counter, is kept as `work` (sibling module) and comes here again.

use super::port::{ep_port, EpPort};
use super::work::Work;
use super::{access, near, raw, stream, Kind, Live, OpKind, UserOp, WR_RMA};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::Qp;
use crate::device::{Device, DeviceAttr, Payload, QueuePair, Remote};
use crate::hmem::{arith, UserMem};
use crate::proto::{
    self, AtomicArgs, AtomicKind, Peeked, PeerId, Place, RecvArgs, SendArgs, ANY, COLLECTIVE_TAG,
};
use crate::prov::efa::cq::{Entry, ErrEntry};
use crate::prov::efa::domain::State;
use crate::shm::{Note, Sent};
use crate::types::*;
use crate::wire::{extra, Iovs, RmaIov};

/// Where an operation's data is.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// In application memory until the operation is done.
    User(UserMem),
    /// Copied before the call returns (FI_INJECT).
    Inject(&'a [u8]),
}

impl Data<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Data::User(m) => m.len(),
            Data::Inject(b) => b.len(),
        }
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Application memory until the operation is done: none when the data is copied.
    pub(super) fn lent(&self) -> UserMem {
        match self {
            Data::User(m) => *m,
            Data::Inject(_) => UserMem::EMPTY,
        }
    }

    fn injected(&self) -> Option<&[u8]> {
        match self {
            Data::Inject(b) => Some(b),
            Data::User(_) => None,
        }
    }
}

/// What every request has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common {
    pub context: usize,
    /// Flags of a `*msg` call: FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, ...
    pub flags: Option<u64>,
    /// Default flags where the call has none: those of an alias in place of the endpoint's.
    pub alias: Option<u64>,
    /// A counter that hears of the end, beside the endpoint's (FI_QUEUE_WORK).
    pub done: Option<u32>,
}

impl Common {
    /// What holds: the call's own flags, or the defaults of the alias or of the endpoint.
    pub(super) fn flags_or(&self, default: u64) -> u64 {
        self.flags.or(self.alias).unwrap_or(default)
    }

    /// Whether the operation goes out at once: only a call with flags of its own can say FI_MORE.
    fn rings(&self) -> bool {
        self.flags.is_none_or(|f| f & FI_MORE == 0)
    }

    /// Whether success is worth a completion entry. Injecting calls without flags report none.
    pub(super) fn reports(&self, data: &Data, bound: Option<super::Bound>, flags: u64) -> bool {
        let silent = self.flags.is_none() && data.injected().is_some();
        !silent && reports(bound, flags)
    }
}

/// A send, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct MsgReq<'a> {
    pub data: Data<'a>,
    pub to: fi_addr_t,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub common: Common,
}

/// A receive, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct RecvReq {
    pub mem: UserMem,
    pub src: fi_addr_t,
    /// Tag and the bits of it that do not matter.
    pub tag: Option<(u64, u64)>,
    pub common: Common,
}

/// A read or write of remote memory.
#[derive(Clone, Copy)]
pub struct RmaReq<'a> {
    pub data: Data<'a>,
    pub peer: fi_addr_t,
    pub addr: u64,
    pub key: u64,
    pub write: bool,
    pub cq_data: Option<u64>,
    pub common: Common,
}

/// What an atomic brings back, and where.
#[derive(Clone, Copy)]
pub enum Fetch {
    No,
    /// The former values.
    Former(UserMem),
    /// The former values; the second are values to compare with.
    Compare(UserMem, UserMem),
}

/// An atomic on remote memory.
#[derive(Clone, Copy)]
pub struct AtomicReq<'a> {
    pub data: Data<'a>,
    pub fetch: Fetch,
    pub peer: fi_addr_t,
    pub to: Iovs,
    pub datatype: fi_datatype,
    pub op: fi_op,
    pub common: Common,
}

/// Flags that `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg`, `fi_readmsg` and `fi_atomicmsg` may carry.
const TX_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_FENCE
    | FI_EFA_WR_HIGH_PPS;
const RX_FLAGS: u64 = FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD;

#[inline]
fn known(flags: Option<u64>, all: u64, call: &str) -> Result<()> {
    match flags.unwrap_or(0) & !all {
        0 => Ok(()),
        bad => unknown(bad, call),
    }
}

#[cold]
fn unknown(bad: u64, call: &str) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "{call}: flags {bad:#x} ({}) are not supported",
        crate::core::tostr::op_flags(bad)
    );
    Err(FI_EBADFLAGS)
}

/// Splits the state into an enabled endpoint and a port for it.
macro_rules! live_port {
    ($s:expr, $id:expr, $inject:expr => $ep:ident, $proto:ident, $port:ident) => {
        let $ep = $s.eps.get_mut($id).ok_or(FI_EBADF)?;
        let Some(Live {
            qp,
            proto: $proto,
            events: _,
            waiting: _,
            hub,
            nearby,
            ..
        }) = &mut $ep.live
        else {
            return Err(FI_EOPBADSTATE);
        };
        #[allow(unused_mut)]
        let mut $port = ep_port!(
            $s,
            $id,
            $ep,
            qp,
            hub.as_mut().map(|h| &mut h.outbox),
            nearby,
            $inject
        );
    };
}
pub(super) use live_port;

#[inline]
fn inject_fits(len: usize, limit: usize) -> Result<()> {
    if len <= limit {
        return Ok(());
    }
    exceeds("inject (tx_attr->inject_size)", len, limit)
}

#[inline]
fn too_long(what: &str, len: usize, limit: usize) -> Result<()> {
    if len <= limit {
        return Ok(());
    }
    exceeds(what, len, limit)
}

#[cold]
fn exceeds(what: &str, len: usize, limit: usize) -> Result<()> {
    crate::warn_log!(FI_LOG_EP_DATA, "{what} of {len} bytes: at most {limit}");
    Err(FI_EMSGSIZE)
}

pub(super) fn reports(bound: Option<super::Bound>, flags: u64) -> bool {
    bound.is_some_and(|b| !b.selective || flags & FI_COMPLETION != 0)
}

/// Refuses tags that collective operations use, at endpoints that have those (mem_tag_format).
#[inline]
fn tag_fits(caps: u64, tag: Option<u64>) -> Result<()> {
    match tag {
        Some(t) if t & COLLECTIVE_TAG != 0 && caps & FI_COLLECTIVE != 0 => taken(t),
        _ => Ok(()),
    }
}

#[cold]
fn taken(tag: u64) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "tag {tag:#x}: wanted one without the highest bit, which FI_COLLECTIVE takes (ep_attr->mem_tag_format)"
    );
    Err(FI_EINVAL)
}

/// Whether a request has to wait behind a fence, or is one that earlier operations hold up.
#[inline]
fn fenced(s: &mut State, id: u32, peer: fi_addr_t, flags: Option<u64>) -> Result<bool> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.fenced.is_empty() {
        return Ok(true);
    }
    if flags.unwrap_or(0) & FI_FENCE == 0 {
        return Ok(false);
    }
    let av = ep.av.and_then(|a| s.avs.get(a)).ok_or(FI_ENOAV)?;
    let peer = av.peer(peer, &mut s.peers)?;
    Ok(super::work::under_way(s, id, peer))
}

/// Starts an operation; one to a peer that is not in a vector shared by name is tried again when the
/// vector has news.
#[inline]
fn again(s: &mut State, id: u32, f: impl Fn(&mut State) -> Result<()>) -> Result<()> {
    match f(s) {
        Err(FI_EINVAL) if news(s, id) => f(s),
        r => r,
    }
}

#[cold]
fn news(s: &mut State, id: u32) -> bool {
    let av = s.eps.get(id).and_then(|e| e.av);
    let Some(av) = av.and_then(|a| s.avs.get_mut(a)) else {
        return false;
    };
    let before = av.len();
    av.read_only() && av.refresh(&mut s.peers).is_ok() && av.len() > before
}

fn park(s: &mut State, id: u32, work: Work) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    ep.fenced.push_back(work);
    Ok(())
}

/// Sends a message. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an unknown
/// destination, `FI_EMSGSIZE` when an injected message is longer than the limit.
#[inline]
pub fn send(s: &mut State, id: u32, r: &MsgReq) -> Result<()> {
    known(r.common.flags, TX_FLAGS, "fi_sendmsg")?;
    if fenced(s, id, r.to, r.common.flags)? {
        return park(s, id, Work::from(r));
    }
    again(s, id, |s| send_now(s, id, r))
}

/// As [`send`], past any fence.
pub(super) fn send_now(s: &mut State, id: u32, r: &MsgReq) -> Result<()> {
    let inject = r.data.injected();
    live_port!(s, id, inject => ep, proto, port);
    let (limit, max) = if r.tag.is_some() {
        (ep.opts.inject_tagged_size, ep.opts.max_tagged_size)
    } else {
        (ep.opts.inject_msg_size, ep.opts.max_msg_size)
    };
    if let Some(b) = inject {
        // A datagram's prefix is the application's to leave alone, and not sent.
        let unsent = raw::unsent(ep.kind);
        inject_fits(b.len().saturating_sub(unsent), limit)?;
    }
    too_long("message", r.data.len(), max)?;
    if ep.kind != Kind::Rdm && r.tag.is_some() {
        return Err(FI_EOPNOTSUPP);
    }
    tag_fits(ep.caps, r.tag)?;
    let flags = r.common.flags_or(ep.tx_flags);
    let peer = port.av.ok_or(FI_ENOAV)?.peer(r.to, port.peers)?;
    let report = r.common.reports(&r.data, ep.tx, flags);
    let confirmed = flags & FI_DELIVERY_COMPLETE != 0;
    if !confirmed {
        match near::send(&mut port, peer, r, report) {
            Sent::Done => return Ok(()),
            Sent::Busy => return Err(FI_EAGAIN),
            Sent::Elsewhere => {}
        }
    }
    let mut op = UserOp::new(id, r.data.lent());
    op.context = r.common.context;
    op.flags = FI_SEND | if r.tag.is_some() { FI_TAGGED } else { FI_MSG };
    op.len = r.data.len();
    op.report = report;
    op.peer = peer;
    op.key = r.tag.unwrap_or(0);
    op.done = r.common.done;
    let ctx = port.ops.insert(op);
    if !confirmed {
        match stream::send(&mut port, peer, ctx, r) {
            Sent::Done => return Ok(()),
            Sent::Busy => {
                port.ops.remove(ctx);
                return Err(FI_EAGAIN);
            }
            Sent::Elsewhere => {}
        }
    }
    let args = SendArgs {
        peer,
        ctx,
        len: r.data.len() as u64,
        tag: r.tag,
        cq_data: r.cq_data,
        receipt: confirmed,
        inject: inject.is_some(),
    };
    let posted = if ep.kind != Kind::Rdm {
        raw::send(&mut port, ep.kind, ctx, peer, r)
    } else {
        proto.send(&args, &mut port)
    };
    if let Err(e) = posted {
        port.ops.remove(ctx);
        return Err(e);
    }
    if r.common.rings() {
        port.qp.ring();
    }
    Ok(())
}

/// Who posts a receive: an endpoint, or a shared receive context.
#[derive(Clone, Copy, Debug)]
pub enum Poster {
    Ep(u32),
    Srx(u32),
}

impl Poster {
    /// The endpoint whose queue answers. A shared context has none of its own: its first endpoint's does.
    /// `FI_ENOCQ` while it has no endpoint.
    pub(super) fn answering(self, s: &State) -> Result<u32> {
        match self {
            Poster::Ep(id) => Ok(id),
            Poster::Srx(x) => {
                let user = s.eps.iter().find(|(_, e)| e.uses_srx(x));
                user.map(|(id, _)| id).ok_or(FI_ENOCQ)
            }
        }
    }
}

/// Posts a receive, or peeks, claims or discards. `FI_ENOCQ` for peeks at a shared receive
/// context without an endpoint, through whose completion queue to answer.
pub fn recv(s: &mut State, by: Poster, r: &RecvReq) -> Result<()> {
    known(r.common.flags, RX_FLAGS, "fi_recvmsg")?;
    let (rxq, src, report, default, min_multi) = match by {
        Poster::Ep(id) => {
            let ep = s.eps.get(id).ok_or(FI_EBADF)?;
            if !ep.enabled() {
                return Err(FI_EOPBADSTATE);
            }
            tag_fits(ep.caps, r.tag.map(|(tag, _)| tag))?;
            // Without FI_DIRECTED_RECV the source is not looked at (fi_msg(3)).
            let src = if r.src == FI_ADDR_UNSPEC || ep.caps & FI_DIRECTED_RECV == 0 {
                ANY
            } else {
                let av = ep.av.and_then(|a| s.avs.get(a)).ok_or(FI_ENOAV)?;
                av.peer(r.src, &mut s.peers)?
            };
            (ep.rxq, src, ep.rx, ep.rx_flags, ep.opts.min_multi_recv)
        }
        Poster::Srx(id) => {
            let x = s.srxs.get(id).ok_or(FI_EBADF)?;
            let src = if r.src == FI_ADDR_UNSPEC || x.caps & FI_DIRECTED_RECV == 0 {
                ANY
            } else {
                let av = s.avs.iter().next().ok_or(FI_ENOAV)?.1;
                av.peer(r.src, &mut s.peers)?
            };
            let all = super::Bound::everything();
            (x.rxq, src, Some(all), x.rx_flags, x.min_multi_recv)
        }
    };
    let flags = r.common.flags_or(default);
    let (tag, ignore) = r.tag.unwrap_or((0, 0));
    let mut args = RecvArgs {
        src,
        ctx: proto::NO_CTX,
        len: r.mem.len() as u64,
        tagged: r.tag.is_some(),
        tag,
        ignore,
        multi: (flags & FI_MULTI_RECV != 0).then_some(min_multi as u64),
    };
    let asked = r.common.flags.unwrap_or(0) & (FI_PEEK | FI_CLAIM | FI_DISCARD);
    if asked & FI_DISCARD != 0 && asked & (FI_PEEK | FI_CLAIM) == 0 {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_recvmsg: FI_DISCARD: wanted together with FI_PEEK or FI_CLAIM"
        );
        return Err(FI_EBADFLAGS);
    }
    if asked & FI_PEEK != 0 {
        let id = by.answering(s)?;
        return peek(s, id, rxq, &args, r, asked);
    }
    let claimed = match asked & FI_CLAIM {
        0 => None,
        _ => {
            let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
            match q.claimed(r.common.context) {
                Some(u) => Some(u),
                None => {
                    crate::warn_log!(
                        FI_LOG_EP_DATA,
                        "fi_recvmsg: FI_CLAIM: no message was claimed with this context"
                    );
                    return Err(FI_EINVAL);
                }
            }
        }
    };
    if asked & FI_DISCARD != 0 {
        if let Some(u) = claimed {
            let found = u.peeked();
            start(s, Place::nowhere(), &u);
            tell(s, by.answering(s)?, &args, r, Some(found));
        }
        return Ok(());
    }
    let owner = match by {
        Poster::Ep(id) => id,
        Poster::Srx(id) => super::SRX_OWNER | id,
    };
    let mut op = UserOp::new(owner, r.mem);
    op.context = r.common.context;
    op.flags = FI_RECV | if r.tag.is_some() { FI_TAGGED } else { FI_MSG };
    op.report = reports(report, flags);
    op.multi = args.multi.is_some();
    op.peer = src;
    op.key = tag;
    op.done = r.common.done;
    args.ctx = s.ops.insert(op);
    if let Poster::Ep(id) = by {
        if s.eps.get(id).is_some_and(|ep| ep.kind != Kind::Rdm) {
            return raw_recv(s, id, rxq, &args);
        }
    }
    let whole = Place::whole(args.ctx, args.len);
    if let Some(u) = claimed {
        start(s, whole, &u);
        return Ok(());
    }
    post(s, rxq, &args)
}

/// Posts a receive whose operation exists to an endpoint without protocol.
fn raw_recv(s: &mut State, id: u32, rxq: u32, args: &RecvArgs) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    let live = ep.live.as_mut().ok_or(FI_EOPBADSTATE)?;
    let short = args.len < raw::unsent(ep.kind) as u64;
    let done = match &mut live.qp {
        _ if args.tagged => Err(FI_EOPNOTSUPP),
        _ if short => Err(FI_EINVAL),
        Qp::Verbs(q) => raw::recv(q, &s.ops, args.ctx),
        Qp::Soft(_) => post(s, rxq, args),
    };
    done.inspect_err(|_| {
        s.ops.remove(args.ctx);
    })
}

/// Posts a receive whose operation exists to a queue, with the messages that are there for it.
pub(super) fn post(s: &mut State, rxq: u32, args: &RecvArgs) -> Result<()> {
    let q = s.rxqs.get_mut(rxq).ok_or(FI_EBADF)?;
    if let Some(u) = q.post(args) {
        start(s, Place::whole(args.ctx, args.len), &u);
    } else if args.multi.is_some() {
        let owner = s.ops.get(args.ctx).map_or(0, |op| op.owner);
        let next = |s: &mut State| {
            let (q, ops) = (s.rxqs.get_mut(rxq)?, &mut s.ops);
            q.fill(args, |r| ops.insert(super::short_op(owner, &r)))
        };
        while let Some((u, place)) = next(s) {
            start(s, place, &u);
        }
    }
    Ok(())
}

/// Gives an unexpected message, at whichever endpoint it came in, to a receive.
fn start(s: &mut State, place: Place, u: &proto::Unexpected) {
    let id = u.ep;
    let go = |s: &mut State| -> Result<()> {
        live_port!(s, id, None => ep, proto, port);
        let q = s.rxqs.get_mut(ep.rxq).ok_or(FI_EBADF)?;
        match &u.coming {
            Some(c) => stream::placed(c, place, q, &mut port),
            None => proto.start_unexpected(place, u, q, &mut port),
        }
        port.qp.ring();
        Ok(())
    };
    // An endpoint that is gone has taken its messages along.
    let _ = go(s);
    super::watch_budget(s, id);
}

/// FI_PEEK, with FI_CLAIM or FI_DISCARD (fi_msg(3), fi_tagged(3)): answers through the completion
/// queue, with `FI_ENOMSG` when there is no such message. It looks at what is here: reading the queue for
/// the answer is what takes more in.
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
    tell(s, id, args, r, found);
    Ok(())
}

/// The completion of a peek, or of a claimed message that was discarded.
fn tell(s: &mut State, id: u32, args: &RecvArgs, r: &RecvReq, found: Option<Peeked>) {
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
    match found {
        Some(p) => {
            entry.len = usize::try_from(p.len).unwrap_or(usize::MAX);
            entry.tag = p.tag;
            entry.data = p.cq_data.unwrap_or(0);
            if p.cq_data.is_some() {
                entry.flags |= FI_REMOTE_CQ_DATA;
            }
            if let Some(av) = av.filter(|_| source) {
                entry.src = av.reverse(p.from);
            }
            cq.push(entry);
        }
        None => cq.push_error(ErrEntry {
            entry,
            err: FI_ENOMSG,
            text: "no message was found that matches the peek".to_string(),
            ..ErrEntry::default()
        }),
    }
}

/// Reads or writes remote memory. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an
/// unknown peer, `FI_EMSGSIZE` when injected data is longer than the limit.
pub fn rma(s: &mut State, id: u32, r: &RmaReq) -> Result<()> {
    let call = if r.write { "fi_writemsg" } else { "fi_readmsg" };
    known(r.common.flags, TX_FLAGS, call)?;
    if fenced(s, id, r.peer, r.common.flags)? {
        return park(s, id, Work::from(r));
    }
    again(s, id, |s| rma_now(s, id, r))?;
    // A system call for each of many would be long for a peer that waits for us.
    let near = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
    if near.is_some_and(|l| core::mem::take(&mut l.nearby.alone)) {
        super::progress(s, id);
    }
    Ok(())
}

/// The operation of a read or write, whichever way it is done.
pub(super) fn rma_op(id: u32, peer: PeerId, r: &RmaReq, report: bool) -> UserOp {
    let mut op = UserOp::new(id, r.data.lent());
    op.context = r.common.context;
    op.flags = FI_RMA | if r.write { FI_WRITE } else { FI_READ };
    op.len = r.data.len();
    op.report = report;
    op.peer = peer;
    (op.raddr, op.key) = (r.addr, r.key);
    op.done = r.common.done;
    op
}

/// As [`rma`], past any fence.
pub(super) fn rma_now(s: &mut State, id: u32, r: &RmaReq) -> Result<()> {
    let inject = r.data.injected();
    live_port!(s, id, inject => ep, proto, port);
    if ep.kind == Kind::Dgram || ep.kind == Kind::Direct && ep.caps & FI_RMA == 0 {
        return Err(FI_EOPNOTSUPP);
    }
    if let Some(b) = inject {
        inject_fits(b.len(), ep.opts.inject_rma_size)?;
    }
    too_long("RMA operation", r.data.len(), ep.opts.max_rma_size)?;
    let flags = r.common.flags_or(ep.tx_flags);
    let peer = port.av.ok_or(FI_ENOAV)?.peer(r.peer, port.peers)?;
    let to = *port.peers.addr(peer).ok_or(FI_EINVAL)?;
    if !port.qp.room() {
        return Err(FI_EAGAIN);
    }
    let mem = r.data.lent();
    // A peer that has said so cannot be read or written by the adapter.
    let need = if r.write {
        extra::RDMA_WRITE
    } else {
        extra::RDMA_READ
    };
    let caps = port.dev.attr().caps;
    // Whether a write with data takes a receive has to be the same on both sides.
    let alike = |f: u64| {
        r.cq_data.is_none() || (f & extra::UNSOLICITED_WRITE_RECV != 0) == caps.unsolicited
    };
    let able = |f: u64| f & need != 0 && alike(f);
    let able = proto.features_of(peer).map_or(caps.sure, able);
    let own = if r.write { ep.rdma_write } else { ep.rdma_read };
    let native = own && able && port.qp.takes(&mem) || ep.kind == Kind::Direct;
    let report = r.common.reports(&r.data, ep.tx, flags);
    if native {
        match near::rma(&mut port, peer, r, report) {
            Sent::Done => return Ok(()),
            Sent::Busy => return Err(FI_EAGAIN),
            Sent::Elsewhere => {}
        }
    }
    let imm = r.cq_data.map(|d| d as u32);
    let max = ep.max_rdma;
    let many = native && mem.len() > max;
    let mut op = rma_op(id, peer, r, report);
    op.parts = 1;
    op.late_imm = imm.filter(|_| many);
    let ctx = port.ops.insert(op);
    let wr_id = WR_RMA | u64::from(ctx);
    let remote = Remote {
        to,
        addr: r.addr,
        key: r.key,
    };
    let len = r.data.len() as u64;
    let posted = match (native, r.write, inject) {
        (true, true, Some(b)) => port.qp.post_write(wr_id, Payload::Copy(b), &remote, imm),
        (true, _, _) if many => post_parts(port.qp, wr_id, &mem, &remote, r.write, max, port.ops),
        (true, true, None) => port.qp.post_write(wr_id, Payload::User(mem), &remote, imm),
        (true, false, _) => port.qp.post_read(wr_id, mem, &remote),
        (false, write, _) => {
            let far = RmaIov {
                addr: r.addr,
                len,
                key: r.key,
            };
            let far = Iovs::new(&[far]).ok_or(FI_EINVAL)?;
            if write {
                let a = proto::WriteArgs {
                    peer,
                    ctx,
                    len,
                    to: far,
                    cq_data: r.cq_data,
                    inject: inject.is_some(),
                };
                proto.write(&a, &mut port)
            } else {
                let a = proto::ReadArgs {
                    peer,
                    ctx,
                    len,
                    from: far,
                };
                proto.read(&a, &mut port)
            }
        }
    };
    if let Err(e) = posted {
        port.ops.remove(ctx);
        return Err(e);
    }
    if r.common.rings() {
        port.qp.ring();
    }
    Ok(())
}

/// Posts an operation that is longer than the adapter's largest request, in several. Only the first
/// can be refused: nothing has happened then.
fn post_parts(
    qp: &mut impl QueuePair,
    wr_id: u64,
    mem: &UserMem,
    remote: &Remote,
    write: bool,
    max: usize,
    ops: &mut Slab<UserOp>,
) -> Result<()> {
    let mut off = 0;
    let mut parts = 0;
    while off < mem.len() {
        let part = mem.part(off, max);
        let r = Remote {
            addr: remote.addr.wrapping_add(off as u64),
            ..*remote
        };
        let posted = if write {
            qp.post_write(wr_id, Payload::User(part), &r, None)
        } else {
            qp.post_read(wr_id, part, &r)
        };
        match posted {
            Ok(()) => parts += 1,
            Err(e) if parts == 0 => return Err(e),
            // The queue ran full in the middle: the parts posted so far end with the error below.
            Err(e) => {
                if let Some(op) = ops.get_mut(wr_id as u32) {
                    op.failed = Some(crate::proto::Failure {
                        errno: e,
                        status: 0,
                    });
                }
                break;
            }
        }
        off += part.len();
    }
    if let Some(op) = ops.get_mut(wr_id as u32) {
        op.parts = parts;
    }
    Ok(())
}

/// Largest atomic, bytes of operands: what fits into one packet beside the longest header.
pub fn atomic_max(mtu: usize) -> usize {
    (mtu - crate::wire::HEADER_MAX.min(mtu)) & !63
}

/// What bounds the atomics of a domain.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRoom {
    /// Bytes of a packet.
    mtu: usize,
    /// Bytes of the widest element. Peers across a real adapter may run the C library, which knows no wider ones than
    /// 8 bytes, and does not survive being sent one.
    widest: usize,
}

impl AtomicRoom {
    /// With this adapter.
    pub fn of(dev: &DeviceAttr) -> AtomicRoom {
        AtomicRoom {
            mtu: dev.mtu,
            widest: if dev.identity.is_some() {
                8
            } else {
                usize::MAX
            },
        }
    }
}

/// Elements that one atomic of this kind may have; `FI_EOPNOTSUPP` where the operation does not exist
/// for the datatype or kind (fi_atomicvalid(3)).
pub fn atomic_count(
    room: AtomicRoom,
    dt: fi_datatype,
    op: fi_op,
    kind: AtomicKind,
) -> Result<usize> {
    let size = arith::size_of(dt).filter(|n| *n <= room.widest);
    let size = size.ok_or(FI_EOPNOTSUPP)?;
    arith::element(dt, op).ok_or(FI_EOPNOTSUPP)?;
    let swap = (FI_CSWAP..=FI_MSWAP).contains(&op);
    let fits = match kind {
        AtomicKind::Compare => swap,
        AtomicKind::Fetch => !swap,
        AtomicKind::Write { .. } => !swap && op != FI_ATOMIC_READ,
    };
    if !fits {
        return Err(FI_EOPNOTSUPP);
    }
    let room = atomic_max(room.mtu) / if kind == AtomicKind::Compare { 2 } else { 1 };
    Ok(room / size)
}

/// Starts an atomic. Errors as [`rma`], and `FI_EOPNOTSUPP` for an operation that the datatype does
/// not have.
pub fn atomic(s: &mut State, id: u32, r: &AtomicReq) -> Result<()> {
    known(r.common.flags, TX_FLAGS, "fi_atomicmsg")?;
    if fenced(s, id, r.peer, r.common.flags)? {
        return park(s, id, Work::from(r));
    }
    again(s, id, |s| atomic_now(s, id, r))
}

/// As [`atomic`], past any fence.
pub(super) fn atomic_now(s: &mut State, id: u32, r: &AtomicReq) -> Result<()> {
    let room = AtomicRoom::of(s.dev.attr());
    live_port!(s, id, None => ep, proto, port);
    if ep.kind != Kind::Rdm {
        return Err(FI_EOPNOTSUPP);
    }
    let flags = r.common.flags_or(ep.tx_flags);
    let kind = match r.fetch {
        Fetch::No => AtomicKind::Write {
            receipt: r.data.injected().is_none() || flags & FI_DELIVERY_COMPLETE != 0,
        },
        Fetch::Former(_) => AtomicKind::Fetch,
        Fetch::Compare(..) => AtomicKind::Compare,
    };
    let count = atomic_count(room, r.datatype, r.op, kind)?;
    let size = arith::size_of(r.datatype).ok_or(FI_EOPNOTSUPP)?;
    let bytes = r.to.total().ok_or(FI_EINVAL)? as usize;
    if r.data.injected().is_some() {
        inject_fits(r.data.len(), ep.opts.inject_rma_size)?;
    }
    too_long("atomic", bytes, (count * size).min(ep.opts.max_atomic_size))?;
    let reads = r.op == FI_ATOMIC_READ;
    let (result, compare) = match r.fetch {
        Fetch::No => (UserMem::EMPTY, UserMem::EMPTY),
        Fetch::Former(m) => (m, UserMem::EMPTY),
        Fetch::Compare(m, c) => (m, c),
    };
    let short = (!reads && r.data.len() < bytes)
        || (kind == AtomicKind::Compare && compare.len() < bytes)
        || (!matches!(r.fetch, Fetch::No) && result.len() < bytes);
    if short || bytes == 0 || !bytes.is_multiple_of(size) {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_atomic: {bytes} bytes of remote memory: operands, compare values and results must have as many"
        );
        return Err(FI_EINVAL);
    }
    let peer = port.av.ok_or(FI_ENOAV)?.peer(r.peer, port.peers)?;
    // Atomics are short: their operands are copied, so that one packet is all there is to keep.
    let mut data = core::mem::take(&mut ep.operands);
    data.clear();
    if !reads {
        data.resize(bytes, 0);
        match r.data {
            Data::User(m) => {
                m.load(0, &mut data);
            }
            Data::Inject(b) => data.copy_from_slice(b.get(..bytes).unwrap_or(&[])),
        }
    }
    if kind == AtomicKind::Compare {
        data.resize(2 * bytes, 0);
        compare.load(0, data.get_mut(bytes..).unwrap_or(&mut []));
    }
    let first = r.to.as_slice().first().copied().unwrap_or_default();
    let result = result.part(0, bytes);
    let a = access::AtomicAccess {
        datatype: r.datatype,
        op: r.op,
        kind,
        at: first,
        data: &data,
        result: &result,
    };
    let note = Note {
        context: r.common.context,
        len: bytes,
        flags: FI_ATOMIC
            | if matches!(r.fetch, Fetch::No) {
                FI_WRITE
            } else {
                FI_READ
            },
        op: None,
        report: r.common.reports(&r.data, ep.tx, flags),
    };
    if r.common.done.is_none() && r.to.as_slice().len() == 1 {
        let sent = access::atomic(&mut port, peer, &a, note);
        if sent != Sent::Elsewhere {
            ep.operands = data;
            return match sent {
                Sent::Done => Ok(()),
                _ => Err(FI_EAGAIN),
            };
        }
    }
    let mut op = UserOp::new(id, result);
    op.context = note.context;
    op.flags = note.flags;
    op.len = bytes;
    op.report = note.report;
    op.peer = peer;
    (op.raddr, op.key) = (first.addr, first.key);
    op.done = r.common.done;
    debug_assert_eq!(op.kind, OpKind::User);
    let ctx = port.ops.insert(op);
    let a = AtomicArgs {
        peer,
        ctx,
        to: r.to,
        datatype: r.datatype,
        op: r.op,
        kind,
        data: &data,
    };
    let posted = proto.atomic(&a, &mut port);
    if posted.is_err() {
        port.ops.remove(ctx);
    } else if r.common.rings() {
        port.qp.ring();
    }
    ep.operands = data;
    posted
}
