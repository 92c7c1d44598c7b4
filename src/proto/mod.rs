//! The RDM protocol as state machines: no sockets, no memory, no clock.
//!
//! An [`Endpoint`] eats what the application asks (`send`, `recv`, `write`, `read`, `atomic`), what
//! arrived (`packet`) and what the adapter finished (`packet_done`, `read_done`, `peer_down`), and
//! answers through a [`Port`]: packets to send, bytes to store, completions to report. Memory is
//! named by the provider's own operation number (`ctx`) and an offset, peers by a [`PeerId`];
//! neither a pointer nor an address gets here.
//!
//! `send` and `recv` are the two halves of messages, `eager` is what is left of both for most of
//! them, `rma` emulated reads and writes, `atomic` atomics; `choose` says which subprotocol a
//! message takes; `peer` puts requests back in order; `recvq` holds receives and unexpected
//! messages, of one endpoint or, as a shared receive context, of several; `matching` finds them.
//! One-sided operations that the adapter carries out itself do not pass here.
#![forbid(unsafe_code)]

mod atomic;
pub mod choose;
pub mod coll;
mod eager;
mod endpoint;
#[cfg(any(test, feature = "internals"))]
pub mod hostile;
pub mod matching;
mod peer;
mod recv;
mod recvq;
mod rma;
mod send;
#[cfg(test)]
mod sim;

pub use atomic::{AtomicArgs, AtomicKind};
pub use choose::Policy;
pub use endpoint::{Config, Endpoint};
pub use matching::ANY;
pub use recvq::{
    Cancelled, Coming, Peeked, Place, RecvArgs, RecvEntry, RecvQueue, ShortRecv, Unexpected,
    Written, COLLECTIVE_TAG, NO_CTX,
};
pub use rma::{ReadArgs, WriteArgs};
pub use send::SendArgs;
#[cfg(test)]
pub(crate) use sim::seeds as sim_seeds;

use crate::core::Errno;
use crate::wire::{Iovs, RmaIov};

/// Number of a peer, the same for all endpoints that share a receive queue.
pub use crate::transport::PeerId;

/// Why an operation ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Positive `FI_E*`.
    pub errno: Errno,
    /// Device status, 0 when the adapter is not the reason.
    pub status: u8,
}

/// Payload of a packet, or place for it: so many bytes of operation `ctx`, from `off` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    pub ctx: u32,
    pub off: u64,
    pub len: usize,
}

/// What a packet carries behind its header.
#[derive(Clone, Copy, Debug)]
pub enum Load<'a> {
    None,
    /// Memory of an operation.
    Body(Body),
    /// Bytes to copy now.
    Bytes(&'a [u8]),
}

/// What a packet belongs to; comes back in [`Endpoint::packet_done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A data packet of this transmit operation.
    Tx(u32),
    /// A packet that nobody waits for.
    Control,
}

/// A message that has arrived in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub from: PeerId,
    /// Length of the message as sent; more than the buffer held when it was truncated.
    pub len: u64,
    pub tag: u64,
    pub cq_data: Option<u64>,
    /// Where in the receive's buffer it begins; not 0 only with FI_MULTI_RECV.
    pub base: u64,
    /// Bytes there were for it.
    pub room: u64,
    /// The receive stays posted: a multi-receive buffer that takes more.
    pub stays: bool,
}

/// AckKind to [`Port::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPost {
    /// Under way; ends in [`Endpoint::read_done`].
    Posted,
    /// No room now.
    Busy,
    /// This memory cannot be filled by an RDMA read.
    Refused,
}

/// The world outside an [`Endpoint`]. Implemented by the provider, and by the simulator in tests.
pub trait Port {
    /// Whether the adapter takes one more packet.
    fn room(&self) -> bool;
    /// Sends a packet. `false` when there was no room after all.
    fn send(&mut self, to: PeerId, head: &[u8], load: Load, token: Token) -> bool;
    /// Stores bytes of a message at `off` of receive `ctx`; what has no room there is dropped.
    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]);
    /// Transmit operation `ctx`, or an emulated read or fetching atomic, has ended.
    fn sent(&mut self, ctx: u32, result: Result<(), Failure>);
    /// Makes a plain receive, whose message has come, an operation.
    fn adopt(&mut self, recv: ShortRecv) -> u32;
    /// Receive operation `ctx` has a message.
    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>);
    /// An answer of this peer is (`on`) or is no longer awaited.
    fn expect(&mut self, peer: PeerId, on: bool);
    /// Whether reading is the better way to this peer for whatever does not fit into a packet.
    fn reads_memory(&self, _peer: PeerId) -> bool {
        false
    }
    /// Makes the memory of operation `ctx` readable for peers until the operation ends. `None` when
    /// that cannot be had.
    fn expose(&mut self, ctx: u32) -> Option<Iovs>;
    /// Reads a peer's memory into that of an operation; `id` comes back.
    fn read(&mut self, from: PeerId, piece: RmaIov, into: Body, id: u32) -> ReadPost;
    /// Memory of ours that a peer names, as an operation's; closed with [`Port::close_target`].
    fn open_target(&mut self, at: &Iovs, write: bool) -> Result<u32, Failure>;
    /// The peer is done with it.
    fn close_target(&mut self, ctx: u32);
    /// A peer's emulated write is complete.
    fn written(&mut self, from: PeerId, cq_data: Option<u64>, len: u64);
    /// Carries an atomic out on memory of ours. `data` holds the operands, of a compare followed
    /// by the values to compare with; the former values are appended to `former`.
    fn atomic(
        &mut self,
        rta: &crate::wire::Rta,
        data: &[u8],
        former: &mut Vec<u8>,
    ) -> Result<(), Failure>;
}
