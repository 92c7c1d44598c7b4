//! The software adapter's engine: one queue pair, its peers, and what is under way.
//!
//! Posting puts an [`EngineOp`] on its peer's list; `out` cuts operations into packets as the
//! flow's window permits and batches them; `input` takes in what arrived, executes RDMA against the
//! memory table and reports events; `end` looks after time and how things end. Whoever holds the
//! engine's lock may drive it: the application inside its calls, or the adapter's thread when the
//! application is busy elsewhere (see `thread`).

mod end;
mod input;
mod out;
mod session;

use super::admission;
use super::flow::{dist, RxFlow, TxFlow};
use super::keys::{Keys, Salt};
use super::packet::{self, PacketHead, PacketKind, DATA_HEAD, HEAD_MAX, MAX_WORDS};
use super::seal::{self, Seal};
use super::sock::{Datagram, Got, Sock, SocketFilter, BATCH, SLOT, SLOTS};
use crate::core::hash::ByWords;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::fault::{Fate, Faults};
use crate::device::host::secret;
use crate::device::mem_table::{MemTable, RegionsRead};
use crate::device::{Data, Event, Events, QpAddr};
use crate::hmem::UserMem;
use crate::transport::{Completion, Payload, PeerId, Report, Status};
use crate::types::*;
use core::ffi::c_void;
use session::{Hearing, Link, Session, Sessions};
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
/// Peers that callers may make an engine keep at once.
const PEERS_MAX: usize = 1 << 17;
/// Reads of a peer that are answered at once; its next ones wait.
const SERVING_MAX: u32 = 4096;
/// A peer may have at most so many times as many operations waiting as there is room left.
const SHARE: usize = 7;
/// Refusals of keys that a peer gets at once, and one more every millisecond. Beyond that its
/// packets count as lost: whoever guesses keys learns slowly that they are wrong.
const REFUSALS: u64 = 64;
/// An open session without traffic is tried after so many time-outs.
const PROBE: u64 = 6;
/// Offset in a read response that says: the region was closed before it was read.
const READ_GONE: u64 = u64::MAX;

/// Settings shared by the queue pairs of an adapter.
#[derive(Clone, Debug)]
pub(crate) struct EngineConfig {
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
    /// Keys by which packets are sealed; `None`: they are not.
    pub keys: Option<Arc<Keys>>,
}

#[derive(Debug)]
enum EngineOpKind {
    Send {
        head_len: usize,
    },
    Write {
        key: u64,
        addr: u64,
        imm: Option<u32>,
    },
    ReadReq {
        id: u64,
        key: u64,
        addr: u64,
        len: u32,
    },
    ReadResp {
        id: u64,
        key: u64,
        addr: u64,
    },
    Ping,
}

/// One posted operation.
#[derive(Debug)]
struct EngineOp {
    peer: u32,
    /// Of an operation of the application's.
    done: Option<Completion>,
    kind: EngineOpKind,
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
struct RxPart {
    op: u32,
    off: u64,
    len: u32,
}

#[derive(Debug)]
struct Read {
    done: Completion,
    peer: u32,
    generation: u32,
    local: UserMem,
    got: u64,
}

struct EnginePeer {
    addr: QpAddr,
    to: SocketAddr,
    session: Session,
    /// By what name its datagrams are sealed.
    salt: Option<Salt>,
    /// The application's operations to it, and reads of it that are being answered.
    user_ops: usize,
    serving: u32,
    /// Refusals it has had, and when that was last counted.
    refusals: u64,
    refused_at: u64,
    tx: TxFlow<RxPart>,
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
pub(crate) struct Engine {
    pub me: QpAddr,
    /// The queue pair is gone; the thread may still hold on to this for a moment.
    closed: bool,
    sock: Sock,
    mem: Arc<MemTable>,
    cfg: EngineConfig,
    peers: Slab<EnginePeer>,
    by_addr: HashMap<QpAddr, u32>,
    /// Whose operation was posted last: most often the next is for the same.
    last_peer: u32,
    /// Peers by the token that they have to present.
    by_token: HashMap<u64, u32, ByWords>,
    sessions: Sessions,
    /// What our peers' datagrams begin with; see `packet`.
    pub vtag: u32,
    seal: Option<Seal>,
    /// Nothing is done to what leaves.
    plain: bool,
    /// Where a harness wants a copy of everything that leaves.
    #[cfg(any(test, feature = "internals"))]
    tap: Option<Arc<std::sync::Mutex<Vec<Vec<u8>>>>>,
    /// The number is the application's choice: callers need no token.
    service: bool,
    ops: Slab<EngineOp>,
    user_ops: usize,
    reads: Slab<Read>,
    spare: Vec<Vec<u8>>,
    out: Vec<Datagram>,
    /// Copies of what the system cannot read, for the datagrams in `out`.
    bounce: Vec<Box<[u8]>>,
    owed: Vec<u32>,
    active: Vec<u32>,
    acked: Vec<RxPart>,
    backlog: VecDeque<Event>,
    backlog_bytes: usize,
    got: Vec<Got>,
    faults: Option<Faults<(SocketAddr, Vec<u8>)>>,
    /// Messages that are not let in now; see `QueuePair::hold`.
    pub hold: Option<fn(&[u8]) -> bool>,
    /// Whether peers' reads and writes are events.
    pub remote_events: bool,
    generation: u32,
    last_service: u64,
    last_probe: u64,
}

fn socket_addr(a: &QpAddr) -> SocketAddr {
    let v6 = Ipv6Addr::from(a.gid);
    let ip = match v6.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(v6),
    };
    SocketAddr::new(ip, a.qpn)
}

/// An IP address as a queue pair's GID.
pub(crate) fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v) => v.to_ipv6_mapped().octets(),
        IpAddr::V6(v) => v.octets(),
    }
}

