//! Handles of registered device memory in the table of regions (`mr_table`): what a peer needs to
//! open the memory and to copy by its device.
//!
//! A region of device memory has an entry as any other, which names a slot with the handle. All
//! peers see the table, and a handle opens a whole allocation: the words of a slot are sealed by
//! the region's key, so that only a peer that has the key can read them.

use crate::core::slab::Slab;
use crate::hmem::{IpcHandle, MemKind, IPC_WORDS};
use crate::shm::memfd::MemfdMap;
use core::sync::atomic::Ordering::*;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// Regions of device memory that peers can open; others are reached through the adapter.
const SLOTS: usize = 4096;
const SLOT: usize = 128;
/// Bytes of all slots; what is not used takes no memory.
pub(super) const BYTES: usize = SLOTS * SLOT;

/// A slot of a table whose slots in use are these; `None` when all are.
pub(super) fn take(used: &mut Slab<()>) -> Option<u32> {
    (used.len() < SLOTS).then(|| used.insert(()))
}

/// Word `i` of what seals the slots of a key's regions.
fn seal(key: u64, i: usize) -> u64 {
    let mut h = SipHasher24::new_with_keys(0x6c66_722d_6970_6331, key);
    h.write_u64(i as u64);
    h.finish()
}

/// Where a slot begins, in slots from `start` on. A peer may have written any number.
fn place(start: usize, slot: u64) -> usize {
    start + (slot % SLOTS as u64) as usize * SLOT
}

/// Writes the handle of a region.
pub(super) fn write(
    map: &MemfdMap,
    (start, slot): (usize, u64),
    key: u64,
    (kind, handle): (MemKind, &IpcHandle),
) {
    let words = [kind as u64].into_iter().chain(handle.to_words());
    for (i, w) in words.enumerate() {
        let at = place(start, slot) + 8 * i;
        map.word(at).store(w ^ seal(key, i), Relaxed);
    }
}

/// Reads the handle of a region; `None` when it is of no kind.
pub(super) fn read(
    map: &MemfdMap,
    (start, slot): (usize, u64),
    key: u64,
) -> Option<(MemKind, IpcHandle)> {
    let word = |i: usize| map.word(place(start, slot) + 8 * i).load(Relaxed) ^ seal(key, i);
    let mut words = [0; IPC_WORDS];
    for (i, w) in words.iter_mut().enumerate() {
        *w = word(i + 1);
    }
    let kind = MemKind::of_number(word(0)).filter(|k| *k != MemKind::Host)?;
    Some((kind, IpcHandle::of_words(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_read_by_its_key_alone() {
        let map = MemfdMap::create(BYTES).unwrap();
        let words = core::array::from_fn(|i| 0x1111_1111_1111_1111 * (i as u64 + 1));
        let handle = IpcHandle::of_words(words);
        write(&map, (0, 7), 42, (MemKind::Cuda, &handle));
        assert_eq!(read(&map, (0, 7), 42), Some((MemKind::Cuda, handle)));
        assert!(read(&map, (0, 7), 43).is_none_or(|(_, h)| h != handle));
        let seen = (0..BYTES).step_by(8).map(|at| map.word(at).load(Relaxed));
        assert!(!seen.into_iter().any(|w| words.contains(&w)));
        // A number that a hostile peer has written stays within the slots.
        assert_eq!(read(&map, (0, u64::MAX), 42), None);
    }

    #[test]
    fn a_freed_slot_is_taken_again() {
        let mut used = Slab::default();
        let all: Vec<u32> = std::iter::from_fn(|| take(&mut used)).collect();
        assert_eq!(all.len(), SLOTS);
        used.free(5);
        assert_eq!((take(&mut used), take(&mut used)), (Some(5), None));
    }
}
