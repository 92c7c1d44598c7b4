//! RDM endpoints (fi_endpoint(3)): messages through the protocol, RMA through the adapter.
//!
//! An [`Ep`] lives in its domain's state. `ops` (submodule) starts operations, `port` is what the
//! protocol sees of the world, `progress` here takes in what the adapter found. A posted operation
//! is a [`UserOp`] until its completion; its number travels as `ctx` through the protocol and in
//! the work request id through the adapter.

mod access;
pub mod coll;
mod near;
mod ops;
mod options;
mod peers;
mod port;
pub mod quick;
mod raw;
mod srx;
mod strangers;
mod stream;
pub mod work;

pub use crate::proto::AtomicKind;
pub use crate::wire::{Iovs, RmaIov, MAX_IOV};
pub use ops::{
    atomic, atomic_count, atomic_max, recv, rma, send, AtomicReq, AtomicRoom, Common, Data, Fetch,
    MsgReq, Poster, RecvReq, RmaReq,
};
pub use options::{kind as option_kind, Value as OptionValue};
pub use peers::Peers;
pub use srx::Srx;

use super::addr;
use super::cq::{Entry, ErrEntry};
use super::domain::State;
use crate::core::{Info, Result};
use crate::device::any::{Dev, Qp};
use crate::device::{Device, Event, Events, QueuePair, Status};
use crate::hmem::UserMem;
use crate::proto::{self, Cancelled, Failure, PeerId, Policy, RecvQueue, ShortRecv};
use crate::shm::Hub;
use crate::types::*;
use crate::wire::{extra, pkt};
use port::{ep_port, EpPort};
use std::collections::VecDeque;
use work::Work;

/// Kinds of operations a counter can count, in the order of [`Ep::cntrs`].
pub const CNTR_EVENTS: [u64; 6] = [
    FI_SEND,
    FI_RECV,
    FI_WRITE,
    FI_READ,
    FI_REMOTE_WRITE,
    FI_REMOTE_READ,
];

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The wire protocol.
    Rdm,
    /// Nothing: every call is a work request (fabric `efa-direct`).
    Direct,
    /// Nothing, and unreliably (FI_EP_DGRAM).
    Dgram,
}

/// Whose an operation's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The application's, lent with a call.
    User,
    /// A registered region's, named by a peer.
    Target { write: bool },
}

/// Marks operations of a shared receive context in [`UserOp::owner`].
pub const SRX_OWNER: u32 = 1 << 31;

/// A posted operation.
#[derive(Debug)]
pub struct UserOp {
    /// The endpoint, or the shared receive context with [`SRX_OWNER`].
    pub owner: u32,
    pub kind: OpKind,
    /// A receive for several messages (FI_MULTI_RECV).
    pub multi: bool,
    /// A counter that hears of its end, beside the endpoint's.
    pub done: Option<u32>,
    /// A collective operation it is a step of: that hears of its end, and nobody else.
    pub collective: Option<u32>,
    /// Keys made to let peers read `mem`, or keys the peer named to get it.
    pub keys: Vec<u64>,
    pub context: usize,
    /// Flags of its completion entry.
    pub flags: u64,
    pub mem: UserMem,
    /// Bytes to move: those of `mem`, or of data that was copied when the operation was posted.
    pub len: usize,
    /// Whether success is worth a completion entry.
    pub report: bool,
    pub peer: u32,
    /// Remote address and key of RMA, tag of tagged messages: for error texts and entries.
    pub raddr: u64,
    pub key: u64,
    /// Requests to the adapter that are not done.
    pub parts: u32,
    pub failed: Option<Failure>,
    /// Data to deliver when all parts have arrived, where one request could not carry both.
    pub late_imm: Option<u32>,
}

impl UserOp {
    /// An operation on this memory, otherwise blank.
    pub fn new(owner: u32, mem: UserMem) -> UserOp {
        UserOp {
            owner,
            kind: OpKind::User,
            multi: false,
            done: None,
            collective: None,
            keys: Vec::new(),
            context: 0,
            flags: 0,
            len: mem.len(),
            mem,
            report: true,
            peer: 0,
            raddr: 0,
            key: 0,
            parts: 0,
            failed: None,
            late_imm: None,
        }
    }

    /// Withdraws the keys that were made to let peers read its memory.
    fn withdraw(&self, dev: &Dev) {
        if self.kind == OpKind::User {
            for key in &self.keys {
                let _ = dev.dereg_mr(*key);
            }
        }
    }
}

