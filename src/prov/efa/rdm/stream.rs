//! Long messages to peers on the same host: in pieces through shared memory, both sides copying at once.
//!
//! The first record (`LONG`) has the tag, the length and the first bytes, and takes its turn among all messages to
//! that peer. A message of up to [`WHOLE`] follows it at once (`LEAD`). Of a longer one the sender keeps the
//! rest until the receiver has a place for it and says so (`GO`): nobody buffers it. Then it fills the ring whenever
//! there is room (`PIECE`, in `pump`), while the receiver empties it into the application's buffer: two copies, but
//! on two cores, through memory that stays in their caches, which is faster than one copy by the system.
//!
//! Numbers that a peer names are looked up together with the peer, and lengths are checked against what was announced.

use super::near::{finish, head_len, head_of, words, Done, GO, LEAD, LONG, PIECE, WITHOUT_ASKING};
use super::port::EpPort;
use super::{Data, MsgReq};
use crate::core::slab::Slab;
use crate::hmem::UserMem;
use crate::proto::{Coming, Failure, PeerId, Place, Port, RecvQueue, Unexpected};
use crate::shm::{Record, Sent, What};
use std::collections::VecDeque;

/// Longest message that goes without being asked for, bytes. An unexpected one is buffered.
pub const WHOLE: usize = 64 << 10;
/// Bytes of a record of such a message: few, so that the receiver begins early.
pub const FIRST: usize = 8 << 10;
/// Bytes of a record of a longer one.
const REST: usize = 32 << 10;
/// Bytes that one call of [`pump`] writes at most: what arrives has its turn, too.
const AT_ONCE: usize = 256 << 10;
/// Stands for no message.
const NONE: u32 = u32::MAX;

/// A message on its way out.
struct Out {
    to: PeerId,
    ctx: u32,
    sent: usize,
    /// The receiver's number of it, once it has said that it has a place.
    there: Option<u32>,
}

/// A message on its way in.
struct In {
    from: PeerId,
    tag: Option<u64>,
    cq_data: Option<u64>,
    len: usize,
    got: usize,
    place: Option<Place>,
    /// What came before there was a place.
    early: Vec<u8>,
    /// The sender's number of it, until it is asked for the rest.
    ask: Option<u32>,
}

/// The long messages of an endpoint.
#[derive(Default)]
pub struct Streams {
    out: Slab<Out>,
    /// Those that may go on.
    turn: VecDeque<u32>,
    /// The last [`pump`] stopped although there was room.
    more: bool,
    coming: Slab<In>,
    /// Which message the next `LEAD` of a peer belongs to.
    leads: Vec<(PeerId, u32)>,
    /// Messages whose `GO` found no room.
    unasked: Vec<u32>,
}

impl Streams {
    /// 0 when [`pump`] has nothing to do.
    #[inline(always)]
    pub fn load(&self) -> usize {
        self.turn.len() | self.unasked.len()
    }

    /// Whether it stopped for another reason than a full ring.
    pub fn more(&self) -> bool {
        self.more
    }
}

fn plain(kind: u8) -> What {
    What {
        kind,
        flags: 0,
        message: false,
    }
}

