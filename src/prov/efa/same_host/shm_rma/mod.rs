//! Reads, writes and atomics of a same-host peer's memory.
//!
//! The peer executes records in its ring when it polls (`target`), which costs two cache lines
//! where a system call costs microseconds; when it does not poll, `shm` executes reads and writes
//! in its place. A short one is one record and a [`Completion`]; a long one is an operation in
//! pieces ([`LongRma`]), so that both sides copy at once. Reads and writes that are cheaper by
//! cross-memory attach go that way: short ones several by one call, long ones in parts
//! (`cma_batch`), very long ones by both sides where the target polls (`split`). Device memory of
//! the peer that can be opened here is copied by the device (`device`); device memory of this
//! process goes to and from the peer's host memory by cross-memory attach, too.
//!
//! [`ShmRma`] is a state machine that does all input and output through its `port`; `sim` runs
//! several against each other. [`ShmRma::start`] begins an access; a poll goes through
//! [`ShmRma::collect`], [`ShmRma::report`] and [`ShmRma::pump`].

mod cma_batch;
mod device;
mod ep_port;
mod port;
#[cfg(test)]
mod sim;
mod split;
mod target;

use crate::hmem::Piece;
use crate::proto::{AtomicKind, Failure, PeerId};
use crate::prov::contract::{RmaReq, SendData};
use crate::prov::efa::endpoint::failure;
use crate::prov::efa::same_host::cost_model::{CopyMethod, CostModel};
use crate::prov::efa::same_host::POLL_BUDGET;
use crate::shm::{AdapterRetry, LocalBuffer, RmaDenied, TxRings};
use crate::transport::{AtomicRequest, Completion, Payload, Report, Status, Transport, Verdict};
use crate::types::*;
pub(crate) use cma_batch::BatchedAccess;
use cma_batch::{CmaBatch, CmaContext, LongCopy, RefusedAccess};
use device::{DeviceAccess, DeviceCopies};
use port::{RmaPort, RmaRings};
pub(crate) use split::help;
use std::collections::VecDeque;
pub(crate) use target::{find, handle_access, is, remote_right, serve};
pub(crate) use target::{Scratch, TargetAtomic, TargetMemory};

/// Longest read or write that is one record, bytes.
pub(crate) const RING_RMA_MAX: usize = 8 << 10;
/// Shortest read, and write, that joins a batch that is copied here while others are under way,
/// bytes. Lower for reads: their target would copy bytes that are in none of its caches.
pub(crate) const BATCH_MIN: [usize; 2] = [2 << 10, 6 << 10];
/// Bytes of a piece of a long read or write, and of a very long one.
const PIECE: usize = 8 << 10;
const BIG_PIECE: usize = 32 << 10;
const BIG: usize = 64 << 10;
/// How a long read or write may be copied, and how a very long one.
const METHODS: [CopyMethod; 2] = [CopyMethod::Ring, CopyMethod::Cma];
const LONG_METHODS: [CopyMethod; 3] = [CopyMethod::Ring, CopyMethod::Cma, CopyMethod::CmaBoth];

/// A long read or write, of which pieces are still to be written into the ring.
struct LongRma {
    /// The completion of the whole access, which has an operation record.
    done: Completion,
    ctx: u32,
    write: bool,
    mem: Piece,
    off: usize,
    cq_data: Option<u64>,
    /// The copy method is chosen: the ring.
    chosen: bool,
}

impl LongRma {
    /// The completion of `len` of its bytes, from `off` on.
    fn completion_at(&self, off: usize, len: usize) -> Completion {
        let mut done = Completion {
            report: Report::Op(self.ctx),
            len,
            ..self.done
        };
        done.remote.addr = done.remote.addr.wrapping_add(off as u64);
        done
    }
}

/// The accesses of an endpoint that are under way.
#[derive(Default)]
pub(crate) struct ShmRma {
    turn: VecDeque<LongRma>,
    /// Accesses that are copied from here, and by the device.
    cma: CmaBatch,
    device: DeviceCopies,
    /// Accesses that have ended, for [`ShmRma::report`].
    ended: Vec<(Completion, Status)>,
    /// Costs of long accesses, and when those in pieces began. Those that have ended and are not
    /// measured yet: how many, their bytes, and when the first began.
    costs: CostModel,
    begun: Vec<(u32, u64)>,
    over: (usize, usize, u64),
    poll_due: bool,
    /// Peers whose first access of `turn` waits for room, during [`ShmRma::pump`].
    full: Vec<PeerId>,
}

