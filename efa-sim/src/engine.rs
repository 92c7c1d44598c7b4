//! The adapter's engine: takes work requests out of send queues, carries packets, copies memory,
//! writes completions and notifies.
//!
//! A work request becomes a [`Packet`], which is delivered at once, later (reordering, a receiver
//! that is not ready) or never. Everything happens in one thread, a little for each queue pair in
//! turn.

use crate::bytes::{FieldWriter, Fields};
use crate::counters;
use crate::device::*;
use crate::shared::{fetch, store};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Completion statuses (`efa_io_comp_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    Flushed = 1,
    UnsupportedOp = 3,
    InvalidAh = 4,
    InvalidLkey = 5,
    BadLength = 6,
    RemoteBadAddress = 7,
    RemoteAbort = 8,
    BadQpn = 9,
    NotReady = 10,
    RemoteBadLength = 11,
    Unresponsive = 13,
    UnknownPeer = 14,
    Unreachable = 15,
}

/// Kinds of requests.
const SEND: u8 = 0;
const READ: u8 = 1;
const WRITE: u8 = 2;
/// Flags of `ctrl1`.
const HAS_IMM: u8 = 0x10;
const INLINE: u8 = 0x20;
/// Work requests taken from one queue before the next one's turn, and packets delivered in one
/// turn.
const BURST: usize = 16;
const PACKETS: usize = 32;
/// Bytes of a read or write moved in one turn.
const STEP: usize = 256 << 10;
/// How long a sender waits before it tries a receiver again.
const RNR_DELAY: Duration = Duration::from_micros(200);
/// Bytes of the Global Routing Header in front of a datagram.
const GRH: usize = 40;

/// Scatter/gather entry of a work request.
#[derive(Clone, Copy, Debug)]
struct Sge {
    addr: u64,
    len: u32,
    lkey: u32,
}

/// A work request under way.
struct Packet {
    from: QpId,
    req_id: [u8; 2],
    req_id_ex: [u8; 6],
    op: u8,
    to: [u8; 16],
    to_qpn: u16,
    qkey: u32,
    imm: Option<[u8; 4]>,
    /// Payload of a send or of an inline write.
    data: Vec<u8>,
    /// Local memory of a read or write.
    local: Option<Sge>,
    remote: (u64, u32, u32),
    /// Bytes of a read or write that are done.
    done: usize,
    tries: u32,
    not_before: Option<Instant>,
}

/// Packets under way.
pub struct Net {
    queue: VecDeque<Packet>,
    later: Vec<Packet>,
    rng: u64,
    carried: u64,
    scratch: Vec<u8>,
}

impl Net {
    pub fn new(seed: u64) -> Net {
        Net {
            queue: VecDeque::new(),
            later: Vec::new(),
            rng: seed | 1,
            carried: 0,
            scratch: Vec::new(),
        }
    }

    /// A number below `n` (xorshift).
    fn below(&mut self, n: usize) -> usize {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng >> 16) as usize % n.max(1)
    }
}

/// A receive, taken off its queue.
struct Receive {
    req_id: u16,
    pieces: Vec<Sge>,
}

impl Device {
    /// Runs one turn: takes requests, delivers packets, sends events. Whether there was work.
    pub fn work(&mut self) -> bool {
        let ids: Vec<QpId> = self.qps.keys().copied().collect();
        let mut some = false;
        for id in ids {
            some |= self.take_requests(id);
        }
        let now = Instant::now();
        let mut i = 0;
        while i < self.net.later.len() {
            if self.net.later[i].not_before.is_none_or(|t| t <= now) {
                let p = self.net.later.swap_remove(i);
                self.net.queue.push_back(p);
            } else {
                i += 1;
            }
        }
        for _ in 0..PACKETS.min(self.net.queue.len()) {
            let span = self.net.queue.len().min(self.cfg.reorder + 1);
            let at = self.net.below(span);
            if let Some(p) = self.net.queue.remove(at) {
                some = true;
                self.deliver(p);
            }
        }
        self.notify_all();
        some
    }

    /// Whether packets wait for their retry time.
    pub fn waits(&self) -> bool {
        !self.net.later.is_empty()
    }

    // ---- send queues ---------------------------------------------------------------------

    fn take_requests(&mut self, id: QpId) -> bool {
        let mut n = 0;
        while n < BURST {
            let Some(qp) = self.qps.get_mut(&id) else {
                break;
            };
            let (state, bells) = (qp.state, qp.bells.clone());
            let Some(sq) = qp.sq.as_mut().filter(|_| state >= RTS) else {
                break;
            };
            if bells.load(sq.bell) as u16 == sq.taken {
                break;
            }
            let slot = usize::from(sq.taken & (sq.depth - 1));
            let mut wqe = [0; 128];
            let wqe = &mut wqe[..sq.entry];
            sq.memory.read(sq.at + slot * sq.entry, wqe);
            sq.taken = sq.taken.wrapping_add(1);
            n += 1;
            self.request(id, wqe);
        }
        n > 0
    }

    fn request(&mut self, id: QpId, wqe: &[u8]) {
        let f = Fields(wqe);
        let (ctrl1, count) = (f.u8(2), f.u16(6));
        let op = ctrl1 & 0xf;
        let mut p = Packet {
            from: id,
            req_id: f.u16(0).to_le_bytes(),
            req_id_ex: core::array::from_fn(|i| f.u8(26 + i)),
            op,
            to: [0; 16],
            to_qpn: f.u16(4),
            qkey: f.u32(16),
            imm: (ctrl1 & HAS_IMM != 0).then(|| f.u32(8).to_le_bytes()),
            data: Vec::new(),
            local: None,
            remote: (0, 0, 0),
            done: 0,
            tries: 0,
            not_before: None,
        };
        let status = self.fill(&mut p, &f, ctrl1, count);
        match status {
            Status::Ok => self.net.queue.push_back(p),
            s => self.sent(&p, s),
        }
    }

    /// Parses the rest of a request and fetches its payload.
    fn fill(&mut self, p: &mut Packet, f: &Fields, ctrl1: u8, count: u16) -> Status {
        let Some(qp) = self.qps.get(&p.from) else {
            return Status::Flushed;
        };
        if qp.state == ERR || qp.state == SQE {
            return Status::Flushed;
        }
        let ah = f.u16(12);
        let peers = self.contexts.get(&qp.context).map(|c| &c.peers);
        let gid = peers.and_then(|p| p.iter().find(|(_, (n, _))| *n == ah));
        let Some((gid, _)) = gid else {
            return Status::InvalidAh;
        };
        p.to = *gid;
        let sge = |at: usize| Sge {
            len: f.u32(at),
            lkey: f.u32(at + 4) & 0xff_ffff,
            addr: f.u64(at + 8),
        };
        let inline = |at: usize| f.0.get(at..at + usize::from(count)).map(<[u8]>::to_vec);
        match p.op {
            SEND if ctrl1 & INLINE != 0 => match inline(32) {
                Some(b) => p.data = b,
                None => return Status::BadLength,
            },
            SEND => {
                let pieces: Vec<Sge> = (0..usize::from(count.min(2)))
                    .map(|i| sge(32 + 16 * i))
                    .collect();
                let total: usize = pieces.iter().map(|s| s.len as usize).sum();
                if total > self.cfg.mtu as usize {
                    return Status::BadLength;
                }
                for s in pieces {
                    let at = p.data.len();
                    p.data.resize(at + s.len as usize, 0);
                    let Some((pid, place)) = self.local(p.from, &s, false) else {
                        return Status::InvalidLkey;
                    };
                    if fetch(pid, place, &mut p.data[at..]).is_err() {
                        return Status::InvalidLkey;
                    }
                }
            }
            READ | WRITE => {
                p.remote = (f.u64(40), f.u32(32), f.u32(36));
                if ctrl1 & INLINE != 0 && p.op == WRITE {
                    match inline(48) {
                        Some(b) => p.data = b,
                        None => return Status::BadLength,
                    }
                    p.remote.1 = p.data.len() as u32;
                } else if count > 0 {
                    let s = sge(48);
                    if self.local(p.from, &s, p.op == READ).is_none() {
                        return Status::InvalidLkey;
                    }
                    p.local = Some(s);
                }
                let able = match p.op {
                    READ => !self.cfg.no_rdma_read,
                    _ => !self.cfg.no_rdma_write,
                };
                if !able {
                    return Status::UnsupportedOp;
                }
                if p.remote.1 > self.cfg.rdma_size {
                    return Status::BadLength;
                }
            }
            _ => return Status::UnsupportedOp,
        }
        Status::Ok
    }

    /// Process and address of a queue pair's local memory; `None` when the key does not permit it.
    fn local(&self, qp: QpId, s: &Sge, write: bool) -> Option<(u32, u64)> {
        let q = self.qps.get(&qp)?;
        let mr = self.mrs.get(&(q.adapter, s.lkey))?;
        let may = mr.context == q.context && mr.pd == q.pd;
        if s.len == 0 && may {
            return Some((mr.pid, mr.start));
        }
        let place = mr.place(s.addr, s.len.into())?;
        (may && (!write || mr.access & LOCAL_WRITE != 0)).then_some((mr.pid, place))
    }

    // ---- delivery ------------------------------------------------------------------------

    /// Whether the link is down (`--link-down-after`).
    pub fn link_down(&self) -> bool {
        self.cfg
            .link_down_after
            .is_some_and(|n| self.net.carried > n)
    }

    fn deliver(&mut self, mut p: Packet) {
        if !self.qps.contains_key(&p.from) {
            return;
        }
        self.net.carried += 1;
        if self.link_down() {
            return self.sent(&p, Status::Unreachable);
        }
        if self.cfg.dead_after.is_some_and(|n| self.net.carried > n) {
            return self.sent(&p, Status::Unresponsive);
        }
        let Some(adapter) = self.adapter_of(&p.to) else {
            return self.sent(&p, Status::Unresponsive);
        };
        let to = (adapter, p.to_qpn);
        let datagram = self.qps[&p.from].datagram;
        let Some(qp) = self
            .qps
            .get(&to)
            .filter(|q| q.state >= RTR && q.state != ERR)
        else {
            let s = if datagram { Status::Ok } else { Status::BadQpn };
            return self.sent(&p, s);
        };
        if qp.qkey != p.qkey || qp.datagram != datagram {
            let s = if datagram {
                Status::Ok
            } else {
                Status::Unresponsive
            };
            return self.sent(&p, s);
        }
        let unsolicited = qp.unsolicited;
        let status = match p.op {
            SEND => self.message(to, &mut p, datagram),
            _ => match self.move_memory(to, &mut p) {
                // The rest comes later.
                None => return self.net.queue.push_back(p),
                Some(Status::Ok) if p.op == WRITE && p.imm.is_some() => {
                    self.announce(to, &p, unsolicited)
                }
                Some(s) => s,
            },
        };
        if status == Status::NotReady {
            p.tries += 1;
            let most = self.qps[&p.from].rnr_retry;
            if datagram {
                return self.sent(&p, Status::Ok);
            }
            if most >= 7 || p.tries <= most.into() {
                p.not_before = Some(Instant::now() + RNR_DELAY);
                return self.net.later.push(p);
            }
        }
        self.sent(&p, status);
    }

    /// Delivers a message into a receive.
    fn message(&mut self, to: QpId, p: &mut Packet, datagram: bool) -> Status {
        let first = p.tries == 0 && self.cfg.rnr > 0;
        if first && self.net.below(100) < self.cfg.rnr as usize {
            return Status::NotReady;
        }
        let Some(r) = self.receive(to) else {
            return Status::NotReady;
        };
        let mut data = core::mem::take(&mut p.data);
        if datagram {
            let mut whole = vec![0; GRH];
            whole[8..24].copy_from_slice(&self.cfg.gid_of(p.from.0));
            whole[24..40].copy_from_slice(&p.to);
            whole.append(&mut data);
            data = whole;
        }
        let room: u64 = r.pieces.iter().map(|s| u64::from(s.len)).sum();
        if data.len() as u64 > room {
            self.received(to, p, r.req_id, Status::BadLength, data.len());
            return Status::RemoteBadLength;
        }
        let mut at = 0;
        for s in &r.pieces {
            let n = (s.len as usize).min(data.len() - at);
            let put = self
                .local(to, s, true)
                .ok_or(())
                .and_then(|(pid, place)| store(pid, place, &data[at..at + n]));
            if put.is_err() {
                self.received(to, p, r.req_id, Status::InvalidLkey, 0);
                return Status::RemoteAbort;
            }
            at += n;
        }
        self.received(to, p, r.req_id, Status::Ok, data.len());
        Status::Ok
    }

    /// Copies the next part of a read or write; `None` when more is left.
    fn move_memory(&mut self, to: QpId, p: &mut Packet) -> Option<Status> {
        let target = &self.qps[&to];
        let source = self.cfg.gid_of(p.from.0);
        let context = self.contexts.get(&target.context)?;
        if !context.peers.contains_key(&source) {
            return Some(Status::UnknownPeer);
        }
        let (addr, len, rkey) = p.remote;
        let wrong = self.cfg.bad_keys > 0 && p.done == 0;
        if wrong && self.net.below(100) < self.cfg.bad_keys as usize {
            return Some(Status::RemoteBadAddress);
        }
        if len == 0 {
            return Some(Status::Ok);
        }
        let need = if p.op == READ {
            REMOTE_READ
        } else {
            REMOTE_WRITE
        };
        let far = self
            .mrs
            .get(&(to.0, rkey))
            .filter(|m| m.context == target.context && m.pd == target.pd && m.access & need != 0);
        let place = far.and_then(|m| Some((m.pid, m.place(addr, len.into())?)));
        let Some((far_pid, far_at)) = place else {
            return Some(Status::RemoteBadAddress);
        };
        if !p.data.is_empty() {
            return Some(match store(far_pid, far_at, &p.data) {
                Ok(()) => Status::Ok,
                Err(()) => Status::RemoteBadAddress,
            });
        }
        let Some(near) = p.local else {
            return Some(Status::BadLength);
        };
        let Some((pid, at)) = self.local(p.from, &near, p.op == READ) else {
            return Some(Status::InvalidLkey);
        };
        let n = STEP.min(len as usize - p.done);
        let off = p.done as u64;
        let mut b = core::mem::take(&mut self.net.scratch);
        b.resize(n, 0);
        let (from, into) = if p.op == READ {
            ((far_pid, far_at + off), (pid, at + off))
        } else {
            ((pid, at + off), (far_pid, far_at + off))
        };
        let read = fetch(from.0, from.1, &mut b);
        let moved = read.and_then(|()| store(into.0, into.1, &b));
        self.net.scratch = b;
        if moved.is_err() {
            return Some(Status::RemoteBadAddress);
        }
        p.done += n;
        (p.done == len as usize).then_some(Status::Ok)
    }

    /// Completes a write with immediate data at the target.
    fn announce(&mut self, to: QpId, p: &Packet, unsolicited: bool) -> Status {
        let len = p.remote.1 as usize;
        if unsolicited {
            self.complete_recv(to, p, 0, Status::Ok, len, true);
            return Status::Ok;
        }
        match self.receive(to) {
            Some(r) => {
                self.received(to, p, r.req_id, Status::Ok, len);
                Status::Ok
            }
            None => Status::NotReady,
        }
    }

    /// Takes the next receive of a queue pair: the descriptors up to the one marked as the last.
    fn receive(&mut self, id: QpId) -> Option<Receive> {
        const LAST: u32 = 1 << 31;
        let qp = self.qps.get_mut(&id)?;
        let rq = qp.rq.as_mut()?;
        let posted = qp.bells.load(rq.bell) as u16;
        let mut r = Receive {
            req_id: 0,
            pieces: Vec::new(),
        };
        let mut at = rq.taken;
        while at != posted {
            let mut d = [0; 16];
            let slot = usize::from(at & (rq.depth - 1));
            rq.memory.read(rq.at + slot * rq.entry, &mut d);
            at = at.wrapping_add(1);
            let f = Fields(&d);
            if r.pieces.is_empty() {
                r.req_id = f.u16(8);
            }
            r.pieces.push(Sge {
                addr: f.u64(0),
                len: f.u16(10).into(),
                lkey: f.u32(12) & 0xff_ffff,
            });
            if f.u32(12) & LAST != 0 {
                rq.taken = at;
                return Some(r);
            }
        }
        None
    }

    // ---- completions ---------------------------------------------------------------------

    /// Completes a work request of a send queue.
    fn sent(&mut self, p: &Packet, status: Status) {
        let Some(qp) = self.qps.get(&p.from) else {
            return;
        };
        let mut e = FieldWriter::new(32);
        e.put(0, &p.req_id).u8(2, status as u8);
        e.u8(3, 1 << 1 | p.op << 4).u16(4, qp.number);
        e.put(6, &p.req_id_ex);
        let (context, cq, sub) = (qp.context, qp.send_cq, qp.sub.0);
        self.complete(context, cq, sub, e);
        let what = match p.op {
            READ => counters::READ,
            WRITE => counters::WRITE,
            _ => counters::SEND,
        };
        self.count(p.from, what, status == Status::Ok);
        if status == Status::Ok && p.op != SEND {
            let what = match p.op {
                READ => counters::REMOTE_READ,
                _ => counters::REMOTE_WRITE,
            };
            if let Some(adapter) = self.adapter_of(&p.to) {
                self.count((adapter, p.to_qpn), what, true);
            }
        }
    }

    fn received(&mut self, to: QpId, p: &Packet, req_id: u16, status: Status, len: usize) {
        self.complete_recv(to, p, req_id, status, len, false);
    }

    fn complete_recv(
        &mut self,
        to: QpId,
        p: &Packet,
        req_id: u16,
        status: Status,
        len: usize,
        unsolicited: bool,
    ) {
        let write = p.op == WRITE;
        if !write {
            self.count(to, counters::RECV, status == Status::Ok);
        }
        let source = self.cfg.gid_of(p.from.0);
        let Some(qp) = self.qps.get(&to) else { return };
        let Some(c) = self.contexts.get(&qp.context) else {
            return;
        };
        let ah = c.peers.get(&source).map_or(UNKNOWN_AH, |(n, _)| *n);
        let imm = u8::from(p.imm.is_some());
        let flags = 2 << 1 | imm << 3 | u8::from(write) << 5 | u8::from(unsolicited) << 7;
        let mut e = FieldWriter::new(32);
        e.u16(0, req_id).u8(2, status as u8).u8(3, flags);
        e.u16(4, qp.number).u16(6, len as u16).u16(8, ah);
        e.u16(10, p.from.1).put(12, &p.imm.unwrap_or_default());
        let sgid = c.cqs.get(&qp.recv_cq).is_some_and(|c| c.sgid);
        if write {
            e.u16(16, (len >> 16) as u16);
        } else if ah == UNKNOWN_AH && sgid {
            e.put(16, &source);
        }
        let (context, cq, sub) = (qp.context, qp.recv_cq, qp.sub.1);
        self.complete(context, cq, sub, e);
    }

    /// Writes a completion.
    fn complete(&mut self, context: ContextId, cq: u32, sub: usize, mut e: FieldWriter) {
        let c = self.contexts.get_mut(&context);
        let Some(cq) = c.and_then(|c| c.cqs.get_mut(&cq)) else {
            return;
        };
        let Some(put) = cq.put.get_mut(sub) else {
            return;
        };
        let depth = cq.depth as u64;
        // The consumer's phase begins with 1 and flips with every round.
        let phase = u8::from((*put / depth) & 1 == 0);
        let flags = Fields(&e.0).u8(3) & !1 | phase;
        e.u8(3, flags);
        let at = (sub * cq.depth + (*put % depth) as usize) * cq.entry;
        cq.ring.memory().publish(at, &e.0[..cq.entry]);
        *put += 1;
    }

    /// Completes with `Flushed` all requests and receives of a queue pair in the error state.
    pub fn flush(&mut self, id: QpId) {
        while self.take_requests(id) {}
        while let Some(r) = self.receive(id) {
            let Some(qp) = self.qps.get(&id) else { return };
            let mut e = FieldWriter::new(32);
            e.u16(0, r.req_id).u8(2, Status::Flushed as u8);
            e.u8(3, 2 << 1).u16(4, qp.number);
            let (context, cq, sub) = (qp.context, qp.recv_cq, qp.sub.1);
            self.complete(context, cq, sub, e);
        }
    }

    // ---- notification --------------------------------------------------------------------

    /// Sends events for armed completion queues. The doorbell is a word in memory here: a later
    /// doorbell may overwrite an arming before the engine reads it. So a queue counts as armed
    /// once it was armed, until the event of its serial number has gone out.
    fn notify_all(&mut self) {
        const ARM: u32 = 1 << 31;
        for c in self.contexts.values_mut() {
            if c.channels.is_empty() {
                continue;
            }
            for q in c.cqs.values_mut() {
                let (Some(channel), Some(bell)) = (&q.channel, &q.bell) else {
                    continue;
                };
                let word = bell.load(crate::objects::CQ_BELL);
                q.armed |= word & ARM != 0;
                let serial = word >> 29 & 3;
                let put: u64 = q.put.iter().sum();
                let news = put as u16 != word as u16;
                if q.armed && news && q.served != Some(serial) {
                    q.served = Some(serial);
                    if crate::sock::send(&channel.ours, &q.user.to_le_bytes()) {
                        q.events += 1;
                    }
                }
            }
        }
    }
}
