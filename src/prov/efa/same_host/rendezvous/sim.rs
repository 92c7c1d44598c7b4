//! Simulates the endpoints of one host with a seed and a virtual clock. Varies the room in rings,
//! what the kernel refuses, and the order in which processes run. Checks that every message arrives
//! once and whole, every send ends once, no process copies memory of an operation that has ended,
//! and no state is left over; and that, when a process dies at any step, the operations that need
//! it end.
//!
//! `FABRIC_SIM_SEEDS` sets how many seeds run.

use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::*;
use crate::core::rng::Rng;
use crate::hmem::fenced::FencedBuf;
use crate::hmem::{fake, IpcHandle, MemKind, Segment, UserMem};
use crate::proto::{sim_seeds, Place, Received, RecvArgs, RecvEntry, RecvEntryMatch, NO_CTX};
use crate::prov::efa::same_host::split::SplitRings;
use crate::shm::SplitCopy;
use crate::transport::{Completion, Flow};
use crate::types::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::rc::Rc;

/// Offset of the numbers of receives from those of the sends that they take.
const RECV: u32 = 1000;

/// Memory of an operation.
struct SimBuffer {
    owner: PeerId,
    mem: UserMem,
    /// Host memory, with guard bytes on both sides that must not change.
    fenced: Option<FencedBuf>,
    /// The operation has not ended.
    lent: bool,
    /// What it held when the operation ended.
    left: Vec<u8>,
}

impl SimBuffer {
    fn bytes(&self) -> Vec<u8> {
        fake::bytes(&self.mem)
    }
}

struct SimSplit {
    round: u16,
    chunks: u32,
    taken: u32,
    done: u32,
    stopped: bool,
    /// Chunks that are left for the helper while the owner takes the others.
    held: u32,
}

/// What the processes share.
struct Host {
    rng: Rng,
    clock: u64,
    buffers: BTreeMap<u32, SimBuffer>,
    rings: HashMap<(PeerId, PeerId), VecDeque<SimRecord>>,
    /// Room of a ring, bytes.
    room: usize,
    /// Answers to peers that no ring leads to.
    cts: VecDeque<(PeerId, PeerId, u32, u32)>,
    /// Pairs whose ring the second has taken.
    connected: HashSet<(PeerId, PeerId)>,
    /// No ring can be made from the first to the second.
    unreached: HashSet<(PeerId, PeerId)>,
    splits: HashMap<(PeerId, PeerId, u8), SimSplit>,
    dead: HashSet<PeerId>,
    /// How often in percent the system, or the device, refuses.
    refuses: u64,
    /// Refused copies that cannot be done in another way.
    failed: u32,
    copies: HashMap<u32, (u32, UserMem, u64)>,
    next_copy: u32,
    /// Messages whose send ends when they have been received.
    delivery: HashSet<u32>,
}

type SharedHost = Rc<RefCell<Host>>;

impl Host {
    fn refused(&mut self) -> bool {
        let refuses = self.refuses;
        self.rng.below(100) < refuses
    }

    /// The memory at an address of a process, from there on. Panics unless it is lent.
    fn at(&self, owner: PeerId, at: u64, len: usize) -> UserMem {
        let at = at as usize;
        let holds = |b: &&SimBuffer| {
            let base = b.mem.addr();
            b.owner == owner && b.mem.is_host() && base <= at && at + len <= base + b.mem.len()
        };
        let mut all = self.buffers.values().filter(holds);
        let b = all.find(|b| b.lent).expect("memory that is not lent");
        b.mem.part(at - b.mem.addr(), len)
    }

    fn end(&mut self, ctx: u32) {
        let b = self.buffers.get_mut(&ctx).unwrap();
        assert!(b.lent, "operation {ctx} ends twice");
        let (at, len) = (b.mem.addr(), b.mem.len());
        let into =
            |(_, m, _): &(u32, UserMem, u64)| !m.is_empty() && (at..at + len).contains(&m.addr());
        assert!(!self.copies.values().any(into), "{ctx} ends under a copy");
        b.lent = false;
        b.left = b.bytes();
        if ctx < RECV {
            // The application goes on with its memory.
            b.mem.store(0, &vec![0xdd; b.mem.len()]);
            b.left = b.bytes();
        }
    }
}

struct SimRecord {
    host: SharedHost,
    from: PeerId,
    to: PeerId,
    what: RecordHeader,
    body: Vec<u8>,
}

