//! Starting operations: sends, receives, reads and writes (fi_msg(3), fi_tagged(3), fi_rma(3)).

use super::port::EpPort;
use super::{Live, UserOp, WR_RMA};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::{Payload, QueuePair, Remote};
use crate::hmem::UserMem;
use crate::proto::{RecvArgs, SendArgs, ANY};
use crate::prov::efa::domain::State;
use crate::types::*;

/// Where an operation's data is.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    /// In application memory until the operation is done.
    User(UserMem),
    /// Copied before the call returns (FI_INJECT).
    Inject(&'a [u8]),
}

impl Data<'_> {
    fn len(&self) -> usize {
        match self {
            Data::User(m) => m.len(),
            Data::Inject(b) => b.len(),
        }
    }
}

/// A send, tagged when `tag` is there.
pub struct MsgReq<'a> {
    pub data: Data<'a>,
    pub to: fi_addr_t,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub context: usize,
    /// FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, FI_INJECT, ...; `None`: the endpoint's.
    pub flags: Option<u64>,
}

/// A receive, tagged when `tag` is there.
pub struct RecvReq {
    pub mem: UserMem,
    pub src: fi_addr_t,
    /// Tag and the bits of it that do not matter.
    pub tag: Option<(u64, u64)>,
    pub context: usize,
    pub flags: Option<u64>,
}

/// A read or write of remote memory.
pub struct RmaReq<'a> {
    pub data: Data<'a>,
    pub peer: fi_addr_t,
    pub addr: u64,
    pub key: u64,
    pub write: bool,
    pub cq_data: Option<u64>,
    pub context: usize,
    pub flags: Option<u64>,
}

/// Flags that `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg` and `fi_readmsg` may carry.
const TX_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_EFA_WR_HIGH_PPS;
const RX_FLAGS: u64 = FI_COMPLETION | FI_MORE;

fn known(flags: Option<u64>, all: u64, call: &str) -> Result<()> {
    let bad = flags.unwrap_or(0) & !all;
    if bad == 0 {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "{call}: flags {bad:#x} ({}) are not supported",
        crate::core::tostr::op_flags(bad)
    );
    Err(
        if bad & (FI_PEEK | FI_CLAIM | FI_DISCARD | FI_MULTI_RECV | FI_TRIGGER | FI_FENCE) != 0 {
            FI_EOPNOTSUPP
        } else {
            FI_EBADFLAGS
        },
    )
}

/// Splits the state into an enabled endpoint and a port for it.
macro_rules! live_port {
    ($s:expr, $id:expr, $inject:expr => $ep:ident, $proto:ident, $port:ident, $posted:ident) => {
        let $ep = $s.eps.get_mut($id).ok_or(FI_EBADF)?;
        let Some(Live {
            qp,
            proto: $proto,
            peers,
            ops,
            events: _,
            waiting: _,
            posted: $posted,
        }) = &mut $ep.live
        else {
            return Err(FI_EOPBADSTATE);
        };
        #[allow(unused_mut)]
        let mut $port = EpPort {
            qp,
            peers,
            ops,
            cqs: &mut $s.cqs,
            cntrs: &mut $s.cntrs,
            av: $ep.av.and_then(|a| $s.avs.get(a)),
            tx: $ep.tx,
            rx: $ep.rx,
            to_cntrs: $ep.cntrs,
            inject: $inject,
            source: $ep.caps & FI_SOURCE != 0,
        };
    };
}

fn inject_fits(len: usize, limit: usize) -> Result<()> {
    if len > limit {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "inject of {len} bytes: at most {limit} (tx_attr->inject_size)"
        );
        return Err(FI_EMSGSIZE);
    }
    Ok(())
}

/// Sends a message. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an unknown
/// destination, `FI_EMSGSIZE` when an injected message is longer than the limit.
pub fn send(s: &mut State, id: u32, r: &MsgReq) -> Result<()> {
    known(r.flags, TX_FLAGS, "fi_sendmsg")?;
    let inject = match r.data {
        Data::Inject(b) => Some(b),
        Data::User(_) => None,
    };
    live_port!(s, id, inject => ep, proto, port, _posted);
    if let Some(b) = inject {
        let limit = if r.tag.is_some() {
            ep.opts.inject_tagged_size
        } else {
            ep.opts.inject_msg_size
        };
        inject_fits(b.len(), limit)?;
    }
    let flags = r.flags.unwrap_or(ep.tx_flags);
    let peer = port.peers.resolve(r.to, port.av, proto)?;
    let plain_inject = inject.is_some() && r.flags.is_none();
    let op = UserOp {
        context: r.context,
        flags: FI_SEND | if r.tag.is_some() { FI_TAGGED } else { FI_MSG },
        mem: match r.data {
            Data::User(m) => m,
            Data::Inject(_) => UserMem::EMPTY,
        },
        len: r.data.len(),
        report: !plain_inject && reports(ep.tx, flags),
        peer,
        raddr: 0,
        key: r.tag.unwrap_or(0),
        parts: 0,
        failed: None,
        late_imm: None,
    };
    let ctx = port.ops.insert(op);
    let args = SendArgs {
        peer,
        ctx,
        len: r.data.len() as u64,
        tag: r.tag,
        cq_data: r.cq_data,
        receipt: flags & FI_DELIVERY_COMPLETE != 0,
    };
    let posted = if ep.dgram {
        super::dgram::send(&mut port, ctx, peer, r)
    } else {
        proto.send(&args, &mut port)
    };
    if let Err(e) = posted {
        port.ops.remove(ctx);
        return Err(e);
    }
    if flags & FI_MORE == 0 || r.flags.is_none() {
        port.qp.ring();
    }
    Ok(())
}

