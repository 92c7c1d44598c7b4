//! The sender of long messages (see `rendezvous`): writes them eagerly, lends them to be fetched,
//! or writes them when a CTS asks for them.

use super::{
    announcement, carry_chunk, lost_there, plain, receiver, say, shared_announcement, Rendezvous,
    FIRST, LOST, NONE, RTS_WORDS, WHOLE,
};
use crate::hmem::{self, Piece, UserMem};
use crate::proto::{Failure, PeerId, Port, RecvQueue};
use crate::prov::contract::{MsgReq, SendData};
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::shm::kind;
use crate::shm::{Completion, Record, SplitCopy, TxRings, Verdict};

/// Bytes of a DATA record.
const REST: usize = 32 << 10;

/// Most bytes that one call of [`pump`] writes: arriving records must be polled, too.
const AT_ONCE: usize = 256 << 10;

/// Copy methods of messages that need no CTS: eager, or fetched.
const UNASKED_OR_NOT: [CopyMethod; 2] = [CopyMethod::Ring, CopyMethod::Cma];

/// A message that is being sent.
pub(super) struct SendState {
    to: PeerId,
    mem: UserMem,
    /// Its operation, or the completion of a fast-path call.
    note: Completion,
    sent: usize,
    /// The receiver's number of the message, from its CTS.
    there: Option<u32>,
}

impl SendState {
    fn new(to: PeerId, mem: UserMem, note: Completion, sent: usize) -> SendState {
        SendState {
            to,
            mem,
            note,
            sent,
            there: None,
        }
    }

    fn ends(self, result: Result<(), Failure>, port: &mut EpPort) {
        match (self.note.op, result) {
            (Some(ctx), r) => port.sent(ctx, r),
            (None, Ok(())) => port.done(&self.note),
            (None, Err(why)) => port.fails(&self.note, self.to, (0, 0), why),
        }
    }
}

impl Rendezvous {
    /// Whether a message to this peer is under way.
    pub(super) fn sends_to(&self, peer: PeerId) -> bool {
        self.out.iter().any(|(_, o)| o.to == peer)
    }

    /// As [`send`], one piece of memory, when the message is to be fetched, as a whole; else
    /// `Unsupported`, and nothing is done.
    pub(crate) fn lend(
        &mut self,
        rings: &mut TxRings,
        peer: PeerId,
        words: (Option<u64>, Option<u64>),
        mem: Piece,
        note: Completion,
    ) -> Verdict {
        let len = mem.len();
        let fetched = match len <= WHOLE {
            true => self.asking.next(len, &UNASKED_OR_NOT) == CopyMethod::Cma,
            false => self.fetched,
        };
        if !fetched || !rings.reaches_memory(peer) {
            return Verdict::Unsupported;
        }
        let number = self.out.insert(SendState::new(peer, mem.into(), note, 0));
        let (what, words, n) = announcement(words, len, Some((number, mem.addr() as u64)));
        let sent = rings.send_words(peer, what, words.get(..n).unwrap_or(&[]));
        match sent {
            Verdict::Done => self.asking.count_use(len),
            _ => drop(self.out.remove(number)),
        }
        sent
    }

    /// As [`answered`], a message of a plain call that is there: what it is told by. `None`, and
    /// nothing done, when it takes more than that.
    pub(crate) fn ended(&mut self, from: PeerId, record: &Record) -> Option<Completion> {
        let there = !lost(record);
        let o = self.answers(from, record, |o| there && o.note.op.is_none())?;
        Some(o.note)
    }

    /// The message that a FIN names, if it is that peer's.
    fn answers(
        &mut self,
        from: PeerId,
        record: &Record,
        such: impl FnOnce(&SendState) -> bool,
    ) -> Option<SendState> {
        let ours = record.word(0) as u32;
        self.out.get(ours).filter(|o| o.to == from && such(o))?;
        let o = self.out.remove(ours)?;
        self.turn.retain(|n| *n != ours);
        if o.mem.is_host() {
            self.learn(o.note.len, Some([16, 24].map(|off| record.word(off))));
        }
        Some(o)
    }

