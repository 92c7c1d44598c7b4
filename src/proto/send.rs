//! Messages on their way out, and the data of emulated writes and read answers.
//!
//! Posting an operation sends its first packet; if that fails the operation is refused. Further
//! packets (of medium messages at once, of long ones when cleared) are sent round-robin with those
//! of other operations, at most [`DATA_WINDOW`] of each operation in flight. An operation ends when
//! all its packets are done and the acknowledgement that it awaits has arrived.

use super::choose::Subprotocol;
use super::endpoint::Endpoint;
use super::{Body, Failure, PacketPayload, PeerId, Port, Token};
use crate::core::Result;
use crate::types::*;
use crate::wire::{Iovs, Repr, Rtm, RtmKind, Rtw, RtwKind, HEADER_MAX};

/// Data packets of one operation under way at once.
pub(super) const DATA_WINDOW: u32 = 64;

/// Arguments of [`Endpoint::send`].
#[derive(Clone, Copy, Debug)]
pub struct SendArgs {
    pub peer: PeerId,
    /// The provider's number of the operation, for [`Body`] and [`Port::sent`].
    pub ctx: u32,
    pub len: u64,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    /// Complete only when the message is in the receiver's buffer (FI_DELIVERY_COMPLETE).
    pub receipt: bool,
    /// The data is a copy that is valid only during the call (FI_INJECT): it must fit into one
    /// packet.
    pub inject: bool,
}

/// How an operation continues after its first packet, or after a READ_NACK.
#[derive(Clone, Copy, Debug)]
pub(super) enum Continuation {
    /// Nothing follows the first packet.
    None,
    /// CTSDATA, once cleared.
    Cleared,
    /// Requests of the same message: a medium message, or the first bytes of a runting read.
    Requests { msg_id: u32, runt: u64, from: Iovs },
    /// The peer reads; the message goes by long-CTS if it cannot.
    Read { msg_id: u32 },
    /// As `Read`, for an emulated write to this memory.
    ReadWrite { to: Iovs },
}

/// The acknowledgement that ends an operation; packets of other kinds do not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckKind {
    /// The adapter's completion is enough.
    None,
    Receipt,
    EndOfRead,
    /// The former values of an atomic, with their length in bytes.
    Former(u64),
}

#[derive(Debug)]
pub(super) struct Tx {
    pub ctx: u32,
    pub peer: PeerId,
    pub len: u64,
    pub sent: u64,
    /// Offset up to which data may be sent.
    pub window: u64,
    pub recv_id: u32,
    /// Packets the adapter has not finished.
    pub packets: u32,
    /// The acknowledgement that is still to arrive.
    pub awaits: AckKind,
    /// [`Port::expect`] was called for the peer.
    pub expecting: bool,
    /// In the list of operations with data to send.
    pub ready: bool,
    pub rest: Continuation,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub receipt: bool,
    /// The memory is a peer's target, to be closed when the operation ends.
    pub target: bool,
    pub failed: Option<Failure>,
}

impl Tx {
    pub(crate) fn new(ctx: u32, peer: PeerId, len: u64) -> Tx {
        Tx {
            ctx,
            peer,
            len,
            sent: 0,
            window: 0,
            recv_id: 0,
            packets: 1,
            awaits: AckKind::None,
            expecting: false,
            ready: false,
            rest: Continuation::None,
            tag: None,
            cq_data: None,
            receipt: false,
            target: false,
            failed: None,
        }
    }
}

/// How a message is sent by its subprotocol.
struct SendPlan {
    kind: RtmKind,
    rest: Continuation,
    /// The receiver reads the message, or what follows the runt.
    reads: bool,
    /// Bytes that are sent without being asked for: with the first packet, or after it.
    ahead: u64,
}

impl SendPlan {
    /// For the message `msg_id` of `length` bytes, operation `send_id`, exposed as `from` where it
    /// is read.
    fn of(
        way: Subprotocol,
        (msg_id, send_id): (u32, u32),
        length: u64,
        runt: u64,
        from: Iovs,
    ) -> SendPlan {
        let (kind, rest, ahead) = match way {
            Subprotocol::Eager => (RtmKind::Eager, Continuation::None, length),
            Subprotocol::Medium => {
                let runt = 0;
                let rest = Continuation::Requests { msg_id, runt, from };
                (RtmKind::Medium { length, offset: 0 }, rest, length)
            }
            Subprotocol::LongCts => {
                let credits = DATA_WINDOW;
                let kind = RtmKind::LongCts {
                    length,
                    send_id,
                    credits,
                };
                (kind, Continuation::Cleared, length)
            }
            Subprotocol::LongRead => {
                let kind = RtmKind::LongRead {
                    length,
                    send_id,
                    from,
                };
                (kind, Continuation::Read { msg_id }, 0)
            }
            Subprotocol::RuntRead => {
                let kind = RtmKind::RuntRead {
                    length,
                    send_id,
                    offset: 0,
                    runt,
                    from,
                };
                (kind, Continuation::Requests { msg_id, runt, from }, runt)
            }
        };
        SendPlan {
            kind,
            rest,
            reads: matches!(way, Subprotocol::LongRead | Subprotocol::RuntRead),
            ahead,
        }
    }