impl ArrivedRecord for SimRecord {
    fn kind(&self) -> u8 {
        self.what.kind
    }

    fn flags(&self) -> u8 {
        self.what.flags
    }

    fn bytes(&self) -> usize {
        self.body.len()
    }

    fn word(&self, off: usize) -> u64 {
        let bytes = self.body.get(off..off + 8);
        bytes.map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap()))
    }

    fn copy_mem(&self, off: usize, into: &UserMem) {
        let all = self.body.get(off..).unwrap_or(&[]);
        into.store(0, &all[..all.len().min(into.len())]);
    }

    fn append(&self, off: usize, into: &mut Vec<u8>) {
        into.extend_from_slice(self.body.get(off..).unwrap_or(&[]));
    }

    fn copy_split(&self, s: SplitCopy, most: u32, copy: impl FnMut(u32) -> bool) -> Option<u32> {
        take_chunks(&self.host, (self.from, self.to), s, (true, most), copy)
    }
}

/// Takes chunks of a split copy as long as there are some for this side.
fn take_chunks(
    host: &SharedHost,
    (owner, helper): (PeerId, PeerId),
    s: SplitCopy,
    (helps, most): (bool, u32),
    mut copy: impl FnMut(u32) -> bool,
) -> Option<u32> {
    let key = (owner, helper, s.word);
    let next = || {
        let mut h = host.borrow_mut();
        let split = h.splits.get_mut(&key)?;
        let end = split.chunks - if helps { 0 } else { split.held };
        let gone = split.stopped || split.round != s.round || split.taken >= end;
        (!gone).then(|| {
            split.taken += 1;
            split.taken - 1
        })
    };
    let mut n = 0;
    while let Some(c) = (n < most).then(next).flatten() {
        if !copy(c) {
            host.borrow_mut().failed += 1;
            return None;
        }
        host.borrow_mut().splits.get_mut(&key).unwrap().done += 1;
        n += 1;
    }
    Some(n)
}

/// The port of a simulated endpoint.
struct SimPort {
    me: PeerId,
    host: SharedHost,
    sent: BTreeMap<u32, Result<(), Failure>>,
    received: BTreeMap<u32, (Received, Result<(), Failure>)>,
    round: u16,
}

impl SimPort {
    fn record(&mut self, to: PeerId, what: RecordHeader, body: Vec<u8>) -> Verdict {
        let mut h = self.host.borrow_mut();
        if h.unreached.contains(&(self.me, to)) {
            return Verdict::Unsupported;
        }
        // Who answers is called first, and lets its ring in a little later.
        let answer = matches!(what.kind, kind::CTS | kind::FIN);
        if !h.connected.contains(&(self.me, to)) {
            if answer && h.rng.below(2) == 0 {
                return Verdict::NoResources;
            }
            h.connected.insert((self.me, to));
        }
        let (room, ring) = (h.room, h.rings.get(&(self.me, to)));
        let full: usize = ring.map_or(0, |r| r.iter().map(|r| r.body.len() + 16).sum());
        // Other writers may take the room, except that which `fits` has reported for fragments.
        let taken = what.kind != kind::EAGER_FRAG && h.rng.below(8) == 0;
        if taken || full + body.len() + 16 > room {
            return Verdict::NoResources;
        }
        let ring = h.rings.entry((self.me, to)).or_default();
        ring.push_back(SimRecord {
            host: Rc::clone(&self.host),
            from: self.me,
            to,
            what,
            body,
        });
        Verdict::Done
    }
}

impl SplitRings for SimPort {
    fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy> {
        let h = &mut *self.host.borrow_mut();
        let word = (0..3).find(|w| !h.splits.contains_key(&(self.me, peer, *w)))?;
        self.round += 1;
        let held = h.rng.below(u64::from(chunks) + 1) as u32;
        let split = SimSplit {
            round: self.round,
            chunks,
            taken: 0,
            done: 0,
            stopped: false,
            held,
        };
        h.splits.insert((self.me, peer, word), split);
        Some(SplitCopy {
            word,
            round: self.round,
            chunks,
        })
    }

    fn end_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let over = self.split_done(peer, s);
        if over {
            self.host
                .borrow_mut()
                .splits
                .remove(&(self.me, peer, s.word));
        }
        over
    }

    fn stop_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let mut h = self.host.borrow_mut();
        let ended = h.rng.below(3) > 0 || h.dead.contains(&peer);
        if ended {
            h.splits.remove(&(self.me, peer, s.word));
        }
        ended
    }
}