impl ShmRma {
    /// 0 when nothing waits for a poll.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.turn.len() | self.cma.load() | self.device.load() | self.ended.len()
    }

    /// Whether accesses to this peer wait that are not in its ring.
    pub(crate) fn has_outstanding_to(&self, peer: PeerId) -> bool {
        self.cma.has_outstanding_to(peer) || self.device.has_outstanding_to(peer)
    }

    /// Has accesses that are copied from here wait for the next poll: one is under way in a ring.
    pub(crate) fn gather(&mut self) {
        self.cma.gather();
    }

    /// Whether accesses that are copied here wait for the next poll.
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        self.cma.gathers()
    }

    /// Accesses that the adapter has to carry out after all.
    pub(crate) fn take_refused(&mut self) -> Vec<RefusedAccess> {
        let mut all = self.cma.take_refused();
        all.append(&mut self.device.take_refused());
        all
    }

    /// Adds a read or write to the batch that is copied here, if the peer permits it and takes no
    /// event. Returns whether it was added. [`ShmRma::take_poll_due`] returns whether to poll then.
    #[inline(never)]
    pub(crate) fn add_to_batch<R: RmaRings>(
        &mut self,
        rings: &mut R,
        write: bool,
        w: BatchedAccess,
    ) -> bool {
        let done = &w.done;
        let permits = rings.permits(done.peer, done.remote, done.len, write);
        if !permits || rings.wants_events(done.peer) {
            return false;
        }
        self.gather();
        self.join(rings, write, w);
        true
    }

    /// Adds an access that is copied from here, and that the peer permits.
    fn join<R: RmaRings>(&mut self, rings: &mut R, write: bool, w: BatchedAccess) {
        let (cma, c) = self.cma_context(rings);
        self.poll_due |= cma.join(c, write, w);
    }

    /// Returns, once, whether the last accesses were long system calls: the endpoint is to be
    /// polled then, because a peer may wait for it.
    #[inline(always)]
    pub(crate) fn take_poll_due(&mut self) -> bool {
        core::mem::take(&mut self.poll_due)
    }

    /// Splits the state into the accesses that are copied here, and what copying needs.
    fn cma_context<'a, R>(&'a mut self, rings: &'a mut R) -> (&'a mut CmaBatch, CmaContext<'a, R>) {
        let c = CmaContext {
            rings,
            costs: &mut self.costs,
            others_wait: !self.begun.is_empty(),
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
    fn learn(&mut self, now: u64) {
        let (n, bytes, began) = core::mem::take(&mut self.over);
        if n > 0 {
            self.costs
                .measured_arrival(CopyMethod::Ring, n, bytes, (began, now));
        }
    }

    /// Starts a read or write. `Unsupported`, and nothing done, when another route has to carry it;
    /// `Done` also when it failed and its completion reports that.
    pub(crate) fn start<P: RmaPort>(
        &mut self,
        port: &mut P,
        r: &RmaReq<SendData>,
        done: Completion,
    ) -> Verdict {
        if let Some(sent) = self.by_device(port, r, done) {
            return sent;
        }
        let mem = match &r.data {
            SendData::User(m) => m.one(),
            SendData::Inject(_) => None,
        };
        if let Some(mem) = mem {
            match self.by_ring(port, r, mem, done) {
                Verdict::Unsupported => {}
                sent => return sent,
            }
        }
        self.by_cma(port, r, mem, done)
    }

    /// Copies an access from here: one that the peer permits and takes no event of joins the batch,
    /// a long one is copied in parts, any other now.
    fn by_cma<P: RmaPort>(
        &mut self,
        port: &mut P,
        r: &RmaReq<SendData>,
        mem: Option<Piece>,
        done: Completion,
    ) -> Verdict {
        let Some(rings) = port.rings() else {
            return Verdict::Unsupported;
        };
        let (peer, wants_events) = (done.peer, rings.wants_events(done.peer));
        let permits = rings.permits(peer, done.remote, done.len, r.write);
        let plain = mem.filter(|_| r.cq_data.is_none() && !wants_events && permits);
        let done = tracked(port, r, done);
        let Some(rings) = port.rings() else {
            return Verdict::Unsupported;
        };
        if let Some(mem) = plain {
            self.join(rings, r.write, BatchedAccess { mem, done });
            return Verdict::Queued;
        }
        let wants_event = r.cq_data.is_some() || wants_events;
        let copied = match &r.data {
            SendData::User(m) if m.len() > POLL_BUDGET => {
                let long = LongCopy::new(r.write, *m, done).with_event(r.cq_data, wants_events);
                let (cma, c) = self.cma_context(rings);
                match cma.begin(c, long) {
                    Ok(()) => return Verdict::Queued,
                    Err(denied) => Err(denied),
                }
            }
            // The peer's event must have room before its memory is touched: an error return means
            // that nothing was done.
            _ if wants_event && !rings.fits_event(peer) => {
                drop_tracked(port, done);
                return Verdict::NoResources;
            }
            _ => self.copy_now(rings, r, &done).inspect(|()| {
                if wants_event {
                    // There is room: this endpoint is the ring's only writer.
                    rings.send_event(peer, (r.key, done.len, r.cq_data, r.write));
                }
            }),
        };
        let failed = match copied {
            Err(RmaDenied::Unsupported) => {
                drop_tracked(port, done);
                return Verdict::Unsupported;
            }
            Err(RmaDenied::Status(s)) => Some(failure(s)),
            Ok(()) => None,
        };
        self.poll_due = true;
        match done.op() {
            Some(ctx) => port.part_done(ctx, failed),
            None => port.complete(&done, failed.map_or(Ok(()), Err)),
        }
        Verdict::Done
    }

    /// Copies an access by one system call.
    fn copy_now<R: RmaRings>(
        &mut self,
        rings: &mut R,
        r: &RmaReq<SendData>,
        done: &Completion,
    ) -> Result<(), RmaDenied> {
        // Short accesses, and those of device memory, are not measured.
        let measured = done.len > RING_RMA_MAX && r.data.lent().is_host();
        let began = measured.then(|| rings.now());
        let local = match &r.data {
            SendData::User(m) => LocalBuffer::Mem(m),
            SendData::Inject(b) => LocalBuffer::Bytes(b.bytes()),
        };
        rings.cma_access(done.peer, r.write, &local, done.remote)?;
        if let Some(began) = began {
            let span = (began, rings.now());
            let (_, mut c) = self.cma_context(rings);
            c.measured_copy(1, done.len, span);
        }
        Ok(())
    }

    /// Starts a read or write of device memory that this process can open; `None`, and nothing
    /// done, of other memory.
    fn by_device<P: RmaPort>(
        &mut self,
        port: &mut P,
        r: &RmaReq<SendData>,
        done: Completion,
    ) -> Option<Verdict> {
        let SendData::User(mem) = r.data else {
            return None;
        };
        // A few bytes of host memory take less time as a record.
        if mem.is_empty() || mem.is_host() && mem.len() <= RING_RMA_MAX {
            return None;
        }
        let rings = port.rings()?;
        if !rings.ensure_open(done.peer, done.remote, r.write, &mem) {
            return None;
        }
        let wants_event = r.cq_data.is_some() || rings.wants_events(done.peer);
        let done = tracked(port, r, done);
        let access = DeviceAccess::new(r.write, mem, done, (r.cq_data, wants_event));
        let rings = port.rings()?;
        self.poll_due |= self.device.begin(rings, access, &mut self.ended);
        Some(Verdict::Queued)
    }

    /// Starts a read or write of one piece of memory by records in the peer's ring.
    fn by_ring<P: RmaPort>(
        &mut self,
        port: &mut P,
        r: &RmaReq<SendData>,
        mem: Piece,
        done: Completion,
    ) -> Verdict {
        let (peer, len) = (done.peer, mem.len());
        if len <= RING_RMA_MAX {
            let done = tracked(port, r, done);
            let sent = port.rings().map(|rings| match r.write {
                true => rings.put(done, Payload::Piece(mem), r.cq_data),
                false => rings.get(done, Payload::Piece(mem)),
            });
            let sent = sent.unwrap_or(Verdict::Unsupported);
            if sent != Verdict::Queued {
                drop_tracked(port, done);
            }
            return sent;
        }
        let Some(rings) = port.rings() else {
            return Verdict::Unsupported;
        };
        // A target that counts accesses must count this access once, not its pieces.
        if !rings.admit_rma(peer) || rings.wants_events(peer) {
            return Verdict::Unsupported;
        }
        // A long access chooses when it is the peer's next one: by then those before
        // it have been measured.
        let chosen = len <= POLL_BUDGET;
        if chosen && self.costs.choose(len, &METHODS) == CopyMethod::Cma {
            return Verdict::Unsupported;
        }
        let began = rings.now();
        let ctx = port.open(r, done);
        if chosen {
            self.begun.push((ctx, began));
        }
        self.turn.push_back(LongRma {
            done,
            ctx,
            write: r.write,
            mem,
            off: 0,
            cq_data: r.cq_data,
            chosen,
        });
        Verdict::Queued
    }

    /// Chooses the copy method of the first access at `turn[at]` of its peer. Returns whether the
    /// ring carries it; the others are copied from here.
    fn choose<P: RmaPort>(&mut self, at: usize, port: &mut P) -> bool {
        let Some(l) = self.turn.get_mut(at) else {
            return false;
        };
        let way = self.costs.choose(l.mem.len(), &LONG_METHODS);
        if way == CopyMethod::Ring {
            l.chosen = true;
            let began = port.rings().map_or(0, |rings| rings.now());
            self.begun.push((l.ctx, began));
            return true;
        }
        if let Some(l) = self.turn.remove(at) {
            let done = Completion {
                report: Report::Op(l.ctx),
                ..l.done
            };
            let long = LongCopy::new(l.write, l.mem.into(), done).with_event(l.cq_data, false);
            self.cma.queue(match way {
                CopyMethod::CmaBoth => long.split(),
                _ => long,
            });
        }
        false
    }

    /// Copies what waits for a poll, and takes note of accesses that have ended, for
    /// [`ShmRma::report`].
    #[inline]
    pub(crate) fn collect<R: RmaRings>(&mut self, rings: &mut R) {
        if self.cma.load() > 0 {
            let (cma, c) = self.cma_context(rings);
            cma.poll(c);
        }
        self.poll_device(rings);
        rings.poll_ended(&mut self.ended);
    }

    /// The part of [`ShmRma::collect`] that concerns copies by the device.
    #[inline]
    pub(crate) fn poll_device<R: RmaRings>(&mut self, rings: &mut R) {
        if self.device.load() > 0 {
            self.device.poll(rings, &mut self.ended);
        }
    }

    /// Reports the ends that [`ShmRma::collect`] found.
    pub(crate) fn report<P: RmaPort>(&mut self, port: &mut P) {
        let mut all = core::mem::take(&mut self.ended);
        for (done, status) in all.drain(..) {
            let fail = (status != Status::Ok).then(|| failure(status));
            match done.op() {
                Some(ctx) => self.part_done(port, ctx, fail),
                None => port.complete(&done, fail.map_or(Ok(()), Err)),
            }
        }
        self.ended = all;
        if self.over.0 > 0 {
            let now = port.rings().map_or(0, |rings| rings.now());
            self.learn(now);
        }
    }

    /// Writes pieces of long reads and writes as far as there is room.
    pub(crate) fn pump<P: RmaPort>(&mut self, port: &mut P) {
        let mut at = 0;
        self.full.clear();
        while let Some((peer, chosen)) = self.turn.get(at).map(|l| (l.done.peer, l.chosen)) {
            if !chosen {
                if self.full.contains(&peer) || self.cma.copies_for(peer) {
                    at += 1;
                    continue;
                }
                if !self.choose(at, port) {
                    continue;
                }
            }
            let Some(mut l) = self.turn.remove(at) else {
                break;
            };
            let ctx = l.ctx;
            match write_pieces(&mut l, port) {
                PiecesStep::Over(failed) => self.part_done(port, ctx, failed),
                PiecesStep::Waits => {
                    self.turn.insert(at, l);
                    self.full.push(peer);
                    at += 1;
                }
            }
        }
    }

    /// Ends a piece of an access, or the writing of its pieces; after the last the access ends.
    fn part_done<P: RmaPort>(&mut self, port: &mut P, ctx: u32, failed: Option<Failure>) {
        if let Some((1, len, _)) = port.parts(ctx) {
            self.ends(ctx, len);
        }
        port.part_done(ctx, failed);
    }
}

