//! Adapters: queue pairs that move packets and remote memory, and the memory they may touch.
//!
//! The provider sees an adapter through [`Device`], [`QueuePair`] and the types below, as one of
//! the enums of `any`: no dynamic dispatch on the data path. A queue pair is a reliable datagram
//! (SRD) endpoint: what is posted arrives once, complete and in no particular order. `soft`
//! implements it over UDP, `verbs` over a real EFA adapter. `fault` sits below `soft`'s reliability
//! and drops, duplicates, reorders and delays datagrams on purpose.
//!
//! A queue pair is a [`Transport`] whose header is an [`AmHeader`]. `ring` rings the doorbell for
//! posted requests; `poll_all` fills an [`Events`] with messages and completions. The owner numbers
//! its peers, and [`QueuePair::connect`] binds a number to an address.

pub mod any;
pub mod domain_lock;
pub mod fault;
mod futex_lock;
pub mod host;
pub(crate) mod interfaces;
pub mod local;
pub(crate) mod mem_table;
pub mod membarrier;
mod mr_cache;
pub(crate) mod poller;
pub mod soft;
pub mod stream;
pub mod verbs;
pub mod wait;

use crate::core::Result;
use crate::hmem::{Piece, UserMem};
use crate::transport::{Completion, Payload, PeerId, Report, Status, Transport, Verdict};
use crate::types::FI_ENOSYS;
use any::{ExternalCounter, ExternalQueue};
use std::collections::HashSet;
use std::sync::Arc;

/// Where a queue pair is found: the raw EFA address without padding. Two addresses are equal when
/// they name the same queue pair, whether their token is known or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAddr {
    /// Adapter: an IPv6 address, or an IPv4 one mapped into it.
    pub gid: [u8; 16],
    /// Queue pair number; the UDP port on the software adapter.
    pub qpn: u16,
    /// Tells apart queue pairs that reuse a number.
    pub qkey: u32,
    /// On the software adapter: 64 random bits that a caller has to present. 0 where they are not
    /// known, and for queue pairs that have none.
    pub token: u64,
}

impl QpAddr {
    /// The adapter's address, of IPv4 where it is mapped.
    pub fn ip(&self) -> std::net::IpAddr {
        std::net::Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// An IP address as a queue pair's GID.
pub fn gid_of(ip: std::net::IpAddr) -> [u8; 16] {
    match ip {
        std::net::IpAddr::V4(v) => v.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v) => v.octets(),
    }
}

impl PartialEq for QpAddr {
    fn eq(&self, o: &QpAddr) -> bool {
        (self.qpn, self.qkey, self.gid) == (o.qpn, o.qkey, o.gid)
    }
}

impl Eq for QpAddr {}

impl std::hash::Hash for QpAddr {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        (self.gid, self.qpn, self.qkey).hash(h);
    }
}

impl std::fmt::Display for QpAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        write!(f, "[{gid}]:{}:{:#x}", self.qpn, self.qkey)
    }
}

/// Capabilities and limits of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterAttr {
    /// Device name; domains append `-rdm` or `-dgrm`.
    pub name: String,
    /// Largest message of one send, bytes.
    pub mtu: usize,
    /// Largest RDMA read or write, bytes.
    pub max_rdma: usize,
    /// Send queue depth unless more is wanted: operations under way at once; and the most.
    pub sq_depth: usize,
    pub sends_most: usize,
    /// Receive queue depth, and the most receives that an application may count on.
    pub rq_depth: usize,
    pub recvs_most: usize,
    /// Address of the adapter.
    pub gid: [u8; 16],
    /// Link speed, bits per second; 0 when unknown.
    pub speed: u64,
    /// Whether the link is up.
    pub up: bool,
    /// MTU of the link below, bytes.
    pub link_mtu: usize,
    pub caps: Caps,
    pub raw: DirectLimits,
    /// `None` for the software adapter.
    pub identity: Option<Identity>,
}

impl AdapterAttr {
    /// Whether it is an EFA adapter, and not the software adapter.
    pub fn is_hardware(&self) -> bool {
        self.identity.is_some()
    }
}

