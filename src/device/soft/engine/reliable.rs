//! Packets with a sequence number, each of which takes effect once: messages, writes, and reads
//! with their responses.
//!
//! [`Engine::data`] drops a packet that has come before. Every other one is *taken*, which
//! acknowledges it, or gets an error: "receiver not ready", after which its sender sends it again,
//! or a refusal, which ends the operation. A packet that counts as lost gets nothing.

use super::*;
use crate::core::memory;
use core::ops::Range;

/// A packet whose number is new, and what this side has for it.
struct FreshPacket<'a> {
    psn: u32,
    payload: &'a [u8],
    /// There is room for an event.
    room: bool,
    /// Tests whether a message gets "receiver not ready", where those of its sender do.
    hold: Option<fn(&[u8]) -> bool>,
    now: u64,
}

impl EnginePeer {
    /// Refuses a packet. Beyond [`REFUSALS`] the packet counts as lost instead, and is sent again:
    /// `false`.
    pub(super) fn refuse(&mut self, psn: u32, status: Status, now: u64) -> bool {
        let past = now.saturating_sub(self.refused_at) / MS;
        if past > 0 {
            self.refused_at = now;
            self.refusals = self.refusals.saturating_sub(past);
        }
        let allowed = self.rx.as_mut().filter(|_| self.refusals < REFUSALS);
        let refused = allowed.is_some_and(|r| r.refuse(psn, status));
        self.refusals += u64::from(refused);
        refused
    }

    /// Whether the packet is new; one that has come before is acknowledged again.
    #[inline(always)]
    fn accept_number(&mut self, h: &PacketHead) -> bool {
        let r = self.rx.get_or_insert_with(|| RxFlow::new(0));
        r.forget_refusals(h.una);
        let fresh = r.fresh(h.psn);
        if !fresh {
            r.mark_unacked();
            self.ack_now = true;
        }
        fresh
    }

    /// Takes a packet if this side is `ready` for it, and answers "receiver not ready" otherwise.
    /// Returns whether it was taken.
    #[inline(always)]
    fn take_if(&mut self, ready: bool, psn: u32) -> bool {
        let Some(r) = &mut self.rx else { return false };
        match ready {
            true => r.take(psn),
            false => r.not_ready(psn),
        }
        ready
    }

    /// Notes that a packet ends a message or write, for whose end its sender may wait.
    #[inline(always)]
    fn message_ended(&mut self, now: u64) {
        self.ack_now |= self.delayed.message_ended(now);
    }

    /// Executes a packet of an RDMA write. With `remote_events` the write's end is an event even
    /// without immediate data.
    #[inline(always)]
    fn write(
        &mut self,
        p: &FreshPacket,
        kind: PacketKind,
        access: &RegionsRead,
        remote_events: bool,
        list: &mut Vec<Event>,
    ) {
        let PacketKind::Write {
            op,
            key,
            addr,
            total,
            imm,
        } = kind
        else {
            return;
        };
        let Some(r) = &mut self.rx else { return };
        let len = p.payload.len() as u64;
        let counted = imm.is_some() || remote_events;
        // A write that raises an event needs room for the event, as a message does.
        let held = imm.is_some() && p.hold.is_some();
        if counted && (!p.room || held || !r.can_count(op, len as u32, total)) {
            r.not_ready(p.psn);
            return;
        }
        let to = access.find(key, addr, len, FI_REMOTE_WRITE);
        let stored = to.and_then(|m| match m.try_store(0, p.payload) {
            true => Ok(()),
            false => Err(Status::RemoteCopyFailed),
        });
        if let Err(status) = stored {
            let refused = self.refuse(p.psn, status, p.now) && len < u64::from(total);
            if let Some(r) = self.rx.as_mut().filter(|_| refused) {
                r.refused_part(op);
            }
            return;
        }
        r.take(p.psn);
        if !(counted && r.write_part(op, len as u32, total)) {
            return;
        }
        let (from, len, write) = (self.addr, total, true);
        list.extend(imm.map(|imm| Event::WriteImm { from, imm, len }));
        if remote_events {
            list.push(Event::Remote { key, len, write });
        }
    }
}

