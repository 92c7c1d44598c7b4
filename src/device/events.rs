//! What a poll of a queue pair brings: messages, ends of operations, and changes of peers. The
//! bytes of messages lie in one arena, which lives as long as the events.

use super::QpAddr;
use crate::hmem::Piece;
use crate::transport::{Completion, PeerId, Status};

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
    /// GID is zero if it is unknown, too. [`connect`](super::QueuePair::connect) makes a sender
    /// known.
    UnknownSender { from: QpAddr, data: Data },
    /// A peer's RDMA write with immediate data is complete in our memory.
    WriteImm { from: QpAddr, imm: u32, len: u32 },
    /// A peer has read or written our memory; only after
    /// [`report_remote`](super::QueuePair::report_remote).
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
    /// An answer of this peer is awaited ([`expect`](super::QueuePair::expect)). The owner should
    /// send something to the peer, because the adapter reports a failed peer only to its senders.
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
