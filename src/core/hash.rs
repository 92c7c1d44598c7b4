//! A multiplicative hash for keys of a few words: peers, tags, addresses. It does not resist chosen
//! keys: use it only for maps whose size the application bounds.

use std::hash::{BuildHasherDefault, Hasher};

/// See the module text.
#[derive(Default)]
pub struct WordHasher(u64);

/// For `HashMap`.
pub type ByWords = BuildHasherDefault<WordHasher>;

impl Hasher for WordHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes.chunks(8) {
            let mut v = [0; 8];
            for (to, from) in v.iter_mut().zip(b) {
                *to = *from;
            }
            self.write_u64(u64::from_le_bytes(v));
        }
    }

    #[inline]
    fn write_u16(&mut self, v: u16) {
        self.write_u64(v.into());
    }

    #[inline]
    fn write_u32(&mut self, v: u32) {
        self.write_u64(v.into());
    }

    /// Ignores lengths of arrays, which are equal for all keys of a map.
    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
