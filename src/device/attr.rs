//! What an adapter is and can do, and what a queue pair is made with.

use super::any::{ExternalCounter, ExternalQueue};
use std::sync::Arc;

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
    /// Each access of a peer can be an event
    /// ([`report_remote`](super::QueuePair::report_remote)).
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
