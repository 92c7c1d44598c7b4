//! Adapters: queue pairs that move packets and remote memory, and the memory they may touch.
//!
//! The provider sees an adapter through [`Device`], [`QueuePair`] and the types below, as one of
//! the enums of `any`: no dynamic dispatch on the data path. A queue pair is a reliable datagram
//! (SRD) endpoint: what is posted arrives once, complete and in no particular order. `soft`
//! implements it over UDP, `verbs` over a real EFA adapter. `fault` sits below `soft`'s reliability
//! and loses, doubles, reorders and delays datagrams on purpose.
//!
//! A queue pair is a [`Transport`] whose header is an [`AmHeader`]. What it has taken goes out with
//! `ring`; `poll_all` fills an [`Events`] with what arrived and what completed. Peers go by the
//! owner's numbers, which [`QueuePair::connect`] gives an address.

pub mod any;
pub mod domain_lock;
pub mod fault;
mod futex_lock;
pub mod host;
pub mod local;
pub(crate) mod mem_table;
pub mod membarrier;
mod mr_cache;
pub mod soft;
pub mod stream;
pub mod verbs;
pub mod wait;

use crate::core::Result;
use crate::hmem::{Piece, UserMem};
use crate::transport::{Completion, Payload, PeerId, Report, Status, Transport};
use crate::types::FI_ENOSYS;
use any::{ExternalCounter, ExternalQueue};
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

/// What an adapter can do and how large things may be.
#[derive(Clone, Debug)]
pub struct AdapterAttr {
    /// Device name; domains append `-rdm` or `-dgrm`.
    pub name: String,
    /// Largest message of one send, bytes.
    pub mtu: usize,
    /// Largest RDMA read or write, bytes.
    pub max_rdma: usize,
    /// Send queue depth: operations under way at once.
    pub sq_depth: usize,
    /// Receive queue depth.
    pub rq_depth: usize,
    /// Address of the adapter.
    pub gid: [u8; 16],
    /// Link speed, bits per second; 0 when unknown.
    pub speed: u64,
    /// Whether the link is up.
    pub up: bool,
    /// MTU of the link below, bytes.
    pub link_mtu: usize,
    pub caps: Caps,
    pub raw: Raw,
    /// Of a piece of hardware.
    pub identity: Option<Identity>,
}

/// What bounds an application that sees the adapter's own work requests.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// Entries of its queues.
    pub sends: usize,
    pub recvs: usize,
    /// Bytes that go with a work request itself.
    pub inline: usize,
    /// Pieces of memory of a message.
    pub pieces: usize,
    /// It can be told how often to try again where a peer has no receive.
    pub rnr_limit: bool,
    /// Wider work requests, where the adapter has them.
    pub wide: Option<Wide>,
    /// How many counters of its own it has.
    pub counters: usize,
    /// How far they count; 0 where it has none.
    pub counts_to: u64,
}

/// Work requests that more bytes go with, writes among them. There is room for fewer.
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    pub inline: usize,
    pub sends: usize,
}

/// A queue pair for an application that sees the adapter's own work requests.
#[derive(Clone, Default)]
pub struct RawQp {
    /// Its number; 0 lets the adapter choose.
    pub qpn: u16,
    /// For datagrams; reliable otherwise.
    pub datagram: bool,
    /// Peers' writes with immediate data take no receive, where the adapter can do that.
    pub unsolicited: bool,
    /// So many bytes shall go with a work request.
    pub inline: usize,
    /// How often the adapter tries again where a peer has no receive: 0 to 6 times, 7 without end.
    pub rnr_retry: u8,
    /// Where completions of sends and of receives go instead of a queue of its own.
    pub queues: [Option<Arc<ExternalQueue>>; 2],
    /// What counts its operations, and which kinds.
    pub counters: Vec<(Arc<ExternalCounter>, u32)>,
}

/// What an adapter does by itself.
#[derive(Clone, Copy, Debug)]
pub struct Caps {
    /// Reads and writes remote memory.
    pub rdma_read: bool,
    pub rdma_write: bool,
    /// A peer's write with immediate data takes no receive.
    pub unsolicited: bool,
    /// Every peer can do the same: it need not have said so.
    pub homogeneous: bool,
    /// A peer that is down is so for good: whoever comes later begins anew.
    pub sessions: bool,
    /// Regions have the application's keys, and offsets for addresses (mr_mode 0).
    pub application_keys: bool,
    /// Bytes of a region's key.
    pub key_size: usize,
}

