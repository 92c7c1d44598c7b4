//! A multiplicative hash for keys of a few words: peers, tags, addresses.
//!
//! Each word is multiplied by a secret of the process, and the halves of the product are folded.
//! Peers choose many of the keys, such as tags: without the secret they cannot choose keys that
//! collide.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// See the module text.
pub struct WordHasher {
    state: u64,
    factor: u64,
}

/// For `HashMap`.
#[derive(Clone)]
pub struct ByWords {
    start: u64,
    factor: u64,
}

impl Default for ByWords {
    fn default() -> ByWords {
        static SECRET: OnceLock<ByWords> = OnceLock::new();
        let random = || RandomState::new().build_hasher().finish();
        let made = SECRET.get_or_init(|| ByWords {
            start: random(),
            factor: random() | 1,
        });
        made.clone()
    }
}

impl BuildHasher for ByWords {
    type Hasher = WordHasher;

    #[inline]
    fn build_hasher(&self) -> WordHasher {
        WordHasher {
            state: self.start,
            factor: self.factor,
        }
    }
}

impl Hasher for WordHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.state
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
        let product = u128::from(self.state ^ v) * u128::from(self.factor);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys in patterns, of which one word varies in low or in high bits only. With a fixed secret:
    /// for each pattern there are a few with which it spreads less well.
    #[test]
    fn keys_in_patterns_spread() {
        let by = ByWords {
            start: 0x243f_6a88_85a3_08d3,
            factor: 0x9e37_79b9_7f4a_7c15,
        };
        for shift in 0..=48 {
            for other in [0, 7, u64::MAX] {
                let mut places = [0u32; 1 << 12];
                for i in 0..1u64 << 12 {
                    let hash = by.hash_one((3u32, other ^ i << shift));
                    places[hash as usize % (1 << 12)] += 1;
                }
                let most = places.into_iter().max();
                assert!(most < Some(24), "{shift} {other:x}: {most:?} in one place");
            }
        }
    }
}
