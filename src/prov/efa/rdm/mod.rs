//! RDM endpoints (fi_endpoint(3)): messages through the protocol, RMA through the adapter.
//!
//! An [`Ep`] lives in its domain's state. `ops`, `receive`, `rma` and `atomics` start operations,
//! `fast_path` those without flags; `port` implements `proto::Port` for one endpoint, `progress`
//! polls the adapter and the rings. A posted operation is a [`UserOp`] until its completion; its
//! number travels as `ctx` through the protocol and in the work request id through the adapter.
//! `life` opens, enables and closes endpoints.

mod atomics;
pub(crate) mod coll;
mod completion;
mod cost_model;
mod direct;
pub(crate) mod fast_path;
mod life;
mod ops;
mod options;
mod peers;
mod port;
mod progress;
mod receive;
mod rendezvous;
mod rma;
mod shm_rma;
mod shm_state;
mod srx;
#[cfg(test)]
mod tests;
mod unknown_peers;
pub(crate) mod work;
mod wr_id;

pub(crate) use atomics::{atomic, atomic_count, atomic_max, AtomicRoom};
pub(crate) use life::{close, close_context, enable, name, open_contexts, set_name, MAX_CONTEXTS};
pub(crate) use ops::send;
pub(crate) use options::option_kind;
pub(crate) use peers::{reclaim, Peers};
pub(crate) use progress::progress;
pub(crate) use receive::{cancel, recv};
pub(crate) use rma::rma;
pub(crate) use srx::Srx;

use super::addr;
use super::domain::State;
use crate::core::{Info, Result};
use crate::device::any::{AnyQp, Dev};
use crate::device::{AdapterAttr, Device, Events, QueuePair, Status};
use crate::hmem::UserMem;
use crate::proto::{self, Failure, PeerId, ShortRecv};
use crate::shm::ShmEndpoint;
use crate::types::*;
use completion::BoundCntrs;
use std::collections::VecDeque;
use work::Work;
use wr_id::WrId;

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The wire protocol.
    Rdm,
    /// Nothing: every call is a work request (fabric `efa-direct`).
    Direct,
    /// Nothing, and unreliably (FI_EP_DGRAM).
    Dgram,
}

impl Kind {
    /// Whether peers on the same host are reached through shared memory: of the adapters without
    /// protocol the software one alone knows it.
    fn uses_shm(self, qp: &AnyQp) -> bool {
        match self {
            Kind::Rdm => true,
            Kind::Direct => qp.native_ref().is_none(),
            Kind::Dgram => false,
        }
    }
}

/// Whose an operation's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// The application's, lent with a call.
    User,
    /// A registered region's, named by a peer.
    Target { write: bool },
}

/// Marks operations of a shared receive context in [`UserOp::owner`].
pub(crate) const SRX_OWNER: u32 = 1 << 31;

/// A posted operation.
#[derive(Debug)]
pub(crate) struct UserOp {
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
    pub(crate) fn new(owner: u32, mem: UserMem) -> UserOp {
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
    qp: AnyQp,
    proto: proto::Endpoint,
    events: Events,
    /// RMA parts that found no room.
    waiting: Vec<u32>,
    /// Peers on the same host.
    shm_ep: Option<ShmEndpoint>,
    shm: shm_state::ShmState,
    /// Scratch for a packet of theirs.
    packet: Vec<u8>,
    /// Injected writes since something was last taken in.
    unpolled: u32,
    /// Empty polls of the adapter in a row, and polls that have skipped it since.
    empty_polls: u32,
    skipped_polls: u32,
    /// A caller may be blocked until the descriptor is readable (see [`Ep::arm`]).
    armed: bool,
}

/// After `IDLE_POLLS` empty polls the adapter is polled once every `IDLE_INTERVAL` calls while shm
/// has traffic: a poll costs a system call, or a load from the device's memory.
const IDLE_POLLS: u32 = 64;
const IDLE_INTERVAL: u32 = 1024;

impl Live {
    /// Whether this poll includes the adapter. Counts those that do not.
    #[inline]
    fn adapter_due(&mut self) -> bool {
        let due = !self.skip_adapter_poll();
        if due {
            self.skipped_polls = 0;
        }
        due
    }

    /// Whether this poll skips the adapter. Counts it then.
    #[inline]
    fn skip_adapter_poll(&mut self) -> bool {
        let rings = self.shm_ep.as_ref().is_some_and(|h| h.rx.has_active());
        let armed = rings
            && self.empty_polls >= IDLE_POLLS
            && self.skipped_polls < IDLE_INTERVAL
            && self.qp.idle();
        self.skipped_polls += u32::from(armed);
        armed
    }

    /// Polls the rings, and counts an empty poll. Whether there is nothing to do beside the
    /// adapter.
    #[inline]
    fn poll_idle(&mut self) -> bool {
        let idle = |h: &mut ShmEndpoint| !h.tx.has_outstanding() && h.rx.poll_idle();
        self.idle() && self.shm_ep.as_mut().is_none_or(idle)
    }

