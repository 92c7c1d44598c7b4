//! The receiver of long messages (see `rendezvous`): takes eager fragments, and requests (CTS) or
//! fetches the rest of a matched message.

use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::rts::{announced, Rts};
use super::{cma_failure, copy_chunk, plain, Rendezvous, LOST, SHM_EAGER_MAX};
use crate::hmem::{IpcHandle, MemKind, UserMem};
use crate::proto::{
    Failure, PartialMessage, PeerId, Place, RecvEntry, RecvEntryMatch, RecvQueue, UnexpectedMessage,
};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::split::SplitRings;
use crate::prov::efa::same_host::{finish, ReceivedMessage, POLL_BUDGET};
use crate::shm::kind;
use crate::shm::{LocalBuffer, SplitCopy, MANY};

/// Shortest message that both sides copy; bytes of a chunk, of which there are at least two.
const SHARED: usize = 48 << 10;

const CHUNK: core::ops::RangeInclusive<usize> = 128 << 10..=512 << 10;

const CHUNKS: usize = 8;

/// A message that is being received.
pub(super) struct RecvState {
    pub from: PeerId,
    tag: Option<u64>,
    cq_data: Option<u64>,
    len: usize,
    got: usize,
    place: Option<Place>,
    /// Bytes that came before the message was matched.
    early: Vec<u8>,
    /// The sender's number of the message, if it waits for a CTS, and the address in the sender's
    /// memory; 0 if there is none.
    number: Option<u32>,
    at: u64,
    /// Its sender waits for a FIN, however its bytes come.
    delivery: bool,
    /// When it began, and the copy that is under way.
    began: u64,
    fetch: Option<FetchState>,
    /// The sender's device memory, and the number of the copy of it that is under way.
    device: Option<(MemKind, IpcHandle)>,
    copy: Option<u32>,
}

impl RecvState {
    /// The copy that the sender helps with.
    fn split(&self) -> Option<SplitCopy> {
        self.fetch?.split.map(|(s, _)| s)
    }

    fn over<P: RendezvousPort>(
        self,
        result: Result<(), Failure>,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        if let Some(place) = self.place {
            let done = ReceivedMessage {
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

/// A message that is being copied from its sender's memory.
#[derive(Clone, Copy)]
struct FetchState {
    /// Bytes of the rest of the message that fit into its receive, and bytes that were copied; of a
    /// split copy, chunks that were copied here.
    room: usize,
    copied: usize,
    /// The copy that the sender helps with, and bytes of a chunk. Whether chunks may be left.
    split: Option<(SplitCopy, usize)>,
    left: bool,
    /// Nanoseconds that earlier polls spent on it.
    ns: u64,
}

/// How the rest of a matched message comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Its sender writes it, after a CTS.
    Sent,
    /// It is copied from the sender's memory. `None`: a long one, which chooses how when those
    /// before it have been copied, and so measured.
    Fetched(Option<CopyMethod>),
}

/// How the copy of a message has ended.
enum FetchOutcome {
    Here,
    /// The kernel refused the copy: a CTS can still request the message.
    Refused,
    /// A chunk could not be copied.
    Lost,
    /// The message has ended already.
    Gone,
}

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

/// Messages of one peer that are fetched by one system call: the call itself costs as much as
/// several KiB.
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
    /// [`Rendezvous::arrived`] has to handle its RTS.
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
        if self.costs.next(len, ways(len)) != CopyMethod::Cma {
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
            let words = self.answer(l.number, 0, l.len);
            let sent = rings.send_words(from, plain(kind::FIN), &words);
            self.said(sent, from, kind::FIN, words);
            each(from, &l.into, l.len, (l.tag, l.cq_data));
        }
        self.read_batch.waiting = all;
        bytes
    }

    /// The words of a FIN: the status, and what messages like this one cost here, by the ring and
    /// fetched.
    fn answer(&mut self, number: u32, how: u64, len: usize) -> [u64; 5] {
        let [ring, fetched] = [
            &[CopyMethod::Ring][..],
            &[CopyMethod::Cma, CopyMethod::CmaBoth],
        ]
        .map(|ways| self.costs.cost(len, ways));
        [number.into(), how, ring, fetched, 0]
    }

    /// Sends a CTS for messages that could not be fetched.
    pub(super) fn ask_for_refused<P: RendezvousPort>(&mut self, port: &mut P) {
        for (from, l) in core::mem::take(&mut self.read_batch.refused) {
            let ctx = port.adopt(RecvEntryMatch {
                what: l.into,
                src: from,
                tag: l.tag.unwrap_or(0),
            });
            let n = self.coming.insert(RecvState {
                from,
                tag: l.tag,
                cq_data: l.cq_data,
                len: l.len,
                got: 0,
                place: Some(Place::whole(ctx, l.into.into.len() as u64)),
                early: Vec::new(),
                number: Some(l.number),
                at: l.at,
                delivery: l.delivery,
                began: 0,
                fetch: None,
                device: None,
                copy: None,
            });
            self.ask(n, port);
        }
    }

    pub(super) fn begins<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let Some(m) = announced(record) else { return };
        let (head, len) = (&m.head, m.len);
        let whole = m.number.is_none();
        let place = rq.place(from, head.tag, len as u64, |s| port.adopt(s));
        let now = port.rings().map_or(0, |r| r.now());
        let n = self.coming.insert(RecvState {
            from,
            tag: head.tag,
            cq_data: head.cq_data,
            len,
            got: 0,
            place,
            early: Vec::new(),
            number: m.number,
            at: m.at,
            delivery: m.delivery,
            began: m.began(now),
            fetch: None,
            device: m.shared,
            copy: None,
        });
        if whole {
            self.leads.retain(|(p, _)| *p != from);
            self.leads.push((from, n));
        }
        if place.is_none() {
            let coming = PartialMessage {
                number: n,
                len: len as u64,
                held: if whole { len } else { m.here },
            };
            rq.keep(UnexpectedMessage::in_part(
                port.id(),
                from,
                head.tag,
                head.cq_data,
                coming,
            ));
        }
        if m.shared.is_some() {
            if place.is_some() {
                self.copy_or_ask(n, port);
            }
            return;
        }
        let rest = place
            .filter(|_| m.here < len)
            .and_then(|_| self.rest(n, port));
        if rest == Some(Rest::Sent) {
            self.ask(n, port);
        }
        self.take_data(n, from, record, m.body, rq, port);
        if let Some(Rest::Fetched(way)) = rest {
            self.fetch(n, way, rq, port);
        }
    }

