//! Which way is the fastest one on this machine: measured while it works.
//!
//! A ring that both sides copy through moves 20 GB/s between two cores of one machine and 3 between
//! those of another, where the system's copy moves 13; which it is changes with the neighbours,
//! too. So each way is tried a few times, the best one is taken from then on, and now and then
//! another is tried again: seldom one that was much worse.

use crate::device::host;

/// A way for long messages, reads and writes of a peer on the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyMethod {
    /// In pieces through shared memory, both sides copying.
    Ring = 0,
    /// By the system, from one process's memory into the other's.
    Cma = 1,
    /// So, too, and both sides do it.
    CmaBoth = 2,
}

const WAYS: usize = 3;
/// Tries of each way before the best one is taken.
const FIRST: u32 = 3;
/// After that another one has its turn now and then, of so many in a row as a power of two: the
/// first find their memory in other caches than the next, and of what is short several are fetched
/// at once.
const TRIES: [u32; CLASSES.len() + 1] = [4, 4, 2, 2];
/// Every so many turns, and so many times as seldom if it was much worse; sooner in the beginning,
/// when what the first tries have cost may not even be known yet.
const AGAIN: u32 = 64;
const SELDOM: u32 = 8;

/// What is known of the ways for lengths of one class.
#[derive(Clone, Copy, Debug, Default)]
struct CostClass {
    /// Picoseconds per byte, 0 before the first time, and how often that was measured.
    cost: [u64; WAYS],
    times: [u32; WAYS],
    /// What was measured since then: several may end at once, so that the time of one says little.
    since: [Sum; WAYS],
    chosen: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    n: u32,
    bytes: u64,
    ns: u64,
}

impl CostClass {
    /// The cheapest of these ways that were measured; the first of them before that.
    fn best(&self, among: &[CopyMethod]) -> CopyMethod {
        let known = among.iter().filter(|w| self.cost[**w as usize] > 0);
        let best = known.min_by_key(|w| self.cost[**w as usize]);
        best.or(among.first()).copied().unwrap_or(CopyMethod::Ring)
    }
}

/// Longest of each class, bytes; the last has no end.
const CLASSES: [usize; 3] = [16 << 10, 64 << 10, 512 << 10];

/// Tries in a row, as a power of two.
fn turn(len: usize) -> u32 {
    TRIES.get(class(len)).copied().unwrap_or(0)
}

fn class(len: usize) -> usize {
    CLASSES.iter().filter(|most| len > **most).count()
}

/// See the module text.
#[derive(Debug, Default)]
pub struct CostModel {
    known: [CostClass; CLASSES.len() + 1],
    /// When the last of those that go one after another was there.
    last: u64,
}