/// The operation of a plain receive.
fn short_op(owner: u32, r: &ShortRecv) -> UserOp {
    let mut op = UserOp::new(owner, r.what.into.into());
    op.context = r.what.context;
    op.flags = FI_RECV | if r.what.tagged { FI_TAGGED } else { FI_MSG };
    op.report = r.what.report;
    op.peer = r.src;
    op.key = r.tag;
    op
}

/// Drops the operations of an endpoint or shared receive context that is closed.
fn drop_ops(s: &mut State, owner: u32) {
    for ctx in s.ops.select(|o| o.owner == owner) {
        if let Some(op) = s.ops.remove(ctx) {
            op.withdraw(&s.dev);
        }
    }
}

/// A queue an endpoint reports to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    cq: u32,
    /// Only operations that ask for it report success (FI_SELECTIVE_COMPLETION).
    selective: bool,
}

impl Bound {
    /// Stands for the queues of all endpoints of a shared receive context.
    fn everything() -> Bound {
        Bound {
            cq: u32::MAX,
            selective: false,
        }
    }
}

/// What exists from fi_enable(3) on.
struct Live {
    qp: Qp,
    proto: proto::Endpoint,
    events: Events,
    /// RMA parts that found no room.
    waiting: Vec<u32>,
    /// Peers on the same host.
    hub: Option<Hub>,
    nearby: near::Nearby,
    /// Scratch for a packet of theirs.
    packet: Vec<u8>,
    /// Injected writes since something was last taken in.
    unpolled: u32,
    /// Polls of the adapter in a row that found nothing, and polls that left it out since.
    lull: u32,
    left_out: u32,
}

/// The generation that the software adapter passes for.
const SOFT_VERSION: u32 = 0xefa2;

/// An adapter that was quiet for so many polls is asked only with every so-manieth one while packets come
/// through shared memory: asking costs a system call, or a look at memory of the device.
const LULL: u32 = 64;
const LEAVE_OUT: u32 = 1024;

impl Live {
    /// Whether the adapter shall be polled now.
    #[inline]
    fn adapter_due(&mut self) -> bool {
        let due = !self.adapter_rests();
        if due {
            self.left_out = 0;
        }
        due
    }

    /// Whether the adapter may be left out of this poll, which then counts.
    #[inline]
    fn adapter_rests(&mut self) -> bool {
        let near = self.hub.as_ref().is_some_and(|h| h.inbox.lively());
        let rests = near && self.lull >= LULL && self.left_out < LEAVE_OUT && self.qp.idle();
        self.left_out += u32::from(rests);
        rests
    }

    /// Whether there is nothing to do beside the adapter.
    #[inline]
    fn still(&mut self) -> bool {
        let quiet = |h: &mut Hub| !h.outbox.owes() && h.inbox.quiet();
        self.idle() && self.hub.as_mut().is_none_or(quiet)
    }

    /// As [`Live::still`], without a look into the rings.
    #[inline]
    fn idle(&self) -> bool {
        let near = &self.nearby;
        near.quiet()
            && near.streams.idle()
            && near.accesses.idle()
            && self.proto.idle()
            && self.waiting.is_empty()
            && self.hub.as_ref().is_none_or(|h| !h.lost())
    }

    /// Peers on this host that are gone, whose last packets were taken in by the last poll.
    #[inline]
    fn lost(&mut self, peers: &mut Peers) -> Vec<(PeerId, Failure)> {
        match &mut self.hub {
            Some(h) if h.lost() => {
                let why = failure(Status::RemoteUnresponsive);
                h.gone().iter().map(|a| (peers.of(a), why)).collect()
            }
            _ => Vec::new(),
        }
    }

    fn wait_fd(&self) -> i32 {
        self.hub.as_ref().map_or(self.qp.wait_fd(), Hub::fd)
    }
}

