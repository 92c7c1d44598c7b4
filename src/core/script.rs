//! A string of bytes that decides what a fuzz harness does: bytes beyond its end are zero.

/// See the module text.
pub struct Script {
    bytes: Vec<u8>,
    at: usize,
}

impl Script {
    /// Decisions from these bytes.
    pub fn new(bytes: &[u8]) -> Script {
        Script {
            bytes: bytes.to_vec(),
            at: 0,
        }
    }

    /// The next byte, 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let b = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        b
    }

    /// Whether all are used up.
    pub fn over(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        u32::from(self.byte()) % n.max(1)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u8) -> bool {
        self.byte().is_multiple_of(n)
    }

    /// True every other time.
    pub fn flip(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A length: mostly small, sometimes at an edge of its type.
    pub fn length(&mut self) -> u64 {
        let small = u64::from(self.byte());
        match self.byte() % 8 {
            0 => 0,
            1 => small * 8,
            2 => small * 64,
            3 => u64::MAX - small,
            4 => u64::from(u32::MAX) - small,
            5 => 1 << 63,
            _ => small,
        }
    }
}

/// The seeds below `seeds` whose random scripts make a harness panic.
#[cfg(test)]
pub fn failing(seeds: u64, run: fn(&[u8])) -> Vec<u64> {
    let fails = |seed: &u64| {
        let mut rng = super::rng::Rng::new(*seed);
        let len = 40 + rng.below(3000) as usize;
        let script: Vec<u8> = (0..len).map(|_| rng.bits() as u8).collect();
        std::panic::catch_unwind(|| run(&script)).is_err()
    };
    (0..seeds).filter(fails).collect()
}
