//! Chooses how long messages, reads and writes of a same-host peer are copied, by measuring each
//! method in use.
//!
//! A ring that both sides copy through moves 20 GB/s between two cores of one machine and 3 between
//! those of another, where the system's copy moves 13; and the order changes with the load of the
//! machine. Each method is tried [`FIRST`] times, the cheapest is used from then on, and the others
//! are measured again at intervals: less often when they were much dearer.

/// How bytes get from one process's memory into another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyMethod {
    /// Through the ring in pieces: both sides copy.
    Ring = 0,
    /// By cross-memory attach, one side copies.
    Cma = 1,
    /// By cross-memory attach, both sides copy chunks.
    CmaBoth = 2,
}

const METHODS: usize = 3;
/// Tries of each method before the cheapest is used.
const FIRST: u32 = 3;
/// Consecutive uses of a method that is measured again, as a power of two, by class: the first uses
/// find their memory in other caches than the next, and short messages are fetched several at once.
/// The longest choose when the one before has been copied: a single one is a measurement, and more
/// in a row by a dear method would only cost time.
const TRIES: [u32; CLASSES.len() + 1] = [4, 4, 2, 0];
/// Measurements of the cheapest method whose mean changes its cost, at least: one may be long
/// because the process was preempted.
const MEAN: u32 = 4;
/// Turns between two such measurements, and the factor for a method that was much dearer. At first
/// the distance between measurements doubles each time, and a dear method is measured again only
/// within the first [`UNPROVEN`] uses: its first tries may have touched new memory.
const REMEASURE: u32 = 64;
const RARELY: u32 = 8;
const UNPROVEN: u32 = 64;

/// Measured costs of the methods for one class of lengths.
#[derive(Clone, Copy, Debug, Default)]
struct CostClass {
    /// Picoseconds per byte, 0 before the first measurement, and the number of measurements.
    cost: [u64; METHODS],
    times: [u32; METHODS],
    /// Measurements since the last update of the cost: several messages may end at once, so that
    /// the time of a single one measures little.
    since: [Sum; METHODS],
    chosen: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    n: u32,
    bytes: u64,
    ns: u64,
}

impl CostClass {
    /// Whether no measured method is cheaper.
    fn is_cheapest(&self, way: CopyMethod) -> bool {
        let ours = self.cost[way as usize];
        self.cost
            .iter()
            .all(|theirs| *theirs == 0 || ours <= *theirs)
    }

    /// The cheapest measured method of `among`; the first of `among` before any measurement.
    fn best(&self, among: &[CopyMethod]) -> CopyMethod {
        let known = among.iter().filter(|w| self.cost[**w as usize] > 0);
        let best = known.min_by_key(|w| self.cost[**w as usize]);
        best.or(among.first()).copied().unwrap_or(CopyMethod::Ring)
    }
}

/// Longest length of each class, bytes; the last class is unlimited.
const CLASSES: [usize; 3] = [16 << 10, 64 << 10, 512 << 10];