/// One endpoint.
pub struct Ep {
    pub caps: u64,
    tx_flags: u64,
    rx_flags: u64,
    lane: quick::Lane,
    qpn: u16,
    av: Option<u32>,
    tx: Option<Bound>,
    rx: Option<Bound>,
    cntrs: [Option<u32>; 6],
    opts: options::Options,
    live: Option<Live>,
    /// Its receives and unexpected messages: its own queue, or that of a shared receive context.
    rxq: u32,
    srx: Option<u32>,
    /// Operations that wait behind a fence, or found no room when their time came.
    fenced: VecDeque<Work>,
    /// Scratch for operands of atomics.
    operands: Vec<u8>,
    /// Whether RDMA reads and writes are used: the adapter has them, and they are wanted
    /// (FI_OPT_EFA_USE_DEVICE_RDMA, FI_EFA_USE_DEVICE_RDMA).
    rdma_read: bool,
    rdma_write: bool,
    /// Every peer's adapter has what ours has.
    sure: bool,
    /// Aliases that are open (fi_ep_alias(3)).
    pub aliases: u32,
    /// Messages are being held off: too many are unexpected.
    holding: bool,
    /// The queue pair of a context of a scalable endpoint, which only sends or only receives if
    /// the application wants it so.
    context: Option<Qp>,
    is_context: bool,
    /// Domain-wide settings the data path needs.
    max_rdma: usize,
    kind: Kind,
    /// Writes with immediate data take a receive, and the application knows (FI_RX_CQ_DATA).
    takes_imm: bool,
    /// Once closed: memory that its queue pair may still read.
    leftover: Option<coll::Leftover>,
}

const WR_TX: u64 = 1 << 32;
const WR_CONTROL: u64 = 2 << 32;
const WR_RMA: u64 = 3 << 32;
const WR_READ: u64 = 5 << 32;

fn failure(status: Status) -> Failure {
    Failure {
        errno: status.errno(),
        status: status as u8,
    }
}

