//! Schedules of groups of up to 17 ranks, carried out on arrays of bytes.

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
fn broadcast_reductions_and_gathers_give_the_results_of_the_man_page() {
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
fn scatter_reduce_scatter_and_alltoall_give_each_rank_its_part() {
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
