//! The software adapter's engine: one queue pair, its peers, and what is under way.
//!
//! Posting puts an [`Op`] on its peer's list; [`Engine::pump`] cuts operations into packets as the
//! flow's window permits and batches them; [`Engine::input`] takes in what arrived, executes RDMA
//! against the memory table and reports events; [`Engine::service`] looks after time. Whoever holds
//! the engine's lock may drive it: the application inside its calls, or the adapter's thread when
//! the application is busy elsewhere (see `thread`).

use super::flow::{dist, RxFlow, TxFlow};
use super::mem::{Access, MemTable};
use super::packet::{self, Head, Kind, DATA_HEAD, HEAD_MAX, MAX_WORDS};
use super::sock::{Datagram, Got, Sock, BATCH, SLOT, SLOTS};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::fault::{Fate, Faults};
use crate::device::{Data, Event, Events, Payload, QpAddr, Remote, Status};
use crate::hmem::UserMem;
use crate::types::*;
use core::ffi::c_void;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

const MS: u64 = 1_000_000;
/// Messages held for an application that does not poll, before senders are told to wait.
const BACKLOG_MSGS: usize = 4096;
/// Bytes of such messages.
const BACKLOG_BYTES: usize = 8 << 20;
/// An acknowledgement goes out at the latest after so many packets or bytes.
const ACK_PACKETS: u32 = 16;
const ACK_BYTES: u32 = 192 << 10;
/// Polls that found nothing before an owed acknowledgement stops waiting for a reply to ride on.
const ACK_IDLE: u32 = 2;
const GEN_SHIFT: u32 = 20;
/// Offset in a read response that says: the region was closed before it was read.
const READ_GONE: u64 = u64::MAX;

/// Settings shared by the queue pairs of an adapter.
#[derive(Clone, Debug)]
pub struct Config {
    /// Payload bytes per packet, and so the largest message.
    pub segment: usize,
    /// Operations under way at most.
    pub depth: usize,
    /// A peer silent for so long, while it owes an answer, is given up. Nanoseconds.
    pub timeout: u64,
    /// Whether runs of packets leave in one system call, cut apart below.
    pub gso: bool,
    /// Text of `FI_EFA_SOFT_FAULT`.
    pub fault: Option<String>,
}

#[derive(Debug)]
enum OpKind {
    Send {
        head_len: usize,
    },
    Write {
        key: u32,
        addr: u64,
        imm: Option<u32>,
    },
    ReadReq {
        id: u32,
        key: u32,
        addr: u64,
        len: u32,
    },
    ReadResp {
        id: u32,
        key: u32,
        addr: u64,
    },
    Ping,
}

/// One posted operation.
#[derive(Debug)]
struct Op {
    wr_id: Option<u64>,
    kind: OpKind,
    /// Header of a send, and payload that was copied at posting.
    copy: Vec<u8>,
    user: UserMem,
    total: u64,
    next: u64,
    unacked: u32,
    cut: bool,
    status: Status,
}

/// One packet of an operation, enough to build it again.
#[derive(Clone, Copy, Debug)]
struct Part {
    op: u32,
    off: u64,
    len: u32,
}

#[derive(Debug)]
struct Read {
    wr_id: u64,
    peer: u32,
    generation: u32,
    local: UserMem,
    got: u64,
}

struct Peer {
    addr: QpAddr,
    to: SocketAddr,
    tx: TxFlow<Part>,
    pending: VecDeque<u32>,
    rx: Option<RxFlow>,
    rx_bytes: u32,
    ack_now: bool,
    /// Something went to the peer since its last message: it converses, and an acknowledgement may
    /// wait for the next reply to ride on.
    replied: bool,
    owed: bool,
    /// Answers the layer above waits for without having anything under way here.
    expect: u32,
    heard_at: u64,
    active: bool,
}

/// See the module text.
pub struct Engine {
    pub me: QpAddr,
    /// The queue pair is gone; the thread may still hold on to this for a moment.
    closed: bool,
    sock: Sock,
    mem: Arc<MemTable>,
    cfg: Config,
    peers: Slab<Peer>,
    by_addr: HashMap<QpAddr, u32>,
    ops: Slab<Op>,
    user_ops: usize,
    reads: Slab<Read>,
    spare: Vec<Vec<u8>>,
    out: Vec<Datagram>,
    owed: Vec<u32>,
    active: Vec<u32>,
    acked: Vec<Part>,
    backlog: VecDeque<Event>,
    backlog_bytes: usize,
    got: Vec<Got>,
    faults: Option<Faults<(SocketAddr, Vec<u8>)>>,
    /// Messages that are not let in now; see `QueuePair::hold`.
    pub hold: Option<fn(&[u8]) -> bool>,
    /// Whether peers' reads and writes are events.
    pub remote_events: bool,
    next_flow: u32,
    generation: u32,
    last_service: u64,
}