    /// Learns from a FIN what messages like this one cost the receiver by each method; or, from a
    /// CTS, that it was not fetched.
    fn learn(&mut self, len: usize, fetched: Option<[u64; 2]>) {
        if len > WHOLE {
            self.fetched = fetched.is_some();
        } else if let Some([ring, fetched]) = fetched {
            for (way, cost) in [(CopyMethod::Ring, ring), (CopyMethod::Cma, fetched)] {
                if cost > 0 {
                    self.asking.set_cost(way, len, cost);
                }
            }
        }
    }
}

/// Sends a message whose operation is `ctx`. `NoResources` and `Unsupported` change nothing.
pub(crate) fn send(port: &mut EpPort, peer: PeerId, ctx: u32, r: &MsgReq) -> Verdict {
    if let Some(sent) = share(port, peer, ctx, r) {
        return sent;
    }
    let (Some(rings), SendData::User(mem)) = (&mut port.rings, &r.data) else {
        return Verdict::Unsupported;
    };
    let Some(addr) = port.peers.addr(peer) else {
        return Verdict::Unsupported;
    };
    let len = mem.len();
    let rendezvous = &mut port.shm.rendezvous;
    let words = (r.tag, r.cq_data);
    let place = mem.one().filter(|_| rings.reaches_memory(peer));
    if let Some(p) = place {
        match rendezvous.lend(rings, peer, words, p, Completion::piece(ctx, len)) {
            Verdict::Unsupported => {}
            sent => return sent,
        }
    }
    let whole = len <= WHOLE;
    if whole && !rings.fits(peer, len.div_ceil(FIRST), FIRST + 32) {
        return Verdict::NoResources;
    }
    let number = (!whole).then(|| {
        let o = SendState::new(peer, *mem, Completion::piece(ctx, len), FIRST);
        rendezvous.out.insert(o)
    });
    let at = place.map_or(0, |p| p.addr() as u64);
    let (what, words, n) = announcement(words, len, number.map(|n| (n, at)));
    let mut head = [0; 40];
    for (to, w) in head.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&w.to_ne_bytes());
    }
    let head = head.get(..8 * n).unwrap_or(&[]);
    let sent = rings.send(peer, addr, what, head, &mem.part(0, FIRST), &[]);
    if sent != Verdict::Done {
        if let Some(n) = number {
            port.shm.rendezvous.out.remove(n);
        }
        return sent;
    }
    port.shm.rendezvous.asking.count_use(len);
    if whole {
        let mut off = FIRST;
        while off < len {
            let sent = rings.send(
                peer,
                addr,
                plain(kind::EAGER_FRAG),
                &[],
                &mem.part(off, FIRST),
                &[],
            );
            debug_assert_eq!(sent, Verdict::Done, "there was room");
            off += FIRST;
        }
        port.sent(ctx, Ok(()));
    }
    Verdict::Done
}

/// As [`send`], one piece of device memory that the receiver may open; `None`, and nothing done,
/// for any other.
fn share(port: &mut EpPort, peer: PeerId, ctx: u32, r: &MsgReq) -> Option<Verdict> {
    let mem = r.data.lent();
    if mem.is_host() {
        return None;
    }
    let p = mem.single().filter(|p| p.len() > FIRST)?;
    let handle = hmem::share(&p).ok()?;
    let (rings, addr) = (port.rings.as_mut()?, port.peers.addr(peer)?);
    let rendezvous = &mut port.shm.rendezvous;
    let note = Completion::piece(ctx, mem.len());
    let state = SendState::new(peer, mem, note, 0);
    let number = rendezvous.out.insert(state);
    let words = (r.tag, r.cq_data);
    let (what, words, n) = shared_announcement(words, mem.len(), number, (p.kind(), handle));
    let mut head = [0; 8 * RTS_WORDS];
    for (to, w) in head.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&w.to_ne_bytes());
    }
    let head = head.get(..8 * n).unwrap_or(&[]);
    let sent = rings.send(peer, addr, what, head, &UserMem::EMPTY, &[]);
    if sent != Verdict::Done {
        port.shm.rendezvous.out.remove(number);
    }
    Some(sent)
}

