//! The software adapter's engine: one queue pair, its peers, and what is under way.
//!
//! `post` puts an [`EngineOp`] on its peer's list; `out` cuts operations into packets as the flow's
//! window permits and batches them; `input` takes in what arrived; `reliable` executes RDMA against
//! the memory table and reports events; `end` ends operations and sessions and runs the timers. Any
//! thread that holds the engine's lock may drive the engine: the application's inside its calls, or
//! the adapter's thread when the application is busy elsewhere (see `thread`).

mod config;
mod delayed_ack;
mod end;
mod input;
mod op;
mod out;
mod parts;
mod post;
mod reliable;
mod session;
#[cfg(test)]
mod tests;

use super::admission;
use super::flow::{dist, RxFlow, TxFlow};
use super::keys::Salt;
use super::packet::{self, PacketHead, PacketKind, HEAD_MAX, MAX_WORDS};
use super::seal::Seal;
use super::sock::{new_arena, Batch, Datagram, RxDatagram, Sock, SocketFilter, BATCH, SLOTS};
use crate::core::hash::ByWords;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::fault::{FaultAction, Faults};
use crate::device::host::secret;
use crate::device::mem_table::{MemLease, MemTable, RegionsRead};
use crate::device::{gid_of, Data, Event, Events, HeldPeers, QpAddr};
use crate::hmem::UserMem;
use crate::transport::{Completion, Payload, PeerId, Report, Status};
use crate::types::*;
use config::MESSAGE_MAX;
pub(crate) use config::{message_for, segment_for, EngineConfig};
use core::ffi::c_void;
use delayed_ack::DelayedAck;
use op::{EngineOp, EngineOpKind, PendingRead, TxPart};
use parts::{IncompleteMessages, MessagePart, PacketRun};
use session::{Session, SessionLookup, SessionState, Sessions};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

const MS: u64 = 1_000_000;
/// Messages held for an application that does not poll, before the engine refuses further ones.
const BACKLOG_MSGS: usize = 4096;
/// Bytes of such messages.
const BACKLOG_BYTES: usize = 8 << 20;
/// Unacknowledged packets, or payload bytes, at which an acknowledgement is sent at the latest.
const ACK_PACKETS: u32 = 16;
const ACK_BYTES: u32 = 192 << 10;
/// Empty polls after which a pending acknowledgement is sent alone instead of piggybacked on a
/// reply.
const ACK_IDLE: u32 = 2;
/// Peer entries at which an engine stops accepting new callers.
const PEERS_MAX: usize = 1 << 17;
/// Reads served at once per peer; further reads get "receiver not ready".
const SERVING_MAX: u32 = 4096;
/// Bound of a peer's share of the queue: operations under way to one peer stay below this many
/// times the free entries.
const SHARE: usize = 7;
/// Refusals that a peer gets in a burst; the allowance grows by one per millisecond. Further
/// packets with bad keys count as lost, which slows down a peer that guesses keys.
const REFUSALS: u64 = 64;
/// Events that one poll takes from the backlog.
const EVENTS_MAX: usize = 256;
/// Batches that the thread takes in at once: it holds the lock meanwhile, and comes back for more.
const THREAD_ROUNDS: u32 = 8;
/// Buffers that are kept for later operations, and bytes of the largest.
const SPARE_MAX: usize = 64;
const SPARE_BYTES: usize = 4096;
/// Nanoseconds between two looks for idle sessions.
const PROBE_INTERVAL: u64 = 1000 * MS;
/// An idle session is probed after this many peer time-outs ([`EngineConfig::timeout`]).
const PROBE_TIMEOUTS: u64 = 6;
/// Time-outs after which one packet that never arrives ends a session, although others do.
const STUCK_TIMEOUTS: u64 = 3;
/// Rejected datagrams after which a socket filter drops them in the kernel.
const FILTER_AFTER: u32 = 64;
/// Offset in a read response without data: the region was closed during the read.
const READ_GONE: u64 = u64::MAX;
/// Offset in a read response without data: the region's device failed to copy it.
const READ_FAILED: u64 = u64::MAX - 1;

/// A peer: its session, and what is under way in both directions.
struct EnginePeer {
    addr: QpAddr,
    /// The owner's number for the peer, since the owner has posted something to it.
    name: Option<PeerId>,
    /// Where datagrams go.
    to: SocketAddr,
    session: Session,
    /// Salt of the peer's sealed datagrams, once one has arrived in the session.
    salt: Option<Salt>,
    /// The application's operations to this peer, and this peer's reads that are being served.
    user_ops: usize,
    serving: u32,
    /// Refusals that count against [`REFUSALS`], and when the count was last reduced.
    refusals: u64,
    refused_at: u64,
    /// Packets under way to the peer, and operations of which packets are still to be cut.
    tx: TxFlow<TxPart>,
    pending: VecDeque<u32>,
    /// Packets from the peer, once one has arrived in the session.
    rx: Option<RxFlow>,
    /// Messages of which a poll has brought some packets.
    parts: IncompleteMessages,
    /// Payload bytes since the last acknowledgement.
    rx_bytes: u32,
    /// The acknowledgement does not wait for a packet that could carry it.
    ack_now: bool,
    delayed: DelayedAck,
    /// The peer is listed in [`Engine::ack_pending`].
    ack_pending: bool,
    /// Answers expected from this peer: by the layer above ([`Engine::expect`]), and for reads.
    expect: u32,
    last_rx_at: u64,
    /// The peer is listed in [`Engine::active`].
    active: bool,
}

