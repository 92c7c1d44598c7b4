//! Collective operations as schedules of point-to-point steps (fi_collective(3)).
//!
//! A [`Schedule`] lists the steps of one rank of a group, in order, on three memory areas: the
//! caller's input, the caller's result, and scratch memory. Sends and receives start in the order
//! of the list; [`Step::Wait`] ends a round. Messages of one operation between two ranks arrive in
//! the order in which they are sent, so they carry no numbers.
//!
//! Short data uses trees and recursive doubling, which have the fewest rounds; long data uses a
//! ring, which moves the fewest bytes. Partial results are combined in an order that depends on
//! ranks alone, and each element's total is computed once or by the same expression, so that all
//! ranks get identical bits.

/// Smallest data that uses the ring algorithms, bytes.
const LONG: usize = 64 << 10;

/// Memory a step works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    Input,
    Result,
    Scratch,
}

/// `len` bytes of an area, from `at` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub area: Area,
    pub at: usize,
    pub len: usize,
}

impl Span {
    fn new(area: Area, at: usize, len: usize) -> Span {
        Span { area, at, len }
    }
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Send {
        to: usize,
        from: Span,
    },
    Recv {
        from: usize,
        into: Span,
    },
    /// All sends and receives so far have ended.
    Wait,
    Copy {
        from: Span,
        into: Span,
    },
    /// `into` becomes `low` combined with `high`, element by element.
    Combine {
        low: Span,
        high: Span,
        into: Span,
    },
}

/// What one rank does; the end is a [`Step::Wait`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    pub steps: Vec<Step>,
    /// Bytes of scratch memory.
    pub scratch: usize,
}

/// Place in a group: `me` of `n` ranks.
#[derive(Clone, Copy, Debug)]
pub struct Rank {
    pub n: usize,
    pub me: usize,
}

impl Rank {
    fn plus(&self, k: usize) -> usize {
        (self.me + k) % self.n
    }

    fn minus(&self, k: usize) -> usize {
        (self.me + self.n - k % self.n) % self.n
    }

    /// Distance from `root`, upwards.
    fn from(&self, root: usize) -> usize {
        (self.me + self.n - root) % self.n
    }
}

/// An array of `count` elements of `size` bytes, cut into as many pieces as there are ranks.
#[derive(Clone, Copy)]
struct Pieces {
    n: usize,
    count: usize,
    size: usize,
}

impl Pieces {
    fn at(&self, i: usize) -> usize {
        // Wide, for lengths near the end of the address space.
        (self.count as u128 * i as u128 / self.n as u128) as usize * self.size
    }

    fn of(&self, area: Area, i: usize) -> Span {
        Span::new(area, self.at(i), self.at(i + 1) - self.at(i))
    }

    fn longest(&self) -> usize {
        self.count.div_ceil(self.n) * self.size
    }
}

impl Schedule {
    fn send(&mut self, to: usize, from: Span) {
        self.steps.push(Step::Send { to, from });
    }

    fn recv(&mut self, from: usize, into: Span) {
        self.steps.push(Step::Recv { from, into });
    }

    fn wait(&mut self) {
        self.steps.push(Step::Wait);
    }

    fn copy(&mut self, from: Span, into: Span) {
        if from.len > 0 && from != into {
            self.steps.push(Step::Copy { from, into });
        }
    }

    fn combine(&mut self, low: Span, high: Span, into: Span) {
        self.steps.push(Step::Combine { low, high, into });
    }

    /// Ring allgather: piece `i` travels once around the ring, starting at rank `i`.
    fn ring_gather(&mut self, r: Rank, piece: impl Fn(usize) -> Span) {
        for k in 0..r.n - 1 {
            self.recv(r.minus(1), piece(r.minus(k + 1)));
            self.send(r.plus(1), piece(r.minus(k)));
            self.wait();
        }
    }

