//! Reads, writes and atomics of a same-host peer's memory, as records in its ring.
//!
//! The peer executes them when it polls (`target`), which costs two cache lines where a system call
//! costs microseconds; when it does not poll, `shm` executes reads and writes in its place. A short
//! one is one record and a [`Completion`]; a long one is an operation in pieces ([`LongRma`]), so
//! that both sides copy at once. Reads and writes that are cheaper by cross-memory attach go that
//! way, several by one call (`cma_batch`).

mod cma_batch;
mod target;

use crate::device::host;
use crate::hmem::Piece;
use crate::proto::{AtomicKind, Failure, PeerId};
use crate::prov::contract::{RmaReq, SendBuffer, SendData};
use crate::prov::efa::endpoint::failure;
use crate::prov::efa::ops::rma::rma_op;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host;
use crate::prov::efa::same_host::cost_model::{CopyMethod, CostModel};
use crate::shm::{self, AdapterRetry, LocalBuffer, TxRings};
use crate::transport::{
    AtomicRequest, Completion, Payload, Poll, Report, Status, Transport, Verdict,
};
use crate::types::*;
pub(crate) use cma_batch::Wait;
use cma_batch::{Carrier, CmaBatch, Refused};
use std::collections::VecDeque;
pub(crate) use target::{arrived, find, is, serve, told, Atomic, Scratch, TargetMemory};

/// Longest read or write that is one record, bytes.
pub(crate) const SHORT: usize = 8 << 10;
/// Shortest read and write that are copied from here unless they come alone. A target that answers
/// a read copies bytes that are in none of its caches.
pub(crate) const TOGETHER: [usize; 2] = [2 << 10, 6 << 10];
/// Bytes of a piece of a long read or write, and of a very long one.
const PIECE: usize = 8 << 10;
const BIG_PIECE: usize = 32 << 10;
const BIG: usize = 64 << 10;

/// A long read or write, of which pieces are still to be written into the ring.
struct LongRma {
    /// Of all of it; it is an operation.
    done: Completion,
    ctx: u32,
    write: bool,
    mem: Piece,
    off: usize,
    cq_data: Option<u64>,
}

/// The accesses of an endpoint that are under way.
#[derive(Default)]
pub(crate) struct ShmRma {
    turn: VecDeque<LongRma>,
    /// Accesses that are copied from here.
    cma: CmaBatch,
    /// Accesses that have ended, for [`report`].
    ended: Vec<(Completion, Status)>,
    pub scratch: Scratch,
    /// Costs of long accesses, and when those in pieces began. Those that have ended and are not
    /// measured yet: how many, their bytes, and when the first began.
    costs: CostModel,
    begun: Vec<(u32, u64)>,
    over: (usize, usize, u64),
}

impl ShmRma {
    /// 0 when nothing waits for a poll.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.turn.len() | self.cma.load()
    }

    /// Whether accesses to this peer wait that are not in its ring.
    pub(crate) fn has_outstanding_to(&self, peer: PeerId) -> bool {
        self.cma.has_outstanding_to(peer)
    }

    /// Has accesses that are copied from here wait for the next poll: one is under way in a ring.
    pub(crate) fn gather(&mut self) {
        self.cma.gather();
    }

    /// Whether they wait for the next poll.
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        self.cma.gathers()
    }

    /// Accesses that the adapter has to carry out after all.
    pub(crate) fn refused(&mut self) -> Vec<Refused> {
        self.cma.refused()
    }

    /// Adds an access that is copied from here, and that the peer permits. Whether the caller
    /// should poll.
    pub(crate) fn join(&mut self, rings: &mut TxRings, write: bool, w: Wait) -> bool {
        let (cma, c) = self.carrier(rings);
        cma.join(c, write, w)
    }

    /// The batch of accesses that are copied from here, and what copying takes.
    fn carrier<'a>(&'a mut self, rings: &'a mut TxRings) -> (&'a mut CmaBatch, Carrier<'a>) {
        let c = Carrier {
            rings,
            costs: &mut self.costs,
            ended: &mut self.ended,
        };
        (&mut self.cma, c)
    }

    /// Notes that the access in pieces whose operation is `ctx` has ended.
    fn ends(&mut self, ctx: u32, len: usize) {
        let Some(at) = self.begun.iter().position(|(c, _)| *c == ctx) else {
            return;
        };
        let (_, began) = self.begun.swap_remove(at);
        let (n, bytes, first) = self.over;
        self.over = (n + 1, bytes + len, if n == 0 { began } else { first });
    }

    /// Measures the accesses that have ended: they travel one after another, and one poll sees
    /// several end.
    fn learn(&mut self) {
        let (n, bytes, began) = core::mem::take(&mut self.over);
        if n > 0 {
            self.costs
                .measured_arrival(CopyMethod::Ring, n, bytes, (began, host::now()));
        }
    }
}

