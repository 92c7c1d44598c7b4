//! Plans of accesses, and the tests that carry them out between several endpoints.

use super::*;

/// An endpoint.
struct RmaSimEndpoint {
    state: ShmRma,
    port: RmaSimPort,
}

fn plans(rng: &mut Rng, sides: u64) -> Vec<AccessPlan> {
    let n = 1 + rng.below(12);
    (0..n)
        .map(|_| {
            let from = rng.below(sides);
            let write = rng.below(2) == 0;
            let len = 1 + match rng.below(8) {
                0 => rng.below(1_500_000),
                1 => POLL_BUDGET as u64 - 1 + rng.below(3),
                2 | 3 => rng.below(150_000),
                _ => rng.below(10_000),
            } as usize;
            let inject = write && len <= 4096 && rng.below(3) == 0;
            let cq_data = (write && rng.below(4) == 0).then(|| rng.below(1 << 32));
            AccessPlan {
                from: from as PeerId,
                to: ((from + 1 + rng.below(sides - 1)) % sides) as PeerId,
                write,
                len,
                offset: rng.below(3) as usize * 8,
                region: match rng.below(12) {
                    0 => SimRegion::Denies,
                    1 => SimRegion::Hidden,
                    2 | 3 => SimRegion::Device,
                    _ => SimRegion::Permits,
                },
                cq_data,
                inject,
                split: !inject && rng.below(5) == 0,
                counted: rng.below(5) == 0,
                plain: !inject && cq_data.is_none() && rng.below(3) == 0,
            }
        })
        .collect()
}

/// A simulated host: its processes and what they are to do.
struct RmaSim {
    host: SharedRmaHost,
    sides: Vec<RmaSimEndpoint>,
    plan: Vec<AccessPlan>,
    rng: Rng,
    begun: HashSet<u64>,
}

impl RmaSim {
    fn new(seed: u64, n: u64) -> RmaSim {
        let mut rng = Rng::new(seed);
        let plan = plans(&mut rng, n);
        let mut percent = |most| match rng.below(3) {
            0 => rng.below(most),
            _ => 0,
        };
        let (refuses, full) = (percent(60), percent(70));
        let listeners = (0..n as PeerId).filter(|_| rng.below(5) == 0).collect();
        let host = Rc::new(RefCell::new(RmaHost {
            rng: Rng::new(seed ^ 0x5eed),
            clock: 1_000_000,
            plan: plan.clone(),
            local: BTreeMap::new(),
            remote: BTreeMap::new(),
            left: BTreeMap::new(),
            rings: HashMap::new(),
            events: HashMap::new(),
            listeners,
            dead: HashSet::new(),
            splits: Vec::new(),
            helps: VecDeque::new(),
            held: Vec::new(),
            helped: 0,
            refuses,
            full,
            copied: 0,
            by_device: 0,
            device_copies: HashMap::new(),
            ended: BTreeMap::new(),
        }));
        for (key, p) in (0u64..).zip(&plan) {
            let mut region = FencedBuf::new(p.offset + p.len + 8);
            if !p.write {
                let mem = region.mem().part(p.offset, p.len);
                mem.store(0, &pattern(key, p.len));
            }
            host.borrow_mut().remote.insert(key, region);
        }
        // In half of the runs both sides copy very long accesses from the first one on.
        let state = || {
            let mut state = ShmRma::default();
            if seed.is_multiple_of(2) {
                let costs = &mut state.costs;
                (0..9).for_each(|_| costs.count_use(1 << 20));
                costs.set_cost(CopyMethod::CmaBoth, 1 << 20, 1);
            }
            state
        };
        let side = |me| RmaSimEndpoint {
            state: state(),
            port: RmaSimPort {
                me,
                host: Rc::clone(&host),
                ops: BTreeMap::new(),
                next_op: 0,
                retries: Vec::new(),
            },
        };
        RmaSim {
            sides: (0..n as PeerId).map(side).collect(),
            host,
            plan,
            rng,
            begun: HashSet::new(),
        }
    }

