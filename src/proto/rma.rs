//! Emulated reads and writes, for adapters without RDMA (protocol, 3.3 and 4.1).
//!
//! A write is a message into memory that the sender names. It always asks for a receipt, so that a
//! wrong key is reported to the initiator. A read is a request; the target answers with one packet,
//! or with a long message whose first part is that packet.

use super::endpoint::Endpoint;
use super::recv::{Rx, RxKind};
use super::recvq::RecvQueue;
use super::send::{body, AckKind, Continuation, Tx, DATA_WINDOW};
use super::{Body, Failure, PacketPayload, PeerId, Port, Token};
use crate::core::Result;
use crate::types::*;
use crate::wire::{extra, Iovs, Repr, Rtr, Rtw, RtwKind, HEADER_MAX};

/// The memory that a request names is shorter than the transfer.
const TOO_SHORT: Failure = Failure {
    errno: FI_EMSGSIZE,
    status: 11,
};

/// Length of a READRSP header. A read whose data does not fit behind it in one packet is a long
/// read.
const READRSP_HEADER: usize = 24;

/// Arguments of [`Endpoint::write`].
#[derive(Clone, Copy, Debug)]
pub struct WriteArgs {
    pub peer: PeerId,
    pub ctx: u32,
    pub len: u64,
    pub to: Iovs,
    pub cq_data: Option<u64>,
    /// As [`super::SendArgs::inject`].
    pub inject: bool,
}

/// Arguments of [`Endpoint::read`].
#[derive(Clone, Copy, Debug)]
pub struct ReadArgs {
    pub peer: PeerId,
    pub ctx: u32,
    pub len: u64,
    pub from: Iovs,
}

impl Endpoint {
    /// Writes a peer's memory. `FI_EAGAIN` when the adapter has no room, `FI_EMSGSIZE` for injected
    /// data that does not fit into one packet.
    pub fn write(&mut self, a: &WriteArgs, port: &mut impl Port) -> Result<()> {
        if !port.room() {
            return Err(FI_EAGAIN);
        }
        let opt = self.opt(a.peer, a.cq_data);
        let theirs = self.peers.get(a.peer).features.unwrap_or(0);
        let mut tx = Tx::new(a.ctx, a.peer, a.len);
        (tx.cq_data, tx.receipt, tx.awaits) = (a.cq_data, true, AckKind::Receipt);
        let id = self.txs.insert(tx);
        let mut rtw = Rtw {
            opt,
            to: a.to,
            kind: RtwKind::Eager,
            receipt: Some(id),
            after_nack: false,
        };
        let mut head = [0u8; HEADER_MAX];
        let mut n = Repr::Rtw(rtw).emit(None, &mut head);
        let (length, mut rest) = (a.len, Continuation::None);
        if length > self.cfg.mtu.saturating_sub(n) as u64 {
            if a.inject {
                self.txs.remove(id);
                return Err(FI_EMSGSIZE);
            }
            let reads = self.cfg.features & theirs & extra::RDMA_READ != 0
                && length >= self.cfg.policy.min_read_write;
            let memory = if reads { port.expose(a.ctx) } else { None };
            (rtw.kind, rest) = match memory {
                Some(from) => {
                    rtw.receipt = None;
                    let kind = RtwKind::LongRead {
                        length,
                        send_id: id,
                        from,
                    };
                    (kind, Continuation::ReadWrite { to: a.to })
                }
                None => {
                    let kind = RtwKind::LongCts {
                        length,
                        send_id: id,
                        credits: DATA_WINDOW,
                    };
                    (kind, Continuation::Cleared)
                }
            };
            n = Repr::Rtw(rtw).emit(None, &mut head);
        }
        let reads = matches!(rest, Continuation::ReadWrite { .. });
        let room = self.cfg.mtu.saturating_sub(n) as u64;
        let first = if reads { 0 } else { length.min(room) };
        let load = body(a.ctx, 0, first);
        if !port.send(a.peer, head.get(..n).unwrap_or(&[]), load, Token::Tx(id)) {
            self.txs.remove(id);
            return Err(FI_EAGAIN);
        }
        self.counts.emulated_write += 1;
        if let Some(t) = self.txs.get_mut(id) {
            t.rest = rest;
            if reads {
                t.awaits = AckKind::EndOfRead;
            }
            t.sent = if reads { length } else { first };
            t.window = t.sent;
            t.expecting = true;
            port.expect(a.peer, true);
        }
        Ok(())
    }

    /// Reads a peer's memory. `FI_EAGAIN` when the adapter has no room.
    pub fn read(&mut self, a: &ReadArgs, port: &mut impl Port) -> Result<()> {
        if !port.room() {
            return Err(FI_EAGAIN);
        }
        let opt = self.opt(a.peer, None);
        let one = self.cfg.mtu.saturating_sub(READRSP_HEADER) as u64;
        // The window field has 32 bits; bytes beyond it are cleared when the first window is used
        // up.
        let window = u64::from(u32::MAX).min(a.len);
        let mut rx = Rx::new(RxKind::Read, a.ctx, a.peer, a.len);
        rx.window = window;
        let id = self.rxs.insert(rx);
        let rtr = Rtr {
            opt,
            from: a.from,
            length: a.len,
            recv_id: id,
            window: (a.len > one).then_some(window as u32),
        };
        let mut head = [0u8; HEADER_MAX];
        let n = Repr::Rtr(rtr).emit(None, &mut head);
        let head = head.get(..n).unwrap_or(&[]);
        if !port.send(a.peer, head, PacketPayload::None, Token::Control) {
            self.rxs.remove(id);
            return Err(FI_EAGAIN);
        }
        self.counts.emulated_read += 1;
        port.expect(a.peer, true);
        Ok(())
    }

