//! What moves bytes between endpoints, and what all of it has in common.

mod completion;
mod status;

pub use completion::{Completion, RemoteAddr, Report};
pub use status::Status;

/// A peer of a domain, by number.
pub type PeerId = u32;

/// What became of an operation that was handed to a transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is done, and reported to nobody yet.
    Done,
    /// It is under way: its completion comes with a poll.
    Queued,
    /// There is no room for it now.
    NoResources,
    /// This transport does not reach the peer, or cannot do this.
    Unsupported,
}
