//! Property tests: endpoints on a virtual network with a seed and a virtual clock. Whatever order
//! the network delivers packets in, every message arrives once, complete and in order, every read,
//! write and atomic takes effect once, and no state is left over. When a peer dies at any step,
//! every operation that needs the peer ends in an error.
//!
//! The simulated adapter is reliable: packets are lost only when a peer dies. `device::soft`
//! simulates loss, because it retransmits. `FABRIC_SIM_SEEDS` sets the number of seeds.

use super::*;
use crate::core::rng::Rng;
use crate::types::*;
use crate::wire::{extra, Rta, RtaKind};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Key of the memory that peers read, write and change with atomics.
const REGION: u64 = 1 << 40;
/// Elements at the start of the region that atomics change.
const CELLS: usize = 8;

enum Flight {
    Packet { bytes: Vec<u8>, token: Token },
    Read { piece: RmaIov, into: Body, id: u32 },
}

/// Implements [`Port`] for one simulated endpoint.
struct ProtoSimPort {
    me: PeerId,
    air: Vec<(u64, PeerId, Flight)>,
    depth: usize,
    clock: u64,
    rng: Rng,
    memory: HashMap<u32, Vec<u8>>,
    region: Vec<u8>,
    /// Operations of peers on the region: where, how much.
    targets: HashMap<u32, (usize, usize)>,
    next_target: u32,
    sent: BTreeMap<u32, Result<(), Failure>>,
    received: Vec<(u32, Received, Result<(), Failure>)>,
    written: Vec<(PeerId, Option<u64>, u64)>,
    expecting: i64,
    /// Whether [`Port::expose`] succeeds, and the percentage of reads that are refused.
    readable: bool,
    refuse: u64,
    /// A device fails to copy the region beyond its first half.
    broken: bool,
}

/// The end of an access whose memory a device failed to copy.
const NOT_COPIED: Failure = Failure {
    errno: FI_EIO,
    status: 66,
};

impl ProtoSimPort {
    /// Whether a device fails to copy what this access is to.
    fn fails(&self, ctx: u32) -> bool {
        let beyond = |(at, len): &(usize, usize)| at + len > REGION_LEN / 2;
        self.broken && self.targets.get(&ctx).is_some_and(beyond)
    }

    fn fly(&mut self, to: PeerId, f: Flight) {
        let late = self.rng.below(30);
        self.air.push((self.clock + late, to, f));
    }

    fn bytes_of(&self, b: Body) -> Vec<u8> {
        let (off, end) = (b.off as usize, b.off as usize + b.len);
        match self.targets.get(&b.ctx) {
            Some((at, _)) => self.region[at + off..at + end].to_vec(),
            None => self.memory[&b.ctx][off..end].to_vec(),
        }
    }

    fn find(&self, at: &Iovs) -> Result<(usize, usize), Failure> {
        let bad = Failure {
            errno: FI_EKEYREJECTED,
            status: 64,
        };
        let v = at.as_slice().first().ok_or(bad)?;
        if v.key != REGION || v.addr + v.len > self.region.len() as u64 {
            return Err(bad);
        }
        Ok((v.addr as usize, v.len as usize))
    }
}

impl Port for ProtoSimPort {
    fn room(&self) -> bool {
        self.air.len() < self.depth
    }

    fn send(&mut self, to: PeerId, head: &[u8], load: PacketPayload, token: Token) -> bool {
        if !self.room() {
            return false;
        }
        let mut bytes = head.to_vec();
        match load {
            PacketPayload::None => {}
            PacketPayload::Body(b) if self.fails(b.ctx) => return false,
            PacketPayload::Body(b) => bytes.extend(self.bytes_of(b)),
            PacketPayload::Bytes(b) => bytes.extend_from_slice(b),
        }
        self.fly(to, Flight::Packet { bytes, token });
        true
    }

