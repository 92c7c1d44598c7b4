//! Rendezvous: long messages to peers on the same host, through the ring in pieces or by
//! cross-memory attach, whichever is cheaper here (`cost_model`).
//!
//! The first record (RTS) has the tag, the length, the address and the first bytes, and keeps its
//! order among all messages to that peer. The rest of a message of up to [`WHOLE`] bytes follows at
//! once (EAGER_FRAG), unless asking is known to be cheaper. Of longer ones the sender keeps the
//! rest until the receiver has matched the message; then the receiver chooses. CTS: the sender
//! fills the ring whenever there is room (DATA, in `pump`), while the receiver empties it into the
//! application's buffer: two copies, but on two cores, through memory that stays in their caches.
//! Device memory that other processes may open (`hmem::shared`) is announced by its handle; the
//! receiver's GPU copies it, without the processor, while other things go on.
//! FIN: the receiver has copied the message from the address in the RTS (`fetch`; several that
//! wait, by one system call: `gather` and `bring`). SPLIT_COPY: both sides copy chunks
//! (`shm::SplitCopy`) to the address that it names; SPLIT_DONE: the sender has copied its last
//! chunk.
//!
//! `sender` and `receiver` are the two halves. A number that a peer names is looked up together
//! with the peer, and lengths are checked against the RTS.

mod receiver;
mod sender;

pub(crate) use receiver::placed;
pub(crate) use sender::{asked, pump, send};

use crate::core::slab::Slab;
use crate::device::{host, Status};
use crate::hmem::{IpcHandle, MemKind, Piece, SharedMemory, IPC_WORDS};
use crate::proto::{Failure, PeerId, RecvQueue};
use crate::prov::efa::endpoint::failure;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host::cost_model::CostModel;
use crate::prov::efa::same_host::{head_len, head_of, words_of, MessageHead, EAGER, SHARED_MEMORY};
use crate::shm::kind;
use crate::shm::{LocalBuffer, Record, RecordHeader, TxRings, Verdict};
use receiver::{ReadBatch, RecvState};
use sender::SendState;
use std::collections::VecDeque;

/// Longest message that is sent without a CTS, bytes. An unexpected one is buffered.
pub(crate) const WHOLE: usize = 64 << 10;

/// Bytes of a record of such a message: few, so that the receiver begins early.
pub(crate) const FIRST: usize = 8 << 10;

/// Nanoseconds from an RTS to its arrival beyond which the message's time is not measured: its
/// receiver was not polling.
const LATE: u32 = 5_000;

/// Status in a FIN: the message could not be copied.
const LOST: u64 = 1;

/// Stands for no message.
const NONE: u32 = u32::MAX;

/// A control record that waits for room in a peer's ring.
#[derive(Clone, Copy)]
struct ControlRecord {
    to: PeerId,
    kind: u8,
    words: [u64; 5],
}

/// The long messages of an endpoint.
#[derive(Default)]
pub(crate) struct Rendezvous {
    out: Slab<SendState>,
    /// Messages that [`pump`] may continue.
    turn: VecDeque<u32>,
    /// The last [`pump`] stopped although there was room.
    more: bool,
    coming: Slab<RecvState>,
    /// Messages of device memory that are being copied, and what their senders share.
    copying: Vec<u32>,
    shared: SharedMemory,
    /// The message that a peer's next EAGER_FRAG belongs to.
    leads: Vec<(PeerId, u32)>,
    /// Messages that are fetched by one system call.
    lot: ReadBatch,
    /// Control records that found no room.
    unsaid: Vec<ControlRecord>,
    /// Costs of the copy methods.
    costs: CostModel,
    /// Costs of messages that need no CTS: sent eagerly, or fetched by the receiver. Whether longer
    /// ones are mostly fetched.
    asking: CostModel,
    fetched: bool,
}

impl Rendezvous {
    /// Whether a message to or from a peer is under way, or is all here and has no receive.
    pub(crate) fn mentions(&self, peer: PeerId) -> bool {
        self.coming.iter().any(|(_, i)| i.from == peer) || self.sends_to(peer)
    }

    /// 0 when [`pump`] has nothing to do.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.turn.len() | self.unsaid.len() | self.lot.refused.len() | self.copying.len()
    }

    /// Whether [`pump`] stopped although the ring had room.
    pub(crate) fn more(&self) -> bool {
        self.more
    }

    /// Keeps a control record that found no room.
    fn said(&mut self, sent: Verdict, to: PeerId, kind: u8, words: [u64; 5]) {
        if sent == Verdict::NoResources {
            self.unsaid.push(ControlRecord { to, kind, words });
        }
    }
}

