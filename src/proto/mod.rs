//! The RDM protocol as state machines: no sockets, no memory, no clock.
//!
//! An [`Endpoint`] eats what the application asks (`send`, `recv`), what arrived (`packet`) and
//! what the adapter finished (`packet_done`, `peer_down`), and answers through a [`Port`]: packets
//! to send, bytes to store, completions to report. Memory is named by the provider's own operation
//! number (`ctx`) and an offset, peers by a [`PeerId`]; neither a pointer nor an address gets here.
//!
//! Implemented of protocol version 4: eager and long-CTS messages, tagged and not, their
//! delivery-complete forms, handshakes, the reorder window. One-sided operations go through the
//! adapter and do not pass here.
#![forbid(unsafe_code)]

mod endpoint;
pub mod matching;
mod peer;
#[cfg(test)]
mod sim;

pub use endpoint::{Endpoint, RecvArgs, SendArgs};
pub use matching::ANY;

use crate::core::Errno;

/// Number of a peer within one endpoint.
pub type PeerId = u32;

/// Why an operation ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Positive `FI_E*`.
    pub errno: Errno,
    /// Device status, 0 when the adapter is not the reason.
    pub status: u8,
}

/// Payload of a packet: so many bytes of operation `ctx`, from `off` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Body {
    pub ctx: u32,
    pub off: u64,
    pub len: usize,
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
}

/// The world outside an [`Endpoint`]. Implemented by the provider, and by the simulator in tests.
pub trait Port {
    /// Whether the adapter takes one more packet.
    fn room(&self) -> bool;
    /// Sends a packet. `false` when there was no room after all.
    fn send(&mut self, to: PeerId, head: &[u8], body: Option<Body>, token: Token) -> bool;
    /// Stores bytes of a message at `off` of receive `ctx`; what has no room there is dropped.
    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]);
    /// Transmit operation `ctx` has ended.
    fn sent(&mut self, ctx: u32, result: Result<(), Failure>);
    /// Receive operation `ctx` has ended.
    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>);
    /// An answer of this peer is (`on`) or is no longer awaited.
    fn expect(&mut self, peer: PeerId, on: bool);
}
