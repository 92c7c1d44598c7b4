//! Endpoints (fi_endpoint(3)): their bindings and settings.
//!
//! An [`Ep`] is part of its domain's state. It is opened here, gets a [`LiveEndpoint`] state from
//! fi_enable(3) (`enable`), and is closed by `close`; `options` has its options, `contexts` the
//! contexts of scalable endpoints, `srx` shared receive contexts. `ops` (beside this module) starts
//! operations, `progress` makes progress on them.

mod close;
mod config;
mod contexts;
mod enable;
mod idle;
mod live;
mod name;
pub(crate) mod options;
pub(crate) mod srx;

pub(crate) use close::{cancel_shared, close};
pub(crate) use config::{DataPathConfig, TxMode};
pub(crate) use contexts::{close_context, open_contexts, MAX_CONTEXTS};
pub(crate) use enable::{bind_cntr, enable};
pub(crate) use idle::DomainUse;
pub(crate) use live::{LiveEndpoint, Wakeup};
pub(crate) use name::{name, set_name};
pub(crate) use srx::Srx;

use crate::core::{Info, Result};
use crate::device::any::AnyQp;
use crate::device::{AdapterAttr, QueuePair};
use crate::proto::{Failure, PeerId, Place};
use crate::prov::contract::Eq;
use crate::prov::efa::addr;
use crate::prov::efa::budget::Holding;
use crate::prov::efa::info::inject_most;
use crate::prov::efa::ops::atomic::atomic_max;
use crate::prov::efa::ops::collective::{CollectiveState, DeferredDrop};
use crate::prov::efa::ops::deferred_list::DeferredList;
use crate::prov::efa::ops::triggers::Triggers;
use crate::prov::reports::endpoint::inject_fits;
use crate::prov::reports::CqBinding;
use crate::prov::reports::{self, completion::BoundCntrs};
use crate::shm::ShmEndpoint;
use crate::transport::{Report, Status};
use crate::types::*;
use std::sync::Arc;

/// The protocol of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointKind {
    /// The wire protocol.
    Rdm,
    /// No protocol: every call is a work request (fabric `efa-direct`).
    Direct,
    /// No protocol, and unreliable (FI_EP_DGRAM).
    Dgram,
}

impl EndpointKind {
    /// Whether peers on the same host are reached through shared memory. Without the wire protocol
    /// only the software adapter supports that.
    pub(crate) fn uses_shm(self, qp: &AnyQp) -> bool {
        match self {
            EndpointKind::Rdm => true,
            EndpointKind::Direct => qp.native_ref().is_none(),
            EndpointKind::Dgram => false,
        }
    }
}

/// The failure of an operation that ended with this status.
pub(crate) fn failure(status: Status) -> Failure {
    Failure {
        errno: status.errno(),
        status: status as u8,
    }
}

/// One endpoint.
pub(crate) struct Ep {
    pub caps: u64,
    pub(crate) tx_flags: u64,
    pub(crate) rx_flags: u64,
    pub(crate) config: DataPathConfig,
    pub(crate) qpn: u16,
    pub(crate) av: Option<u32>,
    pub(crate) tx: Option<CqBinding>,
    pub(crate) rx: Option<CqBinding>,
    pub(crate) cntrs: BoundCntrs,
    /// The event queue for errors that belong to no operation.
    pub(crate) eq: Option<Arc<Eq>>,
    /// Counters in the adapter: fi_enable moves them here from `cntrs`.
    pub(crate) counted: Vec<u32>,
    pub(crate) opts: options::Options,
    pub(crate) live: Option<LiveEndpoint>,
    /// Its receives and unexpected messages: its own queue, or that of a shared receive context.
    pub(crate) rxq: u32,
    pub(crate) srx: Option<u32>,
    /// Operations that wait behind a fence or for a peer's ring, or that found no room when
    /// started.
    pub(crate) deferred: DeferredList,
    /// Scratch for operands of atomics.
    pub(crate) operands: Vec<u8>,
    /// Whether RDMA reads and writes are used: the adapter has them, and they are wanted
    /// (FI_OPT_EFA_USE_DEVICE_RDMA, FI_EFA_USE_DEVICE_RDMA).
    pub(crate) rdma_read: bool,
    pub(crate) rdma_write: bool,
    /// Every peer's adapter has what ours has.
    pub(crate) homogeneous: bool,
    /// Aliases that are open (fi_ep_alias(3)).
    pub aliases: u32,
    /// Reception of messages is paused: unexpected ones take too much memory.
    pub(crate) holding: Holding,
    /// The queue pair of a context of a scalable endpoint, until fi_enable. A context may be bound
    /// for one direction only.
    pub(crate) context: Option<AnyQp>,
    pub(crate) is_context: bool,
    /// Domain-wide settings the data path needs.
    pub(crate) max_rdma: usize,
    pub(crate) kind: EndpointKind,
    /// Peers' writes with immediate data consume a receive, as the application agreed
    /// (FI_RX_CQ_DATA).
    pub(crate) writes_take_receives: bool,
    /// Once closed: memory that its queue pair may still read.
    pub(crate) leftover: Option<DeferredDrop>,
    /// Of a closed endpoint: where messages were coming in to receives of a shared context.
    pub(crate) cut_off: Vec<Place>,
}

