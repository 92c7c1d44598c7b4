//! The initiator's side of the accesses of one ring, shared with a thread of its process.

use super::cma::LocalBuffer;
use super::lock::{refuse, CLOSE_WAIT, DONE, FREE, ORIGIN, RING_LOCK, UNSUPPORTED};
use super::mr_table::{KeyHash, RemoteMrTable, RmaDenied, EXECUTE_KEY};
use super::HEAD;
use crate::shm::kind;
use crate::shm::ring::{record_word, RingSegment, DATA, SIZE, TAKEN, WRAP};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;

/// Result of an attempt to execute accesses from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Executed {
    /// The target holds the lock.
    LockHeld,
    /// How many were executed.
    Count(usize),
}

/// The writer's side.
pub(crate) struct Initiator {
    ring: Arc<RingSegment>,
    remote_table: RemoteMrTable,
    /// Positions between which accesses lie that may not be done.
    from: AtomicU64,
    upto: AtomicU64,
    /// Whether the events thread polls this initiator.
    pub watched: AtomicBool,
    /// How many were executed from here.
    back: AtomicU64,
}

impl Initiator {
    /// For the ring to a peer whose memory `remote_table` reaches.
    pub(crate) fn new(ring: Arc<RingSegment>, remote_table: RemoteMrTable) -> Initiator {
        Initiator {
            ring,
            remote_table,
            from: AtomicU64::new(0),
            upto: AtomicU64::new(0),
            watched: AtomicBool::new(false),
            back: AtomicU64::new(0),
        }
    }

    /// The peer's table of registered memory.
    pub(crate) fn mr_table(&self) -> &RemoteMrTable {
        &self.remote_table
    }

    /// Adds an access from `start` to `end` to the range; the target has last reported `done`.
    #[inline]
    pub(crate) fn track(&self, start: u64, end: u64, done: u64) {
        if done >= self.upto.load(Relaxed) {
            self.from.store(start, Relaxed);
        }
        self.upto.store(end, Release);
    }

    /// Moves the beginning of the range: everything before `at` is done, and may be overwritten.
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

    /// Executes the accesses in the ring before the owner closes; waits for a target that holds the
    /// lock.
    pub(crate) fn clear(&self) {
        let until = std::time::Instant::now() + CLOSE_WAIT;
        while self.pending().is_some() && std::time::Instant::now() < until {
            match self.execute_pending(usize::MAX) {
                Executed::LockHeld => std::thread::yield_now(),
                Executed::Count(0) => break,
                Executed::Count(_) => {}
            }
        }
        // The events thread may hold the lock, too: a process that ends now would leave the lock
        // held.
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
            // Records that the target has taken may have been overwritten meanwhile; accesses that
            // are not done have not been.
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
            // Whatever the peer reports from now on, these accesses are not executed again.
            self.from.fetch_max(at, AcqRel);
            ring.word(DONE).store(at, Release);
            self.back.fetch_add(n as u64, Relaxed);
        }
        claim.store(FREE, Release);
        Executed::Count(n)
    }

    /// Executes an access; `false` when it cannot be executed from here.
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
        let done =
            self.remote_table
                .access((ring, EXECUTE_KEY), write, &data, KeyHash::of(key), addr);
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