impl Ep {
    /// An endpoint as `info` describes it, not yet enabled. `FI_EINVAL` for an info of another
    /// endpoint type.
    pub fn new(info: &Info, direct: bool, dev_max_rdma: usize, mtu: usize) -> Result<Ep> {
        let type_ = info.ep.as_ref().map_or(FI_EP_RDM, |e| e.type_);
        if type_ != FI_EP_RDM && type_ != FI_EP_DGRAM {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: ep_attr->type: wanted {}, had FI_EP_RDM, FI_EP_DGRAM",
                crate::core::tostr::ep_type(type_)
            );
            return Err(FI_EINVAL);
        }
        let kind = match (type_, direct) {
            (FI_EP_DGRAM, _) => Kind::Dgram,
            (_, true) => Kind::Direct,
            _ => Kind::Rdm,
        };
        let inject_size = info.tx.as_ref().map_or(0, |t| t.inject_size);
        let qpn = info
            .src_addr
            .as_deref()
            .and_then(addr::from_raw)
            .map_or(0, |a| a.qpn);
        Ok(Ep {
            caps: info.caps,
            tx_flags: info.tx.as_ref().map_or(0, |t| t.op_flags),
            rx_flags: info.rx.as_ref().map_or(0, |r| r.op_flags),
            lane: quick::Lane::default(),
            qpn,
            av: None,
            tx: None,
            rx: None,
            cntrs: [None; 6],
            opts: options::Options::new(inject_size, atomic_max(mtu)).of_kind(
                kind,
                mtu,
                dev_max_rdma,
            ),
            live: None,
            rxq: u32::MAX,
            srx: None,
            fenced: VecDeque::new(),
            operands: Vec::new(),
            rdma_read: true,
            rdma_write: true,
            sure: false,
            aliases: 0,
            holding: false,
            context: None,
            is_context: false,
            max_rdma: dev_max_rdma,
            kind,
            takes_imm: info.mode & FI_RX_CQ_DATA != 0,
            leftover: None,
        })
    }

    /// Whether sends are confirmed by their receivers where the call does not say otherwise.
    #[inline]
    fn confirms(&self) -> bool {
        self.tx_flags & FI_DELIVERY_COMPLETE != 0
    }

    /// Whether fi_enable(3) has succeeded.
    pub fn enabled(&self) -> bool {
        self.live.is_some()
    }

    /// Descriptor that becomes readable after [`Ep::arm`] when there is something to do, once enabled.
    pub fn wait_fd(&self) -> Option<i32> {
        self.live.as_ref().map(Live::wait_fd)
    }

    /// Asks for a signal on the descriptor; `false` when there is something to do already.
    pub fn arm(&mut self) -> bool {
        let Some(l) = &mut self.live else { return true };
        let quiet = l.nearby.quiet() && !l.hub.as_ref().is_some_and(Hub::lost);
        let near = |h: &mut Hub| h.outbox.settle() & h.inbox.arm() & h.outbox.arm();
        quiet & l.qp.arm() & l.hub.as_mut().is_none_or(near)
    }

    /// Whether accesses to a peer's memory through its ring are under way.
    fn owes_near(&self, peer: PeerId) -> bool {
        let hub = self.live.as_ref().and_then(|l| l.hub.as_ref());
        hub.is_some_and(|h| h.outbox.owes_to(peer))
    }

    /// Its queue pair, once enabled.
    pub fn qp_mut(&mut self) -> Option<&mut Qp> {
        self.live.as_mut().map(|l| &mut l.qp)
    }

    /// Its address vector.
    pub fn av(&self) -> Option<u32> {
        self.av
    }

    /// Whether it reports to this queue.
    pub fn uses_cq(&self, id: u32) -> bool {
        [self.tx, self.rx].iter().flatten().any(|b| b.cq == id)
    }

    /// Whether it reports to this counter.
    pub fn uses_cntr(&self, id: u32) -> bool {
        self.cntrs.contains(&Some(id))
    }

    /// Binds an address vector. `FI_EOPBADSTATE` after enabling, `FI_EINVAL` for a second one.
    pub fn bind_av(&mut self, av: u32) -> Result<()> {
        self.must_be_new("an address vector")?;
        if self.av.is_some() {
            return Err(FI_EINVAL);
        }
        self.av = Some(av);
        Ok(())
    }

    /// Binds a completion queue: `flags` are FI_TRANSMIT, FI_RECV and FI_SELECTIVE_COMPLETION.
    /// `FI_EBADFLAGS` for others or neither, `FI_EINVAL` for a direction that is bound already.
    pub fn bind_cq(&mut self, cq: u32, flags: u64) -> Result<()> {
        self.must_be_new("a completion queue")?;
        if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
            || flags & (FI_TRANSMIT | FI_RECV) == 0
        {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: flags {flags:#x}: wanted FI_TRANSMIT or FI_RECV, and FI_SELECTIVE_COMPLETION"
            );
            return Err(FI_EBADFLAGS);
        }
        let b = Bound {
            cq,
            selective: flags & FI_SELECTIVE_COMPLETION != 0,
        };
        for (bit, side) in [(FI_TRANSMIT, &mut self.tx), (FI_RECV, &mut self.rx)] {
            if flags & bit != 0 {
                if side.is_some() {
                    return Err(FI_EINVAL);
                }
                *side = Some(b);
            }
        }
        Ok(())
    }

    /// Binds a counter to kinds of events. `FI_EBADFLAGS` for unknown ones.
    pub fn bind_cntr(&mut self, cntr: u32, flags: u64) -> Result<()> {
        self.must_be_new("a counter")?;
        let known: u64 = CNTR_EVENTS.iter().sum();
        if flags & !known != 0 || flags == 0 {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: counter flags {flags:#x}: wanted bits of {known:#x}"
            );
            return Err(FI_EBADFLAGS);
        }
        for (slot, bit) in self.cntrs.iter_mut().zip(CNTR_EVENTS) {
            if flags & bit != 0 {
                *slot = Some(cntr);
            }
        }
        Ok(())
    }

    /// Default flags of one direction (FI_GETOPSFLAG).
    pub fn op_flags(&self, recv: bool) -> u64 {
        if recv {
            self.rx_flags
        } else {
            self.tx_flags
        }
    }

    /// FI_SETOPSFLAG: default flags of the direction that FI_TRANSMIT or FI_RECV names.
    /// `FI_EINVAL` for both or neither.
    pub fn set_op_flags(&mut self, flags: u64) -> Result<()> {
        let plain = flags & !(FI_TRANSMIT | FI_RECV);
        match flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => self.tx_flags = plain,
            FI_RECV => self.rx_flags = plain,
            _ => return Err(FI_EINVAL),
        }
        self.choose_lane();
        Ok(())
    }

    fn must_be_new(&self, what: &str) -> Result<()> {
        if self.enabled() {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: {what} must be bound before fi_enable"
            );
            return Err(FI_EOPBADSTATE);
        }
        Ok(())
    }

    /// Binds a shared receive context. `FI_EINVAL` for a second one, or with FI_COLLECTIVE: members of
    /// a group are told apart by their endpoints.
    pub fn bind_srx(&mut self, srx: u32) -> Result<()> {
        self.must_be_new("a shared receive context")?;
        if self.caps & FI_COLLECTIVE != 0 {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: a shared receive context: wanted info->caps without FI_COLLECTIVE"
            );
            return Err(FI_EINVAL);
        }
        if self.srx.is_some() {
            return Err(FI_EINVAL);
        }
        self.srx = Some(srx);
        Ok(())
    }

    /// Whether it takes its messages from this shared receive context.
    pub fn uses_srx(&self, id: u32) -> bool {
        self.srx == Some(id)
    }
}