    /// Ring reduce-scatter: the ranks' pieces `i` are combined along the ring, and the total ends
    /// at rank `i`.
    fn ring_combine(&mut self, r: Rank, piece: impl Fn(usize) -> Span, tmp: usize) {
        for k in 0..r.n - 1 {
            let mine = piece(r.minus(k + 2));
            let got = Span::new(Area::Scratch, tmp, mine.len);
            self.recv(r.minus(1), got);
            self.send(r.plus(1), piece(r.minus(k + 1)));
            self.wait();
            self.combine(got, mine, mine);
        }
    }

    /// No rank finishes before all ranks have started (dissemination barrier).
    pub fn barrier(r: Rank) -> Schedule {
        let mut s = Schedule::default();
        let nothing = Span::new(Area::Scratch, 0, 0);
        let mut k = 1;
        while k < r.n {
            s.recv(r.minus(k), nothing);
            s.send(r.plus(k), nothing);
            s.wait();
            k *= 2;
        }
        s
    }

    /// Copies the input of `root` to all ranks. [`Area::Input`] is the only caller's buffer.
    pub fn broadcast(r: Rank, root: usize, count: usize, size: usize) -> Schedule {
        let mut s = Schedule::default();
        let whole = Span::new(Area::Input, 0, count * size);
        if whole.len < LONG || r.n == 2 {
            s.tree_down(r, root, |_| whole);
        } else {
            // Scatter the pieces along the tree, then gather all of them around the ring.
            let p = Pieces {
                n: r.n,
                count,
                size,
            };
            let rel = Rank {
                n: r.n,
                me: r.from(root),
            };
            s.tree_down(r, root, |(first, ranks)| {
                Span::new(Area::Input, p.at(first), p.at(first + ranks) - p.at(first))
            });
            let ring = |i: usize| p.of(Area::Input, i);
            for k in 0..r.n - 1 {
                s.recv(r.minus(1), ring(rel.minus(k + 1)));
                s.send(r.plus(1), ring(rel.minus(k)));
                s.wait();
            }
        }
        s
    }

    /// Sends data along a binomial tree from `root`. `what` returns the data for a subtree, which
    /// is given by the distance of its first rank from the root and its number of ranks.
    fn tree_down(&mut self, r: Rank, root: usize, what: impl Fn((usize, usize)) -> Span) {
        let rel = r.from(root);
        let mut mask = 1;
        while mask < r.n && rel & mask == 0 {
            mask *= 2;
        }
        if rel != 0 {
            let parent = (rel - mask + root) % r.n;
            self.recv(parent, what((rel, mask.min(r.n - rel))));
            self.wait();
        }
        while mask > 1 {
            mask /= 2;
            let child = rel + mask;
            if child < r.n {
                self.send((child + root) % r.n, what((child, mask.min(r.n - child))));
            }
        }
    }

    /// Combines the inputs of all ranks into the result of every rank.
    pub fn allreduce(r: Rank, count: usize, size: usize) -> Schedule {
        let mut s = Schedule::default();
        let len = count * size;
        s.copy(
            Span::new(Area::Input, 0, len),
            Span::new(Area::Result, 0, len),
        );
        if len < LONG || count < r.n {
            s.doubling(r, len);
            return s;
        }
        let p = Pieces {
            n: r.n,
            count,
            size,
        };
        s.scratch = p.longest();
        s.ring_combine(r, |i| p.of(Area::Result, i), 0);
        s.ring_gather(r, |i| p.of(Area::Result, i));
        s
    }

