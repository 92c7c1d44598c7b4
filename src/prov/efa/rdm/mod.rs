//! RDM endpoints (fi_endpoint(3)): messages through the protocol, RMA through the adapter.
//!
//! An [`Ep`] lives in its domain's state. `ops` (submodule) starts operations, `port` is what the
//! protocol sees of the world, `progress` here takes in what the adapter found. A posted operation
//! is a [`UserOp`] until its completion; its number travels as `ctx` through the protocol and in
//! the work request id through the adapter.

mod dgram;
mod ops;
mod options;
mod peers;
mod port;

pub use ops::{recv, rma, send, Data, MsgReq, RecvReq, RmaReq};
pub use options::{kind as option_kind, Value as OptionValue};

use super::addr;
use super::cntr::Cntr;
use super::cq::{Cq, Entry, ErrEntry};
use super::domain::State;
use crate::core::slab::Slab;
use crate::core::{Info, Result};
use crate::device::soft::SoftQp;
use crate::device::{Device, Event, Events, QueuePair, Status};
use crate::hmem::UserMem;
use crate::proto::{self, Failure};
use crate::types::*;
use crate::wire::extra;
use peers::Peers;
use port::EpPort;

/// Kinds of operations a counter can count, in the order of [`Ep::cntrs`].
pub const CNTR_EVENTS: [u64; 6] = [
    FI_SEND,
    FI_RECV,
    FI_WRITE,
    FI_READ,
    FI_REMOTE_WRITE,
    FI_REMOTE_READ,
];

/// A posted operation.
#[derive(Debug)]
pub struct UserOp {
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

/// A queue an endpoint reports to.
#[derive(Clone, Copy, Debug)]
struct Bound {
    cq: u32,
    /// Only operations that ask for it report success (FI_SELECTIVE_COMPLETION).
    selective: bool,
}

/// What exists from fi_enable(3) on.
struct Live {
    qp: SoftQp,
    proto: proto::Endpoint,
    peers: Peers,
    ops: Slab<UserOp>,
    events: Events,
    /// RMA parts that found no room.
    waiting: Vec<u32>,
    /// Receives of a datagram endpoint, in order.
    posted: std::collections::VecDeque<u32>,
}

/// One endpoint.
pub struct Ep {
    pub caps: u64,
    tx_flags: u64,
    rx_flags: u64,
    qpn: u16,
    av: Option<u32>,
    tx: Option<Bound>,
    rx: Option<Bound>,
    cntrs: [Option<u32>; 6],
    opts: options::Options,
    live: Option<Live>,
    /// Domain-wide settings the data path needs.
    max_rdma: usize,
    /// A datagram endpoint: no protocol, see `dgram`.
    dgram: bool,
}

const WR_TX: u64 = 1 << 32;
const WR_CONTROL: u64 = 2 << 32;
const WR_RMA: u64 = 3 << 32;

fn failure(status: Status) -> Failure {
    Failure {
        errno: status.errno(),
        status: status as u8,
    }
}

impl Ep {
    /// An endpoint as `info` describes it, not yet enabled. `FI_EINVAL` for an info of another
    /// endpoint type.
    pub fn new(info: &Info, dev_max_rdma: usize) -> Result<Ep> {
        let type_ = info.ep.as_ref().map_or(FI_EP_RDM, |e| e.type_);
        if type_ != FI_EP_RDM && type_ != FI_EP_DGRAM {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: ep_attr->type: wanted {}, had FI_EP_RDM, FI_EP_DGRAM",
                crate::core::tostr::ep_type(type_)
            );
            return Err(FI_EINVAL);
        }
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
            qpn,
            av: None,
            tx: None,
            rx: None,
            cntrs: [None; 6],
            opts: options::Options::new(inject_size),
            live: None,
            max_rdma: dev_max_rdma,
            dgram: type_ == FI_EP_DGRAM,
        })
    }

    /// Whether fi_enable(3) has succeeded.
    pub fn enabled(&self) -> bool {
        self.live.is_some()
    }

    /// Its address vector.
    pub fn av(&self) -> Option<u32> {
        self.av
    }

    /// Its queue pair, once enabled.
    pub fn qp_mut(&mut self) -> Option<&mut SoftQp> {
        self.live.as_mut().map(|l| &mut l.qp)
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

    /// fi_cancel(3): the first posted receive of this context ends with FI_ECANCELED.
    fn cancel(&mut self, context: usize, cqs: &mut Slab<Cq>, cntrs: &mut Slab<Cntr>) -> Result<()> {
        let live = self.live.as_mut().ok_or(FI_EOPBADSTATE)?;
        let ops = &live.ops;
        let hit = live
            .proto
            .cancel(|ctx| ops.get(ctx).is_some_and(|o| o.context == context));
        let Some(op) = hit.and_then(|ctx| live.ops.remove(ctx)) else {
            return Err(FI_ENOENT);
        };
        if let Some(c) = self.cntrs[1].and_then(|c| cntrs.get_mut(c)) {
            c.add_error(1);
        }
        if let Some(cq) = self.rx.and_then(|b| cqs.get_mut(b.cq)) {
            let entry = Entry {
                context: op.context,
                flags: op.flags,
                tag: op.key,
                src: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            };
            let text = "the receive was cancelled by fi_cancel".to_string();
            cq.push_error(ErrEntry {
                entry,
                err: FI_ECANCELED,
                text,
                ..ErrEntry::default()
            });
        }
        Ok(())
    }

    /// A peer was removed from the address vector.
    pub fn forget(&mut self, fi_addr: fi_addr_t) {
        if let Some(l) = &mut self.live {
            l.peers.forget(fi_addr);
        }
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
    if !(sends && receives) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_enable: no completion queue or counter is bound for {}",
            if sends { "FI_RECV" } else { "FI_TRANSMIT" }
        );
        return Err(FI_ENOCQ);
    }
    let qp = s.dev.open_qp(ep.qpn)?;
    let fd = qp.wait_fd();
    let raw = addr::to_raw(&qp.addr());
    let features = extra::RDMA_READ | extra::RDMA_WRITE | extra::UNSOLICITED_WRITE_RECV;
    let proto = proto::Endpoint::new(s.dev.attr().mtu, raw, features, None);
    ep.live = Some(Live {
        qp,
        proto,
        peers: Peers::default(),
        ops: Slab::with_capacity(256),
        events: Events::default(),
        waiting: Vec::new(),
        posted: Default::default(),
    });
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