/// See the module text.
pub(crate) struct Engine {
    pub me: QpAddr,
    /// The queue pair is closed; the adapter's thread may still have a reference to the engine.
    closed: bool,
    sock: Sock,
    mem: Arc<MemTable>,
    cfg: EngineConfig,
    peers: Slab<EnginePeer>,
    by_addr: HashMap<QpAddr, u32>,
    /// Peer of the last posted operation: a cache of one entry for `by_addr`.
    last_peer: u32,
    /// Peers that have opened a session, by their socket.
    by_socket: HashMap<SocketAddr, u32>,
    /// Peers by the token that they have to present.
    by_token: HashMap<u64, u32, ByWords>,
    sessions: Sessions,
    /// Verification tag of this queue pair, which peers put into their datagrams; see `packet`.
    pub vtag: u32,
    seal: Option<Seal>,
    /// Datagrams rejected since the socket has no filter ([`Engine::reject`]).
    rejected: u32,
    /// The kernel may pass a run of packets as one.
    merges: bool,
    /// Batches go to the socket as they are: no seal, segmentation offload, faults or tap.
    send_unmodified: bool,
    /// Copies of every datagram sent, for a test harness.
    #[cfg(any(test, feature = "internals"))]
    tap: Option<Arc<crate::core::sync::Mutex<Vec<Vec<u8>>>>>,
    /// The application chose the queue pair's number: callers need no token.
    service: bool,
    ops: Slab<EngineOp>,
    /// The application's operations in `ops`.
    user_ops: usize,
    reads: Slab<PendingRead>,
    /// Buffers of operations that have ended, for [`EngineOp::copy`] of later ones.
    spare: Vec<Vec<u8>>,
    /// Datagrams for the next [`Engine::flush`].
    out: Batch,
    /// Bounce buffers for the datagrams in `out`: copies of device memory, which the kernel cannot
    /// read.
    bounce: Vec<Box<[u8]>>,
    /// Held while `out` refers to memory of regions that peers read.
    lease: Option<MemLease>,
    /// Peers that an acknowledgement is due to.
    ack_pending: Vec<u32>,
    /// Peers with something under way, which the timers watch.
    active: Vec<u32>,
    /// Scratch: packets that the datagram being handled acknowledges.
    acked: Vec<TxPart>,
    /// Events found by the adapter's thread, and the bytes of their messages.
    backlog: VecDeque<Event>,
    backlog_bytes: usize,
    /// Number of the last operation.
    numbers: u32,
    /// Scratch: datagrams of one receive.
    got: Vec<RxDatagram>,
    /// The message whose packets are being received.
    run: Option<PacketRun>,
    /// Memory for the next message whose packets do not come in one poll.
    spare_message: Vec<u8>,
    /// [`IncompleteMessage`](parts) entries of all peers.
    incomplete: usize,
    faults: Option<Faults<(SocketAddr, Vec<u8>)>>,
    /// Messages that get "receiver not ready"; see `QueuePair::hold`.
    pub hold: (fn(&[u8]) -> bool, HeldPeers),
    /// Whether peers' reads and writes are events.
    pub remote_events: bool,
    /// Number of the last read ([`PendingRead::generation`]).
    generation: u32,
    /// When the timers ran last, and when idle sessions were last probed.
    last_service: u64,
    last_probe: u64,
}

fn socket_addr(a: &QpAddr) -> SocketAddr {
    SocketAddr::new(a.ip(), a.qpn)
}

/// Returns the memory that a payload lends until the completion; injected bytes go into `copy`.
fn take_in(data: Payload, copy: &mut Vec<u8>) -> UserMem {
    if let Payload::Inject(b) = data {
        copy.extend_from_slice(b.bytes());
    }
    data.lent()
}