/// The traffic class of an endpoint, which is its domain's where it has none of its own
/// (fi_endpoint(3)).
fn traffic_class(info: &Info) -> u32 {
    let own = info.tx.as_ref().map_or(FI_TC_UNSPEC, |t| t.tclass);
    let domain = info.domain.as_ref().map_or(FI_TC_UNSPEC, |d| d.tclass);
    match own {
        FI_TC_UNSPEC => domain,
        own => own,
    }
}

impl Ep {
    /// An endpoint as `info` describes it, not yet enabled. `FI_EINVAL` for an info of another
    /// endpoint type.
    pub(crate) fn new(info: &Info, direct: bool, d: &AdapterAttr) -> Result<Ep> {
        let type_ = info.ep.as_ref().map_or(FI_EP_RDM, |e| e.type_);
        if type_ != FI_EP_RDM && type_ != FI_EP_DGRAM {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_endpoint: ep_attr->type: wanted {}, had FI_EP_RDM, FI_EP_DGRAM",
                crate::core::tostr::ep_type(type_)
            );
            return Err(FI_EINVAL);
        }
        let kind = match (type_, direct) {
            (FI_EP_DGRAM, _) => EndpointKind::Dgram,
            (_, true) => EndpointKind::Direct,
            _ => EndpointKind::Rdm,
        };
        let inject_size = info.tx.as_ref().map_or(0, |t| t.inject_size);
        inject_fits(info, inject_most(kind, d))?;
        let mut opts = options::Options::new(inject_size, atomic_max(d.mtu)).of_kind(kind, d);
        opts.rma = info.caps & FI_RMA != 0;
        opts.rx_cq_data = info.mode & FI_RX_CQ_DATA != 0;
        opts.sends = info.tx.as_ref().map_or(0, |t| t.size);
        opts.low_latency = traffic_class(info) == FI_TC_LOW_LATENCY;
        if let Some(d) = &info.domain {
            opts = opts.with_resource_mgmt(d.resource_mgmt);
        }
        if info.caps & FI_HMEM != 0 {
            opts = opts.with_device_memory(kind);
        }
        let qpn = info
            .src_addr
            .as_deref()
            .and_then(addr::from_raw)
            .map_or(0, |a| a.qpn);
        Ok(Ep {
            caps: info.caps,
            tx_flags: info.tx.as_ref().map_or(0, |t| t.op_flags),
            rx_flags: info.rx.as_ref().map_or(0, |r| r.op_flags),
            config: DataPathConfig::default(),
            qpn,
            av: None,
            tx: None,
            rx: None,
            cntrs: BoundCntrs::default(),
            eq: None,
            counted: Vec::new(),
            opts,
            live: None,
            rxq: u32::MAX,
            srx: None,
            deferred: DeferredList::default(),
            operands: Vec::new(),
            rdma_read: d.caps.rdma_read,
            rdma_write: d.caps.rdma_write,
            homogeneous: false,
            aliases: 0,
            holding: Holding::None,
            context: None,
            is_context: false,
            max_rdma: d.max_rdma,
            kind,
            writes_take_receives: kind == EndpointKind::Direct && info.mode & FI_RX_CQ_DATA != 0,
            leftover: None,
            cut_off: Vec::new(),
        })
    }

    /// Whether work is pending that no arrival announces: the endpoint needs a full progress call.
    #[inline(always)]
    pub(crate) fn waits(&self, triggers: &Triggers, colls: &CollectiveState) -> bool {
        let some = self.deferred.len() | triggers.len() | colls.load();
        some | usize::from(self.holding != Holding::None) != 0
    }

    /// Whether fi_enable(3) has succeeded.
    pub(crate) fn enabled(&self) -> bool {
        self.live.is_some()
    }

    /// Descriptor that becomes readable after [`Ep::arm`] when there is something to do, once
    /// enabled.
    pub(crate) fn wait_fd(&self) -> Option<i32> {
        self.live.as_ref().map(LiveEndpoint::wait_fd)
    }

    /// Asks for a signal on the descriptor; `false` when there is something to do already.
    pub(crate) fn arm(&mut self) -> bool {
        let Some(l) = &mut self.live else { return true };
        // That a peer on this host does not answer is found by looking.
        let asks = |h: &ShmEndpoint| h.tx.pending_answer().is_some();
        let waits = !self.deferred.is_empty() && l.shm_ep.as_ref().is_some_and(asks);
        let idle = !waits
            && l.shm.all_reported()
            && l.rma.load() == 0
            && !l.rendezvous.more()
            && !l.shm_ep.as_ref().is_some_and(ShmEndpoint::lost);
        let rings = |h: &mut ShmEndpoint| h.tx.settle() & h.rx.arm() & h.tx.arm();
        let armed = idle & l.qp.arm() & l.shm_ep.as_mut().is_none_or(rings);
        // Else another caller may rely on what was armed before.
        if armed {
            l.wakeup = Wakeup::Armed;
        }
        armed
    }

    /// Whether requests without an operation record are outstanding to a peer: accesses in its
    /// ring, long messages of this host, plain requests of an adapter.
    pub(crate) fn has_outstanding(&self, peer: PeerId) -> bool {
        let Some(l) = &self.live else { return false };
        let rings = l
            .shm_ep
            .as_ref()
            .is_some_and(|h| h.tx.has_outstanding_to(peer));
        let long = l.rendezvous.sends_to(peer);
        rings || long || l.rma.has_outstanding_to(peer) || l.qp.busy_with(peer)
    }

    /// Cancels RDMA reads into these targets, whose regions are closed.
    pub(crate) fn close_targets(&mut self, targets: &[u32]) {
        if let Some(l) = &mut self.live {
            for read in l.proto.close_targets(|ctx| targets.contains(&ctx)) {
                l.qp.cancel_reads(Report::ProtoRead(read));
            }
        }
    }

    /// Whether this endpoint keeps state of a peer.
    pub(crate) fn knows_peer(&self, peer: PeerId) -> bool {
        let Some(l) = &self.live else { return false };
        self.deferred.names(peer)
            || l.proto.knows_peer(peer)
            || self.has_outstanding(peer)
            || l.rendezvous.mentions(peer)
            || l.shm_ep.as_ref().is_some_and(|h| h.knows_peer(peer))
    }

    /// Forgets a peer: its number will be another peer's.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        let Some(l) = &mut self.live else { return };
        l.qp.disconnect(peer);
        l.routes.forget(peer);
        if let Some(h) = &mut l.shm_ep {
            h.tx.forget_peer(peer);
        }
    }

    /// A peer was removed from the address vector and inserted again.
    pub(crate) fn renew_peer(&mut self, peer: PeerId) {
        if let Some(l) = &mut self.live {
            l.proto.renew_peer(peer);
        }
    }

    /// Drops connection and route of a peer whose address has been completed.
    pub(crate) fn readdress(&mut self, peer: PeerId) {
        let Some(l) = &mut self.live else { return };
        l.qp.disconnect(peer);
        l.routes.forget(peer);
    }

    /// Its queue pair, once enabled.
    pub(crate) fn qp_mut(&mut self) -> Option<&mut AnyQp> {
        self.live.as_mut().map(|l| &mut l.qp)
    }

    /// Its address vector.
    pub(crate) fn av(&self) -> Option<u32> {
        self.av
    }

    /// Whether it reports to this queue.
    pub(crate) fn uses_cq(&self, id: u32) -> bool {
        [self.tx, self.rx].iter().flatten().any(|b| b.cq == id)
    }

    /// Whether it reports to this counter.
    pub(crate) fn uses_cntr(&self, id: u32) -> bool {
        self.cntrs.each().any(|(_, c)| c == id) || self.counted.contains(&id)
    }

    /// Binds an address vector. `FI_EOPBADSTATE` after enabling, `FI_EINVAL` for a second one.
    pub(crate) fn bind_av(&mut self, av: u32) -> Result<()> {
        self.must_be_new("an address vector")?;
        if self.av.is_some() {
            return Err(FI_EINVAL);
        }
        self.av = Some(av);
        Ok(())
    }

    /// See [`CqBinding::bind`]; `FI_EOPBADSTATE` once it is enabled.
    pub(crate) fn bind_cq(&mut self, cq: u32, flags: u64) -> Result<()> {
        self.must_be_new("a completion queue")?;
        CqBinding::bind(cq, flags, &mut self.tx, &mut self.rx)
    }

    /// Default flags of one direction (FI_GETOPSFLAG).
    pub(crate) fn op_flags(&self, recv: bool) -> u64 {
        if recv {
            self.rx_flags
        } else {
            self.tx_flags
        }
    }

    /// See [`reports::endpoint::set_op_flags`].
    pub(crate) fn set_op_flags(&mut self, flags: u64) -> Result<()> {
        reports::endpoint::set_op_flags(flags, &mut self.tx_flags, &mut self.rx_flags)?;
        self.configure_data_path();
        Ok(())
    }

    pub(crate) fn must_be_new(&self, what: &str) -> Result<()> {
        crate::prov::reports::must_be_new(self.enabled(), what)
    }

    /// Binds a shared receive context. `FI_EINVAL` for a second one, or with FI_COLLECTIVE: members
    /// of a group are distinguished by their endpoints.
    pub(crate) fn bind_srx(&mut self, srx: u32) -> Result<()> {
        self.must_be_new("a shared receive context")?;
        if self.caps & FI_COLLECTIVE != 0 {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: a shared receive context: wanted info->caps without FI_COLLECTIVE"
            );
            return Err(FI_EINVAL);
        }
        if self.srx.is_some() {
            return Err(FI_EINVAL);
        }
        self.srx = Some(srx);
        Ok(())
    }

    /// Whether it takes its messages from this shared receive context.
    pub(crate) fn uses_srx(&self, id: u32) -> bool {
        self.srx == Some(id)
    }
}