/// Writes DATA records of messages that were asked for as far as there is room, and sends control
/// records that waited.
pub(crate) fn pump(rq: &mut RecvQueue, port: &mut EpPort) {
    receiver::ask_for_refused(port);
    receiver::poll_copies(rq, port);
    for w in core::mem::take(&mut port.shm.rendezvous.unsaid) {
        say(w.to, w.kind, w.words, port);
    }
    let mut left = AT_ONCE;
    let mut full = None;
    let mut at = 0;
    port.shm.rendezvous.more = false;
    while let Some(n) = port.shm.rendezvous.turn.get(at).copied() {
        let s = &mut port.shm.rendezvous;
        let (Some(o), Some(rings)) = (s.out.get_mut(n), &mut port.rings) else {
            s.turn.remove(at);
            continue;
        };
        let (mem, Some(addr)) = (o.mem, port.peers.addr(o.to)) else {
            s.turn.remove(at);
            continue;
        };
        let head = u64::from(o.there.unwrap_or(NONE)).to_ne_bytes();
        while full != Some(o.to) && o.sent < mem.len() && left > 0 {
            let part = mem.part(o.sent, REST);
            if rings.send(o.to, addr, plain(kind::DATA), &head, &part, &[]) == Verdict::Done {
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

/// A CTS: the receiver of message `ours`, which calls it `theirs`, wants it written.
pub(crate) fn asked(from: PeerId, ours: u32, theirs: u32, port: &mut EpPort) {
    let s = &mut port.shm.rendezvous;
    if let Some(o) = s.out.get_mut(ours) {
        if o.to == from && o.there.is_none() {
            o.there = Some(theirs);
            s.turn.push_back(ours);
            let (len, host) = (o.note.len, o.mem.is_host());
            if host {
                s.learn(len, None);
            }
            if let Some(rings) = &mut port.rings {
                rings.widen(from);
            }
        }
    }
}

/// Whether a FIN says that the message could not be fetched.
fn lost(record: &Record) -> bool {
    record.word(8) & LOST != 0
}

/// A FIN has arrived: ends the message.
pub(super) fn answered(from: PeerId, record: &Record, port: &mut EpPort) {
    if let Some(o) = port.shm.rendezvous.answers(from, record, |_| true) {
        let lost = lost(record);
        o.ends(if lost { Err(lost_there()) } else { Ok(()) }, port);
    }
}

/// Copies chunks of a message of ours to where its receiver wants them, as long as there are some.
pub(super) fn help(from: PeerId, record: &Record, port: &mut EpPort) {
    let [which, share, at, how, room] = [0, 8, 16, 24, 32].map(|off| record.word(off));
    let (ours, theirs) = (which as u32, which >> 32);
    let (chunk, got) = (how as u32 as usize, (how >> 32) as usize);
    let share = SplitCopy::of(share);
    let o = port.shm.rendezvous.out.get(ours).filter(|o| o.to == from);
    let mem = o.and_then(|o| o.mem.one());
    let (Some(mem), Some(rings)) = (mem, &port.rings) else {
        return;
    };
    if !rings.reaches_memory(from) {
        return;
    }
    let rest: Piece = mem.part(got, room as usize);
    let copy = |c| carry_chunk(rings, (from, true), (rest, at), (c, chunk));
    let how = match record.copy_split(share, copy) {
        Some(0) => return,
        Some(_) => 0,
        None => LOST,
    };
    say(from, kind::SPLIT_DONE, [theirs, how, 0, 0, 0], port);
}

/// A peer is gone: messages that it has not taken fail.
pub(super) fn peer_down(peer: PeerId, why: Failure, port: &mut EpPort) {
    let s = &mut port.shm.rendezvous;
    let out = s.out.select(|o| o.to == peer);
    s.turn.retain(|n| !out.contains(n));
    for n in out {
        if let Some(o) = port.shm.rendezvous.out.remove(n) {
            o.ends(Err(why), port);
        }
    }
}
