//! One RDM endpoint's side of the protocol: its peers, its operations, what arrives.
//!
//! This file has the tables and the dispatch of packets; `send`, `recv`, `rma` and `atomic` have
//! the steps of each operation.

use super::choose::{Counts, Policy};
use super::peer::{Parts, Peer, ReorderOutcome};
use super::recv::{Rx, RxKind, PROTOCOL_VIOLATION};
use super::recvq::{Place, RecvQueue};
use super::send::{AckKind, Tx};
use super::{Failure, PacketPayload, PeerId, Port, Token};
use crate::core::numbered::Numbered;
use crate::types::*;
use crate::wire::{
    carries_raw_addr, extra, Handshake, Opt, Repr, HEADER_MAX, RAW_ADDR_LEN, REF_SKIP,
};
use std::collections::VecDeque;

/// Most reads and writes of one peer under way on our memory; a correct peer has fewer.
const SERVING_MAX: usize = 1 << 14;

/// Configuration of an [`Endpoint`].
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The provider's number of the endpoint; marks its messages in a shared receive queue.
    pub id: u32,
    /// Longest packet, bytes.
    pub mtu: usize,
    pub raw_addr: [u8; RAW_ADDR_LEN],
    /// Generation of our adapter, as its PCI device id tells it.
    pub device_version: u32,
    /// The queue key in the address.
    pub connid: u32,
    /// Bits of [`extra`] that depend on the adapter.
    pub features: u64,
    /// Whether the adapter reads and writes our device memory; `None`: there is none.
    pub hmem_p2p: Option<bool>,
    pub policy: Policy,
    /// Budget for early messages of one peer, and for answers to it that wait for room, bytes.
    pub early_max: usize,
}

/// Peers by their number.
#[derive(Default)]
pub(super) struct PeerTable {
    at: Vec<Option<Box<Peer>>>,
    /// Stands for an entry that is out of range, which [`PeerTable::get`] rules out.
    fallback: Peer,
}

impl PeerTable {
    /// Whether the peer has an entry.
    pub(crate) fn has(&self, id: PeerId) -> bool {
        self.at.get(id as usize).is_some_and(Option::is_some)
    }

    /// Forgets a peer.
    pub(crate) fn remove(&mut self, id: PeerId) {
        if let Some(p) = self.at.get_mut(id as usize) {
            *p = None;
        }
    }

    /// The entry of a peer, if there is one.
    #[inline(always)]
    pub(crate) fn known(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.at.get_mut(id as usize)?.as_deref_mut()
    }

    /// A peer, made on first use.
    #[inline]
    pub(crate) fn get(&mut self, id: PeerId) -> &mut Peer {
        let i = id as usize;
        if self.at.len() <= i {
            self.at.resize_with(i + 1, || None);
        }
        match self.at.get_mut(i) {
            Some(p) => p.get_or_insert_default(),
            None => &mut self.fallback,
        }
    }
}

/// See the module text.
pub struct Endpoint {
    pub(super) cfg: Config,
    pub(super) peers: PeerTable,
    pub(super) txs: Numbered<Tx>,
    pub(super) rxs: Numbered<Rx, true>,
    /// Transmit operations with data to send.
    pub(super) ready: VecDeque<u32>,
    /// Receive operations with memory to read.
    pub(super) reading: VecDeque<u32>,
    /// Emulated reads of peers whose first answer packet waits for room, with the bytes that the
    /// peer has cleared.
    pub(super) unanswered: VecDeque<(u32, u64)>,
    deferred: VecDeque<(PeerId, Vec<u8>)>,
    /// Emulated accesses of peers to regions that are closed, by their number here: the initiator,
    /// which is still to be notified, and the initiator's number.
    pub(super) closed: Vec<(u32, PeerId, u32)>,
    pub(super) counts: Counts,
    /// Scratch for the answers of atomics.
    pub(super) former: Vec<u8>,
}

