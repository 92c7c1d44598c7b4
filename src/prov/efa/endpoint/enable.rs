//! fi_enable(3): an endpoint gets its queue pair, its protocol and its rings.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::{count, AnyQp, Dev, ExternalCounter};
use crate::device::{AdapterAttr, Caps, Device, Events, QueuePair, RawQp};
use crate::proto::{self, Policy, RecvQueue};
use crate::prov::efa::addr;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{EndpointKind, Ep, LiveEndpoint, Wakeup};
use crate::prov::efa::same_host::{self, rendezvous::Rendezvous};
use crate::prov::efa::select::Routes;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::CntrKind;
use crate::prov::reports::cq::Cq;
use crate::prov::reports::endpoint::check_cntr_kinds;
use crate::prov::reports::CqBinding;
use crate::shm::ShmEndpoint;
use crate::types::*;
use crate::wire::extra;
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bytes of out-of-order messages that are kept, whatever the budget for unexpected messages: a
/// peer may have this much in flight, which is more than any adapter's send queue holds.
const IN_FLIGHT_MAX: usize = 64 << 20;

/// The device version that the software adapter reports in the handshake.
const SOFT_VERSION: u32 = 0xefa2;

/// The kinds of counters that count accesses of peers.
const REMOTE: [CntrKind; 2] = [CntrKind::RemoteWrite, CntrKind::RemoteRead];

/// Least room for completions of an endpoint whose memory peers write: the C library's default.
const COMPLETIONS: usize = 12_288;

/// Enables an endpoint: `FI_ENOAV` and `FI_ENOCQ` name what is missing. Returns the descriptor that
/// becomes readable when it has something to do.
pub(crate) fn enable(s: &mut State, id: u32) -> Result<RawFd> {
    s.domain_use.endpoints(s.eps.len());
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let av = check_bindings(ep)?;
    let mut qp = open_queue_pair(ep, &s.cqs, &s.cntrs, &s.dev)?;
    qp.copy_device_memory(ep.opts.copies_device_memory());
    let rings = ep.opts.uses_shm() && ep.kind.uses_shm(&qp);
    let shm_ep = rings
        .then(|| ShmEndpoint::open(qp.addr(), qp.wait_fd(), s.table.clone()))
        .flatten();
    let fd = shm_ep.as_ref().map_or(qp.wait_fd(), ShmEndpoint::fd);
    let caps = s.dev.attr().caps;
    let wanted = ep.uses_rdma();
    (ep.rdma_read, ep.rdma_write) = (wanted && caps.rdma_read, wanted && caps.rdma_write);
    ep.homogeneous = caps.homogeneous;
    let proto = protocol(id, ep, &qp, s.dev.attr(), s.budget);
    if ep.cntrs.any(&REMOTE) || !s.mr_cntrs.is_empty() {
        qp.report_remote();
        if let Some(t) = &s.table {
            t.want_events();
        }
    }
    ep.rxq = match ep.srx {
        Some(x) => s.srxs.get(x).ok_or(FI_EBADF)?.rxq,
        None => s.rxqs.insert(RecvQueue::default()),
    };
    if ep.caps & FI_COLLECTIVE != 0 {
        let q = s.rxqs.get_mut(ep.rxq).ok_or(FI_EBADF)?;
        q.with_collectives();
    }
    ep.live = Some(LiveEndpoint {
        qp,
        proto,
        events: Events::default(),
        routes: Routes::default(),
        late_imms: Vec::new(),
        shm_ep,
        shm: same_host::ShmState::default(),
        rendezvous: Rendezvous::default(),
        rma: Default::default(),
        losses: HashMap::new(),
        wakeup: Wakeup::Off,
        packet: Vec::new(),
        unpolled: 0,
        empty_polls: 0,
        skipped_polls: 0,
        costly_poll: !s.dev.attr().is_hardware(),
        idle_poll_at: 0,
    });
    let external = |id: u32| s.cntrs.get(id).is_some_and(|c| c.external.is_some());
    ep.counted.extend(ep.cntrs.take(external));
    ep.configure_data_path();
    if let Some(a) = s.avs.get_mut(av) {
        a.users += 1;
    }
    attach_waits(ep, &mut s.cqs, &mut s.cntrs, id, fd);
    Ok(fd)
}

/// The address vector of an endpoint to which all is bound that it needs.
fn check_bindings(ep: &Ep) -> Result<u32> {
    let av = ep.av.ok_or_else(|| {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_enable: no address vector is bound");
        FI_ENOAV
    })?;
    let sends = ep.tx.is_some() || ep.cntrs.any(&CntrKind::INITIATED);
    let receives = ep.rx.is_some() || ep.cntrs.any(&[CntrKind::Recv]);
    if !(ep.is_context || sends && receives) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_enable: no completion queue or counter is bound for {}",
            if sends { "FI_RECV" } else { "FI_TRANSMIT" }
        );
        return Err(FI_ENOCQ);
    }
    Ok(av)
}