/// Where a poll puts events.
struct EventSink<'a> {
    list: &'a mut Vec<Event>,
    /// The application polls: received bytes may stay in the arena. `false`: the thread polls, and
    /// received bytes are copied, only while the backlog has room.
    app_polls: bool,
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
        let faults = cfg.fault.as_deref().and_then(|text| {
            let faults = Faults::parse(text);
            if faults.is_none() {
                crate::warn_limited!(
                    FI_LOG_EP_CTRL,
                    "FI_EFA_SOFT_FAULT={text}: wanted loss, dup or reorder as name=percent, and \
                     delay=us, seed=N; no fault is made"
                );
            }
            faults
        });
        let at = socket_addr(&me);
        let seal = match &cfg.keys {
            Some(keys) => Some(Seal::new(Arc::clone(keys), at, cfg.segment)?),
            None => None,
        };
        let vtag = secret()? as u32;
        let send_unmodified = seal.is_none() && faults.is_none() && !cfg.gso;
        Ok(Engine {
            me,
            closed: false,
            sock,
            mem,
            cfg,
            peers: Slab::default(),
            by_addr: HashMap::new(),
            last_peer: u32::MAX,
            by_socket: HashMap::new(),
            by_token: HashMap::default(),
            sessions: Sessions::new()?,
            vtag,
            send_unmodified,
            seal,
            rejected: 0,
            merges: false,
            #[cfg(any(test, feature = "internals"))]
            tap: None,
            service,
            ops: Slab::with_capacity(256),
            user_ops: 0,
            reads: Slab::default(),
            spare: Vec::new(),
            out: Batch::default(),
            bounce: Vec::new(),
            lease: None,
            ack_pending: Vec::new(),
            active: Vec::new(),
            acked: Vec::new(),
            backlog: VecDeque::new(),
            backlog_bytes: 0,
            numbers: 0,
            got: Vec::with_capacity(SLOTS),
            run: None,
            spare_message: Vec::new(),
            incomplete: 0,
            faults,
            hold: (|_| false, HeldPeers::None),
            remote_events: false,
            generation: secret()? as u32,
            last_service: 0,
            last_probe: 0,
        })
    }

    /// The socket's descriptor, for epoll; see [`Engine::before_wait`].
    pub(crate) fn fd(&self) -> i32 {
        self.sock.fd()
    }

    /// Counts a datagram that presents no tag or key of ours. The kernel drops further ones, at
    /// their sender's cost, once there were [`FILTER_AFTER`]: until then, the filter would only
    /// cost our own packets time.
    #[cold]
    fn reject(&mut self) {
        self.rejected = self.rejected.saturating_add(1);
        if self.rejected != FILTER_AFTER {
            return;
        }
        let (vtag, qkey, token) = (self.vtag, self.me.qkey, self.me.token);
        let open = self.service && !self.me.ip().is_loopback();
        self.sock.attach_filter(match &self.cfg.keys {
            Some(keys) => SocketFilter::Sealed(keys.ids()),
            None => SocketFilter::Open {
                vtag,
                qkey,
                token,
                open,
            },
        });
    }

    fn new_flow() -> TxFlow<TxPart> {
        TxFlow::new(0, 128 << 10)
    }

    fn peer(&mut self, a: &QpAddr, now: u64) -> u32 {
        let last = self.peers.get(self.last_peer);
        if last.is_some_and(|p| p.addr == *a && (p.addr.token != 0 || a.token == 0)) {
            return self.last_peer;
        }
        if let Some(i) = self.by_addr.get(a) {
            // The address of a peer that opened the session lacks its token until an operation
            // for the peer is posted.
            if let Some(p) = self.peers.get_mut(*i).filter(|p| p.addr.token == 0) {
                p.addr.token = a.token;
            }
            self.last_peer = *i;
            return *i;
        }
        let p = EnginePeer {
            addr: *a,
            name: None,
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
            parts: IncompleteMessages::default(),
            rx_bytes: 0,
            ack_now: false,
            delayed: DelayedAck::default(),
            ack_pending: false,
            expect: 0,
            last_rx_at: now,
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

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    fn add(&mut self, pi: u32, op: EngineOp) {
        let user = usize::from(op.done.is_some());
        self.numbers = self.numbers.wrapping_add(1);
        let i = self.ops.insert(EngineOp {
            peer: pi,
            number: self.numbers,
            ..op
        });
        if let Some(p) = self.peers.get_mut(pi) {
            p.pending.push_back(i);
            p.user_ops += user;
        }
        self.user_ops += user;
        self.activate(pi);
    }

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

    /// The application's poll: takes events from the backlog, then reads the socket. `alone`: the
    /// adapter's thread does not wait for datagrams.
    pub(crate) fn poll(&mut self, into: &mut Events, alone: bool, now: u64) {
        into.list.clear();
        while let Some(e) = self.backlog.pop_front() {
            if let Event::Recv {
                data: Data::Own(v), ..
            } = &e
            {
                self.backlog_bytes = self.backlog_bytes.saturating_sub(v.len());
            }
            into.list.push(e);
            if into.list.len() >= EVENTS_MAX {
                return;
            }
        }
        if into.arena.is_empty() {
            // Without memory for the arena nothing is received: senders retransmit.
            let Some(arena) = new_arena() else {
                return;
            };
            into.arena = arena;
        }
        if alone {
            self.sock.connect_to_frequent();
        }
        let mut sink = EventSink {
            list: &mut into.list,
            app_polls: true,
        };
        self.receive(&mut into.arena, &mut sink, now);
        self.service(&mut into.list, now);
        // Packets that go now carry acknowledgements.
        self.ring(now);
        self.ack(now, false);
    }

    /// The thread's poll: appends events to the backlog. Returns whether the backlog has any.
    pub(crate) fn poll_for_thread(&mut self, arena: &mut [u8], now: u64) -> bool {
        // A message received now would be acknowledged, although the application can no longer
        // poll for it.
        if self.closed {
            return false;
        }
        self.sock.leave_peer();
        let mut list = Vec::new();
        let mut rounds = 0;
        loop {
            let mut sink = EventSink {
                list: &mut list,
                app_polls: false,
            };
            let more = self.receive(arena, &mut sink, now);
            self.ring(now);
            self.ack(now, true);
            rounds += 1;
            // Nothing comes any more into a connected socket that is left.
            if !self.sock.is_leaving() && (!more || rounds >= THREAD_ROUNDS) {
                break;
            }
        }
        self.service(&mut list, now);
        self.ring(now);
        self.backlog.extend(list);
        !self.backlog.is_empty()
    }

    /// Receives what has arrived at the connected socket. Call this before a wait for
    /// [`Engine::fd`], which is the other socket.
    pub(crate) fn before_wait(&mut self, now: u64) {
        if self.sock.peer().is_none() {
            return;
        }
        match new_arena() {
            Some(mut arena) => {
                self.poll_for_thread(&mut arena, now);
            }
            None => self.sock.disconnect(),
        }
    }

    /// Whether a poll would find events.
    pub(crate) fn has_events(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Whether the thread has to poll again without a wake-up, for timers or acknowledgements.
    pub(crate) fn busy(&self) -> bool {
        !self.active.is_empty()
            || !self.ack_pending.is_empty()
            || self.faults.as_ref().is_some_and(|f| f.next_due().is_some())
    }

    /// Whether an operation for `peer` whose end is reported (`Completion::reports_itself`) is
    /// still under way.
    pub(crate) fn busy_with(&self, peer: PeerId) -> bool {
        let posted = self.ops.iter().filter_map(|(_, o)| o.done);
        let mut all = posted.chain(self.reads.iter().map(|(_, r)| r.done));
        all.any(|d| d.peer == peer && d.reports_itself())
    }

    /// Whether everything posted has been acknowledged.
    pub(crate) fn drained(&self) -> bool {
        self.ops.is_empty()
    }

    /// Starts to copy every datagram sent; returns the list of copies.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn tap(&mut self) -> Arc<crate::core::sync::Mutex<Vec<Vec<u8>>>> {
        self.send_unmodified = false;
        Arc::clone(self.tap.insert(Arc::default()))
    }

    /// Number of peer entries.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn peer_count(&self) -> usize {
        self.peers.len()
    }

    /// Entries of peers and their operations in all tables.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        let lists = self.active.len() + self.ack_pending.len() + self.acked.len();
        let maps = self.by_addr.len() + self.by_socket.len() + self.by_token.len();
        let operations = self.ops.len() + self.reads.len() + self.backlog.len();
        self.peers.len() + self.incomplete + lists + maps + operations
    }

    /// Whether a socket is connected to the most frequent peer.
    #[cfg(test)]
    pub(crate) fn has_peer_socket(&self) -> bool {
        self.sock.peer().is_some()
    }

    /// Numbers of remembered senders of sealed datagrams: with a session, and after its end.
    #[cfg(test)]
    pub(crate) fn sealed_senders(&self) -> (usize, usize) {
        self.seal.as_ref().map_or((0, 0), Seal::kept)
    }

    /// Whether a peer's read is being answered.
    #[cfg(test)]
    pub(crate) fn serves(&self) -> bool {
        self.peers.iter().any(|(_, p)| p.serving > 0)
    }

    /// Whether there are peers, which may vanish without BYE and have to be probed.
    pub(crate) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Frees the port, after the last packet.
    pub(crate) fn close(&mut self) {
        self.sock.close();
    }

    /// Sends BYE to every peer with an open session, with the last acknowledgements, for which the
    /// peer may wait. BYE is sent three times, because peers do not acknowledge it.
    pub(crate) fn send_bye(&mut self, now: u64) {
        self.closed = true;
        for _ in 0..3 {
            for pi in self.peers.select(|p| p.session.state == SessionState::Open) {
                self.push_ack(pi, true);
                if self.out.len() >= BATCH {
                    self.flush(now);
                }
            }
            self.flush(now);
        }
    }
}