/// The completion of an access: deferred work gets an operation record.
fn tracked<P: RmaPort>(port: &mut P, r: &RmaReq<SendData>, done: Completion) -> Completion {
    match r.common.work {
        None => done,
        Some(_) => Completion {
            report: Report::Op(port.open(r, done)),
            ..done
        },
    }
}

/// Takes back [`tracked`].
fn drop_tracked<P: RmaPort>(port: &mut P, done: Completion) {
    if let Some(ctx) = done.op() {
        port.discard(ctx);
    }
}

/// How far the pieces of a long access are.
enum PiecesStep {
    /// The next piece, or the event for the target, has to wait.
    Waits,
    /// All are on their way, or none follows because the access has failed.
    Over(Option<Failure>),
}

/// Writes pieces of an access into the ring, as far as there is room.
fn write_pieces<P: RmaPort>(l: &mut LongRma, port: &mut P) -> PiecesStep {
    let piece = if l.mem.len() > BIG { BIG_PIECE } else { PIECE };
    while l.off < l.mem.len() {
        let Some(rings) = port.rings() else {
            return PiecesStep::Over(Some(failure(Status::RemoteUnresponsive)));
        };
        let part = l.mem.part(l.off, piece);
        let done = l.completion_at(l.off, part.len());
        let posted = match l.write {
            true => rings.put(done, Payload::Piece(part), None),
            false => rings.get(done, Payload::Piece(part)),
        };
        match posted {
            Verdict::Done | Verdict::Queued => {
                port.add_part(l.ctx);
                l.off += part.len();
            }
            Verdict::NoResources => return PiecesStep::Waits,
            // The ring takes no more for now.
            Verdict::Unsupported | Verdict::Failed(_) => {
                if let Some(step) = copy_piece(l, port) {
                    return step;
                }
            }
        }
    }
    match l.cq_data {
        Some(_) => send_event_of_pieces(l, port),
        None => PiecesStep::Over(None),
    }
}