    fn store(&mut self, ctx: u32, off: u64, bytes: &[u8]) {
        let off = off as usize;
        if let Some((at, len)) = self.targets.get(&ctx) {
            assert!(off + bytes.len() <= *len);
            self.region[at + off..at + off + bytes.len()].copy_from_slice(bytes);
        } else if let Some(m) = self.memory.get_mut(&ctx) {
            m[off..off + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn sent(&mut self, ctx: u32, result: Result<(), Failure>) {
        assert!(self.sent.insert(ctx, result).is_none(), "{ctx} ended twice");
    }

    fn adopt(&mut self, recv: RecvEntryMatch) -> u32 {
        recv.what.context as u32
    }

    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        self.received.push((ctx, msg, result));
    }

    fn expect(&mut self, _peer: PeerId, on: bool) {
        self.expecting += if on { 1 } else { -1 };
    }

    fn expose(&mut self, ctx: u32) -> Option<Iovs> {
        let len = self.memory[&ctx].len() as u64;
        let piece = RmaIov {
            addr: 0,
            len,
            key: u64::from(ctx),
        };
        self.readable.then(|| Iovs::new(&[piece]).unwrap())
    }

    fn read(&mut self, from: PeerId, piece: RmaIov, into: Body, id: u32) -> ReadPost {
        if self.rng.below(100) < self.refuse {
            return ReadPost::Refused;
        }
        if !self.room() {
            return ReadPost::Busy;
        }
        self.fly(from, Flight::Read { piece, into, id });
        ReadPost::Posted
    }

    fn open_target(&mut self, at: &Iovs, _write: bool) -> Result<u32, Failure> {
        let place = self.find(at)?;
        self.next_target += 1;
        self.targets.insert(self.next_target, place);
        Ok(self.next_target)
    }

    fn unreadable(&mut self, ctx: u32) -> Option<Failure> {
        self.fails(ctx).then_some(NOT_COPIED)
    }

    fn close_target(&mut self, ctx: u32, _done: bool) -> Result<(), Failure> {
        let fails = self.fails(ctx);
        assert!(self.targets.remove(&ctx).is_some());
        match fails {
            true => Err(NOT_COPIED),
            false => Ok(()),
        }
    }

    fn written(&mut self, from: PeerId, cq_data: Option<u64>, len: u64) {
        self.written.push((from, cq_data, len));
    }

    fn atomic(&mut self, rta: &Rta, data: &[u8], former: &mut Vec<u8>) -> Result<(), Failure> {
        let (at, len) = self.find(&rta.to)?;
        assert_eq!((rta.datatype, rta.op, len), (FI_UINT64, FI_SUM, 8));
        let cell = &mut self.region[at..at + 8];
        let old = u64::from_le_bytes(cell.try_into().unwrap());
        former.extend_from_slice(&old.to_le_bytes());
        let add = u64::from_le_bytes(data[..8].try_into().unwrap());
        cell.copy_from_slice(&(old + add).to_le_bytes());
        assert!(matches!(
            rta.kind,
            RtaKind::Write | RtaKind::WriteReceipt(_) | RtaKind::Fetch(_)
        ));
        Ok(())
    }
}

struct ProtoSimEndpoint {
    ep: Endpoint,
    rq: RecvQueue,
    world: ProtoSimPort,
}

const REGION_LEN: usize = 64 << 10;

fn side(me: PeerId, rng: &mut Rng) -> ProtoSimEndpoint {
    let mtu = 300 + rng.below(400) as usize;
    let readable = rng.below(3) > 0;
    let policy = Policy {
        max_medium: rng.below(3000),
        min_read: 500 + rng.below(10_000),
        min_read_write: 500 + rng.below(10_000),
        read_segment: 100 + rng.below(20_000),
        runt: if rng.below(2) == 0 {
            0
        } else {
            rng.below(3000)
        },
    };
    let cfg = Config {
        id: 7,
        mtu,
        raw_addr: [me as u8; 32],
        device_version: 0xefa2,
        connid: 90 + me,
        features: if readable { extra::RDMA_READ } else { 0 },
        hmem_p2p: None,
        policy,
        early_max: 64 << 20,
    };
    ProtoSimEndpoint {
        ep: Endpoint::new(cfg),
        rq: RecvQueue::default(),
        world: ProtoSimPort {
            me,
            air: Vec::new(),
            depth: 20 + rng.below(60) as usize,
            clock: 0,
            rng: Rng::new(rng.below(1 << 40)),
            memory: HashMap::new(),
            region: (0..REGION_LEN)
                .map(|i| if i < CELLS * 8 { 0 } else { i as u8 })
                .collect(),
            targets: HashMap::new(),
            next_target: 1 << 30,
            sent: BTreeMap::new(),
            received: Vec::new(),
            written: Vec::new(),
            expecting: 0,
            readable,
            refuse: if rng.below(3) == 0 { 30 } else { 0 },
            broken: false,
        },
    }
}

/// Delivers packets and reads that are due, and their completions; a dead peer neither sends nor
/// receives.
fn deliver(sides: &mut [ProtoSimEndpoint], now: u64, dead: Option<PeerId>) {
    for s in sides.iter_mut() {
        s.world.clock = now;
    }
    for i in 0..sides.len() {
        let mut at = 0;
        while at < sides[i].world.air.len() {
            let (due, to, _) = sides[i].world.air[at];
            let lost = dead.is_some_and(|d| d == to || d == i as PeerId);
            if due > now || lost {
                at += 1;
                continue;
            }
            let (_, to, flight) = sides[i].world.air.swap_remove(at);
            match flight {
                Flight::Packet { bytes, token } => {
                    let t = &mut sides[to as usize];
                    t.ep.packet(i as PeerId, &bytes, &mut t.rq, &mut t.world);
                    if let Some(id) = token.tx() {
                        let f = &mut sides[i];
                        f.ep.packet_done(id, None, &mut f.world);
                    }
                }
                Flight::Read { piece, into, id } => {
                    let from = Body {
                        ctx: piece.key as u32,
                        off: piece.addr,
                        len: piece.len as usize,
                    };
                    let bytes = sides[to as usize].world.bytes_of(from);
                    let f = &mut sides[i];
                    f.world.store(into.ctx, into.off, &bytes);
                    f.ep.read_done(id, None, &mut f.rq, &mut f.world);
                }
            }
        }
        if dead != Some(i as PeerId) {
            let s = &mut sides[i];
            s.ep.progress(&mut s.world);
        }
    }
}

fn pattern(n: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7) as u8 ^ n as u8).collect()
}

