//! Long messages to peers on the same host: in pieces through shared memory, both sides copying at
//! once, or by the system from one process's memory into the other's, whichever is faster here
//! (`costs`).
//!
//! The first record (`kind::RTS`) has the tag, the length and the first bytes, and takes its turn
//! among all messages to that peer. A message of up to [`WHOLE`] follows it at once
//! (`kind::EAGER_FRAG`), unless asking is known to be better. Of others the sender keeps the rest
//! until the receiver has a place for it: nobody buffers it. The receiver may say so (`kind::CTS`);
//! then the sender fills the ring whenever there is room (`kind::DATA`, in `pump`), while the
//! receiver empties it into the application's buffer: two copies, but on two cores, through memory
//! that stays in their caches. Or the receiver copies it by the system from where `kind::RTS` says
//! it is (`fetch`; several that wait, at once: `gather` and `bring`), and says when it has it
//! (`kind::FIN`). Or it lets the sender help: `kind::SPLIT_COPY` says where the message shall be,
//! both take chunks (`shm::SplitCopy`), and who has helped says so (`kind::SPLIT_DONE`).
//!
//! `out` is the half of the sender, `come` that of the receiver. Numbers that a peer names are
//! looked up together with the peer, and lengths are checked against what was announced.

mod receiver;
mod sender;

pub use receiver::placed;
pub use sender::{asked, pump, send};

use super::cost_model::CostModel;
use super::failure;
use super::port::EpPort;
use super::shm_state::{head_len, head_of, words_of, MessageHead, EAGER};
use crate::core::slab::Slab;
use crate::device::{host, Status};
use crate::hmem::Piece;
use crate::proto::{Failure, PeerId, RecvQueue};
use crate::shm::kind;
use crate::shm::{LocalBuffer, Record, RecordHeader, TxRings, Verdict};
use receiver::{ReadBatch, RecvState};
use sender::SendState;
use std::collections::VecDeque;

/// Longest message that goes without being asked for, bytes. An unexpected one is buffered.
pub const WHOLE: usize = 64 << 10;

/// Bytes of a record of such a message: few, so that the receiver begins early.
pub const FIRST: usize = 8 << 10;

/// A message that has waited for longer than this until its receiver looked says nothing about how
/// long it takes, ns.
const LATE: u32 = 5_000;

/// In what the receiver answers: the message is lost.
const LOST: u64 = 1;

/// Stands for no message.
const NONE: u32 = u32::MAX;

/// What there is to say to a peer: up to five words.
#[derive(Clone, Copy)]
struct ControlRecord {
    to: PeerId,
    kind: u8,
    words: [u64; 5],
}

/// The long messages of an endpoint.
#[derive(Default)]
pub struct Rendezvous {
    out: Slab<SendState>,
    /// Those that may go on.
    turn: VecDeque<u32>,
    /// The last [`pump`] stopped although there was room.
    more: bool,
    coming: Slab<RecvState>,
    /// Which message the next `kind::EAGER_FRAG` of a peer belongs to.
    leads: Vec<(PeerId, u32)>,
    /// What is fetched at once.
    lot: ReadBatch,
    /// What found no room.
    unsaid: Vec<ControlRecord>,
    /// How long messages take.
    costs: CostModel,
    /// How what need not be asked for is sent best: unasked by the ring, or asked for. Whether
    /// longer ones are mostly fetched.
    asking: CostModel,
    fetched: bool,
}

impl Rendezvous {
    /// Whether a message to or from a peer is under way, or is all here and has no receive.
    pub fn mentions(&self, peer: PeerId) -> bool {
        self.coming.iter().any(|(_, i)| i.from == peer) || self.sends_to(peer)
    }

    /// 0 when [`pump`] has nothing to do.
    #[inline(always)]
    pub fn load(&self) -> usize {
        self.turn.len() | self.unsaid.len() | self.lot.refused.len()
    }

    /// Whether it stopped for another reason than a full ring.
    pub fn more(&self) -> bool {
        self.more
    }

    /// What found no room is said later.
    fn said(&mut self, sent: Verdict, to: PeerId, kind: u8, words: [u64; 5]) {
        if sent == Verdict::NoResources {
            self.unsaid.push(ControlRecord { to, kind, words });
        }
    }
}

