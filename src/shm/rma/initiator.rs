//! The initiator's side of the accesses of one ring, shared with a thread of its process.

use super::cma::LocalBuffer;
use super::lock::{refuse, CLOSE_WAIT, DONE, FREE, ORIGIN, RING_LOCK, UNSUPPORTED};
use super::mr_table::{KeyHash, RemoteMrTable, RmaDenied, VISIT_ASIDE};
use super::HEAD;
use crate::shm::kind;
use crate::shm::ring::{record_word, RingSegment, DATA, SIZE, TAKEN, WRAP};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;

/// What became of an attempt to execute accesses from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// The target is at work.
    LockHeld,
    /// So many were done.
    Count(usize),
}

/// The writer's side.
pub(crate) struct Initiator {
    ring: Arc<RingSegment>,
    visit: RemoteMrTable,
    /// Positions between which accesses lie that may not be done.
    from: AtomicU64,
    upto: AtomicU64,
    /// The events thread polls it.
    pub watched: AtomicBool,
    /// How many were executed from here.
    back: AtomicU64,
}

impl Initiator {
    /// For the ring to a peer whose memory `visit` reaches.
    pub(crate) fn new(ring: Arc<RingSegment>, visit: RemoteMrTable) -> Initiator {
        Initiator {
            ring,
            visit,
            from: AtomicU64::new(0),
            upto: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            back: AtomicU64::new(0),
        }
    }

    /// The way into the peer's memory.
    pub(crate) fn mr_table(&self) -> &RemoteMrTable {
        &self.visit
    }

    /// An access has been written, from `start` to `end`; `done` is what the target has said last.
    #[inline]
    pub(crate) fn track(&self, start: u64, end: u64, done: u64) {
        if done >= self.upto.load(Relaxed) {
            self.from.store(start, Relaxed);
        }
        self.upto.store(end, Release);
    }

    /// What lies before this has been done, and may be written over.
    #[inline]
    pub(crate) fn begins(&self, at: u64) {
        self.from.store(at, Release);
    }

    /// Position of the first access that may not be done, if there is one.
    pub(crate) fn pending(&self) -> Option<u64> {
        let done = self.ring.word(DONE).load(Acquire);
        (done < self.upto.load(Acquire)).then_some(done)
    }

    /// How many accesses we have done ourselves.
    pub(crate) fn count(&self) -> u64 {
        self.back.load(Relaxed)
    }

    /// The owner goes: does what is in the ring, waiting for the target where that has begun to.
    pub(crate) fn clear(&self) {
        let until = std::time::Instant::now() + CLOSE_WAIT;
        while self.pending().is_some() && std::time::Instant::now() < until {
            match self.execute_pending(usize::MAX) {
                Executed::LockHeld => std::thread::yield_now(),
                Executed::Count(0) => break,
                Executed::Count(_) => {}
            }
        }
        // The thread may be at work, too; a process that ends now would leave its claim to the
        // target.
        let at_work = || self.ring.word(RING_LOCK).load(Acquire) == ORIGIN;
        while at_work() && std::time::Instant::now() < until {
            std::thread::yield_now();
        }
    }

    /// Does up to `most` accesses that are in the ring.
    #[cold]
    pub(crate) fn execute_pending(&self, most: usize) -> Executed {
        let ring = &*self.ring;
        let claim = ring.word(RING_LOCK);
        if claim
            .compare_exchange(FREE, ORIGIN, Acquire, Relaxed)
            .is_err()
        {
            return Executed::LockHeld;
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
            let Some(h) = record_word(word, pos) else {
                break;
            };
            if h.flags & kind::ACCESS != 0 {
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
        Executed::Count(n)
    }

    /// Does one; `false` when it cannot be done from here.
    fn work(&self, kind: u8, word: usize, len: usize) -> bool {
        let ring = &*self.ring;
        let write = match kind {
            kind::WRITE => true,
            kind::READ => false,
            _ => return false,
        };
        if len < HEAD {
            return false;
        }
        let [key, addr] = [8, 16].map(|o| ring.word(word + o).load(Relaxed));
        let data = LocalBuffer::Shared(ring, word + 8 + HEAD, len - HEAD);
        let done = self
            .visit
            .access(ring.word(VISIT_ASIDE), write, &data, KeyHash::of(key), addr);
        let code = match done {
            Ok(()) => return true,
            Err(RmaDenied::Status(s)) => s as u8,
            // The region is gone, was never published, or the system does not let us copy.
            Err(RmaDenied::Unsupported) => UNSUPPORTED,
        };
        refuse(ring, word, code);
        true
    }
}
