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
mod tests;