/// What the first record of a long message says, in words that follow those of every message: its
/// length, the sender's number of it and when it began, where it is in the sender's memory; then
/// its first bytes.
pub struct Rts {
    pub head: MessageHead,
    pub len: usize,
    /// `None`: it comes without being asked for.
    number: Option<u32>,
    /// When its sender began, ns modulo 2^32.
    begun: u32,
    /// 0 if nowhere.
    at: u64,
    /// Where its bytes begin in the record, and how many are there.
    body: usize,
    here: usize,
}

impl Rts {
    /// When it began to take time: when its sender began, or when we came to look.
    fn began(&self) -> u64 {
        let now = host::now();
        match (now as u32).wrapping_sub(self.begun) {
            age @ 0..=LATE => now - u64::from(age),
            _ => now,
        }
    }
}

/// The words of such a record, and how many there are; `asked`: number and place of one that has to
/// be asked for.
fn announcement(
    (tag, cq_data): (Option<u64>, Option<u64>),
    len: usize,
    asked: Option<(u32, u64)>,
) -> (RecordHeader, [u64; 5], usize) {
    let ([first, second], kinds) = words_of(tag, cq_data);
    let front = head_len(kinds) / 8;
    let (number, at) = asked.unwrap_or((NONE, 0));
    let mut words = [first, second, 0, 0, 0];
    for (to, w) in
        words
            .iter_mut()
            .skip(front)
            .zip([len as u64, u64::from(number) | host::now() << 32, at])
    {
        *to = w;
    }
    let what = RecordHeader {
        kind: kind::RTS,
        flags: kinds | if asked.is_none() { EAGER } else { 0 },
        message: true,
    };
    (what, words, front + if asked.is_none() { 2 } else { 3 })
}

/// Reads it; `None` when it is none.
pub fn announced(record: &Record) -> Option<Rts> {
    let head = head_of(record)?;
    let whole = record.flags & EAGER != 0;
    let [len, number, at] = [0, 8, 16].map(|off| record.word(head.bytes + off));
    let (len, body) = (len as usize, head.bytes + if whole { 16 } else { 24 });
    let here = record.len.checked_sub(body)?;
    (here <= len && !(whole && len > WHOLE)).then_some(Rts {
        head,
        len,
        number: (!whole).then_some(number as u32),
        begun: (number >> 32) as u32,
        at: if whole { 0 } else { at },
        body,
        here,
    })
}

fn plain(kind: u8) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        message: false,
    }
}

/// A record of a kind of this module has arrived.
pub fn arrived(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    match record.kind {
        kind::RTS => receiver::begins(from, record, rq, port),
        kind::EAGER_FRAG => {
            let leads = &port.shm.rendezvous.leads;
            if let Some((_, n)) = leads.iter().find(|(p, _)| *p == from).copied() {
                receiver::goes_on(n, from, record, 0, rq, port);
            }
        }
        kind::DATA => receiver::goes_on(record.word(0) as u32, from, record, 8, rq, port),
        kind::CTS => sender::asked(from, record.word(0) as u32, record.word(8) as u32, port),
        kind::SPLIT_COPY => sender::help(from, record, port),
        kind::FIN => sender::answered(from, record, port),
        _ => receiver::helped(from, record, rq, port),
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
    let mut sent = near.tell(to, addr, plain(kind), &words);
    if sent == Verdict::Unsupported && kind == kind::CTS {
        // No ring leads back, for want of descriptors or memory here or there.
        sent = near.send_cts(addr, words[0] as u32, words[1] as u32);
    }
    port.shm.rendezvous.said(sent, to, kind, words);
}

/// Copies a chunk of a piece of memory of ours to or from a peer's, at `at`. `false` when the
/// system does not.
fn carry_chunk(
    near: &TxRings,
    (peer, write): (PeerId, bool),
    (piece, at): (Piece, u64),
    (c, chunk): (u32, usize),
) -> bool {
    let off = c as usize * chunk;
    let part = LocalBuffer::Piece(piece.part(off, chunk));
    near.cma_copy(peer, write, &part, at.wrapping_add(off as u64))
}

/// A peer is gone: what it has not sent or taken fails. A message that is all here stays.
pub fn peer_down(peer: PeerId, why: Failure, rq: &mut RecvQueue, port: &mut EpPort) {
    receiver::ask_for_refused(port);
    port.shm.rendezvous.unsaid.retain(|w| w.to != peer);
    sender::peer_down(peer, why, port);
    receiver::peer_down(peer, why, rq, port);
}