/// Limits of a queue pair whose work requests are the application's own operations.
#[derive(Clone, Copy, Debug)]
pub struct DirectLimits {
    /// Entries of its queues.
    pub sends: usize,
    pub recvs: usize,
    /// Bytes that go with a work request itself.
    pub inline: usize,
    /// Pieces of memory of a message.
    pub pieces: usize,
    /// The number of RNR retries can be set.
    pub rnr_limit: bool,
    /// Wider work requests, where the adapter has them.
    pub wide: Option<WideLimits>,
    /// Number of hardware counters.
    pub counters: usize,
    /// Largest value of a hardware counter; 0 without counters.
    pub counts_to: u64,
}

/// Limits of wide work requests: more inline data, for writes too, but a shallower send queue.
#[derive(Clone, Copy, Debug)]
pub struct WideLimits {
    pub inline: usize,
    pub sends: usize,
}

/// Attributes of a queue pair for packets of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct PacketQp {
    /// Retries by the adapter of a request whose receiver has no buffer for it (`rnr_retry` of
    /// ibv_modify_qp(3)): 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// After that the application's operation fails; otherwise the request is made again.
    pub rnr_reported: bool,
    /// Least send queue depth, up to [`AdapterAttr::sends_most`].
    pub sends: usize,
    /// Completions for which there is room at least: peers' writes with immediate data raise some
    /// without a request of this side, and those that find no room are lost.
    pub completions: usize,
    /// Its packets have the adapter's service level for little latency (FI_TC_LOW_LATENCY), where
    /// there is one.
    pub low_latency: bool,
}

impl PacketQp {
    /// Retries without limit, and the usual depth.
    pub const DEFAULT: PacketQp = PacketQp {
        rnr_retry: 7,
        rnr_reported: false,
        sends: 0,
        completions: 0,
        low_latency: false,
    };
}

/// Attributes of a queue pair whose work requests are the application's own operations.
#[derive(Clone, Default)]
pub struct RawQp {
    /// Its number; 0 lets the adapter choose.
    pub qpn: u16,
    /// For datagrams; reliable otherwise.
    pub datagram: bool,
    /// Peers' writes with immediate data take no receive, where the adapter can do that.
    pub unsolicited: bool,
    /// Bytes of inline data that a work request has to carry.
    pub inline: usize,
    /// See [`PacketQp::sends`].
    pub sends: usize,
    /// See [`PacketQp::completions`].
    pub completions: usize,
    /// See [`PacketQp::low_latency`].
    pub low_latency: bool,
    /// RNR retries (`rnr_retry` of ibv_modify_qp(3)): 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// External completion queues of sends and of receives, in place of the queue pair's own.
    pub queues: [Option<Arc<ExternalQueue>>; 2],
    /// Counters to attach, each with the kinds of operations that it counts.
    pub counters: Vec<(Arc<ExternalCounter>, u32)>,
}

/// Features of an adapter.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Reads and writes remote memory.
    pub rdma_read: bool,
    pub rdma_write: bool,
    /// A peer's write with immediate data takes no receive.
    pub unsolicited: bool,
    /// Every peer has the same features, so that no handshake has to announce them.
    pub homogeneous: bool,
    /// Each access of a peer can be an event ([`QueuePair::report_remote`]).
    pub remote_events: bool,
    /// A peer that went down stays down: a later peer at its address begins a new session.
    pub sessions: bool,
    /// Supports mr_mode 0: the application chooses keys, and peers address regions by offset.
    pub application_keys: bool,
    /// Bytes of a region's key.
    pub key_size: usize,
}

/// Identity of a hardware adapter.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PCI vendor and device.
    pub vendor: u32,
    pub device: u32,
    /// As sysfs states them.
    pub version: String,
    pub firmware: String,
    pub driver: String,
    pub bus: Option<PciAddr>,
    /// How many memory regions, queue pairs and completion queues it has.
    pub regions: usize,
    pub queue_pairs: usize,
    pub queues: usize,
    /// Most entries of a completion queue.
    pub cq_depth: usize,
}

