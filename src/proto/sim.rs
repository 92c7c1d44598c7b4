//! A simulator of the protocol: endpoints on a virtual network with a seed and a virtual clock.
//! `runs` has the property tests.
//!
//! [`start`] and [`post`] begin operations at a [`ProtoSimEndpoint`], whose [`ProtoSimPort`] puts
//! packets and reads onto the network; [`deliver`] hands those over that are due, in an order that
//! the seed decides.
//!
//! The simulated adapter is reliable: packets are lost only when a peer dies. `device::soft`
//! simulates loss, because it retransmits. `FABRIC_SIM_SEEDS` sets the number of seeds.

mod runs;

use super::*;
use crate::core::rng::Rng;
use crate::types::*;
use crate::wire::{extra, Rta, RtaKind};
use std::collections::{BTreeMap, HashMap};

/// Key of the memory that peers read, write and change with atomics.
const REGION: u64 = 1 << 40;
/// Elements at the start of the region that atomics change.
const CELLS: usize = 8;

/// What is on its way through the network.
enum Flight {
    Packet { bytes: Vec<u8>, token: Token },
    Read { piece: RmaIov, into: Body, id: u32 },
}

/// Implements [`Port`] for one simulated endpoint.
struct ProtoSimPort {
    me: PeerId,
    /// When each arrives, and where.
    air: Vec<(u64, PeerId, Flight)>,
    /// Most packets and reads on their way at a time.
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

/// An endpoint of the simulated network.
struct ProtoSimEndpoint {
    ep: Endpoint,
    rq: RecvQueue,
    port: ProtoSimPort,
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
        port: ProtoSimPort {
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
        s.port.clock = now;
    }
    for i in 0..sides.len() {
        let mut at = 0;
        while at < sides[i].port.air.len() {
            let (due, to, _) = sides[i].port.air[at];
            let lost = dead.is_some_and(|d| d == to || d == i as PeerId);
            if due > now || lost {
                at += 1;
                continue;
            }
            let (_, to, flight) = sides[i].port.air.swap_remove(at);
            match flight {
                Flight::Packet { bytes, token } => {
                    let t = &mut sides[to as usize];
                    t.ep.packet(i as PeerId, &bytes, &mut t.rq, &mut t.port);
                    if let Some(id) = token.tx() {
                        let f = &mut sides[i];
                        f.ep.packet_done(id, None, &mut f.port);
                    }
                }
                Flight::Read { piece, into, id } => {
                    let from = Body {
                        ctx: piece.key as u32,
                        off: piece.addr,
                        len: piece.len as usize,
                    };
                    let bytes = sides[to as usize].port.bytes_of(from);
                    let f = &mut sides[i];
                    f.port.store(into.ctx, into.off, &bytes);
                    f.ep.read_done(id, None, &mut f.rq, &mut f.port);
                }
            }
        }
        if dead != Some(i as PeerId) {
            let s = &mut sides[i];
            s.ep.progress(&mut s.port);
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
            s.port.memory.insert(ctx, pattern(ctx, len));
            let a = SendArgs {
                peer: to,
                ctx,
                len: len as u64,
                tag,
                cq_data: ctx.is_multiple_of(3).then_some(u64::from(ctx)),
                receipt,
                inject: false,
            };
            s.ep.send(&a, &mut s.port).is_ok()
        }
        Plan::Write { at, len } => {
            s.port.memory.insert(ctx, pattern(ctx, len));
            let a = WriteArgs {
                peer: to,
                ctx,
                len: len as u64,
                to: far(at, len),
                cq_data: ctx.is_multiple_of(2).then_some(u64::from(ctx)),
                inject: false,
            };
            s.ep.write(&a, &mut s.port).is_ok()
        }
        Plan::Read { at, len } => {
            s.port.memory.insert(ctx, vec![0; len]);
            let a = ReadArgs {
                peer: to,
                ctx,
                len: len as u64,
                from: far(at, len),
            };
            s.ep.read(&a, &mut s.port).is_ok()
        }
        Plan::Sum { cell, fetch } => {
            s.port.memory.insert(ctx, vec![0; 8]);
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
            s.ep.atomic(&a, &mut s.port).is_ok()
        }
    }
}

/// Posts the receive for a message of side 0.
fn post(s: &mut ProtoSimEndpoint, ctx: u32, len: usize, tag: Option<u64>, any: bool) {
    s.port.memory.insert(ctx, vec![0; len]);
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
        s.ep.start_unexpected(place, &u, &mut s.rq, &mut s.port);
    }
}

pub(crate) fn seeds(default: u64) -> u64 {
    std::env::var("FABRIC_SIM_SEEDS")
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

/// Whether nothing is under way.
fn settled(s: &ProtoSimEndpoint) -> bool {
    s.ep.sending() == 0 && s.ep.receiving() == 0
}

/// Every operation is over: nothing of it is left at these endpoints.
fn assert_nothing_left<'a>(seed: u64, sides: impl IntoIterator<Item = &'a ProtoSimEndpoint>) {
    for s in sides {
        assert_eq!(s.port.expecting, 0, "seed {seed} side {}", s.port.me);
        assert!(s.port.targets.is_empty(), "seed {seed}");
    }
}

/// Acts as the adapter does when a peer is gone: fails all packets and reads to the peer, then
/// reports it.
fn fail_peer(s: &mut ProtoSimEndpoint, peer: PeerId, gone: Failure) {
    let air = core::mem::take(&mut s.port.air);
    let (lost, kept): (Vec<_>, Vec<_>) = air.into_iter().partition(|(_, to, _)| *to == peer);
    s.port.air = kept;
    for (_, _, f) in lost {
        match f {
            Flight::Packet {
                token: Token::Tx(id),
                ..
            } => s.ep.packet_done(id, Some(gone), &mut s.port),
            Flight::Packet { .. } => {}
            Flight::Read { id, .. } => {
                s.ep.read_done(id, Some(gone), &mut s.rq, &mut s.port);
            }
        }
    }
    s.ep.peer_down(peer, gone, &mut s.rq, &mut s.port);
}

/// The adapter of `s` cancels the reads of transfer `id`.
fn cancel_reads(s: &mut ProtoSimEndpoint, id: u32) {
    let air = core::mem::take(&mut s.port.air);
    let of = |f: &Flight| matches!(f, Flight::Read { id: read, .. } if *read == id);
    let (cancelled, kept): (Vec<_>, Vec<_>) = air.into_iter().partition(|(_, _, f)| of(f));
    s.port.air = kept;
    let why = Failure {
        errno: FI_ECANCELED,
        status: 13,
    };
    for _ in cancelled {
        s.ep.read_done(id, Some(why), &mut s.rq, &mut s.port);
    }
}
