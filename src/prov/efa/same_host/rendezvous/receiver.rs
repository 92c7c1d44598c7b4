//! The receiver of long messages (see `rendezvous`): takes in what follows by itself, and asks for
//! or fetches the rest of a message that has been matched.

use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::rts::{announced, Rts};
use super::{carry_chunk, lost_there, plain, Rendezvous, LOST, WHOLE};
use crate::hmem::{IpcHandle, MemKind, UserMem};
use crate::proto::{Coming, Failure, PeerId, Place, RecvEntry, RecvQueue, ShortRecv, Unexpected};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::{finish, ReceivedMessage};
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
    /// When it began, and the transfer that the sender helps with, if it may.
    began: u64,
    share: Option<SplitCopy>,
    /// The sender's device memory, and the number of the copy of it that is under way.
    device: Option<(MemKind, IpcHandle)>,
    copy: Option<u32>,
}

impl RecvState {
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

/// A message that waits to be fetched, with the receive that it matched.
pub(super) struct FetchedMessage {
    tag: Option<u64>,
    cq_data: Option<u64>,
    len: usize,
    number: u32,
    at: u64,
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

/// Most bytes of a batch of several messages: bounds how long the first waits.
const LOT_BYTES: usize = 256 << 10;

impl Rendezvous {
    /// Whether messages wait for [`Rendezvous::bring`].
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        !self.lot.waiting.is_empty()
    }

    /// Whether one more from a peer could join them.
    pub(crate) fn gathers_more(&self, from: PeerId, len: usize) -> bool {
        let l = &self.lot;
        l.waiting.is_empty()
            || l.from == from && l.waiting.len() < MANY && l.bytes + len <= LOT_BYTES
    }