/// Enables an endpoint: `FI_ENOAV` and `FI_ENOCQ` name what is missing. Returns the descriptor that
/// becomes readable when it has something to do.
pub fn enable(s: &mut State, id: u32) -> Result<i32> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let av = ep.av.ok_or_else(|| {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_enable: no address vector is bound");
        FI_ENOAV
    })?;
    let sends = ep.tx.is_some() || [0, 2, 3].iter().any(|i| ep.cntrs[*i].is_some());
    let receives = ep.rx.is_some() || ep.cntrs[1].is_some();
    if !(ep.is_context || sends && receives) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_enable: no completion queue or counter is bound for {}",
            if sends { "FI_RECV" } else { "FI_TRANSMIT" }
        );
        return Err(FI_ENOCQ);
    }
    let mut qp = match ep.context.take() {
        Some(qp) => qp,
        None if ep.kind == Kind::Rdm => s.dev.open_qp(ep.qpn)?,
        None => s
            .dev
            .open_raw(ep.qpn, ep.kind == Kind::Dgram, !ep.takes_imm)?,
    };
    // Of the adapters without protocol the software one alone knows shared memory.
    let knows = match ep.kind {
        Kind::Rdm => true,
        Kind::Direct => matches!(qp, Qp::Soft(_)),
        Kind::Dgram => false,
    };
    let near = ep.opts.shared_memory && knows;
    let hub = near
        .then(|| Hub::open(qp.addr(), qp.wait_fd(), s.table.clone()))
        .flatten();
    let fd = hub.as_ref().map_or(qp.wait_fd(), Hub::fd);
    let caps = s.dev.attr().caps;
    let wanted = ep.opts.device_rdma && crate::core::params::efa_bool("use_device_rdma", true);
    (ep.rdma_read, ep.rdma_write) = (wanted && caps.rdma_read, wanted && caps.rdma_write);
    ep.sure = caps.sure;
    let features = [
        (caps.unsolicited, extra::UNSOLICITED_WRITE_RECV),
        (ep.rdma_read, extra::RDMA_READ),
        (ep.rdma_write, extra::RDMA_WRITE),
    ];
    let features = features.iter().filter(|(on, _)| *on).map(|(_, f)| f);
    let features = features.fold(0, |all, f| all | f);
    let proto = proto::Endpoint::new(proto::Config {
        id,
        mtu: s.dev.attr().mtu,
        raw_addr: addr::to_raw(&qp.addr()),
        device_version: s
            .dev
            .attr()
            .identity
            .as_ref()
            .map_or(SOFT_VERSION, |i| i.device),
        connid: qp.addr().qkey,
        features,
        host_id: None,
        policy: Policy::from_params(),
    });
    let counted = ep.cntrs[4].is_some() || ep.cntrs[5].is_some();
    if counted || !s.mr_cntrs.is_empty() {
        qp.report_remote();
        if let Some(t) = &s.table {
            t.want_events();
        }
    }
    ep.rxq = match ep.srx {
        Some(x) => s.srxs.get(x).ok_or(FI_EBADF)?.rxq,
        None => s.rxqs.insert(RecvQueue::default()),
    };
    if ep.caps & FI_COLLECTIVE != 0 {
        let q = s.rxqs.get_mut(ep.rxq).ok_or(FI_EBADF)?;
        q.with_collectives();
    }
    ep.live = Some(Live {
        qp,
        proto,
        events: Events::default(),
        waiting: Vec::new(),
        hub,
        nearby: near::Nearby::default(),
        packet: Vec::new(),
        unpolled: 0,
        lull: 0,
        left_out: 0,
    });
    ep.choose_lane();
    if let Some(a) = s.avs.get_mut(av) {
        a.users += 1;
    }
    for b in [ep.tx, ep.rx].into_iter().flatten() {
        if let Some(c) = s.cqs.get_mut(b.cq) {
            c.attach(id, fd);
        }
    }
    for c in ep.cntrs.into_iter().flatten() {
        if let Some(c) = s.cntrs.get_mut(c) {
            c.attach(id, fd);
        }
    }
    Ok(fd)
}

