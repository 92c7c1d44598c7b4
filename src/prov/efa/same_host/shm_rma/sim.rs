//! Simulates the endpoints of one host with a seed and a virtual clock. Varies the room in rings,
//! what targets permit, what the kernel refuses, and the order in which processes run. Checks that
//! every read and write ends once, has moved its bytes when it succeeds, touches no memory
//! afterwards, and raises one event at a target that wants events; that no poll copies much more
//! than [`POLL_BUDGET`] bytes; and that, when a process dies at any step, the operations that need
//! it end.
//!
//! `FABRIC_SIM_SEEDS` sets how many seeds run.

mod split_host;

use super::port::{RmaPort, RmaRings};
use super::*;
use crate::core::rng::Rng;
use crate::hmem::fenced::FencedBuf;
use crate::hmem::{fake, InjectBuf, UserMem};
use crate::proto::sim_seeds;
use crate::prov::contract::Common;
use crate::prov::efa::same_host::split::SplitRings;
use crate::shm::SplitCopy;
use crate::transport::RemoteAddr;
use split_host::{HeldChunk, SimHelp, SimRmaSplit};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// How a target treats an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimRegion {
    Permits,
    Denies,
    /// Not published: the adapter decides, and permits it.
    Hidden,
}

/// An access, which has a region of its own at its target; the key is its number.
#[derive(Clone, Copy, Debug)]
struct AccessPlan {
    from: PeerId,
    to: PeerId,
    write: bool,
    len: usize,
    /// Where in its region it begins.
    offset: usize,
    region: SimRegion,
    cq_data: Option<u64>,
    inject: bool,
    /// Local memory in two pieces.
    split: bool,
    /// Counted by a counter of its own.
    counted: bool,
    /// Posted as a call without flags that may join a batch.
    plain: bool,
}

/// A record of a ring.
struct SimRmaRecord {
    done: Completion,
    write: bool,
    bytes: Vec<u8>,
    /// Where a read's bytes go.
    into: Piece,
    imm: Option<u64>,
    served: Option<Status>,
}

/// An operation in several parts, or with a counter.
struct SimOp {
    done: Completion,
    parts: u32,
    failed: Option<Failure>,
}

/// What the processes share.
struct RmaHost {
    rng: Rng,
    clock: u64,
    plan: Vec<AccessPlan>,
    /// By access: local and remote memory, and whether the local one is lent.
    local: BTreeMap<u64, (FencedBuf, bool)>,
    remote: BTreeMap<u64, FencedBuf>,
    /// What local memory held when the access ended.
    left: BTreeMap<u64, Vec<u8>>,
    rings: HashMap<(PeerId, PeerId), VecDeque<SimRmaRecord>>,
    /// Number of events that targets have received, by access.
    events: HashMap<u64, u32>,
    /// Processes that want an event of every access.
    listeners: HashSet<PeerId>,
    dead: HashSet<PeerId>,
    splits: Vec<SimRmaSplit>,
    helps: VecDeque<SimHelp>,
    held: Vec<HeldChunk>,
    /// Chunks that targets have copied.
    helped: usize,
    /// How often in percent the system refuses, and a ring has no room or takes no more.
    refuses: u64,
    full: u64,
    /// Bytes that the system has copied.
    copied: usize,
    ended: BTreeMap<u64, Result<(), Failure>>,
}

type SharedRmaHost = Rc<RefCell<RmaHost>>;

impl RmaHost {
    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// The remote memory of an access at an address.
    fn target(&mut self, key: u64, addr: u64, len: usize) -> UserMem {
        let region = self.remote.get_mut(&key).unwrap();
        let off = (addr - region.addr()) as usize;
        let mem = region.mem();
        assert!(off + len <= mem.len(), "beyond the region of {key}");
        mem.part(off, len)
    }

    /// Panics unless local memory of the access is lent and holds this piece.
    fn check_lent(&mut self, key: u64, addr: usize, len: usize) {
        let (mem, lent) = self.local.get_mut(&key).unwrap();
        let base = mem.addr() as usize;
        let inside = base <= addr && addr + len <= base + mem.inside().len();
        assert!(*lent && inside, "access {key} touches what is not lent");
    }

    fn end(&mut self, key: u64, result: Result<(), Failure>) {
        let before = self.ended.insert(key, result);
        assert!(before.is_none(), "access {key} ends twice");
        let (mem, lent) = self.local.get_mut(&key).unwrap();
        *lent = false;
        if self.plan[key as usize].write {
            // The application goes on with its memory.
            mem.mem().store(0, &vec![0xdd; mem.inside().len()]);
        }
        self.left.insert(key, mem.inside().to_vec());
    }

    fn heard(&mut self, key: u64) {
        *self.events.entry(key).or_default() += 1;
    }