#[derive(Clone, Copy, Debug)]
enum Plan {
    /// A message, tagged or not.
    Send {
        len: usize,
        tag: Option<u64>,
        receipt: bool,
    },
    Write {
        at: usize,
        len: usize,
    },
    Read {
        at: usize,
        len: usize,
    },
    Sum {
        cell: usize,
        fetch: bool,
    },
}

fn plans(rng: &mut Rng, count: u32) -> Vec<Plan> {
    let len = |rng: &mut Rng| match rng.below(4) {
        0 => rng.below(20_000) as usize,
        1 => rng.below(4000) as usize,
        _ => rng.below(300) as usize,
    };
    // Writes get disjoint ranges in the lower half; reads use the upper half, which no write
    // changes.
    let mut free = CELLS * 8;
    let half = REGION_LEN / 2;
    (0..count)
        .map(|_| match rng.below(8) {
            0 => {
                let n = len(rng).min(half - free);
                free += n;
                Plan::Write {
                    at: free - n,
                    len: n,
                }
            }
            1 => Plan::Read {
                at: half,
                len: len(rng).min(half),
            },
            2 => Plan::Sum {
                cell: rng.below(CELLS as u64) as usize,
                fetch: rng.below(2) == 0,
            },
            _ => Plan::Send {
                len: len(rng),
                tag: (rng.below(2) == 0).then(|| rng.below(3)),
                receipt: rng.below(4) == 0,
            },
        })
        .collect()
}