/// The contexts of a scalable endpoint: as many endpoints as `info` asks for transmit or receive
/// contexts, at consecutive addresses.
pub fn open_contexts(s: &mut State, info: &Info) -> Result<Vec<u32>> {
    let count = info
        .ep
        .as_ref()
        .map_or(1, |e| e.tx_ctx_cnt.max(e.rx_ctx_cnt).max(1));
    if count > MAX_CONTEXTS {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_scalable_ep: tx_ctx_cnt, rx_ctx_cnt: wanted {count}, at most {MAX_CONTEXTS}"
        );
        return Err(FI_EINVAL);
    }
    let (max_rdma, mtu) = (s.dev.attr().max_rdma, s.dev.attr().mtu);
    let first = Ep::new(info, false, max_rdma, mtu)?;
    let qps = s.dev.open_group(first.qpn, count)?;
    let mut list = Vec::with_capacity(count);
    for qp in qps {
        let mut ep = Ep::new(info, false, max_rdma, mtu)?;
        ep.qpn = qp.addr().qpn;
        ep.context = Some(qp);
        ep.is_context = true;
        list.push(s.eps.insert(ep));
    }
    Ok(list)
}

/// A transmit (`side` 0) or receive context is closed: its queue is free, whatever the endpoint still does.
pub fn close_context(s: &mut State, id: u32, side: usize) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let bound = if side == 0 {
        ep.tx.take()
    } else {
        ep.rx.take()
    };
    ep.choose_lane();
    let fd = ep.wait_fd();
    let (Some(b), Some(fd)) = (bound, fd) else {
        return;
    };
    if !ep.uses_cq(b.cq) {
        if let Some(c) = s.cqs.get_mut(b.cq) {
            c.detach(id, fd);
        }
    }
}

/// Most contexts of a scalable endpoint.
pub const MAX_CONTEXTS: usize = 16;

/// Drops what a closing endpoint has posted, and messages that came to it.
fn forget_ops(s: &mut State, id: u32, ep: &Ep) {
    drop_ops(s, id);
    match ep.srx {
        None => {
            s.rxqs.remove(ep.rxq);
        }
        Some(_) => {
            if let Some(q) = s.rxqs.get_mut(ep.rxq) {
                q.forget(id);
            }
        }
    }
    if let Some(l) = &ep.live {
        crate::info_log!(FI_LOG_EP_CTRL, "endpoint closed: {}", l.proto.counts());
    }
}

/// Closes an endpoint. `FI_EBUSY` while it has aliases. Posted operations vanish without completion, as fi_close(3) allows; what was
/// handed to the adapter still goes out. Returns the descriptor of [`enable`].
pub fn close(s: &mut State, id: u32) -> Result<(Ep, Option<i32>)> {
    if s.eps.get(id).ok_or(FI_EBADF)?.aliases > 0 {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_close: this endpoint still has aliases");
        return Err(FI_EBUSY);
    }
    let mut ep = s.eps.remove(id).ok_or(FI_EBADF)?;
    let fd = ep.wait_fd();
    if let Some(fd) = fd {
        for b in [ep.tx, ep.rx].into_iter().flatten() {
            if let Some(c) = s.cqs.get_mut(b.cq) {
                c.detach(id, fd);
            }
        }
        for c in ep.cntrs.into_iter().flatten() {
            if let Some(c) = s.cntrs.get_mut(c) {
                c.detach(id, fd);
            }
        }
        if let Some(a) = ep.av.and_then(|a| s.avs.get_mut(a)) {
            a.users -= 1;
        }
        forget_ops(s, id, &ep);
    }
    s.triggers.retain(|t| t.ep != id);
    ep.leftover = Some(coll::drop_ep(s, id));
    Ok((ep, fd))
}

/// Address of an endpoint; before it is enabled without queue pair number.
pub fn name(s: &State, id: u32) -> Result<[u8; addr::LEN]> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    Ok(match &ep.live {
        Some(l) => addr::to_raw(&l.qp.addr()),
        None if ep.context.is_some() => {
            let qp = ep.context.as_ref().ok_or(FI_EBADF)?;
            addr::to_raw(&qp.addr())
        }
        None => {
            let a = crate::device::QpAddr {
                gid: s.dev.attr().gid,
                qpn: ep.qpn,
                qkey: 0,
            };
            addr::to_raw(&a)
        }
    })
}

