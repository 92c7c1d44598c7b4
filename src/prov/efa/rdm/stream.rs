//! Long messages to peers on the same host: in pieces through shared memory, both sides copying at once, or by the system from
//! one process's memory into the other's, whichever is faster here (`pace`).
//!
//! The first record (`LONG`) has the tag, the length and the first bytes, and takes its turn among all messages to
//! that peer. A message of up to [`WHOLE`] follows it at once (`LEAD`), unless asking is known to be better. Of others the sender keeps the
//! rest until the receiver has a place for it: nobody buffers it. The receiver may say so (`GO`); then the sender fills the ring whenever
//! there is room (`PIECE`, in `pump`), while the receiver empties it into the application's buffer: two copies, but
//! on two cores, through memory that stays in their caches. Or the receiver copies it by the system from where `LONG` says it
//! is (`fetch`), and says when it has it (`FETCHED`). Or it lets the sender help: `SHARE` says where the message shall be, both take chunks
//! (`shm::Share`), and who has helped says so (`HELPED`).
//!
//! Numbers that a peer names are looked up together with the peer, and lengths are checked against what was announced.

use super::near::{
    finish, head_len, head_of, words, words_of, Done, Head, FETCHED, GO, HELPED, LEAD, LONG, PIECE,
    SHARE, WITHOUT_ASKING,
};
use super::pace::{Pace, Way};
use super::port::EpPort;
use super::{failure, Data, MsgReq, UserOp};
use crate::core::slab::Slab;
use crate::device::{host, Status};
use crate::hmem::{Piece, UserMem};
use crate::proto::{
    Coming, Failure, PeerId, Place, Port, RecvQueue, Short as PlainRecv, Unexpected,
};
use crate::shm::{Local, Note, Outbox, Record, Sent, Share, What};
use std::collections::VecDeque;

/// Longest message that goes without being asked for, bytes. An unexpected one is buffered.
pub const WHOLE: usize = 64 << 10;
/// Bytes of a record of such a message: few, so that the receiver begins early.
pub const FIRST: usize = 8 << 10;
/// Bytes of a record of a longer one.
const REST: usize = 32 << 10;
/// Bytes that one call of [`pump`] writes at most: what arrives has its turn, too.
const AT_ONCE: usize = 256 << 10;
/// The shortest that the sender may help with, and bytes of a chunk of it, of which there shall be a few, two at least.
const SHARED: usize = 48 << 10;
const CHUNK: core::ops::RangeInclusive<usize> = 128 << 10..=512 << 10;
const CHUNKS: usize = 8;
/// In what the receiver answers: the message is lost.
const LOST: u64 = 1;
/// Stands for no message.
const NONE: u32 = u32::MAX;

/// What is being sent: the memory of an operation, or that of a plain call, with what it is told by in the end.
#[derive(Clone, Copy)]
enum Sending {
    Op(u32),
    Plain(Piece, Note),
}

/// A message on its way out.
struct Out {
    to: PeerId,
    what: Sending,
    sent: usize,
    /// The receiver's number of it, once it has said that it has a place.
    there: Option<u32>,
}

impl Out {
    fn mem(&self, ops: &Slab<UserOp>) -> Option<UserMem> {
        match self.what {
            Sending::Op(ctx) => ops.get(ctx).map(|op| op.mem),
            Sending::Plain(p, _) => Some(p.into()),
        }
    }

    fn ends(self, result: Result<(), Failure>, port: &mut EpPort) {
        match (self.what, result) {
            (Sending::Op(ctx), r) => port.sent(ctx, r),
            (Sending::Plain(_, note), Ok(())) => port.done(&note),
            (Sending::Plain(_, note), Err(why)) => port.fails(&note, self.to, (0, 0), why),
        }
    }
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
    /// The sender's number of it, if it has to be asked for the rest, and where that is in its memory; 0 if nowhere.
    number: Option<u32>,
    at: u64,
    /// When it began, and the transfer that the sender helps with, if it may.
    began: u64,
    share: Option<Share>,
}

/// What there is to say to a peer: up to five words.
#[derive(Clone, Copy)]
struct Word {
    to: PeerId,
    kind: u8,
    words: [u64; 5],
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
    /// What found no room.
    unsaid: Vec<Word>,
    /// How long it takes us to receive, and to write what need not be asked for.
    pace: Pace,
    writing: Pace,
    /// How what need not be asked for is sent best: unasked by the ring, or asked for. Whether longer ones are mostly fetched.
    asking: Pace,
    fetched: bool,
}

