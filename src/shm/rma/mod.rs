//! Reads, writes and atomics of a peer's memory as records of its ring: who does the work, and when
//! it is done.
//!
//! An access is a record with a key, an address and data, or room for it. A target that polls
//! carries it out and reports its progress (`lock`); the initiator waits for nothing else. A target
//! that does not poll must not keep a write or read from ending, so the initiator may execute it
//! instead, by cross-memory attach (`cma`) to the memory that the target has published
//! (`mr_table`). Whoever works on a ring's accesses holds the ring's lock, so that each is carried
//! out once, and an access that is reported as done is done in memory. Atomics are the target's
//! alone.
//!
//! The lock and the progress lie in the ring; both sides write them. A side that lies in them harms
//! the accesses between these two, nothing else: positions are compared with one's own, and what a
//! peer's memory may be used for is looked up again by whoever does the work.
//!
//! `target` is the reader's side of the lock, `initiator` the writer's, which a thread of its
//! process looks at as well: after an injecting call nobody may ever ask again. `outstanding` keeps
//! what the application wants to know of each access until it ends.

mod cma;
mod initiator;
mod lock;
mod mr_table;
mod outstanding;
mod target;

pub(crate) use cma::{LocalBuffer, MANY};
pub(crate) use initiator::{Executed, Initiator};
#[cfg(test)]
pub(crate) use lock::abandon;
pub(crate) use lock::{done, outcome_of, RmaOutcome, CLOSE_WAIT};
#[cfg(any(test, feature = "internals"))]
pub(crate) use mr_table::{KeyHash, VISIT_ASIDE};
pub(crate) use mr_table::{KeyHashes, MrTable, RemoteMrTable, RmaDenied, VISIT};
pub(crate) use outstanding::{AdapterRetry, OutstandingRma, RmaRequest};
pub(crate) use target::{is_target_s, RmaResponse, TargetLock};

/// Bytes in front of an access's data: key, address, and a word of the kind.
pub(crate) const HEAD: usize = 24;
