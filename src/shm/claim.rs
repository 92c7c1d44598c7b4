//! Reads, writes and atomics of a peer's memory as records of its ring: who does the work, and when
//! it is done.
//!
//! An *access* is a record with a key, an address and data, or room for it. A target that polls
//! finds it, does it and says how far it has come (`DONE`); that is all its writer waits for. A
//! target that does not poll must not keep a write or read from ending, so the writer may do it
//! instead, by its way into the target's memory (`table`): it *takes back* what lies in the ring.
//! Both claim the ring's accesses as a whole (`CLAIM`) for as long as they work on them, so that
//! each is done once, and an access that is done is done in memory. Atomics are the target's alone.
//!
//! The line of these words is the ring's; both sides write it. A side that lies in it harms the
//! accesses between these two, nothing else: positions are compared with one's own, and what a
//! peer's memory may be used for is looked up again by whoever does the work.
//!
//! [`Ledger`] is the writer's view, which a thread of its process looks at as well: after an
//! injecting call nobody may ever ask again.

use super::bed::{Bed, DATA, SIZE};
use super::ring::{header, LINE, TAKEN, WRAP};
use super::table::{Denied, Local, Tag, Visit, VISIT_ASIDE};
use crate::device::Status;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;

/// Bit of a record's flags: it is an access.
pub const ACCESS: u8 = 0x80;
/// Kinds of accesses.
pub const WRITE: u8 = 0xa0;
pub const READ: u8 = 0xa1;
pub const ATOMIC: u8 = 0xa2;
/// A message whose writer waits until it has been taken in.
pub const MESSAGE: u8 = 0xa3;
/// Bytes in front of an access's data: key, address, and a word of the kind.
pub const HEAD: usize = 24;

/// Who works on the accesses; how far they are done; how many have failed.
const CLAIM: usize = 4 * LINE;
const DONE: usize = CLAIM + 8;
const FAULTS: usize = CLAIM + 16;
const FREE: u64 = 0;
const TARGET: u64 = 1;
const ORIGIN: u64 = 2;
/// A target says how far it is after so many accesses or bytes, and when it has nothing more.
const TELL: u32 = 8;
const TELL_BYTES: usize = 4 << 10;
/// An owner that closes waits no longer than this for a target that has begun to work.
pub const GOODBYE: std::time::Duration = std::time::Duration::from_secs(1);
/// Status of an access that failed, in its record's word.
const STATUS: u32 = 48;

/// In place of a status: it was not done, and cannot be done from here; the adapter is to do it.
const ELSEWHERE: u8 = u8::MAX;

/// How an access ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Status(Status),
    /// Nothing was done, and the adapter is to do it.
    Elsewhere,
}

/// The status in a record's word.
pub fn outcome_of(word: u64) -> Outcome {
    Outcome::Status(match (word >> STATUS) as u8 {
        0 => Status::Ok,
        ELSEWHERE => return Outcome::Elsewhere,
        code => Status::from_code(code.into()).unwrap_or(Status::RemoteAbort),
    })
}

/// How far the accesses of a ring are done, and how many have failed.
#[inline]
pub fn done(ring: &Bed) -> (u64, u64) {
    let done = ring.word(DONE).load(Acquire);
    (done, ring.word(FAULTS).load(Relaxed))
}

/// The writer's claim, which nobody lets go.
#[cfg(test)]
pub fn leave(ring: &Bed) {
    ring.word(CLAIM).store(ORIGIN, SeqCst);
}

/// An access failed: its record at offset `word` says so.
fn refuse(ring: &Bed, word: usize, code: u8) {
    let w = ring.word(word);
    w.store(w.load(Relaxed) | u64::from(code) << STATUS, Relaxed);
    ring.word(FAULTS).fetch_add(1, Relaxed);
}

/// The target's side, as part of [`Reader`].
#[derive(Default)]
pub struct Claim {
    held: bool,
    /// Whatever lies before this has been done by the writer.
    done: u64,
    untold: u32,
    /// The writer may sleep until these are done.
    wakes: bool,
    /// The writer is gone: what it claimed nobody else will let go.
    alone: bool,
}

impl Claim {
    /// Claims the accesses, unless that is so already; `false` when the writer works on them.
    #[inline]
    pub fn take(&mut self, ring: &Bed) -> bool {
        if self.held {
            return true;
        }
        let claim = ring.word(CLAIM);
        self.held = claim
            .compare_exchange(FREE, TARGET, Acquire, Relaxed)
            .is_ok();
        if !self.held && self.alone {
            // What it was doing is done again: the same bytes to the same place.
            claim.store(TARGET, Relaxed);
            self.held = true;
        }
        if self.held {
            self.done = ring.word(DONE).load(Relaxed);
        }
        self.held
    }

    /// The writer is gone.
    pub fn inherit(&mut self) {
        self.alone = true;
    }

    /// Whether the record at `at` is not to be done any more.
    #[inline]
    pub fn is_done(&self, at: u64) -> bool {
        at < self.done
    }

    /// The record before `at`, of `len` bytes, is done.
    #[inline]
    pub fn advance(&mut self, ring: &Bed, at: u64, len: usize) {
        self.untold += 1;
        if self.untold >= TELL || len >= TELL_BYTES {
            self.untold = 0;
            ring.word(DONE).store(at.max(self.done), Release);
        }
    }

    /// The writer may sleep until what has been claimed is done.
    pub fn wakes(&mut self) {
        self.wakes = true;
    }

    /// Lets go; everything before `at` is done. Whether the writer may be asleep.
    #[inline]
    pub fn settle(&mut self, ring: &Bed, at: u64) -> bool {
        if !self.held {
            return false;
        }
        self.held = false;
        self.untold = 0;
        ring.word(DONE).store(at.max(self.done), Release);
        ring.word(CLAIM).store(FREE, Release);
        core::mem::take(&mut self.wakes)
    }
}