/// A PCI address.
#[derive(Clone, Copy, Debug)]
pub struct PciAddr {
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

/// An arrived message, a completion, or a change of a peer.
#[derive(Debug)]
pub enum Event {
    /// A message has arrived; its bytes are in the [`Events`] that holds this event. Only messages
    /// between applications' own queue pairs carry immediate data. `peer`: number of the sender,
    /// where the queue pair knows it.
    Recv {
        from: QpAddr,
        peer: Option<PeerId>,
        data: Data,
        imm: Option<u64>,
    },
    /// As [`Event::Recv`], from a sender whose qkey the adapter does not report: `qkey` is 0. The
    /// GID is zero if it is unknown, too. [`QueuePair::connect`] makes a sender known.
    UnknownSender { from: QpAddr, data: Data },
    /// A peer's RDMA write with immediate data is complete in our memory.
    WriteImm { from: QpAddr, imm: u32, len: u32 },
    /// A peer has read or written our memory; only after [`QueuePair::report_remote`].
    Remote { key: u64, len: u32, write: bool },
    /// An operation posted here has ended.
    Done { done: Completion, status: Status },
    /// A receive of the application has ended. `into` is its memory if no operation record holds
    /// that memory, and empty otherwise.
    Taken {
        done: Completion,
        into: Piece,
        taken: Taken,
    },
    /// An answer of this peer is awaited ([`QueuePair::expect`]). The owner should send something
    /// to the peer, because the adapter reports a failed peer only to its senders.
    Silent { peer: QpAddr },
    /// A peer does not answer, or another process has taken its address: no operation posted to the
    /// peer is left, and no expected answer will arrive.
    PeerDown { peer: QpAddr, status: Status },
}

/// How a receive of the application ended: with a message of `len` bytes, or used up by a peer's
/// `write` for its immediate data.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// An unknown sender has a qkey of 0, and a GID of zero if its address handle is unknown.
    pub from: QpAddr,
    pub len: u32,
    pub imm: Option<u32>,
    pub status: Status,
    pub write: bool,
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub enum Data {
    /// A range of the arena: start and end.
    Arena(u32, u32),
    /// In memory of their own.
    Own(Vec<u8>),
}

/// Result of one `poll_all`. The owner reuses the value, so that polls do not allocate.
#[derive(Default)]
pub struct Events {
    /// In order of arrival.
    pub list: Vec<Event>,
    /// Received bytes that events refer to.
    pub arena: Vec<u8>,
}

impl Events {
    /// Bytes of a message.
    #[inline]
    pub fn bytes<'a>(arena: &'a [u8], data: &'a Data) -> &'a [u8] {
        match data {
            Data::Arena(a, b) => arena.get(*a as usize..*b as usize).unwrap_or(&[]),
            Data::Own(v) => v,
        }
    }
}

/// A mapped queue of an adapter, for a device or program that drives the queue without the library.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueMemory {
    /// Address of the first entry, 0 when there is none.
    pub buffer: usize,
    /// Address of the doorbell, 0 when there is none.
    pub doorbell: usize,
    /// Bytes of an entry.
    pub entry: u32,
    /// Entries of the queue.
    pub entries: u32,
    /// Most entries between two doorbells.
    pub max_batch: u32,
    /// Features of the queue (`caps` of efadv_query_qp_wqs(3)).
    pub caps: u16,
}

/// A dma-buf whose bytes from `offset` on are registered: memory of a device or another exporter.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf {
    /// Descriptor.
    pub fd: i32,
    /// Where the region begins in it.
    pub offset: u64,
}

/// What goes in front of the data of a message to a queue pair: a header, or, for queue pairs of an
/// application's own messages, immediate data.
#[derive(Clone, Copy, Debug, Default)]
pub struct AmHeader<'a> {
    /// The header's `len` bytes and padding: a copy whose length is known at compile time is
    /// faster.
    padded: &'a [u8],
    len: usize,
    pub imm: Option<u64>,
}

impl<'a> AmHeader<'a> {
    /// A header of these bytes.
    #[inline]
    pub fn bytes(bytes: &'a [u8]) -> AmHeader<'a> {
        AmHeader {
            padded: bytes,
            len: bytes.len(),
            imm: None,
        }
    }

    /// A header of the first `len` of these bytes.
    #[inline(always)]
    pub fn padded<const N: usize>(bytes: &'a [u8; N], len: usize) -> AmHeader<'a> {
        AmHeader {
            padded: bytes,
            len: len.min(N),
            imm: None,
        }
    }

    /// Immediate data without a header.
    #[inline(always)]
    pub fn imm(imm: Option<u64>) -> AmHeader<'static> {
        AmHeader {
            padded: &[],
            len: 0,
            imm,
        }
    }

    /// The header's bytes and the padding behind them.
    #[inline(always)]
    pub fn padded_bytes(&self) -> &'a [u8] {
        self.padded
    }