/// Sends a message whose operation is `ctx`. `Busy` and `Elsewhere` leave everything as it was.
pub fn send(port: &mut EpPort, peer: PeerId, ctx: u32, r: &MsgReq) -> Sent {
    let (Some(near), Data::User(mem)) = (&mut port.near, &r.data) else {
        return Sent::Elsewhere;
    };
    let Some(addr) = port.peers.addr(peer) else {
        return Sent::Elsewhere;
    };
    let len = mem.len();
    let whole = len <= WHOLE;
    if whole && !near.fits(peer, len.div_ceil(FIRST), FIRST + 32) {
        return Sent::Busy;
    }
    let number = if whole {
        NONE
    } else {
        port.nearby.streams.out.insert(Out {
            to: peer,
            ctx,
            sent: FIRST,
            there: None,
        })
    };
    let (mut head, flags) = ([0; 32], if whole { WITHOUT_ASKING } else { 0 });
    let (first, kinds) = words(r);
    let at = head_len(kinds);
    let mut put = |at: usize, word: u128| {
        if let Some(to) = head.get_mut(at..at + 16) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    };
    put(0, first);
    put(at, len as u128 | u128::from(number) << 64);
    let head = head.get(..at + 16).unwrap_or(&[]);
    let what = What {
        kind: LONG,
        flags: kinds | flags,
        message: true,
    };
    let sent = near.send(peer, addr, what, head, &mem.part(0, FIRST), &[]);
    if sent != Sent::Done {
        port.nearby.streams.out.remove(number);
        return sent;
    }
    if whole {
        let mut off = FIRST;
        while off < len {
            let sent = near.send(peer, addr, plain(LEAD), &[], &mem.part(off, FIRST), &[]);
            debug_assert_eq!(sent, Sent::Done, "there was room");
            off += FIRST;
        }
        port.sent(ctx, Ok(()));
    } else {
        near.widen(peer);
    }
    Sent::Done
}

/// Writes what there is room for of messages that were asked for, and asks for others.
pub fn pump(port: &mut EpPort) {
    for n in core::mem::take(&mut port.nearby.streams.unasked) {
        ask(n, port);
    }
    let mut left = AT_ONCE;
    let mut full = None;
    let mut at = 0;
    port.nearby.streams.more = false;
    while let Some(n) = port.nearby.streams.turn.get(at).copied() {
        let s = &mut port.nearby.streams;
        let (Some(o), Some(near)) = (s.out.get_mut(n), &mut port.near) else {
            s.turn.remove(at);
            continue;
        };
        let op = port.ops.get(o.ctx).map(|op| op.mem);
        let (Some(mem), Some(addr)) = (op, port.peers.addr(o.to)) else {
            s.turn.remove(at);
            continue;
        };
        let head = u64::from(o.there.unwrap_or(NONE)).to_ne_bytes();
        while full != Some(o.to) && o.sent < mem.len() && left > 0 {
            let part = mem.part(o.sent, REST);
            if near.send(o.to, addr, plain(PIECE), &head, &part, &[]) == Sent::Done {
                o.sent += part.len();
                left = left.saturating_sub(part.len());
            } else {
                full = Some(o.to);
            }
        }
        if o.sent >= mem.len() {
            let ctx = o.ctx;
            s.turn.remove(at);
            s.out.remove(n);
            port.sent(ctx, Ok(()));
        } else if left == 0 {
            s.more = true;
            return;
        } else {
            at += 1;
        }
    }
}

/// A record of a kind of this module has arrived.
pub fn arrived(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    match record.kind {
        LONG => begins(from, record, rq, port),
        LEAD => {
            let leads = &port.nearby.streams.leads;
            if let Some((_, n)) = leads.iter().find(|(p, _)| *p == from).copied() {
                goes_on(n, from, record, 0, rq, port);
            }
        }
        PIECE => goes_on(record.word(0) as u32, from, record, 8, rq, port),
        _ => {
            let (ours, theirs) = (record.word(0) as u32, record.word(8) as u32);
            let s = &mut port.nearby.streams;
            if let Some(o) = s.out.get_mut(ours) {
                if o.to == from && o.there.is_none() {
                    o.there = Some(theirs);
                    s.turn.push_back(ours);
                }
            }
        }
    }
}

fn begins(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    let Some(head) = head_of(record) else { return };
    let whole = record.flags & WITHOUT_ASKING != 0;
    let (len, body) = (record.word(head.bytes) as usize, head.bytes + 16);
    if record.len < body || whole && len > WHOLE {
        return;
    }
    let place = rq.place(from, head.tag, len as u64, |s| port.adopt(s));
    let s = &mut port.nearby.streams;
    let n = s.coming.insert(In {
        from,
        tag: head.tag,
        cq_data: head.cq_data,
        len,
        got: 0,
        place,
        early: Vec::new(),
        ask: (!whole).then_some(record.word(head.bytes + 8) as u32),
    });
    if whole {
        s.leads.retain(|(p, _)| *p != from);
        s.leads.push((from, n));
    }
    if place.is_none() {
        let coming = Coming {
            number: n,
            len: len as u64,
            held: if whole { len } else { record.len - body },
        };
        rq.keep(Unexpected::in_part(
            port.id,
            from,
            head.tag,
            head.cq_data,
            coming,
        ));
    } else {
        ask(n, port);
    }
    goes_on(n, from, record, body, rq, port);
}