    /// How many bytes count as sent after the `first`, and up to where data may be sent. Bytes that
    /// the peer reads count as sent.
    fn progress(&self, first: u64, length: u64) -> (u64, u64) {
        match self.rest {
            Continuation::None | Continuation::Cleared => (first, first),
            _ if first < self.ahead => (first, self.ahead),
            _ => (length, length),
        }
    }
}

impl Endpoint {
    /// Sends a message. `FI_EAGAIN` when the adapter has no room, `FI_EMSGSIZE` for injected data
    /// that does not fit into one packet.
    pub fn send(&mut self, a: &SendArgs, port: &mut impl Port) -> Result<()> {
        if !port.room() {
            return Err(FI_EAGAIN);
        }
        let opt = self.opt(a.peer, a.cq_data);
        let msg_id = self.peers.get(a.peer).next_msg_id;
        let mut tx = Tx::new(a.ctx, a.peer, a.len);
        (tx.tag, tx.cq_data, tx.receipt) = (a.tag, a.cq_data, a.receipt);
        let id = self.txs.insert(tx);
        let mut rtm = Rtm {
            msg_id,
            tag: a.tag,
            opt,
            kind: RtmKind::Eager,
            receipt: a.receipt.then_some(id),
            after_nack: false,
        };
        let mut head = [0u8; HEADER_MAX];
        let mut n = Repr::Rtm(rtm).emit(None, &mut head);
        let eager = self.cfg.mtu.saturating_sub(n) as u64;
        let (way, from) = self.subprotocol(a, eager, port);
        if way != Subprotocol::Eager && a.inject {
            self.txs.remove(id);
            return Err(FI_EMSGSIZE);
        }
        let runt = self.cfg.policy.runt.min(a.len);
        let plan = SendPlan::of(way, (msg_id, id), a.len, runt, from);
        if way != Subprotocol::Eager {
            rtm.kind = plan.kind;
            rtm.receipt = rtm.receipt.filter(|_| !plan.reads);
            n = Repr::Rtm(rtm).emit(None, &mut head);
        }
        let room = self.cfg.mtu.saturating_sub(n) as u64;
        let first = plan.ahead.min(room);
        let load = body(a.ctx, 0, first);
        let sent = port.send(a.peer, head.get(..n).unwrap_or(&[]), load, Token::Tx(id));
        if !sent {
            self.txs.remove(id);
            return Err(FI_EAGAIN);
        }
        self.peers.get(a.peer).take_msg_id();
        self.counts.add(way);
        let Some(t) = self.txs.get_mut(id) else {
            return Ok(());
        };
        t.rest = plan.rest;
        t.awaits = match (plan.reads, a.receipt) {
            (true, _) => AckKind::EndOfRead,
            (false, true) => AckKind::Receipt,
            (false, false) => AckKind::None,
        };
        (t.sent, t.window) = plan.progress(first, a.len);
        if t.sent < t.window {
            t.ready = true;
            self.ready.push_back(id);
        }
        if t.awaits != AckKind::None || way == Subprotocol::LongCts {
            t.expecting = true;
            port.expect(a.peer, true);
        }
        if matches!(plan.rest, Continuation::Requests { .. }) {
            self.push_data(port);
        }
        Ok(())
    }

    /// The subprotocol of a message of which one packet holds `eager` bytes, and the memory that
    /// the peer reads.
    fn subprotocol(
        &mut self,
        a: &SendArgs,
        eager: u64,
        port: &mut impl Port,
    ) -> (Subprotocol, Iovs) {
        let theirs = self.peers.get(a.peer).features;
        let policy = &self.cfg.policy;
        let way = match policy.message(a.len, eager, self.cfg.features, theirs) {
            way @ (Subprotocol::Eager | Subprotocol::LongRead) => way,
            _ if !a.inject && port.prefers_read(a.peer) => Subprotocol::LongRead,
            way => way,
        };
        match way {
            Subprotocol::LongRead | Subprotocol::RuntRead => match port.expose(a.ctx) {
                Some(from) => (way, from),
                None => (Subprotocol::LongCts, Iovs::default()),
            },
            _ => (way, Iovs::default()),
        }
    }