impl Streams {
    /// 0 when [`pump`] has nothing to do.
    #[inline(always)]
    pub fn load(&self) -> usize {
        self.turn.len() | self.unsaid.len()
    }

    /// Whether it stopped for another reason than a full ring.
    pub fn more(&self) -> bool {
        self.more
    }

    /// The receiver of a message of ours has answered: it has fetched it, and says what messages like it cost there by each way; or it
    /// wants it written.
    fn learn(&mut self, len: usize, fetched: Option<[u64; 2]>) {
        if len > WHOLE {
            self.fetched = fetched.is_some();
        } else if let Some([ring, fetched]) = fetched {
            // Both copy at once: the slower of them counts.
            let ring = ring.max(self.writing.cost(len, &[Way::Ring]));
            for (way, cost) in [(Way::Ring, ring), (Way::Attach, fetched)] {
                if cost > 0 {
                    self.asking.learn(way, len, cost);
                }
            }
        }
    }
}

/// Ways of what need not be asked for: unasked, and asked for and fetched.
const UNASKED_OR_NOT: [Way; 2] = [Way::Ring, Way::Attach];

impl Streams {
    /// As [`send`], of a plain call, when the message is to be fetched; else `Elsewhere`, and nothing is done.
    pub fn lend(
        &mut self,
        near: &mut Outbox,
        peer: PeerId,
        (tag, cq_data): (Option<u64>, Option<u64>),
        mem: Piece,
        note: Note,
    ) -> Sent {
        let len = mem.len();
        let fetched = match len <= WHOLE {
            true => self.asking.next(len, &UNASKED_OR_NOT) == Way::Attach,
            false => self.fetched,
        };
        if !fetched || !near.visits(peer) {
            return Sent::Elsewhere;
        }
        let number = self.out.insert(Out {
            to: peer,
            what: Sending::Plain(mem, note),
            sent: 0,
            there: None,
        });
        let ([a, b], kinds) = words_of(tag, cq_data);
        let rest = [len as u64, number.into(), mem.addr() as u64];
        let what = What {
            kind: LONG,
            flags: kinds,
            message: true,
        };
        let [x, y, z] = rest;
        let sent = match head_len(kinds) {
            0 => near.send_words(peer, what, &rest),
            8 => near.send_words(peer, what, &[a, x, y, z]),
            _ => near.send_words(peer, what, &[a, b, x, y, z]),
        };
        match sent {
            Sent::Done => self.asking.goes(len),
            _ => drop(self.out.remove(number)),
        }
        sent
    }

    /// As [`arrived`], a message that waits to be fetched and is for a plain receive: fetches it. `None`, and nothing done, when it
    /// takes more than that.
    pub fn fetch(
        &mut self,
        near: &mut Outbox,
        from: PeerId,
        record: &Record,
        rq: &mut RecvQueue,
    ) -> Option<(PlainRecv, Head, usize)> {
        let head = head_of(record).filter(|_| record.flags & WITHOUT_ASKING == 0)?;
        let [len, number, at] = [0, 8, 16].map(|off| record.word(head.bytes + off));
        let len = len as usize;
        if record.len != head.bytes + 24 || at == 0 || !near.visits(from) {
            return None;
        }
        if self.pace.next(len, ways(len)) != Way::Attach {
            return None;
        }
        let began = host::now();
        let r = rq.take_short_if(from, head.tag, len, |r| {
            near.carry(from, false, &Local::Piece(r.into.part(0, len)), at)
        })?;
        self.pace.goes(len);
        self.pace
            .took(Way::Attach, len, host::now().saturating_sub(began));
        let [ring, fetched] = self.costs(len);
        let words = [number, 0, ring, fetched, 0];
        if near.send_words(from, plain(FETCHED), &words) == Sent::Busy {
            self.unsaid.push(Word {
                to: from,
                kind: FETCHED,
                words,
            });
        }
        Some((r, head, len))
    }

    /// What messages like this cost us: by the ring, and fetched.
    fn costs(&mut self, len: usize) -> [u64; 2] {
        [&[Way::Ring][..], &[Way::Attach, Way::Both]].map(|ways| self.pace.cost(len, ways))
    }
}

