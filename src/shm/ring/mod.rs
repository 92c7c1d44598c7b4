//! A ring of records in shared memory, from one process to another.
//!
//! A record is a word (length and kind) and its bytes. It begins at a multiple of a cache line, so
//! that a short record is transferred in one line. The writer ([`RingWriter`]) first clears the
//! word after the record, then fills the record, and stores its word last; the reader
//! ([`RingReader`]) polls the word where the next record is due. Each side reads lines of the other
//! only for records, for the reader's position, which the reader publishes after some pages, and
//! for the flags by which a side asks for a wake-up.
//!
//! Nothing that the peer writes is trusted: each side keeps its own positions, and a length that
//! does not fit breaks the ring.

mod layout;
#[cfg(test)]
mod model;
mod reader;
mod segment;
#[cfg(test)]
mod weak_model;
mod writer;

pub(super) use layout::{record_word, LINE, TAKEN, WRAP};
pub(crate) use layout::{RecordHeader, RECORD_MAX};
#[cfg(any(test, feature = "internals"))]
pub(super) use layout::{RX_ARMED, RX_PAUSED, TX_ARMED};
pub(crate) use reader::{Lookup, Record, RingReader};
#[cfg(any(test, feature = "internals"))]
pub(super) use segment::FILE;
pub(crate) use segment::{RingSegment, DATA, SIZE};
pub(crate) use writer::{asymmetric_fence, RingWriter, WriteBlocked};