/// Starts a read or write that is long or has flags. `Unsupported`, and nothing done, when another
/// route has to carry it.
pub(crate) fn rma(port: &mut EpPort, r: &RmaReq<SendData>, done: Completion) -> Verdict {
    let Some(rings) = &mut port.rings else {
        return Verdict::Unsupported;
    };
    let (peer, len) = (done.peer, r.data.len());
    let SendData::User(mem) = &r.data else {
        return Verdict::Unsupported;
    };
    let Some(mem) = mem.one() else {
        return Verdict::Unsupported;
    };
    if len <= SHORT {
        let id = port.id;
        let done = port.track(r.common.completion_cntr, || rma_op(id, r, done), done);
        let Some(rings) = &mut port.rings else {
            return Verdict::Unsupported;
        };
        let sent = match r.write {
            true => rings.put(done, Payload::Piece(mem), r.cq_data),
            false => rings.get(done, Payload::Piece(mem)),
        };
        if sent != Verdict::Queued {
            drop(done.op().and_then(|ctx| port.ops.remove(ctx)));
        }
        return sent;
    }
    // A target that counts accesses counts one.
    if !rings.takes_rma(peer) || rings.wants_events(peer) {
        return Verdict::Unsupported;
    }
    let rma = &mut port.shm.rma;
    if rma.costs.choose(len, &[CopyMethod::Ring, CopyMethod::Cma]) == CopyMethod::Cma {
        return Verdict::Unsupported;
    }
    let ctx = port.ops.insert(rma_op(port.id, r, done));
    if len > BIG {
        rings.widen(peer);
    }
    let rma = &mut port.shm.rma;
    rma.begun.push((ctx, host::now()));
    rma.turn.push_back(LongRma {
        done,
        ctx,
        write: r.write,
        mem,
        off: 0,
        cq_data: r.cq_data,
    });
    Verdict::Queued
}

/// Writes pieces of long reads and writes as far as there is room.
pub(crate) fn pump(port: &mut EpPort, waiting: &mut Vec<u32>) {
    let mut at = 0;
    while let Some(mut l) = port.shm.rma.turn.remove(at) {
        let ctx = l.ctx;
        match go_on(&mut l, port) {
            Some(failed) => part_done(port, ctx, failed, waiting),
            None => {
                port.shm.rma.turn.insert(at, l);
                at += 1;
            }
        }
    }
}

/// A piece of a read or write is done, or its writing; with the last of them it ends.
fn part_done(port: &mut EpPort, ctx: u32, failed: Option<Failure>, waiting: &mut Vec<u32>) {
    if let Some(op) = port.ops.get(ctx).filter(|op| op.parts == 1) {
        port.shm.rma.ends(ctx, op.done.len);
    }
    port.part_done(ctx, failed, waiting);
}