fn socket_addr(a: &QpAddr) -> SocketAddr {
    let v6 = Ipv6Addr::from(a.gid);
    let ip = match v6.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(v6),
    };
    SocketAddr::new(ip, a.qpn)
}

fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v) => v.to_ipv6_mapped().octets(),
        IpAddr::V6(v) => v.octets(),
    }
}

/// What a poll produces into: events, and where received bytes may stay.
struct Sink<'a> {
    list: &'a mut Vec<Event>,
    /// `None`: received bytes must be copied out, and only while the backlog has room.
    app: bool,
}

impl Engine {
    /// An engine on a bound socket.
    pub fn new(me: QpAddr, sock: Sock, mem: Arc<MemTable>, cfg: Config, seed: u32) -> Engine {
        let faults = cfg.fault.as_deref().and_then(Faults::parse);
        Engine {
            me,
            closed: false,
            sock,
            mem,
            cfg,
            peers: Slab::default(),
            by_addr: HashMap::new(),
            ops: Slab::with_capacity(256),
            user_ops: 0,
            reads: Slab::default(),
            spare: Vec::new(),
            out: Vec::with_capacity(BATCH),
            owed: Vec::new(),
            active: Vec::new(),
            acked: Vec::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            got: Vec::with_capacity(SLOTS),
            faults,
            hold: None,
            remote_events: false,
            next_flow: seed | 1,
            generation: 0,
            last_service: 0,
        }
    }

    /// The socket's descriptor, for epoll.
    pub fn fd(&self) -> i32 {
        self.sock.fd()
    }

    fn new_flow(next: &mut u32) -> TxFlow<Part> {
        *next = next.wrapping_add(1).max(1);
        TxFlow::new(*next, 0, 128 << 10)
    }

    fn peer(&mut self, a: &QpAddr, now: u64) -> u32 {
        if let Some(i) = self.by_addr.get(a) {
            return *i;
        }
        let p = Peer {
            addr: *a,
            to: socket_addr(a),
            tx: Self::new_flow(&mut self.next_flow),
            pending: VecDeque::new(),
            rx: None,
            rx_bytes: 0,
            ack_now: false,
            replied: false,
            owed: false,
            expect: 0,
            heard_at: now,
            active: false,
        };
        let i = self.peers.insert(p);
        self.by_addr.insert(*a, i);
        i
    }

    fn activate(&mut self, pi: u32) {
        if let Some(p) = self.peers.get_mut(pi).filter(|p| !p.active) {
            p.active = true;
            self.active.push(pi);
        }
    }

    // ---- posting -------------------------------------------------------------------------

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn add(&mut self, to: &QpAddr, op: Op, now: u64) -> u32 {
        let pi = self.peer(to, now);
        let user = op.wr_id.is_some();
        let i = self.ops.insert(op);
        if let Some(p) = self.peers.get_mut(pi) {
            p.pending.push_back(i);
        }
        self.user_ops += usize::from(user);
        self.activate(pi);
        pi
    }

    /// Posts a send; see `QueuePair::post_send`.
    pub fn send(
        &mut self,
        wr_id: u64,
        to: &QpAddr,
        head: &[u8],
        payload: Payload,
        now: u64,
    ) -> Result<()> {
        let len = match payload {
            Payload::Copy(b) => b.len(),
            Payload::User(m) => m.len(),
        };
        if head.len() + len > self.cfg.segment || head.len() > HEAD_MAX - packet::BASE {
            return Err(FI_EMSGSIZE);
        }
        if self.user_ops >= self.cfg.depth {
            return Err(FI_EAGAIN);
        }
        let mut copy = self.buffer();
        copy.extend_from_slice(head);
        let user = match payload {
            Payload::Copy(b) => {
                copy.extend_from_slice(b);
                UserMem::EMPTY
            }
            Payload::User(m) => m,
        };
        let kind = OpKind::Send {
            head_len: head.len(),
        };
        self.add(to, Self::op(Some(wr_id), kind, copy, user, len as u64), now);
        Ok(())
    }

    fn op(wr_id: Option<u64>, kind: OpKind, copy: Vec<u8>, user: UserMem, total: u64) -> Op {
        Op {
            wr_id,
            kind,
            copy,
            user,
            total,
            next: 0,
            unacked: 0,
            cut: false,
            status: Status::Ok,
        }
    }