impl PeerRings for SimPort {
    fn now(&self) -> u64 {
        let mut h = self.host.borrow_mut();
        h.clock += h.rng.below(2000);
        h.clock
    }

    fn has_route(&self, peer: PeerId) -> bool {
        self.host.borrow().connected.contains(&(self.me, peer))
    }

    fn reaches_memory(&self, peer: PeerId) -> bool {
        let h = self.host.borrow();
        let ways = [(self.me, peer), (peer, self.me)];
        !ways.iter().any(|w| h.unreached.contains(w))
    }

    fn fits(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let h = self.host.borrow();
        let ring = h.rings.get(&(self.me, peer));
        let full: usize = ring.map_or(0, |r| r.iter().map(|r| r.body.len() + 16).sum());
        full + count * (len + 16) <= h.room
    }

    fn widen(&mut self, _peer: PeerId) {}

    fn send_words(&mut self, peer: PeerId, what: RecordHeader, words: &[u64]) -> Verdict {
        let body = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.record(peer, what, body)
    }

    fn cma_copy(&self, peer: PeerId, write: bool, local: &LocalBuffer, at: u64) -> bool {
        let local: UserMem = match local {
            LocalBuffer::Mem(m) => **m,
            LocalBuffer::Piece(p) => (*p).into(),
            _ => unreachable!("nothing else is copied"),
        };
        let mut h = self.host.borrow_mut();
        if h.dead.contains(&peer) || h.refused() {
            return false;
        }
        if local.is_empty() {
            return true;
        }
        let theirs = h.at(peer, at, local.len());
        let ours = h.at(self.me, local.addr() as u64, local.len());
        let (from, to) = if write {
            (ours, theirs)
        } else {
            (theirs, ours)
        };
        to.store(0, &fake::bytes(&from));
        true
    }

    fn cma_read_batch(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        let mut parts = parts;
        let all = parts.by_ref();
        all.take_while(|(p, at)| self.cma_copy(peer, false, &LocalBuffer::Piece(*p), *at))
            .count()
    }

    fn copy_split(
        &self,
        peer: PeerId,
        s: SplitCopy,
        most: u32,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        take_chunks(&self.host, (self.me, peer), s, (false, most), copy)
    }

    fn split_done(&self, peer: PeerId, s: SplitCopy) -> bool {
        let h = self.host.borrow();
        let split = h.splits.get(&(self.me, peer, s.word));
        split.is_some_and(|split| split.done >= split.chunks)
    }
}

impl RendezvousPort for SimPort {
    type PeerRings = SimPort;

    fn id(&self) -> u32 {
        0
    }

    fn rings(&mut self) -> Option<&mut SimPort> {
        Some(self)
    }

    fn send(&mut self, to: PeerId, what: RecordHeader, words: &[u64], mem: &UserMem) -> Verdict {
        let words = words.iter().flat_map(|w| w.to_ne_bytes());
        let body = words.chain(fake::bytes(mem)).collect();
        self.record(to, what, body)
    }

    fn send_cts(&mut self, to: PeerId, number: u32, there: u32) -> Verdict {
        let mut h = self.host.borrow_mut();
        h.cts.push_back((self.me, to, number, there));
        Verdict::Done
    }

    fn buffer(&self, ctx: u32) -> Option<UserMem> {
        let h = self.host.borrow();
        let b = h.buffers.get(&ctx).filter(|b| b.lent);
        b.map(|b| b.mem)
    }

    fn adopt(&mut self, recv: RecvEntryMatch) -> u32 {
        recv.what.context as u32
    }

    fn received(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        self.host.borrow_mut().end(ctx);
        let before = self.received.insert(ctx, (msg, result));
        assert!(before.is_none(), "receive {ctx} ends twice");
    }

    fn sent(&mut self, done: &Completion, result: Result<(), Failure>) {
        let ctx = done.op().unwrap_or(done.context as u32);
        let mut h = self.host.borrow_mut();
        let received = h.buffers.get(&(ctx + RECV)).is_some_and(|b| !b.lent);
        assert!(
            received || result.is_err() || !h.delivery.contains(&ctx),
            "send {ctx} ends before its message is received"
        );
        h.end(ctx);
        drop(h);
        let before = self.sent.insert(ctx, result);
        assert!(before.is_none(), "send {ctx} ends twice");
    }

