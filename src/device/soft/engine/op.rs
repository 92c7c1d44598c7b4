//! What is under way: operations, their packets, reads that wait for their data.

use crate::hmem::UserMem;
use crate::transport::{Completion, Status};

/// What an operation sends.
#[derive(Debug)]
pub(super) enum EngineOpKind {
    Send {
        /// Bytes of `copy` that are the message's header.
        head_len: usize,
    },
    Write {
        key: u64,
        addr: u64,
        imm: Option<u32>,
    },
    ReadReq {
        id: u64,
        key: u64,
        addr: u64,
        len: u32,
    },
    ReadResp {
        id: u64,
        key: u64,
        addr: u64,
        /// Its end is an event.
        counted: bool,
    },
    Ping,
}

/// One posted operation.
#[derive(Debug)]
pub(super) struct EngineOp {
    pub peer: u32,
    /// Tells the operation from others to the peer: indices come again.
    pub number: u32,
    /// Completion to report. `None` for pings, read responses, and read requests, whose completion
    /// is in [`PendingRead`].
    pub done: Option<Completion>,
    pub kind: EngineOpKind,
    /// Header of a send, and payload that was copied at posting.
    pub copy: Vec<u8>,
    /// Payload in the application's memory.
    pub user: UserMem,
    /// Bytes to send, the header of a message included.
    pub total: u64,
    /// Where the next packet begins; packets without an acknowledgement; whether the last one is
    /// cut.
    pub next: u64,
    pub unacked: u32,
    pub cut: bool,
    /// How the operation ends.
    pub status: Status,
}

/// One packet of an operation, enough to build it again.
#[derive(Clone, Copy, Debug)]
pub(super) struct TxPart {
    pub op: u32,
    pub off: u64,
    pub len: u32,
}

/// A read of the application that waits for its data.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub done: Completion,
    pub peer: u32,
    /// Tells the read from earlier ones in its slot.
    pub generation: u32,
    pub local: UserMem,
    /// Bytes that have arrived.
    pub got: u64,
}