impl Endpoint {
    /// An endpoint without peers.
    pub fn new(cfg: Config) -> Self {
        let always = extra::DELIVERY_COMPLETE
            | extra::CONNID_HEADER
            | extra::RUNT
            | extra::READ_NACK
            | extra::PEER_ERROR;
        Endpoint {
            cfg: Config {
                features: cfg.features | always,
                ..cfg
            },
            peers: PeerTable::default(),
            txs: Numbered::default(),
            rxs: Numbered::default(),
            ready: VecDeque::new(),
            reading: VecDeque::new(),
            unanswered: VecDeque::new(),
            deferred: VecDeque::new(),
            closed: Vec::new(),
            counts: Counts::default(),
            former: Vec::new(),
        }
    }

    /// Operations of ours that have not completed.
    #[cfg(any(test, feature = "internals"))]
    pub fn sending(&self) -> usize {
        self.txs.len()
    }

    /// Messages and answers that are arriving.
    #[cfg(any(test, feature = "internals"))]
    pub fn receiving(&self) -> usize {
        self.rxs.len()
    }

    /// Bytes kept of a peer's messages that arrived before their turn.
    #[cfg(any(test, feature = "internals"))]
    pub fn early_bytes(&mut self, peer: PeerId) -> usize {
        self.peers.get(peer).early_bytes()
    }

    /// Whether a message that has its receive waits for further requests.
    pub fn awaits_parts(&self) -> bool {
        let several = |k: &RxKind| matches!(k, RxKind::Message { several: true, .. });
        self.rxs.iter().any(|(_, r)| several(&r.kind))
    }

    /// How often each subprotocol was used.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Extra features of a peer, known from its handshake on.
    pub fn features_of(&mut self, peer: PeerId) -> Option<u64> {
        self.peers.get(peer).features
    }

    /// Whether operations, of either side, are under way with a peer.
    pub fn works_with(&self, peer: PeerId) -> bool {
        self.txs.iter().any(|(_, t)| t.peer == peer) || self.rxs.iter().any(|(_, r)| r.from == peer)
    }

    /// Optional headers of a request: the raw address until the peer's handshake arrives, and
    /// always if the peer asks for constant headers; the connection id otherwise.
    pub(super) fn opt(&mut self, peer: PeerId, cq_data: Option<u64>) -> Opt {
        let known = self.peers.get(peer).features;
        let constant = known.is_some_and(|f| f & extra::CONSTANT_HEADER != 0);
        let addr = known.is_none() || constant;
        Opt {
            raw_addr: addr.then_some(self.cfg.raw_addr),
            cq_data,
            connid: (!addr).then_some(self.cfg.connid),
        }
    }

    // ---- what arrives --------------------------------------------------------------------

