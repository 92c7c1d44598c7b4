//! Messages on their way in, and the data of emulated writes and read answers.
//!
//! A request that is due gets its place in a posted receive, or the receive queue keeps it. From
//! then on an [`Rx`] counts bytes: bytes of requests and CTSDATA when they arrive, bytes of RDMA
//! reads when the adapter has completed them, and bytes beyond the receive's buffer at once. The
//! message is complete when all bytes are counted, in whatever order they arrived.

use super::endpoint::Endpoint;
use super::peer::{Packet, Parts};
use super::reading::Reading;
use super::recvq::{Place, RecvQueue};
use super::unexpected::UnexpectedMessage;
use super::{Failure, PeerId, Port, Received};
use crate::types::*;
use crate::wire::{Repr, Rtm, RtmKind};
use std::collections::HashMap;

/// What an arriving transfer is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum RxKind {
    /// A message.
    Message {
        place: Place,
        msg_id: u32,
        /// Further requests of this message are to come.
        several: bool,
    },
    /// A peer's emulated write.
    Write { cq_data: Option<u64> },
    /// The answer to an emulated read of ours.
    Read,
}

#[derive(Debug)]
pub(super) struct Rx {
    pub kind: RxKind,
    pub ctx: u32,
    pub from: PeerId,
    pub base: u64,
    pub got: u64,
    pub total: u64,
    /// Bytes cleared that have not come yet.
    pub window: u64,
    /// The sender's number of the operation.
    pub send_id: u32,
    /// The number that the initiator of a write has given it, if it awaits an answer.
    pub answers: Option<u32>,
    pub reading: Option<Reading>,
    pub receipt: Option<u32>,
    pub tag: u64,
    pub cq_data: Option<u64>,
    pub failed: Option<Failure>,
}

/// The peer broke the protocol: it named less memory than the length needs, or inconsistent
/// numbers, or it exceeded its budget.
pub(super) const PROTOCOL_VIOLATION: Failure = Failure {
    errno: FI_ECONNABORTED,
    status: 8,
};

/// The region of an access was closed while the access was under way.
pub(super) const REGION_CLOSED: Failure = Failure {
    errno: FI_ECONNABORTED,
    status: 8,
};

impl Rx {
    /// A message whose first request is `rtm`.
    #[inline(always)]
    fn message(place: Place, from: PeerId, rtm: &Rtm, len: u64) -> Rx {
        let kind = RxKind::Message {
            place,
            msg_id: rtm.msg_id,
            several: false,
        };
        let mut rx = Rx::new(kind, place.ctx, from, len);
        rx.base = place.base;
        rx.receipt = rtm.receipt;
        rx.tag = rtm.tag.unwrap_or(0);
        rx.cq_data = rtm.opt.cq_data;
        rx
    }

    pub(crate) fn new(kind: RxKind, ctx: u32, from: PeerId, total: u64) -> Rx {
        Rx {
            kind,
            ctx,
            from,
            base: 0,
            got: 0,
            total,
            window: 0,
            send_id: 0,
            answers: None,
            reading: None,
            receipt: None,
            tag: 0,
            cq_data: None,
            failed: None,
        }
    }

    /// Stores bytes of a packet that fit into the buffer, counts all of them, and returns how many
    /// were counted. In a transfer by RDMA read only the bytes sent ahead arrive in packets; others
    /// are dropped, because the adapter writes that memory.
    pub(crate) fn put(&mut self, off: u64, bytes: &[u8], port: &mut impl Port) -> u64 {
        let len = bytes.len() as u64;
        let limit = self.reading.as_ref().map_or(self.total, |r| r.runt);
        let limit = limit.min(self.total);
        if off.checked_add(len).is_none_or(|end| end > limit) {
            return 0;
        }
        self.got = self.got.saturating_add(len).min(self.total);
        let room = match self.kind {
            RxKind::Message { place, .. } => place.room.saturating_sub(off).min(len),
            RxKind::Write { .. } | RxKind::Read => len,
        };
        if room > 0 {
            let fits = bytes.get(..room as usize).unwrap_or(&[]);
            port.store(self.ctx, self.base + off, fits);
        }
        len
    }

    /// Whether all bytes are here and the adapter writes no more of them.
    pub(crate) fn complete(&self) -> bool {
        let read = |r: &Reading| r.under_way == 0 && r.at >= r.end;
        self.got >= self.total && self.reading.as_ref().is_none_or(read)
    }
}

