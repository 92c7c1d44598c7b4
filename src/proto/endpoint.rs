//! One RDM endpoint's messages, from first request to completion.
//!
//! A message that fits into one packet goes eagerly. A longer one sends its first part with the
//! request, waits for the receiver's CTS and sends the rest as CTSDATA. The receiver puts requests
//! back in order per peer, matches them (see `matching`), and keeps those nobody waits for.

use super::matching::{Matcher, Posted};
use super::peer::{Peer, Turn};
use super::{Body, Failure, PeerId, Port, Received, Token};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::types::*;
use crate::wire::{extra, Handshake, Opt, Repr, Rtm, HEADER_MAX, RAW_ADDR_LEN};
use std::collections::VecDeque;

/// Data packets of one long message under way at once.
const DATA_WINDOW: u32 = 64;
/// What a handshake names as device: RDMA read and write, as the second generation has them.
const DEVICE_VERSION: u32 = 0xefa2;
/// Length of a CTSDATA header.
const DATA_HEADER: usize = 24;

/// What a send is.
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
}

/// What a receive is.
#[derive(Clone, Copy, Debug)]
pub struct RecvArgs {
    /// Source, or [`super::ANY`].
    pub src: PeerId,
    pub ctx: u32,
    pub len: u64,
    pub tagged: bool,
    pub tag: u64,
    pub ignore: u64,
}

#[derive(Debug)]
struct Tx {
    ctx: u32,
    peer: PeerId,
    len: u64,
    sent: u64,
    /// The receiver has room up to here.
    window: u64,
    recv_id: u32,
    /// Packets the adapter has not finished.
    packets: u32,
    receipt: bool,
    /// Something is awaited from the peer.
    expecting: bool,
    /// In the list of operations with data to send.
    ready: bool,
    failed: Option<Failure>,
}

#[derive(Debug)]
struct Rx {
    ctx: u32,
    from: PeerId,
    room: u64,
    got: u64,
    msg: Received,
    receipt: Option<(u32, u32)>,
}

/// A request without a receive.
#[derive(Debug)]
struct Unexpected {
    from: PeerId,
    rtm: Rtm,
    payload: Box<[u8]>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    ctx: u32,
    len: u64,
}

/// See the module text.
pub struct Endpoint {
    mtu: usize,
    raw_addr: [u8; RAW_ADDR_LEN],
    features: u64,
    host_id: Option<u64>,
    peers: Slab<Peer>,
    txs: Slab<Tx>,
    rxs: Slab<Rx>,
    untagged: Matcher<Slot, Unexpected>,
    tagged: Matcher<Slot, Unexpected>,
    ready: VecDeque<u32>,
    deferred: VecDeque<(PeerId, Vec<u8>)>,
}

impl Endpoint {
    /// An endpoint of this address over an adapter that carries packets of `mtu` bytes.
    pub fn new(
        mtu: usize,
        raw_addr: [u8; RAW_ADDR_LEN],
        features: u64,
        host_id: Option<u64>,
    ) -> Self {
        Endpoint {
            mtu,
            raw_addr,
            features: features | extra::DELIVERY_COMPLETE,
            host_id,
            peers: Slab::default(),
            txs: Slab::default(),
            rxs: Slab::default(),
            untagged: Matcher::default(),
            tagged: Matcher::default(),
            ready: VecDeque::new(),
            deferred: VecDeque::new(),
        }
    }

    /// Makes a new peer known.
    pub fn add_peer(&mut self) -> PeerId {
        self.peers.insert(Peer::default())
    }

