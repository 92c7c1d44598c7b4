//! What the fast path's poll of an adapter's queue finds, and what becomes of it.

use crate::transport::{Completion, PeerId};

/// What `poll_packets` of an adapter finds.
pub enum PolledCqe<'a> {
    /// A request has ended.
    Sent(&'a Completion),
    /// A packet has come from this peer.
    Packet(PeerId, &'a [u8]),
}

/// What the caller of `poll_packets` did with what it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// It is over.
    Over,
    /// It is over, and no more is wanted.
    Last,
    /// The general poll has to handle it.
    Deferred,
}