/// What a piece of hardware is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// PCI vendor and device.
    pub vendor: u32,
    pub device: u32,
    /// As sysfs states them.
    pub version: String,
    pub firmware: String,
    pub driver: String,
    pub bus: Option<Bus>,
    /// How many memory regions, queue pairs and completion queues it has.
    pub regions: usize,
    pub queue_pairs: usize,
    pub queues: usize,
}

/// A PCI address.
#[derive(Clone, Copy, Debug)]
pub struct Bus {
    pub domain: u16,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

/// What an arriving message or a finished operation looks like.
#[derive(Debug)]
pub enum Event {
    /// A message has arrived; the bytes are in the [`Events`] that holds this. Immediate data comes
    /// with an application's own messages alone.
    Recv {
        from: QpAddr,
        data: Data,
        imm: Option<u64>,
    },
    /// As [`Event::Recv`], from somebody whose key the adapter does not tell, which is 0 here; the
    /// host may be unknown, too: zero. [`QueuePair::connect`] makes a sender known.
    UnknownSender { from: QpAddr, data: Data },
    /// A peer's RDMA write with immediate data is complete in our memory.
    WriteImm { from: QpAddr, imm: u32, len: u32 },
    /// A peer has read or written our memory; only after [`QueuePair::report_remote`].
    Remote { key: u64, len: u32, write: bool },
    /// An operation posted here has ended.
    Done { done: Completion, status: Status },
    /// A receive of the application is over. `into`: its memory, if that is one piece and nobody
    /// else knows.
    Taken {
        done: Completion,
        into: Piece,
        taken: Taken,
    },
    /// Something is awaited from a peer ([`QueuePair::expect`]), and only who sends to it hears of
    /// its end.
    Silent { peer: QpAddr },
    /// A peer does not answer, or is not who it was: nothing posted to it is left, and nothing
    /// that was expected of it will come.
    PeerDown { peer: QpAddr, status: Status },
}

/// How a receive of the application ended: with a message of `len` bytes, or used up by a peer's
/// `write` for its immediate data.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    /// A sender that was neither sent to nor met has a key of 0, and a host of zero if that is
    /// unknown.
    pub from: QpAddr,
    pub len: u32,
    pub imm: Option<u32>,
    pub status: Status,
    pub write: bool,
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub enum Data {
    /// In the arena, from, to.
    Arena(u32, u32),
    /// In memory of their own.
    Own(Vec<u8>),
}

/// What one `poll_all` found. Lent to the queue pair, read afterwards, used again: no allocation.
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

/// A queue of an adapter in memory, for whoever drives it without the library.
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
    /// What else it can do, as the adapter says.
    pub caps: u16,
}

/// A dma-buf whose bytes from `offset` on are registered: memory of a device, or of whoever else
/// exports it.
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
    /// The header's `len` bytes, and some more that mean nothing: a length known at compile time
    /// is copied faster.
    padded: &'a [u8],
    len: usize,
    pub imm: Option<u64>,
}

