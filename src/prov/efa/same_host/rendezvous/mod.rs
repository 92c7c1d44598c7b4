//! Rendezvous: long messages to peers on the same host, through the ring in pieces or by
//! cross-memory attach, whichever is cheaper here (`cost_model`).
//!
//! The first record (RTS) has the tag, the length, the address and the first bytes, and keeps its
//! order among all messages to that peer. The rest of a message of up to [`SHM_EAGER_MAX`] bytes
//! follows at once (EAGER_FRAG), unless a fetch by the receiver is known to be cheaper. The rest of
//! a longer message stays at the sender until the receiver has matched the message and chosen a
//! method:
//!
//! CTS: the sender fills the ring whenever there is room (DATA, in `pump`), while the receiver
//! empties it into the application's buffer: two copies, but on two cores, through memory that
//! stays in their caches.
//!
//! FIN: the receiver has copied the message from the address in the RTS (`fetch`; several messages
//! by one system call: `gather` and `fetch_batch`).
//!
//! SPLIT_COPY: both sides copy chunks (`shm::SplitCopy`) to the address in this record. SPLIT_DONE:
//! the sender has copied its last chunk.
//!
//! Device memory that other processes may open (`hmem::shared`) is announced by its handle; the
//! receiver's GPU copies it asynchronously.
//!
//! Copies stop after [`POLL_BUDGET`] bytes and continue with the next poll, because the domain's
//! lock is held meanwhile.
//!
//! `sender` and `receiver` (with `fetch` and `batch`) are the two halves of a state machine that
//! does all input and output through its `port`; `sim` runs several against each other. A number
//! that a peer names is looked up together with the peer, and lengths are checked against the RTS.

mod batch;
mod ep_port;
mod fetch;
mod port;
mod receiver;
mod rts;
mod sender;
#[cfg(test)]
mod sim;

pub(crate) use port::{ArrivedRecord, PeerRings, RendezvousPort};
pub(crate) use rts::announced;

use crate::core::slab::Slab;
use crate::hmem::Piece;
use crate::proto::{Failure, PeerId, Place, RecvQueue};
use crate::prov::efa::same_host::cost_model::{CopyMethod, CostModel};
use crate::prov::efa::same_host::split::chunk;
use crate::prov::efa::same_host::POLL_BUDGET;
use crate::shm::kind;
use crate::shm::{LocalBuffer, RecordHeader};
use crate::transport::{Flow, Verdict};
use batch::ReadBatch;
use receiver::RecvState;
use rts::RTS_WORDS;
use sender::SendState;
use std::collections::VecDeque;

/// Longest message that is sent without a CTS, bytes. An unexpected one is buffered.
pub(crate) const SHM_EAGER_MAX: usize = 64 << 10;

/// Bytes of a record of such a message: few, so that the receiver begins early.
pub(crate) const FIRST: usize = 8 << 10;

/// Status in a SPLIT_DONE: the sender could not copy.
const LOST: u64 = 1;

/// In a CTS, in place of the receiver's number: the record is a FIN, because no ring leads back to
/// the sender.
const CTS_IS_FIN: u32 = u32::MAX;

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
    /// Messages to peers whose end is not reported yet.
    sending: Slab<SendState>,
    /// Messages that [`Rendezvous::pump`] may continue.
    ready: VecDeque<u32>,
    /// The last [`Rendezvous::pump`] stopped although there was room.
    more: bool,
    /// Messages from peers that are not complete, or have no receive.
    receiving: Slab<RecvState>,
    /// Messages that are being fetched; whether something is left to copy of one.
    fetching: VecDeque<(u32, Option<CopyMethod>)>,
    fetches: bool,
    /// Messages that the system would not copy, and of which the sender still copies a chunk.
    stopping: Vec<u32>,
    /// Bytes that were copied since the last [`Rendezvous::pump`].
    copied: usize,
    /// Messages of device memory that are being copied.
    copying: Vec<u32>,
    /// Peers that could not open our device memory, and to how many more messages no handle is
    /// attached.
    unopened: Vec<(PeerId, u32)>,
    /// The message that a peer's next EAGER_FRAG belongs to.
    eager_receives: Vec<(PeerId, u32)>,
    /// Messages that are fetched by one system call.
    read_batch: ReadBatch,
    /// Control records that found no room.
    pending_control: Vec<ControlRecord>,
    /// Costs of the copy methods.
    costs: CostModel,
    /// Costs of messages that need no CTS: sent eagerly, or fetched by the receiver. Whether the
    /// last longer message was fetched.
    eager_costs: CostModel,
    fetched: bool,
}

impl Rendezvous {
    /// Whether a message to or from a peer is under way, or is complete and has no receive.
    pub(crate) fn mentions(&self, peer: PeerId) -> bool {
        self.receiving.iter().any(|(_, i)| i.from == peer) || self.sends_to(peer)
    }