    /// Sends a message. `FI_EAGAIN` when the adapter has no room.
    pub fn send(&mut self, a: &SendArgs, port: &mut impl Port) -> Result<()> {
        if !port.room() {
            return Err(FI_EAGAIN);
        }
        let p = self.peers.get_mut(a.peer).ok_or(FI_EINVAL)?;
        let raw_addr = p.features.is_none().then_some(self.raw_addr);
        let opt = Opt {
            raw_addr,
            cq_data: a.cq_data,
            connid: None,
        };
        let mut rtm = Rtm {
            msg_id: p.next_msg_id,
            tag: a.tag,
            opt,
            long: None,
            receipt: None,
        };
        let id = self.txs.insert(Tx {
            ctx: a.ctx,
            peer: a.peer,
            len: a.len,
            sent: 0,
            window: 0,
            recv_id: 0,
            packets: 1,
            receipt: a.receipt,
            expecting: false,
            ready: false,
            failed: None,
        });
        if a.receipt {
            rtm.receipt = Some(id);
        }
        let mut head = [0u8; HEADER_MAX];
        let mut n = Repr::Rtm(rtm).emit(&mut head);
        let long = a.len > (self.mtu - n) as u64;
        if long {
            rtm.long = Some((a.len, id, DATA_WINDOW));
            n = Repr::Rtm(rtm).emit(&mut head);
        }
        let first = a.len.min((self.mtu - n) as u64);
        let body = (first > 0).then_some(Body {
            ctx: a.ctx,
            off: 0,
            len: first as usize,
        });
        if !port.send(a.peer, head.get(..n).unwrap_or(&[]), body, Token::Tx(id)) {
            self.txs.remove(id);
            return Err(FI_EAGAIN);
        }
        p.take_msg_id();
        if let Some(t) = self.txs.get_mut(id) {
            t.sent = first;
            t.window = first;
            t.expecting = long || a.receipt;
            if t.expecting {
                port.expect(a.peer, true);
            }
        }
        Ok(())
    }

    /// Posts a receive; it may complete at once.
    pub fn recv(&mut self, a: &RecvArgs, port: &mut impl Port) {
        let m = if a.tagged {
            &mut self.tagged
        } else {
            &mut self.untagged
        };
        let slot = Slot {
            ctx: a.ctx,
            len: a.len,
        };
        match m.match_receive(a.src, a.tag, a.ignore) {
            Some(u) => self.start(slot, u.from, &u.rtm, &u.payload, port),
            None => m.post(Posted {
                src: a.src,
                tag: a.tag,
                ignore: a.ignore,
                what: slot,
            }),
        }
    }

    /// Takes back the first posted receive that `pick` accepts and returns its number.
    pub fn cancel(&mut self, mut pick: impl FnMut(u32) -> bool) -> Option<u32> {
        let by = |s: &Slot| pick(s.ctx);
        let mut by = by;
        match self.untagged.cancel(&mut by) {
            Some(p) => Some(p.what.ctx),
            None => self.tagged.cancel(&mut by).map(|p| p.what.ctx),
        }
    }

    /// Transmit operations that have not completed.
    pub fn sending(&self) -> usize {
        self.txs.len()
    }

    /// Messages that arrived and that nobody has asked for.
    pub fn unexpected(&self) -> usize {
        self.untagged.waiting() + self.tagged.waiting()
    }

    // ---- what arrives --------------------------------------------------------------------

    /// Takes a packet in. Nonsense is dropped.
    pub fn packet(&mut self, from: PeerId, bytes: &[u8], port: &mut impl Port) {
        let Some((repr, payload)) = Repr::parse(bytes) else {
            return;
        };
        self.greet(from, port);
        match repr {
            Repr::Rtm(rtm) => {
                let Some(p) = self.peers.get_mut(from) else {
                    return;
                };
                if p.turn(rtm.msg_id, bytes) == Turn::Now {
                    self.request(from, &rtm, payload, port);
                    self.requests_in_turn(from, port);
                }
            }
            Repr::Cts {
                send_id,
                recv_id,
                length,
            } => self.cts(from, send_id, recv_id, length, port),
            Repr::CtsData {
                recv_id,
                offset,
                length,
                ..
            } => {
                let n = usize::try_from(length)
                    .unwrap_or(usize::MAX)
                    .min(payload.len());
                self.data(from, recv_id, offset, payload.get(..n).unwrap_or(&[]), port);
            }
            Repr::Receipt { tx_id, .. } => {
                if let Some(t) = self.txs.get_mut(tx_id).filter(|t| t.peer == from) {
                    t.receipt = false;
                    self.finish_tx(tx_id, port);
                }
            }
            Repr::PeerError { op_id, errno, .. } => {
                let status = errno as u8;
                if let Some(t) = self.txs.get_mut(op_id).filter(|t| t.peer == from) {
                    t.failed = Some(Failure {
                        errno: FI_EIO,
                        status,
                    });
                    t.receipt = false;
                    t.window = t.sent;
                    self.finish_tx(op_id, port);
                }
            }
            Repr::Handshake => {
                if let (Some(h), Some(p)) = (Handshake::parse(bytes), self.peers.get_mut(from)) {
                    p.features = Some(h.extra);
                }
            }
            Repr::Unknown(_) => {}
        }
    }