    /// As [`Rendezvous::arrived`], a message that waits to be fetched and is for a plain receive:
    /// joins those that [`Rendezvous::bring`] fetches, of the same peer. `false`, and nothing done,
    /// when it takes more than that.
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
        if m.here > 0 || m.at == 0 || !rings.reaches_memory(from) {
            return false;
        }
        if self.costs.next(len, ways(len)) != CopyMethod::Cma {
            return false;
        }
        let Some(into) = rq.take_short(from, m.head.tag, len) else {
            return false;
        };
        self.costs.count_use(len);
        let l = &mut self.lot;
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
            into,
        });
        true
    }

    /// Fetches those that have gathered, and tells their sender and `each`: who has sent it, its
    /// receive, its length, tag and data.
    pub(crate) fn bring<R: PeerRings>(
        &mut self,
        rings: &mut R,
        mut each: impl FnMut(PeerId, &RecvEntry, usize, (Option<u64>, Option<u64>)),
    ) {
        let from = self.lot.from;
        let bytes = core::mem::take(&mut self.lot.bytes);
        let mut all = core::mem::take(&mut self.lot.waiting);
        let part = |l: &FetchedMessage| (l.into.into.part(0, l.len), l.at);
        let here = rings.cma_read_batch(from, all.iter().map(part));
        if here == all.len() {
            self.costs.measured_arrival(
                CopyMethod::Cma,
                here,
                bytes,
                (self.lot.began, rings.now()),
            );
        }
        for (i, l) in all.drain(..).enumerate() {
            let (piece, at) = part(&l);
            if i >= here && !rings.cma_copy(from, false, &LocalBuffer::Piece(piece), at) {
                self.lot.refused.push((from, l));
                continue;
            }
            let words = self.answer(l.number, 0, l.len);
            let sent = rings.send_words(from, plain(kind::FIN), &words);
            self.said(sent, from, kind::FIN, words);
            each(from, &l.into, l.len, (l.tag, l.cq_data));
        }
        self.lot.waiting = all;
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
        for (from, l) in core::mem::take(&mut self.lot.refused) {
            let ctx = port.adopt(ShortRecv {
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
                began: 0,
                share: None,
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
            began: m.began(now),
            share: None,
            device: m.shared,
            copy: None,
        });
        if whole {
            self.leads.retain(|(p, _)| *p != from);
            self.leads.push((from, n));
        }
        if place.is_none() {
            let coming = Coming {
                number: n,
                len: len as u64,
                held: if whole { len } else { m.here },
            };
            rq.keep(Unexpected::in_part(
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
        let way = place.and_then(|_| self.choose(n, port));
        if way == Some(CopyMethod::Ring) {
            self.ask(n, port);
        }
        self.goes_on(n, from, record, m.body, rq, port);
        if let Some(way @ (CopyMethod::Cma | CopyMethod::CmaBoth)) = way {
            self.fetch(n, way, rq, port);
        }
    }

    /// Has the device copy a matched message from its sender's device memory; asks the sender to
    /// write it where that cannot be opened here: memory of this very process, or of a device that
    /// we lack.
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
            let over = copy.map_or(Ok(true), |c| port.copy_over(c));
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

    /// Chooses how the rest of a matched message comes; `None` when it follows by itself.
    fn choose<P: RendezvousPort>(&mut self, n: u32, port: &mut P) -> Option<CopyMethod> {
        let i = self.coming.get_mut(n)?;
        i.number?;
        let into = i.place.and_then(|p| port.buffer(p.ctx));
        let host = into.is_none_or(|m| m.is_host());
        let rings = port.rings()?;
        if i.began == 0 {
            i.began = rings.now();
        }
        if i.at == 0 || !host || !rings.reaches_memory(i.from) {
            return Some(CopyMethod::Ring);
        }
        Some(self.costs.choose(i.len, ways(i.len)))
    }

    /// Takes the bytes of a record from `off` on.
    pub(super) fn goes_on<P: RendezvousPort>(
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
        if self.coming.get(n).is_none_or(|i| i.place.is_none()) {
            return;
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

    /// Copies the rest of a matched message from the sender's memory, with a split copy or alone.
    fn fetch<P: RendezvousPort>(
        &mut self,
        n: u32,
        way: CopyMethod,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let Some(i) = self.coming.get_mut(n) else {
            return;
        };
        let (Some(place), Some(number)) = (i.place, i.number) else {
            return;
        };
        let (from, got) = (i.from, i.got);
        let room = (place.room as usize).saturating_sub(got).min(i.len - got);
        let into = port.buffer(place.ctx);
        let into = into.map_or(UserMem::EMPTY, |m| m.part(place.base as usize + got, room));
        let Some(rings) = port.rings() else { return };
        let at = i.at.wrapping_add(got as u64);
        // Two chunks at least: else there is nothing to share, as with a receive that has no room.
        let half = room.div_ceil(2).next_multiple_of(4096).max(4096);
        let chunk = (room / CHUNKS)
            .clamp(*CHUNK.start(), *CHUNK.end())
            .min(half);
        let whole = into
            .one()
            .filter(|p| way == CopyMethod::CmaBoth && p.len() == room && room > chunk);
        let chunks = room.div_ceil(chunk) as u32;
        let share = whole.and_then(|p| Some((rings.open_split(from, chunks)?, p)));
        let Some((share, piece)) = share else {
            return match rings.cma_copy(from, false, &LocalBuffer::Mem(&into), at) {
                true => self.fetched(n, rq, port),
                false => self.ask(n, port),
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
        self.say(from, kind::SPLIT_COPY, words, port);
        let Some(rings) = port.rings() else { return };
        let began = rings.now();
        let copy = |c| carry_chunk(rings, (from, false), (piece, at), (c, chunk));
        match rings.copy_split(from, share, copy) {
            Some(ours) => {
                // The sender's last chunk is there soon: its SPLIT_DONE comes behind all that is in
                // the ring.
                let now = rings.now();
                let moment = now + now.saturating_sub(began) / u64::from(ours.max(1));
                while !rings.split_done(from, share) && rings.now() < moment {
                    core::hint::spin_loop();
                }
                self.fetched(n, rq, port);
            }
            None => self.lost(n, rq, port),
        }
    }

    /// The sender has copied its chunks, or could not.
    pub(super) fn helped<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let (n, how) = (record.word(0) as u32, record.word(8));
        let helped = |i: &RecvState| i.from == from && i.share.is_some();
        if self.coming.get(n).is_some_and(helped) {
            match how & LOST {
                0 => self.fetched(n, rq, port),
                _ => self.lost(n, rq, port),
            }
        }
    }

    /// Our chunks of a message are copied: it ends, unless the sender still copies one.
    fn fetched<P: RendezvousPort>(&mut self, n: u32, rq: &mut RecvQueue, port: &mut P) {
        let (Some(i), Some(rings)) = (self.coming.get_mut(n), port.rings()) else {
            return;
        };
        let over = i.share.is_none_or(|share| rings.end_split(i.from, share));
        if !over {
            return;
        }
        let way = i.share.map_or(CopyMethod::Cma, |_| CopyMethod::CmaBoth);
        let (len, began) = (i.len, i.began);
        i.got = len;
        self.costs
            .measured_arrival(way, 1, len, (began, rings.now()));
        self.tell(n, 0, port);
        self.ends(n, rq, port);
    }

    /// Fails a message that the system would not copy.
    #[cold]
    fn lost<P: RendezvousPort>(&mut self, n: u32, rq: &mut RecvQueue, port: &mut P) {
        self.tell(n, LOST, port);
        if let Some(i) = self.coming.remove(n) {
            if let (Some(rings), Some(share)) = (port.rings(), i.share) {
                rings.stop_split(i.from, share);
            }
            i.over(Err(lost_there()), rq, port);
        }
    }

    /// Sends the FIN of a message.
    fn tell<P: RendezvousPort>(&mut self, n: u32, how: u64, port: &mut P) {
        let i = self.coming.get(n);
        if let Some((to, number, len)) = i.and_then(|i| Some((i.from, i.number?, i.len))) {
            let words = self.answer(number, how, len);
            self.say(to, kind::FIN, words, port);
        }
    }

    /// An unexpected message has been matched.
    pub(crate) fn placed<P: RendezvousPort>(
        &mut self,
        coming: &Coming,
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
        match self.choose(coming.number, port) {
            Some(CopyMethod::Ring) => self.ask(coming.number, port),
            Some(way) => self.fetch(coming.number, way, rq, port),
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
        port.forget_shared(peer);
        rq.forget_coming(port.id(), |n| lost.contains(&n));
        for n in lost {
            if let Some(i) = self.coming.remove(n) {
                i.over(Err(why), rq, port);
            }
        }
    }
}

/// Copy methods for a message of this length. One that is shorter than [`WHOLE`] and waits is there
/// to be fetched.
fn ways(len: usize) -> &'static [CopyMethod] {
    match len {
        0..SHARED => &[CopyMethod::Cma],
        SHARED..=WHOLE => &[CopyMethod::Cma, CopyMethod::CmaBoth],
        _ => &[CopyMethod::Cma, CopyMethod::CmaBoth, CopyMethod::Ring],
    }
}
