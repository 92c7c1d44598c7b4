//! Which of two ways is the faster one on this machine: measured while it works.
//!
//! A ring that both sides copy through moves 20 GB/s between two cores of one machine and 3 between those of another, where
//! the system's copy moves 13; which it is changes with the neighbours, too. So each way is tried a few times, the better
//! one is taken from then on, and now and then the other is tried again.

/// A way for long messages, reads and writes of a peer on the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In pieces through shared memory, both sides copying.
    Ring = 0,
    /// By the system, from one process's memory into the other's.
    Attach = 1,
}

/// Tries of each way before the better one is taken.
const FIRST: u32 = 3;
/// After that the other one has its turn with every so-manieth.
const AGAIN: u32 = 64;

/// What is known of the ways for lengths of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Picoseconds per byte, 0 before the first time, and how often that was measured.
    cost: [u64; 2],
    times: [u32; 2],
    chosen: u32,
}

/// Longest of each class, bytes; the last has no end.
const CLASSES: [usize; 3] = [16 << 10, 64 << 10, 512 << 10];

/// See the module text.
#[derive(Debug, Default)]
pub struct Pace([Known; CLASSES.len() + 1]);

impl Pace {
    fn of(&mut self, len: usize) -> &mut Known {
        let class = CLASSES.iter().position(|most| len <= *most);
        let [a, b, c, d] = &mut self.0;
        match class {
            Some(0) => a,
            Some(1) => b,
            Some(2) => c,
            _ => d,
        }
    }

    /// Picoseconds per byte, 0 when that is not known.
    pub fn cost(&mut self, way: Way, len: usize) -> u64 {
        self.of(len).cost[way as usize]
    }

    /// The better way for this length as far as is known.
    pub fn best(&mut self, len: usize) -> Way {
        let [ring, attach] = self.of(len).cost;
        match attach != 0 && (attach < ring || ring == 0) {
            true => Way::Attach,
            false => Way::Ring,
        }
    }

    /// The way that is to be gone now.
    pub fn choose(&mut self, len: usize) -> Way {
        let best = self.best(len);
        let k = self.of(len);
        let n = k.chosen;
        k.chosen = n.wrapping_add(1);
        if n < 2 * FIRST {
            return if n.is_multiple_of(2) {
                Way::Ring
            } else {
                Way::Attach
            };
        }
        match (n.is_multiple_of(AGAIN), best) {
            (false, best) => best,
            (true, Way::Ring) => Way::Attach,
            (true, Way::Attach) => Way::Ring,
        }
    }

    /// So many bytes have taken so long. A single time may be anything, for the processor is somebody else's now and then:
    /// one that is out of the ordinary counts as little more than the ordinary.
    pub fn took(&mut self, way: Way, len: usize, ns: u64) {
        let k = self.of(len);
        let (cost, times) = (&mut k.cost[way as usize], &mut k.times[way as usize]);
        *times = times.saturating_add(1);
        let now = (ns.saturating_mul(1000) / (len as u64).max(1)).max(1);
        *cost = match *cost {
            0 => now,
            // Of the first times the best counts: memory is touched for the first time there.
            c if *times <= FIRST => c.min(now),
            c => (3 * c + now.min(2 * c)) / 4,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;

    fn run(p: &mut Pace, n: usize, cost: impl Fn(Way) -> u64) -> usize {
        let attached = |_: &usize| {
            let way = p.choose(LEN);
            p.took(way, LEN, cost(way));
            way == Way::Attach
        };
        (0..n).filter(attached).count()
    }

    #[test]
    fn the_faster_way_is_found_and_a_change_is_noticed() {
        let mut p = Pace::default();
        let slow_ring = |w| if w == Way::Ring { 30_000 } else { 8_000 };
        let slow_attach = |w| if w == Way::Ring { 4_000 } else { 8_000 };
        assert!(run(&mut p, 1000, slow_ring) > 950);
        assert_eq!(p.best(LEN), Way::Attach);
        // Other lengths are another matter.
        assert_eq!(p.best(10), Way::Ring);
        // The neighbours have gone: the ring is found to be better with its turns.
        run(&mut p, 64 * 16, slow_attach);
        assert_eq!(p.best(LEN), Way::Ring);
        assert!(run(&mut p, 1000, slow_attach) < 50);
    }

    #[test]
    fn one_bad_moment_changes_nothing() {
        let mut p = Pace::default();
        let cost = |w| if w == Way::Ring { 5_000 } else { 8_000 };
        run(&mut p, 100, cost);
        p.took(Way::Ring, LEN, 100_000_000);
        assert_eq!(p.best(LEN), Way::Ring);
    }
}