    /// Posts an RDMA write; see `QueuePair::post_write`.
    pub fn write(
        &mut self,
        wr_id: u64,
        local: Payload,
        r: &Remote,
        imm: Option<u32>,
        now: u64,
    ) -> Result<()> {
        if self.user_ops >= self.cfg.depth {
            return Err(FI_EAGAIN);
        }
        let mut copy = self.buffer();
        let user = match local {
            Payload::Copy(b) => {
                copy.extend_from_slice(b);
                UserMem::EMPTY
            }
            Payload::User(m) => m,
        };
        let total = (copy.len() + user.len()) as u64;
        let kind = OpKind::Write {
            key: r.key as u32,
            addr: r.addr,
            imm,
        };
        self.add(&r.to, Self::op(Some(wr_id), kind, copy, user, total), now);
        Ok(())
    }

    /// Posts an RDMA read; see `QueuePair::post_read`.
    pub fn read(&mut self, wr_id: u64, local: UserMem, r: &Remote, now: u64) -> Result<()> {
        if self.user_ops + self.reads.len() >= self.cfg.depth {
            return Err(FI_EAGAIN);
        }
        let pi = self.peer(&r.to, now);
        self.generation = self.generation.wrapping_add(1) & 0xfff;
        let generation = self.generation;
        let slot = self.reads.insert(Read {
            wr_id,
            peer: pi,
            generation,
            local,
            got: 0,
        });
        let id = slot | generation << GEN_SHIFT;
        let kind = OpKind::ReadReq {
            id,
            key: r.key as u32,
            addr: r.addr,
            len: local.len() as u32,
        };
        let copy = self.buffer();
        self.add(&r.to, Self::op(None, kind, copy, UserMem::EMPTY, 0), now);
        self.expect(&r.to, true, now);
        Ok(())
    }

    /// The layer above waits (`on`) or no longer waits for an answer of this peer.
    pub fn expect(&mut self, a: &QpAddr, on: bool, now: u64) {
        let pi = self.peer(a, now);
        if let Some(p) = self.peers.get_mut(pi) {
            if on {
                if p.expect == 0 {
                    p.heard_at = now;
                }
                p.expect += 1;
            } else {
                p.expect = p.expect.saturating_sub(1);
            }
        }
        self.activate(pi);
    }

    // ---- sending -------------------------------------------------------------------------

    /// Sends whatever every active peer's window permits.
    pub fn ring(&mut self, now: u64) {
        let mut i = 0;
        while let Some(pi) = self.active.get(i).copied() {
            self.pump(pi, now);
            let busy = self
                .peers
                .get(pi)
                .is_some_and(|p| !p.tx.idle() || !p.pending.is_empty() || p.expect > 0);
            if busy {
                i += 1;
            } else {
                self.active.swap_remove(i);
                if let Some(p) = self.peers.get_mut(pi) {
                    p.active = false;
                }
            }
        }
        self.flush(now);
    }

    fn pump(&mut self, pi: u32, now: u64) {
        let segment = self.cfg.segment as u64;
        loop {
            if self.out.len() >= BATCH {
                self.flush(now);
            }
            let Some(p) = self.peers.get_mut(pi) else {
                return;
            };
            if let Some((psn, part)) = p.tx.resend(now) {
                let part = *part;
                self.build(pi, psn, part);
                continue;
            }
            let Some(&oi) = p.pending.front() else { return };
            let Some(op) = self.ops.get_mut(oi) else {
                p.pending.pop_front();
                continue;
            };
            if op.cut {
                p.pending.pop_front();
                continue;
            }
            let len = (op.total - op.next).min(segment) as u32;
            if !p.tx.may_send(len) {
                return;
            }
            let part = Part {
                op: oi,
                off: op.next,
                len,
            };
            let psn = p.tx.push(part, len, now);
            op.next += u64::from(len);
            op.unacked += 1;
            if op.next >= op.total {
                op.cut = true;
                p.pending.pop_front();
            }
            self.build(pi, psn, part);
        }
    }

