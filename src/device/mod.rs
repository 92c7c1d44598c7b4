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

mod addr;
pub mod any;
mod attr;
pub mod domain_lock;
mod events;
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
use std::collections::HashSet;

pub use addr::{gid_of, QpAddr};
pub use attr::{
    AdapterAttr, Caps, DirectLimits, DmaBuf, Identity, PacketQp, PciAddr, QueueMemory, RawQp,
    WideLimits,
};
pub use events::{Data, Event, Events, Taken};

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