fn reports(bound: Option<super::Bound>, flags: u64) -> bool {
    bound.is_some_and(|b| !b.selective || flags & FI_COMPLETION != 0)
}

/// Posts a receive.
pub fn recv(s: &mut State, id: u32, r: &RecvReq) -> Result<()> {
    known(r.flags, RX_FLAGS, "fi_recvmsg")?;
    live_port!(s, id, None => ep, proto, port, posted);
    let flags = r.flags.unwrap_or(ep.rx_flags);
    // Without FI_DIRECTED_RECV the source is not looked at (fi_msg(3)).
    let src = if r.src == FI_ADDR_UNSPEC || ep.caps & FI_DIRECTED_RECV == 0 {
        ANY
    } else {
        port.peers.resolve(r.src, port.av, proto)?
    };
    let (tag, ignore) = r.tag.unwrap_or((0, 0));
    let ctx = port.ops.insert(UserOp {
        context: r.context,
        flags: FI_RECV | if r.tag.is_some() { FI_TAGGED } else { FI_MSG },
        mem: r.mem,
        len: r.mem.len(),
        report: reports(ep.rx, flags),
        peer: src,
        raddr: 0,
        key: tag,
        parts: 0,
        failed: None,
        late_imm: None,
    });
    if ep.dgram {
        posted.push_back(ctx);
        return Ok(());
    }
    let len = r.mem.len() as u64;
    proto.recv(
        &RecvArgs {
            src,
            ctx,
            len,
            tagged: r.tag.is_some(),
            tag,
            ignore,
        },
        &mut port,
    );
    port.qp.ring();
    Ok(())
}

/// Reads or writes remote memory. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an
/// unknown peer, `FI_EMSGSIZE` when injected data is longer than the limit.
pub fn rma(s: &mut State, id: u32, r: &RmaReq) -> Result<()> {
    known(
        r.flags,
        TX_FLAGS,
        if r.write { "fi_writemsg" } else { "fi_readmsg" },
    )?;
    live_port!(s, id, None => ep, proto, port, _posted);
    if ep.dgram {
        return Err(FI_EOPNOTSUPP);
    }
    if let Data::Inject(b) = r.data {
        inject_fits(b.len(), ep.opts.inject_rma_size)?;
    }
    let flags = r.flags.unwrap_or(ep.tx_flags);
    let peer = port.peers.resolve(r.peer, port.av, proto)?;
    let to = *port.peers.addr(peer).ok_or(FI_EINVAL)?;
    if !port.qp.room() {
        return Err(FI_EAGAIN);
    }
    let plain_inject = matches!(r.data, Data::Inject(_)) && r.flags.is_none();
    let (mem, inject) = match r.data {
        Data::User(m) => (m, None),
        Data::Inject(b) => (UserMem::EMPTY, Some(b)),
    };
    let imm = r.cq_data.map(|d| d as u32);
    let max = ep.max_rdma;
    let many = mem.len() > max;
    let ctx = port.ops.insert(UserOp {
        context: r.context,
        flags: FI_RMA | if r.write { FI_WRITE } else { FI_READ },
        mem,
        len: r.data.len(),
        report: !plain_inject && reports(ep.tx, flags),
        peer,
        raddr: r.addr,
        key: r.key,
        parts: 1,
        failed: None,
        late_imm: imm.filter(|_| many),
    });
    let wr_id = WR_RMA | u64::from(ctx);
    let remote = Remote {
        to,
        addr: r.addr,
        key: r.key,
    };
    let posted = match (r.write, inject, many) {
        (true, Some(b), _) => port.qp.post_write(wr_id, Payload::Copy(b), &remote, imm),
        (true, None, false) => port.qp.post_write(wr_id, Payload::User(mem), &remote, imm),
        (false, _, false) => port.qp.post_read(wr_id, mem, &remote),
        (_, None, true) | (false, _, true) => {
            post_parts(port.qp, wr_id, &mem, &remote, r.write, max, port.ops)
        }
    };
    if let Err(e) = posted {
        port.ops.remove(ctx);
        return Err(e);
    }
    if flags & FI_MORE == 0 || r.flags.is_none() {
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