    /// A peer writes our memory.
    pub(super) fn write_request(
        &mut self,
        from: PeerId,
        r: &Rtw,
        payload: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        // A packet without memory asks for nothing but our handshake, which is on its way.
        if r.to.as_slice().is_empty() || self.overcharged(from, rq, port) {
            return;
        }
        let (total, send_id) = match r.kind {
            RtwKind::Eager => (payload.len() as u64, r.receipt),
            RtwKind::LongCts {
                length, send_id, ..
            }
            | RtwKind::LongRead {
                length, send_id, ..
            } => (length, Some(send_id)),
        };
        let target = if r.to.total().is_some_and(|n| n >= total) {
            port.open_target(&r.to, true)
        } else {
            Err(TOO_SHORT)
        };
        let ctx = match target {
            Ok(ctx) => ctx,
            Err(f) => {
                if let Some(id) = send_id {
                    self.send_peer_error(from, id, f, port);
                }
                return;
            }
        };
        let cq_data = r.opt.cq_data;
        let mut rx = Rx::new(RxKind::Write { cq_data }, ctx, from, total);
        rx.receipt = r.receipt;
        rx.answers = send_id;
        match r.kind {
            RtwKind::LongRead {
                send_id,
                from: memory,
                ..
            } => self.plan_read(&mut rx, send_id, memory, 0),
            RtwKind::LongCts { send_id, .. } => rx.send_id = send_id,
            RtwKind::Eager => {}
        }
        rx.put(0, payload, port);
        if rx.complete() {
            return self.end_rx(rx, rq, port);
        }
        rx.window = total.saturating_sub(rx.got);
        let (window, send_id, reads) = (rx.window, rx.send_id, rx.reading.is_some());
        self.peers.get(from).serving += 1;
        let id = self.rxs.insert(rx);
        port.expect(from, true);
        if reads {
            self.reading.push_back(id);
            self.push_reads(port);
        } else {
            self.send_cts(from, send_id, id, window, false, port);
        }
    }

    /// A peer reads our memory.
    pub(super) fn read_request(
        &mut self,
        from: PeerId,
        r: &Rtr,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        if self.overcharged(from, rq, port) {
            return;
        }
        let fits = r.from.total().is_some_and(|n| n >= r.length);
        let target = if fits {
            port.open_target(&r.from, false)
        } else {
            Err(TOO_SHORT)
        };
        let ctx = match target {
            Ok(ctx) => ctx,
            Err(f) => return self.send_peer_error(from, r.recv_id, f, port),
        };
        let mut tx = Tx::new(ctx, from, r.length);
        tx.target = true;
        tx.recv_id = r.recv_id;
        tx.packets = 0;
        self.peers.get(from).serving += 1;
        let id = self.txs.insert(tx);
        self.answer_read(id, r.window.map_or(r.length, u64::from), port);
    }

    /// Sends the first packet of the answer to a read.
    fn answer_read(&mut self, id: u32, window: u64, port: &mut impl Port) {
        let Some(t) = self.txs.get_mut(id) else {
            return;
        };
        let (peer, ctx, recv_id) = (t.peer, t.ctx, t.recv_id);
        let first = t
            .len
            .min(self.cfg.mtu.saturating_sub(READRSP_HEADER) as u64);
        let repr = Repr::ReadRsp {
            recv_id,
            send_id: id,
            length: first,
        };
        let mut head = [0u8; HEADER_MAX];
        let n = repr.emit(Some(self.cfg.connid), &mut head);
        let head = head.get(..n).unwrap_or(&[]);
        let load = PacketPayload::Body(Body {
            ctx,
            off: 0,
            len: first as usize,
        });
        if !port.room() || !port.send(peer, head, load, Token::Answer(id)) {
            // Nothing has been sent: `answer_reads` tries again.
            t.window = 0;
            if !self.end_unreadable(id, port) {
                self.unanswered.push_back((id, window));
            }
            return;
        }
        t.packets = 1;
        // The peer may send CTS only after this packet.
        t.rest = Continuation::Cleared;
        t.sent = first;
        t.window = window.clamp(first, t.len);
        if t.sent < t.len {
            t.expecting = true;
            port.expect(peer, true);
            t.ready = true;
            self.ready.push_back(id);
            self.push_data(port);
        }
    }

    /// Answers reads for which there was no room.
    pub(super) fn answer_reads(&mut self, port: &mut impl Port) {
        for _ in 0..self.unanswered.len() {
            if !port.room() {
                return;
            }
            if let Some((id, window)) = self.unanswered.pop_front() {
                self.answer_read(id, window, port);
            }
        }
    }

    /// The first packet of the answer to a read of ours.
    pub(super) fn read_answer(
        &mut self,
        from: PeerId,
        recv_id: u32,
        send_id: u32,
        payload: &[u8],
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let Some(rx) = self.rxs.get_mut(recv_id) else {
            return;
        };
        if rx.from != from || !matches!(rx.kind, RxKind::Read) {
            return;
        }
        rx.send_id = send_id;
        self.data(from, recv_id, 0, payload, rq, port);
    }
}