/// What the target does with an access, at the record's offsets.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    pub(super) map: &'a Bed,
    /// Of the record's word.
    pub(super) word: usize,
}

/// Whether an access is the target's alone.
#[inline]
pub fn is_target_s(kind: u8) -> bool {
    kind > READ
}

impl Answer<'_> {
    /// How it went when the writer did it.
    pub fn status(&self) -> core::result::Result<(), Status> {
        match outcome_of(self.map.word(self.word).load(Relaxed)) {
            Outcome::Status(Status::Ok) => Ok(()),
            Outcome::Status(s) => Err(s),
            Outcome::Elsewhere => Err(Status::RemoteAbort),
        }
    }

    /// It failed.
    #[cold]
    pub fn refuse(&self, status: Status) {
        refuse(self.map, self.word, status as u8);
    }
}

/// What became of an attempt to do accesses ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Back {
    /// The target is at work.
    Claimed,
    /// So many were done.
    Did(usize),
}

/// The writer's side.
pub struct Ledger {
    ring: Arc<Bed>,
    visit: Visit,
    /// Accesses that may not be done lie from here to there.
    from: AtomicU64,
    upto: AtomicU64,
    /// The thread looks after them.
    pub watched: AtomicBool,
    /// How many were taken back.
    back: AtomicU64,
}

impl Ledger {
    /// Of the ring to a peer whose memory `visit` reaches.
    pub fn new(ring: Arc<Bed>, visit: Visit) -> Ledger {
        Ledger {
            ring,
            visit,
            from: AtomicU64::new(0),
            upto: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            back: AtomicU64::new(0),
        }
    }

    /// The way into the peer's memory.
    pub fn visit(&self) -> &Visit {
        &self.visit
    }

    /// An access has been written, from `start` to `end`; `done` is what the target has said last.
    #[inline]
    pub fn owe(&self, start: u64, end: u64, done: u64) {
        if done >= self.upto.load(Relaxed) {
            self.from.store(start, Relaxed);
        }
        self.upto.store(end, Release);
    }

    /// What lies before this has been done, and may be written over.
    #[inline]
    pub fn begins(&self, at: u64) {
        self.from.store(at, Release);
    }

    /// Position of the first access that may not be done, if there is one.
    pub fn pending(&self) -> Option<u64> {
        let done = self.ring.word(DONE).load(Acquire);
        (done < self.upto.load(Acquire)).then_some(done)
    }

    /// How many accesses we have done ourselves.
    pub fn count(&self) -> u64 {
        self.back.load(Relaxed)
    }

    /// The owner goes: does what is in the ring, waiting for the target where that has begun to.
    pub fn clear(&self) {
        let until = std::time::Instant::now() + GOODBYE;
        while self.pending().is_some() && std::time::Instant::now() < until {
            match self.take_back(usize::MAX) {
                Back::Claimed => std::thread::yield_now(),
                Back::Did(0) => break,
                Back::Did(_) => {}
            }
        }
        // The thread may be at work, too; a process that ends now would leave its claim to the
        // target.
        let at_work = || self.ring.word(CLAIM).load(Acquire) == ORIGIN;
        while at_work() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// Does up to `most` accesses that are in the ring.
    #[cold]
    pub fn take_back(&self, most: usize) -> Back {
        let ring = &*self.ring;
        let claim = ring.word(CLAIM);
        if claim
            .compare_exchange(FREE, ORIGIN, Acquire, Relaxed)
            .is_err()
        {
            return Back::Claimed;
        }
        let upto = self.upto.load(Acquire);
        let told = ring.word(DONE).load(Relaxed);
        let mut at = self.from.load(Acquire).max(told);
        let mut n = 0;
        while at < upto && n < most {
            let pos = at as usize % SIZE;
            let word = ring.word(DATA + pos).load(Acquire);
            // What the target has taken may have been written over meanwhile; what is not done has
            // not.
            let gone = ring.word(TAKEN).load(Acquire);
            if gone > at {
                at = gone.max(self.from.load(Acquire));
                continue;
            }
            if word == WRAP && pos > 0 {
                at += (SIZE - pos) as u64;
                continue;
            }
            let Some(h) = header(word, pos) else { break };
            if h.flags & ACCESS != 0 {
                if !self.work(h.kind, DATA + pos, h.len) {
                    break;
                }
                n += 1;
            }
            at += h.span() as u64;
        }
        if n > 0 {
            // Whatever the peer says from now on, these are not done a second time.
            self.from.fetch_max(at, AcqRel);
            ring.word(DONE).store(at, Release);
            self.back.fetch_add(n as u64, Relaxed);
        }
        claim.store(FREE, Release);
        Back::Did(n)
    }

    /// Does one; `false` when it cannot be done from here.
    fn work(&self, kind: u8, word: usize, len: usize) -> bool {
        let ring = &*self.ring;
        let write = match kind {
            WRITE => true,
            READ => false,
            _ => return false,
        };
        if len < HEAD {
            return false;
        }
        let [key, addr] = [8, 16].map(|o| ring.word(word + o).load(Relaxed));
        let data = Local::Shared(ring, word + 8 + HEAD, len - HEAD);
        let done = self
            .visit
            .access(ring.word(VISIT_ASIDE), write, &data, Tag::of(key), addr);
        let code = match done {
            Ok(()) => return true,
            Err(Denied::Status(s)) => s as u8,
            // The region is gone, was never published, or the system does not let us copy.
            Err(Denied::Elsewhere) => ELSEWHERE,
        };
        refuse(ring, word, code);
        true
    }
}
