//! Layout of a ring in its segment: the words that both sides read, and the word in front of each
//! record.

use super::segment::SIZE;
use crate::shm::kind;

/// Longest record, bytes.
pub(crate) const RECORD_MAX: usize = 64 << 10;
/// Bytes of taken records after which the reader publishes its position, as credit for the writer.
pub(crate) const GIVE_BACK: u64 = 32 << 10;

pub(crate) const LINE: usize = 64;
/// The reader's line: position taken, whether it pauses messages, whether it wants a wake-up for
/// the next record; and whether the writer wants one when there is room.
pub(crate) const TAKEN: usize = 2 * LINE;
pub(crate) const RX_PAUSED: usize = TAKEN + 8;
pub(crate) const RX_ARMED: usize = TAKEN + 12;
pub(crate) const TX_ARMED: usize = TAKEN + 16;

/// Whether the reader is gone: in the line of the words by which the writer names regions that it
/// uses (`rma`), which it reads at each access.
pub(crate) const READER_GONE: usize = 3 * LINE + 16;

/// The writer's line: where its process ran last (`shm::cpu`).
pub(crate) const WRITER_CPU: usize = 8 * LINE;

/// Bit offsets in a record's word: the kind, above the length, and the caller's flags.
pub(crate) const KIND: u32 = 32;
pub(crate) const FLAGS: u32 = 40;
/// Word in place of a record: the next record is at the beginning of the ring.
pub(crate) const WRAP: u64 = 0xff << KIND;

/// Bytes a record takes.
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
