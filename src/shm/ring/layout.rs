//! Layout of a ring in its segment: the words that both sides read, and the word in front of each
//! record.
//!
//! | cache line | content |
//! |---|---|
//! | 2, the reader's | [`TAKEN`], [`RX_PAUSED`], [`RX_ARMED`], [`TX_ARMED`] |
//! | 3 | [`READER_GONE`], behind the words of `rma` |
//! | 8, the writer's | [`WRITER_CPU`] |
//!
//! A record begins with its word, and takes whole lines:
//!
//! | bits | content |
//! |---|---|
//! | 0 to 31 | length of the payload, bytes |
//! | 32 to 39 | kind (`shm::kind`); 0: no record yet, 255: [`WRAP`] |
//! | 40 to 47 | flags |
//!
//! The word is written last: it publishes the record.

use super::segment::SIZE;
use crate::shm::kind;

/// Longest record, bytes.
pub(crate) const RECORD_MAX: usize = 64 << 10;
/// Bytes of taken records after which the reader publishes its position, as credit for the writer.
pub(crate) const GIVE_BACK: u64 = 32 << 10;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;
/// The position up to which records are taken, in bytes since the ring was made; 64 bits.
pub(crate) const TAKEN: usize = 2 * LINE;
/// Whether the reader pauses messages; 32 bits.
pub(crate) const RX_PAUSED: usize = TAKEN + 8;
/// Whether the reader is to be woken by the next record; 32 bits.
pub(crate) const RX_ARMED: usize = TAKEN + 12;
/// Whether the writer is to be woken when there is room; 32 bits.
pub(crate) const TX_ARMED: usize = TAKEN + 16;

/// Whether the reader is gone, 64 bits: in the line of the words by which the writer names regions
/// that it uses (`rma`), which it reads at each access.
pub(crate) const READER_GONE: usize = 3 * LINE + 16;

/// Where the writer's process ran last (`shm::cpu`), 64 bits.
pub(crate) const WRITER_CPU: usize = 8 * LINE;

/// Bit offsets in a record's word: the kind, above the length, and the caller's flags.
pub(crate) const KIND: u32 = 32;
pub(crate) const FLAGS: u32 = 40;
/// Word in place of a record: the next record is at the beginning of the ring.
pub(crate) const WRAP: u64 = 0xff << KIND;

/// Bytes that a record with a payload of `len` bytes takes.
pub(crate) const fn span(len: usize) -> usize {
    (8 + len + LINE - 1) & !(LINE - 1)
}

/// The word of a record, taken apart.
#[derive(Clone, Copy)]
pub(crate) struct RecordWord {
    pub len: usize,
    pub kind: u8,
    pub flags: u8,
}

/// Takes the word of the record at `pos` apart; `None` when there is none, or none that fits there.
#[inline(always)]
pub(crate) fn record_word(word: u64, pos: usize) -> Option<RecordWord> {
    let (len, kind) = (word as u32 as usize, (word >> KIND) as u8);
    let flags = (word >> FLAGS) as u8;
    // Only a record with the flag is read under the ring's lock.
    let unlocked = (kind >= kind::WRITE) != (flags & kind::ACCESS != 0);
    let bad = kind == 0 || kind == 0xff || len > RECORD_MAX || pos + span(len) > SIZE || unlocked;
    (!bad).then_some(RecordWord { len, kind, flags })
}

impl RecordWord {
    /// Bytes it takes in the ring.
    pub(crate) fn span(&self) -> usize {
        span(self.len)
    }
}

/// Kind and flags of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// 1 to 254.
    pub kind: u8,
    pub flags: u8,
    /// Not written while the reader pauses messages.
    pub message: bool,
}