/// Length of a whole message whose first request this is.
pub(super) fn total(rtm: &Rtm, payload: usize) -> u64 {
    match rtm.kind {
        RtmKind::Eager => payload as u64,
        RtmKind::Medium { length, .. }
        | RtmKind::LongCts { length, .. }
        | RtmKind::LongRead { length, .. }
        | RtmKind::RuntRead { length, .. } => length,
    }
}

impl Endpoint {
    /// A message whose turn has come.
    pub(super) fn request(
        &mut self,
        from: PeerId,
        rtm: &Rtm,
        payload: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let total = total(rtm, payload.len());
        let missing = total.saturating_sub(payload.len() as u64);
        if rtm.kind.several_requests() && missing > 0 {
            let aside = self.peers.get(from).await_parts(rtm.msg_id, missing);
            if let Some(far) = aside {
                rq.renumber(self.cfg.id, from, rtm.msg_id, far);
            }
        }
        match rq.place(from, rtm.tag, total, |s| port.adopt(s)) {
            Some(place) => self.start(place, from, rtm, payload, rq, port),
            None => rq.keep(UnexpectedMessage {
                coming: None,
                written: None,
                ep: self.cfg.id,
                from,
                rtm: *rtm,
                payload: payload.into(),
            }),
        }
    }

    /// A further request of a message that has begun.
    pub(super) fn part(
        &mut self,
        from: PeerId,
        rtm: &Rtm,
        payload: &[u8],
        packet: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let id = match self.peers.get(from).parts.get_mut(&rtm.msg_id) {
            Some(Parts::Waiting { packets, missing }) => {
                rq.add_part(packet.len());
                *missing = missing.saturating_sub(payload.len() as u64);
                return packets.push(packet.into());
            }
            Some(Parts::Rx(id)) => *id,
            None => return,
        };
        let (RtmKind::Medium { offset, .. } | RtmKind::RuntRead { offset, .. }) = rtm.kind else {
            return;
        };
        self.data(from, id, offset, payload, rq, port);
    }

    /// Gives an unexpected message to a receive that has just been posted.
    pub fn start_unexpected(
        &mut self,
        place: Place,
        u: &UnexpectedMessage,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        self.start(place, u.from, &u.rtm, &u.payload, rq, port);
    }

    /// A request has found its place.
    fn start(
        &mut self,
        place: Place,
        from: PeerId,
        rtm: &Rtm,
        payload: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let len = total(rtm, payload.len());
        let offset = match rtm.kind {
            RtmKind::Medium { offset, .. } | RtmKind::RuntRead { offset, .. } => offset,
            _ => 0,
        };
        let mut rx = Rx::message(place, from, rtm, len);
        self.plan_rest(&mut rx, rtm);
        rx.put(offset, payload, port);
        if matches!(rtm.kind, RtmKind::LongCts { .. }) {
            rx.window = len.saturating_sub(rx.got);
        }
        let parts = &mut self.peers.get(from).parts;
        let waiting = take_waiting(parts, rtm, rq);
        if rx.complete() {
            if waiting.is_some() {
                parts.remove(&rtm.msg_id);
            }
            self.end_rx(rx, rq, port);
            return;
        }
        if let RxKind::Message { several, .. } = &mut rx.kind {
            *several = waiting.is_some();
        }
        let (window, send_id, reads) = (rx.window, rx.send_id, rx.reading.is_some());
        let id = self.rxs.insert(rx);
        port.expect(from, true);
        if let Some(list) = waiting {
            self.start_waiting((from, rtm.msg_id, id), list, rq, port);
        }
        if window > 0 {
            self.send_cts(from, send_id, id, window, false, port);
        }
        if reads {
            self.reading.push_back(id);
            self.push_reads(port);
        }
    }

    /// How the bytes of a message come that its first request does not carry.
    #[inline(always)]
    fn plan_rest(&mut self, rx: &mut Rx, rtm: &Rtm) {
        match rtm.kind {
            RtmKind::LongRead {
                send_id,
                from: memory,
                ..
            } => self.plan_read(rx, send_id, memory, 0),
            RtmKind::RuntRead {
                send_id,
                from: memory,
                runt,
                ..
                // The C library's first bytes can be the whole message: then nothing is read, and
                // its sender waits for no EOR.
            } if runt < rx.total => self.plan_read(rx, send_id, memory, runt),
            RtmKind::RuntRead { .. } => {}
            RtmKind::LongCts { send_id, .. } => rx.send_id = send_id,
            RtmKind::Eager | RtmKind::Medium { .. } => {}
        }
    }