    /// Builds a packet and puts it into the batch.
    fn build(&mut self, pi: u32, psn: u32, part: Part) {
        let (Some(p), Some(op)) = (self.peers.get_mut(pi), self.ops.get(part.op)) else {
            return;
        };
        let mut body = UserMem::EMPTY;
        let kind = match op.kind {
            OpKind::Send { .. } => Kind::Send,
            OpKind::Write { key, addr, imm } => Kind::Write {
                op: part.op,
                key,
                addr: addr.wrapping_add(part.off),
                total: op.total as u32,
                imm,
            },
            OpKind::ReadReq { id, key, addr, len } => Kind::ReadReq { id, key, addr, len },
            OpKind::ReadResp { id, key, addr } => {
                // The region may be gone by now, closed while the answer was on its way: then the
                // reader is told so in place of the data.
                let at = addr.wrapping_add(part.off);
                match self
                    .mem
                    .access()
                    .find(key, at, u64::from(part.len), FI_REMOTE_READ)
                {
                    Ok(m) => {
                        body = m;
                        Kind::ReadResp { id, off: part.off }
                    }
                    Err(_) => Kind::ReadResp { id, off: READ_GONE },
                }
            }
            OpKind::Ping => Kind::Ping,
        };
        let (ack_flow, ack_cum) =
            p.rx.as_ref()
                .filter(|r| !r.has_refused())
                .map_or((0, 0), |r| (r.id, r.cum()));
        let head = Head {
            dst_qkey: p.addr.qkey,
            src_qkey: self.me.qkey,
            flow: p.tx.id,
            psn,
            una: p.tx.una(),
            ack_flow,
            ack_cum,
            kind,
        };
        let mut d = Datagram {
            to: p.to,
            head: [0; HEAD_MAX],
            head_len: 0,
            body,
        };
        d.head_len = head.emit(&mut d.head);
        let mut payload_at = 0;
        p.replied |= matches!(op.kind, OpKind::Send { .. } | OpKind::Write { .. });
        if let OpKind::Send { head_len } = op.kind {
            if let (Some(to), Some(from)) = (
                d.head.get_mut(d.head_len..d.head_len + head_len),
                op.copy.get(..head_len),
            ) {
                to.copy_from_slice(from);
                d.head_len += head_len;
            }
            payload_at = head_len;
        }
        if !op.user.is_empty() {
            d.body = op.user.part(part.off as usize, part.len as usize);
        } else if let Some(b) = op
            .copy
            .get(payload_at + part.off as usize..)
            .filter(|b| !b.is_empty())
        {
            let n = b.len().min(part.len as usize);
            // SAFETY: the buffer belongs to the operation, which outlives the batch: `flush` runs
            // before anything can finish the operation.
            let m = unsafe { UserMem::new([(b.as_ptr().cast::<c_void>(), n)]) };
            d.body = m.unwrap_or(UserMem::EMPTY);
        }
        if let Some(r) = p.rx.as_mut().filter(|r| !r.needs_detail()) {
            // The acknowledgement rides along.
            r.acked();
            p.rx_bytes = 0;
        }
        self.out.push(d);
    }

    /// Hands the batch to the kernel.
    fn flush(&mut self, now: u64) {
        if self.out.is_empty() {
            return;
        }
        if self.faults.is_some() {
            self.flush_with_faults(now);
        } else if self.cfg.gso {
            self.flush_runs();
        } else {
            self.sock.send(&self.out);
        }
        self.out.clear();
    }

    fn flush_runs(&mut self) {
        let mut rest = self.out.as_slice();
        let size = |d: &Datagram| d.head_len + d.body.len();
        while let Some(first) = rest.first() {
            let len = size(first);
            let most = (65_000 / len.max(1)).clamp(1, BATCH);
            let n = rest
                .iter()
                .take(most)
                .take_while(|d| d.to == first.to && size(d) == len)
                .count();
            let (run, tail) = rest.split_at(n.max(1));
            if run.len() < 2 || !self.sock.send_run(run, len) {
                self.sock.send(run);
            }
            rest = tail;
        }
    }

    fn flush_with_faults(&mut self, now: u64) {
        let Some(f) = self.faults.as_mut() else {
            return;
        };
        for d in &self.out {
            match f.fate(now) {
                Fate::Lose => {}
                Fate::Send => self.sock.send(core::slice::from_ref(d)),
                Fate::Double => {
                    self.sock.send(core::slice::from_ref(d));
                    self.sock.send(core::slice::from_ref(d));
                }
                Fate::Hold(at) => f.hold(at, (d.to, d.flatten())),
            }
        }
    }

    fn release_held(&mut self, now: u64) {
        let Some(f) = self.faults.as_mut() else {
            return;
        };
        for (to, bytes) in f.due(now) {
            // SAFETY: `bytes` lives until the end of this iteration, after the system call.
            let m = unsafe { UserMem::new([(bytes.as_ptr().cast::<c_void>(), bytes.len())]) };
            let d = Datagram {
                to,
                head: [0; HEAD_MAX],
                head_len: 0,
                body: m.unwrap_or(UserMem::EMPTY),
            };
            self.sock.send(&[d]);
        }
    }

