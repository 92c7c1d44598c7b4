//! A table of values with stable small indices: the state of endpoints, queues and operations.
//!
//! Insertion and removal are constant time and reuse slots, last freed first, so that the slots in
//! use stay in cache. Lookups are checked: a stale or hostile index finds nothing.

/// See the module text.
#[derive(Debug)]
pub struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    free: u32,
    len: u32,
}

#[derive(Debug)]
enum SlabSlot<T> {
    Used(T),
    Free(u32),
}

const END: u32 = u32::MAX;

/// A table that takes more bytes than this grows by an eighth, no longer to twice its size: where
/// malloc(3) fails the reserve (`abi::reserve`) has room for the former only.
const LARGE: usize = 1 << 20;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            slots: Vec::new(),
            free: END,
            len: 0,
        }
    }
}

impl<T> Slab<T> {
    /// An empty table with room for `n` values before it allocates again.
    pub fn with_capacity(n: usize) -> Self {
        Slab {
            slots: Vec::with_capacity(n),
            free: END,
            len: 0,
        }
    }

    /// Stores `value` and returns its index.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        match self.slots.get_mut(self.free as usize) {
            Some(slot) => {
                let at = self.free;
                if let SlabSlot::Free(next) = slot {
                    self.free = *next;
                }
                *slot = SlabSlot::Used(value);
                at
            }
            None => {
                if self.slots.len() == self.slots.capacity() {
                    self.grow();
                }
                self.slots.push(SlabSlot::Used(value));
                (self.slots.len() - 1) as u32
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let n = self.slots.len();
        if n * size_of::<SlabSlot<T>>() > LARGE {
            self.slots.reserve_exact(n / 8);
        }
    }

    /// Takes the value at `at` out, if there is one.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let slot = self.slots.get_mut(at as usize)?;
        if matches!(slot, SlabSlot::Free(_)) {
            return None;
        }
        let old = core::mem::replace(slot, SlabSlot::Free(self.free));
        self.free = at;
        self.len -= 1;
        match old {
            SlabSlot::Used(v) => Some(v),
            SlabSlot::Free(_) => None,
        }
    }

    /// As [`Slab::remove`], but drops the value.
    #[inline]
    pub fn free(&mut self, at: u32) {
        if let Some(slot @ SlabSlot::Used(_)) = self.slots.get_mut(at as usize) {
            *slot = SlabSlot::Free(self.free);
            self.free = at;
            self.len -= 1;
        }
    }

    /// The value at `at`.
    #[inline]
    pub fn get(&self, at: u32) -> Option<&T> {
        match self.slots.get(at as usize) {
            Some(SlabSlot::Used(v)) => Some(v),
            _ => None,
        }
    }

    /// The value at `at`, to change.
    #[inline]
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.slots.get_mut(at as usize) {
            Some(SlabSlot::Used(v)) => Some(v),
            _ => None,
        }
    }

    /// Indices of the values that `pick` accepts, for a caller that changes the table while it goes
    /// through them.
    pub fn select(&self, mut pick: impl FnMut(&T) -> bool) -> Vec<u32> {
        let hits = self.iter().filter(|(_, v)| pick(v));
        hits.map(|(i, _)| i).collect()
    }

    /// How many values are stored.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// One more than the largest index that was ever used.
    pub fn end(&self) -> usize {
        self.slots.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values with their indices, in index order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(i, s)| match s {
            SlabSlot::Used(v) => Some((i as u32, v)),
            SlabSlot::Free(_) => None,
        })
    }

    /// All values with their indices, to change, in index order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.slots
            .iter_mut()
            .enumerate()
            .filter_map(|(i, s)| match s {
                SlabSlot::Used(v) => Some((i as u32, v)),
                SlabSlot::Free(_) => None,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_stale_indices_find_nothing() {
        let mut s = Slab::default();
        let a = s.insert("a");
        let b = s.insert("b");
        assert_eq!(s.remove(a), Some("a"));
        assert_eq!(s.remove(a), None);
        assert_eq!(s.get(a), None);
        assert_eq!(s.insert("c"), a);
        assert_eq!((s.get(a), s.get(b), s.len()), (Some(&"c"), Some(&"b"), 2));
        assert_eq!(s.get(99), None);
        assert_eq!(s.iter().count(), 2);
    }
}
