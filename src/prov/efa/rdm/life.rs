//! Endpoints come and go: enabling, the contexts of scalable endpoints, addresses, closing
//! (fi_endpoint(3)).

use super::completion::Counted;
use super::{coll, drop_ops, shm_state, Ep, Kind, Live};
use crate::core::slab::Slab;
use crate::core::{Info, Result};
use crate::device::any::{count, ExternalCounter};
use crate::device::{Device, Events, QueuePair, RawQp};
use crate::proto::{self, Policy, RecvQueue};
use crate::prov::efa::addr;
use crate::prov::efa::cntr::Cntr;
use crate::prov::efa::domain::State;
use crate::shm::ShmEndpoint;
use crate::types::*;
use crate::wire::extra;
use std::sync::Arc;

/// Bytes that a peer may well have under way, more than any adapter's send queue: so much is kept
/// of messages that overtake others, whatever the budget for unexpected ones.
const IN_FLIGHT_MAX: usize = 64 << 20;

/// The generation that the software adapter passes for.
const SOFT_VERSION: u32 = 0xefa2;

/// Enables an endpoint: `FI_ENOAV` and `FI_ENOCQ` name what is missing. Returns the descriptor that
/// becomes readable when it has something to do.
pub(crate) fn enable(s: &mut State, id: u32) -> Result<i32> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let av = ep.av.ok_or_else(|| {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_enable: no address vector is bound");
        FI_ENOAV
    })?;
    let own = [Counted::Send, Counted::Write, Counted::Read];
    let sends = ep.tx.is_some() || ep.cntrs.any(&own);
    let receives = ep.rx.is_some() || ep.cntrs.any(&[Counted::Recv]);
    if !(ep.is_context || sends && receives) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_enable: no completion queue or counter is bound for {}",
            if sends { "FI_RECV" } else { "FI_TRANSMIT" }
        );
        return Err(FI_ENOCQ);
    }
    let queue = |b: Option<super::Bound>| s.cqs.get(b?.cq)?.external.clone();
    let queues = [ep.tx, ep.rx].map(queue);
    let counters = left_to_adapter(ep, &s.cntrs);
    let mut qp = match ep.context.take() {
        Some(qp) => qp,
        None if ep.kind == Kind::Rdm => s.dev.open_qp(ep.qpn)?,
        None => s.dev.open_raw(&RawQp {
            qpn: ep.qpn,
            datagram: ep.kind == Kind::Dgram,
            unsolicited: !ep.takes_imm,
            inline: ep.opts.limit(),
            rnr_retry: ep.opts.rnr_retry(),
            queues,
            counters,
        })?,
    };
    let rings = ep.opts.shared_memory && ep.kind.uses_shm(&qp);
    let shm_ep = rings
        .then(|| ShmEndpoint::open(qp.addr(), qp.wait_fd(), s.table.clone()))
        .flatten();
    let fd = shm_ep.as_ref().map_or(qp.wait_fd(), ShmEndpoint::fd);
    let caps = s.dev.attr().caps;
    let wanted = ep.opts.device_rdma && crate::core::params::efa().use_device_rdma;
    (ep.rdma_read, ep.rdma_write) = (wanted && caps.rdma_read, wanted && caps.rdma_write);
    ep.homogeneous = caps.homogeneous;
    let features = [
        (caps.unsolicited, extra::UNSOLICITED_WRITE_RECV),
        (ep.rdma_read, extra::RDMA_READ),
        (ep.rdma_write, extra::RDMA_WRITE),
    ];
    let features = features.iter().filter(|(on, _)| *on).map(|(_, f)| f);
    let features = features.fold(0, |all, f| all | f);
    let proto = proto::Endpoint::new(proto::Config {
        id,
        mtu: s.dev.attr().mtu,
        raw_addr: addr::to_raw(&qp.addr()),
        device_version: s
            .dev
            .attr()
            .identity
            .as_ref()
            .map_or(SOFT_VERSION, |i| i.device),
        connid: qp.addr().qkey,
        features,
        host_id: None,
        policy: Policy::from_params(),
        early_max: s.budget.max(IN_FLIGHT_MAX),
    });
    let counted = ep.cntrs.any(&[Counted::RemoteWrite, Counted::RemoteRead]);
    if counted || !s.mr_cntrs.is_empty() {
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
    ep.live = Some(Live {
        qp,
        proto,
        events: Events::default(),
        waiting: Vec::new(),
        shm_ep,
        shm: shm_state::ShmState::default(),
        armed: false,
        packet: Vec::new(),
        unpolled: 0,
        empty_polls: 0,
        skipped_polls: 0,
    });
    let external = |id: u32| s.cntrs.get(id).is_some_and(|c| c.external.is_some());
    ep.counted.extend(ep.cntrs.take(external));
    ep.configure_fast_path();
    if let Some(a) = s.avs.get_mut(av) {
        a.users += 1;
    }
    for b in [ep.tx, ep.rx].into_iter().flatten() {
        if let Some(c) = s.cqs.get_mut(b.cq) {
            c.attach(id, fd);
        }
    }
    let cntrs = ep.cntrs.each().map(|(_, c)| c);
    for c in cntrs.chain(ep.counted.iter().copied()) {
        if let Some(c) = s.cntrs.get_mut(c) {
            c.attach(id, fd);
        }
    }
    Ok(fd)
}

