//! Receive path: opens and parses datagrams, handles acknowledgements, executes RDMA and reports
//! messages.

use super::*;
use crate::core::memory;
use crate::device::soft::seal::Authenticated;
use core::ops::Range;

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
}

impl Engine {
    /// Takes in what has arrived. Returns whether there may be more.
    pub(super) fn receive(&mut self, arena: &mut [u8], sink: &mut EventSink, now: u64) -> bool {
        let mut got = core::mem::take(&mut self.got);
        got.clear();
        let more = self.sock.recv(arena, &mut got);
        if !got.is_empty() {
            let mem = Arc::clone(&self.mem);
            let access = mem.access();
            for g in &got {
                self.arrived(g, arena, sink, &access, now);
            }
            self.end_run(arena);
        }
        self.got = got;
        more
    }

    /// Handles a datagram made by a test harness as if it had been received.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn inject(
        &mut self,
        from: SocketAddr,
        bytes: &[u8],
        list: &mut Vec<Event>,
        now: u64,
    ) {
        let mem = Arc::clone(&self.mem);
        let g = RxDatagram {
            from,
            at: 0,
            len: bytes.len(),
        };
        let mut sink = EventSink {
            list,
            app_polls: true,
        };
        let mut arena = bytes.to_vec();
        self.arrived(&g, &mut arena, &mut sink, &mem.access(), now);
        self.end_run(&arena);
    }

    /// Handles a received datagram: opens it first where datagrams are sealed.
    fn arrived(
        &mut self,
        g: &RxDatagram,
        arena: &mut [u8],
        sink: &mut EventSink,
        access: &RegionsRead,
        now: u64,
    ) {
        if !self.merges && g.len > self.cfg.segment {
            // Full packets come in runs.
            self.merges = true;
            self.sock.merge();
        }
        match self.seal.as_mut().map(|s| s.open(g, arena)) {
            None => self.input(g, arena, None, sink, access, now),
            Some(Some((g, by))) => self.input(&g, arena, Some(by), sink, access, now),
            Some(None) => self.reject(),
        }
    }

    /// Binds a peer's session to the sender of its first sealed datagram. `false` when a datagram
    /// of the session is from another sender.
    fn bind_sender(&mut self, pi: u32, by: Authenticated) -> bool {
        let (Some(p), Some(seal)) = (self.peers.get_mut(pi), self.seal.as_mut()) else {
            return false;
        };
        let own = *p.salt.get_or_insert(by.salt) == by.salt;
        if own {
            seal.track_sender(by);
        }
        own
    }

    fn input(
        &mut self,
        g: &RxDatagram,
        arena: &mut [u8],
        by: Option<Authenticated>,
        sink: &mut EventSink,
        access: &RegionsRead,
        now: u64,
    ) {
        let Some(bytes) = arena.get(g.at..g.at + g.len) else {
            return;
        };
        let Some((h, payload)) = PacketHead::parse(bytes) else {
            if let Some(version) = packet::other_version(bytes) {
                let (from, own) = (g.from, packet::VERSION);
                crate::warn_limited!(
                    FI_LOG_EP_CTRL,
                    "packets from {from} have format version {version}, wanted {own}: both hosts \
                     need the same release of this library"
                );
            }
            return self.reject();
        };
        let place = g.at + g.len - payload.len()..g.at + g.len;
        let SessionLookup::EnginePeer(pi) = self.resolve_session(g.from, &h, sink.list, now) else {
            return;
        };
        if by.is_some_and(|by| !self.bind_sender(pi, by)) {
            return;
        }
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        // A separate acknowledgement may name refused packets: those come first, in `selective`.
        if let Some(ack) = h.ack.filter(|_| h.kind.reliable()) {
            p.tx.ack_below(ack, &mut self.acked);
        }
        match h.kind {
            PacketKind::Ack {
                bytes,
                packets,
                words,
                errs,
                bye,
            } => {
                p.tx.window_of_peer(bytes, packets);
                let payload = arena.get(place).unwrap_or(&[]);
                let refused = self.selective(pi, &h, payload, words, errs, now);
                for (part, status) in refused {
                    self.refused(part, status, sink.list);
                }
                if bye {
                    if let Some(p) = self.peers.get(pi) {
                        self.sessions.closed(p.addr);
                    }
                    self.finish_acked(sink.list);
                    self.end_session(pi, Status::RemoteBadQpn, sink.list, now);
                }
            }
            _ => {
                p.tx.ack_end(now);
                self.data(pi, &h, place, arena, sink, access, now);
            }
        }
        self.finish_acked(sink.list);
    }

    /// Selective part of an acknowledgement. Returns the packets the peer refused for good.
    pub(super) fn selective(
        &mut self,
        pi: u32,
        h: &PacketHead,
        payload: &[u8],
        words: u8,
        errs: u8,
        now: u64,
    ) -> Vec<(TxPart, Status)> {
        let mut refused = Vec::new();
        let Some(p) = self.peers.get_mut(pi) else {
            return refused;
        };
        let errs_at = words as usize * 8;
        for i in 0..errs as usize {
            let (Some(psn), Some(code)) = (
                packet::u32_at(payload, errs_at + 8 * i),
                packet::u32_at(payload, errs_at + 8 * i + 4),
            ) else {
                break;
            };
            match Status::from_wire(code) {
                Status::RemoteNotReady => p.tx.not_ready(psn, now),
                status => {
                    if let Some(part) = p.tx.get(psn).copied() {
                        refused.push((part, status));
                    }
                }
            }
        }
        let Some(below) = h.ack else { return refused };
        p.tx.ack_below(below, &mut self.acked);
        for i in 0..words as usize {
            let Some(w) = packet::u64_at(payload, 8 * i) else {
                break;
            };
            for b in (0..64u32).filter(|b| w >> b & 1 == 1) {
                let psn = below.wrapping_add(i as u32 * 64 + b);
                p.tx.ack_sel(psn, &mut self.acked);
            }
        }
        p.tx.ack_end(now);
        refused
    }

    /// Handles a packet with a sequence number, which takes effect once. Its payload lies in
    /// `place` in the arena.
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
        let backlog = self.backlog.len() + sink.list.len();
        let kept = backlog < BACKLOG_MSGS && self.backlog_bytes < BACKLOG_BYTES;
        let room = sink.app_polls || kept && !memory::short();
        self.schedule_ack(pi);
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (begins, held) = &self.hold;
        let hold = held.includes(&p.addr).then_some(*begins);
        let r = p.rx.get_or_insert_with(|| RxFlow::new(0));
        r.forget_refusals(h.una);
        if !r.fresh(h.psn) {
            r.mark_unacked();
            p.ack_now = true;
            return;
        }
        let (from, peer) = (p.addr, p.name);
        p.rx_bytes = p.rx_bytes.saturating_add(payload.len() as u32);
        let len = payload.len() as u64;
        match h.kind {
            PacketKind::Send => {
                // A packet that is not full ends a message, for whose end its sender may wait.
                if payload.len() < self.cfg.segment {
                    p.ack_now |= p.delayed.message_ended(now);
                }
                if !room || hold.is_some_and(|held| held(payload)) {
                    r.not_ready(h.psn);
                    return;
                }
                r.take(h.psn);
                let data = Data::Arena(place.start as u32, place.end as u32);
                self.deliver((from, peer), data, arena, sink);
            }
            PacketKind::SendPart { op, total, off } => {
                if off.saturating_add(len as u32) >= total {
                    p.ack_now |= p.delayed.message_ended(now);
                }
                let part = MessagePart {
                    op,
                    total,
                    off,
                    at: place.start,
                    len: place.len(),
                };
                if !part.valid(MESSAGE_MAX) {
                    return;
                }
                let held = off == 0 && hold.is_some_and(|held| held(payload));
                let taken = !held && self.prepare_part(pi, &part, room, arena);
                let Some(r) = self.peers.get_mut(pi).and_then(|p| p.rx.as_mut()) else {
                    return;
                };
                match taken {
                    true => r.take(h.psn),
                    false => return r.not_ready(h.psn),
                }
                if let Some(data) = self.take_part(pi, &part, arena) {
                    self.deliver((from, peer), data, arena, sink);
                }
            }
            PacketKind::Write {
                op,
                key,
                addr,
                total,
                imm,
            } => {
                if payload.len() < self.cfg.segment {
                    p.ack_now |= p.delayed.message_ended(now);
                }
                let counted = imm.is_some() || self.remote_events;
                // A write that raises an event needs room for the event, as a message does.
                let held = imm.is_some() && hold.is_some();
                if counted && (!room || held || !r.can_count(op, len as u32, total)) {
                    r.not_ready(h.psn);
                    return;
                }
                let to = access.find(key, addr, len, FI_REMOTE_WRITE);
                match to.and_then(|m| match m.try_store(0, payload) {
                    true => Ok(()),
                    false => Err(Status::RemoteCopyFailed),
                }) {
                    Ok(()) => {
                        r.take(h.psn);
                        if counted && r.write_part(op, len as u32, total) {
                            if let Some(imm) = imm {
                                sink.list.push(Event::WriteImm {
                                    from,
                                    imm,
                                    len: total,
                                });
                            }
                            if self.remote_events {
                                sink.list.push(Event::Remote {
                                    key,
                                    len: total,
                                    write: true,
                                });
                            }
                        }
                    }
                    Err(s) => {
                        let refused = p.refuse(h.psn, s, now) && len < u64::from(total);
                        if let Some(r) = p.rx.as_mut().filter(|_| refused) {
                            r.refused_part(op);
                        }
                    }
                }
            }
            // The response carries the acknowledgement.
            PacketKind::ReadReq { id, key, addr, len } => {
                if p.serving >= SERVING_MAX || (self.remote_events && !room) {
                    r.not_ready(h.psn);
                    return;
                }
                match access.find(key, addr, u64::from(len), FI_REMOTE_READ) {
                    Ok(_) => {
                        r.take(h.psn);
                        let copy = self.spare.pop().unwrap_or_default();
                        let counted = self.remote_events && access.is_users(key);
                        let kind = EngineOpKind::ReadResp {
                            id,
                            key,
                            addr,
                            counted,
                        };
                        let op = Self::op(None, kind, copy, UserMem::EMPTY, u64::from(len));
                        p.serving += 1;
                        self.add(pi, op);
                    }
                    Err(s) => {
                        p.refuse(h.psn, s, now);
                    }
                }
            }
            PacketKind::ReadResp { id, off } => {
                r.take(h.psn);
                self.read_data(pi, id, off, payload, sink.list);
            }
            PacketKind::Ping => {
                p.ack_now = true;
                r.take(h.psn);
            }
            PacketKind::Ack { .. }
            | PacketKind::Reset
            | PacketKind::Hello
            | PacketKind::Welcome => {}
        }
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
