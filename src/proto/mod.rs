//! The RDM protocol as state machines: no sockets, no memory, no clock.
//!
//! An [`Endpoint`] takes the application's requests (`send`, `recv`, `write`, `read`, `atomic`),
//! arriving packets (`packet`) and the adapter's completions (`packet_done`, `read_done`,
//! `peer_down`). It answers through a [`Port`]: packets to send, bytes to store, completions to
//! report. The provider's operation number (`ctx`) and an offset name memory; a [`PeerId`] names a
//! peer. No pointer and no address reaches this module.
//!
//! `send` and `recv` are the two halves of messages; `eager` is the fast path of both for messages
//! of one packet; `rma` emulates reads and writes; `atomic` handles atomics. `choose` picks a
//! message's subprotocol. `peer` puts requests back in order. `recvq` holds receives and messages
//! without one (`unexpected`), of one endpoint or, as a shared receive context, of several;
//! `matching` finds them. One-sided operations that the adapter executes do not pass through this
//! module.
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
mod reading;
mod recv;
mod recvq;
mod rma;
mod send;
#[cfg(test)]
mod sim;
mod unexpected;

pub use atomic::{AtomicArgs, AtomicKind};
pub use choose::Policy;
pub use endpoint::{Config, Endpoint};
pub use matching::ANY;
pub use recvq::{
    CancelOutcome, Place, RecvArgs, RecvEntry, RecvEntryMatch, RecvQueue, COLLECTIVE_TAG, NO_CTX,
};
pub use rma::{ReadArgs, WriteArgs};
pub use send::SendArgs;
#[cfg(test)]
pub(crate) use sim::seeds as sim_seeds;
pub use unexpected::{PartialMessage, PeekResult, UnexpectedMessage, WriteWithData};

use crate::core::Errno;
use crate::transport::Status;
use crate::types::FI_EIO;
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

impl Failure {
    /// Of an operation that the peer has given up, with the status in the peer's packet.
    fn told_by_peer(code: u32) -> Failure {
        let status = u8::try_from(code).unwrap_or(u8::MAX);
        let known = Status::from_code(status.into()).filter(|s| *s != Status::Ok);
        Failure {
            errno: known.map_or(FI_EIO, Status::errno),
            status,
        }
    }
}

/// Payload of a packet, or the memory that receives it: `len` bytes of operation `ctx` from `off`
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    pub ctx: u32,
    pub off: u64,
    pub len: usize,
}

/// What a packet carries behind its header.
#[derive(Clone, Copy, Debug)]
pub enum PacketPayload<'a> {
    None,
    /// Memory of an operation.
    Body(Body),
    /// Bytes to copy now.
    Bytes(&'a [u8]),
}

/// The owner of a packet; [`Endpoint::packet_done`] gets it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A data packet of this transmit operation.
    Tx(u32),
    /// As `Tx`, where the operation answers a read of the peer's.
    Answer(u32),
    /// A packet whose completion the endpoint ignores.
    Control,
}

impl Token {
    /// The transmit operation, if its completion is reported.
    pub fn tx(self) -> Option<u32> {
        match self {
            Token::Tx(id) | Token::Answer(id) => Some(id),
            Token::Control => None,
        }
    }
}

/// A message that has arrived in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    pub from: PeerId,
    /// Length of the message as sent; exceeds `room` when the message was truncated.
    pub len: u64,
    pub tag: u64,
    pub cq_data: Option<u64>,
    /// Offset of the message in the receive's buffer; not 0 only with FI_MULTI_RECV.
    pub base: u64,
    /// Bytes of the buffer that were available to the message.
    pub room: u64,
    /// The receive stays posted: a multi-receive buffer that takes more.
    pub stays: bool,
}

/// Result of [`Port::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPost {
    /// Under way; ends in [`Endpoint::read_done`].
    Posted,
    /// No room now.
    Busy,
    /// This memory cannot be filled by an RDMA read.
    Refused,
}

/// What an [`Endpoint`] needs from its surroundings. The provider implements it, and the simulator
/// in tests.
pub trait Port {
    /// Whether the adapter takes one more packet.
    fn room(&self) -> bool;
    /// Sends a packet. `false` when there was no room after all.
    fn send(&mut self, to: PeerId, head: &[u8], load: PacketPayload, token: Token) -> bool;
    /// Stores bytes of a message at `off` of receive `ctx`; bytes beyond the buffer are dropped.
    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]);
    /// Transmit operation `ctx`, or an emulated read or fetching atomic, has ended.
    fn sent(&mut self, ctx: u32, result: Result<(), Failure>);
    /// Turns a receive that was posted as a [`RecvEntry`], and whose message has arrived, into an
    /// operation; returns the operation's number.
    fn adopt(&mut self, recv: RecvEntryMatch) -> u32;
    /// Receive operation `ctx` has a message.
    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>);
    /// The endpoint starts (`on`) or stops awaiting one answer of this peer. The calls come in
    /// pairs.
    fn expect(&mut self, peer: PeerId, on: bool);
    /// Whether an RDMA read is preferred for messages to this peer that do not fit into one packet.
    fn prefers_read(&self, _peer: PeerId) -> bool {
        false
    }
    /// Makes the memory of operation `ctx` readable for peers until the operation ends. `None` when
    /// the memory cannot be registered.
    fn expose(&mut self, ctx: u32) -> Option<Iovs>;
    /// Reads a peer's memory into the memory of an operation; [`Endpoint::read_done`] gets `id`
    /// back.
    fn read(&mut self, from: PeerId, piece: RmaIov, into: Body, id: u32) -> ReadPost;
    /// Checks a local region that a peer names and gives it an operation number, which
    /// [`Port::close_target`] releases.
    fn open_target(&mut self, at: &Iovs, write: bool) -> Result<u32, Failure>;
    /// Whether memory of an access that [`Port::open_target`] has numbered cannot be read: a packet
    /// of it was refused for this, and not because no room was left.
    fn unreadable(&mut self, _ctx: u32) -> Option<Failure> {
        None
    }
    /// Releases a number from [`Port::open_target`]; `done`: the access took place as a whole.
    /// `Err` when the device of the memory has failed to store some of it after all.
    fn close_target(&mut self, ctx: u32, done: bool) -> Result<(), Failure>;
    /// A peer's emulated write is complete.
    fn written(&mut self, from: PeerId, cq_data: Option<u64>, len: u64);
    /// Executes a peer's atomic on local memory. `data` holds the operands; for a compare the
    /// comparison values follow them. The former values are appended to `former`.
    fn atomic(
        &mut self,
        rta: &crate::wire::Rta,
        data: &[u8],
        former: &mut Vec<u8>,
    ) -> Result<(), Failure>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{FI_EKEYREJECTED, FI_SUCCESS};

    #[test]
    fn what_a_peer_has_given_up_has_failed() {
        for code in (0..300).chain([u32::MAX]) {
            assert_ne!(Failure::told_by_peer(code).errno, FI_SUCCESS, "{code}");
        }
        assert_eq!(Failure::told_by_peer(64).errno, FI_EKEYREJECTED);
    }
}