    /// Gives receive operation `id` the requests of its message that came before, and those to
    /// come.
    fn start_waiting(
        &mut self,
        (from, msg_id, id): (PeerId, u32, u32),
        packets: Vec<Packet>,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        self.peers.get(from).parts.insert(msg_id, Parts::Rx(id));
        for p in packets {
            if let Some((Repr::Rtm(mut more), payload)) = Repr::parse(&p) {
                // The message may have been renumbered since they came.
                more.msg_id = msg_id;
                self.part(from, &more, payload, &p, rq, port);
            }
        }
    }

    /// The long-CTS request that takes the place of a read.
    pub(super) fn resume_after_nack(&mut self, from: PeerId, rtm: &Rtm, port: &mut impl Port) {
        let Some(Parts::Rx(id)) = self.peers.get(from).parts.get(&rtm.msg_id) else {
            return;
        };
        let (id, RtmKind::LongCts { send_id, .. }) = (*id, rtm.kind) else {
            return;
        };
        // Accepted only after our READ_NACK: while reads are planned, no bytes may arrive in
        // packets.
        let refused = |r: &&mut Rx| r.from == from && r.reading.is_none();
        let Some(rx) = self.rxs.get_mut(id).filter(refused) else {
            return;
        };
        rx.send_id = send_id;
        rx.receipt = rtm.receipt;
        rx.window = rx.total - rx.got.min(rx.total);
        let window = rx.window;
        self.send_cts(from, send_id, id, window, false, port);
    }

    /// Sends CTS for `length` bytes. Callers pass all remaining bytes at once: the adapter's flow
    /// control keeps the sender from flooding us.
    pub(super) fn send_cts(
        &mut self,
        to: PeerId,
        send_id: u32,
        recv_id: u32,
        length: u64,
        read: bool,
        port: &mut impl Port,
    ) {
        let r = Repr::Cts {
            send_id,
            recv_id,
            length,
            read,
        };
        self.control_repr(to, &r, port);
    }

    /// Bytes of a transfer.
    pub(super) fn data(
        &mut self,
        from: PeerId,
        recv_id: u32,
        off: u64,
        bytes: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        // A transfer that has failed only waits for its reads.
        let lives = |r: &&mut Rx| r.from == from && r.failed.is_none();
        let Some(rx) = self.rxs.get_mut(recv_id).filter(lives) else {
            return;
        };
        let len = rx.put(off, bytes, port);
        rx.window = rx.window.saturating_sub(len);
        if rx.complete() {
            self.reading.retain(|r| *r != recv_id);
            self.close_rx(recv_id, rq, port);
        } else if len == 0 {
            // Nothing has changed.
        } else if rx.reading.as_ref().is_some_and(|r| r.refused) {
            self.refuse_read(recv_id, port);
        } else if rx.window == 0 && matches!(rx.kind, RxKind::Read) {
            // The first part of a long read is over: the rest is cleared.
            rx.window = rx.total - rx.got;
            let (send_id, window) = (rx.send_id, rx.window);
            self.send_cts(from, send_id, recv_id, window, true, port);
        }
    }

    /// Fails the accesses to the targets which `is` accepts, because their regions are being
    /// closed: nothing is stored or sent any more, no further reads into them are posted, and the
    /// next progress tells their initiators. Returns the writes with reads in flight; the caller
    /// has the adapter end those reads, and [`Endpoint::read_done`] then ends each transfer.
    pub fn close_targets(&mut self, is: impl Fn(u32) -> bool) -> Vec<u32> {
        for id in self.txs.select(|t| t.target && is(t.ctx)) {
            if let Some(t) = self.txs.get_mut(id) {
                t.failed.get_or_insert(REGION_CLOSED);
                t.window = t.sent;
                self.closed.push((id, t.peer, t.recv_id));
            }
        }
        let target = |r: &Rx| matches!(r.kind, RxKind::Write { .. }) && is(r.ctx);
        let mut under_way = Vec::new();
        for id in self.rxs.select(target) {
            let Some(rx) = self.rxs.get_mut(id) else {
                continue;
            };
            rx.failed.get_or_insert(REGION_CLOSED);
            if let Some(r) = &mut rx.reading {
                r.end = r.at;
                r.closed = true;
                match r.under_way {
                    // The next progress ends the transfer.
                    0 if self.reading.contains(&id) => {}
                    0 => self.reading.push_back(id),
                    _ => under_way.push(id),
                }
            } else {
                self.closed.push((id, rx.from, rx.send_id));
            }
        }
        under_way
    }