    /// Places in receives that messages are coming in to.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.receiving.iter().filter_map(|(_, m)| m.place)
    }

    /// 0 when [`Rendezvous::pump`] has nothing to do.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        let sends = self.ready.len() | self.pending_control.len();
        let copies = self.copying.len() | self.fetching.len() | usize::from(self.budget() == 0);
        sends | self.read_batch.refused.len() | copies | self.stopping.len()
    }

    /// Whether [`Rendezvous::pump`] has something to do that no event announces: bytes to copy, or
    /// the end of a copy by a device.
    pub(crate) fn more(&self) -> bool {
        self.more || self.fetches || !self.stopping.is_empty() || !self.copying.is_empty()
    }

    /// Handles a record of a kind of this module. `Deferred`: the next poll has to present it
    /// again.
    pub(crate) fn handle_record<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) -> Flow {
        match record.kind() {
            kind::RTS => self.handle_rts(from, record, rq, port),
            kind::EAGER_FRAG => {
                if let Some((_, n)) = self
                    .eager_receives
                    .iter()
                    .find(|(p, _)| *p == from)
                    .copied()
                {
                    self.take_data(n, from, record, 0, rq, port);
                }
            }
            kind::DATA => self.handle_data(from, record, rq, port),
            kind::CTS => self.handle_cts(from, record.word(0) as u32, record.word(8) as u32, port),
            kind::SPLIT_COPY => return self.handle_split_copy(from, record, port),
            kind::FIN => self.handle_fin(from, record, port),
            _ => self.handle_split_done(from, record, rq, port),
        }
        Flow::Taken
    }

    /// Sends control records that waited, continues messages that may continue, and ends those
    /// whose copies are complete.
    pub(crate) fn pump<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        self.copied = 0;
        self.ask_for_refused(port);
        self.poll_copies(rq, port);
        self.poll_stopping(port);
        self.fetch_on(rq, port);
        for w in core::mem::take(&mut self.pending_control) {
            self.send_control(w.to, w.kind, w.words, port);
        }
        self.write_data(port);
    }

    /// Fails the incomplete messages to and from a peer that is gone. Complete messages stay.
    pub(crate) fn peer_down<P: RendezvousPort>(
        &mut self,
        peer: PeerId,
        why: Failure,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        self.ask_for_refused(port);
        self.pending_control.retain(|w| w.to != peer);
        self.sends_fail(peer, why, port);
        self.receives_fail(peer, why, rq, port);
    }

    /// Sends a control record to a peer, or keeps it when there is no room now.
    fn send_control<P: RendezvousPort>(
        &mut self,
        to: PeerId,
        kind: u8,
        words: [u64; 5],
        port: &mut P,
    ) {
        let mut sent = port.send(to, plain(kind), &words, &crate::hmem::UserMem::EMPTY);
        // The receive completes now, and its owner may not poll again: a FIN does not wait until
        // the sender has taken our ring.
        let called = sent == Verdict::NoResources && kind == kind::FIN;
        let unreached = called && port.rings().is_some_and(|r| !r.has_route(to));
        if unreached || sent == Verdict::Unsupported && matches!(kind, kind::CTS | kind::FIN) {
            // No ring leads back: not yet, or because descriptors or memory are used up here or
            // there.
            let there = match kind {
                kind::CTS => words[1] as u32,
                _ => CTS_IS_FIN,
            };
            sent = port.send_cts(to, words[0] as u32, there);
        }
        self.keep_unsent(sent, to, kind, words);
    }

    /// Whether something may be copied until the next [`Rendezvous::pump`].
    pub(crate) fn may_copy(&self) -> bool {
        self.budget() > 0
    }

    /// Counts bytes that were copied for another module.
    pub(crate) fn count_copied(&mut self, bytes: usize) {
        self.copied = self.copied.saturating_add(bytes);
    }

    /// Bytes that may be copied until the next [`Rendezvous::pump`].
    fn budget(&self) -> usize {
        POLL_BUDGET.saturating_sub(self.copied)
    }

    /// Chunks of this length that may be copied now: as many as the budget has, rounded up.
    fn chunks_now(&self, chunk: usize) -> u32 {
        self.budget().div_ceil(chunk.max(1)).min(64) as u32
    }

    /// Keeps a control record that found no room, for [`Rendezvous::pump`].
    fn keep_unsent(&mut self, sent: Verdict, to: PeerId, kind: u8, words: [u64; 5]) {
        if sent == Verdict::NoResources {
            self.pending_control.push(ControlRecord { to, kind, words });
        }
    }
}

fn plain(kind: u8) -> RecordHeader {
    RecordHeader {
        kind,
        flags: 0,
        message: false,
    }
}

/// Copies a chunk of a piece of our memory to or from a peer's, as [`chunk`] names it. `false` when
/// the system refuses.
fn copy_chunk(
    rings: &impl PeerRings,
    (peer, write): (PeerId, bool),
    place: (Piece, u64),
    which: (u32, usize),
) -> bool {
    let (part, at) = chunk(place, which);
    rings.cma_copy(peer, write, &LocalBuffer::Piece(part), at)
}