/// Starts an operation; `false` when the adapter has no room.
fn start(s: &mut ProtoSimEndpoint, to: PeerId, ctx: u32, plan: Plan) -> bool {
    let far = |at: usize, len: usize| {
        Iovs::new(&[RmaIov {
            addr: at as u64,
            len: len as u64,
            key: REGION,
        }])
        .unwrap()
    };
    match plan {
        Plan::Send { len, tag, receipt } => {
            s.world.memory.insert(ctx, pattern(ctx, len));
            let a = SendArgs {
                peer: to,
                ctx,
                len: len as u64,
                tag,
                cq_data: ctx.is_multiple_of(3).then_some(u64::from(ctx)),
                receipt,
                inject: false,
            };
            s.ep.send(&a, &mut s.world).is_ok()
        }
        Plan::Write { at, len } => {
            s.world.memory.insert(ctx, pattern(ctx, len));
            let a = WriteArgs {
                peer: to,
                ctx,
                len: len as u64,
                to: far(at, len),
                cq_data: ctx.is_multiple_of(2).then_some(u64::from(ctx)),
                inject: false,
            };
            s.ep.write(&a, &mut s.world).is_ok()
        }
        Plan::Read { at, len } => {
            s.world.memory.insert(ctx, vec![0; len]);
            let a = ReadArgs {
                peer: to,
                ctx,
                len: len as u64,
                from: far(at, len),
            };
            s.ep.read(&a, &mut s.world).is_ok()
        }
        Plan::Sum { cell, fetch } => {
            s.world.memory.insert(ctx, vec![0; 8]);
            let a = AtomicArgs {
                peer: to,
                ctx,
                to: far(cell * 8, 8),
                datatype: FI_UINT64,
                op: FI_SUM,
                kind: if fetch {
                    AtomicKind::Fetch
                } else {
                    AtomicKind::Write {
                        receipt: ctx.is_multiple_of(2),
                    }
                },
                data: &1u64.to_le_bytes(),
            };
            s.ep.atomic(&a, &mut s.world).is_ok()
        }
    }
}

/// Posts the receive for a message of side 0.
fn post(s: &mut ProtoSimEndpoint, ctx: u32, len: usize, tag: Option<u64>, any: bool) {
    s.world.memory.insert(ctx, vec![0; len]);
    let a = RecvArgs {
        src: if any { ANY } else { 0 },
        ctx,
        len: len as u64,
        tagged: tag.is_some(),
        tag: tag.unwrap_or(0),
        ignore: 0,
        multi: None,
    };
    if let Some(u) = s.rq.post(&a) {
        let place = Place::whole(ctx, a.len);
        s.ep.start_unexpected(place, &u, &mut s.rq, &mut s.world);
    }
}

pub(crate) fn seeds(default: u64) -> u64 {
    std::env::var("FABRIC_SIM_SEEDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

fn settled(s: &ProtoSimEndpoint) -> bool {
    s.ep.sending() == 0 && s.ep.receiving() == 0
}

#[test]
fn everything_happens_once_in_order_and_whole() {
    for seed in 0..seeds(10_000) {
        let mut rng = Rng::new(seed);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        let plan = {
            let n = 1 + rng.below(50) as u32;
            plans(&mut rng, n)
        };
        let sends: Vec<(u32, usize, Option<u64>)> = (0u32..)
            .zip(&plan)
            .filter_map(|(i, p)| match p {
                Plan::Send { len, tag, .. } => Some((i, *len, *tag)),
                _ => None,
            })
            .collect();
        let (mut started, mut posted, mut now) = (0, 0, 0u64);
        let done = |sides: &[ProtoSimEndpoint]| {
            sides[0].world.sent.len() == plan.len() && sides[1].world.received.len() == sends.len()
        };
        while !done(&sides) || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 200_000, "seed {seed} stuck: {plan:?}");
            if started < plan.len() && rng.below(2) == 0 {
                started += usize::from(start(&mut sides[0], 1, started as u32, plan[started]));
            }
            if posted < sends.len() && rng.below(2) == 0 {
                // Receives are posted in the order of the messages: each takes its own.
                let (ctx, len, tag) = sends[posted];
                post(&mut sides[1], ctx, len, tag, rng.below(2) == 0);
                posted += 1;
            }
            deliver(&mut sides, now, None);
        }
        check(seed, &plan, &sides);
    }
}