/// fi_cancel(3): the first posted receive of this context ends with FI_ECANCELED. `FI_ENOENT` when
/// there is none.
pub fn cancel(s: &mut State, by: Poster, context: usize) -> Result<()> {
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
        ops.get(ctx).is_some_and(|o| o.context == context)
    });
    let op = match hit {
        Some(Cancelled::Now(ctx)) => s.ops.remove(ctx).ok_or(FI_ENOENT)?,
        Some(Cancelled::Short(r)) => short_op(0, &r),
        Some(Cancelled::Later) => return Ok(()),
        None => return Err(FI_ENOENT),
    };
    let hears = by.answering(s).ok().and_then(|id| s.eps.get(id));
    let (cq, cntr) = hears.map_or((None, None), |e| (e.rx, e.cntrs[1]));
    if let Some(c) = cntr.and_then(|c| s.cntrs.get_mut(c)) {
        c.add_error(1);
    }
    if let Some(cq) = cq.and_then(|b| s.cqs.get_mut(b.cq)) {
        let entry = Entry {
            context: op.context,
            flags: op.flags | if op.multi { FI_MULTI_RECV } else { 0 },
            tag: op.key,
            src: FI_ADDR_NOTAVAIL,
            ..Entry::default()
        };
        cq.push_error(ErrEntry {
            entry,
            err: FI_ECANCELED,
            text: "the receive was cancelled by fi_cancel".to_string(),
            ..ErrEntry::default()
        });
    }
    Ok(())
}

/// Takes in what the adapter found for an endpoint, and sends what had to wait.
pub fn progress(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(live) = &mut ep.live else { return };
    let due = live.adapter_due();
    let waits = ep.holding || !ep.fenced.is_empty() || !s.triggers.is_empty() || !s.colls.idle();
    if !due && !waits && live.still() {
        return;
    }
    let Some(rq) = s.rxqs.get_mut(ep.rxq) else {
        return;
    };
    let mut down = live.lost(&mut s.peers);
    let Live {
        qp,
        proto,
        events,
        waiting,
        hub,
        nearby,
        packet,
        lull,
        ..
    } = live;
    if due {
        qp.poll(events);
        *lull = if events.list.is_empty() { *lull + 1 } else { 0 };
    }
    let Events { list, arena } = events;
    let (inbox, near) = match hub {
        Some(Hub { inbox, outbox }) => {
            access::collect(outbox, &mut nearby.accesses);
            (Some(inbox), Some(outbox))
        }
        None => (None, None),
    };
    let mut port = ep_port!(s, id, ep, qp, near, nearby, None);
    access::report(&mut port, waiting);
    if let Some(inbox) = inbox {
        inbox.poll(|from, peer, record| {
            let peer = *peer.get_or_insert_with(|| port.peers.of(from));
            match record.kind {
                near::PACKET => {
                    record.copy(0, packet);
                    proto.packet(peer, packet, rq, &mut port);
                }
                _ => near::arrived(peer, record, rq, &mut port),
            }
        });
    }
    for (peer, why) in &down {
        stream::peer_down(*peer, *why, rq, &mut port);
        proto.peer_down(*peer, *why, rq, &mut port);
    }
    if !port.nearby.streams.idle() {
        stream::pump(&mut port);
    }
    if !port.nearby.accesses.idle() {
        access::pump(&mut port, waiting);
    }
    while let Some(id) = port.nearby.packets.pop_front() {
        proto.packet_done(id, None, &mut port);
    }
    while let Some(id) = port.nearby.reads.pop_front() {
        proto.read_done(id, None, rq, &mut port);
    }
    for e in list.drain(..) {
        match e {
            Event::Recv { from, data } if ep.kind != Kind::Rdm => {
                let peer = port.peers.of(&from);
                let bytes = Events::bytes(arena, &data);
                raw::arrived(&mut port, ep.kind, rq, peer, bytes);
            }
            Event::Taken { wr_id, taken } => raw::taken(&mut port, wr_id as u32, &taken),
            Event::Recv { from, data } => {
                let bytes = Events::bytes(arena, &data);
                let peer = match port.qp {
                    // Its number may be somebody else's by now.
                    Qp::Verbs(_) if crate::wire::introduces(bytes) => {
                        match strangers::meet(&mut port, from, bytes) {
                            Some(p) => p,
                            None => continue,
                        }
                    }
                    _ => port.peers.of(&from),
                };
                proto.packet(peer, bytes, rq, &mut port);
            }
            Event::Stranger { from, data } => {
                let bytes = Events::bytes(arena, &data);
                if let Some(peer) = strangers::meet(&mut port, from, bytes) {
                    proto.packet(peer, bytes, rq, &mut port);
                }
            }
            Event::WriteImm { from, imm, len } => {
                let peer = raw::sender(&mut port, from);
                port.report_write(peer, imm.into(), len as usize);
            }
            Event::Remote {
                key, len, write, ..
            } => port.remote_access(key, len as usize, write),
            Event::Done { wr_id, status } => {
                let fail = (status != Status::Ok).then(|| failure(status));
                match wr_id & !0xffff_ffff {
                    WR_TX => proto.packet_done(wr_id as u32, fail, &mut port),
                    raw::WR => raw::sent(&mut port, wr_id as u32, fail),
                    WR_RMA => port.rma_done(wr_id as u32, fail, waiting),
                    WR_READ => proto.read_done(wr_id as u32, fail, rq, &mut port),
                    _ => {}
                }
            }
            Event::Short {
                short,
                status,
                taken,
            } => raw::short(&mut port, &short, status, taken),
            Event::Silent { peer } => {
                let p = port.peers.of(&peer);
                proto.greet_again(p, &mut port);
            }
            Event::PeerDown { peer, status } => {
                let p = port.peers.of(&peer);
                proto.peer_down(p, failure(status), rq, &mut port);
                down.push((p, failure(status)));
            }
        }
    }
    waiting.retain(|ctx| !port.post_late_imm(*ctx));
    proto.progress(&mut port);
    port.qp.ring();
    let (bytes, holding) = (rq.bytes(), ep.holding);
    if !s.colls.idle() {
        for (peer, failure) in down {
            coll::peer_down(s, id, peer, failure);
        }
        coll::progress(s, id);
    }
    if bytes > s.budget || holding {
        watch_budget(s, id);
    }
    if s.eps.get(id).is_some_and(|e| !e.fenced.is_empty()) {
        work::run_fenced(s, id);
    }
    if !s.triggers.is_empty() {
        work::fire(s);
    }
}

