//! What moves bytes between endpoints, as the provider sees it.
//!
//! A [`Transport`] reaches peers that its owner has connected, by number. It takes active messages
//! (a header that the other side understands, and data), and reads, writes and atomics of a peer's
//! memory; as with UCX's transports there is a call for each way in which data can be handed over,
//! and [`TransportCaps`] says what a transport can do and how large things may be. `shm` implements
//! it for processes of one host, `device::verbs` for an EFA adapter, `device::soft` for the
//! software adapter. They are compiled in: nothing is dispatched at run time but which adapter
//! there is.
//!
//! Every call answers with a [`Verdict`]. The [`Completion`] of what is under way comes back by the
//! transport's [`Poll`], which has arriving messages, too.

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

/// What became of an operation that was handed to a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done, and reported to nobody yet.
    Done,
    /// It is under way: its completion comes with a poll.
    Queued,
    /// There is no room for it now; nothing was done.
    NoResources,
    /// This transport does not reach the peer, or cannot do this; nothing was done.
    Unsupported,
    /// The request cannot be carried out; nothing was done.
    Failed(Errno),
}

impl Verdict {
    /// What a call of the application answers. `FI_EAGAIN` without room, `FI_EOPNOTSUPP` where no
    /// other transport is left.
    #[inline(always)]
    pub fn result(self) -> Result<()> {
        match self {
            Verdict::Done | Verdict::Queued => Ok(()),
            Verdict::NoResources => Err(FI_EAGAIN),
            Verdict::Unsupported => Err(FI_EOPNOTSUPP),
            Verdict::Failed(e) => Err(e),
        }
    }

    /// What a post answers that takes or refuses an operation.
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

    /// Bytes.
    #[inline(always)]
    pub fn byte_len(&self) -> usize {
        match self {
            Payload::Inject(b) => b.piece().len(),
            Payload::Piece(p) => p.len(),
            Payload::User(m) => m.len(),
        }
    }

    /// Memory that stays lent until the completion.
    pub fn lent(&self) -> UserMem {
        match self {
            Payload::Inject(_) => UserMem::EMPTY,
            Payload::Piece(p) => (*p).into(),
            Payload::User(m) => **m,
        }
    }
}

/// What a transport can do for a peer: the most bytes of each, 0 where it cannot.
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

/// An atomic on one piece of a peer's memory, which its completion names.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest<'a> {
    /// Datatype, operation and kind, as the other side understands them.
    pub word: u64,
    /// Bytes of that memory.
    pub len: usize,
    /// Operands, and values to compare with.
    pub data: &'a [u8],
    /// Where the former values go.
    pub result: Piece,
}

/// See the module text. Not thread safe by itself: the owner serialises the calls.
pub trait Transport {
    /// What goes in front of an active message's data.
    type Header<'a>: Copy;

    /// What it can do for a peer.
    fn caps(&self, peer: PeerId) -> TransportCaps;

    /// Sends an active message of host memory that is copied at once.
    fn am_short(&mut self, done: Completion, head: Self::Header<'_>, data: InjectBuf) -> Verdict;

    /// Sends an active message of any memory, which is copied at once.
    fn am_bcopy(&mut self, done: Completion, head: Self::Header<'_>, data: Payload) -> Verdict;

    /// Sends an active message of memory that is lent until the completion.
    fn am_zcopy(&mut self, done: Completion, head: Self::Header<'_>, data: Payload) -> Verdict;

    /// Writes to `done.remote`; the peer is told `imm`, if there is one.
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict;

    /// Reads from `done.remote`, into memory that is lent until the completion.
    fn get(&mut self, done: Completion, into: Payload) -> Verdict;

    /// Changes memory at `done.remote`.
    fn atomic(&mut self, _done: Completion, _a: &AtomicRequest) -> Verdict {
        Verdict::Unsupported
    }
}