    /// Bytes of the header.
    #[inline(always)]
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// The header's bytes.
    #[inline]
    pub fn as_slice(&self) -> &'a [u8] {
        self.padded.get(..self.len).unwrap_or(self.padded)
    }
}

/// Peers whose messages are not accepted for now.
#[derive(Clone, Debug, Default)]
pub enum HeldPeers {
    #[default]
    None,
    All,
    Of(HashSet<QpAddr>),
}

impl HeldPeers {
    /// Whether this peer is among them.
    #[inline]
    pub fn includes(&self, peer: &QpAddr) -> bool {
        match self {
            HeldPeers::None => false,
            HeldPeers::All => true,
            HeldPeers::Of(peers) => peers.contains(peer),
        }
    }
}

/// A reliable datagram queue pair. Not thread safe by itself: the owner serialises the calls.
pub trait QueuePair: for<'a> Transport<Header<'a> = AmHeader<'a>> {
    /// Its address, for peers.
    fn addr(&self) -> QpAddr;
    /// Whether nothing posted is under way.
    fn idle(&self) -> bool;
    /// Whether one more operation can be posted.
    fn room(&self) -> bool;
    /// Whether so many more can, to this peer.
    fn room_for(&self, peer: PeerId, count: usize) -> bool;
    /// Whether one work request can carry this local memory and name a remote region of this key.
    #[inline(always)]
    fn takes(&mut self, _data: &Payload, _key: u64) -> bool {
        true
    }
    /// Sets whether device memory is copied even where the adapter reaches it.
    fn copy_device_memory(&mut self, _on: bool) {}
    /// Binds the owner's number `peer` to the queue pair at `at`, in place of an earlier binding.
    /// `FI_EHOSTUNREACH` when the peer cannot be reached.
    fn connect(&mut self, peer: PeerId, at: &QpAddr) -> Result<()>;
    /// Whether operations can be posted to a peer of this number.
    fn connected(&self, peer: PeerId) -> bool;
    /// Releases the number of a peer.
    fn disconnect(&mut self, peer: PeerId);
    /// Whether an operation to this peer is under way that [reports
    /// itself](Completion::reports_itself).
    fn busy_with(&self, peer: PeerId) -> bool;
    /// Rings the doorbell for everything posted so far.
    fn ring(&mut self);
    /// As [`QueuePair::ring`], after an operation of the application: where each ring costs a
    /// system call, operations may wait for others that follow, until the next poll.
    #[inline(always)]
    fn ring_burst(&mut self) {
        self.ring();
    }
    /// Posts a message of one piece, which the caller may change afterwards (`inject`), with
    /// immediate data or without, and rings the doorbell. `done` makes the record of the operation
    /// where it is kept.
    #[inline(always)]
    fn send_piece(
        &mut self,
        done: impl Fn() -> Completion,
        imm: Option<u64>,
        p: Piece,
        inject: bool,
    ) -> Verdict {
        post_and_ring(self, done(), imm, p, inject)
    }
    /// Drives progress and collects events.
    fn poll_all(&mut self, into: &mut Events);
    /// Announces that an answer of this peer is awaited (`on`) or no longer awaited, so that a
    /// failure of the peer is detected although no operation is under way.
    fn expect(&mut self, peer: &QpAddr, on: bool);
    /// From now on answers these peers' messages with "receiver not ready", so that their sender
    /// retries. `begins`: whether a packet begins a message.
    fn hold(&mut self, begins: fn(&[u8]) -> bool, held: HeldPeers);
    /// Cancels reads that report to `_to`: their data is no longer stored. An adapter whose reads
    /// end with the registration of their local memory has nothing to do.
    fn cancel_reads(&mut self, _to: Report) {}
    /// Asks for [`Event::Remote`].
    fn report_remote(&mut self);
    /// File descriptor that becomes readable after [`QueuePair::arm`] once `poll_all` has
    /// something.
    fn wait_fd(&self) -> i32;
    /// Arms the descriptor for the next event; `false` when `poll_all` has something already.
    fn arm(&mut self) -> bool;

    /// Whether the descriptor is still armed. Always true for an adapter whose polls do not clear
    /// the signal.
    fn armed(&self) -> bool {
        true
    }
}