    /// The peer clears `length` more bytes of an operation.
    pub(super) fn cts(
        &mut self,
        from: PeerId,
        send_id: u32,
        recv_id: u32,
        length: u64,
        port: &mut impl Port,
    ) {
        let Some(t) = self.txs.get_mut(send_id).filter(|t| t.peer == from) else {
            return;
        };
        // What has failed sends no more, also while packets of it are under way.
        if !matches!(t.rest, Continuation::Cleared) || t.failed.is_some() {
            return;
        }
        t.recv_id = recv_id;
        t.window = t.sent.saturating_add(length).min(t.len);
        if !t.ready {
            t.ready = true;
            self.ready.push_back(send_id);
        }
        self.push_data(port);
    }

    /// The peer has answered an operation that awaits this answer.
    pub(super) fn answered(
        &mut self,
        from: PeerId,
        send_id: u32,
        answer: AckKind,
        port: &mut impl Port,
    ) {
        let awaits = |t: &&mut Tx| t.peer == from && t.awaits == answer;
        if let Some(t) = self.txs.get_mut(send_id).filter(awaits) {
            t.awaits = AckKind::None;
            if matches!(
                t.rest,
                Continuation::Read { .. } | Continuation::ReadWrite { .. }
            ) {
                t.rest = Continuation::None;
            }
            self.finish_tx(send_id, port);
        }
    }

    /// Handles READ_NACK: the peer cannot read our memory, so the bytes are sent by long-CTS, after
    /// a request that carries no data.
    pub(super) fn handle_read_nack(&mut self, from: PeerId, send_id: u32, port: &mut impl Port) {
        let reads = |t: &&mut Tx| t.peer == from && t.awaits == AckKind::EndOfRead;
        let Some(t) = self.txs.get_mut(send_id).filter(reads) else {
            return;
        };
        let length = t.len;
        let (rest, tag, cq_data, receipt) = (t.rest, t.tag, t.cq_data, t.receipt);
        // What was sent ahead of a read has arrived, and is not sent again.
        let (msg_id, ahead) = match rest {
            Continuation::Requests { msg_id, runt, .. } => (Some(msg_id), runt),
            Continuation::Read { msg_id } => (Some(msg_id), 0),
            Continuation::ReadWrite { .. } => (None, 0),
            Continuation::None | Continuation::Cleared => return,
        };
        t.rest = Continuation::Cleared;
        (t.sent, t.window) = (ahead, ahead);
        t.awaits = match receipt {
            true => AckKind::Receipt,
            false => AckKind::None,
        };
        let opt = self.opt(from, cq_data);
        self.counts.read_nack += 1;
        let kind = RtmKind::LongCts {
            length,
            send_id,
            credits: DATA_WINDOW,
        };
        let repr = match (msg_id, rest) {
            (Some(msg_id), _) => Repr::Rtm(Rtm {
                msg_id,
                tag,
                opt,
                kind,
                receipt: receipt.then_some(send_id),
                after_nack: true,
            }),
            (None, Continuation::ReadWrite { to }) => Repr::Rtw(Rtw {
                opt,
                to,
                kind: RtwKind::LongCts {
                    length,
                    send_id,
                    credits: DATA_WINDOW,
                },
                receipt: receipt.then_some(send_id),
                after_nack: true,
            }),
            (None, _) => return,
        };
        self.control_repr(from, &repr, port);
    }