/// How a message of this length may come that is not here yet. A shorter one that is asked for is there to be fetched.
fn ways(len: usize) -> &'static [Way] {
    match len {
        0..SHARED => &[Way::Attach],
        SHARED..=WHOLE => &[Way::Attach, Way::Both],
        _ => &[Way::Attach, Way::Both, Way::Ring],
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
    let streams = &mut port.nearby.streams;
    let place = mem.one().filter(|_| near.visits(peer));
    let unasked = |a: &mut Pace| a.next(len, &UNASKED_OR_NOT) == Way::Ring;
    let whole = len <= WHOLE && (place.is_none() || unasked(&mut streams.asking));
    if whole && !near.fits(peer, len.div_ceil(FIRST), FIRST + 32) {
        return Sent::Busy;
    }
    // What is fetched is fetched as a whole.
    let fetched = place.is_some() && (len <= WHOLE || streams.fetched);
    let first = if !whole && fetched { 0 } else { FIRST };
    let number = if whole {
        NONE
    } else {
        streams.out.insert(Out {
            to: peer,
            what: Sending::Op(ctx),
            sent: first,
            there: None,
        })
    };
    let (mut head, flags) = ([0; 40], if whole { WITHOUT_ASKING } else { 0 });
    let (front, kinds) = words(r);
    let at = head_len(kinds);
    let mut put = |at: usize, word: u128| {
        if let Some(to) = head.get_mut(at..at + 16) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
    };
    put(0, front);
    put(at, len as u128 | u128::from(number) << 64);
    put(at + 16, place.map_or(0, |p| p.addr() as u128));
    let head = head.get(..at + if whole { 16 } else { 24 }).unwrap_or(&[]);
    let what = What {
        kind: LONG,
        flags: kinds | flags,
        message: true,
    };
    let sent = near.send(peer, addr, what, head, &mem.part(0, first), &[]);
    if sent != Sent::Done {
        port.nearby.streams.out.remove(number);
        return sent;
    }
    port.nearby.streams.asking.goes(len);
    if whole {
        let mut off = FIRST;
        let began = host::now();
        while off < len {
            let sent = near.send(peer, addr, plain(LEAD), &[], &mem.part(off, FIRST), &[]);
            debug_assert_eq!(sent, Sent::Done, "there was room");
            off += FIRST;
        }
        let ns = host::now().saturating_sub(began);
        let writing = &mut port.nearby.streams.writing;
        writing.took(Way::Ring, len, ns * len as u64 / (len - FIRST) as u64);
        port.sent(ctx, Ok(()));
    }
    Sent::Done
}