fn class(len: usize) -> usize {
    CLASSES.iter().filter(|most| len > **most).count()
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct CostModel {
    known: [CostClass; CLASSES.len() + 1],
    /// When the last of the messages that travel one after another arrived.
    last: u64,
    /// Nanoseconds since then that were spent on parts of other messages, and when the last of
    /// these ended.
    others: u64,
    others_end: u64,
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

    /// Picoseconds per byte by the cheapest method of `among`, 0 when none is known.
    pub(crate) fn cost(&mut self, len: usize, among: &[CopyMethod]) -> u64 {
        let k = self.of(len);
        k.cost[k.best(among) as usize]
    }

    /// Chooses a method of `among` and counts its use.
    pub(crate) fn choose(&mut self, len: usize, among: &[CopyMethod]) -> CopyMethod {
        let way = self.next(len, among);
        self.count_use(len);
        way
    }

    /// Counts the use of what [`CostModel::next`] chose.
    pub(crate) fn count_use(&mut self, len: usize) {
        let k = self.of(len);
        k.chosen = k.chosen.wrapping_add(1);
    }

    /// As [`CostModel::choose`], without counting: the caller calls [`CostModel::count_use`] when
    /// the method is used.
    pub(crate) fn next(&mut self, len: usize, among: &[CopyMethod]) -> CopyMethod {
        let turn = TRIES.get(class(len)).copied().unwrap_or(0);
        let k = self.of(len);
        let best = k.best(among);
        let ways = among.len().max(1) as u32;
        if k.chosen < ways * FIRST {
            let first = among.get((k.chosen % ways) as usize);
            return first.copied().unwrap_or(best);
        }
        let n = k.chosen >> turn;
        let early = n < 2 * REMEASURE;
        let (due, round) = match early {
            true => (n.is_power_of_two(), n.trailing_zeros()),
            false => (n.is_multiple_of(REMEASURE), n / REMEASURE),
        };
        if !due {
            return best;
        }
        // The other methods take turns.
        let others = among.iter().filter(|w| **w != best).copied();
        let other = others.cycle().nth((round % ways) as usize);
        let worth = |w: &CopyMethod| {
            let [theirs, ours] = [*w, best].map(|w| k.cost[w as usize]);
            let even_if_dear = match early {
                true => k.chosen < UNPROVEN,
                false => (round / ways).is_multiple_of(RARELY),
            };
            even_if_dear || theirs < ours + ours / 2
        };
        other.filter(worth).unwrap_or(best)
    }

    /// Records that `n` messages of `bytes` in all were copied here between two times, with nothing
    /// else in between.
    pub(crate) fn measured_copy(
        &mut self,
        way: CopyMethod,
        n: usize,
        bytes: usize,
        (began, now): (u64, u64),
    ) {
        self.add_measurement(way, n, bytes, now.saturating_sub(began));
    }

    /// Records that `n` messages of `bytes` in all, which travel one after another, have arrived
    /// now; the first began at `began`. Time before the previous arrival is not theirs.
    pub(crate) fn measured_arrival(
        &mut self,
        way: CopyMethod,
        n: usize,
        bytes: usize,
        (began, now): (u64, u64),
    ) {
        let began = began.max(self.last);
        self.last = now;
        let others = core::mem::take(&mut self.others);
        // Of the parts before this message began, none are its own time.
        let others = others.min(self.others_end.saturating_sub(began));
        let ns = now.saturating_sub(began);
        // Where others took most of a time, the remainder measures nothing.
        if others <= ns / 2 {
            self.add_measurement(way, n, bytes, ns - others);
        }
    }

    /// Excludes time spent on a part of another message, from when to when, from the next
    /// arrival's measurement.
    pub(crate) fn count_other(&mut self, (began, now): (u64, u64)) {
        self.others = self.others.saturating_add(now.saturating_sub(began));
        self.others_end = now;
    }

    /// Records the time of `n` messages of `bytes` in all. A single time may be arbitrarily long,
    /// because the process may be preempted: an outlier counts as four times the usual cost at
    /// most.
    fn add_measurement(&mut self, way: CopyMethod, n: usize, bytes: usize, ns: u64) {
        let len = bytes / n.max(1);
        let turn = TRIES.get(class(len)).copied().unwrap_or(0);
        let k = self.of(len);
        let cheapest = k.is_cheapest(way);
        let of = |bytes: u64, ns: u64| (ns.saturating_mul(1000) / bytes.max(1)).max(1);
        let bytes = bytes as u64;
        let i = way as usize;
        let (cost, times, sum) = (&mut k.cost[i], &mut k.times[i], &mut k.since[i]);
        *times = times.saturating_add(1);
        if *times <= FIRST {
            // The smallest cost counts: the first tries include the first touch of memory.
            let now = of(bytes, ns);
            *cost = if *cost == 0 { now } else { now.min(*cost) };
            return;
        }
        sum.n = sum.n.saturating_add(n as u32);
        sum.bytes += bytes;
        sum.ns += ns.min(cost.saturating_mul(4 * bytes) / 1000 + 1);
        let least = if cheapest { MEAN } else { 1 };
        if sum.n >= least.max(1 << turn) {
            *cost = (*cost + of(sum.bytes, sum.ns)) / 2;
            *sum = Sum::default();
        }
    }

    /// Takes over a cost that a peer has measured.
    pub(crate) fn set_cost(&mut self, way: CopyMethod, len: usize, cost: u64) {
        self.of(len).cost[way as usize] = cost;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100_000;
    const ALL: [CopyMethod; 3] = [CopyMethod::Ring, CopyMethod::Cma, CopyMethod::CmaBoth];

    /// How often each method was used.
    fn run(p: &mut CostModel, n: usize, among: &[CopyMethod], cost: [u64; 3]) -> [usize; 3] {
        let mut gone = [0; 3];
        for _ in 0..n {
            let way = p.choose(LEN, among);
            p.add_measurement(way, 1, LEN, cost[way as usize]);
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
        // Each class of lengths has its own costs.
        assert_eq!(p.cost(10, &ALL), 0);
        assert_eq!(p.choose(10, &ALL), CopyMethod::Ring);
        // The load has changed: the next measurements find the ring to be cheaper.
        run(&mut p, 20_000, &ALL, [4_000, 8_000, 6_000]);
        assert_eq!(p.cost(LEN, &ALL), 40);
        assert!(run(&mut p, 1000, &ALL, [4_000, 8_000, 6_000])[0] > 980);
        // A method that is not offered is not used.
        assert_eq!(run(&mut p, 1000, &ALL[..2], [9_000, 8_000, 1])[2], 0);
    }

    #[test]
    fn a_dear_method_is_seldom_tried_for_very_long_accesses() {
        let mut p = CostModel::default();
        let len = 8 << 20;
        let among = &ALL[..2];
        let mut cma = 0;
        for _ in 0..100 {
            let way = p.choose(len, among);
            cma += u32::from(way == CopyMethod::Cma);
            let cost = [50, 120][way as usize];
            p.add_measurement(way, 1, len, cost * len as u64 / 1000);
        }
        assert!(cma <= 8, "{cma}");
        // One long time of the cheaper method does not make it the dearer one.
        p.add_measurement(CopyMethod::Ring, 1, len, 1_000_000_000);
        assert_eq!(p.of(len).best(among), CopyMethod::Ring);
    }

    #[test]
    fn an_arrival_is_not_measured_by_what_was_copied_before_it() {
        let mut p = CostModel::default();
        p.count_other((1_000, 9_000));
        p.measured_arrival(CopyMethod::Ring, 1, LEN, (10_000, 14_000));
        assert_eq!(p.cost(LEN, &ALL), 40);
        // A part of another message in between is not its time.
        p.count_other((21_000, 22_000));
        p.measured_arrival(CopyMethod::Cma, 1, LEN, (20_000, 24_000));
        assert_eq!(p.of(LEN).cost[CopyMethod::Cma as usize], 30);
        // A time that others took nearly all of is not counted.
        p.count_other((30_000, 33_900));
        p.measured_arrival(CopyMethod::CmaBoth, 1, LEN, (30_000, 34_000));
        assert_eq!(p.of(LEN).cost[CopyMethod::CmaBoth as usize], 0);
    }

    #[test]
    fn one_slow_measurement_does_not_change_the_best_method() {
        let mut p = CostModel::default();
        run(&mut p, 100, &ALL, [5_000, 8_000, 9_000]);
        p.add_measurement(CopyMethod::Ring, 1, LEN, 100_000_000);
        assert_eq!(p.of(LEN).best(&ALL), CopyMethod::Ring);
    }
}