    /// Allreduce by recursive doubling. With `n` not a power of two, the first `2 * extra` ranks
    /// form pairs, and the even rank of each pair first sends its data to the odd one.
    fn doubling(&mut self, r: Rank, len: usize) {
        let (mine, got) = (
            Span::new(Area::Result, 0, len),
            Span::new(Area::Scratch, 0, len),
        );
        self.scratch = len;
        let pof2 = 1 << r.n.ilog2();
        let extra = r.n - pof2;
        let lends = r.me < 2 * extra;
        if lends && r.me.is_multiple_of(2) {
            self.send(r.me + 1, mine);
            self.wait();
            self.recv(r.me + 1, mine);
            return;
        }
        let id = if lends {
            self.recv(r.me - 1, got);
            self.wait();
            self.combine(got, mine, mine);
            r.me / 2
        } else {
            r.me - extra
        };
        let mut mask = 1;
        while mask < pof2 {
            let other = id ^ mask;
            let peer = if other < extra {
                2 * other + 1
            } else {
                other + extra
            };
            self.recv(peer, got);
            self.send(peer, mine);
            self.wait();
            if other < id {
                self.combine(got, mine, mine);
            } else {
                self.combine(mine, got, mine);
            }
            mask *= 2;
        }
        if lends {
            self.send(r.me - 1, mine);
        }
    }

    /// Combines the inputs of all ranks into the result of `root`.
    pub fn reduce(r: Rank, root: usize, count: usize, size: usize) -> Schedule {
        let mut s = Schedule::default();
        let len = count * size;
        let rel = r.from(root);
        let area = if rel == 0 {
            Area::Result
        } else {
            Area::Scratch
        };
        let (acc, got) = (Span::new(area, 0, len), Span::new(Area::Scratch, len, len));
        s.scratch = 2 * len;
        s.copy(Span::new(Area::Input, 0, len), acc);
        let mut mask = 1;
        while mask < r.n {
            if rel & mask != 0 {
                s.send((rel - mask + root) % r.n, acc);
                break;
            }
            if rel + mask < r.n {
                s.recv((rel + mask + root) % r.n, got);
                s.wait();
                s.combine(acc, got, acc);
            }
            mask *= 2;
        }
        s
    }

    /// Concatenates the inputs of all ranks, `len` bytes each, into the result of every rank.
    pub fn allgather(r: Rank, len: usize) -> Schedule {
        let mut s = Schedule::default();
        let slot = |i| Span::new(Area::Result, i * len, len);
        s.copy(Span::new(Area::Input, 0, len), slot(r.me));
        s.ring_gather(r, slot);
        s
    }

    /// Sends part `i` of each rank's input, `len` bytes each, to rank `i`, whose result
    /// concatenates them.
    pub fn alltoall(r: Rank, len: usize) -> Schedule {
        let mut s = Schedule::default();
        let part = |area, i| Span::new(area, i * len, len);
        s.copy(part(Area::Input, r.me), part(Area::Result, r.me));
        for k in 1..r.n {
            s.recv(r.minus(k), part(Area::Result, r.minus(k)));
            s.send(r.plus(k), part(Area::Input, r.plus(k)));
            s.wait();
        }
        s
    }

    /// Combines the inputs of all ranks, `n * count` elements each; rank `i` gets part `i` of the
    /// total.
    pub fn reduce_scatter(r: Rank, count: usize, size: usize) -> Schedule {
        let mut s = Schedule::default();
        let len = count * size;
        let slot = |i| Span::new(Area::Scratch, i * len, len);
        let all = r.n * len;
        s.scratch = all + len;
        s.copy(
            Span::new(Area::Input, 0, all),
            Span::new(Area::Scratch, 0, all),
        );
        s.ring_combine(r, slot, all);
        s.copy(slot(r.me), Span::new(Area::Result, 0, len));
        s
    }

    /// Part `i` of the input of `root`, `len` bytes each, becomes the result of rank `i`.
    pub fn scatter(r: Rank, root: usize, len: usize) -> Schedule {
        let mut s = Schedule::default();
        let rel = r.from(root);
        let first = move |(child, ranks): (usize, usize)| {
            Span::new(Area::Scratch, (child - rel) * len, ranks * len)
        };
        if rel == 0 {
            s.rotate(r, root, len, Area::Input, Area::Scratch);
        }
        s.scratch = r.n * len;
        s.tree_down(r, root, first);
        s.copy(first((rel, 1)), Span::new(Area::Result, 0, len));
        s
    }

