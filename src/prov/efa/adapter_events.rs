//! What a poll of an endpoint's adapter brings: packets for the protocol, messages and writes of
//! endpoints without one, the ends of work requests, and peers that cannot be reached.

use crate::device::{Data, Device, Event, Events, QpAddr};
use crate::proto::{self, Failure, PeerId, RecvQueue, WriteWithData};
use crate::prov::contract::Eq;
use crate::prov::efa::endpoint::{failure, EndpointKind};
use crate::prov::efa::ops::direct;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::unknown_peers;
use crate::transport::{Completion, Report, Status};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A peer that was lost is reported again when it is lost after so long a time without a loss.
const LOST_AGAIN: Duration = Duration::from_secs(5);

/// The parts of an endpoint that its adapter's events concern.
pub(crate) struct AdapterEvents<'a, 'p> {
    pub port: &'a mut EpPort<'p>,
    pub proto: &'a mut proto::Endpoint,
    pub rq: &'a mut RecvQueue,
    /// Bytes that events refer to.
    pub arena: &'a [u8],
    pub kind: EndpointKind,
    pub eq: Option<&'a Eq>,
    /// When each peer was last reported as lost.
    pub losses: &'a mut HashMap<PeerId, Instant>,
    /// Peers that went down in this poll.
    pub down: &'a mut Vec<(PeerId, Failure)>,
}

impl AdapterEvents<'_, '_> {
    /// Handles one event.
    #[inline(always)]
    pub(crate) fn handle(&mut self, e: Event) {
        match e {
            Event::Recv {
                from,
                peer,
                data,
                imm,
            } => self.received(from, peer, &data, imm),
            Event::Taken { done, into, taken } => {
                direct::end_receive(self.port, &done, into, &taken)
            }
            Event::UnknownSender { from, data } => {
                let bytes = Events::bytes(self.arena, &data);
                if let Some(peer) = unknown_peers::learn_peer(self.port, from, bytes) {
                    self.proto.packet(peer, bytes, self.rq, self.port);
                }
            }
            Event::WriteImm { from, imm, len } => {
                let peer = direct::sender(self.port, from);
                let len = len as usize;
                let data = imm.into();
                direct::count_write(self.port, len);
                direct::written(self.port, self.rq, peer, WriteWithData { len, data });
            }
            Event::Remote { key, len, write } => self.port.remote_access(key, len as usize, write),
            Event::Done { done, status } => self.done(&done, status),
            Event::Silent { peer } => {
                let p = self.port.peers.learn(&peer);
                self.proto.resend_handshake(p, self.port);
            }
            Event::PeerDown { peer, status } => self.peer_down(&peer, status),
        }
    }

    #[inline(always)]
    fn received(&mut self, from: QpAddr, peer: Option<PeerId>, data: &Data, imm: Option<u64>) {
        let bytes = Events::bytes(self.arena, data);
        let known = |port: &mut EpPort| peer.unwrap_or_else(|| port.peers.learn(&from));
        if self.kind != EndpointKind::Rdm {
            let peer = known(self.port);
            return direct::handle_message(self.port, self.kind, self.rq, peer, (bytes, imm));
        }
        // Another process may have reused the sender's queue pair number.
        let reused = self.port.qp.reuses_numbers() && crate::wire::carries_raw_addr(bytes);
        let sender = match reused {
            true => unknown_peers::learn_peer(self.port, from, bytes),
            false => Some(known(self.port)),
        };
        if let Some(peer) = sender {
            self.proto.packet(peer, bytes, self.rq, self.port);
        }
    }

    /// A work request has ended.
    #[inline(always)]
    fn done(&mut self, done: &Completion, status: Status) {
        let fail = (status != Status::Ok).then(|| failure(status));
        match done.report {
            Report::Packet(n) | Report::Answer(n) => self.proto.packet_done(n, fail, self.port),
            Report::Op(ctx) => self.port.part_done(ctx, fail),
            Report::ProtoRead(n) => self.proto.read_done(n, fail, self.rq, self.port),
            Report::Nowhere => {}
            Report::Entry | Report::Counters | Report::Early { .. } => {
                self.port.complete(done, fail.map_or(Ok(()), Err));
            }
        }
    }

    /// A peer cannot be reached. With sessions all that was under way to it has failed; otherwise
    /// one packet has.
    #[cold]
    fn peer_down(&mut self, peer: &QpAddr, status: Status) {
        let p = self.port.peers.learn(peer);
        let sessions = self.port.dev.attr().caps.sessions;
        if let Some(eq) = self.eq.filter(|_| self.proto.works_with(p)) {
            // In addition to the errors of its operations: the C provider, too, reports a peer
            // whose endpoint is closed to the event queue. Without sessions each packet that does
            // not arrive comes here.
            let now = Instant::now();
            let last = self.losses.insert(p, now).filter(|_| !sessions);
            if last.is_none_or(|last| now - last > LOST_AGAIN) {
                eq.report_error(failure(status).errno, status as i32);
            }
        }
        let why = failure(status);
        match sessions || status == Status::RemoteBadQpn {
            true => self.proto.peer_down(p, why, self.rq, self.port),
            // The next packets may arrive.
            false => self.proto.peer_silent(p, why, self.rq, self.port),
        }
        if sessions {
            self.proto.forget_peer(p);
        }
        self.down.push((p, why));
    }
}