impl<'a> AmHeader<'a> {
    /// These bytes.
    #[inline]
    pub fn bytes(bytes: &'a [u8]) -> AmHeader<'a> {
        AmHeader {
            padded: bytes,
            len: bytes.len(),
            imm: None,
        }
    }

    /// The first `len` bytes of these.
    #[inline(always)]
    pub fn padded<const N: usize>(bytes: &'a [u8; N], len: usize) -> AmHeader<'a> {
        AmHeader {
            padded: bytes,
            len: len.min(N),
            imm: None,
        }
    }

    /// No header.
    #[inline(always)]
    pub fn imm(imm: Option<u64>) -> AmHeader<'static> {
        AmHeader {
            padded: &[],
            len: 0,
            imm,
        }
    }

    /// The header's bytes, and some more.
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

/// A reliable datagram queue pair. Not thread safe by itself: the owner serialises the calls.
pub trait QueuePair: for<'a> Transport<Header<'a> = AmHeader<'a>> {
    /// Its address, for peers.
    fn addr(&self) -> QpAddr;
    /// Whether nothing posted is under way.
    fn idle(&self) -> bool;
    /// Whether one more operation can be posted.
    fn room(&self) -> bool;
    /// Whether one request may have this local memory and a remote region of this key.
    #[inline(always)]
    fn takes(&mut self, _data: &Payload, _key: u64) -> bool {
        true
    }
    /// Whether device memory is copied from now on, even where the adapter reaches it.
    fn copy_device_memory(&mut self, _on: bool) {}
    /// From now on `peer` is the owner's number of the queue pair at `at`, whatever it was before.
    /// `FI_EHOSTUNREACH` when there is no way to it.
    fn connect(&mut self, peer: PeerId, at: &QpAddr) -> Result<()>;
    /// Whether operations can be posted to a peer of this number.
    fn connected(&self, peer: PeerId) -> bool;
    /// The number is nobody's any more.
    fn disconnect(&mut self, peer: PeerId);
    /// Whether an operation for a peer that reports itself has not ended.
    fn busy_with(&self, peer: PeerId) -> bool;
    /// Lets everything posted so far go.
    fn ring(&mut self);
    /// Moves the adapter along and collects whatever happened.
    fn poll_all(&mut self, into: &mut Events);
    /// Says that an answer of this peer is (`on`) or is no longer awaited, so that its silence is
    /// noticed although nothing is under way.
    fn expect(&mut self, peer: &QpAddr, on: bool);
    /// Messages for which `held` says true are answered with "receiver not ready" from now on, and
    /// come again later; `None` lets all in.
    fn hold(&mut self, held: Option<fn(&[u8]) -> bool>);
    /// Ends reads that report there: nothing more is stored for them. An adapter whose reads end
    /// with the registration of their local memory has nothing to do.
    fn cancel_reads(&mut self, _to: Report) {}
    /// Asks for [`Event::Remote`].
    fn report_remote(&mut self);
    /// File descriptor that becomes readable after [`QueuePair::arm`] once `poll_all` has
    /// something.
    fn wait_fd(&self) -> i32;
    /// Asks for a signal on the descriptor; `false` when `poll_all` has something already.
    fn arm(&mut self) -> bool;

    /// Whether nothing has happened since then; also where polls do not take the signal back.
    fn armed(&self) -> bool {
        true
    }
}

/// Hears of every region of a domain, so that peers may find it without the adapter.
pub trait MrObserver: Send + Sync {
    /// A region that peers name by `key`, its first byte by `base`.
    fn add(&self, key: u64, base: u64, mem: &UserMem, access: u64);
    /// The region goes: whoever looks it up from now on finds nothing.
    fn remove(&self, key: u64);
    /// Whether somebody who has found it before still uses it.
    fn in_use(&self, key: u64) -> bool;
}

/// Access a memory region grants, as bits of `fi_mr_reg`'s `access`.
pub trait Device {
    /// Its queue pairs.
    type Qp: QueuePair;
    /// What it is and can do.
    fn attr(&self) -> &AdapterAttr;
    /// Opens a queue pair; `qpn` 0 lets the adapter choose.
    fn open_qp(&self, qpn: u16) -> Result<Self::Qp>;
    /// Opens a queue pair for an application that sees the adapter's own work requests.
    fn open_raw(&self, wanted: &RawQp) -> Result<Self::Qp>;
    /// Opens queue pairs with consecutive numbers and one key, so that the address of the first
    /// gives those of the others.
    fn open_group(&self, qpn: u16, count: usize) -> Result<Vec<Self::Qp>>;
    /// Registers memory for remote access and returns its key, never 0 unless it is the `wanted`
    /// one, which only an adapter with keys of the application's choice looks at.
    fn reg_mr(&self, mem: UserMem, access: u64, wanted: Option<u64>) -> Result<u64>;
    /// As [`Device::reg_mr`], a dma-buf, which the application sees as `mem`. `FI_EOPNOTSUPP` where
    /// that is not possible.
    fn reg_dmabuf(
        &self,
        mem: UserMem,
        _from: DmaBuf,
        access: u64,
        wanted: Option<u64>,
    ) -> Result<u64> {
        // What is done by software is done where the application sees it.
        self.reg_mr(mem, access, wanted)
    }
    /// Withdraws a registration; no access is under way when it returns.
    fn dereg_mr(&self, key: u64) -> Result<()>;
    /// The memory a peer names, if `access` (FI_REMOTE_READ, FI_REMOTE_WRITE) permits it; for what
    /// is done in software in place of the adapter. It is the application's until the key is
    /// withdrawn.
    fn target(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: u64,
    ) -> core::result::Result<UserMem, Status>;
    /// How the adapter reaches a region: which of the others hold, and the interconnects of
    /// receives, reads, and being read. `FI_ENOSYS` where it does not say.
    fn query_mr(&self, _key: u64) -> Result<[u16; 4]> {
        Err(FI_ENOSYS)
    }
    /// A region's key for requests of this adapter.
    fn lkey(&self, _key: u64) -> Option<u32> {
        None
    }
    /// Prepares for traffic with a peer, which may want to reach our memory before we send to it.
    /// `FI_EHOSTUNREACH` when there is no way to it.
    fn reach(&self, _peer: &QpAddr) -> Result<()> {
        Ok(())
    }
}
