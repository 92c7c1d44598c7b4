//! The record of an operation in flight.
//!
//! Whatever carries an operation keeps its [`Completion`] and hands it back, with a
//! [`Status`](super::Status), exactly once: when nothing can touch the operation's memory any more.

use super::PeerId;

/// Memory of a peer: an address and the key of its region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Virtual address, or offset, as the peer's mr_mode has it.
    pub addr: u64,
    /// Key of the region.
    pub key: u64,
}

/// Where the end of an operation is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// Counters alone; a failure gets a completion entry, too.
    #[default]
    Counters,
    /// Counters, and an entry of the completion queue.
    Entry,
    /// Success was reported when the operation was posted; a failure is.
    Early,
    /// The operation is a part of operation `n` of its domain, which ends with its last part.
    Op(u32),
    /// The operation is packet `n` of the protocol.
    Packet(u32),
    /// The operation is the protocol's read `n`.
    ProtoRead(u32),
    /// Nowhere: a packet whose end nobody waits for.
    Nowhere,
}

/// An operation in flight: what is reported of it when it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// `context` of the call.
    pub context: usize,
    /// Bytes to move.
    pub len: usize,
    /// Flags of its completion entry, which have low bits alone: FI_SEND, FI_TAGGED, ...
    pub flags: u32,
    /// The other side.
    pub peer: PeerId,
    /// Where its end is reported.
    pub report: Report,
    /// What it reads or writes there; of a tagged message the key is its tag.
    pub remote: RemoteAddr,
}

impl Completion {
    /// Of `len` bytes of operation `op`, which knows the rest.
    #[inline]
    pub fn part(op: u32, peer: PeerId, len: usize) -> Completion {
        Completion {
            len,
            peer,
            report: Report::Op(op),
            ..Completion::default()
        }
    }

    /// Of something of the library's own.
    #[inline]
    pub fn internal(report: Report, peer: PeerId) -> Completion {
        Completion {
            peer,
            report,
            ..Completion::default()
        }
    }

    /// Whether its end is reported without a look at anything else.
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
