//! Implements `proto::Port` for one endpoint: its queue pair, buffers and completion queues.

mod ends;

use crate::core::slab::Slab;
use crate::device::any::{AnyQp, Dev};
use crate::device::{AmHeader, Device, QueuePair};
use crate::hmem::{self, UserMem};
use crate::proto::{
    AtomicKind, Body, Failure, PacketPayload, PeerId, Port, ReadPost, Received, RecvEntryMatch,
    Token,
};
use crate::prov::contract::{Call, Entry, ErrEntry};
use crate::prov::efa::av::Av;
use crate::prov::efa::endpoint::failure;
use crate::prov::efa::ops::{OpKind, UserOp};
use crate::prov::efa::peers::Peers;
use crate::prov::efa::same_host::shm_rma::{self, TargetAtomic};
use crate::prov::efa::same_host::ShmState;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, BoundCntrs, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::prov::reports::CqBinding;
use crate::shm::kind;
use crate::shm::{LocalBuffer, MrTable, RecordHead, RecordHeader, TxRings};
use crate::transport::{Completion, Payload, RemoteAddr, Report, Status, Transport, Verdict};
use crate::types::*;
use crate::wire::{Iovs, RmaIov, Rta, RtaKind};

/// Borrowed parts of an endpoint and its domain, for the length of one call.
pub(crate) struct EpPort<'a> {
    pub id: u32,
    pub dev: &'a Dev,
    /// The table of memory regions that peers on the same host may read.
    pub table: Option<&'a MrTable>,
    pub qp: &'a mut AnyQp,
    /// The rings to peers on the same host.
    pub rings: Option<&'a mut TxRings>,
    /// State of transfers through these rings.
    pub shm: &'a mut ShmState,
    /// Writes in several parts whose immediate data is still to be posted.
    pub late_imms: &'a mut Vec<u32>,
    pub peers: &'a mut Peers,
    pub ops: &'a mut Slab<UserOp>,
    pub cqs: &'a mut Slab<Cq>,
    pub cntrs: &'a mut Slab<Cntr>,
    pub mr_cntrs: &'a [(u64, u32, u64)],
    /// Steps of collective operations that have ended.
    pub coll_steps: &'a mut Vec<(u32, Option<Failure>)>,
    pub av: Option<&'a Av>,
    pub tx: Option<CqBinding>,
    pub rx: Option<CqBinding>,
    pub to_cntrs: &'a BoundCntrs,
    /// Data of the operation being posted, when it is to be copied.
    pub inject: Option<&'a [u8]>,
    /// The application asked for sources (FI_SOURCE).
    pub source: bool,
    /// Whether RDMA reads from and into message memory are used.
    pub rdma_read: bool,
    /// A peer's write with data takes a receive.
    pub writes_take_receives: bool,
}

/// Builds the port of endpoint `$id` in state `$s`, whose parts `$ep` and `$qp` are borrowed
/// already.
macro_rules! ep_port {
    ($s:expr, $id:expr, $ep:expr, $qp:expr, $rings:expr, $shm:expr, $late:expr, $inject:expr) => {
        EpPort {
            id: $id,
            dev: &$s.dev,
            table: $s.table.as_deref(),
            qp: $qp,
            rings: $rings,
            shm: $shm,
            late_imms: $late,
            peers: &mut $s.peers,
            ops: &mut $s.ops,
            cqs: &mut $s.cqs,
            cntrs: &mut $s.cntrs,
            mr_cntrs: &$s.mr_cntrs,
            coll_steps: &mut $s.colls.ended,
            av: $ep.av.and_then(|a| $s.avs.get(a)),
            tx: $ep.tx,
            rx: $ep.rx,
            to_cntrs: &$ep.cntrs,
            inject: $inject,
            source: $ep.caps & FI_SOURCE != 0,
            rdma_read: $ep.rdma_read,
            writes_take_receives: $ep.writes_take_receives,
        }
    };
}
pub(super) use ep_port;

/// `Err` with `status` when a device could not copy some of this memory.
pub(crate) fn copied(mem: &UserMem, status: Status) -> Result<(), Status> {
    match hmem::take_failure(mem) {
        false => Ok(()),
        true => Err(status),
    }
}

