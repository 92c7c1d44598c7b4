//! A hash of addresses.

use std::hash::{BuildHasherDefault, Hasher};

/// Hashes addresses, which an application chose, and which are few.
#[derive(Default)]
pub struct AddrHasher(u64);

pub type Quick = BuildHasherDefault<AddrHasher>;

impl Hasher for AddrHasher {
    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
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

    #[inline]
    fn write_usize(&mut self, _: usize) {}

    #[inline]
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
