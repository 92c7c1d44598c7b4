//! Messages of one peer that are fetched together: several copies by one system call, which costs
//! as much itself as several KiB.
//!
//! `gather` takes messages whose receives are plain ones, without an operation for each;
//! `fetch_batch` copies them and reports each to the caller. What the system would not copy is
//! requested by a CTS (`ask_for_refused`).

use super::port::{PeerRings, RendezvousPort};
use super::receiver::{fetch_methods, RecvState};
use super::rts::Rts;
use super::{plain, Rendezvous};
use crate::proto::{PeerId, Place, RecvEntry, RecvEntryMatch, RecvQueue};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::POLL_BUDGET;
use crate::shm::{kind, LocalBuffer, MANY};

/// A message that waits to be fetched, with the receive that it matched.
pub(super) struct FetchedMessage {
    tag: Option<u64>,
    cq_data: Option<u64>,
    len: usize,
    number: u32,
    at: u64,
    delivery: bool,
    into: RecvEntry,
}

/// See the module text.
#[derive(Default)]
pub(super) struct ReadBatch {
    from: PeerId,
    waiting: Vec<FetchedMessage>,
    bytes: usize,
    /// When the first of them began.
    began: u64,
    /// Messages that the system would not copy: a CTS asks for them.
    pub refused: Vec<(PeerId, FetchedMessage)>,
}

impl Rendezvous {
    /// Whether messages wait for [`Rendezvous::fetch_batch`].
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        !self.read_batch.waiting.is_empty()
    }

    /// Whether a message of `len` bytes from a peer fits into the batch.
    pub(crate) fn gathers_more(&self, from: PeerId, len: usize) -> bool {
        let l = &self.read_batch;
        l.waiting.is_empty()
            || l.from == from && l.waiting.len() < MANY && l.bytes + len <= POLL_BUDGET
    }

    /// Adds a message that waits to be fetched, and matches a plain receive, to the batch of its
    /// peer that [`Rendezvous::fetch_batch`] fetches. `false`, and nothing done, when
    /// [`Rendezvous::handle_record`] has to handle its RTS.
    pub(crate) fn gather<R: PeerRings>(
        &mut self,
        rings: &R,
        from: PeerId,
        m: &Rts,
        rq: &mut RecvQueue,
    ) -> bool {
        let (len, Some(number)) = (m.len, m.number) else {
            return false;
        };
        if m.here > 0 || m.at == 0 || len > POLL_BUDGET || !rings.reaches_memory(from) {
            return false;
        }
        if self.costs.next(len, fetch_methods(len)) != CopyMethod::Cma {
            return false;
        }
        let Some(into) = rq.take_entry(from, m.head.tag, len) else {
            return false;
        };
        self.costs.count_use(len);
        let l = &mut self.read_batch;
        l.from = from;
        l.bytes += len;
        if l.waiting.is_empty() {
            l.began = m.began(rings.now());
        }
        l.waiting.push(FetchedMessage {
            tag: m.head.tag,
            cq_data: m.head.cq_data,
            len,
            number,
            at: m.at,
            delivery: m.delivery,
            into,
        });
        true
    }

    /// Fetches the batch, sends a FIN for each message, and calls `each` with its sender, receive,
    /// length, tag and data. Returns the bytes of the batch.
    pub(crate) fn fetch_batch<R: PeerRings>(
        &mut self,
        rings: &mut R,
        mut each: impl FnMut(PeerId, &RecvEntry, usize, (Option<u64>, Option<u64>)),
    ) -> usize {
        let from = self.read_batch.from;
        let bytes = core::mem::take(&mut self.read_batch.bytes);
        let mut all = core::mem::take(&mut self.read_batch.waiting);
        let part = |l: &FetchedMessage| (l.into.into.part(0, l.len), l.at);
        let here = rings.cma_read_batch(from, all.iter().map(part));
        if here == all.len() {
            self.costs.measured_arrival(
                CopyMethod::Cma,
                here,
                bytes,
                (self.read_batch.began, rings.now()),
            );
        }
        for (i, l) in all.drain(..).enumerate() {
            let (piece, at) = part(&l);
            if i >= here && !rings.cma_copy(from, false, &LocalBuffer::Piece(piece), at) {
                self.read_batch.refused.push((from, l));
                continue;
            }
            let words = self.fin_words(l.number, l.len);
            let sent = rings.send_words(from, plain(kind::FIN), &words);
            self.keep_unsent(sent, from, kind::FIN, words);
            each(from, &l.into, l.len, (l.tag, l.cq_data));
        }
        self.read_batch.waiting = all;
        bytes
    }

    /// Sends a CTS for messages that could not be fetched.
    pub(super) fn ask_for_refused<P: RendezvousPort>(&mut self, port: &mut P) {
        for (from, l) in core::mem::take(&mut self.read_batch.refused) {
            let ctx = port.adopt(RecvEntryMatch {
                what: l.into,
                src: from,
                tag: l.tag.unwrap_or(0),
            });
            let n = self.receiving.insert(RecvState {
                from,
                tag: l.tag,
                cq_data: l.cq_data,
                len: l.len,
                got: 0,
                place: Some(Place::whole(ctx, l.into.into.len() as u64)),
                early: Vec::new(),
                number: Some(l.number),
                at: l.at,
                asked: false,
                delivery: l.delivery,
                began: 0,
                fetch: None,
                device: None,
                copy: None,
            });
            self.request_rest(n, port);
        }
    }
}