fn check(seed: u64, plan: &[Plan], sides: &[ProtoSimEndpoint]) {
    let (a, b) = (&sides[0], &sides[1]);
    for (ctx, r) in &a.world.sent {
        assert_eq!(*r, Ok(()), "seed {seed} operation {ctx}");
    }
    let mut seen = HashSet::new();
    for (ctx, msg, result) in &b.world.received {
        assert!(seen.insert(ctx));
        assert_eq!(*result, Ok(()), "seed {seed} message {ctx}");
        assert_eq!(
            msg.cq_data,
            ctx.is_multiple_of(3).then_some(u64::from(*ctx))
        );
        assert!(
            b.world.memory[ctx] == a.world.memory[ctx],
            "seed {seed} message {ctx}"
        );
    }
    let mut sums = [0u64; CELLS];
    let mut seen = vec![HashSet::new(); CELLS];
    for (ctx, p) in (0u32..).zip(plan) {
        let mine = &a.world.memory[&ctx];
        match *p {
            Plan::Send { .. } => {}
            Plan::Write { at, len } => {
                assert!(
                    b.world.region[at..at + len] == mine[..],
                    "seed {seed} write {ctx}"
                );
            }
            Plan::Read { at, len } => {
                assert!(
                    b.world.region[at..at + len] == mine[..],
                    "seed {seed} read {ctx}"
                );
            }
            Plan::Sum { cell, fetch } => {
                sums[cell] += 1;
                if fetch {
                    let old = u64::from_le_bytes(mine[..].try_into().unwrap());
                    assert!(seen[cell].insert(old), "seed {seed}: {old} fetched twice");
                }
            }
        }
    }
    let writes = plan.iter().filter(|p| matches!(p, Plan::Write { .. }));
    let with_data = b.world.written.iter();
    assert_eq!(with_data.count(), writes.count(), "seed {seed}");
    for (cell, sum) in b.world.region.chunks(8).zip(sums) {
        assert_eq!(cell, sum.to_le_bytes(), "seed {seed}");
    }
    assert_eq!((b.rq.unexpected(), b.rq.posted(), b.rq.bytes()), (0, 0, 0));
    for s in sides {
        assert_eq!(s.world.expecting, 0, "seed {seed} side {}", s.world.me);
        assert!(s.world.targets.is_empty(), "seed {seed}");
    }
}

/// Three endpoints; the last one dies at a random step.
#[test]
fn a_peer_that_dies_fails_what_it_owed_and_nothing_else() {
    for seed in 0..seeds(10_000) {
        let mut rng = Rng::new(seed ^ 0xdead);
        let mut sides: Vec<ProtoSimEndpoint> = (0..3).map(|i| side(i, &mut rng)).collect();
        let n = 4 + rng.below(30) as u32;
        let plan = plans(&mut rng, n);
        let death = rng.below(400);
        let (mut started, mut now, mut dead) = (0usize, 0u64, None);
        // Even operations go to the side that lives, odd ones to the one that dies.
        loop {
            now += 1;
            assert!(now < 200_000, "seed {seed} stuck");
            if now == death {
                dead = Some(2);
                let gone = Failure {
                    errno: FI_ECONNABORTED,
                    status: 13,
                };
                for s in sides.iter_mut().take(2) {
                    fail_peer(s, 2, gone);
                }
            }
            if started < plan.len() && (dead.is_none() || started % 2 == 0) {
                let to = if started % 2 == 0 { 1 } else { 2 };
                if start(&mut sides[0], to, started as u32, plan[started]) {
                    if let Plan::Send { len, tag, .. } = plan[started] {
                        post(&mut sides[to as usize], started as u32, len, tag, false);
                    }
                    started += 1;
                }
            } else if started < plan.len() {
                sides[0].world.sent.insert(started as u32, Ok(()));
                started += 1;
            }
            deliver(&mut sides, now, dead);
            let over = started == plan.len() && sides[0].world.sent.len() == plan.len();
            if over && now > death && sides.iter().take(2).all(settled) {
                break;
            }
        }
        for (ctx, r) in &sides[0].world.sent {
            if ctx % 2 == 0 {
                assert_eq!(*r, Ok(()), "seed {seed} operation {ctx}");
            }
        }
        for s in sides.iter().take(2) {
            assert_eq!(s.world.expecting, 0, "seed {seed} side {}", s.world.me);
            assert!(s.world.targets.is_empty(), "seed {seed}");
        }
    }
}