    /// Handles a packet. Malformed packets are dropped.
    pub fn packet(&mut self, from: PeerId, bytes: &[u8], rq: &mut RecvQueue, port: &mut impl Port) {
        let Some((repr, payload)) = Repr::parse(bytes) else {
            return;
        };
        if self.peers.get(from).banned {
            return;
        }
        self.send_handshake(from, port);
        let most = self.cfg.early_max;
        match repr {
            Repr::Rtm(r) if r.after_nack => self.resume_after_nack(from, &r, port),
            Repr::Rtm(r) => {
                let several = r.kind.several_requests();
                match self.peers.get(from).turn(r.msg_id, several, bytes, most) {
                    ReorderOutcome::Now => {
                        self.request(from, &r, payload, rq, port);
                        self.requests_in_turn(from, rq, port);
                    }
                    ReorderOutcome::Part => self.part(from, &r, payload, bytes, rq, port),
                    ReorderOutcome::Never => self.out_of_turn(from, bytes, r.msg_id, rq, port),
                    ReorderOutcome::Early => {}
                    ReorderOutcome::Excess => self.ban(from, rq, port),
                }
            }
            Repr::Rta(r) => match self.peers.get(from).turn(r.msg_id, false, bytes, most) {
                ReorderOutcome::Now => {
                    self.atomic_request(from, &r, payload, port);
                    self.requests_in_turn(from, rq, port);
                }
                ReorderOutcome::Excess => self.ban(from, rq, port),
                ReorderOutcome::Never => self.out_of_turn(from, bytes, r.msg_id, rq, port),
                ReorderOutcome::Early | ReorderOutcome::Part => {}
            },
            Repr::Rtw(r) => self.write_request(from, &r, payload, rq, port),
            Repr::Rtr(r) => self.read_request(from, &r, rq, port),
            Repr::Cts {
                send_id,
                recv_id,
                length,
                ..
            } => self.cts(from, send_id, recv_id, length, port),
            Repr::CtsData {
                recv_id,
                offset,
                length,
            } => {
                let n = usize::try_from(length)
                    .unwrap_or(usize::MAX)
                    .min(payload.len());
                let data = payload.get(..n).unwrap_or(&[]);
                self.data(from, recv_id, offset, data, rq, port);
            }
            Repr::ReadRsp {
                recv_id, send_id, ..
            } => self.read_answer(from, recv_id, send_id, payload, rq, port),
            Repr::AtomRsp { recv_id, length } => {
                let n = usize::try_from(length).unwrap_or(usize::MAX);
                let data = payload.get(..n.min(payload.len())).unwrap_or(&[]);
                self.atomic_answer(from, recv_id, data, port);
            }
            Repr::Eor { send_id, .. } => self.answered(from, send_id, AckKind::EndOfRead, port),
            Repr::Receipt { tx_id, .. } => self.answered(from, tx_id, AckKind::Receipt, port),
            Repr::ReadNack { send_id, .. } => self.handle_read_nack(from, send_id, port),
            Repr::PeerError { op_id, kind, errno } => {
                self.peer_error(from, op_id, kind, errno, rq, port)
            }
            Repr::Handshake => {
                if let Some(h) = Handshake::parse(bytes) {
                    // The adapter cannot access the peer's device memory, and a request may name
                    // such memory: use no RDMA with this peer.
                    let lost = match h.hmem_p2p {
                        Some(false) => extra::RDMA_READ | extra::RDMA_WRITE,
                        _ => 0,
                    };
                    self.peers.get(from).features = Some(h.extra & !lost);
                }
            }
            Repr::Unknown(_) => {}
        }
    }

    /// A message whose number is not among those that may come: handled after all where its sender
    /// numbers its messages anew.
    #[cold]
    fn out_of_turn(
        &mut self,
        from: PeerId,
        bytes: &[u8],
        msg_id: u32,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        if carries_raw_addr(bytes) && self.peers.get(from).restart(msg_id) {
            self.packet(from, bytes, rq, port);
        }
    }

    fn requests_in_turn(&mut self, from: PeerId, rq: &mut RecvQueue, port: &mut impl Port) {
        while let Some(packets) = self.peers.get(from).next_early() {
            for (i, b) in packets.iter().enumerate() {
                match Repr::parse(b) {
                    Some((Repr::Rtm(r), payload)) if i == 0 => {
                        self.request(from, &r, payload, rq, port)
                    }
                    Some((Repr::Rtm(r), payload)) => self.part(from, &r, payload, b, rq, port),
                    Some((Repr::Rta(r), payload)) => self.atomic_request(from, &r, payload, port),
                    _ => {}
                }
            }
        }
    }

    /// Sends our handshake in answer to the first packet of a peer.
    fn send_handshake(&mut self, peer: PeerId, port: &mut impl Port) {
        let p = self.peers.get(peer);
        if p.handshake_sent {
            return;
        }
        p.handshake_sent = true;
        let mut buf = [0u8; 64];
        // The C provider reads the device version without checking its flag, and takes our
        // connection id from the handshake: it must be the queue key of the raw address.
        let h = Handshake {
            extra: self.cfg.features,
            connid: Some(self.cfg.connid),
            host_id: None,
            device_version: Some(self.cfg.device_version),
            hmem_p2p: self.cfg.hmem_p2p,
            ..Handshake::default()
        };
        let n = h.emit(&mut buf);
        self.control(peer, buf.get(..n).unwrap_or(&[]), port);
    }

    /// The number of the `n`th operation that sends, or receives: what a peer may name.
    #[cfg(any(test, feature = "internals"))]
    pub fn number(&self, sends: bool, n: u32) -> u32 {
        let number = match sends {
            true => self.txs.iter().nth(n as usize).map(|(n, _)| n),
            false => self.rxs.iter().nth(n as usize).map(|(n, _)| n),
        };
        number.unwrap_or(n)
    }

