//! The reading end of a ring (`ring`), and access to its records.

use super::layout::{
    record_word, span, GIVE_BACK, LINE, RX_ARMED, RX_PAUSED, TAKEN, TX_ARMED, WRAP, WRITER_CPU,
};
use super::segment::{RingSegment, DATA, SIZE};
use crate::device::host;
use crate::hmem::{Piece, UserMem};
use crate::shm::kind;
use crate::shm::rma::{self, RmaResponse, TargetLock};
use crate::shm::split_copy::SplitCopy;
use core::sync::atomic::{fence, Ordering::*};
use std::sync::Arc;

/// Nanoseconds after which a writer that holds the ring's lock is given up.
const KEPT_MAX: u64 = 5_000_000_000;
/// Nanoseconds between two looks after which nothing is known of the time between.
const PAUSE: u64 = 100_000_000;

/// Lines from a record to the one that [`RingReader::prefetch`] requests: several are on their way
/// while one is handled.
const LINES_AHEAD: usize = 4;

/// The reading end of a ring.
pub(crate) struct RingReader {
    map: Arc<RingSegment>,
    at: u64,
    /// Position last published in `TAKEN`.
    given: u64,
    claim: TargetLock,
    /// Since when the writer has held the lock of the accesses, nanoseconds; 0 while it does not.
    kept: u64,
    /// When that was last seen.
    kept_seen: u64,
}

/// What [`RingReader::next_record`] finds.
pub(crate) enum Lookup<'a> {
    Nothing,
    Record(Record<'a>),
    /// The writer violates the protocol.
    Broken,
}

/// A record in the ring. Its bytes may change until [`RingReader::take`] is called, if the writer
/// is hostile: values that decisions depend on are copied first.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    map: &'a RingSegment,
    /// Offset of its first byte.
    at: usize,
    pub len: usize,
    pub kind: u8,
    pub flags: u8,
    /// An access that its writer has done itself.
    pub done: bool,
}

impl<'a> Record<'a> {
    /// Where an access's outcome goes.
    pub fn outcome(&self) -> RmaResponse<'a> {
        RmaResponse {
            map: self.map,
            word: self.at - 8,
        }
    }

    /// The words in front of an access's data; zeros when it has none.
    #[inline]
    pub fn words(&self) -> [u64; 3] {
        if self.len < rma::HEAD {
            return [0; 3];
        }
        let [_, key, addr, word, ..] = self.map.line(self.at);
        [key, addr, word].map(|w| w.load(Relaxed))
    }

    /// Requests the lines of an answer of `len` bytes, which were the writer's.
    #[inline(always)]
    fn request_answer(&self, len: usize) {
        self.map
            .prefetch_write(self.at, span(rma::HEAD + len) / LINE - 1);
    }

    /// As [`Record::fill`], one piece.
    #[inline]
    pub fn fill_piece(&self, p: Piece) {
        if p.len() <= self.len.saturating_sub(rma::HEAD) {
            self.request_answer(p.len());
            self.map.put_piece(self.at + rma::HEAD, p);
        }
    }

    /// Answers a read with this memory, which is as long as the room for it.
    #[inline]
    pub fn fill(&self, mem: &UserMem) {
        if mem.len() <= self.len.saturating_sub(rma::HEAD) {
            self.request_answer(mem.len());
            self.map.put_mem(self.at + rma::HEAD, mem);
        }
    }

    /// As [`Record::fill`], with bytes.
    #[inline]
    pub fn fill_bytes(&self, bytes: &[u8]) {
        if bytes.len() <= self.len.saturating_sub(rma::HEAD) {
            self.request_answer(bytes.len());
            self.map.put(self.at + rma::HEAD, bytes);
        }
    }

    /// The word at byte `off`, a multiple of 8; 0 beyond the end.
    #[inline]
    pub fn word(&self, off: usize) -> u64 {
        if off + 8 > self.len {
            return 0;
        }
        self.map.word(self.at + off).load(Relaxed)
    }

    /// Copies up to `most` chunks of a split copy that the writer shares with us, while there are
    /// any. Returns how many, or `None` when `copy` failed.
    pub fn copy_split(
        &self,
        s: SplitCopy,
        most: u32,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        s.work(self.map, most, copy)
    }

    /// Copies bytes from `off` on; nothing when there are not so many.
    #[inline(always)]
    pub fn load(&self, off: usize, into: &mut [u8]) {
        if off <= self.len && into.len() <= self.len - off {
            self.map.load(self.at + off, into);
        }
    }

    /// Copies the bytes from `off` on, in place of what was there.
    #[inline]
    pub fn copy(&self, off: usize, into: &mut Vec<u8>) {
        into.clear();
        self.append(off, into);
    }

    /// Copies the bytes from `off` on, behind what is there.
    #[inline]
    pub fn append(&self, off: usize, into: &mut Vec<u8>) {
        self.map
            .get(self.at + off, self.len.saturating_sub(off), into);
    }

    /// As [`Record::copy_mem`], into a piece that has room for all of them.
    #[inline]
    pub fn copy_piece(&self, off: usize, into: Piece) {
        self.map
            .get_piece(self.at + off, self.len.saturating_sub(off), into);
    }

    /// Copies the bytes from `off` on into application memory, as many as it has.
    #[inline]
    pub fn copy_mem(&self, off: usize, into: &UserMem) {
        let len = self.len.saturating_sub(off).min(into.len());
        self.map.get_mem(self.at + off, len, into);
    }
}