/// Acts as the adapter does when a peer is gone: fails all packets and reads to the peer, then
/// reports it.
fn fail_peer(s: &mut ProtoSimEndpoint, peer: PeerId, gone: Failure) {
    let air = core::mem::take(&mut s.world.air);
    let (lost, kept): (Vec<_>, Vec<_>) = air.into_iter().partition(|(_, to, _)| *to == peer);
    s.world.air = kept;
    for (_, _, f) in lost {
        match f {
            Flight::Packet {
                token: Token::Tx(id),
                ..
            } => s.ep.packet_done(id, Some(gone), &mut s.world),
            Flight::Packet { .. } => {}
            Flight::Read { id, .. } => {
                s.ep.read_done(id, Some(gone), &mut s.rq, &mut s.world);
            }
        }
    }
    s.ep.peer_down(peer, gone, &mut s.rq, &mut s.world);
}

/// The adapter of `s` cancels the reads of transfer `id`.
fn cancel_reads(s: &mut ProtoSimEndpoint, id: u32) {
    let air = core::mem::take(&mut s.world.air);
    let of = |f: &Flight| matches!(f, Flight::Read { id: read, .. } if *read == id);
    let (cancelled, kept): (Vec<_>, Vec<_>) = air.into_iter().partition(|(_, _, f)| of(f));
    s.world.air = kept;
    let why = Failure {
        errno: FI_ECANCELED,
        status: 13,
    };
    for _ in cancelled {
        s.ep.read_done(id, Some(why), &mut s.rq, &mut s.world);
    }
}

/// Side 1 closes regions while writes into them and reads from them are under way.
#[test]
fn closing_a_region_ends_the_accesses_to_it() {
    let mut failed = [0; 2];
    for seed in 0..seeds(5_000) {
        let mut rng = Rng::new(seed ^ 0xc105e);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        // Few requests of the adapter are free, so that reads wait for room.
        sides[1].world.depth = 1 + rng.below(4) as usize;
        let writes = 2 + rng.below(6) as u32;
        let (mut started, mut now) = (0, 0u64);
        while sides[0].world.sent.len() < writes as usize || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 100_000, "seed {seed} stuck");
            let at = CELLS * 8 + started as usize * 4000;
            let len = 2000 + rng.below(2000) as usize;
            let plan = match started % 2 {
                0 => Plan::Write { at, len },
                _ => Plan::Read { at, len },
            };
            // The features of side 1 are known once the first write has ended.
            let known = started == 0 || !sides[0].world.sent.is_empty();
            if known && started < writes && start(&mut sides[0], 1, started, plan) {
                started += 1;
            }
            if rng.below(5) == 0 {
                let target = sides[1].world.targets.keys().min().copied();
                let reads = sides[1].ep.close_targets(|ctx| Some(ctx) == target);
                for id in reads {
                    cancel_reads(&mut sides[1], id);
                }
            }
            deliver(&mut sides, now, None);
        }
        for (ctx, _) in sides[0].world.sent.iter().filter(|(_, r)| r.is_err()) {
            failed[*ctx as usize % 2] += 1;
        }
        for s in &sides {
            assert_eq!(s.world.expecting, 0, "seed {seed} side {}", s.world.me);
            assert!(s.world.targets.is_empty(), "seed {seed}");
        }
    }
    assert!(
        failed.iter().all(|n| *n > 0),
        "{failed:?} writes and reads have failed"
    );
}

