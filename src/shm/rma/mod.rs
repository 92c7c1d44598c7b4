//! Reads, writes and atomics of a peer's memory as records of its ring: which side executes them,
//! and when they are done.
//!
//! An access is a record with a key, an address and data, or room for data. A target that polls
//! executes the access and reports its progress (`lock`); the initiator waits for nothing else. A
//! target that does not poll must not keep a write or read from ending, so the initiator may
//! execute it instead, by cross-memory attach (`cma`) to the memory that the target has published
//! (`mr_table`). Device memory is published there by the handle with which a peer opens it
//! (`device_slots`); the initiator's device copies. The side that executes a ring's accesses holds
//! the ring's lock, so that each access is executed once, and an access that is reported as done is
//! done in memory. Atomics are executed by the target only.
//!
//! Both sides write the lock and the progress, which are in the ring. A side that writes false
//! values harms the accesses between these two only: each side compares positions with its own, and
//! the side that executes an access checks again what the memory of the peer may be used for.
//!
//! `target` is the reader's side of the lock, `initiator` the writer's. The events thread of the
//! writer's process polls the initiator as well: after an inject call the application may never
//! poll again. `outstanding` keeps the completion of each access until the access ends.

mod cma;
mod device_slots;
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
pub(crate) use mr_table::EXECUTE_KEY;
pub(crate) use mr_table::{names_device_regions, COPY_KEY, DEVICE_KEYS, DEVICE_KEYS_COUNT};
pub(crate) use mr_table::{KeyHash, KeyHashes, MrTable, RegionUse, RemoteMrTable, RmaDenied};
pub(crate) use outstanding::{AdapterRetry, OutstandingRma, RmaRequest};
pub(crate) use target::{is_target_only, RmaResponse, TargetLock};

/// Bytes in front of an access's data: key, address, and a word of the kind.
pub(crate) const HEAD: usize = 24;