/// The RTS of a long message. Its words follow those of every message: length, the sender's number
/// of the message and its time, the address in the sender's memory; then the first bytes.
pub(crate) struct Rts {
    pub head: MessageHead,
    pub len: usize,
    /// `None`: the rest follows without a CTS.
    number: Option<u32>,
    /// When its sender began, ns modulo 2^32.
    begun: u32,
    /// 0 if nowhere.
    at: u64,
    /// Device memory of the sender's, whose kind stands in place of the address.
    shared: Option<(MemKind, IpcHandle)>,
    /// Where its bytes begin in the record, and how many are there.
    body: usize,
    here: usize,
}

impl Rts {
    /// Start of the message's time: when its sender began, or now, when we were late to poll.
    fn began(&self) -> u64 {
        let now = host::now();
        match (now as u32).wrapping_sub(self.begun) {
            age @ 0..=LATE => now - u64::from(age),
            _ => now,
        }
    }
}

/// Most words of an RTS.
const RTS_WORDS: usize = 5 + IPC_WORDS;

/// The words of an RTS of shared device memory.
fn shared_announcement(
    words: (Option<u64>, Option<u64>),
    len: usize,
    number: u32,
    (kind, handle): (MemKind, IpcHandle),
) -> (RecordHeader, [u64; RTS_WORDS], usize) {
    let (mut what, front, n) = announcement(words, len, Some((number, kind as u64)));
    what.flags |= SHARED_MEMORY;
    let mut all = [0; RTS_WORDS];
    let words = front.into_iter().take(n).chain(handle.to_words());
    for (to, w) in all.iter_mut().zip(words) {
        *to = w;
    }
    (what, all, n + IPC_WORDS)
}

/// The words of an RTS, and how many there are; `asked`: number and address of a message that waits
/// for a CTS.
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

/// Reads an RTS; `None` when the record is no valid one.
pub(crate) fn announced(record: &Record) -> Option<Rts> {
    let head = head_of(record)?;
    let whole = record.flags & EAGER != 0;
    let [len, number, at] = [0, 8, 16].map(|off| record.word(head.bytes + off));
    let (len, mut body) = (len as usize, head.bytes + if whole { 16 } else { 24 });
    let mut shared = None;
    if record.flags & SHARED_MEMORY != 0 {
        let mut words = [0; IPC_WORDS];
        for (i, w) in words.iter_mut().enumerate() {
            *w = record.word(body + 8 * i);
        }
        body += 8 * IPC_WORDS;
        shared = Some((MemKind::of_number(at)?, IpcHandle::of_words(words)));
    }
    let here = record.len.checked_sub(body)?;
    (here <= len && !(whole && len > WHOLE)).then_some(Rts {
        head,
        len,
        number: (!whole).then_some(number as u32),
        begun: (number >> 32) as u32,
        at: if whole || shared.is_some() { 0 } else { at },
        shared,
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
pub(crate) fn arrived(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
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

/// The error of a message that cross-memory attach could not copy, on either side.
fn lost_there() -> Failure {
    failure(Status::RemoteAbort)
}

/// Sends a control record to a peer, or keeps it when there is no room now.
fn say(to: PeerId, kind: u8, words: [u64; 5], port: &mut EpPort) {
    let (Some(rings), Some(addr)) = (&mut port.rings, port.peers.addr(to)) else {
        return;
    };
    let mut sent = rings.tell(to, addr, plain(kind), &words);
    if sent == Verdict::Unsupported && kind == kind::CTS {
        // No ring leads back, for want of descriptors or memory here or there.
        sent = rings.send_cts(addr, words[0] as u32, words[1] as u32);
    }
    port.shm.rendezvous.said(sent, to, kind, words);
}

/// Copies a chunk of a piece of our memory to or from a peer's, at `at`. `false` when the system
/// refuses.
fn carry_chunk(
    rings: &TxRings,
    (peer, write): (PeerId, bool),
    (piece, at): (Piece, u64),
    (c, chunk): (u32, usize),
) -> bool {
    let off = c as usize * chunk;
    let part = LocalBuffer::Piece(piece.part(off, chunk));
    rings.cma_copy(peer, write, &part, at.wrapping_add(off as u64))
}

/// A peer is gone: what it has not sent or taken fails. A message that is all here stays.
pub(crate) fn peer_down(peer: PeerId, why: Failure, rq: &mut RecvQueue, port: &mut EpPort) {
    receiver::ask_for_refused(port);
    port.shm.rendezvous.unsaid.retain(|w| w.to != peer);
    sender::peer_down(peer, why, port);
    receiver::peer_down(peer, why, rq, port);
}
