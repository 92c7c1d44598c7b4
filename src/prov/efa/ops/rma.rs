//! Starting reads and writes of remote memory (fi_rma(3)): by the adapter or a system call where
//! both sides can, else emulated.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::{Device, Payload, QueuePair, Remote};
use crate::hmem::UserMem;
use crate::proto::{self, PeerId};
use crate::prov::contract::{Common, RmaReq, SendData};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{Kind, Live};
use crate::prov::efa::ops::deferred::Work;
use crate::prov::efa::ops::UserOp;
use crate::prov::efa::ops::{known, live_port, start, too_long, TX_FLAGS};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host;
use crate::prov::efa::same_host::shm_rma;
use crate::prov::efa::wr_id::WrId;
use crate::prov::reports::reports;
use crate::shm::{AdapterRetry, Verdict};
use crate::types::*;
use crate::wire::{extra, Iovs, RmaIov};

/// Reads or writes remote memory. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an
/// unknown peer, `FI_EMSGSIZE` when injected data is longer than the limit.
pub(crate) fn rma(s: &mut State, id: u32, r: &RmaReq) -> Result<()> {
    let call = if r.write { "fi_writemsg" } else { "fi_readmsg" };
    known(r.common.flags, TX_FLAGS, call)?;
    let now = |s: &mut State| rma_now(s, id, r, None);
    start(s, id, (r.peer, r.common.flags), || Work::new(r), now)?;
    // A system call for each of many would be long for a peer that waits for us.
    let rings = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
    if rings.is_some_and(|l| core::mem::take(&mut l.shm.alone)) {
        crate::prov::efa::progress::progress(s, id);
    }
    Ok(())
}

/// Begins again what could not be done from here, by the adapter.
pub(crate) fn begin_again(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let Some(live) = &mut ep.live else { return };
    // It is older than what waits behind fences.
    for r in live.shm.rma.refused().into_iter().rev() {
        let note = &r.wait.note;
        let op = note.op.and_then(|ctx| s.ops.remove(ctx));
        let (context, report) = op
            .as_ref()
            .map_or((note.context, note.report), |op| (op.context, op.report));
        let again = RmaReq {
            data: SendData::User(r.wait.mem.into()),
            peer: FI_ADDR_NOTAVAIL,
            addr: r.wait.addr,
            key: r.key,
            write: r.write,
            cq_data: None,
            common: Common {
                context,
                flags: Some(if report { FI_COMPLETION } else { 0 }),
                alias: None,
                done: op.and_then(|op| op.done),
            },
        };
        ep.fenced.push_front(Work::by_adapter(&again, r.to));
    }
    let again = live.shm_ep.as_mut().map(|h| h.tx.take_retries());
    for (peer, a) in again.into_iter().flatten() {
        post_again(s, id, peer, a);
    }
}

/// Posts to the adapter what could not be done through shared memory. It is kept while there is no
/// room.
fn post_again(s: &mut State, id: u32, peer: PeerId, a: AdapterRetry) {
    let mut waiting = Vec::new();
    let mut go = |s: &mut State| -> Result<()> {
        live_port!(s, id, None => _ep, _proto, port);
        let to = port.peers.addr(peer).copied().unwrap_or_default();
        let ctx = a.note.op.unwrap_or_else(|| {
            let mut op = UserOp::new(id, UserMem::EMPTY);
            op.context = a.note.context;
            op.flags = a.note.flags;
            op.len = a.note.len;
            op.report = a.note.report;
            op.peer = peer;
            (op.raddr, op.key) = (a.addr, a.key);
            op.parts = 1;
            port.ops.insert(op)
        });
        let (wr_id, key, addr) = (WrId::Rma(ctx).bits(), a.key, a.addr);
        let remote = Remote { to, addr, key };
        let mem = UserMem::from(a.mem);
        let data = a.flags & shm_rma::WITH_DATA != 0;
        let imm = (a.write && data).then_some(a.word as u32);
        let posted = match &a.bytes {
            Some(b) => port.qp.post_write(wr_id, Payload::Copy(b), &remote, imm),
            None if a.write => port.qp.post_write(wr_id, Payload::User(mem), &remote, imm),
            None => port.qp.post_read(wr_id, mem, &remote),
        };
        match posted {
            Ok(()) => port.qp.ring(),
            Err(FI_EAGAIN) => {
                if a.note.op.is_none() {
                    port.ops.remove(ctx);
                }
                return Err(FI_EAGAIN);
            }
            Err(errno) => {
                let why = crate::proto::Failure { errno, status: 0 };
                port.rma_done(ctx, Some(why), &mut waiting);
            }
        }
        Ok(())
    };
    if go(s) == Err(FI_EAGAIN) {
        let live = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
        if let Some(h) = live.and_then(|l| l.shm_ep.as_mut()) {
            h.tx.add_retry(peer, a);
        }
    }
}

/// The operation of a read or write, whichever way it is done.
pub(crate) fn rma_op(id: u32, peer: PeerId, r: &RmaReq, report: bool) -> UserOp {
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

/// As [`rma`], past any fence. `by_adapter`: to this peer instead, and not by its ring.
pub(crate) fn rma_now(
    s: &mut State,
    id: u32,
    r: &RmaReq,
    by_adapter: Option<PeerId>,
) -> Result<()> {
    let inject = r.data.injected();
    live_port!(s, id, inject => ep, proto, port);
    if ep.kind == Kind::Dgram || ep.kind == Kind::Direct && ep.caps & FI_RMA == 0 {
        return Err(FI_EOPNOTSUPP);
    }
    if let Some(b) = inject {
        too_long(
            "injected write (FI_OPT_INJECT_RMA_SIZE)",
            b.len(),
            ep.opts.inject_rma_size,
        )?;
    }
    too_long("RMA operation", r.data.len(), ep.opts.max_rma_size)?;
    let flags = r.common.flags_or(ep.tx_flags);
    let peer = match by_adapter {
        Some(peer) => peer,
        None => port.av.ok_or(FI_ENOAV)?.peer(r.peer, port.peers)?,
    };
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
    let able = proto.features_of(peer).map_or(caps.homogeneous, able);
    let own = if r.write { ep.rdma_write } else { ep.rdma_read };
    let native = own && able && port.qp.takes(&mem, r.key) || ep.kind == Kind::Direct;
    let report = !r.common.silent(&r.data) && reports(ep.tx, flags);
    if native && by_adapter.is_none() {
        match same_host::rma(&mut port, peer, r, report) {
            Verdict::Done => return Ok(()),
            Verdict::NoResources => return Err(FI_EAGAIN),
            Verdict::Unsupported => {}
        }
    }
    let imm = r.cq_data.map(|d| d as u32);
    let max = ep.max_rdma;
    let many = native && mem.len() > max;
    let mut op = rma_op(id, peer, r, report);
    op.parts = 1;
    op.late_imm = imm.filter(|_| many);
    let ctx = port.ops.insert(op);
    let wr_id = WrId::Rma(ctx).bits();
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
            let target = RmaIov {
                addr: r.addr,
                len,
                key: r.key,
            };
            let target = Iovs::new(&[target]).ok_or(FI_EINVAL)?;
            if write {
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
            }
        }
    };
    port.posted(ctx, posted, &r.common)
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
