//! Plans of messages, and the tests that carry them out between several endpoints.

use super::*;
use crate::prov::efa::same_host::pattern;

/// An endpoint.
struct SimEndpoint {
    state: Rendezvous,
    rq: RecvQueue,
    world: SimPort,
}

/// A message, and the receive for it.
#[derive(Clone, Copy, Debug)]
struct MessagePlan {
    from: PeerId,
    to: PeerId,
    tag: Option<u64>,
    len: usize,
    /// Bytes that the receive has room for.
    room: usize,
    /// Sent, and received, by a call of the fast path.
    fast: [bool; 2],
    /// Memory of a device, of the sender and of the receiver.
    device: [bool; 2],
    /// The send ends when the message has been received.
    delivery: bool,
}

fn plans(rng: &mut Rng, sides: u64) -> Vec<MessagePlan> {
    let n = 1 + rng.below(10);
    (0..n)
        .map(|_| {
            let from = rng.below(sides);
            let len = FIRST
                + 1
                + match rng.below(8) {
                    0 => rng.below(1_500_000),
                    1 | 2 => rng.below(120_000),
                    3 => (SHM_EAGER_MAX - FIRST - 2) as u64 + rng.below(3),
                    _ => rng.below(20_000),
                } as usize;
            let device = [(); 2].map(|()| rng.below(16) == 0);
            let delivery = rng.below(3) == 0;
            let len = match delivery && rng.below(3) == 0 {
                true => rng.below(FIRST as u64 + 1) as usize,
                false => len,
            };
            MessagePlan {
                delivery,
                from: from as PeerId,
                to: ((from + 1 + rng.below(sides - 1)) % sides) as PeerId,
                tag: (rng.below(3) > 0).then(|| rng.below(2)),
                len,
                room: match rng.below(8) {
                    0 => rng.below(len as u64 + 1) as usize,
                    1 => len + 100,
                    _ => len,
                },
                fast: device.map(|d| !d && rng.below(2) == 0),
                device,
            }
        })
        .collect()
}

/// A simulated host: its processes and what they are to do.
struct Sim {
    host: SharedHost,
    sides: Vec<SimEndpoint>,
    plan: Vec<MessagePlan>,
    rng: Rng,
    /// Messages and receives that have begun.
    begun: HashSet<u32>,
    /// Surviving processes that were notified of a death.
    told: HashSet<PeerId>,
}

impl Sim {
    fn new(seed: u64, n: u64) -> Sim {
        let mut rng = Rng::new(seed);
        let refuses = if rng.below(3) == 0 { rng.below(60) } else { 0 };
        let plan = plans(&mut rng, n);
        let mut unreached = HashSet::new();
        if rng.below(4) == 0 {
            let pair = (rng.below(n) as PeerId, rng.below(n) as PeerId);
            if !plan.iter().any(|p| (p.from, p.to) == pair) {
                unreached.insert(pair);
            }
        }
        let host = Rc::new(RefCell::new(Host {
            rng: Rng::new(seed ^ 0x5eed),
            clock: 1_000_000,
            buffers: BTreeMap::new(),
            rings: HashMap::new(),
            room: (80 << 10) + rng.below(400 << 10) as usize,
            cts: VecDeque::new(),
            connected: HashSet::new(),
            unreached,
            splits: HashMap::new(),
            dead: HashSet::new(),
            refuses,
            failed: 0,
            copies: HashMap::new(),
            next_copy: 0,
            delivery: (0u32..)
                .zip(&plan)
                .filter_map(|(n, p)| p.delivery.then_some(n))
                .collect(),
        }));
        let side = |me| SimEndpoint {
            state: Rendezvous::default(),
            rq: RecvQueue::default(),
            world: SimPort {
                me,
                host: Rc::clone(&host),
                sent: BTreeMap::new(),
                received: BTreeMap::new(),
                round: 0,
            },
        };
        Sim {
            sides: (0..n as PeerId).map(side).collect(),
            host,
            plan,
            rng,
            begun: HashSet::new(),
            told: HashSet::new(),
        }
    }

    fn lend(&mut self, ctx: u32, owner: PeerId, bytes: &[u8], device: bool) -> UserMem {
        let (mem, fenced) = if device {
            (fake::alloc(bytes), None)
        } else {
            let mut f = FencedBuf::new(bytes.len());
            let mem = f.mem();
            mem.store(0, bytes);
            (mem, Some(f))
        };
        let b = SimBuffer {
            owner,
            mem,
            fenced,
            lent: true,
            left: Vec::new(),
        };
        self.host.borrow_mut().buffers.insert(ctx, b);
        mem
    }

