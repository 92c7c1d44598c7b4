//! How a ring lies in its segment: the words that both sides look at, and the word in front of each
//! record.

use super::segment::SIZE;

/// Longest record, bytes.
pub(crate) const RECORD_MAX: usize = 64 << 10;
/// Bytes that the reader gives back at a time.
pub(crate) const GIVE_BACK: u64 = 32 << 10;

pub(crate) const LINE: usize = 64;
/// The reader's line: position taken, whether it pauses messages, whether it wants a wake-up for
/// the next record; and whether the writer wants one when there is room.
pub(crate) const TAKEN: usize = 2 * LINE;
pub(crate) const RX_PAUSED: usize = TAKEN + 8;
pub(crate) const RX_ARMED: usize = TAKEN + 12;
pub(crate) const TX_ARMED: usize = TAKEN + 16;

/// Kinds of records, in the byte of a word above its length; the byte above that is the caller's.
pub(crate) const KIND: u32 = 32;
pub(crate) const FLAGS: u32 = 40;
/// The next record is at the beginning.
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
    let bad = kind == 0 || kind == 0xff || len > RECORD_MAX || pos + span(len) > SIZE;
    (!bad).then_some(RecordWord {
        len,
        kind,
        flags: (word >> FLAGS) as u8,
    })
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
    /// A reader that pauses messages does not take it.
    pub message: bool,
}