/// Memory that stays lent; what does not is copied.
fn take_in(data: Payload, copy: &mut Vec<u8>) -> UserMem {
    if let Payload::Inject(b) = data {
        copy.extend_from_slice(b.bytes());
    }
    data.lent()
}

/// What a poll produces into: events, and where received bytes may stay.
struct EventSink<'a> {
    list: &'a mut Vec<Event>,
    /// `None`: received bytes must be copied out, and only while the backlog has room.
    app: bool,
}

impl Engine {
    /// An engine on a bound socket. `FI_ENOSYS` without random numbers.
    pub(crate) fn new(
        me: QpAddr,
        sock: Sock,
        mem: Arc<MemTable>,
        cfg: EngineConfig,
        service: bool,
    ) -> Result<Engine> {
        let faults = cfg.fault.as_deref().and_then(Faults::parse);
        let at = socket_addr(&me);
        let seal = match &cfg.keys {
            Some(keys) => Some(Seal::new(Arc::clone(keys), at, cfg.segment)?),
            None => None,
        };
        let vtag = secret()? as u32;
        let plain = seal.is_none() && faults.is_none() && !cfg.gso;
        sock.attach_filter(match &cfg.keys {
            Some(keys) => SocketFilter::Sealed(keys.ids()),
            None => SocketFilter::Open {
                vtag,
                // Who calls a service on its own host does so through `admission`.
                qkey: (!service || !at.ip().is_loopback()).then_some(me.qkey),
            },
        });
        Ok(Engine {
            me,
            closed: false,
            sock,
            mem,
            cfg,
            peers: Slab::default(),
            by_addr: HashMap::new(),
            last_peer: u32::MAX,
            by_token: HashMap::default(),
            sessions: Sessions::new()?,
            vtag,
            plain,
            seal,
            #[cfg(any(test, feature = "internals"))]
            tap: None,
            service,
            ops: Slab::with_capacity(256),
            user_ops: 0,
            reads: Slab::default(),
            spare: Vec::new(),
            out: Vec::with_capacity(BATCH),
            bounce: Vec::new(),
            owed: Vec::new(),
            active: Vec::new(),
            acked: Vec::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            got: Vec::with_capacity(SLOTS),
            faults,
            hold: None,
            remote_events: false,
            generation: secret()? as u32,
            last_service: 0,
            last_probe: 0,
        })
    }

    /// The socket's descriptor, for epoll.
    pub(crate) fn fd(&self) -> i32 {
        self.sock.fd()
    }

    fn new_flow() -> TxFlow<RxPart> {
        TxFlow::new(0, 128 << 10)
    }