    // ---- acknowledging -------------------------------------------------------------------

    fn owe(&mut self, pi: u32) {
        if let Some(p) = self.peers.get_mut(pi).filter(|p| !p.owed) {
            p.owed = true;
            self.owed.push(pi);
        }
    }

    /// Sends the acknowledgements that are due; all of them with `force`.
    fn ack(&mut self, now: u64, force: bool) {
        let mut i = 0;
        while let Some(pi) = self.owed.get(i).copied() {
            let Some(p) = self.peers.get_mut(pi) else {
                self.owed.swap_remove(i);
                continue;
            };
            let done = match p.rx.as_mut() {
                None => true,
                Some(r) if r.unacked == 0 => true,
                Some(r) => {
                    r.idle_polls += 1;
                    let due = force
                        || p.ack_now
                        || r.unacked >= ACK_PACKETS
                        || p.rx_bytes >= ACK_BYTES
                        || r.needs_detail()
                        || r.idle_polls > ACK_IDLE;
                    if due {
                        self.push_ack(pi);
                    }
                    due
                }
            };
            if done {
                self.owed.swap_remove(i);
                if let Some(p) = self.peers.get_mut(pi) {
                    p.owed = false;
                    p.ack_now = false;
                }
            } else {
                i += 1;
            }
        }
        self.flush(now);
    }

