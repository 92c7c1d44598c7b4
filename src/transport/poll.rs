//! Polling a transport: a poll passes completions and messages to a sink, one after the other.
//!
//! A poll is the fast path. Rare cases (a failure, an unknown peer, an internal message) stay in
//! the transport, and [`PollStatus::Deferred`] tells the owner to run its general progress.

use super::{Completion, Status};

/// What a sink did with an offered completion or message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Taken; the poll goes on.
    Taken,
    /// Taken; the poll stops.
    Enough,
    /// Not taken: general progress has to handle it.
    Deferred,
}

impl Flow {
    /// Taken; `more`: the poll goes on.
    #[inline(always)]
    pub fn after(more: bool) -> Flow {
        match more {
            true => Flow::Taken,
            false => Flow::Enough,
        }
    }
}

/// Result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollStatus {
    /// Nothing.
    Empty,
    /// The sink has taken everything, or has ended the poll.
    Taken,
    /// Something is left for the general progress.
    Deferred,
}

/// Receives completions and messages `M` from a poll.
pub trait Sink<M> {
    /// An operation has ended.
    fn completed(&mut self, done: &Completion, status: Status) -> Flow;

    /// A message has arrived. Its bytes are valid until the call returns.
    fn message(&mut self, message: M) -> Flow;
}

/// A sink that collects completions, and defers messages.
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
    /// A message that has arrived.
    type Message<'a>;

    /// Offers up to `budget` completions and messages to the sink, until the sink has enough or
    /// defers one.
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<Self::Message<'a>>;
}
