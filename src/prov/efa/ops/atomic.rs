//! Starts atomics (fi_atomic(3)), and answers queries for them.

use super::deferred::DeferredWork;
use super::{fences, live_port, notify_sleeper, resolve, too_long, wait};
use super::{UserOp, TX_FLAGS};
use crate::core::{memory, Result};
use crate::device::{AdapterAttr, Device};
use crate::hmem::{arith, Piece, UserMem};
use crate::proto::{AtomicArgs, AtomicKind, PeerId};
use crate::prov::contract::{
    AtomicMemory, AtomicReq, Call, Fetch, RecvBuffer, SendBuffer, SendData,
};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, Ep, LiveEndpoint};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host::shm_rma;
use crate::prov::efa::select::{choose_message, route_or_keep, MessageRoute};
use crate::prov::reports::completion::{atomic_flags, ended_entry, reported, CntrKind};
use crate::prov::reports::flags::known;
use crate::transport::{AtomicRequest, Completion, RemoteAddr, Verdict};
use crate::types::*;
use crate::wire::RmaIov;

/// Bytes of a message that every software adapter takes, whatever the MTU of its link.
const EVERY_MTU: usize = 33_000;

/// Largest atomic, bytes of operands: what fits into one packet beside the longest header, at the
/// target as well, whose link may be another.
pub(crate) fn atomic_max(mtu: usize) -> usize {
    let mtu = mtu.min(EVERY_MTU);
    (mtu - crate::wire::HEADER_MAX.min(mtu)) & !63
}

/// What bounds the atomics of a domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRoom {
    /// Bytes of a packet.
    mtu: usize,
    /// Bytes of the widest element. Peers across an EFA adapter may run the C library, which has no
    /// elements of more than 8 bytes and crashes when it receives one.
    widest: usize,
}

