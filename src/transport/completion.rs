//! The record of an operation in flight.
//!
//! The transport that carries an operation keeps its [`Completion`] and returns it with a
//! [`Status`](super::Status) exactly once: when nothing can access the operation's memory any more.

use super::PeerId;

/// Memory of a peer: an address and the key of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Virtual address or offset, depending on the peer's mr_mode.
    pub addr: u64,
    /// Key of the region.
    pub key: u64,
}

/// Where the end of an operation is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// To counters; a failure also writes a completion entry.
    #[default]
    Counters,
    /// To counters and the completion queue.
    Entry,
    /// Success was counted when the operation was posted, and `entry`: written to the completion
    /// queue. A failure is reported only where nothing was written.
    Early { entry: bool },
    /// The operation is a part of operation `n` of its domain, which ends with its last part.
    Op(u32),
    /// The operation is packet `n` of the protocol.
    Packet(u32),
    /// As `Packet`, part of the answer to a peer's read.
    Answer(u32),
    /// The operation is the protocol's read `n`.
    ProtoRead(u32),
    /// Nowhere: a packet whose completion has no effect.
    Nowhere,
}

/// An operation in flight, with the data of its completion entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// `context` of the call.
    pub context: usize,
    /// Bytes to move.
    pub len: usize,
    /// Flags of the completion entry (FI_SEND, FI_TAGGED, ...), which all fit in 32 bits.
    pub flags: u32,
    /// The other side.
    pub peer: PeerId,
    /// Where the end is reported.
    pub report: Report,
    /// The peer's memory that is read or written; for a tagged message, `key` is the tag.
    pub remote: RemoteAddr,
}

impl Completion {
    /// The completion of `len` bytes of operation `op`, whose record has all other data.
    #[inline]
    pub fn part(op: u32, peer: PeerId, len: usize) -> Completion {
        Completion {
            len,
            peer,
            report: Report::Op(op),
            ..Completion::default()
        }
    }

    /// The completion of an internal operation.
    #[inline]
    pub fn internal(report: Report, peer: PeerId) -> Completion {
        Completion {
            peer,
            report,
            ..Completion::default()
        }
    }

    /// Whether the end can be reported from this record alone.
    #[inline(always)]
    pub fn reports_itself(&self) -> bool {
        matches!(self.report, Report::Entry | Report::Counters)
    }

    /// The operation that this is a part of.
    #[inline]
    pub fn op(&self) -> Option<u32> {
        match self.report {
            Report::Op(n) => Some(n),
            _ => None,
        }
    }
}
