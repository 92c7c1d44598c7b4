//! Progress of one endpoint: handles completions and packets of the adapter and records of the
//! rings, then continues operations that had to wait.

use crate::core::memory;
use crate::device::{Events, QueuePair};
use crate::proto::{self, Failure, PeerId, RecvQueue};
use crate::prov::efa::adapter_events::AdapterEvents;
use crate::prov::efa::budget::Holding;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::ops::{collective, deferred, rma::retry_refused};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host::{rendezvous::Rendezvous, shm_rma::ShmRma};
use crate::prov::efa::{budget, same_host};
use crate::shm::kind;
use crate::shm::{RxRings, ShmEndpoint};
use crate::transport::Flow;
use crate::types::*;

/// Polls an endpoint's adapter and rings, and continues operations that had to wait.
pub(crate) fn progress(s: &mut State, id: u32) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let waits = ep.waits(&s.triggers, &s.colls);
    let Some(live) = &mut ep.live else { return };
    let due = live.take_adapter_due(id, &mut s.domain_use);
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
        poll_rings(rx, packet, (proto, rendezvous, rq), &mut port);
        for (conn, number, there) in rx.take_cts() {
            if let Some(peer) = port.rings.as_ref().and_then(|n| n.peer_of(conn)) {
                rendezvous.handle_cts(peer, number, there, &mut port);
            }
        }
    }
    for (peer, why) in &down {
        rendezvous.peer_down(*peer, *why, rq, &mut port);
        proto.peer_down(*peer, *why, rq, &mut port);
        proto.forget_peer(*peer);
    }
    pump_shm((rendezvous, rma), (proto, rq), &mut port);
    let mut events = AdapterEvents {
        port: &mut port,
        proto,
        rq,
        arena,
        kind: ep.kind,
        eq: ep.eq.as_deref(),
        losses,
        down: &mut down,
    };
    for e in list.drain(..) {
        events.handle(e);
    }
    port.post_late_imms();
    proto.progress(&mut port);
    port.qp.ring();
    let again = port.rings.as_ref().is_some_and(|n| n.has_retries());
    let retries = again || rma.load() > 0;
    let (bytes, holding) = (rq.bytes(), ep.holding != Holding::None);
    if ep.live.as_mut().is_some_and(LiveEndpoint::take_arm_lost) {
        signal(s, id);
    }
    report_down(s, id, &down);
    let over = bytes > s.budget || holding;
    follow_up(s, id, over, retries);
}

/// Hands the records of all rings over: packets to the protocol, others to `same_host`.
#[inline(always)]
fn poll_rings(
    rx: &mut RxRings,
    packet: &mut Vec<u8>,
    (proto, rendezvous, rq): (&mut proto::Endpoint, &mut Rendezvous, &mut RecvQueue),
    port: &mut EpPort,
) {
    rx.poll_all(|from, peer, record| {
        let peer = *peer.get_or_insert_with(|| port.peers.learn(from));
        match record.kind {
            kind::PACKET => {
                record.copy(0, packet);
                proto.packet(peer, packet, rq, port);
                Flow::Taken
            }
            _ => same_host::handle_record(peer, record, rendezvous, rq, port),
        }
    });
}

/// Continues messages and accesses through rings, and ends packets and reads that took one.
#[inline(always)]
fn pump_shm(
    (rendezvous, rma): (&mut Rendezvous, &mut ShmRma),
    (proto, rq): (&mut proto::Endpoint, &mut RecvQueue),
    port: &mut EpPort,
) {
    if rendezvous.load() > 0 {
        rendezvous.pump(rq, port);
    }
    if rma.load() > 0 {
        rma.pump(port);
    }
    while let Some(id) = port.shm.packets.pop_front() {
        proto.packet_done(id, None, port);
    }
    while let Some(id) = port.shm.reads.pop_front() {
        proto.read_done(id, None, rq, port);
    }
}

/// Continues what needs the whole domain: collectives, the budget of unexpected messages (`over`:
/// it is exceeded, or peers are held), accesses that another route takes over (`retries`), fenced
/// and deferred operations.
#[inline(always)]
fn follow_up(s: &mut State, id: u32, over: bool, retries: bool) {
    if s.colls.load() > 0 {
        collective::progress(s, id);
    }
    if over || memory::short() {
        budget::watch(s, id);
    }
    if retries {
        retry_refused(s, id);
    }
    if s.eps.get(id).is_some_and(|e| !e.deferred.is_empty()) {
        deferred::run(s, id);
    }
    if s.triggers.len() > 0 {
        deferred::fire(s);
    }
}

/// Ends what waits for peers that went down, beside the operations of the endpoint's protocol.
fn report_down(s: &mut State, id: u32, down: &[(PeerId, Failure)]) {
    for (peer, failure) in down {
        collective::peer_down(s, id, *peer, *failure);
        s.peers.list_for_reclaim(*peer);
    }
    if !down.is_empty() {
        s.table.iter().for_each(|t| t.drop_done());
        crate::prov::efa::peers::reclaim(s);
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
