//! What the fast path hands to an adapter whose queues it drives in place, and gets back.

use crate::hmem::Piece;

/// A work request of the fast path: a message of the application's own from one piece of registered
/// memory, a packet of the library, a read or write.
#[derive(Clone, Copy, Debug)]
pub struct TxRequest {
    pub context: usize,
    pub data: Piece,
    /// The owner's number of the peer of a send.
    pub peer: u32,
    /// Key and address of a read or write, 0 otherwise.
    pub key: u32,
    pub raddr: u64,
    /// Flags of its completion entry, which have low bits alone.
    pub flags: u32,
    /// Success is worth a completion entry.
    pub report: bool,
    /// How often the peer was not ready for it.
    pub tries: u8,
}

/// What is worth knowing of a request of the application's own that has ended well.
#[derive(Clone, Copy, Debug)]
pub struct TxDone {
    pub context: usize,
    /// Bytes of its memory.
    pub len: usize,
    pub flags: u32,
    pub report: bool,
}

/// What `poll_packets` of an adapter finds.
pub enum PolledCqe<'a> {
    /// A packet was sent.
    Sent(&'a TxRequest),
    /// One has come from this peer of the owner's.
    Packet(u32, &'a [u8]),
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