/// Whether a packet brings a message, which may have to be kept; what belongs to messages that have
/// begun, and answers, are always let in.
fn is_message(packet: &[u8]) -> bool {
    packet.first().is_some_and(|t| *t >= pkt::REQ_FIRST)
}

/// Unexpected messages take memory: beyond the budget (`FI_EFA_UNEXPECTED_SIZE`) senders are told
/// to wait, unless receives are posted, which they may be for; and in any case beyond four times as
/// much. They come in again when half of the budget is free.
fn watch_budget(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(q) = s.rxqs.get(ep.rxq) else { return };
    let (bytes, budget) = (q.bytes(), s.budget);
    let hold = if ep.holding {
        bytes > budget / 2 && (q.posted() == 0 || bytes > budget.saturating_mul(4))
    } else {
        bytes > budget && (q.posted() == 0 || bytes > budget.saturating_mul(4))
    };
    if hold != ep.holding {
        ep.holding = hold;
        if let Some(l) = &mut ep.live {
            l.qp.hold(hold.then_some(is_message));
            if let Some(h) = &mut l.hub {
                h.inbox.hold(hold);
            }
        }
        if hold {
            crate::info_log!(
                FI_LOG_EP_DATA,
                "{bytes} bytes of unexpected messages: senders wait (FI_EFA_UNEXPECTED_SIZE {budget})"
            );
        }
    }
}

/// fi_setname(3): the queue pair number to ask for. `FI_EOPBADSTATE` after enabling,
/// `FI_EADDRNOTAVAIL` for an address of another adapter.
pub fn set_name(s: &mut State, id: u32, raw: &[u8]) -> Result<()> {
    let gid = s.dev.attr().gid;
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
    if a.gid != gid && a.gid != [0; 16] {
        return Err(FI_EADDRNOTAVAIL);
    }
    ep.qpn = a.qpn;
    Ok(())
}