    /// Sends our handshake again, as a keep-alive: a peer accepts repeated handshakes, and the
    /// adapter reports a peer that is gone.
    pub fn resend_handshake(&mut self, peer: PeerId, port: &mut impl Port) {
        self.peers.get(peer).handshake_sent = false;
        self.send_handshake(peer, port);
    }

    /// The peer gave up an operation that one of ours depends on.
    fn peer_error(
        &mut self,
        from: PeerId,
        op_id: u32,
        kind: u32,
        errno: u32,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        let failure = Failure::told_by_peer(errno);
        if kind == crate::wire::REF_OPERATION {
            // Transmit and receive operations have different numbers: a receiver gives up a
            // transmit operation of ours, a sender gives up a receive operation.
            if self.txs.get(op_id).is_some_and(|t| t.peer == from) {
                self.fail_tx(op_id, failure, port);
            } else if self.rxs.get(op_id).is_some_and(|r| r.from == from) {
                self.fail_rx(op_id, failure, rq, port);
            }
            return;
        }
        // The sender gives up a message.
        let begun = match kind {
            REF_SKIP => None,
            _ => self.peers.get(from).parts.remove(&op_id),
        };
        let most = self.cfg.early_max;
        match begun {
            Some(Parts::Rx(id)) => {
                let errno = FI_ECANCELED;
                self.fail_rx(id, Failure { errno, ..failure }, rq, port);
            }
            Some(Parts::Waiting { packets, .. }) => {
                packets.iter().for_each(|p| rq.remove_part(p.len()));
                rq.forget_numbered(self.cfg.id, from, op_id);
            }
            // It has not come in its turn, or no packet of it has come.
            None if self.peers.get(from).skip(op_id, most) => {
                self.requests_in_turn(from, rq, port);
            }
            None => self.ban(from, rq, port),
        }
    }

    // ---- what leaves ---------------------------------------------------------------------

    /// 0 when [`Endpoint::progress`] has nothing to do.
    #[inline(always)]
    pub fn load(&self) -> usize {
        let to_answer = self.deferred.len() | self.unanswered.len() | self.closed.len();
        to_answer | self.reading.len() | self.ready.len()
    }

    /// Sends what had to wait: control packets, then reads, then data of long messages in turn.
    pub fn progress(&mut self, port: &mut impl Port) {
        // One peer may have no room while others have.
        for _ in 0..self.deferred.len() {
            let Some((peer, head)) = self.deferred.pop_front() else {
                break;
            };
            if !port.room() || !port.send(peer, &head, PacketPayload::None, Token::Control) {
                self.deferred.push_back((peer, head));
            } else {
                let p = self.peers.get(peer);
                p.deferred = p.deferred.saturating_sub(head.len());
            }
        }
        if !self.closed.is_empty() {
            self.end_closed_accesses(port);
        }
        if !self.unanswered.is_empty() {
            self.answer_reads(port);
        }
        if !self.reading.is_empty() {
            self.push_reads(port);
        }
        self.push_data(port);
    }

    pub(super) fn control_repr(&mut self, to: PeerId, r: &Repr, port: &mut impl Port) {
        let mut buf = [0u8; HEADER_MAX];
        let n = r.emit(Some(self.cfg.connid), &mut buf);
        self.control(to, buf.get(..n).unwrap_or(&[]), port);
    }

    /// Sends a packet without payload, whose completion is ignored, or keeps it until there is
    /// room.
    pub(super) fn control(&mut self, to: PeerId, packet: &[u8], port: &mut impl Port) {
        if !port.room() || !port.send(to, packet, PacketPayload::None, Token::Control) {
            self.defer(to, packet.to_vec());
        }
    }

    /// Keeps a packet until there is room. A packet to a peer whose waiting packets exceed the
    /// budget is dropped and the peer is marked: its next read or write request bans it, because it
    /// may await the dropped answer.
    fn defer(&mut self, to: PeerId, packet: Vec<u8>) {
        let most = self.cfg.early_max;
        let p = self.peers.get(to);
        if p.deferred + packet.len() > most {
            p.overcharged = true;
            return;
        }
        p.deferred += packet.len();
        self.deferred.push_back((to, packet));
    }