    /// Moves the bytes of an access, or a part of it.
    fn carry_out(&mut self, key: u64, write: bool, local: &UserMem, addr: u64) {
        let theirs = self.target(key, addr, local.len());
        for p in local.pieces() {
            self.check_lent(key, p.addr(), p.len());
        }
        match write {
            true => theirs.store(0, &fake::bytes(local)),
            false => local.store(0, &fake::bytes(&theirs)),
        };
    }
}

/// The rings of an endpoint, and its operations.
struct RmaSimPort {
    me: PeerId,
    host: SharedRmaHost,
    ops: BTreeMap<u32, SimOp>,
    next_op: u32,
    retries: Vec<AdapterRetry>,
}

impl RmaSimPort {
    fn write_record(
        &mut self,
        done: Completion,
        (write, bytes, into): (bool, Vec<u8>, Piece),
        imm: Option<u64>,
    ) -> Verdict {
        let h = &mut *self.host.borrow_mut();
        if h.dead.contains(&done.peer) || h.chance(h.full / 2) {
            return Verdict::Unsupported;
        }
        if h.chance(h.full) {
            return Verdict::NoResources;
        }
        let ring = h.rings.entry((self.me, done.peer)).or_default();
        ring.push_back(SimRmaRecord {
            done,
            write,
            bytes,
            into,
            imm,
            served: None,
        });
        Verdict::Queued
    }
}

impl SplitRings for RmaSimPort {
    fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy> {
        let h = &mut *self.host.borrow_mut();
        if h.dead.contains(&peer) || h.chance(h.full / 2) {
            return None;
        }
        h.splits.push(SimRmaSplit::new(chunks));
        Some(SplitCopy {
            word: 0,
            round: h.splits.len() as u16 - 1,
            chunks,
        })
    }

    fn end_split(&mut self, _: PeerId, s: SplitCopy) -> bool {
        let split = &mut self.host.borrow_mut().splits[usize::from(s.round)];
        let over = !split.failed && split.back == split.chunks;
        split.open &= !over;
        over
    }

    fn stop_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let h = &mut *self.host.borrow_mut();
        let gone = h.dead.contains(&peer);
        let split = &mut h.splits[usize::from(s.round)];
        split.stopped = true;
        let ended = gone || split.back == split.taken;
        split.open &= !ended;
        ended
    }
}

impl RmaRings for RmaSimPort {
    fn now(&self) -> u64 {
        let mut h = self.host.borrow_mut();
        h.clock += h.rng.below(2000);
        h.clock
    }

    fn admit_rma(&mut self, peer: PeerId) -> bool {
        let h = &mut *self.host.borrow_mut();
        !h.dead.contains(&peer) && !h.chance(h.full)
    }

    fn wants_events(&self, peer: PeerId) -> bool {
        self.host.borrow().listeners.contains(&peer)
    }

    fn permits(&mut self, peer: PeerId, at: RemoteAddr, _len: usize, _write: bool) -> bool {
        let h = self.host.borrow();
        !h.dead.contains(&peer) && h.plan[at.key as usize].region == SimRegion::Permits
    }