    /// Whether an earlier message, or receive, of the same kind has not begun.
    fn must_wait(&self, n: usize, base: u32) -> bool {
        let p = self.plan[n];
        let same = |q: &MessagePlan| (q.from, q.to, q.tag) == (p.from, p.to, p.tag);
        let earlier = (0u32..).zip(&self.plan[..n]);
        earlier
            .filter(|(_, q)| same(q))
            .any(|(i, _)| !self.begun.contains(&(i + base)))
    }

    /// Sends message `n`, if there is room.
    fn send(&mut self, n: usize) {
        let (ctx, p) = (n as u32, self.plan[n]);
        if self.begun.contains(&ctx) || self.must_wait(n, 0) {
            return;
        }
        let mem = self.lend(ctx, p.from, &pattern(ctx.into(), p.len), p.device[0]);
        let words = (p.tag, ctx.is_multiple_of(3).then_some(u64::from(ctx)));
        let s = &mut self.sides[p.from as usize];
        let done = Completion {
            context: n,
            len: p.len,
            peer: p.to,
            ..Completion::default()
        };
        let mut sent = Verdict::Unsupported;
        if let Some(piece) = mem.one().filter(|_| p.fast[0] && !p.delivery) {
            sent = s.state.lend(&mut s.world, words, piece, done);
        }
        if sent == Verdict::Unsupported {
            let part = Completion::part(ctx, p.to, p.len);
            sent = s.state.send(&mut s.world, words, &mem, (part, p.delivery));
        }
        if matches!(sent, Verdict::Done | Verdict::Queued) {
            self.begun.insert(ctx);
        } else {
            assert!(!s.world.sent.contains_key(&ctx), "refused, and ended");
            self.host.borrow_mut().buffers.remove(&ctx);
        }
    }

    /// Posts the receive for message `n`.
    fn post(&mut self, n: usize) {
        let (ctx, p) = (n as u32 + RECV, self.plan[n]);
        if self.begun.contains(&ctx) || self.must_wait(n, RECV) {
            return;
        }
        self.begun.insert(ctx);
        let mem = self.lend(ctx, p.to, &vec![0; p.room], p.device[1]);
        let s = &mut self.sides[p.to as usize];
        if let Some(into) = mem.one().filter(|_| p.fast[1]) {
            let what = RecvEntry {
                context: ctx as usize,
                into,
                report: true,
                tagged: p.tag.is_some(),
            };
            let tag = p.tag.map(|t| (t, 0));
            if s.rq.post_entry(p.from, tag, what).is_some() {
                return;
            }
        }
        let a = RecvArgs {
            src: p.from,
            ctx,
            len: p.room as u64,
            tagged: p.tag.is_some(),
            tag: p.tag.unwrap_or(0),
            ignore: 0,
            multi: None,
        };
        if let Some(u) = s.rq.post(&a) {
            let place = Place::whole(ctx, a.len);
            let coming = u.coming.expect("a long message");
            s.state.placed(&coming, place, &mut s.rq, &mut s.world);
        }
    }

    /// Has an endpoint take in records, as a poll does.
    fn poll(&mut self, me: PeerId) {
        let most = self.rng.below(6);
        let fast = self.rng.below(2) == 0;
        let n = self.sides.len() as PeerId;
        for from in 0..n {
            for _ in 0..most {
                let mut h = self.host.borrow_mut();
                let ring = h.rings.get_mut(&(from, me));
                let Some(r) = ring.and_then(VecDeque::pop_front) else {
                    break;
                };
                drop(h);
                let s = &mut self.sides[me as usize];
                if fast && take_fast(s, from, &r) {
                    continue;
                }
                fetch_batch(s);
                if s.state.handle_record(from, &r, &mut s.rq, &mut s.world) == Flow::Deferred {
                    let mut h = self.host.borrow_mut();
                    if let Some(ring) = h.rings.get_mut(&(from, me)) {
                        ring.push_front(r);
                    }
                    break;
                }
            }
        }
        let s = &mut self.sides[me as usize];
        fetch_batch(s);
        let mut h = self.host.borrow_mut();
        let (ours, others) = core::mem::take(&mut h.cts)
            .into_iter()
            .partition(|(_, to, ..)| *to == me);
        h.cts = others;
        drop(h);
        for (from, _, number, there) in ours {
            s.state.handle_cts(from, number, there, &mut s.world);
        }
        if s.state.load() > 0 {
            s.state.pump(&mut s.rq, &mut s.world);
        }
    }

    /// One step of a random process.
    fn step(&mut self) {
        let n = self.rng.below(self.plan.len() as u64) as usize;
        let dead = self.host.borrow().dead.clone();
        let MessagePlan { from, to, .. } = self.plan[n];
        let known_dead = dead.contains(&to) && self.told.contains(&from);
        match self.rng.below(3) {
            0 if !dead.contains(&from) && !known_dead => self.send(n),
            1 if !dead.contains(&to) => self.post(n),
            _ => {
                let me = self.rng.below(self.sides.len() as u64) as PeerId;
                if !dead.contains(&me) {
                    self.poll(me);
                }
            }
        }
    }

