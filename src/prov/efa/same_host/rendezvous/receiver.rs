//! The receiver of long messages (see `rendezvous`): takes eager fragments, and requests (CTS) or
//! fetches the rest of a matched message.

use super::fetch::FetchState;
use super::port::{ArrivedRecord, PeerRings, RendezvousPort};
use super::rts::announced;
use super::{Rendezvous, SHM_EAGER_MAX};
use crate::hmem::{IpcHandle, MemKind, UserMem};
use crate::proto::{Failure, PartialMessage, PeerId, Place, RecvQueue, UnexpectedMessage};
use crate::prov::efa::same_host::cost_model::CopyMethod;
use crate::prov::efa::same_host::{finish, ReceivedMessage, POLL_BUDGET};
use crate::shm::kind;

/// Shortest message that both sides copy.
const SHARED: usize = 48 << 10;

/// A message that is being received.
pub(super) struct RecvState {
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub len: usize,
    pub got: usize,
    pub place: Option<Place>,
    /// Bytes that came before the message was matched.
    pub early: Vec<u8>,
    /// The sender's number of the message, if it waits for a CTS, and the address in the sender's
    /// memory; 0 if there is none.
    pub number: Option<u32>,
    pub at: u64,
    /// A CTS has asked its sender for the rest.
    pub asked: bool,
    /// Its sender waits for a FIN, however its bytes come.
    pub delivery: bool,
    /// When it began, and the copy that is under way.
    pub began: u64,
    pub fetch: Option<FetchState>,
    /// The sender's device memory, and the number of the copy of it that is under way.
    pub device: Option<(MemKind, IpcHandle)>,
    pub copy: Option<u32>,
}

impl RecvState {
    /// Reports how it has ended.
    pub(super) fn over<P: RendezvousPort>(
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

/// How the rest of a matched message comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// Its sender writes it, after a CTS.
    Sent,
    /// It is copied from the sender's memory. `None`: a long one, which chooses how when those
    /// before it have been copied, and so measured.
    Fetched(Option<CopyMethod>),
}

impl Rendezvous {
    /// The words of a FIN: the status, and what messages like this one cost here, by the ring and
    /// fetched.
    pub(super) fn fin_words(&mut self, number: u32, len: usize) -> [u64; 5] {
        let [ring, fetched] = [
            &[CopyMethod::Ring][..],
            &[CopyMethod::Cma, CopyMethod::CmaBoth],
        ]
        .map(|ways| self.costs.cost(len, ways));
        [number.into(), 0, ring, fetched, 0]
    }

    pub(super) fn handle_rts<P: RendezvousPort>(
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
        let n = self.receiving.insert(RecvState {
            from,
            tag: head.tag,
            cq_data: head.cq_data,
            len,
            got: 0,
            place,
            early: Vec::new(),
            number: m.number,
            at: m.at,
            asked: false,
            delivery: m.delivery,
            began: m.began(now),
            fetch: None,
            device: m.shared,
            copy: None,
        });
        if whole {
            self.eager_receives.retain(|(p, _)| *p != from);
            self.eager_receives.push((from, n));
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
            self.request_rest(n, port);
        }
        self.take_data(n, from, record, m.body, rq, port);
        if let Some(Rest::Fetched(method)) = rest {
            self.fetch(n, method, rq, port);
        }
    }

    /// Starts the device's copy of a matched message from its sender's device memory. Sends a CTS
    /// where that memory cannot be opened here: memory of this very process, or of a device that
    /// this process does not have.
    fn copy_or_ask<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        let Some(i) = self.receiving.get_mut(n) else {
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
            Err(_) => self.request_rest(n, port),
        }
    }

    /// Ends messages whose copies are over.
    pub(super) fn poll_copies<P: RendezvousPort>(&mut self, rq: &mut RecvQueue, port: &mut P) {
        let mut at = 0;
        while let Some(n) = self.copying.get(at).copied() {
            let copy = self.receiving.get(n).and_then(|i| i.copy);
            let over = copy.map_or(Ok(true), |c| port.poll_copy(c));
            if over == Ok(false) {
                at += 1;
                continue;
            }
            self.copying.swap_remove(at);
            let Some(i) = self.receiving.get_mut(n) else {
                continue;
            };
            i.copy = None;
            match over {
                Ok(_) => {
                    i.got = i.len;
                    self.send_fin(n, port);
                    self.ends(n, rq, port);
                }
                Err(_) => self.request_rest(n, port),
            }
        }
    }