    fn peer(&mut self, a: &QpAddr, now: u64) -> u32 {
        let last = self.peers.get(self.last_peer);
        if last.is_some_and(|p| p.addr == *a && p.addr.token != 0) {
            return self.last_peer;
        }
        if let Some(i) = self.by_addr.get(a) {
            // Who has called us may become known by its whole address later.
            if let Some(p) = self.peers.get_mut(*i).filter(|p| p.addr.token == 0) {
                p.addr.token = a.token;
            }
            self.last_peer = *i;
            return *i;
        }
        let p = EnginePeer {
            addr: *a,
            to: socket_addr(a),
            session: Session::NONE,
            salt: None,
            user_ops: 0,
            serving: 0,
            refusals: 0,
            refused_at: now,
            tx: Self::new_flow(),
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

    fn add(&mut self, pi: u32, op: EngineOp) {
        let user = usize::from(op.done.is_some());
        let i = self.ops.insert(EngineOp { peer: pi, ..op });
        if let Some(p) = self.peers.get_mut(pi) {
            p.pending.push_back(i);
            p.user_ops += user;
        }
        self.user_ops += user;
        self.activate(pi);
    }

    /// The peer that an operation is for, if there is room for one more: a peer that takes nothing
    /// leaves room for the others. `FI_EAGAIN` when not.
    fn room_for(&mut self, to: &QpAddr, now: u64) -> Result<u32> {
        let free = self
            .cfg
            .depth
            .saturating_sub(self.user_ops + self.reads.len());
        if free == 0 {
            return Err(FI_EAGAIN);
        }
        let pi = self.peer(to, now);
        match self.peers.get(pi) {
            Some(p) if p.user_ops < SHARE * free => Ok(pi),
            _ => Err(FI_EAGAIN),
        }
    }

    /// Posts a send; see `QueuePair::post_send`.
    pub(crate) fn send(
        &mut self,
        done: Completion,
        to: &QpAddr,
        head: &[u8],
        payload: Payload,
        now: u64,
    ) -> Result<()> {
        let len = payload.byte_len();
        if head.len() + len > self.cfg.segment || head.len() > HEAD_MAX - packet::BASE {
            return Err(FI_EMSGSIZE);
        }
        let pi = self.room_for(to, now)?;
        let mut copy = self.buffer();
        copy.extend_from_slice(head);
        let user = take_in(payload, &mut copy);
        let kind = EngineOpKind::Send {
            head_len: head.len(),
        };
        self.add(pi, Self::op(Some(done), kind, copy, user, len as u64));
        Ok(())
    }

    fn op(
        done: Option<Completion>,
        kind: EngineOpKind,
        copy: Vec<u8>,
        user: UserMem,
        total: u64,
    ) -> EngineOp {
        EngineOp {
            peer: u32::MAX,
            done,
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
    pub(crate) fn write(
        &mut self,
        done: Completion,
        to: &QpAddr,
        local: Payload,
        imm: Option<u32>,
        now: u64,
    ) -> Result<()> {
        let pi = self.room_for(to, now)?;
        let mut copy = self.buffer();
        let user = take_in(local, &mut copy);
        let total = (copy.len() + user.len()) as u64;
        let kind = EngineOpKind::Write {
            key: done.remote.key,
            addr: done.remote.addr,
            imm,
        };
        self.add(pi, Self::op(Some(done), kind, copy, user, total));
        Ok(())
    }

    /// Posts an RDMA read; see `QueuePair::post_read`.
    pub(crate) fn read(
        &mut self,
        done: Completion,
        to: &QpAddr,
        local: UserMem,
        now: u64,
    ) -> Result<()> {
        let pi = self.room_for(to, now)?;
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let slot = self.reads.insert(Read {
            done,
            peer: pi,
            generation,
            local,
            got: 0,
        });
        let id = u64::from(slot) | u64::from(generation) << 32;
        let kind = EngineOpKind::ReadReq {
            id,
            key: done.remote.key,
            addr: done.remote.addr,
            len: local.len() as u32,
        };
        let copy = self.buffer();
        self.add(pi, Self::op(None, kind, copy, UserMem::EMPTY, 0));
        self.expect(to, true, now);
        Ok(())
    }

    /// Slot of the read that a peer names by `id`, if the read is still under way and of that peer.
    fn read_slot(&self, id: u64, peer: u32) -> Option<u32> {
        let (slot, generation) = (id as u32, (id >> 32) as u32);
        let r = self.reads.get(slot)?;
        (r.generation == generation && r.peer == peer).then_some(slot)
    }

    /// Ends reads that report there: what comes for them is dropped from now on.
    pub(crate) fn cancel_reads(&mut self, to: Report) {
        for slot in self.reads.select(|r| r.done.report == to) {
            let done = self.reads.get(slot).map(|r| r.done).unwrap_or_default();
            self.end_read(slot);
            let status = Status::LocalBadKey;
            self.backlog.push_back(Event::Done { done, status });
        }
    }

    /// The layer above waits (`on`) or no longer waits for an answer of this peer.
    pub(crate) fn expect(&mut self, a: &QpAddr, on: bool, now: u64) {
        let pi = match on {
            true => self.peer(a, now),
            // Of a peer whose session has ended nothing is expected any more.
            false => match self.by_addr.get(a) {
                Some(pi) => *pi,
                None => return,
            },
        };
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
    pub(crate) fn ring(&mut self, now: u64) {
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

    /// The application's poll: what the thread left behind, then what is in the socket.
    pub(crate) fn poll(&mut self, into: &mut Events, now: u64) {
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
            // Without memory for what arrives nothing is taken in: senders try again.
            if into.arena.try_reserve_exact(SLOTS * SLOT).is_err() {
                return;
            }
            into.arena.resize(SLOTS * SLOT, 0);
        }
        let mut sink = EventSink {
            list: &mut into.list,
            app: true,
        };
        self.receive(&mut into.arena, &mut sink, now);
        self.service(&mut into.list, now);
        self.ack(now, false);
        self.ring(now);
    }

    /// The thread's poll: events wait in the backlog. Returns whether there are any.
    pub(crate) fn poll_for_thread(&mut self, arena: &mut [u8], now: u64) -> bool {
        // What it took in now would count as delivered, and nobody would ever read it.
        if self.closed {
            return false;
        }
        let mut list = Vec::new();
        loop {
            let mut sink = EventSink {
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
    pub(crate) fn has_events(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether the thread has to come back without being asked.
    pub(crate) fn busy(&self) -> bool {
        !self.active.is_empty()
            || !self.owed.is_empty()
            || self.faults.as_ref().is_some_and(|f| f.next_due().is_some())
    }

    /// Whether an operation for the owner's peer of this number that reports itself has not ended.
    pub(crate) fn busy_with(&self, peer: PeerId) -> bool {
        let posted = self.ops.iter().filter_map(|(_, o)| o.done);
        let mut all = posted.chain(self.reads.iter().map(|(_, r)| r.done));
        all.any(|d| d.peer == peer && d.reports_itself())
    }

    /// Whether everything posted has been acknowledged.
    pub(crate) fn drained(&self) -> bool {
        self.ops.is_empty()
    }

    /// A copy of everything that leaves from now on.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn tap(&mut self) -> Arc<std::sync::Mutex<Vec<Vec<u8>>>> {
        self.plain = false;
        Arc::clone(self.tap.insert(Arc::default()))
    }

    /// Peers that something is kept for.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Senders of sealed datagrams that something is kept of: in sessions, and after them.
    #[cfg(test)]
    pub(crate) fn sealed_senders(&self) -> (usize, usize) {
        self.seal.as_ref().map_or((0, 0), Seal::kept)
    }

    /// Whether a peer's read is being answered.
    #[cfg(test)]
    pub(crate) fn serves(&self) -> bool {
        self.peers.iter().any(|(_, p)| p.serving > 0)
    }

    /// Whether anybody is connected, who may go without a word.
    pub(crate) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Tells the peers that the queue pair closes, with the last acknowledgements, which they may
    /// wait for. Some more than once: nobody acknowledges this.
    pub(crate) fn farewell(&mut self, now: u64) {
        self.closed = true;
        for _ in 0..3 {
            for pi in self.peers.select(|p| p.session.link == Link::Open) {
                self.push_ack(pi, true);
                if self.out.len() >= BATCH {
                    self.flush(now);
                }
            }
            self.flush(now);
        }
    }
}

/// Payload bytes that fit into a packet on a link of this MTU.
pub(crate) fn segment_for(link_mtu: usize, v6: bool, sealed: bool) -> usize {
    let below = if v6 { 48 } else { 28 };
    let around = if sealed { seal::OVERHEAD } else { 0 };
    link_mtu
        .saturating_sub(below + around + DATA_HEAD)
        .clamp(512, 61_440)
}
