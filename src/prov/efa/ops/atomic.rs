//! Starting atomics (fi_atomic(3)), and what of them there is.

use crate::core::Result;
use crate::device::{AdapterAttr, Device};
use crate::hmem::{arith, Piece, UserMem};
use crate::proto::{AtomicArgs, AtomicKind};
use crate::prov::contract::{AtomicReq, Fetch, SendData};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{Kind, Live};
use crate::prov::efa::ops::deferred::Work;
use crate::prov::efa::ops::{inject_fits, known, live_port, start, too_long, TX_FLAGS};
use crate::prov::efa::ops::{OpKind, UserOp};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host::shm_rma;
use crate::prov::reports::completion::reported;
use crate::prov::reports::reports;
use crate::transport::{Completion, RemoteAddr, Verdict};
use crate::types::*;

/// Largest atomic, bytes of operands: what fits into one packet beside the longest header.
pub(crate) fn atomic_max(mtu: usize) -> usize {
    (mtu - crate::wire::HEADER_MAX.min(mtu)) & !63
}

/// What bounds the atomics of a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRoom {
    /// Bytes of a packet.
    mtu: usize,
    /// Bytes of the widest element. Peers across a real adapter may run the C library, which knows
    /// no wider ones than 8 bytes, and does not survive being sent one.
    widest: usize,
}

impl AtomicRoom {
    /// With this adapter.
    pub(crate) fn of(dev: &AdapterAttr) -> AtomicRoom {
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

/// Elements that one atomic of this kind may have; `FI_EOPNOTSUPP` where the operation does not
/// exist for the datatype or kind (fi_atomicvalid(3)).
pub(crate) fn atomic_count(
    room: AtomicRoom,
    dt: fi_datatype,
    op: fi_op,
    kind: AtomicKind,
) -> Result<usize> {
    let size = element_size(dt, op, kind).filter(|n| *n <= room.widest);
    let size = size.ok_or(FI_EOPNOTSUPP)?;
    let room = atomic_max(room.mtu) / if kind == AtomicKind::Compare { 2 } else { 1 };
    Ok(room / size)
}

/// Bytes of an element, where the operation exists for the datatype and kind.
#[inline]
pub(crate) fn element_size(dt: fi_datatype, op: fi_op, kind: AtomicKind) -> Option<usize> {
    let swap = (FI_CSWAP..=FI_MSWAP).contains(&op);
    let fits = match kind {
        AtomicKind::Compare => swap,
        AtomicKind::Fetch => !swap,
        AtomicKind::Write { .. } => !swap && op != FI_ATOMIC_READ,
    };
    arith::element(dt, op).filter(|_| fits)?;
    arith::size_of(dt)
}

/// Starts an atomic. Errors as [`rma`], and `FI_EOPNOTSUPP` for an operation that the datatype does
/// not have.
pub(crate) fn atomic(s: &mut State, id: u32, r: &AtomicReq) -> Result<()> {
    known(r.common.flags, TX_FLAGS, "fi_atomicmsg")?;
    let now = |s: &mut State| atomic_now(s, id, r);
    start(s, id, (r.peer, r.common.flags), || Work::new(r), now)
}

/// As [`atomic`], past any fence.
pub(crate) fn atomic_now(s: &mut State, id: u32, r: &AtomicReq) -> Result<()> {
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
            "fi_atomic: {bytes} bytes of remote memory: operands, compare values and results must \
             have as many"
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
            SendData::User(m) => {
                m.load(0, &mut data);
            }
            SendData::Inject(b) => data.copy_from_slice(b.get(..bytes).unwrap_or(&[])),
        }
    }
    if kind == AtomicKind::Compare {
        data.resize(2 * bytes, 0);
        compare.load(0, data.get_mut(bytes..).unwrap_or(&mut []));
    }
    let first = r.to.as_slice().first().copied().unwrap_or_default();
    let result = result.part(0, bytes);
    let changes = matches!(r.fetch, Fetch::No);
    let report = !r.common.silent(&r.data) && reports(ep.tx, flags);
    let done = Completion {
        context: r.common.context,
        len: bytes,
        flags: (FI_ATOMIC | if changes { FI_WRITE } else { FI_READ }) as u32,
        peer,
        report: reported(report),
        remote: RemoteAddr {
            addr: first.addr,
            key: first.key,
        },
    };
    let a = shm_rma::AtomicAccess {
        datatype: r.datatype,
        op: r.op,
        kind,
        len: bytes,
        data: &data,
        result: result.one().unwrap_or(Piece::EMPTY),
        // Unless FI_DELIVERY_COMPLETE asks for more, success is reported when the request is on its
        // way and certain to be carried out.
        early: changes && flags & FI_DELIVERY_COMPLETE == 0,
    };
    let single = r.common.completion_cntr.is_none() && r.to.as_slice().len() == 1;
    let single = single && result.one().is_some();
    if let Some(rings) = port.rings.as_mut().filter(|_| single) {
        let (sent, early) = shm_rma::atomic(rings, &a, done);
        if early {
            port.complete(&done, Ok(()));
        }
        if sent != Verdict::Unsupported {
            ep.operands = data;
            return match sent {
                Verdict::NoResources => Err(FI_EAGAIN),
                _ => Ok(()),
            };
        }
    }
    let mut op = UserOp::new(id, result, done);
    op.completion_cntr = r.common.completion_cntr;
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
    let posted = port.posted(ctx, posted, &r.common);
    ep.operands = data;
    posted
}