    /// Begins access `key`, if there is room.
    fn begin(&mut self, key: u64) {
        let p = self.plan[key as usize];
        if self.begun.contains(&key) {
            return;
        }
        let mut h = self.host.borrow_mut();
        let mut mem = FencedBuf::new(p.len);
        if p.write {
            mem.mem().store(0, &pattern(key, p.len));
        }
        let piece = mem.piece();
        h.local.insert(key, (mem, true));
        let addr = h.remote[&key].addr() + p.offset as u64;
        h.copied = 0;
        drop(h);
        let half = p.len / 2;
        let halves = [piece.part(0, half), piece.part(half, usize::MAX)];
        let split = UserMem::from(halves[0]).join(&halves[1].into());
        let data = match (p.inject, p.split && half > 0) {
            (true, _) => SendData::Inject(piece.as_inject()),
            (_, true) => SendData::User(split.unwrap_or(piece.into())),
            _ => SendData::User(piece.into()),
        };
        let done = Completion {
            context: key as usize,
            len: p.len,
            peer: p.to,
            report: Report::Entry,
            remote: RemoteAddr { addr, key },
            ..Completion::default()
        };
        let r = RmaReq {
            data,
            peer: FI_ADDR_NOTAVAIL,
            addr,
            key,
            write: p.write,
            cq_data: p.cq_data,
            common: Common {
                context: key as usize,
                flags: None,
                alias: None,
                work: p
                    .counted
                    .then_some(crate::prov::contract::WorkEnd { cntr: Some(1) }),
            },
        };
        let RmaSimEndpoint { state, port } = &mut self.sides[p.from as usize];
        let short = p.plain && !p.counted && !p.split && p.len <= RING_RMA_MAX;
        let wait = BatchedAccess { mem: piece, done };
        let sent = match short && state.add_to_batch(port, p.write, wait) {
            true => Verdict::Queued,
            false => state.start(port, &r, done),
        };
        self.check_bound();
        let h = &mut *self.host.borrow_mut();
        match sent {
            Verdict::Done => assert!(h.ended.contains_key(&key), "done, and not ended"),
            Verdict::Queued => {}
            Verdict::NoResources => {
                assert!(!h.ended.contains_key(&key), "refused, and ended");
                h.local.remove(&key);
                return;
            }
            Verdict::Unsupported => {
                assert!(!h.ended.contains_key(&key), "refused, and ended");
                by_adapter(h, key);
            }
            Verdict::Failed(e) => panic!("access {key} fails: {e}"),
        }
        self.begun.insert(key);
    }

    /// No call copies much more than it may.
    fn check_bound(&self) {
        let copied = core::mem::take(&mut self.host.borrow_mut().copied);
        assert!(copied <= 3 * POLL_BUDGET, "{copied} bytes in one call");
    }

    /// Has a target execute some records, as a poll does.
    fn serve(&mut self, me: PeerId) {
        let most = self.rng.below(20) as usize;
        let h = &mut *self.host.borrow_mut();
        let (ours, others) = core::mem::take(&mut h.held)
            .into_iter()
            .partition::<Vec<_>, _>(|c| c.by == me);
        h.held = others;
        ours.iter().for_each(|c| h.copy_held(c));
        for _ in 0..most.min(2) {
            h.help(me);
        }
        for from in 0..self.sides.len() as PeerId {
            let ring = h.rings.remove(&(from, me));
            let Some(mut ring) = ring else { continue };
            for r in ring.iter_mut().filter(|r| r.served.is_none()).take(most) {
                let (key, addr) = (r.done.remote.key, r.done.remote.addr);
                r.served = Some(match h.plan[key as usize].region {
                    SimRegion::Denies => Status::RemoteBadKey,
                    _ => Status::Ok,
                });
                if r.served != Some(Status::Ok) {
                    continue;
                }
                if r.write {
                    h.target(key, addr, r.bytes.len()).store(0, &r.bytes);
                }
                if r.imm.is_some() || h.listeners.contains(&me) {
                    h.heard(key);
                }
            }
            h.rings.insert((from, me), ring);
        }
    }

    /// Has an endpoint poll.
    fn poll(&mut self, me: PeerId) {
        self.serve(me);
        let RmaSimEndpoint { state, port } = &mut self.sides[me as usize];
        state.collect(port);
        state.report(port);
        if state.load() > 0 {
            state.pump(port);
        }
        let copied = self.host.borrow().copied;
        let pieces = self.plan.len() * POLL_BUDGET;
        assert!(
            copied <= 2 * POLL_BUDGET + pieces,
            "{copied} bytes in one poll"
        );
        let refused = state.take_refused();
        for r in refused {
            if let Some(ctx) = r.done.op() {
                port.discard(ctx);
            }
            by_adapter(&mut self.host.borrow_mut(), r.done.remote.key);
        }
        for a in core::mem::take(&mut port.retries) {
            let mut h = self.host.borrow_mut();
            let (key, addr) = (a.done.remote.key, a.done.remote.addr);
            let failed = adapter_fails(&h, key);
            if failed.is_none() {
                h.carry_out(key, a.write, &a.mem.into(), addr);
            }
            drop(h);
            let ctx = a.done.op().expect("a part");
            state.part_done(port, ctx, failed);
        }
        self.host.borrow_mut().copied = 0;
    }

    /// One step of a random process.
    fn step(&mut self) {
        let key = self.rng.below(self.plan.len() as u64);
        let dead = self.host.borrow().dead.clone();
        let from = self.plan[key as usize].from;
        match self.rng.below(3) {
            0 if !dead.contains(&from) => self.begin(key),
            _ => {
                let me = self.rng.below(self.sides.len() as u64) as PeerId;
                if !dead.contains(&me) {
                    self.poll(me);
                }
            }
        }
    }