    /// Bans the peer if it has exceeded its budget; returns whether it has.
    pub(super) fn overcharged(
        &mut self,
        from: PeerId,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) -> bool {
        let p = self.peers.get(from);
        let over = p.overcharged || p.serving >= SERVING_MAX;
        if over {
            self.ban(from, rq, port);
        }
        over
    }

    /// A peer has exceeded its budget: nothing more is taken from it.
    #[cold]
    fn ban(&mut self, peer: PeerId, rq: &mut RecvQueue, port: &mut impl Port) {
        crate::warn_limited!(
            FI_LOG_EP_DATA,
            "peer {peer} has sent more out of turn than is kept of one peer \
             (FI_EFA_UNEXPECTED_SIZE \
             {}): it is given up",
            self.cfg.early_max
        );
        self.peer_down(peer, PROTOCOL_VIOLATION, rq, port);
        self.peers.get(peer).banned = true;
    }

    /// As [`Endpoint::control`], with a payload of ours behind the header.
    pub(super) fn answer(&mut self, to: PeerId, r: &Repr, data: &[u8], port: &mut impl Port) {
        let mut buf = [0u8; HEADER_MAX];
        let n = r.emit(Some(self.cfg.connid), &mut buf);
        let head = buf.get(..n).unwrap_or(&[]);
        if !port.room() || !port.send(to, head, PacketPayload::Bytes(data), Token::Control) {
            let mut whole = head.to_vec();
            whole.extend_from_slice(data);
            self.defer(to, whole);
        }
    }

    /// Tells a peer that its operation `op_id` has failed here. The packet is not sent to a peer
    /// whose handshake lacks the PEER_ERROR feature: such a peer would treat it as a fatal error.
    pub(super) fn send_peer_error(
        &mut self,
        to: PeerId,
        op_id: u32,
        why: Failure,
        port: &mut impl Port,
    ) {
        let knows = |f: u64| f & extra::PEER_ERROR != 0;
        if !self.peers.get(to).features.is_none_or(knows) {
            return;
        }
        let r = Repr::PeerError {
            op_id,
            kind: crate::wire::REF_OPERATION,
            errno: u32::from(why.status),
        };
        self.control_repr(to, &r, port);
    }

    /// Ends all operations with a peer that does not answer, with `failure`. Its messages that
    /// have arrived stay: the peer may answer again, and does not send them again.
    pub fn peer_silent(
        &mut self,
        peer: PeerId,
        failure: Failure,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        self.deferred.retain(|(to, _)| *to != peer);
        for id in self.txs.select(|t| t.peer == peer) {
            self.fail_tx(id, failure, port);
        }
        for id in self.rxs.select(|r| r.from == peer) {
            self.fail_rx(id, failure, rq, port);
        }
    }

    /// Ends all operations with a peer that is gone, with `failure`, and forgets what has arrived
    /// of its messages in part or before its turn.
    pub fn peer_down(
        &mut self,
        peer: PeerId,
        failure: Failure,
        rq: &mut RecvQueue,
        port: &mut impl Port,
    ) {
        self.peer_silent(peer, failure, rq, port);
        rq.forget_incomplete(self.cfg.id, peer);
        let p = self.peers.get(peer);
        p.drop_kept(|len| rq.remove_part(len));
    }

    /// Places in receives that messages are coming in to.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.rxs.iter().filter_map(|(_, r)| match r.kind {
            RxKind::Message { place, .. } => Some(place),
            _ => None,
        })
    }

    /// Whether anything is kept of a peer.
    pub fn knows_peer(&self, peer: PeerId) -> bool {
        self.peers.has(peer) || self.works_with(peer)
    }

    /// The address of a peer was removed and inserted again. Without effect while operations are
    /// under way with it.
    pub fn renew_peer(&mut self, peer: PeerId) {
        if self.peers.has(peer) && !self.works_with(peer) {
            self.peers.get(peer).renew();
        }
    }

    /// The session with a peer is over: message numbers begin anew with the next one. To be called
    /// after [`Endpoint::peer_down`].
    pub fn forget_peer(&mut self, peer: PeerId) {
        self.peers.remove(peer);
    }
}