impl Drop for RingReader {
    fn drop(&mut self) {
        self.map.end_reading();
    }
}

impl RingReader {
    /// The ring's file.
    pub(crate) fn file(&self) -> &RingSegment {
        &self.map
    }

    /// The reading end of a ring in this file.
    pub(crate) fn new(map: Arc<RingSegment>) -> RingReader {
        RingReader {
            map,
            at: 0,
            given: 0,
            claim: TargetLock::default(),
            kept: 0,
            kept_seen: 0,
        }
    }

    /// Where the writer's process ran last.
    pub(crate) fn writer_cpu(&self) -> u64 {
        self.map.word(WRITER_CPU).load(Relaxed)
    }

    /// The next record; [`RingReader::take`] removes it.
    #[inline(always)]
    pub(crate) fn next_record(&mut self) -> Lookup<'_> {
        loop {
            let pos = self.at as usize % SIZE;
            let word = self.map.word(DATA + pos).load(Acquire);
            if word == 0 {
                return Lookup::Nothing;
            }
            if word == WRAP && pos > 0 {
                self.at += (SIZE - pos) as u64;
                continue;
            }
            let Some(h) = record_word(word, pos) else {
                return Lookup::Broken;
            };
            let mut done = false;
            if h.flags & kind::ACCESS != 0 {
                if !self.claim.take(&self.map) {
                    return match self.check_lock_timeout() {
                        true => Lookup::Broken,
                        false => Lookup::Nothing,
                    };
                }
                self.kept = 0;
                done = self.claim.is_done(self.at);
            }
            return Lookup::Record(Record {
                map: &self.map,
                at: DATA + pos + 8,
                len: h.len,
                kind: h.kind,
                flags: h.flags,
                done,
            });
        }
    }

    /// Notes that the writer holds the lock. Returns whether it has held the lock for longer than
    /// any access takes: the writer was stopped, or is hostile.
    #[cold]
    fn check_lock_timeout(&mut self) -> bool {
        let now = host::now();
        // After a pause it may be held for another access.
        if self.kept == 0 || now.saturating_sub(self.kept_seen) > PAUSE {
            self.kept = now;
        }
        self.kept_seen = now;
        now.saturating_sub(self.kept) > KEPT_MAX
    }

    /// Ignores the writer's lock from now on: the writer is gone, and its records are read to the
    /// end.
    pub(crate) fn ignore_writer_lock(&mut self) {
        self.claim.ignore_writer_lock();
    }

    /// Marks the access that was looked at, and taken, as done.
    #[inline]
    pub(crate) fn mark_done(&mut self, kind: u8, len: usize) {
        if rma::is_target_only(kind) {
            self.claim.wake_writer();
        }
        self.claim.advance(&self.map, self.at, len);
    }

    /// Ends a poll: unlocks, and reports which accesses are done. `true` when the writer waits for
    /// that and has to be woken.
    #[inline]
    pub(crate) fn settle(&mut self) -> bool {
        self.claim.settle(&self.map, self.at) && self.take_wakeup_request()
    }

    /// Takes the record of length `len` that was looked at. `true` when the writer sleeps and has
    /// to be woken.
    #[inline]
    pub(crate) fn take(&mut self, len: usize) -> bool {
        self.at += span(len) as u64;
        if self.at - self.given < GIVE_BACK {
            return false;
        }
        self.given = self.at;
        self.map.word(TAKEN).store(self.at, Release);
        self.take_wakeup_request()
    }

    /// Clears the writer's request for a wake-up. Returns whether there was one: the caller has to
    /// wake the writer.
    fn take_wakeup_request(&self) -> bool {
        // The writer tests again after it has set the flag.
        fence(SeqCst);
        let wanted = self.map.half(TX_ARMED);
        wanted.load(Relaxed) != 0 && wanted.swap(0, Relaxed) != 0
    }

    /// Requests a record to come: the position of each is known when the one before has been read,
    /// so that reading alone would wait for their lines one after another. Only in a burst: the
    /// line would be taken from a writer that has not written it.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.map.prefetch_read(self.at as usize, LINES_AHEAD);
    }

    /// Whether a record was ever read.
    pub(crate) fn was_used(&self) -> bool {
        self.at > 0
    }

    /// Whether a record is there.
    #[inline]
    pub(crate) fn ready(&self) -> bool {
        let pos = self.at as usize % SIZE;
        self.map.word(DATA + pos).load(Acquire) != 0
    }

    /// Asks the writer for a wake-up with its next record. The writer may not see the request
    /// before [`asymmetric_fence`](super::writer::asymmetric_fence).
    pub(crate) fn arm_wakeup(&self) {
        self.map.half(RX_ARMED).store(1, Relaxed);
    }

    /// After the fence: whether the caller may block, because there is no record. Withdraws the
    /// request if there is one.
    pub(crate) fn can_sleep(&self) -> bool {
        if self.ready() {
            self.disarm_wakeup();
            return false;
        }
        true
    }

    /// Withdraws the request for a wake-up.
    pub(crate) fn disarm_wakeup(&self) {
        self.map.half(RX_ARMED).store(0, Relaxed);
    }

    /// Pauses messages, or lets them go on. `true` when the writer waits and has to be woken.
    pub(crate) fn hold(&self, on: bool) -> bool {
        self.map.half(RX_PAUSED).store(u32::from(on), Relaxed);
        !on && self.take_wakeup_request()
    }
}