    fn idle(&self, side: &SimEndpoint) -> bool {
        let s = &side.state;
        s.sending.is_empty()
            && s.receiving.is_empty()
            && s.load() == 0
            && s.eager_receives.is_empty()
    }

    /// Notifies the survivors that have handled the last records of a dead process.
    fn tell_of(&mut self, dead: PeerId) {
        let why = Failure {
            errno: FI_ECONNABORTED,
            status: 13,
        };
        for me in 0..self.sides.len() as PeerId {
            let mut h = self.host.borrow_mut();
            let left = h.rings.get(&(dead, me)).is_some_and(|r| !r.is_empty());
            if me == dead || left || self.told.contains(&me) {
                continue;
            }
            self.told.insert(me);
            h.rings.remove(&(me, dead));
            h.cts.retain(|(from, to, ..)| *from != dead && *to != dead);
            h.splits
                .retain(|(owner, helper, _), _| *owner != me || *helper != dead);
            drop(h);
            let s = &mut self.sides[me as usize];
            s.state.peer_down(dead, why, &mut s.rq, &mut s.world);
        }
    }

    /// Checks message `n`, whose sender and receiver have both survived.
    fn check(&self, seed: u64, n: usize) {
        let (ctx, p) = (n as u32, self.plan[n]);
        let (from, to) = (&self.sides[p.from as usize], &self.sides[p.to as usize]);
        let h = self.host.borrow();
        let sent = from.world.sent[&ctx];
        let (msg, result) = &to.world.received[&(ctx + RECV)];
        let b = &h.buffers[&(ctx + RECV)];
        assert_eq!(sent, Ok(()), "seed {seed} message {n}: {p:?}");
        let got = p.len.min(p.room);
        let whole = p.room >= p.len;
        assert_eq!(result.is_ok(), whole, "seed {seed} message {n}: {result:?}");
        let head = (msg.len as usize, msg.cq_data, msg.from);
        let data = ctx.is_multiple_of(3).then_some(u64::from(ctx));
        assert_eq!(head, (p.len, data, p.from), "seed {seed} message {n}");
        let same = b.left[..got] == pattern(ctx.into(), p.len)[..got];
        assert!(same, "seed {seed} message {n}: {p:?}");
    }

    /// Checks that no memory changed while it was not lent.
    fn check_memory(&self, seed: u64) {
        for (ctx, b) in &self.host.borrow().buffers {
            if let Some(f) = &b.fenced {
                f.check("a buffer");
            }
            let same = b.lent || b.bytes() == b.left;
            assert!(same, "seed {seed}: {ctx} was touched after its end");
        }
    }
}

/// Handles a record as the fast path does; `false` when the general path has to handle it.
fn take_fast(s: &mut SimEndpoint, from: PeerId, r: &SimRecord) -> bool {
    match r.what.kind {
        kind::RTS => {
            let Some(m) = announced(r) else { return false };
            if !s.state.gathers_more(from, m.len) {
                fetch_batch(s);
            }
            s.state.gather(&s.world, from, &m, &mut s.rq)
        }
        kind::FIN => {
            let done = s.state.ended(from, r);
            if let Some(done) = &done {
                s.world.sent(done, Ok(()));
            }
            done.is_some()
        }
        _ => false,
    }
}

/// Fetches the batch of long messages.
fn fetch_batch(s: &mut SimEndpoint) {
    if !s.state.gathers() {
        return;
    }
    let mut ended = Vec::new();
    s.state
        .fetch_batch(&mut s.world, |from, r, len, (tag, cq_data)| {
            let msg = Received {
                from,
                len: len as u64,
                tag: tag.unwrap_or(0),
                cq_data,
                base: 0,
                room: r.into.len() as u64,
                stays: false,
            };
            ended.push((r.context as u32, msg));
        });
    for (ctx, msg) in ended {
        s.world.received(ctx, msg, Ok(()));
    }
}

#[test]
fn every_message_arrives_once_and_whole() {
    for seed in 0..sim_seeds(1500) {
        let sides = 2 + seed % 2;
        let mut sim = Sim::new(seed, sides);
        let all = 2 * sim.plan.len();
        let mut steps = 0;
        let ended = |s: &SimEndpoint| s.world.sent.len() + s.world.received.len();
        let over = |s: &Sim| {
            let n: usize = s.sides.iter().map(ended).sum();
            n == all && s.sides.iter().all(|side| s.idle(side))
        };
        while !over(&sim) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} stuck: {:?}", sim.plan);
            sim.step();
        }
        for n in 0..sim.plan.len() {
            sim.check(seed, n);
        }
        sim.check_memory(seed);
        let h = sim.host.borrow();
        assert!(h.splits.is_empty() && h.copies.is_empty(), "seed {seed}");
        let unexpected = sim.sides.iter().map(|s| s.rq.unexpected() + s.rq.posted());
        assert_eq!(unexpected.sum::<usize>(), 0, "seed {seed}");
    }
}