/// Writes what there is room for of messages that were asked for, and asks for others.
pub fn pump(port: &mut EpPort) {
    for w in core::mem::take(&mut port.nearby.streams.unsaid) {
        say(w.to, w.kind, w.words, port);
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
        let mem = o.mem(port.ops);
        let (Some(mem), Some(addr)) = (mem, port.peers.addr(o.to)) else {
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
            s.turn.remove(at);
            if let Some(o) = s.out.remove(n) {
                o.ends(Ok(()), port);
            }
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
        GO => {
            let (ours, theirs) = (record.word(0) as u32, record.word(8) as u32);
            let s = &mut port.nearby.streams;
            if let Some(o) = s.out.get_mut(ours) {
                if o.to == from && o.there.is_none() {
                    o.there = Some(theirs);
                    s.turn.push_back(ours);
                    let len = o.mem(port.ops).map_or(0, |m| m.len());
                    s.learn(len, None);
                    if let Some(near) = &mut port.near {
                        near.widen(from);
                    }
                }
            }
        }
        SHARE => help(from, record, port),
        FETCHED => {
            let (ours, how) = (record.word(0) as u32, record.word(8));
            let s = &mut port.nearby.streams;
            if s.out.get(ours).is_some_and(|o| o.to == from) {
                let Some(o) = s.out.remove(ours) else { return };
                s.turn.retain(|n| *n != ours);
                let len = o.mem(port.ops).map_or(0, |m| m.len());
                s.learn(len, Some([16, 24].map(|off| record.word(off))));
                let lost = how & LOST != 0;
                o.ends(if lost { Err(lost_there()) } else { Ok(()) }, port);
            }
        }
        _ => {
            let (n, how) = (record.word(0) as u32, record.word(8));
            let helped = |i: &In| i.from == from && i.share.is_some();
            if port.nearby.streams.coming.get(n).is_some_and(helped) {
                match how & LOST {
                    0 => fetched(n, rq, port),
                    _ => lost(n, rq, port),
                }
            }
        }
    }
}

/// Why a message is lost that the system would not copy, here or there.
fn lost_there() -> Failure {
    failure(Status::RemoteAbort)
}

/// Says something to a peer, or later when there is no room now.
fn say(to: PeerId, kind: u8, words: [u64; 5], port: &mut EpPort) {
    let (Some(near), Some(addr)) = (&mut port.near, port.peers.addr(to)) else {
        return;
    };
    if !near.acquaint(to, addr) || near.send_words(to, plain(kind), &words) == Sent::Busy {
        port.nearby.streams.unsaid.push(Word { to, kind, words });
    }
}

fn begins(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    let Some(head) = head_of(record) else { return };
    let whole = record.flags & WITHOUT_ASKING != 0;
    let len = record.word(head.bytes) as usize;
    let body = head.bytes + if whole { 16 } else { 24 };
    if record.len < body || record.len - body > len || whole && len > WHOLE {
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
        number: (!whole).then_some(record.word(head.bytes + 8) as u32),
        at: if whole {
            0
        } else {
            record.word(head.bytes + 16)
        },
        began: if whole { host::now() } else { 0 },
        share: None,
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
    }
    let way = place.and_then(|_| choose(n, port));
    if way == Some(Way::Ring) {
        ask(n, port);
    }
    goes_on(n, from, record, body, rq, port);
    if let Some(way @ (Way::Attach | Way::Both)) = way {
        fetch(n, way, rq, port);
    }
}

/// How the rest of a message that has a place is to come; `None` when it comes by itself.
fn choose(n: u32, port: &mut EpPort) -> Option<Way> {
    let s = &mut port.nearby.streams;
    let i = s.coming.get_mut(n)?;
    i.number?;
    i.began = host::now();
    let near = port.near.as_ref()?;
    if i.at == 0 || !near.visits(i.from) {
        return Some(Way::Ring);
    }
    Some(s.pace.choose(i.len, ways(i.len)))
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
        None if i.number.is_some() && i.got > 0 => return,
        None => {
            if i.early.is_empty() && i.number.is_none() {
                i.early.reserve_exact(i.len);
            }
            record.append(off, &mut i.early);
        }
    }
    i.got += bytes;
    if i.got == i.len {
        if i.place.is_some() && i.began > 0 {
            let (len, ns) = (i.len, host::now().saturating_sub(i.began));
            port.nearby.streams.pace.took(Way::Ring, len, ns);
        }
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

/// Asks for the rest of a message that has a place.
fn ask(n: u32, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let i = s.coming.get(n);
    if let Some((to, number)) = i.and_then(|i| Some((i.from, i.number?))) {
        say(to, GO, [number.into(), n.into(), 0, 0, 0], port);
    }
}

/// Copies the rest of a message that has a place from the sender's memory, with its help or without.
fn fetch(n: u32, way: Way, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let (Some(i), Some(near)) = (s.coming.get_mut(n), &mut port.near) else {
        return;
    };
    let (Some(place), Some(number)) = (i.place, i.number) else {
        return;
    };
    let (from, got) = (i.from, i.got);
    let room = (place.room as usize).saturating_sub(got).min(i.len - got);
    let op = port.ops.get(place.ctx).map(|op| op.mem);
    let into = op.map_or(UserMem::EMPTY, |m| m.part(place.base as usize + got, room));
    let at = i.at.wrapping_add(got as u64);
    let half = room.div_ceil(2).next_multiple_of(4096);
    let chunk = (room / CHUNKS)
        .clamp(*CHUNK.start(), *CHUNK.end())
        .min(half);
    let whole = into
        .one()
        .filter(|p| way == Way::Both && p.len() == room && room > chunk);
    let chunks = room.div_ceil(chunk) as u32;
    let share = whole.and_then(|p| Some((near.open_share(from, chunks)?, p)));
    let Some((share, piece)) = share else {
        return match near.carry(from, false, &Local::Mem(&into), at) {
            true => fetched(n, rq, port),
            false => ask(n, port),
        };
    };
    i.share = Some(share);
    let words = [
        u64::from(number) | u64::from(n) << 32,
        share.packed(),
        piece.addr() as u64,
        chunk as u64 | (got as u64) << 32,
        room as u64,
    ];
    say(from, SHARE, words, port);
    let Some(near) = &port.near else { return };
    let began = host::now();
    let copy = |c| carry_chunk(near, (from, false), (piece, at), (c, chunk));
    match near.work_share(from, share, copy) {
        Some(ours) => {
            // The sender's last chunk will be there in a moment: its word of it comes behind all that is in the ring.
            let now = host::now();
            let moment = now + (now - began) / u64::from(ours.max(1));
            while !near.share_over(from, share) && host::now() < moment {
                core::hint::spin_loop();
            }
            fetched(n, rq, port);
        }
        None => lost(n, rq, port),
    }
}

/// Copies a chunk of a piece of memory of ours to or from a peer's, at `at`. `false` when the system does not.
fn carry_chunk(
    near: &Outbox,
    (peer, write): (PeerId, bool),
    (piece, at): (Piece, u64),
    (c, chunk): (u32, usize),
) -> bool {
    let off = c as usize * chunk;
    let part = Local::Piece(piece.part(off, chunk));
    near.carry(peer, write, &part, at.wrapping_add(off as u64))
}

/// Copies chunks of a message of ours to where its receiver wants them, as long as there are some.
fn help(from: PeerId, record: &Record, port: &mut EpPort) {
    let [which, share, at, how, room] = [0, 8, 16, 24, 32].map(|off| record.word(off));
    let (ours, theirs) = (which as u32, which >> 32);
    let (chunk, got) = (how as u32 as usize, (how >> 32) as usize);
    let share = Share::of(share);
    let o = port.nearby.streams.out.get(ours).filter(|o| o.to == from);
    let mem = o.and_then(|o| o.mem(port.ops)?.one());
    let (Some(mem), Some(near)) = (mem, &port.near) else {
        return;
    };
    if !near.visits(from) {
        return;
    }
    let rest: Piece = mem.part(got, room as usize);
    let copy = |c| carry_chunk(near, (from, true), (rest, at), (c, chunk));
    let how = match record.work_share(share, copy) {
        Some(0) => return,
        Some(_) => 0,
        None => LOST,
    };
    say(from, HELPED, [theirs, how, 0, 0, 0], port);
}

/// All that we copy of a message is copied: it ends, unless the sender is still at work.
fn fetched(n: u32, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let (Some(i), Some(near)) = (s.coming.get_mut(n), &mut port.near) else {
        return;
    };
    let over = i.share.is_none_or(|share| near.end_share(i.from, share));
    if !over {
        return;
    }
    let way = i.share.map_or(Way::Attach, |_| Way::Both);
    if i.began > 0 {
        s.pace.took(way, i.len, host::now().saturating_sub(i.began));
    }
    i.got = i.len;
    tell(n, 0, port);
    ends(n, rq, port);
}

/// The system would not copy all of it.
#[cold]
fn lost(n: u32, rq: &mut RecvQueue, port: &mut EpPort) {
    tell(n, LOST, port);
    if let Some(i) = port.nearby.streams.coming.remove(n) {
        if let (Some(near), Some(share)) = (&mut port.near, i.share) {
            near.stop_share(i.from, share);
        }
        i.over(Err(lost_there()), rq, port);
    }
}

/// Tells the sender of a message what became of it.
fn tell(n: u32, how: u64, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let i = s.coming.get(n);
    if let Some((to, number, len)) = i.and_then(|i| Some((i.from, i.number?, i.len))) {
        let [ring, fetched] = s.costs(len);
        say(to, FETCHED, [number.into(), how, ring, fetched, 0], port);
    }
}

/// An unexpected message has got its place.
pub fn placed(coming: &Coming, place: Place, rq: &mut RecvQueue, port: &mut EpPort) {
    let s = &mut port.nearby.streams;
    let Some(i) = s.coming.get_mut(coming.number) else {
        return;
    };
    i.place = Some(place);
    // How long it has waited for its place says nothing.
    i.began = 0;
    let early = core::mem::take(&mut i.early);
    if let Some(op) = port.ops.get(place.ctx) {
        let room = op.mem.part(place.base as usize, place.room as usize);
        room.store(0, &early);
    }
    if i.got == i.len {
        return ends(coming.number, rq, port);
    }
    match choose(coming.number, port) {
        Some(Way::Ring) => ask(coming.number, port),
        Some(way) => fetch(coming.number, way, rq, port),
        None => {}
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
    s.unsaid.retain(|w| w.to != peer);
    for n in out {
        if let Some(o) = port.nearby.streams.out.remove(n) {
            o.ends(Err(why), port);
        }
    }
    rq.forget_coming(port.id, |n| lost.contains(&n));
    for n in lost {
        if let Some(i) = port.nearby.streams.coming.remove(n) {
            i.over(Err(why), rq, port);
        }
    }
}