/// Closes an endpoint. Posted operations vanish without completion, as fi_close(3) allows; what was
/// handed to the adapter still goes out. Returns the descriptor of [`enable`].
pub fn close(s: &mut State, id: u32) -> Result<(Ep, Option<i32>)> {
    let mut ep = s.eps.remove(id).ok_or(FI_EBADF)?;
    let fd = ep.qp_mut().map(|q| q.wait_fd());
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
    }
    Ok((ep, fd))
}

/// Address of an endpoint; before it is enabled without queue pair number.
pub fn name(s: &State, id: u32) -> Result<[u8; addr::LEN]> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    Ok(match &ep.live {
        Some(l) => addr::to_raw(&l.qp.addr()),
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

/// fi_cancel(3).
pub fn cancel(s: &mut State, id: u32, context: usize) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    ep.cancel(context, &mut s.cqs, &mut s.cntrs)
}

/// Takes in what the adapter found for an endpoint, and sends what had to wait.
pub fn progress(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(live) = &mut ep.live else { return };
    let Live {
        qp,
        proto,
        peers,
        ops,
        events,
        waiting,
        posted,
    } = live;
    qp.poll(events);
    let Events { list, arena } = events;
    let mut port = EpPort {
        qp,
        peers,
        ops,
        cqs: &mut s.cqs,
        cntrs: &mut s.cntrs,
        av: ep.av.and_then(|a| s.avs.get(a)),
        tx: ep.tx,
        rx: ep.rx,
        to_cntrs: ep.cntrs,
        inject: None,
        source: ep.caps & FI_SOURCE != 0,
    };
    for e in list.drain(..) {
        match e {
            Event::Recv { from, data } if ep.dgram => {
                let peer = port.peers.of(&from, proto);
                dgram::arrived(&mut port, posted, peer, Events::bytes(arena, &data));
            }
            Event::Recv { from, data } => {
                let peer = port.peers.of(&from, proto);
                proto.packet(peer, Events::bytes(arena, &data), &mut port);
            }
            Event::WriteImm { from, imm, len } => port.remote_write(&from, imm, len),
            Event::Done { wr_id, status } => {
                let fail = (status != Status::Ok).then(|| failure(status));
                match wr_id & !0xffff_ffff {
                    WR_TX => proto.packet_done(wr_id as u32, fail, &mut port),
                    dgram::WR => dgram::sent(&mut port, wr_id as u32, fail),
                    WR_RMA => port.rma_done(wr_id as u32, fail, waiting),
                    _ => {}
                }
            }
            Event::PeerDown { peer, status } => {
                let p = port.peers.of(&peer, proto);
                proto.peer_down(p, failure(status), &mut port);
            }
        }
    }
    waiting.retain(|ctx| !port.post_late_imm(*ctx));
    proto.progress(&mut port);
    port.qp.ring();
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