    fn push_ack(&mut self, pi: u32) {
        let rcvbuf = self.sock.rcvbuf();
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let Some(r) = p.rx.as_mut() else { return };
        let mut words = [0u64; MAX_WORDS];
        let n = r.words(&mut words);
        let errs = r.errors();
        let head = Head {
            dst_qkey: p.addr.qkey,
            src_qkey: self.me.qkey,
            flow: p.tx.id,
            psn: 0,
            una: p.tx.una(),
            ack_flow: r.id,
            ack_cum: r.cum(),
            kind: Kind::Ack {
                bytes: (rcvbuf * 5 / 8).min(u32::MAX as usize) as u32,
                packets: (rcvbuf / 2048).clamp(16, 1024) as u16,
                words: n as u8,
                errs: errs.len() as u8,
            },
        };
        let mut d = Datagram {
            to: p.to,
            head: [0; HEAD_MAX],
            head_len: 0,
            body: UserMem::EMPTY,
        };
        let mut at = head.emit(&mut d.head);
        let mut put = |bytes: &[u8]| {
            if let Some(to) = d.head.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        for w in words.iter().take(n) {
            put(&w.to_le_bytes());
        }
        for (psn, status) in errs {
            put(&psn.to_le_bytes());
            put(&(status as u32).to_le_bytes());
        }
        d.head_len = at;
        r.acked();
        p.rx_bytes = 0;
        self.out.push(d);
    }

    // ---- receiving -----------------------------------------------------------------------

    /// The application's poll: what the thread left behind, then what is in the socket.
    pub fn poll(&mut self, into: &mut Events, now: u64) {
        into.list.clear();
        while let Some(e) = self.backlog.pop_front() {
            if let Event::Recv {
                data: Data::Own(v), ..
            } = &e
            {
                self.backlog_bytes = self.backlog_bytes.saturating_sub(v.len());
            }
            into.list.push(e);
            if into.list.len() >= 256 {
                return;
            }
        }
        if into.arena.is_empty() {
            into.arena.resize(SLOTS * SLOT, 0);
        }
        let mut sink = Sink {
            list: &mut into.list,
            app: true,
        };
        self.receive(&mut into.arena, &mut sink, now);
        self.service(&mut into.list, now);
        self.ack(now, false);
        self.ring(now);
    }

    /// The thread's poll: events wait in the backlog. Returns whether there are any.
    pub fn poll_for_thread(&mut self, arena: &mut [u8], now: u64) -> bool {
        // What it took in now would count as delivered, and nobody would ever read it.
        if self.closed {
            return false;
        }
        let mut list = Vec::new();
        loop {
            let mut sink = Sink {
                list: &mut list,
                app: false,
            };
            let n = self.receive(arena, &mut sink, now);
            self.ack(now, true);
            if n < SLOTS {
                break;
            }
        }
        self.service(&mut list, now);
        self.ring(now);
        self.backlog.extend(list);
        !self.backlog.is_empty()
    }

    /// Whether a poll would find events.
    pub fn has_events(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn receive(&mut self, arena: &mut [u8], sink: &mut Sink, now: u64) -> usize {
        let mut got = core::mem::take(&mut self.got);
        got.clear();
        let n = self.sock.recv(arena, &mut got);
        if n > 0 {
            let mem = Arc::clone(&self.mem);
            let access = mem.access();
            for g in &got {
                self.input(g, arena, sink, &access, now);
            }
        }
        self.got = got;
        n
    }

    fn input(&mut self, g: &Got, arena: &[u8], sink: &mut Sink, access: &Access, now: u64) {
        let Some(bytes) = arena.get(g.at..g.at + g.len) else {
            return;
        };
        let Some((h, payload)) = Head::parse(bytes) else {
            return;
        };
        let from = QpAddr {
            gid: gid_of(g.from.ip()),
            qpn: g.from.port(),
            qkey: h.src_qkey,
        };
        if h.dst_qkey != self.me.qkey {
            if h.kind.reliable() {
                self.reset(g.from, &h);
            }
            return;
        }
        let pi = match self.by_addr.get(&from) {
            Some(i) => *i,
            None if h.kind.reliable() => self.peer(&from, now),
            None => return,
        };
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        p.heard_at = now;
        // A separate acknowledgement may name refused packets: those come first, in `selective`.
        if h.ack_flow == p.tx.id && h.kind.reliable() {
            p.tx.ack_below(h.ack_cum, now, &mut self.acked);
        }
        match h.kind {
            Kind::Ack {
                bytes,
                packets,
                words,
                errs,
            } => {
                if h.ack_flow == p.tx.id {
                    p.tx.window(bytes, packets);
                    let refused = self.selective(pi, &h, payload, words, errs, now);
                    for (part, status) in refused {
                        self.refused(part, status, sink.list);
                    }
                }
            }
            Kind::Reset => {
                if h.ack_flow == p.tx.id {
                    self.fail_peer(pi, Status::RemoteBadQpn, sink.list, now);
                }
            }
            _ => {
                p.tx.after_acks();
                self.data(pi, &h, g, payload, sink, access, now);
            }
        }
        self.finish_acked(sink.list);
    }

    /// Selective part of an acknowledgement. Returns the packets the peer refused for good.
    fn selective(
        &mut self,
        pi: u32,
        h: &Head,
        payload: &[u8],
        words: u8,
        errs: u8,
        now: u64,
    ) -> Vec<(Part, Status)> {
        let mut refused = Vec::new();
        let Some(p) = self.peers.get_mut(pi) else {
            return refused;
        };
        let errs_at = words as usize * 8;
        for i in 0..errs as usize {
            let (Some(psn), Some(code)) = (
                packet::u32_at(payload, errs_at + 8 * i),
                packet::u32_at(payload, errs_at + 8 * i + 4),
            ) else {
                break;
            };
            match Status::from_wire(code) {
                Status::RemoteNotReady => p.tx.not_ready(psn, now),
                status => {
                    if let Some(part) = p.tx.get(psn).copied() {
                        refused.push((part, status));
                    }
                }
            }
        }
        p.tx.ack_below(h.ack_cum, now, &mut self.acked);
        for i in 0..words as usize {
            let Some(w) = packet::u64_at(payload, 8 * i) else {
                break;
            };
            for b in (0..64u32).filter(|b| w >> b & 1 == 1) {
                let psn = h.ack_cum.wrapping_add(i as u32 * 64 + b);
                p.tx.ack_sel(psn, now, &mut self.acked);
            }
        }
        p.tx.after_acks();
        refused
    }

    /// A packet that takes effect once.
    #[allow(clippy::too_many_arguments)]
    fn data(
        &mut self,
        pi: u32,
        h: &Head,
        g: &Got,
        payload: &[u8],
        sink: &mut Sink,
        access: &Access,
        now: u64,
    ) {
        let room = sink.app
            || (self.backlog.len() + sink.list.len() < BACKLOG_MSGS
                && self.backlog_bytes < BACKLOG_BYTES);
        self.owe(pi);
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let renew = match &p.rx {
            None => true,
            Some(r) => match dist(h.flow, r.id) {
                0 => false,
                d if d > 0 => true,
                _ => return,
            },
        };
        if renew {
            p.rx = Some(RxFlow::new(h.flow, h.una));
        }
        let Some(r) = p.rx.as_mut() else { return };
        r.settle(h.una);
        if !r.fresh(h.psn) {
            r.note(now);
            p.ack_now = true;
            return;
        }
        let from = p.addr;
        p.rx_bytes = p.rx_bytes.saturating_add(payload.len() as u32);
        let len = payload.len() as u64;
        match h.kind {
            Kind::Send => {
                p.ack_now |= !core::mem::take(&mut p.replied);
                if !room || self.hold.is_some_and(|held| held(payload)) {
                    r.not_ready(h.psn, now);
                    return;
                }
                r.take(h.psn, now);
                let data = if sink.app {
                    let at = (g.at + g.len - payload.len()) as u32;
                    Data::Arena(at, at + payload.len() as u32)
                } else {
                    self.backlog_bytes += payload.len();
                    Data::Own(payload.to_vec())
                };
                sink.list.push(Event::Recv { from, data });
            }
            Kind::Write {
                op,
                key,
                addr,
                total,
                imm,
            } => {
                p.ack_now = true;
                match access.find(key, addr, len, FI_REMOTE_WRITE) {
                    Ok(m) => {
                        m.store(0, payload);
                        r.take(h.psn, now);
                        let counted = imm.is_some() || self.remote_events;
                        if counted && r.write_part(op, len as u32, total) {
                            if let Some(imm) = imm {
                                sink.list.push(Event::WriteImm {
                                    from,
                                    imm,
                                    len: total,
                                });
                            }
                            if self.remote_events {
                                sink.list.push(Event::Remote {
                                    from,
                                    key: u64::from(key),
                                    len: total,
                                    write: true,
                                });
                            }
                        }
                    }
                    Err(s) => {
                        r.refuse(h.psn, s, now);
                    }
                }
            }
            Kind::ReadReq { id, key, addr, len } => {
                p.ack_now = true;
                match access.find(key, addr, u64::from(len), FI_REMOTE_READ) {
                    Ok(_) => {
                        r.take(h.psn, now);
                        let copy = self.buffer();
                        let kind = OpKind::ReadResp { id, key, addr };
                        let op = Self::op(None, kind, copy, UserMem::EMPTY, u64::from(len));
                        self.add(&from, op, now);
                        if self.remote_events {
                            sink.list.push(Event::Remote {
                                from,
                                key: u64::from(key),
                                len,
                                write: false,
                            });
                        }
                    }
                    Err(s) => {
                        r.refuse(h.psn, s, now);
                    }
                }
            }
            Kind::ReadResp { id, off } => {
                p.ack_now = true;
                r.take(h.psn, now);
                self.read_data(pi, id, off, payload, sink.list);
            }
            Kind::Ping => {
                p.ack_now = true;
                r.take(h.psn, now);
            }
            Kind::Ack { .. } | Kind::Reset => {}
        }
    }

    fn read_data(&mut self, pi: u32, id: u32, off: u64, data: &[u8], list: &mut Vec<Event>) {
        let slot = id & ((1 << GEN_SHIFT) - 1);
        let Some(r) = self.reads.get_mut(slot) else {
            return;
        };
        if off == READ_GONE && r.generation == id >> GEN_SHIFT && r.peer == pi {
            let wr_id = r.wr_id;
            self.end_read(slot);
            list.push(Event::Done {
                wr_id,
                status: Status::RemoteAbort,
            });
            return;
        }
        let total = r.local.len() as u64;
        let end = off.saturating_add(data.len() as u64);
        if r.generation != id >> GEN_SHIFT || r.peer != pi || end > total {
            return;
        }
        r.local.store(off as usize, data);
        r.got += data.len() as u64;
        if r.got >= total {
            let wr_id = r.wr_id;
            self.end_read(slot);
            list.push(Event::Done {
                wr_id,
                status: Status::Ok,
            });
        }
    }

    fn end_read(&mut self, slot: u32) {
        if let Some(r) = self.reads.remove(slot) {
            if let Some(p) = self.peers.get_mut(r.peer) {
                p.expect = p.expect.saturating_sub(1);
            }
        }
    }

    /// Tells a sender that nobody of that name lives here.
    fn reset(&mut self, to: SocketAddr, h: &Head) {
        let head = Head {
            dst_qkey: h.src_qkey,
            src_qkey: h.dst_qkey,
            flow: 0,
            psn: 0,
            una: 0,
            ack_flow: h.flow,
            ack_cum: 0,
            kind: Kind::Reset,
        };
        let mut d = Datagram {
            to,
            head: [0; HEAD_MAX],
            head_len: 0,
            body: UserMem::EMPTY,
        };
        d.head_len = head.emit(&mut d.head);
        self.out.push(d);
    }

    // ---- finishing -----------------------------------------------------------------------

    fn finish_acked(&mut self, list: &mut Vec<Event>) {
        while let Some(part) = self.acked.pop() {
            let Some(op) = self.ops.get_mut(part.op) else {
                continue;
            };
            op.unacked = op.unacked.saturating_sub(1);
            if op.cut && op.unacked == 0 {
                self.finish(part.op, list);
            }
        }
    }

    fn finish(&mut self, oi: u32, list: &mut Vec<Event>) {
        let Some(mut op) = self.ops.remove(oi) else {
            return;
        };
        if let Some(wr_id) = op.wr_id {
            self.user_ops -= 1;
            list.push(Event::Done {
                wr_id,
                status: op.status,
            });
        }
        op.copy.clear();
        if self.spare.len() < 64 && op.copy.capacity() <= 4096 {
            self.spare.push(op.copy);
        }
    }

    /// The peer refused a packet: its operation ends with that status.
    fn refused(&mut self, part: Part, status: Status, list: &mut Vec<Event>) {
        let Some(op) = self.ops.get_mut(part.op) else {
            return;
        };
        op.status = status;
        if let OpKind::ReadReq { id, .. } = op.kind {
            let slot = id & ((1 << GEN_SHIFT) - 1);
            if let Some(wr_id) = self.reads.get(slot).map(|r| r.wr_id) {
                self.end_read(slot);
                list.push(Event::Done { wr_id, status });
            }
        }
        if let Some(op) = self.ops.get_mut(part.op) {
            // Nothing more of it is worth sending.
            op.cut = true;
            op.next = op.total;
        }
    }

    fn fail_peer(&mut self, pi: u32, status: Status, list: &mut Vec<Event>, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let mut dead: Vec<u32> = p.tx.drain().map(|part| part.op).collect();
        dead.extend(p.pending.drain(..));
        p.tx = Self::new_flow(&mut self.next_flow);
        p.expect = 0;
        p.heard_at = now;
        let addr = p.addr;
        dead.sort_unstable();
        dead.dedup();
        for oi in dead {
            if let Some(op) = self.ops.get_mut(oi) {
                if op.status == Status::Ok {
                    op.status = status;
                }
            }
            self.finish(oi, list);
        }
        let reads: Vec<u32> = self
            .reads
            .iter()
            .filter(|(_, r)| r.peer == pi)
            .map(|(i, _)| i)
            .collect();
        for slot in reads {
            if let Some(r) = self.reads.remove(slot) {
                list.push(Event::Done {
                    wr_id: r.wr_id,
                    status,
                });
            }
        }
        list.push(Event::PeerDown { peer: addr, status });
    }

    /// Time: repetitions, silent peers, datagrams held back. Cheap when called too often.
    pub fn service(&mut self, list: &mut Vec<Event>, now: u64) {
        if now < self.last_service + MS {
            return;
        }
        self.last_service = now;
        self.release_held(now);
        let timeout = self.cfg.timeout;
        let mut i = 0;
        while let Some(pi) = self.active.get(i).copied() {
            i += 1;
            let Some(p) = self.peers.get_mut(pi) else {
                continue;
            };
            p.tx.tick(now);
            if p.tx.silence(now) > timeout {
                self.fail_peer(pi, Status::RemoteUnresponsive, list, now);
                continue;
            }
            let quiet = now.saturating_sub(p.heard_at) > timeout / 4;
            if p.expect > 0 && quiet && p.tx.idle() && p.pending.is_empty() {
                let to = p.addr;
                let copy = self.buffer();
                self.add(
                    &to,
                    Self::op(None, OpKind::Ping, copy, UserMem::EMPTY, 0),
                    now,
                );
            }
        }
    }

    /// Whether the thread has to come back without being asked.
    pub fn busy(&self) -> bool {
        !self.active.is_empty()
            || !self.owed.is_empty()
            || self.faults.as_ref().is_some_and(|f| f.next_due().is_some())
    }

    /// Whether everything posted has been acknowledged.
    pub fn drained(&self) -> bool {
        self.ops.is_empty()
    }

    /// Says good-bye: repeats the last acknowledgements, for the peers may wait for them.
    pub fn farewell(&mut self, now: u64) {
        self.closed = true;
        for _ in 0..3 {
            let all: Vec<u32> = self
                .peers
                .iter()
                .filter(|(_, p)| p.rx.is_some())
                .map(|(i, _)| i)
                .collect();
            for pi in all {
                self.push_ack(pi);
                if self.out.len() >= BATCH {
                    self.flush(now);
                }
            }
            self.flush(now);
        }
    }
}

/// Payload bytes that fit into a packet on a link of this MTU.
pub fn segment_for(link_mtu: usize, v6: bool) -> usize {
    let below = if v6 { 48 } else { 28 };
    link_mtu
        .saturating_sub(below + DATA_HEAD)
        .clamp(512, 61_440)
}
