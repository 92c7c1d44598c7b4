//! Progress of one endpoint: handles completions and packets of the adapter and records of the
//! rings, then continues operations that had to wait.

use crate::core::memory;
use crate::device::{Device, Event, Events, QueuePair};
use crate::proto::WriteWithData;
use crate::prov::efa::budget::Holding;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{failure, Kind, LiveEndpoint};
use crate::prov::efa::ops::{collective, deferred, direct, rma::retry_refused};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::{budget, same_host, unknown_peers};
use crate::shm::kind;
use crate::shm::ShmEndpoint;
use crate::transport::{Flow, Report, Status};
use crate::types::*;
use std::time::{Duration, Instant};

/// A peer that was lost is reported again when it is lost after so long a time without a loss.
const LOST_AGAIN: Duration = Duration::from_secs(5);

/// Polls an endpoint's adapter and rings, and continues operations that had to wait.
pub(crate) fn progress(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let waits = ep.waits(&s.triggers, &s.colls);
    let Some(live) = &mut ep.live else { return };
    let due = live.take_adapter_due();
    if !due && !waits && live.poll_idle() {
        return;
    }
    let Some(rq) = s.rxqs.get_mut(ep.rxq) else {
        return;
    };
    let mut down = live.lost(&mut s.peers);
    let LiveEndpoint {
        qp,
        proto,
        events,
        late_imms,
        shm_ep,
        shm,
        rendezvous,
        rma,
        packet,
        empty_polls,
        losses,
        ..
    } = live;
    if due {
        qp.poll_all(events);
        *empty_polls = if events.list.is_empty() {
            *empty_polls + 1
        } else {
            0
        };
    }
    let Events { list, arena } = events;
    let (rx, rings) = match shm_ep {
        Some(ShmEndpoint { rx, tx }) => {
            rma.collect(tx);
            (Some(rx), Some(tx))
        }
        None => (None, None),
    };
    let mut port = ep_port!(s, id, ep, qp, rings, shm, late_imms, None);
    rma.report(&mut port);
    if let Some(rx) = rx {
        rx.poll_all(|from, peer, record| {
            let peer = *peer.get_or_insert_with(|| port.peers.of(from));
            match record.kind {
                kind::PACKET => {
                    record.copy(0, packet);
                    proto.packet(peer, packet, rq, &mut port);
                    Flow::Taken
                }
                _ => same_host::arrived(peer, record, rendezvous, rq, &mut port),
            }
        });
        for (conn, number, there) in rx.take_cts() {
            if let Some(peer) = port.rings.as_ref().and_then(|n| n.peer_of(conn)) {
                rendezvous.asked(peer, number, there, &mut port);
            }
        }
    }
    for (peer, why) in &down {
        rendezvous.peer_down(*peer, *why, rq, &mut port);
        proto.peer_down(*peer, *why, rq, &mut port);
        proto.forget_peer(*peer);
    }
    if rendezvous.load() > 0 {
        rendezvous.pump(rq, &mut port);
    }
    if rma.load() > 0 {
        rma.pump(&mut port);
    }
    while let Some(id) = port.shm.packets.pop_front() {
        proto.packet_done(id, None, &mut port);
    }
    while let Some(id) = port.shm.reads.pop_front() {
        proto.read_done(id, None, rq, &mut port);
    }
    for e in list.drain(..) {
        match e {
            Event::Recv {
                from,
                peer,
                data,
                imm,
            } if ep.kind != Kind::Rdm => {
                let peer = peer.unwrap_or_else(|| port.peers.of(&from));
                let message = (Events::bytes(arena, &data), imm);
                direct::arrived(&mut port, ep.kind, rq, peer, message);
            }
            Event::Taken { done, into, taken } => direct::taken(&mut port, &done, into, &taken),
            Event::Recv {
                from, peer, data, ..
            } => {
                let bytes = Events::bytes(arena, &data);
                let peer = match &*port.qp {
                    // Another process may have reused the sender's queue pair number.
                    qp if qp.reuses_numbers() && crate::wire::carries_raw_addr(bytes) => {
                        match unknown_peers::learn_peer(&mut port, from, bytes) {
                            Some(p) => p,
                            None => continue,
                        }
                    }
                    _ => peer.unwrap_or_else(|| port.peers.of(&from)),
                };
                proto.packet(peer, bytes, rq, &mut port);
            }
            Event::UnknownSender { from, data } => {
                let bytes = Events::bytes(arena, &data);
                if let Some(peer) = unknown_peers::learn_peer(&mut port, from, bytes) {
                    proto.packet(peer, bytes, rq, &mut port);
                }
            }
            Event::WriteImm { from, imm, len } => {
                let peer = direct::sender(&mut port, from);
                let len = len as usize;
                let data = imm.into();
                direct::count_write(&mut port, len);
                direct::written(&mut port, rq, peer, WriteWithData { len, data });
            }
            Event::Remote { key, len, write } => port.remote_access(key, len as usize, write),
            Event::Done { done, status } => {
                let fail = (status != Status::Ok).then(|| failure(status));
                match done.report {
                    Report::Packet(n) | Report::Answer(n) => proto.packet_done(n, fail, &mut port),
                    Report::Op(ctx) => port.part_done(ctx, fail),
                    Report::ProtoRead(n) => proto.read_done(n, fail, rq, &mut port),
                    Report::Nowhere => {}
                    Report::Entry | Report::Counters | Report::Early { .. } => {
                        port.complete(&done, fail.map_or(Ok(()), Err));
                    }
                }
            }
            Event::Silent { peer } => {
                let p = port.peers.of(&peer);
                proto.resend_handshake(p, &mut port);
            }
            Event::PeerDown { peer, status } => {
                let p = port.peers.of(&peer);
                let sessions = port.dev.attr().caps.sessions;
                if let Some(eq) = ep.eq.as_ref().filter(|_| proto.works_with(p)) {
                    // In addition to the errors of its operations: the C provider, too, reports a
                    // peer whose endpoint is closed to the event queue. Without sessions each
                    // packet that does not arrive comes here.
                    let now = Instant::now();
                    let last = losses.insert(p, now).filter(|_| !sessions);
                    if last.is_none_or(|last| now - last > LOST_AGAIN) {
                        eq.report_error(failure(status).errno, status as i32);
                    }
                }
                match sessions || status == Status::RemoteBadQpn {
                    true => proto.peer_down(p, failure(status), rq, &mut port),
                    // One packet did not arrive. The next ones may.
                    false => proto.peer_silent(p, failure(status), rq, &mut port),
                }
                if sessions {
                    proto.forget_peer(p);
                }
                down.push((p, failure(status)));
            }
        }
    }
    port.post_late_imms();
    proto.progress(&mut port);
    port.qp.ring();
    let again = port.rings.as_ref().is_some_and(|n| n.has_retries());
    let accesses = again || rma.load() > 0;
    let (bytes, holding) = (rq.bytes(), ep.holding != Holding::Nobody);
    if ep.live.as_mut().is_some_and(LiveEndpoint::take_arm_lost) {
        signal(s, id);
    }
    for (peer, failure) in &down {
        collective::peer_down(s, id, *peer, *failure);
        s.peers.may_be_gone(*peer);
    }
    if s.colls.load() > 0 {
        collective::progress(s, id);
    }
    if !down.is_empty() {
        s.table.iter().for_each(|t| t.drop_done());
        crate::prov::efa::peers::reclaim(s);
    }
    if bytes > s.budget || holding || memory::short() {
        budget::watch(s, id);
    }
    if accesses {
        retry_refused(s, id);
    }
    if s.eps.get(id).is_some_and(|e| !e.fenced.is_empty()) {
        deferred::run_fenced(s, id);
    }
    if !s.triggers.is_empty() {
        deferred::fire(s);
    }
}

/// Wakes callers that are blocked on the endpoint's queues and counters, and the progress thread:
/// they have to arm the endpoint again, because another caller's poll has consumed the event.
#[cold]
pub(super) fn signal(s: &mut State, id: u32) {
    s.polls.note();
    let Some(ep) = s.eps.get(id) else { return };
    let all = (&mut s.cqs, &mut s.cntrs);
    crate::prov::reports::wake_sleepers(all, [ep.tx, ep.rx], &ep.cntrs);
}