    pub(super) fn push_data(&mut self, port: &mut impl Port) {
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.front().copied() else {
                return;
            };
            if self.txs.get(id).is_some() && !self.push_one(id, port) {
                if !port.room() {
                    return;
                }
                // This peer has no room, others may.
                self.ready.rotate_left(1);
                continue;
            }
            // Nothing to send for now: `packet_done` or `cts` enters the operation again.
            if let Some(t) = self.txs.get_mut(id) {
                t.ready = false;
            }
            self.ready.pop_front();
        }
    }

    /// Sends the data that an operation's window allows; `false` when the adapter's queue is full.
    fn push_one(&mut self, id: u32, port: &mut impl Port) -> bool {
        let connid = self.cfg.connid;
        loop {
            let Some(t) = self.txs.get(id) else {
                return true;
            };
            if t.sent >= t.window || t.packets >= DATA_WINDOW {
                return true;
            }
            if !port.room() {
                return false;
            }
            let (peer, ctx, off, left) = (t.peer, t.ctx, t.sent, t.window - t.sent);
            let target = t.target;
            let mut buf = [0u8; HEADER_MAX];
            let (n, len) = match t.rest {
                Continuation::Requests { msg_id, runt, from } => {
                    let (tag, cq_data, length) = (t.tag, t.cq_data, t.len);
                    let receipt = t.receipt.then_some(id).filter(|_| runt == 0);
                    let opt = self.opt(peer, cq_data);
                    let kind = if runt == 0 {
                        RtmKind::Medium {
                            length,
                            offset: off,
                        }
                    } else {
                        RtmKind::RuntRead {
                            length,
                            send_id: id,
                            offset: off,
                            runt,
                            from,
                        }
                    };
                    let rtm = Rtm {
                        msg_id,
                        tag,
                        opt,
                        kind,
                        receipt,
                        after_nack: false,
                    };
                    let n = Repr::Rtm(rtm).emit(None, &mut buf);
                    (n, left.min(self.cfg.mtu.saturating_sub(n) as u64))
                }
                _ => {
                    let (recv_id, offset) = (t.recv_id, off);
                    let data = |length| Repr::CtsData {
                        recv_id,
                        length,
                        offset,
                    };
                    let n = data(0).emit(Some(connid), &mut buf);
                    let len = left.min(self.cfg.mtu.saturating_sub(n) as u64);
                    (data(len).emit(Some(connid), &mut buf), len)
                }
            };
            let head = buf.get(..n).unwrap_or(&[]);
            let token = match target {
                true => Token::Answer(id),
                false => Token::Tx(id),
            };
            if !port.send(peer, head, body(ctx, off, len), token) {
                return target && self.end_unreadable(id, port);
            }
            if let Some(t) = self.txs.get_mut(id) {
                t.sent += len;
                t.packets += 1;
                let sent = t.sent;
                if matches!(t.rest, Continuation::Requests { runt, .. } if runt > 0 && sent >= runt)
                {
                    t.sent = t.len;
                }
            }
        }
    }

    /// The adapter is done with a packet of transmit operation `id`.
    pub fn packet_done(&mut self, id: u32, failure: Option<Failure>, port: &mut impl Port) {
        let Some(t) = self.txs.get_mut(id) else {
            return;
        };
        t.packets = t.packets.saturating_sub(1);
        if let Some(f) = failure {
            t.failed.get_or_insert(f);
            t.awaits = AckKind::None;
            t.window = t.sent;
        } else if t.sent < t.window && !t.ready {
            t.ready = true;
            self.ready.push_back(id);
            self.push_data(port);
        }
        self.finish_tx(id, port);
    }

    /// Ends an operation with a failure, as soon as its packets are done.
    pub(super) fn fail_tx(&mut self, id: u32, failure: Failure, port: &mut impl Port) {
        if let Some(t) = self.txs.get_mut(id) {
            t.failed.get_or_insert(failure);
            t.awaits = AckKind::None;
            t.window = t.sent;
        }
        self.finish_tx(id, port);
    }

    /// Ends the answer to a read when its memory cannot be read, and tells the initiator; returns
    /// whether that is so.
    pub(super) fn end_unreadable(&mut self, id: u32, port: &mut impl Port) -> bool {
        let Some(t) = self.txs.get(id) else {
            return false;
        };
        let (peer, recv_id) = (t.peer, t.recv_id);
        let Some(f) = port.unreadable(t.ctx) else {
            return false;
        };
        self.send_peer_error(peer, recv_id, f, port);
        self.fail_tx(id, f, port);
        true
    }

    pub(super) fn finish_tx(&mut self, id: u32, port: &mut impl Port) {
        let Some(t) = self.txs.get(id) else { return };
        let complete = t.sent >= t.len && t.awaits == AckKind::None;
        if t.packets > 0 || !(complete || t.failed.is_some()) {
            return;
        }
        if let Some(t) = self.txs.remove(id) {
            if t.expecting {
                port.expect(t.peer, false);
            }
            if t.target {
                let p = self.peers.get(t.peer);
                p.serving = p.serving.saturating_sub(1);
                // The number comes again, for another operation.
                self.unanswered.retain(|(unanswered, _)| *unanswered != id);
                // What a packet could not carry has ended the answer before (`end_unreadable`).
                let _ = port.close_target(t.ctx, t.failed.is_none());
            } else {
                port.sent(t.ctx, t.failed.map_or(Ok(()), Err));
            }
        }
    }
}

/// Memory of an operation as a packet's payload.
pub(super) fn body<'a>(ctx: u32, off: u64, len: u64) -> PacketPayload<'a> {
    if len == 0 {
        return PacketPayload::None;
    }
    PacketPayload::Body(Body {
        ctx,
        off,
        len: len as usize,
    })
}
