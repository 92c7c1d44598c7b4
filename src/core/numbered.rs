//! A table of operations whose numbers peers repeat: a number that is removed comes again only
//! after 256 others, so that a late packet about an operation that was given up here finds nothing
//! instead of another operation.

use super::slab::Slab;

/// Bits of a number that are the index in the table; those above tell its users apart.
const INDEX_BITS: u32 = 24;
/// Tells the numbers of two tables apart.
const TABLE: u32 = 1 << 23;
const INDEX: u32 = TABLE - 1;

/// See the module text. Holds at most 2^23 values. Numbers have bit 23 set if `HIGH`, so that those
/// of two tables tell which one they are of.
#[derive(Debug)]
pub struct Numbered<T, const HIGH: bool = false> {
    values: Slab<(u32, T)>,
    /// Upper bits of the last number.
    last: u32,
}

impl<T, const HIGH: bool> Default for Numbered<T, HIGH> {
    fn default() -> Self {
        Numbered {
            values: Slab::default(),
            last: 0,
        }
    }
}

impl<T, const HIGH: bool> Numbered<T, HIGH> {
    /// Stores `value` and returns its number.
    #[inline]
    pub fn insert(&mut self, value: T) -> u32 {
        self.last = self.last.wrapping_add(1 << INDEX_BITS);
        let at = self.values.insert((0, value));
        let table = if HIGH { TABLE } else { 0 };
        let number = at & INDEX | table | self.last;
        if let Some((own, _)) = self.values.get_mut(at) {
            *own = number;
        }
        number
    }

    /// The value of this number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        let (own, value) = self.values.get(number & INDEX)?;
        (*own == number).then_some(value)
    }

    /// The value of this number, to change.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (own, value) = self.values.get_mut(number & INDEX)?;
        (*own == number).then_some(value)
    }

    /// Takes the value of this number out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        self.get(number)?;
        self.values.remove(number & INDEX).map(|(_, value)| value)
    }

    /// Numbers of the values that `pick` accepts.
    pub fn select(&self, mut pick: impl FnMut(&T) -> bool) -> Vec<u32> {
        let hits = self.iter().filter(|(_, v)| pick(v));
        hits.map(|(n, _)| n).collect()
    }

    /// All values with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values
            .iter()
            .map(|(_, (number, value))| (*number, value))
    }

    /// How many values are stored.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_number_names_nothing_although_its_place_is_used_again() {
        let mut t = Numbered::<_>::default();
        let kept = t.insert("kept");
        let old = t.insert("old");
        assert_eq!(t.remove(old), Some("old"));
        for _ in 0..255 {
            let new = t.insert("new");
            assert_ne!(new, old);
            assert!(t.get(old).is_none() && t.get_mut(old).is_none());
            assert_eq!(t.remove(old), None);
            assert_eq!(t.remove(new), Some("new"));
        }
        assert_eq!(t.iter().collect::<Vec<_>>(), [(kept, &"kept")]);
        assert_eq!((t.len(), t.select(|v| *v == "kept")), (1, vec![kept]));
    }

    #[test]
    fn a_number_of_one_table_names_nothing_in_the_other() {
        let (mut low, mut high) = (Numbered::<u32>::default(), Numbered::<u32, true>::default());
        for i in 0..300 {
            let (l, h) = (low.insert(i), high.insert(i));
            assert!(high.get(l).is_none() && low.get(h).is_none());
            assert_eq!((low.get(l), high.get(h)), (Some(&i), Some(&i)));
        }
    }
}