/// What counters of the adapter's shall count.
fn left_to_adapter(ep: &Ep, cntrs: &Slab<Cntr>) -> Vec<(Arc<ExternalCounter>, u32)> {
    let mut list: Vec<(Arc<ExternalCounter>, u32)> = Vec::new();
    for (kind, id) in ep.cntrs.each() {
        let Some(c) = cntrs.get(id).and_then(|c| c.external.as_ref()) else {
            continue;
        };
        let kind = match kind {
            Counted::Send => count::SEND,
            Counted::Recv => count::RECV,
            Counted::Read => count::READ,
            Counted::Write => count::WRITE,
            Counted::RemoteRead => count::REMOTE_READ,
            Counted::RemoteWrite => count::REMOTE_WRITE,
        };
        match list.iter_mut().find(|(other, _)| Arc::ptr_eq(other, c)) {
            Some((_, kinds)) => *kinds |= kind,
            None => list.push((Arc::clone(c), kind)),
        }
    }
    list
}

/// The contexts of a scalable endpoint: as many endpoints as `info` asks for transmit or receive
/// contexts, at consecutive addresses.
pub(crate) fn open_contexts(s: &mut State, info: &Info) -> Result<Vec<u32>> {
    let count = info
        .ep
        .as_ref()
        .map_or(1, |e| e.tx_ctx_cnt.max(e.rx_ctx_cnt).max(1));
    if count > MAX_CONTEXTS {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_scalable_ep: tx_ctx_cnt, rx_ctx_cnt: wanted {count}, at most {MAX_CONTEXTS}"
        );
        return Err(FI_EINVAL);
    }
    let first = Ep::new(info, false, s.dev.attr())?;
    let qps = s.dev.open_group(first.qpn, count)?;
    let mut list = Vec::with_capacity(count);
    for qp in qps {
        let mut ep = Ep::new(info, false, s.dev.attr())?;
        ep.qpn = qp.addr().qpn;
        ep.context = Some(qp);
        ep.is_context = true;
        list.push(s.eps.insert(ep));
    }
    Ok(list)
}

/// A transmit (`side` 0) or receive context is closed: its queue is free, whatever the endpoint
/// still does.
pub(crate) fn close_context(s: &mut State, id: u32, side: usize) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let bound = if side == 0 {
        ep.tx.take()
    } else {
        ep.rx.take()
    };
    ep.configure_fast_path();
    let fd = ep.wait_fd();
    let (Some(b), Some(fd)) = (bound, fd) else {
        return;
    };
    if !ep.uses_cq(b.cq) {
        if let Some(c) = s.cqs.get_mut(b.cq) {
            c.detach(id, fd);
        }
    }
}

/// Most contexts of a scalable endpoint.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// Drops what a closing endpoint has posted, and messages that came to it.
fn forget_ops(s: &mut State, id: u32, ep: &Ep) {
    drop_ops(s, id);
    match ep.srx {
        None => {
            s.rxqs.remove(ep.rxq);
        }
        Some(_) => {
            if let Some(q) = s.rxqs.get_mut(ep.rxq) {
                q.forget(id);
            }
        }
    }
    if let Some(l) = &ep.live {
        crate::info_log!(FI_LOG_EP_CTRL, "endpoint closed: {}", l.proto.counts());
    }
}

/// Closes an endpoint. `FI_EBUSY` while it has aliases. Posted operations vanish without
/// completion, as fi_close(3) allows; what was handed to the adapter still goes out. Returns the
/// descriptor of [`enable`].
pub(crate) fn close(s: &mut State, id: u32) -> Result<(Ep, Option<i32>)> {
    if s.eps.get(id).ok_or(FI_EBADF)?.aliases > 0 {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_close: this endpoint still has aliases");
        return Err(FI_EBUSY);
    }
    let mut ep = s.eps.remove(id).ok_or(FI_EBADF)?;
    let fd = ep.wait_fd();
    if let Some(fd) = fd {
        for b in [ep.tx, ep.rx].into_iter().flatten() {
            if let Some(c) = s.cqs.get_mut(b.cq) {
                c.detach(id, fd);
            }
        }
        let cntrs = ep.cntrs.each().map(|(_, c)| c);
        for c in cntrs.chain(ep.counted.iter().copied()) {
            if let Some(c) = s.cntrs.get_mut(c) {
                c.detach(id, fd);
            }
        }
        if let Some(a) = ep.av.and_then(|a| s.avs.get_mut(a)) {
            a.users -= 1;
        }
        forget_ops(s, id, &ep);
    }
    s.triggers.retain(|t| t.ep != id);
    ep.leftover = Some(coll::drop_ep(s, id));
    Ok((ep, fd))
}

/// Address of an endpoint; before it is enabled without queue pair number.
pub(crate) fn name(s: &State, id: u32) -> Result<[u8; addr::LEN]> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    Ok(match &ep.live {
        Some(l) => addr::to_raw(&l.qp.addr()),
        None if ep.context.is_some() => {
            let qp = ep.context.as_ref().ok_or(FI_EBADF)?;
            addr::to_raw(&qp.addr())
        }
        None => {
            let a = crate::device::QpAddr {
                gid: s.dev.attr().gid,
                qpn: ep.qpn,
                ..Default::default()
            };
            addr::to_raw(&a)
        }
    })
}

/// fi_setname(3): the queue pair number to ask for. `FI_EOPBADSTATE` after enabling,
/// `FI_EADDRNOTAVAIL` for an address of another adapter.
pub(crate) fn set_name(s: &mut State, id: u32, raw: &[u8]) -> Result<()> {
    let gid = s.dev.attr().gid;
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let a = addr::from_raw(raw).ok_or(FI_EINVAL)?;
    if a.gid != gid && a.gid != [0; 16] {
        return Err(FI_EADDRNOTAVAIL);
    }
    ep.qpn = a.qpn;
    Ok(())
}
