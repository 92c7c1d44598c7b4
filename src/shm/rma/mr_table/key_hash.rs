//! The one-way hash of a key: the table's name of a region, and its mark in a ring.

use super::{ENTRIES, ENTRY, FLAGS, HEAD, USED};
use core::sync::atomic::{fence, AtomicU64, Ordering::*};
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The one-way hash of a key, as it is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(pub(super) u64);

impl KeyHash {
    pub(in crate::shm) fn of(key: u64) -> KeyHash {
        let mut h = SipHasher24::new_with_keys(0x6c66_722d_7368_6d32, 0x6b65_7973);
        h.write_u64(key);
        KeyHash(h.finish() & !FLAGS)
    }

    /// Shows the owner of the region, by a word of the ring, that it is in use.
    pub(in crate::shm) fn mark(self, word: &AtomicU64) {
        word.store(self.0 | USED, Relaxed);
        // The mark is visible before the table is read.
        fence(SeqCst);
    }

    /// Takes back [`KeyHash::mark`].
    pub(in crate::shm) fn unmark(word: &AtomicU64) {
        word.store(0, Release);
    }

    pub(super) fn place(self, i: usize) -> usize {
        HEAD + (self.0 as usize + i) % ENTRIES * ENTRY
    }
}

/// Hashes of the keys used last: most programs use few.
#[derive(Debug, Default)]
pub(crate) struct KeyHashes {
    last: [Option<(u64, KeyHash)>; 2],
}

impl KeyHashes {
    /// The hash of a key.
    #[inline(always)]
    pub(crate) fn of(&mut self, key: u64) -> KeyHash {
        match self.last {
            [Some((k, t)), _] if k == key => t,
            [_, Some((k, t))] if k == key => t,
            _ => self.compute(key),
        }
    }

    #[cold]
    fn compute(&mut self, key: u64) -> KeyHash {
        let t = KeyHash::of(key);
        let [newest, other] = &mut self.last;
        *other = newest.replace((key, t));
        t
    }
}