    fn requests_in_turn(&mut self, from: PeerId, port: &mut impl Port) {
        while let Some(b) = self.peers.get_mut(from).and_then(Peer::next_early) {
            if let Some((Repr::Rtm(rtm), payload)) = Repr::parse(&b) {
                self.request(from, &rtm, payload, port);
            }
        }
    }

    /// Answers the first sign of a peer with our handshake.
    fn greet(&mut self, peer: PeerId, port: &mut impl Port) {
        let Some(p) = self.peers.get_mut(peer).filter(|p| !p.handshake_sent) else {
            return;
        };
        p.handshake_sent = true;
        let mut buf = [0u8; 64];
        // A C peer reads the device version without looking whether it is there, and takes our
        // connection id from here: it is the queue key, as in the raw address.
        let [.., a, b, c, d, _, _, _, _, _, _, _, _] = self.raw_addr;
        let h = Handshake {
            extra: self.features,
            connid: Some(u32::from_le_bytes([a, b, c, d])),
            host_id: self.host_id,
            device_version: Some(DEVICE_VERSION),
            ..Handshake::default()
        };
        let n = h.emit(&mut buf);
        self.control(peer, buf.get(..n).unwrap_or(&[]), port);
    }

    fn request(&mut self, from: PeerId, rtm: &Rtm, payload: &[u8], port: &mut impl Port) {
        let m = if rtm.tag.is_some() {
            &mut self.tagged
        } else {
            &mut self.untagged
        };
        let tag = rtm.tag.unwrap_or(0);
        match m.match_message(from, tag) {
            Some(p) => self.start(p.what, from, rtm, payload, port),
            None => m.keep(
                from,
                tag,
                Unexpected {
                    from,
                    rtm: *rtm,
                    payload: payload.into(),
                },
            ),
        }
    }

    /// A request has found its receive.
    fn start(&mut self, slot: Slot, from: PeerId, rtm: &Rtm, payload: &[u8], port: &mut impl Port) {
        let total = rtm.long.map_or(payload.len() as u64, |l| l.0);
        let payload = payload
            .get(..payload.len().min(total as usize))
            .unwrap_or(payload);
        port.store(slot.ctx, 0, payload);
        let msg = Received {
            from,
            len: total,
            tag: rtm.tag.unwrap_or(0),
            cq_data: rtm.opt.cq_data,
        };
        let rx = Rx {
            ctx: slot.ctx,
            from,
            room: slot.len,
            got: payload.len() as u64,
            msg,
            receipt: rtm.receipt.map(|id| (id, rtm.msg_id)),
        };
        if rx.got >= total {
            self.finish_rx(rx, port);
            return;
        }
        let send_id = rtm.long.map_or(0, |l| l.1);
        let length = total - rx.got;
        let recv_id = self.rxs.insert(rx);
        port.expect(from, true);
        // The whole rest at once: the adapter's own window keeps the sender from flooding us.
        self.control_repr(
            from,
            &Repr::Cts {
                send_id,
                recv_id,
                length,
            },
            port,
        );
    }

    fn data(&mut self, from: PeerId, recv_id: u32, off: u64, bytes: &[u8], port: &mut impl Port) {
        let Some(rx) = self.rxs.get_mut(recv_id).filter(|r| r.from == from) else {
            return;
        };
        if off.saturating_add(bytes.len() as u64) > rx.msg.len {
            return;
        }
        port.store(rx.ctx, off, bytes);
        rx.got += bytes.len() as u64;
        if rx.got >= rx.msg.len {
            if let Some(rx) = self.rxs.remove(recv_id) {
                port.expect(from, false);
                self.finish_rx(rx, port);
            }
        }
    }

    fn finish_rx(&mut self, rx: Rx, port: &mut impl Port) {
        let result = if rx.msg.len > rx.room {
            Err(Failure {
                errno: FI_ETRUNC,
                status: 0,
            })
        } else {
            Ok(())
        };
        port.received(rx.ctx, rx.msg, result);
        if let Some((tx_id, msg_id)) = rx.receipt {
            self.control_repr(rx.from, &Repr::Receipt { tx_id, msg_id }, port);
        }
    }