    fn widen(&mut self, _peer: PeerId) {}

    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        let bytes = match data {
            Payload::Inject(b) => b.bytes().to_vec(),
            Payload::Piece(p) => fake::bytes(&p.into()),
            Payload::User(m) => fake::bytes(m),
        };
        self.write_record(done, (true, bytes, Piece::EMPTY), imm)
    }

    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        let into = into.lent().one().expect("one piece");
        self.write_record(done, (false, Vec::new(), into), None)
    }

    fn cma_access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &LocalBuffer,
        at: RemoteAddr,
    ) -> Result<(), RmaDenied> {
        let h = &mut *self.host.borrow_mut();
        let region = h.plan[at.key as usize].region;
        if h.dead.contains(&peer) || region == SimRegion::Hidden || h.chance(h.refuses) {
            return Err(RmaDenied::Unsupported);
        }
        if region == SimRegion::Denies {
            return Err(RmaDenied::Status(Status::RemoteBadKey));
        }
        h.copied += local.byte_len();
        match local {
            LocalBuffer::Mem(m) => h.carry_out(at.key, write, m, at.addr),
            LocalBuffer::Piece(p) => h.carry_out(at.key, write, &(*p).into(), at.addr),
            LocalBuffer::Bytes(b) => {
                assert!(write, "bytes are there to be read");
                h.target(at.key, at.addr, b.len()).store(0, b);
            }
            LocalBuffer::Shared(..) => unreachable!("nothing else is copied"),
        }
        Ok(())
    }

    fn access_batch(
        &mut self,
        peer: PeerId,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let at = |addr| RemoteAddr { addr, key };
        let mut parts = parts;
        parts
            .by_ref()
            .take_while(|(p, addr)| {
                let local = LocalBuffer::Piece(*p);
                self.cma_access(peer, write, &local, at(*addr)).is_ok()
            })
            .count()
    }

    fn ask_for_help(&mut self, peer: PeerId, words: [u64; 6]) {
        let h = &mut *self.host.borrow_mut();
        if !h.dead.contains(&peer) && !h.chance(h.full) {
            h.helps.push_back(SimHelp {
                from: self.me,
                to: peer,
                words,
            });
        }
    }

    fn take_chunk(&mut self, _: PeerId, s: SplitCopy) -> Option<u32> {
        self.host.borrow_mut().splits[usize::from(s.round)].take()
    }

    fn mark_copied(&mut self, _: PeerId, s: SplitCopy) {
        self.host.borrow_mut().splits[usize::from(s.round)].back += 1;
    }

    fn split_failed(&self, peer: PeerId, s: SplitCopy) -> bool {
        let h = self.host.borrow();
        h.splits[usize::from(s.round)].failed || h.dead.contains(&peer)
    }

    fn fits_event(&mut self, _peer: PeerId) -> bool {
        let h = &mut *self.host.borrow_mut();
        !h.chance(h.full)
    }

    fn tell(&mut self, peer: PeerId, what: (u64, usize, Option<u64>, bool)) -> Verdict {
        let h = &mut *self.host.borrow_mut();
        let (key, len, cq_data, write) = what;
        let p = h.plan[key as usize];
        assert_eq!((len, cq_data, write), (p.len, p.cq_data, p.write));
        if h.dead.contains(&peer) {
            return Verdict::Unsupported;
        }
        if p.len > POLL_BUDGET && h.chance(h.full) {
            return Verdict::NoResources;
        }
        if write {
            let there = h.remote[&key].inside()[p.offset..][..len] == pattern(key, len);
            assert!(there, "an event of {key} is ahead of its data");
        }
        h.heard(key);
        Verdict::Done
    }

    fn add_retry(&mut self, again: AdapterRetry) {
        self.retries.push(again);
    }

    fn poll_ended(&mut self, ended: &mut Vec<(Completion, Status)>) {
        let h = &mut *self.host.borrow_mut();
        let peers: Vec<PeerId> = (0..4)
            .filter(|p| h.rings.contains_key(&(self.me, *p)))
            .collect();
        for peer in peers {
            let gone = h.dead.contains(&peer);
            loop {
                let ring = h.rings.get_mut(&(self.me, peer)).unwrap();
                let over = |r: &mut SimRmaRecord| gone || r.served.is_some();
                let Some(r) = ring.pop_front_if(over) else {
                    break;
                };
                let status = r.served.unwrap_or(Status::RemoteUnresponsive);
                if status == Status::Ok && !r.write {
                    let key = r.done.remote.key;
                    h.carry_out(key, false, &r.into.into(), r.done.remote.addr);
                }
                ended.push((r.done, status));
            }
        }
    }
}

impl RmaPort for RmaSimPort {
    type Rings = RmaSimPort;

    fn rings(&mut self) -> Option<&mut RmaSimPort> {
        Some(self)
    }

    fn open(&mut self, _: &RmaReq<SendData>, done: Completion) -> u32 {
        self.next_op += 1;
        let op = SimOp {
            done,
            parts: 1,
            failed: None,
        };
        self.ops.insert(self.next_op, op);
        self.next_op
    }

    fn discard(&mut self, ctx: u32) {
        self.ops.remove(&ctx).expect("an operation");
    }

    fn add_part(&mut self, ctx: u32) {
        self.ops.get_mut(&ctx).expect("an operation").parts += 1;
    }

    fn parts(&self, ctx: u32) -> Option<(u32, usize, bool)> {
        let op = self.ops.get(&ctx)?;
        Some((op.parts, op.done.len, op.failed.is_some()))
    }

    fn part_done(&mut self, ctx: u32, failed: Option<Failure>) {
        let op = self.ops.get_mut(&ctx).expect("an operation");
        op.parts -= 1;
        op.failed = op.failed.or(failed);
        if op.parts == 0 {
            let op = self.ops.remove(&ctx).unwrap();
            self.complete(&op.done, op.failed.map_or(Ok(()), Err));
        }
    }

    fn complete(&mut self, done: &Completion, result: Result<(), Failure>) {
        assert!(done.op().is_none(), "a part is no operation");
        self.host.borrow_mut().end(done.context as u64, result);
    }
}

/// An endpoint.
struct RmaSimEndpoint {
    state: ShmRma,
    port: RmaSimPort,
}

fn pattern(key: u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u64 ^ (i as u64 >> 8) ^ key.wrapping_mul(0x9d)) as u8)
        .collect()
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
            (true, _) => SendData::Inject(InjectBuf::from(piece)),
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
                completion_cntr: p.counted.then_some(1),
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
        let refused = state.refused();
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
    let (mut helped, seeds) = (0, sim_seeds(1000));
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
    }
    assert!(
        seeds < 1000 || helped > 100,
        "targets have copied {helped} chunks"
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