/// The device of side 1 fails to copy half of the region: the accesses to that half fail at their
/// initiator, the others do not.
#[test]
fn what_a_device_fails_to_copy_fails_at_the_initiator() {
    for seed in 0..seeds(2_000) {
        let mut rng = Rng::new(seed ^ 0xdead);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        // What the adapter reads, no device copies.
        sides[0].world.readable = false;
        sides[1].world.depth = 1 + rng.below(4) as usize;
        sides[1].world.broken = true;
        let count = 8;
        let (mut started, mut now) = (0, 0u64);
        while sides[0].world.sent.len() < count as usize || !sides.iter().all(settled) {
            now += 1;
            assert!(now < 100_000, "seed {seed} stuck");
            let at = match started % 4 < 2 {
                true => CELLS * 8,
                false => REGION_LEN / 2,
            } + started as usize * 1000;
            let len = 1 + rng.below(4000) as usize;
            let plan = match started % 2 {
                0 => Plan::Write { at, len },
                _ => Plan::Read { at, len },
            };
            if started < count && start(&mut sides[0], 1, started, plan) {
                started += 1;
            }
            deliver(&mut sides, now, None);
        }
        for (ctx, result) in &sides[0].world.sent {
            let wanted = if ctx % 4 < 2 { Ok(()) } else { Err(NOT_COPIED) };
            assert_eq!(*result, wanted, "seed {seed} operation {ctx}");
        }
        for s in &sides {
            assert_eq!(s.world.expecting, 0, "seed {seed} side {}", s.world.me);
            assert!(s.world.targets.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn a_short_buffer_truncates_and_says_so() {
    for len in [100usize, 1500, 5000, 50_000] {
        for seed in 0..seeds(40) {
            let mut rng = Rng::new(seed);
            let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
            let plan = Plan::Send {
                len,
                tag: None,
                receipt: true,
            };
            assert!(start(&mut sides[0], 1, 0, plan));
            post(&mut sides[1], 0, 60, None, true);
            let mut now = 0;
            while sides[0].world.sent.is_empty() || !sides.iter().all(settled) {
                now += 1;
                assert!(now < 10_000, "seed {seed} length {len}");
                deliver(&mut sides, now, None);
            }
            let (_, msg, result) = sides[1].world.received[0];
            let short = Failure {
                errno: FI_ETRUNC,
                status: 0,
            };
            assert_eq!((msg.len as usize, result), (len, Err(short)), "seed {seed}");
            assert_eq!(sides[1].world.memory[&0], pattern(0, len)[..60]);
            assert_eq!(sides[0].world.sent[&0], Ok(()));
        }
    }
}

#[test]
fn a_multi_receive_buffer_takes_messages_until_it_is_full() {
    for seed in 0..seeds(200) {
        let mut rng = Rng::new(seed);
        let mut sides = vec![side(0, &mut rng), side(1, &mut rng)];
        let lens: Vec<usize> = (0..12).map(|_| rng.below(2000) as usize).collect();
        let room = 6000usize;
        sides[1].world.memory.insert(99, vec![0; room]);
        let a = RecvArgs {
            src: ANY,
            ctx: 99,
            len: room as u64,
            tagged: false,
            tag: 0,
            ignore: 0,
            multi: Some(2000),
        };
        let (mut now, mut next, mut posted) = (0, 0, false);
        let when = rng.below(300);
        let over = |s: &ProtoSimEndpoint| s.world.received.last().is_some_and(|r| !r.1.stays);
        while !over(&sides[1]) && now < 50_000 {
            now += 1;
            if next < lens.len() {
                let plan = Plan::Send {
                    len: lens[next],
                    tag: None,
                    receipt: false,
                };
                next += usize::from(start(&mut sides[0], 1, next as u32, plan));
            }
            if now >= when && !posted {
                posted = true;
                let s = &mut sides[1];
                assert!(s.rq.post(&a).is_none());
                while let Some((u, place)) = s.rq.fill(&a, |_| unreachable!("none is plain")) {
                    s.ep.start_unexpected(place, &u, &mut s.rq, &mut s.world);
                }
            }
            deliver(&mut sides, now, None);
        }
        let b = &sides[1].world;
        let total: usize = b.received.iter().map(|r| r.1.len as usize).sum();
        let all: usize = lens.iter().sum();
        // Closed when less than 2000 is left, or never when the messages are too few.
        assert!(over(&sides[1]) || all <= room - 2000, "seed {seed}");
        for (_, msg, r) in &b.received {
            let n = (0..lens.len() as u32).find(|n| {
                let p = pattern(*n, lens[*n as usize]);
                let at = msg.base as usize;
                lens[*n as usize] == msg.len as usize && b.memory[&99][at..at + p.len()] == p
            });
            assert!(n.is_some() && r.is_ok(), "seed {seed}");
        }
        assert!(total <= room, "seed {seed}");
    }
}