    fn cts(&mut self, from: PeerId, send_id: u32, recv_id: u32, length: u64, port: &mut impl Port) {
        let Some(t) = self.txs.get_mut(send_id).filter(|t| t.peer == from) else {
            return;
        };
        t.recv_id = recv_id;
        t.window = t.sent.saturating_add(length).min(t.len);
        if !t.ready {
            t.ready = true;
            self.ready.push_back(send_id);
        }
        self.push_data(port);
    }

    // ---- what leaves ---------------------------------------------------------------------

    /// Sends what had to wait: control packets, then data of long messages in turn.
    pub fn progress(&mut self, port: &mut impl Port) {
        while port.room() {
            let Some((peer, head)) = self.deferred.pop_front() else {
                break;
            };
            port.send(peer, &head, None, Token::Control);
        }
        self.push_data(port);
    }

    fn push_data(&mut self, port: &mut impl Port) {
        let segment = (self.mtu - DATA_HEADER) as u64;
        while let Some(id) = self.ready.front().copied() {
            let Some(t) = self.txs.get_mut(id) else {
                self.ready.pop_front();
                continue;
            };
            while t.sent < t.window && t.packets < DATA_WINDOW {
                if !port.room() {
                    return;
                }
                let len = (t.window - t.sent).min(segment);
                let head = Repr::CtsData {
                    recv_id: t.recv_id,
                    length: len,
                    offset: t.sent,
                    connid: None,
                };
                let mut buf = [0u8; DATA_HEADER];
                let n = head.emit(&mut buf);
                let body = Body {
                    ctx: t.ctx,
                    off: t.sent,
                    len: len as usize,
                };
                if !port.send(
                    t.peer,
                    buf.get(..n).unwrap_or(&[]),
                    Some(body),
                    Token::Tx(id),
                ) {
                    return;
                }
                t.sent += len;
                t.packets += 1;
            }
            // Done for now: `packet_done` puts it back when there is more.
            t.ready = false;
            self.ready.pop_front();
        }
    }

    fn control_repr(&mut self, to: PeerId, r: &Repr, port: &mut impl Port) {
        let mut buf = [0u8; HEADER_MAX];
        let n = r.emit(&mut buf);
        self.control(to, buf.get(..n).unwrap_or(&[]), port);
    }

    fn control(&mut self, to: PeerId, head: &[u8], port: &mut impl Port) {
        if !port.room() || !port.send(to, head, None, Token::Control) {
            self.deferred.push_back((to, head.to_vec()));
        }
    }

    /// The adapter is done with a packet of `Token::Tx(id)`.
    pub fn packet_done(&mut self, id: u32, failure: Option<Failure>, port: &mut impl Port) {
        let Some(t) = self.txs.get_mut(id) else {
            return;
        };
        t.packets = t.packets.saturating_sub(1);
        if let Some(f) = failure {
            t.failed.get_or_insert(f);
            t.receipt = false;
            t.window = t.sent;
        } else if t.sent < t.window && !t.ready {
            t.ready = true;
            self.ready.push_back(id);
            self.push_data(port);
        }
        self.finish_tx(id, port);
    }

    fn finish_tx(&mut self, id: u32, port: &mut impl Port) {
        let Some(t) = self.txs.get(id) else { return };
        let complete = t.sent >= t.len && !t.receipt;
        if t.packets > 0 || !(complete || t.failed.is_some()) {
            return;
        }
        if let Some(t) = self.txs.remove(id) {
            if t.expecting {
                port.expect(t.peer, false);
            }
            port.sent(t.ctx, t.failed.map_or(Ok(()), Err));
        }
    }

    /// A peer is gone: what it owed ends with `failure`.
    pub fn peer_down(&mut self, peer: PeerId, failure: Failure, port: &mut impl Port) {
        self.deferred.retain(|(to, _)| *to != peer);
        let txs: Vec<u32> = self
            .txs
            .iter()
            .filter(|(_, t)| t.peer == peer)
            .map(|(i, _)| i)
            .collect();
        for id in txs {
            if let Some(t) = self.txs.get_mut(id) {
                t.failed.get_or_insert(failure);
                t.receipt = false;
                t.window = t.sent;
            }
            self.finish_tx(id, port);
        }
        let rxs: Vec<u32> = self
            .rxs
            .iter()
            .filter(|(_, r)| r.from == peer)
            .map(|(i, _)| i)
            .collect();
        for id in rxs {
            if let Some(rx) = self.rxs.remove(id) {
                port.expect(peer, false);
                port.received(rx.ctx, rx.msg, Err(failure));
            }
        }
    }
}
