//! The reading end of a ring (`ring`), and its records in their places.

use super::bed::{Bed, DATA, SIZE};
use super::claim::{self, Answer, Claim, ACCESS};
use super::ring::{header, span, ASLEEP, GIVE_BACK, HOLD, TAKEN, WANTED, WRAP};
use super::share::Share;
use crate::device::host;
use crate::hmem::{Piece, UserMem};
use core::sync::atomic::{fence, Ordering::*};
use std::sync::Arc;

/// A writer that claims its accesses for so long, nanoseconds, is given up.
const KEPT_MAX: u64 = 5_000_000_000;

/// The end that reads.
pub struct Reader {
    map: Arc<Bed>,
    at: u64,
    /// Position last given back.
    given: u64,
    claim: Claim,
    /// Since when the writer has kept the accesses to itself, 0 while it does not.
    kept: u64,
}

/// What a look into the ring finds.
pub enum Found<'a> {
    Nothing,
    Record(Record<'a>),
    /// The writer does not keep to the rules.
    Broken,
}

/// A record in its place. Its bytes may change until [`Reader::take`] is called, if the writer is
/// hostile: what is decided on is copied first.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    map: &'a Bed,
    /// Of its first byte.
    at: usize,
    pub len: usize,
    pub kind: u8,
    pub flags: u8,
    /// An access that its writer has done itself.
    pub done: bool,
}

impl<'a> Record<'a> {
    /// Where an access's outcome goes.
    pub fn outcome(&self) -> Answer<'a> {
        Answer {
            map: self.map,
            word: self.at - 8,
        }
    }

    /// The words in front of an access's data; zeros when it has none.
    #[inline]
    pub fn words(&self) -> [u64; 3] {
        if self.len < claim::HEAD {
            return [0; 3];
        }
        let [_, key, addr, word, ..] = self.map.line(self.at);
        [key, addr, word].map(|w| w.load(Relaxed))
    }

    /// As [`Record::fill`], one piece.
    #[inline]
    pub fn fill_piece(&self, p: Piece) {
        if p.len() <= self.len.saturating_sub(claim::HEAD) {
            self.map.put_piece(self.at + claim::HEAD, p);
        }
    }

    /// Answers a read with this memory, which is as long as the room for it.
    #[inline]
    pub fn fill(&self, mem: &UserMem) {
        if mem.len() <= self.len.saturating_sub(claim::HEAD) {
            self.map.put_mem(self.at + claim::HEAD, mem);
        }
    }

    /// As [`Record::fill`], with bytes.
    #[inline]
    pub fn fill_bytes(&self, bytes: &[u8]) {
        if bytes.len() <= self.len.saturating_sub(claim::HEAD) {
            self.map.put(self.at + claim::HEAD, bytes);
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

    /// Copies chunks of a transfer that the writer shares with us as long as there are some: how
    /// many; `None` when `copy` could not do one.
    pub fn work_share(&self, s: Share, copy: impl FnMut(u32) -> bool) -> Option<u32> {
        s.work(self.map, copy)
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

impl Reader {
    /// The reading end of a ring in this file.
    pub fn new(map: Arc<Bed>) -> Reader {
        Reader {
            map,
            at: 0,
            given: 0,
            claim: Claim::default(),
            kept: 0,
        }
    }

    /// The next record; [`Reader::take`] makes it the past.
    #[inline(always)]
    pub fn look(&mut self) -> Found<'_> {
        loop {
            let pos = self.at as usize % SIZE;
            let word = self.map.word(DATA + pos).load(Acquire);
            if word == 0 {
                return Found::Nothing;
            }
            if word == WRAP && pos > 0 {
                self.at += (SIZE - pos) as u64;
                continue;
            }
            let Some(h) = header(word, pos) else {
                return Found::Broken;
            };
            let mut done = false;
            if h.flags & ACCESS != 0 {
                if !self.claim.take(&self.map) {
                    return match self.kept_for_long() {
                        true => Found::Broken,
                        false => Found::Nothing,
                    };
                }
                self.kept = 0;
                done = self.claim.is_done(self.at);
            }
            return Found::Record(Record {
                map: &self.map,
                at: DATA + pos + 8,
                len: h.len,
                kind: h.kind,
                flags: h.flags,
                done,
            });
        }
    }

    /// Whether the writer works on its accesses for longer than any takes: it was stopped, or means
    /// harm.
    #[cold]
    fn kept_for_long(&mut self) -> bool {
        let now = host::now();
        if self.kept == 0 {
            self.kept = now;
        }
        now.saturating_sub(self.kept) > KEPT_MAX
    }

    /// The writer is gone: what it has left is read to its end.
    pub fn inherit(&mut self) {
        self.claim.inherit();
    }

    /// The access that was looked at is done, and taken.
    #[inline]
    pub fn did(&mut self, kind: u8, len: usize) {
        if claim::is_target_s(kind) {
            self.claim.wakes();
        }
        self.claim.advance(&self.map, self.at, len);
    }

    /// Nothing more is looked at for now: says which accesses are done. `true` when the writer
    /// sleeps and has to be woken.
    #[inline]
    pub fn settle(&mut self) -> bool {
        self.claim.settle(&self.map, self.at) && self.wanted()
    }

    /// Takes the record of length `len` that was looked at. `true` when the writer sleeps and has
    /// to be woken.
    #[inline]
    pub fn take(&mut self, len: usize) -> bool {
        self.at += span(len) as u64;
        if self.at - self.given < GIVE_BACK {
            return false;
        }
        self.given = self.at;
        self.map.word(TAKEN).store(self.at, Release);
        self.wanted()
    }

    /// Whether the writer sleeps until it may write; it is asked once.
    fn wanted(&self) -> bool {
        // The writer looks again after it has said that it sleeps.
        fence(SeqCst);
        let wanted = self.map.half(WANTED);
        wanted.load(Relaxed) != 0 && wanted.swap(0, Relaxed) != 0
    }

    /// Whether a record is there.
    #[inline]
    pub fn ready(&self) -> bool {
        let pos = self.at as usize % SIZE;
        self.map.word(DATA + pos).load(Acquire) != 0
    }

    /// Asks the writer to wake us with its next record. It may not have seen that before
    /// [`barrier`].
    pub fn lie_down(&self) {
        self.map.half(ASLEEP).store(1, Relaxed);
    }

    /// After that, whether we may sleep: nothing is there.
    pub fn sleeps(&self) -> bool {
        if self.ready() {
            self.awake();
            return false;
        }
        true
    }

    /// Takes the question back.
    pub fn awake(&self) {
        self.map.half(ASLEEP).store(0, Relaxed);
    }

    /// Whether the writer must not send messages now. `true` when it sleeps and has to be woken.
    pub fn hold(&self, on: bool) -> bool {
        self.map.half(HOLD).store(u32::from(on), Relaxed);
        !on && self.wanted()
    }
}