/// The queue pair of an endpoint: the one that its context has, or a new one.
fn open_queue_pair(ep: &mut Ep, cqs: &Slab<Cq>, cntrs: &Slab<Cntr>, dev: &Dev) -> Result<AnyQp> {
    let queue = |b: Option<CqBinding>| cqs.get(b?.cq)?.external.clone();
    let queues = [ep.tx, ep.rx].map(queue);
    let rx_size = ep.rx.and_then(|b| cqs.get(b.cq)).map_or(0, |q| q.size);
    let completions = match crate::core::check::rma_target(ep.caps) {
        true => rx_size.max(COMPLETIONS),
        false => 0,
    };
    let counters = left_to_adapter(ep, cntrs);
    match ep.context.take() {
        Some(qp) => Ok(qp),
        None if ep.kind == EndpointKind::Rdm => dev.open_qp(ep.qpn, ep.opts.packet_qp(completions)),
        None => dev.open_raw(&RawQp {
            qpn: ep.qpn,
            datagram: ep.kind == EndpointKind::Dgram,
            unsolicited: !ep.writes_take_receives,
            inline: ep.opts.inject_limit(),
            sends: 0,
            completions,
            low_latency: ep.opts.low_latency,
            rnr_retry: ep.opts.rnr_retry(),
            queues,
            counters,
        }),
    }
}

/// The protocol's state of an endpoint.
fn protocol(id: u32, ep: &Ep, qp: &AnyQp, attr: &AdapterAttr, budget: usize) -> proto::Endpoint {
    proto::Endpoint::new(proto::Config {
        id,
        mtu: attr.mtu,
        raw_addr: addr::to_raw(&qp.addr()),
        device_version: match &attr.identity {
            Some(i) => i.device,
            None => SOFT_VERSION,
        },
        connid: qp.addr().qkey,
        features: features(ep, &attr.caps),
        hmem_p2p: (ep.caps & FI_HMEM != 0).then_some(!ep.opts.copies_device_memory()),
        policy: Policy::from_params(attr.max_rdma),
        early_max: budget.max(IN_FLIGHT_MAX),
    })
}

/// What this endpoint offers to peers, as bits of [`extra`].
fn features(ep: &Ep, caps: &Caps) -> u64 {
    let all = [
        (caps.unsolicited, extra::UNSOLICITED_WRITE_RECV),
        (ep.rdma_read, extra::RDMA_READ),
        (ep.rdma_write, extra::RDMA_WRITE),
    ];
    let on = all.iter().filter(|(on, _)| *on);
    on.fold(0, |all, (_, f)| all | f)
}

/// Adds the endpoint's descriptor to the wait objects of the endpoint's queues and counters.
fn attach_waits(ep: &Ep, cqs: &mut Slab<Cq>, cntrs: &mut Slab<Cntr>, id: u32, fd: RawFd) {
    for b in [ep.tx, ep.rx].into_iter().flatten() {
        if let Some(c) = cqs.get_mut(b.cq) {
            c.wait.attach(id, fd);
        }
    }
    let bound = ep.cntrs.each().map(|(_, c)| c);
    for c in bound.chain(ep.counted.iter().copied()) {
        if let Some(c) = cntrs.get_mut(c) {
            c.wait.attach(id, fd);
        }
    }
}

/// Binds a counter to kinds of events, before fi_enable or after it (as Sandia OpenSHMEM does).
/// `FI_EBADFLAGS` for unknown kinds, `FI_EINVAL` where another counts them, `FI_EOPBADSTATE` for a
/// counter in the adapter after fi_enable: the adapter attaches counters when the queue pair is
/// created.
pub(crate) fn bind_cntr(s: &mut State, id: u32, cntr: u32, flags: u64) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    check_cntr_kinds(flags)?;
    let c = s.cntrs.get_mut(cntr).ok_or(FI_EBADF)?;
    if c.external.is_some() {
        ep.must_be_new("a counter of the adapter's")?;
    }
    ep.cntrs.bind(cntr, flags)?;
    let Some(l) = &mut ep.live else { return Ok(()) };
    c.wait.attach(id, l.wait_fd());
    if ep.cntrs.any(&REMOTE) {
        l.qp.report_remote();
        if let Some(t) = &s.table {
            t.want_events();
        }
    }
    ep.configure_data_path();
    Ok(())
}

/// The bound counters that are in the adapter, and the kinds of events that each counts.
fn left_to_adapter(ep: &Ep, cntrs: &Slab<Cntr>) -> Vec<(Arc<ExternalCounter>, u32)> {
    let mut list: Vec<(Arc<ExternalCounter>, u32)> = Vec::new();
    for (kind, id) in ep.cntrs.each() {
        let Some(c) = cntrs.get(id).and_then(|c| c.external.as_ref()) else {
            continue;
        };
        let kind = match kind {
            CntrKind::Send => count::SEND,
            CntrKind::Recv => count::RECV,
            CntrKind::Read => count::READ,
            CntrKind::Write => count::WRITE,
            CntrKind::RemoteRead => count::REMOTE_READ,
            CntrKind::RemoteWrite => count::REMOTE_WRITE,
        };
        match list.iter_mut().find(|(other, _)| Arc::ptr_eq(other, c)) {
            Some((_, kinds)) => *kinds |= kind,
            None => list.push((Arc::clone(c), kind)),
        }
    }
    list
}