    /// Whether nothing waits to be done, the rings aside.
    #[inline]
    fn idle(&self) -> bool {
        let lost = self.shm_ep.as_ref().is_some_and(ShmEndpoint::lost);
        let open = self.shm.load() | self.proto.load() | self.waiting.len();
        open == 0 && !lost
    }

    /// Peers on this host that are gone, whose last packets were taken in by the last poll.
    #[inline]
    fn lost(&mut self, peers: &mut Peers) -> Vec<(PeerId, Failure)> {
        match &mut self.shm_ep {
            Some(h) if h.lost() => {
                let why = failure(Status::RemoteUnresponsive);
                h.gone().iter().map(|a| (peers.of(a), why)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Wakes a caller that is blocked on the descriptor: an operation was posted whose completion
    /// raises no event.
    #[inline(always)]
    fn notify_sleeper(&mut self) {
        if self.armed {
            self.signal();
        }
    }

    #[cold]
    fn signal(&mut self) {
        let idle = self.idle();
        if let Some(h) = self
            .shm_ep
            .as_ref()
            .filter(|h| !idle || h.tx.has_outstanding())
        {
            self.armed = false;
            h.signal();
        }
    }

    /// Whether the adapter or the rings have lost the request for a signal that a blocked caller
    /// relies on. Clears the state.
    #[inline]
    fn take_arm_lost(&mut self) -> bool {
        let hears = |h: &ShmEndpoint| h.rx.armed();
        let lost = self.armed && !(self.qp.armed() && self.shm_ep.as_ref().is_none_or(hears));
        self.armed &= !lost;
        lost
    }

    fn wait_fd(&self) -> i32 {
        self.shm_ep
            .as_ref()
            .map_or(self.qp.wait_fd(), ShmEndpoint::fd)
    }
}

/// One endpoint.
pub(crate) struct Ep {
    pub caps: u64,
    tx_flags: u64,
    rx_flags: u64,
    fast: fast_path::FastPathConfig,
    qpn: u16,
    av: Option<u32>,
    tx: Option<Bound>,
    rx: Option<Bound>,
    cntrs: BoundCntrs,
    /// Counters of the adapter's, which are none of those once the endpoint is enabled.
    counted: Vec<u32>,
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
    homogeneous: bool,
    /// Aliases that are open (fi_ep_alias(3)).
    pub aliases: u32,
    /// Messages are being held off: too many are unexpected.
    holding: bool,
    /// The queue pair of a context of a scalable endpoint, which only sends or only receives if
    /// the application wants it so.
    context: Option<AnyQp>,
    is_context: bool,
    /// Domain-wide settings the data path needs.
    max_rdma: usize,
    kind: Kind,
    /// Writes with immediate data take a receive, and the application knows (FI_RX_CQ_DATA).
    takes_imm: bool,
    /// Once closed: memory that its queue pair may still read.
    leftover: Option<coll::DeferredDrop>,
}

fn failure(status: Status) -> Failure {
    Failure {
        errno: status.errno(),
        status: status as u8,
    }
}

impl Ep {
    /// An endpoint as `info` describes it, not yet enabled. `FI_EINVAL` for an info of another
    /// endpoint type.
    pub(crate) fn new(info: &Info, direct: bool, d: &AdapterAttr) -> Result<Ep> {
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
            fast: fast_path::FastPathConfig::default(),
            qpn,
            av: None,
            tx: None,
            rx: None,
            cntrs: BoundCntrs::default(),
            counted: Vec::new(),
            opts: options::Options::new(inject_size, atomic_max(d.mtu)).of_kind(kind, d),
            live: None,
            rxq: u32::MAX,
            srx: None,
            fenced: VecDeque::new(),
            operands: Vec::new(),
            rdma_read: true,
            rdma_write: true,
            homogeneous: false,
            aliases: 0,
            holding: false,
            context: None,
            is_context: false,
            max_rdma: d.max_rdma,
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

    /// Whether something waits for its turn that does not come from outside.
    #[inline(always)]
    fn waits(&self, triggers: &[work::PendingTrigger], colls: &coll::Colls) -> bool {
        let some = self.fenced.len() | triggers.len() | colls.load();
        some | usize::from(self.holding) != 0
    }

    /// Whether fi_enable(3) has succeeded.
    pub(crate) fn enabled(&self) -> bool {
        self.live.is_some()
    }

    /// Descriptor that becomes readable after [`Ep::arm`] when there is something to do, once
    /// enabled.
    pub(crate) fn wait_fd(&self) -> Option<i32> {
        self.live.as_ref().map(Live::wait_fd)
    }

    /// Asks for a signal on the descriptor; `false` when there is something to do already.
    pub(crate) fn arm(&mut self) -> bool {
        let Some(l) = &mut self.live else { return true };
        let idle = l.shm.all_reported() && !l.shm_ep.as_ref().is_some_and(ShmEndpoint::lost);
        let rings = |h: &mut ShmEndpoint| h.tx.settle() & h.rx.arm() & h.tx.arm();
        l.armed = idle & l.qp.arm() & l.shm_ep.as_mut().is_none_or(rings);
        l.armed
    }

    /// Whether something is under way to a peer that is no operation: accesses in its ring, plain
    /// requests of an adapter.
    fn has_outstanding(&self, peer: PeerId) -> bool {
        let Some(l) = &self.live else { return false };
        let rings = l
            .shm_ep
            .as_ref()
            .is_some_and(|h| h.tx.has_outstanding_to(peer));
        rings || l.shm.rma.has_outstanding_to(peer) || l.qp.busy_with(peer)
    }

    /// The regions of these targets are closed: the adapter reads nothing more into them.
    pub(crate) fn close_targets(&mut self, targets: &[u32]) {
        if let Some(l) = &mut self.live {
            for read in l.proto.close_targets(|ctx| targets.contains(&ctx)) {
                l.qp.cancel_reads(WrId::ProtoRead(read).bits());
            }
        }
    }

    /// Whether this endpoint keeps state of a peer.
    fn knows_peer(&self, peer: PeerId) -> bool {
        let Some(l) = &self.live else { return false };
        !self.fenced.is_empty()
            || l.proto.knows_peer(peer)
            || self.has_outstanding(peer)
            || l.shm.rendezvous.mentions(peer)
            || l.shm_ep.as_ref().is_some_and(|h| h.knows_peer(peer))
    }

    /// Forgets a peer: its number will be another peer's.
    fn forget_peer(&mut self, peer: PeerId) {
        if let Some(h) = self.live.as_mut().and_then(|l| l.shm_ep.as_mut()) {
            h.tx.forget_peer(peer);
        }
    }

    /// Its queue pair, once enabled.
    pub(crate) fn qp_mut(&mut self) -> Option<&mut AnyQp> {
        self.live.as_mut().map(|l| &mut l.qp)
    }

    /// Its address vector.
    pub(crate) fn av(&self) -> Option<u32> {
        self.av
    }

    /// Whether it reports to this queue.
    pub(crate) fn uses_cq(&self, id: u32) -> bool {
        [self.tx, self.rx].iter().flatten().any(|b| b.cq == id)
    }

    /// Whether it reports to this counter.
    pub(crate) fn uses_cntr(&self, id: u32) -> bool {
        self.cntrs.each().any(|(_, c)| c == id) || self.counted.contains(&id)
    }

    /// Binds an address vector. `FI_EOPBADSTATE` after enabling, `FI_EINVAL` for a second one.
    pub(crate) fn bind_av(&mut self, av: u32) -> Result<()> {
        self.must_be_new("an address vector")?;
        if self.av.is_some() {
            return Err(FI_EINVAL);
        }
        self.av = Some(av);
        Ok(())
    }

    /// Binds a completion queue: `flags` are FI_TRANSMIT, FI_RECV and FI_SELECTIVE_COMPLETION.
    /// `FI_EBADFLAGS` for others or neither, `FI_EINVAL` for a direction that is bound already.
    pub(crate) fn bind_cq(&mut self, cq: u32, flags: u64) -> Result<()> {
        self.must_be_new("a completion queue")?;
        if flags & !(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION) != 0
            || flags & (FI_TRANSMIT | FI_RECV) == 0
        {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: flags {flags:#x}: wanted FI_TRANSMIT or FI_RECV, and \
                 FI_SELECTIVE_COMPLETION"
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
    pub(crate) fn bind_cntr(&mut self, cntr: u32, flags: u64) -> Result<()> {
        self.must_be_new("a counter")?;
        let known = BoundCntrs::flags();
        if flags & !known != 0 || flags == 0 {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: counter flags {flags:#x}: wanted bits of {known:#x}"
            );
            return Err(FI_EBADFLAGS);
        }
        self.cntrs.bind(cntr, flags);
        Ok(())
    }

    /// Default flags of one direction (FI_GETOPSFLAG).
    pub(crate) fn op_flags(&self, recv: bool) -> u64 {
        if recv {
            self.rx_flags
        } else {
            self.tx_flags
        }
    }

    /// FI_SETOPSFLAG: default flags of the direction that FI_TRANSMIT or FI_RECV names.
    /// `FI_EINVAL` for both or neither.
    pub(crate) fn set_op_flags(&mut self, flags: u64) -> Result<()> {
        let plain = flags & !(FI_TRANSMIT | FI_RECV);
        match flags & (FI_TRANSMIT | FI_RECV) {
            FI_TRANSMIT => self.tx_flags = plain,
            FI_RECV => self.rx_flags = plain,
            _ => return Err(FI_EINVAL),
        }
        self.configure_fast_path();
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

    /// Binds a shared receive context. `FI_EINVAL` for a second one, or with FI_COLLECTIVE: members
    /// of a group are told apart by their endpoints.
    pub(crate) fn bind_srx(&mut self, srx: u32) -> Result<()> {
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
    pub(crate) fn uses_srx(&self, id: u32) -> bool {
        self.srx == Some(id)
    }
}