    fn idle(&self, me: PeerId) -> bool {
        let s = &self.sides[me as usize];
        let h = self.host.borrow();
        let ring = |(of, _): &(PeerId, PeerId)| *of == me;
        let rings = h.rings.iter().filter(|(k, _)| ring(k));
        s.state.turn.is_empty()
            && s.state.cma.load() == 0
            && s.state.device.load() == 0
            && s.port.ops.is_empty()
            && rings.map(|(_, r)| r.len()).sum::<usize>() == 0
    }

    /// Checks an access whose initiator and target have both survived.
    fn check(&self, seed: u64, key: u64) {
        let p = self.plan[key as usize];
        let h = self.host.borrow();
        let result = h.ended[&key];
        let denied = p.region == SimRegion::Denies;
        assert_eq!(result.is_err(), denied, "seed {seed} access {key}: {p:?}");
        if denied {
            return;
        }
        let same = match p.write {
            true => h.remote[&key].inside()[p.offset..][..p.len] == pattern(key, p.len),
            false => h.left[&key] == pattern(key, p.len),
        };
        assert!(same, "seed {seed} access {key}: {p:?}");
        let heard = h.events.get(&key).copied().unwrap_or(0);
        let wants = p.cq_data.is_some() || h.listeners.contains(&p.to);
        assert_eq!(
            heard,
            u32::from(wants),
            "seed {seed} access {key}: {p:?} was heard of"
        );
    }

    /// Checks that no memory changed while it was not lent.
    fn check_memory(&self, seed: u64) {
        let h = self.host.borrow();
        for (key, (mem, lent)) in &h.local {
            mem.check("local memory");
            let same = *lent || mem.inside() == h.left[key];
            assert!(same, "seed {seed}: {key} was touched after its end");
        }
        for region in h.remote.values() {
            region.check("a region");
        }
    }
}

/// Why the adapter does not carry an access out.
fn adapter_fails(h: &RmaHost, key: u64) -> Option<Failure> {
    let p = h.plan[key as usize];
    let status = match p.region {
        _ if h.dead.contains(&p.to) => Status::RemoteUnresponsive,
        SimRegion::Denies => Status::RemoteBadKey,
        _ => return None,
    };
    Some(failure(status))
}

/// The adapter carries a whole access out.
fn by_adapter(h: &mut RmaHost, key: u64) {
    let p = h.plan[key as usize];
    let failed = adapter_fails(h, key);
    if failed.is_none() {
        let local = h.local.get_mut(&key).unwrap().0.mem();
        let addr = h.remote[&key].addr() + p.offset as u64;
        h.carry_out(key, p.write, &local, addr);
        if p.cq_data.is_some() || h.listeners.contains(&p.to) {
            h.heard(key);
        }
    }
    h.end(key, failed.map_or(Ok(()), Err));
}

#[test]
fn every_access_ends_once_and_moves_its_bytes() {
    let (mut helped, mut by_device, seeds) = (0, 0, sim_seeds(1000));
    for seed in 0..seeds {
        let sides = 2 + seed % 2;
        let mut sim = RmaSim::new(seed, sides);
        let mut steps = 0;
        let over = |s: &RmaSim| {
            let all = s.host.borrow().ended.len() == s.plan.len();
            all && (0..sides as PeerId).all(|me| s.idle(me))
        };
        while !over(&sim) {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} stuck: {:?}", sim.plan);
            sim.step();
        }
        for key in 0..sim.plan.len() as u64 {
            sim.check(seed, key);
        }
        sim.check_memory(seed);
        helped += sim.host.borrow().helped;
        by_device += sim.host.borrow().by_device;
    }
    assert!(
        seeds < 1000 || helped > 100 && by_device > 100,
        "targets have copied {helped} chunks, devices {by_device} parts"
    );
}

/// Three processes; the last one dies at a random step.
#[test]
fn a_process_that_dies_ends_what_needed_it() {
    for seed in 0..sim_seeds(1000) {
        let mut sim = RmaSim::new(seed ^ 0xdead, 3);
        let (dead, death) = (2, sim.rng.below(100));
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 100_000, "seed {seed} stuck: {:?}", sim.plan);
            if steps == death + 1 {
                sim.host.borrow_mut().dead.insert(dead);
            }
            sim.step();
            let lives = |key: &u64| sim.plan[*key as usize].from != dead;
            let mut all = (0..sim.plan.len() as u64).filter(lives);
            let ended = all.all(|key| sim.host.borrow().ended.contains_key(&key));
            if steps > death && ended && [0, 1].iter().all(|me| sim.idle(*me)) {
                break;
            }
        }
        for key in 0..sim.plan.len() as u64 {
            let p = sim.plan[key as usize];
            if p.from != dead && p.to != dead {
                sim.check(seed, key);
            }
        }
        sim.check_memory(seed);
    }
}
