//! Starting reads and writes of remote memory (fi_rma(3)): by the adapter or a system call where
//! both sides can, else emulated.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::{Device, Payload, QueuePair};
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
use crate::prov::reports::completion::{reported, rma_flags};
use crate::prov::reports::reports;
use crate::shm::AdapterRetry;
use crate::transport::{Completion, RemoteAddr, Report, Verdict};
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
        let part = r.wait.done;
        let op = part.op().and_then(|ctx| s.ops.remove(ctx));
        let done = op.as_ref().map_or(part, |op| op.done);
        let entry = done.report == Report::Entry;
        let again = RmaReq {
            data: SendData::User(r.wait.mem.into()),
            peer: FI_ADDR_NOTAVAIL,
            addr: part.remote.addr,
            key: part.remote.key,
            write: r.write,
            cq_data: None,
            common: Common {
                context: done.context,
                flags: Some(if entry { FI_COMPLETION } else { 0 }),
                alias: None,
                completion_cntr: op.and_then(|op| op.completion_cntr),
            },
        };
        ep.fenced.push_front(Work::by_adapter(&again, part.peer));
    }
    let again = live.shm_ep.as_mut().map(|h| h.tx.take_retries());
    for a in again.into_iter().flatten() {
        post_again(s, id, a);
    }
}

/// Posts to the adapter what could not be done through shared memory. It is kept while there is no
/// room.
fn post_again(s: &mut State, id: u32, a: AdapterRetry) {
    let mut waiting = Vec::new();
    let mut go = |s: &mut State| -> Result<()> {
        live_port!(s, id, None => _ep, _proto, port);
        let _ = port.connect(a.done.peer);
        let mem = UserMem::from(a.mem);
        let data = a.flags & shm_rma::WITH_DATA != 0;
        let imm = (a.write && data).then_some(a.word as u32);
        let posted = match &a.bytes {
            Some(b) => port.qp.post_write(a.done, Payload::Copy(b), imm),
            None if a.write => port.qp.post_write(a.done, Payload::User(mem), imm),
            None => port.qp.post_read(a.done, mem),
        };
        match posted {
            Ok(()) => port.qp.ring(),
            Err(FI_EAGAIN) => return Err(FI_EAGAIN),
            Err(errno) => {
                let why = crate::proto::Failure { errno, status: 0 };
                match a.done.op() {
                    Some(ctx) => port.part_done(ctx, Some(why), &mut waiting),
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

/// What is reported of a read or write, whichever way it is done.
pub(crate) fn rma_completion(peer: PeerId, r: &RmaReq, report: bool) -> Completion {
    Completion {
        context: r.common.context,
        len: r.data.len(),
        flags: rma_flags(r.write),
        peer,
        report: reported(report),
        remote: RemoteAddr {
            addr: r.addr,
            key: r.key,
        },
    }
}

/// The operation of a read or write.
pub(crate) fn rma_op(id: u32, r: &RmaReq, done: Completion) -> UserOp {
    let mut op = UserOp::new(id, r.data.lent(), done);
    op.completion_cntr = r.common.completion_cntr;
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
    let done = rma_completion(peer, r, report);
    if native && by_adapter.is_none() {
        match same_host::rma(&mut port, r, done) {
            Verdict::Done | Verdict::Queued => return Ok(()),
            Verdict::NoResources => return Err(FI_EAGAIN),
            Verdict::Unsupported => {}
        }
    }
    port.connect(peer)?;
    let imm = r.cq_data.map(|d| d as u32);
    let max = ep.max_rdma;
    let many = native && mem.len() > max;
    let mut op = rma_op(id, r, done);
    op.late_imm = imm.filter(|_| many);
    let ctx = port.ops.insert(op);
    let part = Completion {
        report: Report::Op(ctx),
        ..done
    };
    let len = r.data.len() as u64;
    let posted = match (native, r.write, inject) {
        (true, true, Some(b)) => port.qp.post_write(part, Payload::Copy(b), imm),
        (true, _, _) if many => post_parts(port.qp, part, &mem, (r.write, max), port.ops),
        (true, true, None) => port.qp.post_write(part, Payload::User(mem), imm),
        (true, false, _) => port.qp.post_read(part, mem),
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
    whole: Completion,
    mem: &UserMem,
    (write, max): (bool, usize),
    ops: &mut Slab<UserOp>,
) -> Result<()> {
    let mut op = whole.op().and_then(|ctx| ops.get_mut(ctx));
    let mut off = 0;
    let mut parts = 0;
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
        let posted = if write {
            qp.post_write(done, Payload::User(part), None)
        } else {
            qp.post_read(done, part)
        };
        match posted {
            Ok(()) => parts += 1,
            Err(e) if parts == 0 => return Err(e),
            // The queue ran full in the middle: the parts posted so far end with the error below.
            Err(e) => {
                if let Some(op) = &mut op {
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
    if let Some(op) = op {
        op.parts = parts;
    }
    Ok(())
}
