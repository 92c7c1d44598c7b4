//! Lists of entries by (source, tag) for one mask of ignored tag bits. An entry that was removed
//! elsewhere stays in a list until it reaches the list's front, or until the list holds more
//! removed entries than there are live ones.

use crate::core::hash::ByWords;
use crate::core::slab::Slab;
use crate::proto::PeerId;
use std::collections::{HashMap, VecDeque};

/// Entries, and lists, from which on memory is returned once most of them are gone.
const LARGE: usize = 4096;

type Lists = HashMap<(PeerId, u64), List, ByWords>;

/// Entries in order. Most lists have one, for which no memory is allocated.
#[derive(Debug, Default)]
pub(super) struct List {
    pub first: Option<Id>,
    more: VecDeque<Id>,
}

impl List {
    pub(super) fn push(&mut self, id: Id) {
        if self.first.is_none() {
            self.first = Some(id);
        } else {
            self.more.push_back(id);
        }
    }

    pub(super) fn pop(&mut self) {
        self.first = self.more.pop_front();
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Id) -> bool) {
        self.more.retain(&mut keep);
        if self.first.as_ref().is_some_and(|id| !keep(id)) {
            self.pop();
        }
    }

    /// First entry that still exists; removed ones before it are dropped.
    pub(super) fn front<T>(&mut self, live: &Slab<Stamped<T>>) -> Option<Id> {
        while let Some(id) = self.first {
            if alive(id, live) {
                return Some(id);
            }
            self.pop();
        }
        None
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Id> + '_ {
        self.first.iter().chain(&self.more).copied()
    }

    /// Appends an entry, and purges removed entries when there are too many.
    pub(super) fn append<T>(&mut self, id: Id, live: &Slab<Stamped<T>>) {
        if self.more.len() > 64 + 2 * live.len() {
            self.retain(|id| alive(*id, live));
        }
        self.push(id);
    }
}

/// An entry with its sequence number; lists refer to it by `seq` and slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamped<T> {
    pub seq: u32,
    pub value: T,
}

/// Identifies an entry by its sequence number and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub(super) seq: u32,
    pub(super) slot: u32,
}

pub(super) fn alive<T>(id: Id, live: &Slab<Stamped<T>>) -> bool {
    live.get(id.slot).is_some_and(|e| e.seq == id.seq)
}

/// Lists of one mask of ignored tag bits.
#[derive(Debug)]
pub(super) struct Index {
    pub ignore: u64,
    pub lists: Lists,
    /// Receives in these lists for one source, and for any source.
    pub directed: usize,
    pub any: usize,
}

impl Index {
    pub(super) fn new(ignore: u64) -> Index {
        Index {
            ignore,
            lists: Lists::default(),
            directed: 0,
            any: 0,
        }
    }

    pub(super) fn drop_front(&mut self, key: (PeerId, u64), id: Id) {
        if let Some(l) = self.lists.get_mut(&key) {
            if l.first == Some(id) {
                l.pop();
            }
        }
    }

    /// Enters an entry into its list. Empty lists are kept for the next entry of their key, until
    /// there are more lists than entries.
    pub(super) fn put<T>(&mut self, key: (PeerId, u64), id: Id, live: &Slab<Stamped<T>>) {
        if self.lists.len() > 64 + 4 * live.len() {
            self.lists.retain(|_, l| {
                l.retain(|id| alive(*id, live));
                l.first.is_some()
            });
            // A walk through the map takes as long as it was once large.
            if self.lists.capacity() > LARGE && self.lists.len() < self.lists.capacity() / 8 {
                self.lists.shrink_to(2 * self.lists.len());
            }
        }
        self.lists.entry(key).or_default().append(id, live);
    }
}

/// Returns the memory of entries that are all gone, after a burst of them.
pub(super) fn forget_burst<T>(live: &mut Slab<Stamped<T>>) {
    if live.is_empty() && live.end() > LARGE {
        *live = Slab::default();
    }
}