    /// Ends the accesses that [`Endpoint::close_targets`] has stopped, and sends PEER_ERROR.
    #[cold]
    pub(super) fn end_closed_accesses(&mut self, port: &mut impl Port) {
        for (id, to, theirs) in core::mem::take(&mut self.closed) {
            self.send_peer_error(to, theirs, REGION_CLOSED, port);
            self.fail_tx(id, REGION_CLOSED, port);
            self.drop_rx(id, port);
        }
    }

    pub(super) fn close_rx(&mut self, id: u32, rq: &mut RecvQueue, port: &mut impl Port) {
        if let Some(rx) = self.rxs.remove(id) {
            port.expect(rx.from, false);
            self.release_serving(&rx);
            if let RxKind::Message {
                msg_id,
                several: true,
                ..
            } = rx.kind
            {
                self.peers.get(rx.from).parts.remove(&msg_id);
            }
            self.end_rx(rx, rq, port);
        }
    }

    /// Decrements the peer's count of operations under way, if the transfer is a write.
    fn release_serving(&mut self, rx: &Rx) {
        if matches!(rx.kind, RxKind::Write { .. }) {
            let p = self.peers.get(rx.from);
            p.serving = p.serving.saturating_sub(1);
        }
    }

    /// Removes a transfer that the peer will start again.
    pub(super) fn drop_rx(&mut self, id: u32, port: &mut impl Port) {
        if let Some(rx) = self.rxs.remove(id) {
            port.expect(rx.from, false);
            self.release_serving(&rx);
            // The caller reports the end of the transfer to the peer.
            let _ = port.close_target(rx.ctx, false);
        }
    }

    pub(super) fn fail_rx(
        &mut self,
        id: u32,
        failure: Failure,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        if let Some(rx) = self.rxs.get_mut(id) {
            rx.failed.get_or_insert(failure);
            self.reading.retain(|r| *r != id);
            // The adapter still writes through reads in flight: the memory must not be released
            // before they end.
            if let Some(r) = rx.reading.as_mut().filter(|r| r.under_way > 0) {
                r.end = r.at;
                return;
            }
            self.close_rx(id, rq, port);
        }
    }

    /// Completes a transfer: reports it to the application, then acknowledges it to the sender.
    pub(super) fn end_rx(&mut self, rx: Rx, rq: &mut RecvQueue, port: &mut impl Port) {
        let mut receipt_id = 0;
        match rx.kind {
            RxKind::Message { place, msg_id, .. } => {
                receipt_id = msg_id;
                let stays = rq.ended(&place);
                let short = rx.total > place.room;
                let result = match rx.failed {
                    Some(f) => Err(f),
                    None if short => Err(Failure {
                        errno: FI_ETRUNC,
                        status: 0,
                    }),
                    None => Ok(()),
                };
                let msg = Received {
                    from: rx.from,
                    len: rx.total,
                    tag: rx.tag,
                    cq_data: rx.cq_data,
                    base: rx.base,
                    room: place.room,
                    stays,
                };
                port.received(rx.ctx, msg, result);
            }
            RxKind::Write { cq_data } => {
                let stored = port.close_target(rx.ctx, rx.failed.is_none());
                if let (Err(f), None) = (stored, rx.failed) {
                    if let Some(theirs) = rx.answers {
                        self.send_peer_error(rx.from, theirs, f, port);
                    }
                    return;
                }
                if rx.failed.is_none() {
                    port.written(rx.from, cq_data, rx.total);
                }
            }
            RxKind::Read => port.sent(rx.ctx, rx.failed.map_or(Ok(()), Err)),
        }
        if rx.failed.is_some() {
            return;
        }
        if rx.reading.is_some() {
            let r = Repr::Eor {
                send_id: rx.send_id,
                recv_id: 0,
            };
            self.control_repr(rx.from, &r, port);
        } else if let Some(tx_id) = rx.receipt {
            let r = Repr::Receipt {
                tx_id,
                msg_id: receipt_id,
            };
            self.control_repr(rx.from, &r, port);
        }
    }
}

/// Takes out the requests of a message that came before its first one; `None` for a message of one
/// request. A medium message or runting read has several, which find their transfer by number.
#[inline(always)]
fn take_waiting(
    parts: &mut HashMap<u32, Parts>,
    rtm: &Rtm,
    rq: &mut RecvQueue,
) -> Option<Vec<Packet>> {
    let several = rtm.kind.several_requests();
    let waiting = match parts.get_mut(&rtm.msg_id) {
        Some(Parts::Waiting { packets, .. }) if several => Some(core::mem::take(packets)),
        _ => None,
    };
    for p in waiting.iter().flatten() {
        rq.remove_part(p.len());
    }
    waiting
}
