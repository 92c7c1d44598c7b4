//! What moves bytes between endpoints, as the provider sees it.
//!
//! A [`Transport`] reaches peers that its owner has connected, by number. It takes active messages
//! (a header that the other side understands, and data), and reads, writes and atomics of a peer's
//! memory. As in UCX (UCT), there is a call for each way to pass data: short, bcopy, zcopy.
//! [`TransportCaps`] has the size limits of each. `shm` implements [`Transport`] for processes of
//! one host, `device::verbs` for an EFA adapter, `device::soft` for the software adapter. Dispatch
//! is static, except between the two adapters.
//!
//! Every call returns a [`Verdict`]. The transport's [`Poll`] returns the [`Completion`] of each
//! queued operation, and delivers arriving messages.

mod completion;
mod poll;
mod status;

pub use completion::{Completion, RemoteAddr, Report};
pub use poll::{Flow, Poll, PollStatus, Sink};
pub use status::Status;

use crate::core::{Errno, Result};
use crate::hmem::{InjectBuf, Piece, UserMem};
use crate::types::{FI_EAGAIN, FI_EOPNOTSUPP};

/// A peer of a domain, by number.
pub type PeerId = u32;

/// Result of handing an operation to a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation is done; its completion is not yet reported.
    Done,
    /// The operation is under way: a poll will return its completion.
    Queued,
    /// There is no room for the operation now; nothing was done.
    NoResources,
    /// The transport does not reach the peer, or does not support the operation; nothing was done.
    Unsupported,
    /// The request cannot be carried out; nothing was done.
    Failed(Errno),
}

impl Verdict {
    /// The return value of the application's call. `FI_EAGAIN` without room, `FI_EOPNOTSUPP` where
    /// no other transport is left.
    #[inline(always)]
    pub fn result(self) -> Result<()> {
        match self {
            Verdict::Done | Verdict::Queued => Ok(()),
            other => other.refused(),
        }
    }

    /// As [`Verdict::result`], of an operation that is not expected to be under way.
    #[cold]
    #[inline(never)]
    fn refused(self) -> Result<()> {
        match self {
            Verdict::Done | Verdict::Queued => Ok(()),
            Verdict::NoResources => Err(FI_EAGAIN),
            Verdict::Unsupported => Err(FI_EOPNOTSUPP),
            Verdict::Failed(e) => Err(e),
        }
    }

    /// The verdict of a post that returned `r`.
    #[inline]
    pub fn posted(r: Result<()>) -> Verdict {
        match r {
            Ok(()) => Verdict::Queued,
            Err(FI_EAGAIN) => Verdict::NoResources,
            Err(e) => Verdict::Failed(e),
        }
    }
}

/// Data of an active message or a write.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Host memory that is the caller's again when the call returns.
    Inject(InjectBuf<'a>),
    /// Host memory in one piece, lent until the completion.
    Piece(Piece),
    /// Memory of any kind, lent until the completion.
    User(&'a UserMem),
}

impl Payload<'_> {
    /// No data.
    pub const EMPTY: Payload<'static> = Payload::Piece(Piece::EMPTY);

    /// Length in bytes.
    #[inline(always)]
    pub fn byte_len(&self) -> usize {
        match self {
            Payload::Inject(b) => b.piece().len(),
            Payload::Piece(p) => p.len(),
            Payload::User(m) => m.len(),
        }
    }

    /// The memory that stays lent until the completion; none for injected data.
    pub fn lent(&self) -> UserMem {
        match self {
            Payload::Inject(_) => UserMem::EMPTY,
            Payload::Piece(p) => (*p).into(),
            Payload::User(m) => **m,
        }
    }
}

/// Limits of a transport for a peer: most bytes of each kind of call, 0 where it is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCaps {
    /// Active messages from one piece of host memory, which is copied before the call returns.
    pub am_short: usize,
    /// Active messages from any memory, which is copied before the call returns.
    pub am_bcopy: usize,
    /// Active messages from memory that is lent until the completion.
    pub am_zcopy: usize,
    /// Writes of the peer's memory.
    pub put: usize,
    /// Reads of the peer's memory.
    pub get: usize,
    /// Whether it carries atomics.
    pub atomic: bool,
}

/// An atomic on one piece of a peer's memory, at [`Completion::remote`].
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest<'a> {
    /// Datatype, operation and kind, encoded for the target; opaque to the transport.
    pub word: u64,
    /// Bytes of the peer's memory.
    pub len: usize,
    /// Operands, then compare values.
    pub data: &'a [u8],
    /// Where the former values go.
    pub result: Piece,
}

/// See the module text. Not thread safe by itself: the owner serialises the calls.
pub trait Transport {
    /// What goes in front of an active message's data.
    type Header<'a>: Copy;

    /// Limits of the transport for a peer.
    fn caps(&self, peer: PeerId) -> TransportCaps;

    /// Sends an active message of host memory that is copied at once.
    fn am_short(&mut self, done: Completion, head: Self::Header<'_>, data: InjectBuf) -> Verdict;

    /// Sends an active message of any memory, which is copied at once.
    fn am_bcopy(&mut self, done: Completion, head: Self::Header<'_>, data: Payload) -> Verdict;

    /// Sends an active message of memory that is lent until the completion.
    fn am_zcopy(&mut self, done: Completion, head: Self::Header<'_>, data: Payload) -> Verdict;

    /// Writes to `done.remote`; the peer gets an event with `imm`, if there is one.
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict;

    /// Reads from `done.remote`, into memory that is lent until the completion.
    fn get(&mut self, done: Completion, into: Payload) -> Verdict;

    /// Carries out an atomic on the memory at `done.remote`.
    fn atomic(&mut self, _done: Completion, _a: &AtomicRequest) -> Verdict {
        Verdict::Unsupported
    }
}
