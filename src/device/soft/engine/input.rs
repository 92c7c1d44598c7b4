//! Receive path: opens and parses datagrams, finds their session and handles acknowledgements.
//! Packets with a sequence number go to `reliable`.

use super::*;
use crate::device::soft::seal::Authenticated;

impl Engine {
    /// Takes in what has arrived. Returns whether there may be more.
    pub(super) fn receive(&mut self, arena: &mut [u8], sink: &mut EventSink, now: u64) -> bool {
        let mut got = core::mem::take(&mut self.got);
        got.clear();
        let more = self.sock.recv(arena, &mut got, now);
        if !got.is_empty() {
            let mem = Arc::clone(&self.mem);
            let access = mem.access();
            let rejected = self.rejected;
            for g in &got {
                self.handle_datagram(g, arena, sink, &access, now);
            }
            self.end_run(arena);
            if let Some(g) = got.first().filter(|_| self.rejected == rejected) {
                self.sock.heard(g.from);
            }
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
        self.handle_datagram(&g, &mut arena, &mut sink, &mem.access(), now);
        self.end_run(&arena);
    }

    /// Handles a received datagram: opens it first where datagrams are sealed.
    fn handle_datagram(
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
                    self.handle_refusal(part, status, sink.list);
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
}