    /// Starts the device's copy of a matched message from its sender's device memory. Sends a CTS
    /// where that memory cannot be opened here: memory of this very process, or of a device that
    /// this process does not have.
    fn copy_or_ask<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        let Some(i) = self.coming.get_mut(n) else {
            return;
        };
        let (Some((kind, handle)), Some(place)) = (i.device, i.place) else {
            return;
        };
        let room = (place.room as usize).min(i.len);
        let into = port.buffer(place.ctx);
        let into = into.map_or(UserMem::EMPTY, |m| m.part(place.base as usize, room));
        match port.start_copy(i.from, (kind, &handle), &into) {
            Ok(copy) => {
                i.copy = Some(copy);
                self.copying.push(n);
            }
            Err(_) => self.ask(n, port),
        }
    }

    /// Ends messages whose copies are over.
    pub(super) fn poll_copies<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        let mut at = 0;
        while let Some(n) = self.copying.get(at).copied() {
            let copy = self.coming.get(n).and_then(|i| i.copy);
            let over = copy.map_or(Ok(true), |c| port.poll_copy(c));
            if over == Ok(false) {
                at += 1;
                continue;
            }
            self.copying.swap_remove(at);
            if let Some(i) = self.coming.get_mut(n) {
                i.copy = None;
                i.got = i.len;
            }
            match over {
                Ok(_) => {
                    self.tell(n, 0, port);
                    self.ends(n, rq, port);
                }
                Err(_) => self.lost(n, rq, port),
            }
        }
    }

    /// How the rest of a matched message comes; `None` when it follows without a CTS.
    fn rest<P: RendezvousPort>(&mut self, n: u32, port: &mut P) -> Option<Rest> {
        let i = self.coming.get_mut(n)?;
        i.number?;
        let into = i.place.and_then(|p| port.buffer(p.ctx));
        let host = into.is_none_or(|m| m.is_host());
        let rings = port.rings()?;
        if i.began == 0 {
            i.began = rings.now();
        }
        if i.at == 0 || !host || !rings.reaches_memory(i.from) {
            return Some(Rest::Sent);
        }
        if i.len > POLL_BUDGET {
            return Some(Rest::Fetched(None));
        }
        Some(match self.costs.choose(i.len, ways(i.len)) {
            CopyMethod::Ring => Rest::Sent,
            way => Rest::Fetched(Some(way)),
        })
    }

    /// Takes the bytes of a record from `off` on.
    pub(super) fn take_data<P: RendezvousPort>(
        &mut self,
        n: u32,
        from: PeerId,
        record: &impl ArrivedRecord,
        off: usize,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let bytes = record.bytes().saturating_sub(off);
        let i = self.coming.get_mut(n);
        let Some(i) = i.filter(|i| i.from == from && bytes <= i.len - i.got) else {
            return;
        };
        match i.place {
            Some(p) => {
                if let Some(mem) = port.buffer(p.ctx) {
                    let room = (p.room as usize).saturating_sub(i.got);
                    record.copy_mem(off, &mem.part(p.base as usize + i.got, room));
                }
            }
            // No CTS has asked for more than the first bytes.
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
            let (len, began) = (i.len, i.began);
            if let Some(rings) = port.rings().filter(|_| i.place.is_some() && began > 0) {
                self.costs
                    .measured_arrival(CopyMethod::Ring, 1, len, (began, rings.now()));
            }
            self.ends(n, rq, port);
        }
    }

    /// Ends a message that is complete.
    fn ends<P: RendezvousPort>(&mut self, n: u32, rq: &mut RecvQueue, port: &mut P) {
        self.leads.retain(|(_, l)| *l != n);
        let Some(i) = self.coming.get(n).filter(|i| i.place.is_some()) else {
            return;
        };
        if i.delivery {
            self.tell(n, 0, port);
        }
        if let Some(i) = self.coming.remove(n) {
            i.over(Ok(()), rq, port);
        }
    }

    /// Sends a CTS for the rest of a matched message.
    fn ask<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        let i = self.coming.get(n);
        if let Some((to, number)) = i.and_then(|i| Some((i.from, i.number?))) {
            self.say(to, kind::CTS, [number.into(), n.into(), 0, 0, 0], port);
        }
    }

    /// Queues the rest of a matched message to be copied from the sender's memory, by this method
    /// or the one that is chosen then.
    fn fetch<P: RendezvousPort>(
        &mut self,
        n: u32,
        way: Option<CopyMethod>,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        self.fetching.push_back((n, way));
        self.fetch_on(rq, port);
    }

    /// Begins a copy, split with the sender or not: both sides work on one message at a time.
    fn open_fetch<P: RendezvousPort>(
        &mut self,
        n: u32,
        way: CopyMethod,
        port: &mut P,
    ) -> Option<FetchState> {
        let (into, _) = self.fetched_into(n, port)?;
        let (i, rings) = (self.coming.get_mut(n)?, port.rings()?);
        let (from, got, number, room) = (i.from, i.got, i.number, into.len());
        // Two chunks at least: else there is nothing to share, as with a receive that has no room.
        let half = room.div_ceil(2).next_multiple_of(4096).max(4096);
        let chunk = (room / CHUNKS)
            .clamp(*CHUNK.start(), *CHUNK.end())
            .min(half);
        let piece = into
            .one()
            .filter(|_| way == CopyMethod::CmaBoth && room > chunk);
        let split = piece.and_then(|p| {
            let s = rings.open_split(from, room.div_ceil(chunk) as u32)?;
            Some((s, p))
        });
        let f = FetchState {
            room,
            copied: 0,
            split: split.map(|(s, _)| (s, chunk)),
            left: true,
            ns: 0,
        };
        i.fetch = Some(f);
        if let Some((s, piece)) = split {
            let words = [
                u64::from(number.unwrap_or(0)) | u64::from(n) << 32,
                s.packed(),
                piece.addr() as u64,
                chunk as u64 | (got as u64) << 32,
                room as u64,
            ];
            self.say(from, kind::SPLIT_COPY, words, port);
        }
        Some(f)
    }

    /// The destination of the rest of a matched message, and its address in the sender's memory.
    fn fetched_into<P: RendezvousPort>(&self, n: u32, port: &P) -> Option<(UserMem, u64)> {
        let i = self.coming.get(n)?;
        let (place, _) = (i.place?, i.number?);
        let room = (place.room as usize)
            .saturating_sub(i.got)
            .min(i.len - i.got);
        let mem = port.buffer(place.ctx);
        let into = mem.map_or(UserMem::EMPTY, |m| {
            m.part(place.base as usize + i.got, room)
        });
        Some((into, i.at.wrapping_add(i.got as u64)))
    }

    /// Copies as much as one call may of the messages that are being fetched.
    pub(super) fn fetch_on<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        let mut at = 0;
        self.fetches = false;
        while let Some((n, way)) = self.fetching.get(at).copied() {
            let mut fetch = self.coming.get(n).and_then(|i| i.fetch);
            if fetch.is_none() {
                if self.fetches {
                    return;
                }
                let len = self.coming.get(n).map_or(0, |i| i.len);
                let way = way.unwrap_or_else(|| self.costs.choose(len, ways(len)));
                if way == CopyMethod::Ring {
                    self.fetching.remove(at);
                    self.ask(n, port);
                    continue;
                }
                fetch = self.open_fetch(n, way, port);
            }
            let began = port.rings().map_or(0, |r| r.now());
            let ends = match fetch {
                Some(f) if f.left && self.budget() == 0 => None,
                Some(f) => match f.split {
                    None => self.fetch_alone(n, f, port),
                    Some(split) => self.fetch_split(n, split, port),
                },
                None => Some(FetchOutcome::Gone),
            };
            let Some(ends) = ends else {
                let now = port.rings().map_or(began, |r| r.now());
                let ns = now.saturating_sub(began);
                self.costs.count_other((began, now));
                let fetch = self.coming.get_mut(n).and_then(|i| i.fetch.as_mut());
                if let Some(f) = fetch {
                    f.ns += ns;
                    self.fetches |= f.left;
                }
                at += 1;
                continue;
            };
            self.fetching.remove(at);
            match ends {
                FetchOutcome::Here => self.fetched(n, began, rq, port),
                FetchOutcome::Refused => self.ask(n, port),
                FetchOutcome::Lost => self.lost(n, rq, port),
                FetchOutcome::Gone => {}
            }
        }
    }

    /// Copies the next bytes of a message; `None` when there are more.
    fn fetch_alone<P: RendezvousPort>(
        &mut self,
        n: u32,
        f: FetchState,
        port: &mut P,
    ) -> Option<FetchOutcome> {
        let part = (f.room - f.copied).min(self.budget());
        self.copied += part;
        if part > 0 {
            let (into, at) = self.fetched_into(n, port)?;
            let i = self.coming.get_mut(n)?;
            let local = into.part(f.copied, part);
            let at = at.wrapping_add(f.copied as u64);
            if !port
                .rings()?
                .cma_copy(i.from, false, &LocalBuffer::Mem(&local), at)
            {
                // After a CTS the sender writes all of the rest, whatever was copied.
                i.fetch = None;
                return Some(FetchOutcome::Refused);
            }
            i.fetch = Some(FetchState {
                copied: f.copied + part,
                ..f
            });
        }
        (f.copied + part == f.room).then_some(FetchOutcome::Here)
    }

    /// Copies chunks of a message that its sender copies, too; `None` when some are not there yet.
    fn fetch_split<P: RendezvousPort>(
        &mut self,
        n: u32,
        (split, chunk): (SplitCopy, usize),
        port: &mut P,
    ) -> Option<FetchOutcome> {
        let (into, at) = self.fetched_into(n, port)?;
        let count = self.chunks_now(chunk);
        let i = self.coming.get_mut(n)?;
        let (piece, from, rings) = (into.one()?, i.from, port.rings()?);
        let f = i.fetch.as_mut()?;
        if f.left {
            let copy = |c| copy_chunk(rings, (from, false), (piece, at), (c, chunk));
            // A chunk is copied once, whatever the peer writes into the word of the transfer.
            let count = count.min(split.chunks.saturating_sub(f.copied as u32));
            let Some(ours) = rings.copy_split(from, split, count, copy) else {
                return Some(FetchOutcome::Lost);
            };
            self.copied += ours as usize * chunk;
            f.copied += ours as usize;
            f.left = ours > 0 && ours == count;
        }
        // The sender may still copy its last chunk; its SPLIT_DONE comes behind all that is in the
        // ring, and wakes us.
        rings.split_done(from, split).then_some(FetchOutcome::Here)
    }

    /// Handles a SPLIT_DONE: the sender has copied its chunks, or could not.
    pub(super) fn helped<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let (n, how) = (record.word(0) as u32, record.word(8));
        let helped = |i: &RecvState| i.from == from && i.split().is_some();
        if self.coming.get(n).is_some_and(helped) && !self.stopping.contains(&n) {
            let now = port.rings().map_or(0, |r| r.now());
            match how & LOST {
                0 => self.fetched(n, now, rq, port),
                _ => self.lost(n, rq, port),
            }
        }
    }

    /// Ends a message whose chunks on this side are copied, the last ones since `began`, unless the
    /// sender still copies one.
    fn fetched<P: RendezvousPort>(&mut self, n: u32, began: u64, rq: &mut RecvQueue, port: &mut P) {
        let (Some(i), Some(rings)) = (self.coming.get_mut(n), port.rings()) else {
            return;
        };
        let split = i.split();
        let over = split.is_none_or(|s| rings.end_split(i.from, s));
        if !over {
            return;
        }
        let way = split.map_or(CopyMethod::Cma, |_| CopyMethod::CmaBoth);
        let (len, earlier, now) = (i.len, i.fetch.map_or(0, |f| f.ns), rings.now());
        let began = match earlier {
            0 => i.began,
            ns => began.saturating_sub(ns),
        };
        i.got = len;
        self.fetching.retain(|(f, _)| *f != n);
        match earlier {
            0 => self.costs.measured_arrival(way, 1, len, (began, now)),
            _ => self.costs.measured_copy(way, 1, len, (began, now)),
        }
        self.tell(n, 0, port);
        self.ends(n, rq, port);
    }

    /// Fails a message that the system would not copy.
    #[cold]
    fn lost<P: RendezvousPort>(&mut self, n: u32, rq: &mut RecvQueue, port: &mut P) {
        self.tell(n, LOST, port);
        self.fetching.retain(|(f, _)| *f != n);
        self.stopping.push(n);
        self.poll_stopping(rq, port);
    }

    /// Ends lost messages whose sender writes nothing into their receives any more.
    pub(super) fn poll_stopping<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        let mut at = 0;
        while let Some(n) = self.stopping.get(at).copied() {
            let split = self.coming.get(n).and_then(|i| Some((i.from, i.split()?)));
            let writes = match (split, port.rings()) {
                (Some((from, split)), Some(rings)) => !rings.stop_split(from, split),
                _ => false,
            };
            if writes {
                at += 1;
                continue;
            }
            self.stopping.swap_remove(at);
            if let Some(i) = self.coming.remove(n) {
                i.over(Err(cma_failure()), rq, port);
            }
        }
    }

    /// Sends the FIN of a message, which is the last that its sender hears of it.
    fn tell<P: RendezvousPort>(&mut self, n: u32, how: u64, port: &mut P) {
        let i = self.coming.get_mut(n);
        if let Some((to, number, len)) = i.and_then(|i| Some((i.from, i.number.take()?, i.len))) {
            let words = self.answer(number, how, len);
            self.say(to, kind::FIN, words, port);
        }
    }

    /// An unexpected message has been matched.
    pub(crate) fn placed<P: RendezvousPort>(
        &mut self,
        coming: &PartialMessage,
        place: Place,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let Some(i) = self.coming.get_mut(coming.number) else {
            return;
        };
        i.place = Some(place);
        // The time until it was matched is not measured.
        i.began = 0;
        let early = core::mem::take(&mut i.early);
        if let Some(mem) = port.buffer(place.ctx) {
            mem.part(place.base as usize, place.room as usize)
                .store(0, &early);
        }
        if i.got == i.len {
            return self.ends(coming.number, rq, port);
        }
        if i.device.is_some() {
            return self.copy_or_ask(coming.number, port);
        }
        match self.rest(coming.number, port) {
            Some(Rest::Sent) => self.ask(coming.number, port),
            Some(Rest::Fetched(way)) => self.fetch(coming.number, way, rq, port),
            None => {}
        }
    }

    /// A peer is gone: messages that are not complete fail.
    pub(super) fn receives_fail<P: RendezvousPort>(
        &mut self,
        peer: PeerId,
        why: Failure,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let lost = |i: &RecvState| i.from == peer && (i.place.is_some() || i.got < i.len);
        let lost = self.coming.select(lost);
        self.leads.retain(|(p, _)| *p != peer);
        for n in &lost {
            if let Some(c) = self.coming.get_mut(*n).and_then(|i| i.copy.take()) {
                port.abort_copy(c);
            }
        }
        self.copying.retain(|n| !lost.contains(n));
        self.fetching.retain(|(n, _)| !lost.contains(n));
        self.stopping.retain(|n| !lost.contains(n));
        port.forget_shared(peer);
        rq.forget_partial(port.id(), |n| lost.contains(&n));
        for n in lost {
            if let Some(i) = self.coming.remove(n) {
                i.over(Err(why), rq, port);
            }
        }
    }
}

/// Copy methods for a message of this length. A message of up to [`SHM_EAGER_MAX`] bytes that was
/// not sent eagerly is there to be fetched.
fn ways(len: usize) -> &'static [CopyMethod] {
    match len {
        0..SHARED => &[CopyMethod::Cma],
        SHARED..=SHM_EAGER_MAX => &[CopyMethod::Cma, CopyMethod::CmaBoth],
        _ => &[CopyMethod::Cma, CopyMethod::CmaBoth, CopyMethod::Ring],
    }
}