/// Carries out [`QueuePair::send_piece`] by the calls of the transport.
#[inline]
fn post_and_ring(
    q: &mut (impl QueuePair + ?Sized),
    done: Completion,
    imm: Option<u64>,
    p: Piece,
    inject: bool,
) -> Verdict {
    let sent = match inject {
        true => q.am_short(done, AmHeader::imm(imm), p.as_inject()),
        false => q.am_zcopy(done, AmHeader::imm(imm), Payload::Piece(p)),
    };
    q.ring_burst();
    sent
}

/// Observes all regions of a domain, so that peers can find regions without the adapter.
pub trait MrObserver: Send + Sync {
    /// A region that peers name by `key`, its first byte by `base`.
    fn add(&self, key: u64, base: u64, mem: &UserMem, access: u64);
    /// Removes the region: later look-ups of the key fail.
    fn remove(&self, key: u64);
    /// Whether a peer that found the region before its removal still accesses it.
    fn in_use(&self, key: u64) -> bool;
}

/// An opened adapter: its queue pairs and memory regions. `access` is that of fi_mr_reg(3).
pub trait Device {
    /// Its queue pairs.
    type Qp: QueuePair;
    /// Capabilities and limits.
    fn attr(&self) -> &AdapterAttr;
    /// Opens a queue pair; `qpn` 0 lets the adapter choose.
    fn open_qp(&self, qpn: u16, wanted: PacketQp) -> Result<Self::Qp>;
    /// Opens a queue pair whose work requests are the application's own operations.
    fn open_raw(&self, wanted: &RawQp) -> Result<Self::Qp>;
    /// Opens queue pairs with consecutive numbers and one key, so that the address of the first
    /// gives those of the others.
    fn open_group(&self, qpn: u16, count: usize) -> Result<Vec<Self::Qp>>;
    /// Registers memory for remote access and returns its key. `wanted` is the application's key,
    /// or `None` for a region of the library's own; the value counts only for an adapter with
    /// application keys. The key is 0 only if `wanted` is.
    fn reg_mr(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<u64>;
    /// As [`Device::reg_mr`], for a dma-buf that the application addresses as `mem`.
    /// `FI_EOPNOTSUPP` where the adapter cannot register one.
    fn reg_dmabuf(
        &self,
        mem: UserMem,
        _from: DmaBuf,
        access: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        // Software accesses the memory at the application's addresses.
        self.reg_mr(mem, access, wanted)
    }
    /// Withdraws a region of the application; no access is under way when it returns.
    fn dereg_mr(&self, key: u64) -> Result<()>;
    /// Ends an operation's use of a region of the library's own.
    fn release_mr(&self, key: u64) {
        let _ = self.dereg_mr(key);
    }
    /// The memory that a peer names, if the region permits `access` (FI_REMOTE_READ,
    /// FI_REMOTE_WRITE): for accesses that software carries out in place of the adapter. The memory
    /// is lent until the key is withdrawn.
    fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status>;
    /// Interconnects over which the adapter reaches a region (efadv_query_mr(3)): `ic_id_validity`,
    /// `recv_ic_id`, `rdma_read_ic_id`, `rdma_recv_ic_id`. `FI_ENOSYS` where the adapter reports
    /// none.
    fn query_mr(&self, _key: u64) -> Result<[u16; 4]> {
        Err(FI_ENOSYS)
    }
    /// The local key of a region.
    fn lkey(&self, _key: u64) -> Option<u32> {
        None
    }
    /// Prepares for traffic with a peer, which may access our memory before we send to the peer.
    /// `FI_EHOSTUNREACH` when the peer cannot be reached.
    fn reach(&self, _peer: &QpAddr) -> Result<()> {
        Ok(())
    }
}
