//! Polling a transport: what has ended or arrived there goes to a sink, one after the other.
//!
//! A poll handles what is common. What takes more (a failure, a peer nobody knows, a message of
//! the library's own) stays where it is, and [`PollStatus::Deferred`] sends the owner to its
//! general progress.

use super::{Completion, Status};

/// What a sink did with what it was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It has taken it.
    Taken,
    /// It has taken it, and takes no more now.
    Enough,
    /// It has not: the general progress has to.
    Deferred,
}

impl Flow {
    /// It was taken; `more`: another one is welcome.
    #[inline(always)]
    pub fn after(more: bool) -> Flow {
        match more {
            true => Flow::Taken,
            false => Flow::Enough,
        }
    }
}

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollStatus {
    /// Nothing.
    Empty,
    /// The sink has taken what there was, or as much as it wants.
    Taken,
    /// Something is left for the general progress.
    Deferred,
}

/// Takes what a transport has: ends of operations, and messages `M`.
pub trait Sink<M> {
    /// An operation has ended.
    fn completed(&mut self, done: &Completion, status: Status) -> Flow;

    /// A message has arrived. Its bytes are the sink's until it returns.
    fn message(&mut self, message: M) -> Flow;
}

/// Keeps the ends of operations, and defers messages.
impl<M> Sink<M> for Vec<(Completion, Status)> {
    #[inline]
    fn completed(&mut self, done: &Completion, status: Status) -> Flow {
        self.push((*done, status));
        Flow::Taken
    }

    fn message(&mut self, _: M) -> Flow {
        Flow::Deferred
    }
}

/// A source of completions and messages. Not thread safe by itself: the owner serialises the calls.
pub trait Poll {
    /// What has arrived.
    type Message<'a>;

    /// Offers up to `budget` completions and messages to a sink, until it has enough or leaves one
    /// where it is.
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<Self::Message<'a>>;
}
