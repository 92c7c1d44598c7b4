//! A growing ring of small values, such as completions: a value stays in its slot until it is read
//! there.
//!
//! The number of slots is a power of two, so that an index is a sum and a mask; it doubles when the
//! ring is full.

/// See the module text.
#[derive(Debug)]
pub struct Fifo<T> {
    slots: Box<[T]>,
    /// Total numbers of values read and pushed, modulo 2^64.
    read: usize,
    pushed: usize,
}

impl<T: Copy + Default> Default for Fifo<T> {
    fn default() -> Self {
        Fifo::with_capacity(1)
    }
}

impl<T: Copy + Default> Fifo<T> {
    /// An empty queue with `n` slots, rounded up to a power of two.
    pub fn with_capacity(n: usize) -> Fifo<T> {
        Fifo {
            slots: vec![T::default(); n.max(1).next_power_of_two()].into(),
            read: 0,
            pushed: 0,
        }
    }

    /// How many wait to be read.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.pushed.wrapping_sub(self.read)
    }

    /// Whether there is no unread value.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.pushed == self.read
    }

    /// Adds a value.
    #[inline(always)]
    pub fn push(&mut self, v: T) {
        if self.len() >= self.slots.len() {
            self.grow();
        }
        let at = self.pushed & (self.slots.len() - 1);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = v;
        }
        self.pushed = self.pushed.wrapping_add(1);
    }

    /// Removes up to `most` values, the oldest first; calls `each` with the index and value of
    /// each. Returns how many there were.
    #[inline(always)]
    pub fn take(&mut self, most: usize, mut each: impl FnMut(usize, &T)) -> usize {
        let n = self.len().min(most);
        for i in 0..n {
            let at = self.read.wrapping_add(i) & (self.slots.len() - 1);
            if let Some(v) = self.slots.get(at) {
                each(i, v);
            }
        }
        self.read = self.read.wrapping_add(n);
        n
    }

    /// Where the `i`th value from the oldest on is.
    #[inline(always)]
    fn place(&self, i: usize) -> Option<usize> {
        (i < self.len()).then(|| self.read.wrapping_add(i) & (self.slots.len() - 1))
    }

    /// The `i`th value from the oldest on.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<&T> {
        self.slots.get(self.place(i)?)
    }

    /// The `i`th value, to change.
    pub fn get_mut(&mut self, i: usize) -> Option<&mut T> {
        let at = self.place(i)?;
        self.slots.get_mut(at)
    }

    /// All values, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(|i| self.get(i))
    }

    /// Removes the `i`th oldest value: the older ones, which must be few, each move by one slot.
    #[inline]
    pub fn remove(&mut self, i: usize) -> Option<T> {
        let v = self.get(i).copied()?;
        for j in (0..i).rev() {
            let before = self.get(j).copied();
            if let (Some(to), Some(before)) = (self.get_mut(j + 1), before) {
                *to = before;
            }
        }
        self.drop_first();
        Some(v)
    }

    /// The oldest value goes, if there is one.
    #[inline(always)]
    pub fn drop_first(&mut self) {
        if !self.is_empty() {
            self.read = self.read.wrapping_add(1);
        }
    }

    #[cold]
    fn grow(&mut self) {
        let mut more = vec![T::default(); self.slots.len() * 2];
        let n = self.take(usize::MAX, |i, v| {
            if let Some(to) = more.get_mut(i) {
                *to = *v;
            }
        });
        *self = Fifo {
            slots: more.into(),
            read: 0,
            pushed: n,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_out_in_order_whatever_its_size_was() {
        let mut q = Fifo::with_capacity(3);
        // Start near the end of the range, so that the counters wrap around.
        (q.read, q.pushed) = (usize::MAX - 5, usize::MAX - 5);
        let (mut next, mut expected) = (0u32, 0);
        for round in 0..40 {
            for _ in 0..round {
                q.push(next);
                next += 1;
            }
            let before = q.len();
            let n = q.take(round / 2 + 3, |_, v| {
                assert_eq!(*v, expected);
                expected += 1;
            });
            assert_eq!(q.len(), before - n);
        }
        assert!(!q.is_empty());
        let all: Vec<u32> = q.iter().copied().collect();
        assert_eq!(q.remove(all.len()), None);
        for i in [3, 0, 1] {
            let mut want: Vec<u32> = q.iter().copied().collect();
            assert_eq!(q.remove(i), Some(want.remove(i)));
            assert!(q.iter().eq(&want));
        }
        let rest: Vec<u32> = q.iter().copied().collect();
        q.take(usize::MAX, |i, v| {
            assert_eq!(*v, rest[i]);
        });
        assert!(q.is_empty());
    }
}