impl Port for EpPort<'_> {
    #[inline]
    fn room(&self) -> bool {
        self.qp.room()
    }

    #[inline]
    fn send(&mut self, to: PeerId, head: &[u8], load: PacketPayload, token: Token) -> bool {
        let Some(addr) = self.peers.addr(to) else {
            return false;
        };
        let mut copy = Vec::new();
        let lent;
        let payload = match (load, self.inject) {
            (PacketPayload::None, _) => Payload::EMPTY,
            (PacketPayload::Bytes(b), _) => Payload::Inject(b.into()),
            (PacketPayload::Body(b), Some(data)) => {
                let at = b.off as usize;
                Payload::Inject(data.get(at..at + b.len).unwrap_or(&[]).into())
            }
            (PacketPayload::Body(b), None) => match self.ops.get(b.ctx) {
                Some(op) if op.kind == OpKind::User => {
                    lent = op.mem.part(b.off as usize, b.len);
                    Payload::User(&lent)
                }
                // The region may be closed before the packet is sent: the packet carries a copy.
                Some(op) => {
                    copy.resize(b.len, 0);
                    if op.mem.load(b.off as usize, &mut copy) < b.len {
                        return false;
                    }
                    Payload::Inject(copy.as_slice().into())
                }
                None => return false,
            },
        };
        let report = match token {
            Token::Tx(id) => Report::Packet(id),
            Token::Answer(id) => Report::Answer(id),
            Token::Control => Report::Nowhere,
        };
        let done = Completion::internal(report, to);
        if let Some(rings) = &mut self.rings {
            let message = crate::prov::efa::budget::is_message(head);
            let what = RecordHeader {
                kind: kind::PACKET,
                flags: 0,
                message,
            };
            // While the peer has not taken our ring yet, messages wait, for they keep their order
            // only on one route. An answer goes by the adapter: the application may not poll again.
            let sent = match rings.ensure_route(to, addr) {
                true => rings.am_bcopy(done, RecordHead::bytes(what, head), payload),
                false if message => Verdict::NoResources,
                false => Verdict::Unsupported,
            };
            match sent {
                Verdict::Done | Verdict::Queued => {
                    if let Some(id) = token.tx() {
                        self.shm.packets.push_back(id);
                    }
                    return true;
                }
                Verdict::NoResources => return false,
                Verdict::Unsupported | Verdict::Failed(_) => {}
            }
        }
        if !self.qp.connected(to) && self.qp.connect(to, addr).is_err() {
            return false;
        }
        let head = AmHeader::bytes(head);
        let sent = match payload {
            Payload::Inject(_) => self.qp.am_bcopy(done, head, payload),
            lent => self.qp.am_zcopy(done, head, lent),
        };
        sent == Verdict::Queued
    }

    #[inline]
    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]) {
        if let Some(op) = self.ops.get(ctx) {
            op.mem.store(off as usize, bytes);
        }
    }

    fn sent(&mut self, ctx: u32, result: Result<(), Failure>) {
        if let Some(op) = self.take_op(ctx) {
            self.end(op, result);
        }
    }

    fn adopt(&mut self, r: RecvEntryMatch) -> u32 {
        self.ops
            .insert(crate::prov::efa::ops::short_op(self.id, &r))
    }

    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        let mem = self.ops.get(ctx).map_or(UserMem::EMPTY, |op| op.mem);
        let result = result.and_then(|()| copied(&mem, Status::LocalCopyFailed).map_err(failure));
        let room = msg.room as usize;
        let len = usize::try_from(msg.len).unwrap_or(usize::MAX).min(room);
        let Some(op) = self.ops.get(ctx) else { return };
        if op.collective.is_some() {
            return self.received_step(ctx, msg, result);
        }
        let cq_data = if msg.cq_data.is_some() {
            FI_REMOTE_CQ_DATA
        } else {
            0
        };
        let released = if op.multi && !msg.stays {
            FI_MULTI_RECV
        } else {
            0
        };
        let mut entry = Entry {
            context: op.done.context,
            flags: u64::from(op.done.flags) | cq_data | released,
            len,
            buf: op.mem.addr().wrapping_add(msg.base as usize),
            data: msg.cq_data.unwrap_or(0),
            tag: msg.tag,
            src: FI_ADDR_NOTAVAIL,
        };
        let cntrs = op.cntrs(self.to_cntrs.of(CntrKind::Recv));
        let report = op.done.report;
        let text = match &result {
            Ok(()) => String::new(),
            Err(f) if f.errno == FI_ETRUNC => format!(
                "{}: the message has {} bytes, the buffer {room}",
                self.explain(&op.done, msg.from, f),
                msg.len
            ),
            Err(f) => self.explain(&op.done, msg.from, f),
        };
        if !msg.stays {
            self.ops.remove(ctx);
        }
        for c in cntrs {
            self.count_at(c, len, result.is_ok());
        }
        entry.src = self.source_of(msg.from);
        let Some(cq) = self.rx.map(|b| b.cq) else {
            return;
        };
        match result {
            Ok(()) => {
                let entry_due = report == Report::Entry || released != 0;
                if let Some(q) = self.cqs.get_mut(cq).filter(|_| entry_due) {
                    q.push(entry);
                }
            }
            Err(f) => {
                let olen = usize::try_from(msg.len)
                    .unwrap_or(usize::MAX)
                    .saturating_sub(room);
                if let Some(q) = self.cqs.get_mut(cq) {
                    q.push_error(ErrEntry {
                        entry,
                        olen,
                        err: f.errno,
                        prov_errno: i32::from(f.status),
                        text,
                    });
                }
            }
        }
    }

    fn expect(&mut self, peer: PeerId, on: bool) {
        if let Some(a) = self.peers.addr(peer) {
            self.qp.expect(a, on);
        }
    }

    fn prefers_read(&self, peer: PeerId) -> bool {
        // Cross-memory attach works in both directions or in none: one kernel decides for both
        // sides.
        self.rings.as_ref().is_some_and(|n| n.reaches_memory(peer))
    }

    fn expose(&mut self, ctx: u32) -> Option<Iovs> {
        if !self.rdma_read {
            return None;
        }
        let op = self.ops.get_mut(ctx)?;
        let mut list = [RmaIov::default(); crate::wire::MAX_IOV];
        let mut n = 0;
        let mut off = 0;
        for p in op.mem.pieces() {
            let part = op.mem.part(off, p.len());
            off += p.len();
            let key = self.dev.reg_mr(part, FI_REMOTE_READ, None);
            let (Ok(key), Some(to)) = (key, list.get_mut(n)) else {
                op.withdraw(self.dev);
                op.keys.clear();
                return None;
            };
            op.keys.push(key);
            *to = RmaIov {
                addr: p.addr() as u64,
                len: p.len() as u64,
                key,
            };
            n += 1;
        }
        Iovs::new(list.get(..n)?)
    }

    fn read(&mut self, from: PeerId, piece: RmaIov, into: Body, id: u32) -> ReadPost {
        let Some(op) = self.ops.get(into.ctx) else {
            return ReadPost::Refused;
        };
        if !self.rdma_read {
            return ReadPost::Refused;
        }
        let local = op.mem.part(into.off as usize, into.len);
        if let Some(rings) = &mut self.rings {
            // If cross-memory attach refuses, the adapter tries, and reports the error if there is
            // one.
            if rings
                .cma_access(
                    from,
                    false,
                    &LocalBuffer::Mem(&local),
                    RemoteAddr {
                        addr: piece.addr,
                        key: piece.key,
                    },
                )
                .is_ok()
            {
                self.shm.reads.push_back(id);
                return ReadPost::Posted;
            }
        }
        if self.connect(from).is_err() {
            return ReadPost::Refused;
        }
        let done = Completion {
            remote: RemoteAddr {
                addr: piece.addr,
                key: piece.key,
            },
            ..Completion::internal(Report::ProtoRead(id), from)
        };
        match self.qp.get(done, Payload::User(&local)) {
            Verdict::Done | Verdict::Queued => ReadPost::Posted,
            Verdict::NoResources => ReadPost::Busy,
            Verdict::Unsupported | Verdict::Failed(_) => ReadPost::Refused,
        }
    }

    fn open_target(&mut self, at: &Iovs, write: bool) -> Result<u32, Failure> {
        let right = shm_rma::remote_right(write);
        let mem = shm_rma::find(self.dev, at, right).map_err(failure)?;
        let mut op = UserOp::new(self.id, mem, Completion::default());
        op.kind = OpKind::Target { write };
        op.keys = at.as_slice().iter().map(|v| v.key).collect();
        Ok(self.ops.insert(op))
    }

    fn unreadable(&mut self, ctx: u32) -> Option<Failure> {
        let op = self.ops.get(ctx)?;
        copied(&op.mem, Status::RemoteCopyFailed).err().map(failure)
    }

    fn close_target(&mut self, ctx: u32, done: bool) -> Result<(), Failure> {
        let Some(op) = self.ops.remove(ctx) else {
            return Ok(());
        };
        copied(&op.mem, Status::RemoteCopyFailed).map_err(failure)?;
        // One operation, whatever its number of pieces: counted at the first piece's region.
        if let (true, Some(key)) = (done, op.keys.first()) {
            let write = op.kind == OpKind::Target { write: true };
            self.remote_access(*key, op.mem.len(), write);
        }
        Ok(())
    }

    fn written(&mut self, from: PeerId, cq_data: Option<u64>, len: u64) {
        if let Some(data) = cq_data {
            self.report_write(from, data, len as usize);
        }
    }

    fn atomic(&mut self, rta: &Rta, data: &[u8], former: &mut Vec<u8>) -> Result<(), Failure> {
        let a = TargetAtomic {
            to: rta.to,
            datatype: rta.datatype as fi_datatype,
            op: rta.op as fi_op,
            kind: match rta.kind {
                RtaKind::Fetch(_) => AtomicKind::Fetch,
                RtaKind::Compare(_) => AtomicKind::Compare,
                _ => AtomicKind::Write { receipt: false },
            },
        };
        let len = a.apply(self.dev, data, former).map_err(failure)?;
        let key = rta.to.as_slice().first().map_or(0, |v| v.key);
        self.remote_access(key, len, a.counts_as_write());
        Ok(())
    }
}