    /// How the rest of a matched message comes; `None` when it follows without a CTS.
    fn rest<P: RendezvousPort>(&mut self, n: u32, port: &mut P) -> Option<Rest> {
        let i = self.receiving.get_mut(n)?;
        i.number?;
        let into = i.place.and_then(|p| port.buffer(p.ctx));
        let host = into.is_none_or(|m| m.is_host());
        let rings = port.rings()?;
        if i.began == 0 {
            i.began = rings.now();
        }
        if i.at == 0 || !rings.reaches_memory(i.from) {
            return Some(Rest::Sent);
        }
        if !host {
            // Through host memory here: one copy less than by the ring.
            return Some(Rest::Fetched(Some(CopyMethod::Cma)));
        }
        if i.len > POLL_BUDGET {
            return Some(Rest::Fetched(None));
        }
        Some(match self.costs.choose(i.len, fetch_methods(i.len)) {
            CopyMethod::Ring => Rest::Sent,
            method => Rest::Fetched(Some(method)),
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
        let i = self.receiving.get_mut(n);
        let Some(i) = i.filter(|i| i.from == from && bytes <= i.len - i.got) else {
            return;
        };
        match i.place {
            Some(p) => {
                if let Some(mem) = port.buffer(p.ctx) {
                    let more = i.number.is_none() && bytes < i.len;
                    if more && !mem.is_host() {
                        // The device copies all records of the message at once.
                        record.append(off, &mut i.early);
                        if i.got + bytes == i.len {
                            let from = i.len - i.early.len();
                            let room = (p.room as usize).saturating_sub(from);
                            let to = mem.part(p.base as usize + from, room);
                            to.store(0, &core::mem::take(&mut i.early));
                        }
                    } else {
                        let room = (p.room as usize).saturating_sub(i.got);
                        record.copy_mem(off, &mem.part(p.base as usize + i.got, room));
                    }
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

    /// Takes the bytes of a record that a CTS has asked for; drops those that none has, because the
    /// message comes another way.
    pub(super) fn handle_data<P: RendezvousPort>(
        &mut self,
        from: PeerId,
        record: &impl ArrivedRecord,
        rq: &mut RecvQueue,
        port: &mut P,
    ) {
        let n = record.word(0) as u32;
        if self.receiving.get(n).is_some_and(|i| i.asked) {
            self.take_data(n, from, record, 8, rq, port);
        }
    }

    /// Ends a message that is complete.
    pub(super) fn ends<P: RendezvousPort>(&mut self, n: u32, rq: &mut RecvQueue, port: &mut P) {
        self.eager_receives.retain(|(_, l)| *l != n);
        self.fetching.retain(|(m, _)| *m != n);
        let Some(i) = self.receiving.get(n).filter(|i| i.place.is_some()) else {
            return;
        };
        if i.delivery {
            self.send_fin(n, port);
        }
        if let Some(i) = self.receiving.remove(n) {
            i.over(Ok(()), rq, port);
        }
    }

    /// Sends a CTS for the rest of a matched message.
    pub(super) fn request_rest<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        let i = self.receiving.get_mut(n);
        if let Some((to, number)) = i.and_then(|i| {
            i.asked = true;
            Some((i.from, i.number?))
        }) {
            self.send_control(to, kind::CTS, [number.into(), n.into(), 0, 0, 0], port);
        }
    }

    /// Sends the FIN of a message, the last record about it.
    pub(super) fn send_fin<P: RendezvousPort>(&mut self, n: u32, port: &mut P) {
        let i = self.receiving.get_mut(n);
        if let Some((to, number, len)) = i.and_then(|i| Some((i.from, i.number.take()?, i.len))) {
            let words = self.fin_words(number, len);
            self.send_control(to, kind::FIN, words, port);
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
        let Some(i) = self.receiving.get_mut(coming.number) else {
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
            Some(Rest::Sent) => self.request_rest(coming.number, port),
            Some(Rest::Fetched(method)) => self.fetch(coming.number, method, rq, port),
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
        let lost = self.receiving.select(lost);
        self.eager_receives.retain(|(p, _)| *p != peer);
        for n in &lost {
            if let Some(c) = self.receiving.get_mut(*n).and_then(|i| i.copy.take()) {
                port.abort_copy(c);
            }
        }
        self.copying.retain(|n| !lost.contains(n));
        self.fetching.retain(|(n, _)| !lost.contains(n));
        self.stopping.retain(|n| !lost.contains(n));
        port.forget_shared(peer);
        rq.forget_partial(port.id(), |n| lost.contains(&n));
        for n in lost {
            if let Some(i) = self.receiving.remove(n) {
                i.over(Err(why), rq, port);
            }
        }
    }
}

/// Copy methods for a message of this length. A message of up to [`SHM_EAGER_MAX`] bytes that was
/// not sent eagerly is there to be fetched.
pub(super) fn fetch_methods(len: usize) -> &'static [CopyMethod] {
    match len {
        0..SHARED => &[CopyMethod::Cma],
        SHARED..=SHM_EAGER_MAX => &[CopyMethod::Cma, CopyMethod::CmaBoth],
        _ => &[CopyMethod::Cma, CopyMethod::CmaBoth, CopyMethod::Ring],
    }
}