impl CostModel {
    fn of(&mut self, len: usize) -> &mut CostClass {
        let [a, b, c, d] = &mut self.known;
        match class(len) {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }

    /// Picoseconds per byte by the cheapest of these ways, 0 when none is known.
    pub fn cost(&mut self, len: usize, among: &[CopyMethod]) -> u64 {
        let k = self.of(len);
        k.cost[k.best(among) as usize]
    }

    /// The way, of these, that is to be gone now.
    pub fn choose(&mut self, len: usize, among: &[CopyMethod]) -> CopyMethod {
        let way = self.next(len, among);
        self.goes(len);
        way
    }

    /// It is.
    pub fn goes(&mut self, len: usize) {
        let k = self.of(len);
        k.chosen = k.chosen.wrapping_add(1);
    }

    /// As [`CostModel::choose`], where it may come to nothing: else [`CostModel::goes`] has to be
    /// called.
    pub fn next(&mut self, len: usize, among: &[CopyMethod]) -> CopyMethod {
        let k = self.of(len);
        let best = k.best(among);
        let ways = among.len().max(1) as u32;
        if k.chosen < ways * FIRST {
            let turn = among.get((k.chosen % ways) as usize);
            return turn.copied().unwrap_or(best);
        }
        let n = k.chosen >> turn(len);
        let early = n < 2 * AGAIN;
        let (due, round) = match early {
            true => (n.is_power_of_two(), n.trailing_zeros()),
            false => (n.is_multiple_of(AGAIN), n / AGAIN),
        };
        if !due {
            return best;
        }
        // The others take turns.
        let others = among.iter().filter(|w| **w != best).copied();
        let other = others.cycle().nth((round % ways) as usize);
        let worth = |w: &CopyMethod| {
            let [theirs, ours] = [*w, best].map(|w| k.cost[w as usize]);
            early || theirs < ours + ours / 2 || (round / ways).is_multiple_of(SELDOM)
        };
        other.filter(worth).unwrap_or(best)
    }

    /// So many, of so many bytes together, have been copied from here since then, while nothing
    /// else was done.
    pub fn took(&mut self, way: CopyMethod, n: usize, bytes: usize, began: u64) {
        self.took_all(way, n, bytes, host::now().saturating_sub(began));
    }

    /// So many that go one after another are there now, of so many bytes together; the first began
    /// then. While the one before was on its way they took no time of their own.
    pub fn ended(&mut self, way: CopyMethod, n: usize, bytes: usize, began: u64) {
        let began = began.max(self.last);
        self.last = host::now();
        self.took_all(way, n, bytes, self.last.saturating_sub(began));
    }

    /// So many messages have taken so long, one after another, of so many bytes cma. A single
    /// time may be anything, for the processor is somebody else's now and then: what is out of the
    /// ordinary counts as little more than the ordinary.
    fn took_all(&mut self, way: CopyMethod, n: usize, bytes: usize, ns: u64) {
        let len = bytes / n.max(1);
        let k = self.of(len);
        let of = |bytes: u64, ns: u64| (ns.saturating_mul(1000) / bytes.max(1)).max(1);
        let bytes = bytes as u64;
        let i = way as usize;
        let (cost, times, sum) = (&mut k.cost[i], &mut k.times[i], &mut k.since[i]);
        *times = times.saturating_add(1);
        if *times <= FIRST {
            // The best counts: memory is touched for the first time there.
            let now = of(bytes, ns);
            *cost = if *cost == 0 { now } else { now.min(*cost) };
            return;
        }
        sum.n = sum.n.saturating_add(n as u32);
        sum.bytes += bytes;
        sum.ns += ns.min(cost.saturating_mul(4 * bytes) / 1000 + 1);
        if sum.n >= 1 << turn(len) {
            *cost = (*cost + of(sum.bytes, sum.ns)) / 2;
            *sum = Sum::default();
        }
    }

    /// A peer says what this way costs there.
    pub fn costs(&mut self, way: CopyMethod, len: usize, cost: u64) {
        self.of(len).cost[way as usize] = cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;
    const ALL: [CopyMethod; 3] = [CopyMethod::Ring, CopyMethod::Cma, CopyMethod::CmaBoth];

    /// How often each way was gone.
    fn run(p: &mut CostModel, n: usize, among: &[CopyMethod], cost: [u64; 3]) -> [usize; 3] {
        let mut gone = [0; 3];
        for _ in 0..n {
            let way = p.choose(LEN, among);
            p.took_all(way, 1, LEN, cost[way as usize]);
            gone[way as usize] += 1;
        }
        gone
    }

    #[test]
    fn the_fastest_way_is_found_and_a_change_is_noticed() {
        let mut p = CostModel::default();
        let [ring, attach, both] = run(&mut p, 1000, &ALL, [30_000, 8_000, 6_000]);
        assert!(
            both > 950 && attach > FIRST as usize,
            "{ring} {attach} {both}"
        );
        assert_eq!(p.cost(LEN, &ALL), 60);
        assert_eq!(p.cost(LEN, &ALL[..2]), 80);
        // Other lengths are another matter.
        assert_eq!(p.cost(10, &ALL), 0);
        assert_eq!(p.choose(10, &ALL), CopyMethod::Ring);
        // The neighbours have gone: the ring is found to be better with its turns.
        run(&mut p, 20_000, &ALL, [4_000, 8_000, 6_000]);
        assert_eq!(p.cost(LEN, &ALL), 40);
        assert!(run(&mut p, 1000, &ALL, [4_000, 8_000, 6_000])[0] > 980);
        // A way that is not to be had is not gone.
        assert_eq!(run(&mut p, 1000, &ALL[..2], [9_000, 8_000, 1])[2], 0);
    }

    #[test]
    fn one_bad_moment_changes_nothing() {
        let mut p = CostModel::default();
        run(&mut p, 100, &ALL, [5_000, 8_000, 9_000]);
        p.took_all(CopyMethod::Ring, 1, LEN, 100_000_000);
        assert_eq!(p.of(LEN).best(&ALL), CopyMethod::Ring);
    }
}