/// Three processes; the last one dies at a random step.
#[test]
fn a_process_that_dies_ends_what_needed_it() {
    for seed in 0..sim_seeds(1500) {
        let mut sim = Sim::new(seed ^ 0xdead, 3);
        let (dead, death) = (2, sim.rng.below(150));
        let owned = |p: &MessagePlan| p.from != dead && p.to != dead;
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} stuck: {:?}", sim.plan);
            if steps == death + 1 {
                sim.host.borrow_mut().dead.insert(dead);
            }
            sim.step();
            if steps > death {
                sim.tell_of(dead);
            }
            let begun = (0u32..)
                .zip(&sim.plan)
                .all(|(i, p)| !owned(p) || [i, i + RECV].iter().all(|ctx| sim.begun.contains(ctx)));
            let h = sim.host.borrow();
            let ended = h.buffers.iter().all(|(ctx, b)| {
                let p = sim.plan[(ctx % RECV) as usize];
                // A receive stays posted when its sender died before it sent.
                let waits = *ctx >= RECV && p.from == dead;
                b.owner == dead || !b.lent || waits
            });
            let quiet = sim.sides.iter().take(2).all(|s| s.state.load() == 0);
            if begun && ended && quiet && sim.told.len() == 2 {
                break;
            }
        }
        for n in 0..sim.plan.len() {
            if owned(&sim.plan[n]) {
                sim.check(seed, n);
            }
        }
        sim.check_memory(seed);
        for s in sim.sides.iter().take(2) {
            assert!(
                s.state.sending.is_empty() && s.state.load() == 0,
                "seed {seed}"
            );
            assert!(s.state.receiving.iter().all(|(_, i)| i.from == dead));
        }
    }
}

/// A host of `sides` processes, the first of which has sent the second a message of `len` bytes,
/// and where every memory can be reached.
fn one_message(sides: u64, len: usize) -> Sim {
    let mut sim = Sim::new(7, sides);
    sim.plan = vec![MessagePlan {
        from: 0,
        to: 1,
        tag: None,
        len,
        room: len,
        fast: [false; 2],
        device: [false; 2],
        delivery: false,
    }];
    sim.host.borrow_mut().refuses = 0;
    sim.host.borrow_mut().unreached.clear();
    sim.send(0);
    sim
}

/// Polls until that message is received, as it was sent; `each` acts on its receiver in between.
fn until_received(sim: &mut Sim, mut each: impl FnMut(&mut SimEndpoint)) {
    let mut steps = 0;
    while !sim.sides.iter().all(|s| sim.idle(s)) || sim.sides[1].world.received.is_empty() {
        steps += 1;
        assert!(steps < 10_000);
        sim.poll(0);
        sim.poll(1);
        each(&mut sim.sides[1]);
    }
    sim.check(7, 0);
}

#[test]
fn numbers_of_peers_are_checked() {
    // A FIN, CTS or DATA from a peer that has no part in the message changes nothing.
    let mut sim = one_message(3, 300_000);
    for kind in [
        kind::FIN,
        kind::CTS,
        kind::DATA,
        kind::SPLIT_COPY,
        kind::SPLIT_DONE,
    ] {
        let r = SimRecord {
            host: Rc::clone(&sim.host),
            from: 2,
            to: 0,
            what: plain(kind),
            body: vec![0; 40],
        };
        for me in [0, 1] {
            let s = &mut sim.sides[me];
            s.state.handle_record(2, &r, &mut s.rq, &mut s.world);
        }
    }
    assert!(sim.sides[0].world.sent.is_empty());
    sim.post(0);
    until_received(&mut sim, |_| {});
    assert!(sim.begun.contains(&RECV) && NO_CTX > RECV);
}

#[test]
fn unrequested_bytes_are_dropped() {
    // The sender writes bytes of a message that is being copied from its memory.
    let mut sim = one_message(2, 1 << 20);
    sim.post(0);
    let unasked = SimRecord {
        host: Rc::clone(&sim.host),
        from: 0,
        to: 1,
        what: plain(kind::DATA),
        body: vec![0; 5000],
    };
    until_received(&mut sim, |s| {
        s.state.handle_record(0, &unasked, &mut s.rq, &mut s.world);
    });
}