impl AtomicRoom {
    /// With this adapter.
    pub(crate) fn of(dev: &AdapterAttr) -> AtomicRoom {
        AtomicRoom {
            mtu: dev.mtu,
            widest: if dev.is_hardware() { 8 } else { usize::MAX },
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

/// Most bytes of remote memory of an atomic on the fast path.
const SHORT: usize = 64;

/// Starts an atomic. Errors as [`super::rma::rma`], and `FI_EOPNOTSUPP` for an operation that the
/// datatype does not have.
#[inline]
pub(crate) fn atomic<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call>(
    s: &mut State,
    id: u32,
    r: &AtomicReq<D, M, T, C>,
) -> Result<()> {
    known(r.common.flags(), TX_FLAGS, "fi_atomicmsg")?;
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if ep.deferred.is_empty() && !fences(&r.common) {
        if let Some(started) = short(s, id, r) {
            return started;
        }
    }
    atomic_slow_path(s, id, &r.to_general())
}

/// As [`atomic`], for all cases off the fast path.
#[inline(never)]
fn atomic_slow_path(s: &mut State, id: u32, r: &AtomicReq<SendData>) -> Result<()> {
    match wait(s, id, (r.peer, &r.common), || DeferredWork::new(r))? {
        true => Ok(()),
        false => atomic_now(s, id, r),
    }
}

/// The completion of an atomic on the memory at `at`.
fn completion(
    peer: PeerId,
    call: &impl Call,
    at: &RmaIov,
    changes: bool,
    entry: bool,
) -> Completion {
    Completion {
        context: call.context(),
        len: at.len as usize,
        flags: atomic_flags(changes),
        peer,
        report: reported(entry),
        remote: RemoteAddr {
            addr: at.addr,
            key: at.key,
        },
    }
}

/// The fast path: starts an atomic on few bytes of one piece, by a ring. `None`, and nothing done,
/// when [`atomic_slow_path`] has to start it.
#[inline(always)]
fn short<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call>(
    s: &mut State,
    id: u32,
    r: &AtomicReq<D, M, T, C>,
) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let at = r.to.one()?;
    let len = at.len as usize;
    let (kind, result, compare) = match &r.fetch {
        Fetch::No => (AtomicKind::Write { receipt: true }, Piece::EMPTY, None),
        Fetch::Former(m) => (AtomicKind::Fetch, m.piece()?, None),
        Fetch::Compare(m, c) => (AtomicKind::Compare, m.piece()?, Some(c.piece()?)),
    };
    let size = element_size(r.datatype, r.op, kind).filter(|n| *n <= 8)?;
    let fits =
        len > 0 && len <= SHORT && len.is_multiple_of(size) && len <= ep.opts.max_atomic_size;
    let injected = r.data.injected();
    if !fits || injected && len > ep.opts.inject_atomic_size || ep.kind != EndpointKind::Rdm {
        return None;
    }
    let changes = matches!(r.fetch, Fetch::No);
    let reads = r.op == FI_ATOMIC_READ;
    let held = |p: Piece| p.len() >= len;
    let operands = if reads { Piece::EMPTY } else { r.data.piece()? };
    if !(reads || held(operands)) || !(changes || held(result)) || compare.is_some_and(|c| !held(c))
    {
        return None;
    }
    let peer = s.avs.get(ep.config.av)?.known(r.peer)?;
    let mode = ep.tx_mode(&r.common, injected);
    let live = ep.live.as_mut()?;
    if r.common.is_work() || live.routes.message(peer) != MessageRoute::Ring {
        return None;
    }
    let rings = &mut live.shm_ep.as_mut()?.tx;
    let mut data = [0; 2 * SHORT];
    let mut used = operands.load(data.get_mut(..len)?);
    if let Some(c) = compare {
        used += c.load(data.get_mut(used..used + len)?);
    }
    let done = completion(peer, &r.common, &at, changes, mode.entry);
    let a = AtomicRequest {
        word: shm_rma::atomic_word(r.datatype, r.op, kind, len),
        len,
        data: data.get(..used)?,
        result: result.part(0, len),
    };
    let (sent, early) = shm_rma::atomic(rings, &a, changes && !mode.delivery, done);
    if sent == Verdict::Unsupported {
        return None;
    }
    if sent == Verdict::Queued {
        live.notify_sleeper();
    }
    if early {
        ep.cntrs.count(&mut s.cntrs, CntrKind::of(done.flags), len);
        let to = ep.config.tx_cq.filter(|_| mode.entry);
        if let Some(q) = to.and_then(|q| s.cqs.get_mut(q)) {
            q.push(ended_entry(&done));
        }
    }
    Some(sent.result())
}

/// As [`atomic`], past any fence.
pub(crate) fn atomic_now(s: &mut State, id: u32, r: &AtomicReq<SendData>) -> Result<()> {
    let room = AtomicRoom::of(s.dev.attr());
    let peer = resolve(s, id, r.peer)?;
    memory::check_operation()?;
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    let live = ep.live.as_ref().ok_or(FI_EOPBADSTATE)?;
    if ep.kind != EndpointKind::Rdm {
        return Err(FI_EOPNOTSUPP);
    }
    let route = live.routes.message(peer);
    let injected = r.data.injected();
    let mode = ep.tx_mode(&r.common, injected);
    let changes = matches!(r.fetch, Fetch::No);
    let kind = match r.fetch {
        Fetch::No => AtomicKind::Write {
            receipt: !injected || mode.delivery,
        },
        Fetch::Former(_) => AtomicKind::Fetch,
        Fetch::Compare(..) => AtomicKind::Compare,
    };
    let (result, compare) = match r.fetch {
        Fetch::No => (UserMem::EMPTY, UserMem::EMPTY),
        Fetch::Former(m) => (m, UserMem::EMPTY),
        Fetch::Compare(m, c) => (m, c),
    };
    let bytes = checked_len(ep, room, r, (kind, &result, &compare))?;
    if route == MessageRoute::Unknown {
        let chosen = choose_message(s, id, peer);
        route_or_keep(s, id, chosen, || DeferredWork::new(r))?;
    }
    live_port!(s, id, None => ep, proto, port);
    let mut data = core::mem::take(&mut ep.operands);
    if !load_operands(r, (kind, &compare), bytes, &mut data) {
        ep.operands = data;
        return Err(FI_EIO);
    }
    let first = r.to.as_slice().first().copied().unwrap_or_default();
    let result = result.part(0, bytes);
    let whole = RmaIov {
        len: bytes as u64,
        ..first
    };
    let done = completion(peer, &r.common, &whole, changes, mode.entry);
    let single = r.common.work.is_none() && r.to.as_slice().len() == 1;
    let one = result.one().filter(|_| single);
    if let (Some(rings), Some(result)) = (&mut port.rings, one) {
        let a = AtomicRequest {
            word: shm_rma::atomic_word(r.datatype, r.op, kind, bytes),
            len: bytes,
            data: &data,
            result,
        };
        // Unless FI_DELIVERY_COMPLETE asks for more, success is reported when the request is on its
        // way and certain to be carried out.
        let (sent, early) = shm_rma::atomic(rings, &a, changes && !mode.delivery, done);
        if early {
            port.complete(&done, Ok(()));
        }
        if sent != Verdict::Unsupported {
            ep.operands = data;
            notify_sleeper(s, id);
            return sent.result();
        }
    }
    let mut op = UserOp::new(id, result, done);
    op.work = r.common.work;
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
    posted?;
    notify_sleeper(s, id);
    Ok(())
}

/// Bytes of the remote memory of an atomic. Errors for an operation that does not exist, or that is
/// too long, and where operands, compare values or results are too short.
#[inline]
fn checked_len(
    ep: &Ep,
    room: AtomicRoom,
    r: &AtomicReq<SendData>,
    (kind, result, compare): (AtomicKind, &UserMem, &UserMem),
) -> Result<usize> {
    let count = atomic_count(room, r.datatype, r.op, kind)?;
    let size = arith::size_of(r.datatype).ok_or(FI_EOPNOTSUPP)?;
    let bytes = r.to.total().ok_or(FI_EINVAL)? as usize;
    if r.data.injected() {
        let what = "inject (tx_attr->inject_size)";
        too_long(what, r.data.len(), ep.opts.inject_atomic_size)?;
    }
    too_long("atomic", bytes, (count * size).min(ep.opts.max_atomic_size))?;
    let size_fits = bytes > 0 && bytes.is_multiple_of(size);
    if !size_fits || !operands_suffice(r, (kind, result, compare), bytes) {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "fi_atomic: {bytes} bytes of remote memory: operands, compare values and results must \
             have as many"
        );
        return Err(FI_EINVAL);
    }
    Ok(bytes)
}

/// Whether operands, compare values and results have at least `bytes` bytes, where the atomic uses
/// them.
fn operands_suffice(
    r: &AtomicReq<SendData>,
    (kind, result, compare): (AtomicKind, &UserMem, &UserMem),
    bytes: usize,
) -> bool {
    let data = r.op == FI_ATOMIC_READ || r.data.len() >= bytes;
    let compared = kind != AtomicKind::Compare || compare.len() >= bytes;
    let fetched = matches!(r.fetch, Fetch::No) || result.len() >= bytes;
    data && compared && fetched
}

/// Copies the operands and then the compare values, `bytes` bytes of each, into `data`: atomics are
/// short, and one packet is all there is to keep. `false` when a device failed to copy them.
fn load_operands(
    r: &AtomicReq<SendData>,
    (kind, compare): (AtomicKind, &UserMem),
    bytes: usize,
    data: &mut Vec<u8>,
) -> bool {
    let mut copied = true;
    data.clear();
    if r.op != FI_ATOMIC_READ {
        data.resize(bytes, 0);
        match &r.data {
            SendData::User(m) => copied = m.try_load(0, data),
            SendData::Inject(b) => data.copy_from_slice(b.bytes().get(..bytes).unwrap_or(&[])),
        }
    }
    if kind == AtomicKind::Compare {
        data.resize(2 * bytes, 0);
        copied &= compare.try_load(0, data.get_mut(bytes..).unwrap_or(&mut []));
    }
    copied
}
