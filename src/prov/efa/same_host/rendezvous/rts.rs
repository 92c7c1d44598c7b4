//! The RTS of a long message, as it is written and read.
//!
//! Its words follow those of every message: length; the sender's number of the message and the time
//! when it began; the address in the sender's memory, or the kind of a device's memory and the
//! handle by which it is opened; then the first bytes.

use super::port::ArrivedRecord;
use super::SHM_EAGER_MAX;
use crate::hmem::{IpcHandle, MemKind, IPC_WORDS};
use crate::prov::efa::same_host::{head_len, head_of, words_of, MessageHead};
use crate::prov::efa::same_host::{DELIVERY, EAGER, SHARED_MEMORY};
use crate::shm::{kind, RecordHeader};

/// Nanoseconds from an RTS to its arrival beyond which the message's time is not measured: its
/// receiver was not polling.
const LATE: u32 = 5_000;

/// Stands for no message.
pub(super) const NONE: u32 = u32::MAX;

/// Most words of an RTS, without and with a handle of device memory.
const PLAIN_WORDS: usize = 5;
pub(super) const RTS_WORDS: usize = PLAIN_WORDS + IPC_WORDS;

/// An RTS that has arrived.
pub(crate) struct Rts {
    pub head: MessageHead,
    pub len: usize,
    /// `None`: the rest follows without a CTS.
    pub(super) number: Option<u32>,
    /// Its sender waits for a FIN in any case.
    pub(super) delivery: bool,
    /// When its sender began, ns modulo 2^32.
    begun: u32,
    /// Address in the sender's memory; 0 if there is none.
    pub(super) at: u64,
    /// Device memory of the sender's, whose kind stands in place of the address.
    pub(super) shared: Option<(MemKind, IpcHandle)>,
    /// Where its bytes begin in the record, and how many are there.
    pub(super) body: usize,
    pub(super) here: usize,
}

impl Rts {
    /// Start of the message's time: when its sender began, or now, when we were late to poll.
    pub(super) fn began(&self, now: u64) -> u64 {
        match (now as u32).wrapping_sub(self.begun) {
            age @ 0..=LATE => now - u64::from(age),
            _ => now,
        }
    }
}

/// The header and words of an RTS that is to be written.
pub(super) struct RtsWords<const N: usize> {
    pub what: RecordHeader,
    words: [u64; N],
    len: usize,
}

impl RtsWords<PLAIN_WORDS> {
    /// The RTS of a message of `len` bytes with this tag and data, at `now`; `asked`: the sender's
    /// number and the address, if the message waits for a CTS or a FIN.
    #[inline]
    pub(super) fn new(
        words: (Option<u64>, Option<u64>),
        len: usize,
        asked: Option<(u32, u64)>,
        now: u64,
    ) -> Self {
        RtsWords::with(words, len, asked, now)
    }
}

impl RtsWords<RTS_WORDS> {
    /// The RTS of a message in device memory that the receiver may open.
    pub(super) fn shared(
        words: (Option<u64>, Option<u64>),
        len: usize,
        number: u32,
        (kind, handle): (MemKind, IpcHandle),
        now: u64,
    ) -> Self {
        let mut rts = RtsWords::with(words, len, Some((number, kind as u64)), now);
        rts.what.flags |= SHARED_MEMORY;
        let room = rts.words.iter_mut().skip(rts.len);
        for (to, w) in room.zip(handle.to_words()) {
            *to = w;
        }
        rts.len += IPC_WORDS;
        rts
    }
}

impl<const N: usize> RtsWords<N> {
    #[inline(always)]
    fn with(
        (tag, cq_data): (Option<u64>, Option<u64>),
        len: usize,
        asked: Option<(u32, u64)>,
        now: u64,
    ) -> Self {
        let ([first, second], kinds) = words_of(tag, cq_data);
        let (number, at) = asked.unwrap_or((NONE, 0));
        let mut all = [0; N];
        let front = head_len(kinds) / 8;
        let rest = [len as u64, u64::from(number) | now << 32, at];
        let words = [first, second].into_iter().take(front).chain(rest);
        for (to, w) in all.iter_mut().zip(words) {
            *to = w;
        }
        RtsWords {
            what: RecordHeader {
                kind: kind::RTS,
                flags: kinds | if asked.is_none() { EAGER } else { 0 },
                message: true,
            },
            words: all,
            len: front + if asked.is_none() { 2 } else { 3 },
        }
    }

    /// The same, whose sender waits for a FIN in any case if `on`.
    #[inline]
    pub(super) fn delivery(mut self, on: bool) -> Self {
        self.what.flags |= if on { DELIVERY } else { 0 };
        self
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u64] {
        self.words.get(..self.len).unwrap_or(&[])
    }
}

/// Reads an RTS; `None` when the record is no valid one.
pub(crate) fn announced(record: &impl ArrivedRecord) -> Option<Rts> {
    let head = head_of(record)?;
    let whole = record.flags() & EAGER != 0;
    let [len, number, at] = [0, 8, 16].map(|off| record.word(head.bytes + off));
    let (len, mut body) = (len as usize, head.bytes + if whole { 16 } else { 24 });
    let mut shared = None;
    if record.flags() & SHARED_MEMORY != 0 {
        let mut words = [0; IPC_WORDS];
        for (i, w) in words.iter_mut().enumerate() {
            *w = record.word(body + 8 * i);
        }
        body += 8 * IPC_WORDS;
        shared = Some((MemKind::of_number(at)?, IpcHandle::of_words(words)));
    }
    let here = record.bytes().checked_sub(body)?;
    (here <= len && !(whole && len > SHM_EAGER_MAX)).then_some(Rts {
        head,
        len,
        number: (!whole).then_some(number as u32),
        delivery: record.flags() & DELIVERY != 0,
        begun: (number >> 32) as u32,
        at: if whole || shared.is_some() { 0 } else { at },
        shared,
        body,
        here,
    })
}