    /// Concatenates the inputs of all ranks, `len` bytes each, into the result of `root`.
    pub fn gather(r: Rank, root: usize, len: usize) -> Schedule {
        let mut s = Schedule::default();
        let rel = r.from(root);
        s.scratch = r.n * len;
        s.copy(
            Span::new(Area::Input, 0, len),
            Span::new(Area::Scratch, 0, len),
        );
        let mut mask = 1;
        while mask < r.n && rel & mask == 0 {
            let child = rel + mask;
            if child < r.n {
                let ranks = mask.min(r.n - child);
                s.recv(
                    (child + root) % r.n,
                    Span::new(Area::Scratch, mask * len, ranks * len),
                );
            }
            mask *= 2;
        }
        s.wait();
        if rel != 0 {
            let ranks = mask.min(r.n - rel);
            s.send(
                (rel - mask + root) % r.n,
                Span::new(Area::Scratch, 0, ranks * len),
            );
        } else {
            s.rotate(r, root, len, Area::Scratch, Area::Result);
        }
        s
    }

    /// Copies an array of parts between the order of ranks and the order that starts with `root`.
    fn rotate(&mut self, r: Rank, root: usize, len: usize, from: Area, into: Area) {
        let (low, high) = (root * len, (r.n - root) * len);
        if from == Area::Scratch {
            self.copy(Span::new(from, high, low), Span::new(into, 0, low));
            self.copy(Span::new(from, 0, high), Span::new(into, low, high));
        } else {
            self.copy(Span::new(from, low, high), Span::new(into, 0, high));
            self.copy(Span::new(from, 0, low), Span::new(into, high, low));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, VecDeque};

    /// A group whose ranks run their schedules on arrays of bytes, combined by adding.
    struct SimGroup<'a> {
        scheds: &'a [Schedule],
        /// Input, result and scratch of each rank.
        areas: Vec<[Vec<u8>; 3]>,
        /// Messages under way, by sender and receiver.
        wires: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
        /// The next step of each rank.
        at: Vec<usize>,
        /// Receives of each rank that wait for their message: its sender, and where it goes.
        posted: Vec<Vec<(usize, Span)>>,
    }

