//! Simulates the endpoints of one host with a seed and a virtual clock. Varies the room in rings,
//! what the kernel refuses, and the order in which processes run. Checks that every message arrives
//! once and whole, every send ends once, no process copies memory of an operation that has ended,
//! and no state is left over; and that, when a process dies at any step, the operations that need
//! it end.
//!
//! `FABRIC_SIM_SEEDS` sets how many seeds run.

mod runs;

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

    /// The host memory at an address of a process, from there on. Panics unless it is lent.
    fn at(&self, owner: PeerId, at: u64, len: usize) -> UserMem {
        self.at_kind(owner, true, at, len)
    }

    /// As [`Host::at`], or device memory.
    fn at_kind(&self, owner: PeerId, host: bool, at: u64, len: usize) -> UserMem {
        let at = at as usize;
        let holds = |b: &&SimBuffer| {
            let (base, kind) = (b.mem.addr(), b.mem.is_host() == host);
            b.owner == owner && kind && base <= at && at + len <= base + b.mem.len()
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
        // The peer that is answered has called first; its side accepts our ring a little later.
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

    fn check_room(&mut self, peer: PeerId, count: usize, len: usize) -> bool {
        let h = self.host.borrow();
        let ring = h.rings.get(&(self.me, peer));
        let full: usize = ring.map_or(0, |r| r.iter().map(|r| r.body.len() + 16).sum());
        full + count * (len + 16) <= h.room
    }

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
        let ours = h.at_kind(self.me, local.is_host(), local.addr() as u64, local.len());
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
    type Rings = SimPort;

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
