//! Simulates the endpoints of one host with a seed and a virtual clock. Varies the room in rings,
//! what targets permit, what the kernel refuses, and the order in which processes run. Checks that
//! every read and write ends once, has moved its bytes when it succeeds, touches no memory
//! afterwards, and raises one event at a target that takes events; that no poll copies much more
//! than [`POLL_BUDGET`] bytes; and that, when a process dies at any step, the operations that need
//! it end.
//!
//! `FABRIC_SIM_SEEDS` sets how many seeds run.

mod runs;

mod split_host;

use super::port::{RmaPort, RmaRings};
use super::*;
use crate::core::rng::Rng;
use crate::hmem::fenced::FencedBuf;
use crate::hmem::{fake, UserMem};
use crate::proto::sim_seeds;
use crate::prov::contract::Common;
use crate::prov::efa::same_host::pattern;
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
    /// Device memory, which initiators may open.
    Device,
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
    /// Processes that take an event of every access.
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
    /// Bytes that the system has copied, and copies that the device has made.
    copied: usize,
    by_device: usize,
    /// Copies that devices make: where, whether it is a write, local memory, and when it is over.
    device_copies: HashMap<u32, (RemoteAddr, bool, UserMem, u64)>,
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
        let hidden = matches!(region, SimRegion::Hidden | SimRegion::Device);
        if h.dead.contains(&peer) || hidden || h.chance(h.refuses) {
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

    fn ensure_open(&mut self, peer: PeerId, at: RemoteAddr, _: bool, _: &UserMem) -> bool {
        let h = &mut *self.host.borrow_mut();
        let device = h.plan[at.key as usize].region == SimRegion::Device;
        device && !h.dead.contains(&peer) && !h.chance(h.refuses)
    }

    fn start_device_copy(
        &mut self,
        peer: PeerId,
        at: RemoteAddr,
        write: bool,
        local: &UserMem,
    ) -> Result<Option<u32>, RmaDenied> {
        let h = &mut *self.host.borrow_mut();
        if h.dead.contains(&peer) || h.chance(h.refuses) {
            return Err(RmaDenied::Unsupported);
        }
        if h.chance(h.full / 4) {
            return Ok(None);
        }
        let ready = h.clock + h.rng.below(50_000);
        h.by_device += 1;
        let n = h.by_device as u32;
        h.device_copies.insert(n, (at, write, *local, ready));
        Ok(Some(n))
    }

    fn poll_device_copy(&mut self, n: u32) -> Option<Result<(), RmaDenied>> {
        let h = &mut *self.host.borrow_mut();
        h.clock += 100;
        let (at, write, local, ready) = h.device_copies[&n];
        if h.clock < ready {
            return None;
        }
        h.device_copies.remove(&n);
        if h.chance(h.refuses) {
            return Some(Err(RmaDenied::Unsupported));
        }
        h.carry_out(at.key, write, &local, at.addr);
        Some(Ok(()))
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

    fn send_event(&mut self, peer: PeerId, what: (u64, usize, Option<u64>, bool)) -> Verdict {
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