    impl SimGroup<'_> {
        fn new<'a>(scheds: &'a [Schedule], inputs: &mut [Vec<u8>], result: usize) -> SimGroup<'a> {
            let areas = inputs
                .iter_mut()
                .zip(scheds)
                .map(|(input, s)| [core::mem::take(input), vec![0; result], vec![0; s.scratch]]);
            SimGroup {
                scheds,
                areas: areas.collect(),
                wires: HashMap::new(),
                at: vec![0; scheds.len()],
                posted: vec![Vec::new(); scheds.len()],
            }
        }

        fn load(&self, rank: usize, s: Span) -> Vec<u8> {
            self.areas[rank][s.area as usize][s.at..s.at + s.len].to_vec()
        }

        fn store(&mut self, rank: usize, s: Span, b: &[u8]) {
            self.areas[rank][s.area as usize][s.at..s.at + s.len].copy_from_slice(b);
        }

        /// Takes in messages for which a receive is posted; whether there were any.
        fn receive(&mut self, rank: usize) -> bool {
            let posted = core::mem::take(&mut self.posted[rank]);
            let before = posted.len();
            for (from, into) in posted {
                let wire = self.wires.get_mut(&(from, rank));
                match wire.and_then(VecDeque::pop_front) {
                    Some(b) => {
                        assert_eq!(b.len(), into.len, "rank {rank} from {from}");
                        self.store(rank, into, &b);
                    }
                    None => self.posted[rank].push((from, into)),
                }
            }
            self.posted[rank].len() < before
        }

        /// Executes the next step of a rank; `false` when there is none, or it has to wait.
        fn step(&mut self, rank: usize) -> bool {
            match self.scheds[rank].steps.get(self.at[rank]) {
                None => return false,
                Some(Step::Wait) if !self.posted[rank].is_empty() => return false,
                Some(Step::Wait) => {}
                Some(Step::Send { to, from }) => {
                    let b = self.load(rank, *from);
                    self.wires.entry((rank, *to)).or_default().push_back(b);
                }
                Some(Step::Recv { from, into }) => self.posted[rank].push((*from, *into)),
                Some(Step::Copy { from, into }) => {
                    let b = self.load(rank, *from);
                    self.store(rank, *into, &b);
                }
                Some(Step::Combine { low, high, into }) => {
                    let sum = added(&[self.load(rank, *low), self.load(rank, *high)]);
                    self.store(rank, *into, &sum);
                }
            }
            self.at[rank] += 1;
            true
        }

        /// The results, which are in the inputs where there is no area for them.
        fn results(self) -> Vec<Vec<u8>> {
            let n = self.scheds.len();
            for i in 0..n {
                let steps = self.scheds[i].steps.len();
                assert_eq!(self.at[i], steps, "rank {i} of {n} is stuck");
                assert!(
                    self.posted[i].is_empty(),
                    "rank {i} of {n} waits for a message"
                );
            }
            assert!(
                self.wires.values().all(VecDeque::is_empty),
                "a message without a receive"
            );
            let areas = self.areas.into_iter();
            let of = |[input, result, _]: [Vec<u8>; 3]| match result.is_empty() {
                true => input,
                false => result,
            };
            areas.map(of).collect()
        }
    }

    /// Runs the schedules of a group, and returns the results. Ranks take turns in a given order,
    /// so that early and late ones exist.
    fn run(
        scheds: &[Schedule],
        inputs: &mut [Vec<u8>],
        result: usize,
        order: &[usize],
    ) -> Vec<Vec<u8>> {
        let mut group = SimGroup::new(scheds, inputs, result);
        let mut moved = true;
        while moved {
            moved = false;
            for &rank in order {
                moved |= group.receive(rank);
                while group.step(rank) {
                    moved = true;
                    group.receive(rank);
                }
            }
        }
        group.results()
    }

    fn data(n: usize, len: usize) -> Vec<Vec<u8>> {
        (0..n)
            .map(|i| (0..len).map(|b| (i * 37 + b * 11 + 1) as u8).collect())
            .collect()
    }

    fn added(inputs: &[Vec<u8>]) -> Vec<u8> {
        let first = vec![0u8; inputs[0].len()];
        inputs.iter().fold(first, |a, v| {
            a.iter().zip(v).map(|(a, b)| a.wrapping_add(*b)).collect()
        })
    }

    /// Every group of up to 17 ranks, from every root, ranks early and late.
    fn all(mut f: impl FnMut(usize, usize, &[usize])) {
        for n in 1..=17 {
            let up: Vec<usize> = (0..n).collect();
            let down: Vec<usize> = (0..n).rev().collect();
            for root in 0..n {
                f(n, root, if root % 2 == 0 { &up } else { &down });
            }
        }
    }

    fn each(n: usize, f: impl Fn(Rank) -> Schedule) -> Vec<Schedule> {
        (0..n).map(|me| f(Rank { n, me })).collect()
    }

    #[test]
    fn results_are_those_of_the_man_page() {
        for len in [0, 1, 24, 2 * LONG] {
            all(|n, root, order| {
                if len > 24 && root > 1 {
                    return;
                }
                let inputs = data(n, len);
                let got = run(
                    &each(n, |r| Schedule::broadcast(r, root, len, 1)),
                    &mut inputs.clone(),
                    0,
                    order,
                );
                assert!(
                    got.iter().all(|g| *g == inputs[root]),
                    "broadcast {n} {root} {len}"
                );

                let sum = added(&inputs);
                let got = run(
                    &each(n, |r| Schedule::allreduce(r, len, 1)),
                    &mut inputs.clone(),
                    len,
                    order,
                );
                assert!(
                    len == 0 || got.iter().all(|g| *g == sum),
                    "allreduce {n} {len}"
                );
                let got = run(
                    &each(n, |r| Schedule::reduce(r, root, len, 1)),
                    &mut inputs.clone(),
                    len,
                    order,
                );
                assert_eq!(
                    got[root].get(..len).unwrap(),
                    sum,
                    "reduce {n} {root} {len}"
                );

                let joined = inputs.concat();
                let got = run(
                    &each(n, |r| Schedule::allgather(r, len)),
                    &mut inputs.clone(),
                    n * len,
                    order,
                );
                assert!(
                    len == 0 || got.iter().all(|g| *g == joined),
                    "allgather {n} {len}"
                );
                let got = run(
                    &each(n, |r| Schedule::gather(r, root, len)),
                    &mut inputs.clone(),
                    n * len,
                    order,
                );
                assert!(len == 0 || got[root] == joined, "gather {n} {root} {len}");
            });
        }
    }

    #[test]
    fn slices_go_to_their_ranks() {
        for len in [1, 5] {
            all(|n, root, order| {
                let inputs = data(n, n * len);
                let part = |v: &[u8], i: usize| v[i * len..(i + 1) * len].to_vec();
                let got = run(
                    &each(n, |r| Schedule::scatter(r, root, len)),
                    &mut inputs.clone(),
                    len,
                    order,
                );
                let want: Vec<_> = (0..n).map(|i| part(&inputs[root], i)).collect();
                assert_eq!(got, want, "scatter {n} {root}");

                let sum = added(&inputs);
                let got = run(
                    &each(n, |r| Schedule::reduce_scatter(r, len, 1)),
                    &mut inputs.clone(),
                    len,
                    order,
                );
                let want: Vec<_> = (0..n).map(|i| part(&sum, i)).collect();
                assert_eq!(got, want, "reduce_scatter {n}");

                let got = run(
                    &each(n, |r| Schedule::alltoall(r, len)),
                    &mut inputs.clone(),
                    n * len,
                    order,
                );
                let want: Vec<Vec<u8>> = (0..n)
                    .map(|i| inputs.iter().flat_map(|v| part(v, i)).collect())
                    .collect();
                assert_eq!(got, want, "alltoall {n}");
            });
        }
    }

    #[test]
    fn no_rank_leaves_a_barrier_before_all_have_entered() {
        for n in 1..=17 {
            // Run all ranks except `last`: no rank may reach its end.
            for last in 0..n {
                let scheds = each(n, Schedule::barrier);
                let mut heard = vec![0; n];
                let mut done = vec![false; n];
                let mut sent: HashMap<(usize, usize), usize> = HashMap::new();
                let mut at = vec![0; n];
                let mut owed: Vec<Vec<usize>> = vec![Vec::new(); n];
                for _ in 0..10 * n {
                    for i in (0..n).filter(|i| *i != last) {
                        while let Some(step) = scheds[i].steps.get(at[i]) {
                            match step {
                                Step::Send { to, .. } => *sent.entry((i, *to)).or_default() += 1,
                                Step::Recv { from, .. } => owed[i].push(*from),
                                _ => {
                                    owed[i].retain(|f| match sent.get_mut(&(*f, i)) {
                                        Some(c) if *c > 0 => {
                                            *c -= 1;
                                            false
                                        }
                                        _ => true,
                                    });
                                    if !owed[i].is_empty() {
                                        break;
                                    }
                                    heard[i] += 1;
                                }
                            }
                            at[i] += 1;
                        }
                        done[i] = at[i] == scheds[i].steps.len();
                    }
                }
                assert!(
                    n == 1 || done.iter().all(|d| !d),
                    "{n} ranks, {last} late: {heard:?}"
                );
            }
        }
    }
}