/// Takes the bytes of a record from `off` on.
fn goes_on(
    n: u32,
    from: PeerId,
    record: &Record,
    off: usize,
    rq: &mut RecvQueue,
    port: &mut EpPort,
) {
    let bytes = record.len.saturating_sub(off);
    let i = port.nearby.streams.coming.get_mut(n);
    let Some(i) = i.filter(|i| i.from == from && bytes <= i.len - i.got) else {
        return;
    };
    match i.place {
        Some(p) => {
            if let Some(op) = port.ops.get(p.ctx) {
                let room = (p.room as usize).saturating_sub(i.got);
                record.copy_mem(off, &op.mem.part(p.base as usize + i.got, room));
            }
        }
        // Nobody has asked for more than the first piece.
        None if i.ask.is_some() && i.got > 0 => return,
        None => {
            if i.early.is_empty() && i.ask.is_none() {
                i.early.reserve_exact(i.len);
            }
            record.append(off, &mut i.early);
        }
    }
    i.got += bytes;
    if i.got == i.len {
        ends(n, rq, port);
    }
}

/// Everything has come.
fn ends(n: u32, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    s.leads.retain(|(_, l)| *l != n);
    if s.coming.get(n).is_none_or(|i| i.place.is_none()) {
        return;
    }
    if let Some(i) = s.coming.remove(n) {
        i.over(Ok(()), rq, port);
    }
}

impl In {
    fn over(self, result: Result<(), Failure>, rq: &mut RecvQueue, port: &mut EpPort) {
        if let Some(place) = self.place {
            let done = Done {
                from: self.from,
                tag: self.tag,
                cq_data: self.cq_data,
                len: self.len as u64,
                place,
            };
            finish(done, result, rq, port);
        }
    }
}

/// Asks for the rest of a message that has a place; later, when there is no room for the question now.
fn ask(n: u32, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let (Some(i), Some(near)) = (s.coming.get_mut(n), &mut port.near) else {
        return;
    };
    let (Some(number), Some(addr)) = (i.ask, port.peers.addr(i.from)) else {
        return;
    };
    let head = u128::from(number) | u128::from(n) << 64;
    let sent = near.send(
        i.from,
        addr,
        plain(GO),
        &head.to_ne_bytes(),
        &UserMem::EMPTY,
        &[],
    );
    if sent == Sent::Busy {
        s.unasked.push(n);
    } else {
        i.ask = None;
    }
}

/// An unexpected message has got its place.
pub fn placed(coming: &Coming, place: Place, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let Some(i) = s.coming.get_mut(coming.number) else {
        return;
    };
    i.place = Some(place);
    let early = core::mem::take(&mut i.early);
    if let Some(op) = port.ops.get(place.ctx) {
        let room = op.mem.part(place.base as usize, place.room as usize);
        room.store(0, &early);
    }
    if i.got == i.len {
        ends(coming.number, rq, port);
    } else {
        ask(coming.number, port);
    }
}

/// A peer is gone: what it has not sent or taken fails. A message that is all here stays.
pub fn peer_down(peer: PeerId, why: Failure, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let out = s.out.select(|o| o.to == peer);
    let lost = |i: &In| i.from == peer && (i.place.is_some() || i.got < i.len);
    let lost = s.coming.select(lost);
    s.turn.retain(|n| !out.contains(n));
    s.leads.retain(|(p, _)| *p != peer);
    for n in out {
        if let Some(o) = port.nearby.streams.out.remove(n) {
            port.sent(o.ctx, Err(why));
        }
    }
    rq.forget_coming(port.id, |n| lost.contains(&n));
    for n in lost {
        if let Some(i) = port.nearby.streams.coming.remove(n) {
            i.over(Err(why), rq, port);
        }
    }
}
