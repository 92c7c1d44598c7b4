//! Long messages on their way out (see `stream`): written as a whole, lent to be fetched, or
//! written when they were asked for.

use super::{
    announcement, carry_chunk, lost_there, plain, receiver, say, Rendezvous, FIRST, LOST, NONE,
    WHOLE,
};
use crate::hmem::{Piece, UserMem};
use crate::proto::{Failure, PeerId, Port};
use crate::prov::efa::rdm::cost_model::CopyMethod;
use crate::prov::efa::rdm::port::EpPort;
use crate::prov::efa::rdm::{MsgReq, SendData};
use crate::shm::kind;
use crate::shm::{Completion, Record, SplitCopy, TxRings, Verdict};

/// Bytes of a record of a longer one.
const REST: usize = 32 << 10;

/// Bytes that one call of [`pump`] writes at most: what arrives has its turn, too.
const AT_ONCE: usize = 256 << 10;

/// Ways of what need not be asked for: unasked, and asked for and fetched.
const UNASKED_OR_NOT: [CopyMethod; 2] = [CopyMethod::Ring, CopyMethod::Cma];

/// A message on its way out.
pub(super) struct SendState {
    to: PeerId,
    mem: UserMem,
    /// Its operation, or what a plain call is told by in the end.
    note: Completion,
    sent: usize,
    /// The receiver's number of it, once it has said that it has a place.
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
    pub fn lend(
        &mut self,
        near: &mut TxRings,
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
        if !fetched || !near.reaches_memory(peer) {
            return Verdict::Unsupported;
        }
        let number = self.out.insert(SendState::new(peer, mem.into(), note, 0));
        let (what, words, n) = announcement(words, len, Some((number, mem.addr() as u64)));
        let sent = near.send_words(peer, what, words.get(..n).unwrap_or(&[]));
        match sent {
            Verdict::Done => self.asking.goes(len),
            _ => drop(self.out.remove(number)),
        }
        sent
    }

    /// As [`answered`], a message of a plain call that is there: what it is told by. `None`, and
    /// nothing done, when it takes more than that.
    pub fn ended(&mut self, from: PeerId, record: &Record) -> Option<Completion> {
        let there = !lost(record);
        let o = self.answers(from, record, |o| there && o.note.op.is_none())?;
        Some(o.note)
    }

    /// The message that a peer answers with what it costs there, if it is such a one.
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
        self.learn(o.note.len, Some([16, 24].map(|off| record.word(off))));
        Some(o)
    }

    /// The receiver of a message of ours has answered: it has fetched it, and says what messages
    /// like it cost there by each way; or it wants it written.
    fn learn(&mut self, len: usize, fetched: Option<[u64; 2]>) {
        if len > WHOLE {
            self.fetched = fetched.is_some();
        } else if let Some([ring, fetched]) = fetched {
            for (way, cost) in [(CopyMethod::Ring, ring), (CopyMethod::Cma, fetched)] {
                if cost > 0 {
                    self.asking.costs(way, len, cost);
                }
            }
        }
    }
}

/// Sends a message whose operation is `ctx`. `Busy` and `Unsupported` leave everything as it was.
pub fn send(port: &mut EpPort, peer: PeerId, ctx: u32, r: &MsgReq) -> Verdict {
    let (Some(near), SendData::User(mem)) = (&mut port.near, &r.data) else {
        return Verdict::Unsupported;
    };
    let Some(addr) = port.peers.addr(peer) else {
        return Verdict::Unsupported;
    };
    let len = mem.len();
    let rendezvous = &mut port.shm.rendezvous;
    let words = (r.tag, r.cq_data);
    let place = mem.one().filter(|_| near.reaches_memory(peer));
    if let Some(p) = place {
        match rendezvous.lend(near, peer, words, p, Completion::piece(ctx, len)) {
            Verdict::Unsupported => {}
            sent => return sent,
        }
    }
    let whole = len <= WHOLE;
    if whole && !near.fits(peer, len.div_ceil(FIRST), FIRST + 32) {
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
    let sent = near.send(peer, addr, what, head, &mem.part(0, FIRST), &[]);
    if sent != Verdict::Done {
        if let Some(n) = number {
            port.shm.rendezvous.out.remove(n);
        }
        return sent;
    }
    port.shm.rendezvous.asking.goes(len);
    if whole {
        let mut off = FIRST;
        while off < len {
            let sent = near.send(
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

/// Writes what there is room for of messages that were asked for, and asks for others.
pub fn pump(port: &mut EpPort) {
    receiver::ask_for_refused(port);
    for w in core::mem::take(&mut port.shm.rendezvous.unsaid) {
        say(w.to, w.kind, w.words, port);
    }
    let mut left = AT_ONCE;
    let mut full = None;
    let mut at = 0;
    port.shm.rendezvous.more = false;
    while let Some(n) = port.shm.rendezvous.turn.get(at).copied() {
        let s = &mut port.shm.rendezvous;
        let (Some(o), Some(near)) = (s.out.get_mut(n), &mut port.near) else {
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
            if near.send(o.to, addr, plain(kind::DATA), &head, &part, &[]) == Verdict::Done {
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

/// The receiver of message `ours` has a place for it, which it calls `theirs`, and wants it
/// written.
pub fn asked(from: PeerId, ours: u32, theirs: u32, port: &mut EpPort) {
    let s = &mut port.shm.rendezvous;
    if let Some(o) = s.out.get_mut(ours) {
        if o.to == from && o.there.is_none() {
            o.there = Some(theirs);
            s.turn.push_back(ours);
            let len = o.note.len;
            s.learn(len, None);
            if let Some(near) = &mut port.near {
                near.widen(from);
            }
        }
    }
}

/// Whether a receiver says that it could not fetch one.
fn lost(record: &Record) -> bool {
    record.word(8) & LOST != 0
}

/// The receiver of a message of ours has fetched it, or could not.
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
    let (Some(mem), Some(near)) = (mem, &port.near) else {
        return;
    };
    if !near.reaches_memory(from) {
        return;
    }
    let rest: Piece = mem.part(got, room as usize);
    let copy = |c| carry_chunk(near, (from, true), (rest, at), (c, chunk));
    let how = match record.copy_split(share, copy) {
        Some(0) => return,
        Some(_) => 0,
        None => LOST,
    };
    say(from, kind::SPLIT_DONE, [theirs, how, 0, 0, 0], port);
}

/// A peer is gone: what it has not taken fails.
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