/// Copies the next bytes of an access from here, or leaves all that are missing to the adapter.
/// `None`: nothing is left to write.
fn copy_piece<P: RmaPort>(l: &mut LongRma, port: &mut P) -> Option<PiecesStep> {
    let rings = port.rings()?;
    let part = l.mem.part(l.off, POLL_BUDGET);
    let at = l.completion_at(l.off, part.len());
    match rings.cma_access(at.peer, l.write, &LocalBuffer::Piece(part), at.remote) {
        Ok(()) => {
            l.off += part.len();
            (l.off < l.mem.len()).then_some(PiecesStep::Waits)
        }
        Err(RmaDenied::Status(s)) => {
            l.off = l.mem.len();
            Some(PiecesStep::Over(Some(failure(s))))
        }
        Err(RmaDenied::Unsupported) => {
            let rest = l.mem.part(l.off, usize::MAX);
            let done = l.completion_at(l.off, rest.len());
            l.off = l.mem.len();
            rings.add_retry(AdapterRetry {
                done,
                write: l.write,
                flags: 0,
                word: 0,
                mem: rest,
                bytes: None,
            });
            port.add_part(l.ctx);
            None
        }
    }
}

/// Sends the target the event of an access whose pieces are all written. The target gets one, when
/// everything is there.
fn send_event_of_pieces<P: RmaPort>(l: &LongRma, port: &mut P) -> PiecesStep {
    match port.parts(l.ctx) {
        Some((_, _, true)) => return PiecesStep::Over(None),
        Some((1, ..)) => {}
        _ => return PiecesStep::Waits,
    }
    let what = (l.done.remote.key, l.mem.len(), l.cq_data, true);
    let sent = port.rings().map(|r| r.send_event(l.done.peer, what));
    match sent {
        None | Some(Verdict::NoResources) => PiecesStep::Waits,
        Some(_) => PiecesStep::Over(None),
    }
}

/// Starts an atomic. Returns whether to report its success now: `early` is set, and the atomic is
/// certain to be carried out. `Unsupported`, and nothing done, when another route has to carry it.
#[inline]
pub(crate) fn atomic(
    rings: &mut TxRings,
    a: &AtomicRequest,
    early: bool,
    mut done: Completion,
) -> (Verdict, bool) {
    let early = early && rings.permits(done.peer, done.remote, a.len, true);
    if early {
        let entry = done.report == Report::Entry;
        done.report = Report::Early { entry };
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