impl Engine {
    /// Handles a packet with a sequence number. Its payload lies in `place` in the arena.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn data(
        &mut self,
        pi: u32,
        h: &PacketHead,
        place: Range<usize>,
        arena: &mut [u8],
        sink: &mut EventSink,
        access: &RegionsRead,
        now: u64,
    ) {
        let Some(payload) = arena.get(place.clone()) else {
            return;
        };
        let room = self.has_room(sink);
        self.schedule_ack(pi);
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        if !p.accept_number(h) {
            return;
        }
        let (begins, held) = &self.hold;
        let fresh = FreshPacket {
            psn: h.psn,
            payload,
            room,
            hold: held.includes(&p.addr).then_some(*begins),
            now,
        };
        p.rx_bytes = p.rx_bytes.saturating_add(payload.len() as u32);
        let full = payload.len() >= self.cfg.segment;
        match h.kind {
            PacketKind::Send => {
                if !full {
                    p.message_ended(now);
                }
                let held = || fresh.hold.is_some_and(|held| held(payload));
                if p.take_if(room && !held(), h.psn) {
                    let from = (p.addr, p.name);
                    let data = Data::Arena(place.start as u32, place.end as u32);
                    self.deliver(from, data, arena, sink);
                }
            }
            PacketKind::SendPart { op, total, off } => {
                if off.saturating_add(payload.len() as u32) >= total {
                    p.message_ended(now);
                }
                let held = off == 0 && fresh.hold.is_some_and(|held| held(payload));
                let part = MessagePart {
                    op,
                    total,
                    off,
                    at: place.start,
                    len: place.len(),
                };
                self.message_part((pi, h.psn), &part, (room, held), arena, sink);
            }
            PacketKind::Write { .. } => {
                if !full {
                    p.message_ended(now);
                }
                p.write(&fresh, h.kind, access, self.remote_events, sink.list);
            }
            PacketKind::ReadReq { id, key, addr, len } => {
                self.read_request((pi, &fresh), (id, key, addr, len), access);
            }
            PacketKind::ReadResp { id, off } => {
                p.take_if(true, h.psn);
                self.read_data(pi, id, off, payload, sink.list);
            }
            PacketKind::Ping => {
                p.ack_now = true;
                p.take_if(true, h.psn);
            }
            PacketKind::Ack { .. }
            | PacketKind::Reset
            | PacketKind::Hello
            | PacketKind::Welcome => {}
        }
    }

    /// Whether there is room for an event: always when the application polls, which takes it.
    #[inline(always)]
    fn has_room(&self, sink: &EventSink) -> bool {
        let backlog = self.backlog.len() + sink.list.len();
        let kept = backlog < BACKLOG_MSGS && self.backlog_bytes < BACKLOG_BYTES;
        sink.app_polls || kept && !memory::short()
    }

    /// Handles a packet of a message of several; the message is an event once it is complete.
    #[inline(always)]
    fn message_part(
        &mut self,
        (pi, psn): (u32, u32),
        part: &MessagePart,
        (room, held): (bool, bool),
        arena: &mut [u8],
        sink: &mut EventSink,
    ) {
        if !part.valid(MESSAGE_MAX) {
            return;
        }
        let ready = !held && self.prepare_part(pi, part, room, arena);
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let from = (p.addr, p.name);
        if !p.take_if(ready, psn) {
            return;
        }
        if let Some(data) = self.take_part(pi, part, arena) {
            self.deliver(from, data, arena, sink);
        }
    }

    /// Begins to serve a peer's read of `len` bytes; the response carries the acknowledgement.
    #[inline(always)]
    fn read_request(
        &mut self,
        (pi, fresh): (u32, &FreshPacket),
        (id, key, addr, len): (u64, u64, u64, u32),
        access: &RegionsRead,
    ) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        if p.serving >= SERVING_MAX || (self.remote_events && !fresh.room) {
            p.take_if(false, fresh.psn);
            return;
        }
        if let Err(status) = access.find(key, addr, u64::from(len), FI_REMOTE_READ) {
            p.refuse(fresh.psn, status, fresh.now);
            return;
        }
        p.take_if(true, fresh.psn);
        p.serving += 1;
        let kind = EngineOpKind::ReadResp {
            id,
            key,
            addr,
            counted: self.remote_events && access.is_users(key),
        };
        let copy = self.spare.pop().unwrap_or_default();
        let op = Self::op(None, kind, copy, UserMem::EMPTY, u64::from(len));
        self.add(pi, op);
    }

    /// Makes a message an event. For the thread, whose arena is used again at once, its bytes are
    /// copied.
    fn deliver(
        &mut self,
        (from, peer): (QpAddr, Option<PeerId>),
        data: Data,
        arena: &[u8],
        sink: &mut EventSink,
    ) {
        let data = match data {
            Data::Arena(..) if !sink.app_polls => Data::Own(Events::bytes(arena, &data).to_vec()),
            data => data,
        };
        match (&data, sink.app_polls) {
            // A run that is still coming would be moved over these bytes.
            (Data::Arena(..), _) => self.end_run(arena),
            (Data::Own(v), false) => self.backlog_bytes += v.len(),
            (Data::Own(_), true) => {}
        }
        sink.list.push(Event::Recv {
            from,
            peer,
            data,
            imm: None,
        });
    }

    pub(super) fn read_data(
        &mut self,
        pi: u32,
        id: u64,
        off: u64,
        data: &[u8],
        list: &mut Vec<Event>,
    ) {
        let Some(slot) = self.read_slot(id, pi) else {
            return;
        };
        let Some(r) = self.reads.get_mut(slot) else {
            return;
        };
        let failed = match off {
            READ_GONE => Some(Status::RemoteAbort),
            READ_FAILED => Some(Status::RemoteCopyFailed),
            _ => None,
        };
        if let Some(status) = failed {
            let done = r.done;
            self.end_read(slot);
            list.push(Event::Done { done, status });
            return;
        }
        let total = r.local.len() as u64;
        let end = off.saturating_add(data.len() as u64);
        if end > total {
            return;
        }
        r.local.store(off as usize, data);
        r.got = r.got.saturating_add(data.len() as u64);
        if r.got >= total {
            let done = r.done;
            self.end_read(slot);
            list.push(Event::Done {
                done,
                status: Status::Ok,
            });
        }
    }

    pub(super) fn end_read(&mut self, slot: u32) {
        if let Some(r) = self.reads.remove(slot) {
            if let Some(p) = self.peers.get_mut(r.peer) {
                p.expect = p.expect.saturating_sub(1);
            }
        }
    }
}