/// Writes pieces; `None` when it has to wait, and how it went when all are written.
fn go_on(l: &mut LongRma, port: &mut EpPort) -> Option<Option<Failure>> {
    let Some(rings) = &mut port.rings else {
        return Some(Some(failure(Status::RemoteUnresponsive)));
    };
    let piece = if l.mem.len() > BIG { BIG_PIECE } else { PIECE };
    while l.off < l.mem.len() {
        let part = l.mem.part(l.off, piece);
        let mut done = Completion {
            report: Report::Op(l.ctx),
            len: part.len(),
            ..l.done
        };
        done.remote.addr = done.remote.addr.wrapping_add(l.off as u64);
        let posted = match l.write {
            true => rings.put(done, Payload::Piece(part), None),
            false => rings.get(done, Payload::Piece(part)),
        };
        match posted {
            Verdict::Done | Verdict::Queued => {
                if let Some(op) = port.ops.get_mut(l.ctx) {
                    op.parts += 1;
                }
                l.off += part.len();
            }
            Verdict::NoResources => return None,
            Verdict::Unsupported | Verdict::Failed(_) => {
                let rest_of = l.mem.part(l.off, usize::MAX);
                let rest = LocalBuffer::Piece(rest_of);
                l.off = l.mem.len();
                match rings.cma_access(l.done.peer, l.write, &rest, done.remote) {
                    Ok(_) => {}
                    Err(shm::RmaDenied::Status(s)) => return Some(Some(failure(s))),
                    Err(shm::RmaDenied::Unsupported) => {
                        if let Some(op) = port.ops.get_mut(l.ctx) {
                            op.parts += 1;
                        }
                        let again = AdapterRetry {
                            done: Completion {
                                len: rest.byte_len(),
                                ..done
                            },
                            write: l.write,
                            flags: 0,
                            word: 0,
                            mem: rest_of,
                            bytes: None,
                        };
                        rings.add_retry(again);
                    }
                }
            }
        }
    }
    if l.cq_data.is_some() {
        // The peer gets one event, when everything is there.
        let op = port.ops.get(l.ctx)?;
        if op.failed.is_some() {
            return Some(None);
        }
        if op.parts > 1 {
            return None;
        }
        let addr = port.peers.addr(l.done.peer)?;
        let what = (l.done.remote.key, l.mem.len(), l.cq_data, true);
        let told = same_host::tell(rings, l.done.peer, addr, what);
        if told == Verdict::NoResources {
            return None;
        }
    }
    Some(None)
}

/// Starts an atomic, and says whether its success is to be reported now: when that is wanted
/// (`early`), and it is certain to be carried out. `Unsupported`, and nothing done, when another
/// route has to carry it.
#[inline]
pub(crate) fn atomic(
    rings: &mut TxRings,
    a: &AtomicRequest,
    early: bool,
    mut done: Completion,
) -> (Verdict, bool) {
    let early = early && rings.permits(done.peer, done.remote, a.len, true);
    if early {
        done.report = Report::Early;
    }
    let sent = rings.atomic(done, a);
    (sent, early && sent == Verdict::Queued)
}

/// What an atomic is, in one word.
pub(crate) fn atomic_word(dt: fi_datatype, op: fi_op, kind: AtomicKind, bytes: usize) -> u64 {
    let kind = match kind {
        AtomicKind::Write { .. } => 0,
        AtomicKind::Fetch => 1,
        AtomicKind::Compare => 2,
    };
    u64::from(dt as u8) | u64::from(op as u8) << 8 | kind << 16 | (bytes as u64) << 32
}

/// Takes note of accesses that have ended, for [`report`].
#[inline]
pub(crate) fn collect(rings: &mut TxRings, a: &mut ShmRma) {
    if a.cma.load() > 0 {
        let (cma, c) = a.carrier(rings);
        cma.poll(c);
    }
    if !rings.has_outstanding() {
        return;
    }
    rings.poll(usize::MAX, &mut a.ended);
}

/// Reports the ends that [`collect`] found.
pub(crate) fn report(port: &mut EpPort, waiting: &mut Vec<u32>) {
    let mut all = core::mem::take(&mut port.shm.rma.ended);
    for (done, status) in all.drain(..) {
        let fail = (status != Status::Ok).then(|| failure(status));
        match done.op() {
            Some(ctx) => part_done(port, ctx, fail, waiting),
            None => port.complete(&done, fail.map_or(Ok(()), Err)),
        }
    }
    port.shm.rma.ended = all;
    port.shm.rma.learn();
}