    fn share(&mut self, mem: &Segment) -> crate::core::Result<IpcHandle> {
        let mut h = self.host.borrow_mut();
        let holds = |b: &&SimBuffer| !b.mem.is_host() && b.mem.addr() == mem.addr() && b.lent;
        let b = h.buffers.iter().find(|(_, b)| holds(b));
        let ctx = b.map(|(ctx, _)| *ctx).unwrap();
        if h.refused() {
            return Err(FI_EOPNOTSUPP);
        }
        Ok(IpcHandle {
            words: [0; 8],
            id: ctx.into(),
            offset: 0,
        })
    }

    fn start_copy(
        &mut self,
        _from: PeerId,
        (_, handle): (MemKind, &IpcHandle),
        into: &UserMem,
    ) -> crate::core::Result<u32> {
        let h = &mut *self.host.borrow_mut();
        if h.refused() {
            return Err(FI_EINVAL);
        }
        h.next_copy += 1;
        let ready = h.clock + h.rng.below(50_000);
        h.copies
            .insert(h.next_copy, (handle.id as u32, *into, ready));
        Ok(h.next_copy)
    }

    fn poll_copy(&mut self, copy: u32) -> crate::core::Result<bool> {
        let h = &mut *self.host.borrow_mut();
        h.clock += 100;
        let (from, into, ready) = h.copies[&copy];
        if h.clock < ready {
            return Ok(false);
        }
        h.copies.remove(&copy);
        if h.refused() {
            h.failed += 1;
            return Err(FI_EIO);
        }
        let b = &h.buffers[&from];
        assert!(b.lent, "device memory of an ended send is copied");
        into.store(0, &b.bytes()[..into.len()]);
        Ok(true)
    }

    fn abort_copy(&mut self, copy: u32) {
        self.host.borrow_mut().copies.remove(&copy);
    }

    fn forget_shared(&mut self, _peer: PeerId) {}
}

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

fn pattern(ctx: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u32 ^ (i as u32 >> 8) ^ ctx.wrapping_mul(0x9d)) as u8)
        .collect()
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
        let mem = self.lend(ctx, p.from, &pattern(ctx, p.len), p.device[0]);
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
                if s.state.arrived(from, &r, &mut s.rq, &mut s.world) == Flow::Deferred {
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
            s.state.asked(from, number, there, &mut s.world);
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
        s.out.is_empty() && s.coming.is_empty() && s.load() == 0 && s.leads.is_empty()
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
        let lost = Err(cma_failure());
        if sent == lost || *result == lost {
            assert!(h.failed > 0, "seed {seed} message {n}: {p:?}");
            return;
        }
        assert_eq!(sent, Ok(()), "seed {seed} message {n}: {p:?}");
        let got = p.len.min(p.room);
        let whole = p.room >= p.len;
        assert_eq!(result.is_ok(), whole, "seed {seed} message {n}: {result:?}");
        let head = (msg.len as usize, msg.cq_data, msg.from);
        let data = ctx.is_multiple_of(3).then_some(u64::from(ctx));
        assert_eq!(head, (p.len, data, p.from), "seed {seed} message {n}");
        let same = b.left[..got] == pattern(ctx, p.len)[..got];
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
            assert!(s.state.out.is_empty() && s.state.load() == 0, "seed {seed}");
            assert!(s.state.coming.iter().all(|(_, i)| i.from == dead));
        }
    }
}

#[test]
fn numbers_of_peers_are_checked() {
    // A FIN, CTS or DATA from a peer that has no part in the message changes nothing.
    let mut sim = Sim::new(7, 3);
    sim.plan = vec![MessagePlan {
        from: 0,
        to: 1,
        tag: None,
        len: 300_000,
        room: 300_000,
        fast: [false; 2],
        device: [false; 2],
        delivery: false,
    }];
    sim.host.borrow_mut().refuses = 0;
    sim.host.borrow_mut().unreached.clear();
    sim.send(0);
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
            s.state.arrived(2, &r, &mut s.rq, &mut s.world);
        }
    }
    assert!(sim.sides[0].world.sent.is_empty());
    sim.post(0);
    let mut steps = 0;
    while !sim.sides.iter().all(|s| sim.idle(s)) || sim.sides[1].world.received.is_empty() {
        steps += 1;
        assert!(steps < 10_000);
        sim.poll(0);
        sim.poll(1);
    }
    sim.check(7, 0);
    assert!(sim.begun.contains(&RECV) && NO_CTX > RECV);
}
