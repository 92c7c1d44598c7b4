//! A ring of records in shared memory, from one process to another.
//!
//! A record is a word (length and kind) and its bytes, beginning at a multiple of a cache line, so
//! that a short one crosses over in a single line. The writer ([`RingWriter`]) first makes the word
//! after the record zero, then fills the record, and stores its word last; the reader
//! ([`RingReader`]) looks at the word where the next record is due. Neither touches a line of the
//! other's otherwise, but for the reader's position, which it gives back a few pages at a time, and
//! for the flags by which a side asks to be woken.
//!
//! Nothing the peer writes is believed: positions are each side's own, a length that does not fit
//! breaks the ring.

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
