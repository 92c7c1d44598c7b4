//! What fi_getinfo(3) offers: one RDM candidate per adapter, shaped by hints, node and service.

use super::addr;
use super::node::addresses;
use crate::core::info::{
    BusAttr, DeviceAttr, DomainAttr, EpAttr, FabricAttr, LinkAttr, Nic, RxAttr, TxAttr,
};
use crate::core::registry::Query;
use crate::core::{alter, check, opened, params, version, Info, Result};
use crate::device::any;
use crate::device::{AdapterAttr, QpAddr};
use crate::hmem;
use crate::prov::efa::endpoint::EndpointKind;
use crate::types::*;

const TX_CAPS: u64 =
    FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE | FI_FENCE | FI_TRIGGER;
const RX_CAPS: u64 = FI_MSG
    | FI_TAGGED
    | FI_RMA
    | FI_ATOMIC
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_MULTI_RECV
    | FI_RMA_EVENT
    | FI_SOURCE
    | FI_DIRECTED_RECV
    | FI_TRIGGER;
/// Messages are ordered; atomics are ordered among themselves and with messages.
const ORDER: u64 = FI_ORDER_SAS
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAR
    | FI_ORDER_ATOMIC_WAW;
const DOMAIN_CAPS: u64 = FI_LOCAL_COMM | FI_REMOTE_COMM | FI_SHARED_AV;
const MR_MODE: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_BASIC;
const INJECT_MAX: usize = 4096;
/// Name of the fabric of RDM endpoints that use the wire protocol.
pub(crate) const FABRIC: &str = "efa";
/// Name of the fabric of endpoints without the wire protocol: one call is one work request.
pub(crate) const DIRECT: &str = "efa-direct";

fn nic(d: &AdapterAttr) -> Nic {
    let ip = QpAddr {
        gid: d.gid,
        ..QpAddr::default()
    };
    let names = match &d.identity {
        Some(i) => DeviceAttr {
            name: Some(d.name.clone()),
            device_id: Some(format!("{:#x}", i.device)),
            device_version: Some(i.version.clone()),
            vendor_id: Some(format!("{:#x}", i.vendor)),
            driver: Some(i.driver.clone()),
            firmware: Some(i.firmware.clone()),
        },
        None => DeviceAttr {
            name: Some(d.name.clone()),
            device_id: Some("0x0".into()),
            device_version: Some("1".into()),
            vendor_id: Some("0x0".into()),
            driver: Some("udp".into()),
            firmware: Some(env!("CARGO_PKG_VERSION").into()),
        },
    };
    let bus = match d.identity.as_ref().and_then(|i| i.bus) {
        Some(b) => BusAttr {
            bus_type: FI_BUS_PCI,
            domain_id: b.domain,
            bus_id: b.bus,
            device_id: b.device,
            function_id: b.function,
        },
        // The software adapter is on no bus, but NCCL's plugin rejects an adapter without bus
        // address.
        None => BusAttr {
            bus_type: FI_BUS_PCI,
            ..BusAttr::default()
        },
    };
    Nic {
        device: Some(names),
        bus: Some(bus),
        link: Some(LinkAttr {
            address: Some(format!("EFA-{}", std::net::Ipv6Addr::from(ip.gid))),
            mtu: d.link_mtu,
            speed: d.speed as usize,
            state: if d.up { FI_LINK_UP } else { FI_LINK_DOWN },
            network_type: Some("Ethernet".into()),
        }),
    }
}

/// The longest message that an endpoint of this kind can inject, bytes.
pub(crate) fn inject_most(kind: EndpointKind, d: &AdapterAttr) -> usize {
    match (kind, d.raw.wide) {
        (EndpointKind::Rdm, _) => INJECT_MAX.min(d.mtu / 2),
        (EndpointKind::Direct, Some(wide)) => wide.inline.max(d.raw.inline),
        _ => d.raw.inline,
    }
}

/// The domain attributes of the RDM candidate.
fn rdm_domain(d: &AdapterAttr) -> DomainAttr {
    DomainAttr {
        name: Some(format!("{}-rdm", d.name)),
        threading: FI_THREAD_SAFE,
        control_progress: FI_PROGRESS_AUTO,
        progress: FI_PROGRESS_AUTO,
        resource_mgmt: FI_RM_ENABLED,
        av_type: FI_AV_UNSPEC,
        mr_mode: if d.caps.application_keys {
            FI_MR_SCALABLE
        } else {
            MR_MODE
        },
        mr_key_size: d.caps.key_size,
        cq_data_size: 4,
        cq_cnt: 256,
        ep_cnt: 1024,
        tx_ctx_cnt: 1024,
        rx_ctx_cnt: 1024,
        max_ep_tx_ctx: 1,
        max_ep_rx_ctx: 1,
        max_ep_stx_ctx: 1024,
        max_ep_srx_ctx: 1024,
        // Counters that the adapter itself increments (fi_domain(3), provider efa). Counters in
        // software are not limited, so that a hint of any number is met.
        cntr_cnt: d.raw.counters,
        mr_iov_limit: 1,
        caps: DOMAIN_CAPS,
        mr_cnt: 1 << 20,
        max_err_data: 256,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..DomainAttr::default()
    }
}

/// The RDM candidate of an adapter, before hints.
fn rdm_info(d: &AdapterAttr) -> Info {
    let tx = TxAttr {
        caps: TX_CAPS,
        op_flags: FI_INJECT
            | FI_COMPLETION
            | FI_INJECT_COMPLETE
            | FI_TRANSMIT_COMPLETE
            | FI_DELIVERY_COMPLETE,
        msg_order: ORDER,
        inject_size: inject_most(EndpointKind::Rdm, d),
        size: d.sends_most,
        iov_limit: crate::hmem::MAX_SEGS,
        rma_iov_limit: 1,
        ..TxAttr::default()
    };
    let rx = RxAttr {
        caps: RX_CAPS,
        op_flags: FI_COMPLETION | FI_MULTI_RECV,
        msg_order: ORDER,
        size: d.recvs_most,
        iov_limit: crate::hmem::MAX_SEGS,
        ..RxAttr::default()
    };
    let atomic = super::ops::atomic::atomic_max(d.mtu);
    let ep = EpAttr {
        type_: FI_EP_RDM,
        protocol: FI_PROTO_EFA,
        protocol_version: 4,
        max_msg_size: usize::MAX,
        max_order_raw_size: atomic,
        max_order_war_size: atomic,
        max_order_waw_size: atomic,
        mem_tag_format: 0xaaaa_aaaa_aaaa_aaaa,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        ..EpAttr::default()
    };
    Info {
        caps: TX_CAPS | RX_CAPS | DOMAIN_CAPS,
        addr_format: FI_ADDR_EFA,
        src_addr: Some(
            addr::to_raw(&QpAddr {
                gid: d.gid,
                ..QpAddr::default()
            })
            .to_vec(),
        ),
        tx: Some(tx),
        rx: Some(rx),
        ep: Some(ep),
        domain: Some(rdm_domain(d)),
        fabric: Some(FabricAttr {
            name: Some(FABRIC.into()),
            prov_version: crate::core::PROV_VERSION,
            ..FabricAttr::default()
        }),
        nic: Some(nic(d)),
        ..Info::default()
    }
}

/// Restricts a candidate to what an EFA adapter supports: no FI_RMA_EVENT, no keys of the
/// application's choice, and the device's limits.
fn hardware(i: &mut Info, d: &AdapterAttr) {
    i.caps &= !FI_RMA_EVENT;
    if let Some(r) = &mut i.rx {
        r.caps &= !FI_RMA_EVENT;
    }
    if let (Some(x), Some(id)) = (&mut i.domain, &d.identity) {
        x.mr_mode = MR_MODE | x.mr_mode & FI_MR_LOCAL;
        x.mr_cnt = id.regions;
        x.cq_cnt = id.queues;
        x.ep_cnt = id.queue_pairs;
    }
}

/// Offers scalable endpoints if the hints ask for them: applications that use every capability
/// offered (MPICH) are better off without.
fn scalable(i: &mut Info, hints: Option<&Info>) {
    let contexts = |n: usize| n > 1 && n != FI_SHARED_CONTEXT;
    let asked = hints.is_some_and(|h| {
        let e = h.ep.as_ref();
        h.caps & FI_NAMED_RX_CTX != 0
            || e.is_some_and(|e| contexts(e.tx_ctx_cnt) || contexts(e.rx_ctx_cnt))
    });
    if !asked {
        return;
    }
    i.caps |= FI_NAMED_RX_CTX;
    if let (Some(t), Some(d)) = (&mut i.tx, &mut i.domain) {
        t.caps |= FI_NAMED_RX_CTX;
        d.max_ep_tx_ctx = super::endpoint::MAX_CONTEXTS;
        d.max_ep_rx_ctx = super::endpoint::MAX_CONTEXTS;
    }
}

/// Offers collectives if the hints ask for them: their messages take one bit of the tag.
fn collective(i: &mut Info, hints: Option<&Info>) {
    if hints.is_none_or(|h| h.caps & FI_COLLECTIVE == 0) {
        return;
    }
    i.caps |= FI_COLLECTIVE;
    if let (Some(t), Some(r), Some(e)) = (&mut i.tx, &mut i.rx, &mut i.ep) {
        t.caps |= FI_COLLECTIVE;
        r.caps |= FI_COLLECTIVE;
        e.mem_tag_format >>= 1;
    }
}

/// Offers device memory (FI_HMEM, fi_mr(3)) where this machine has some, if the hints ask for it or
/// there are no hints. Without the wire protocol an EFA adapter has to access device memory itself;
/// the software adapter copies it. Programs for an API before 1.18 expect that device memory is not
/// copied.
fn device_memory(i: &mut Info, q: &Query, d: &AdapterAttr, kind: EndpointKind) {
    let asked = q.hints.is_none_or(|h| h.caps & FI_HMEM != 0);
    if !asked {
        return;
    }
    if !hmem::any_device() {
        if q.hints.is_some() {
            let why = hmem::why_none();
            crate::info_log!(FI_LOG_FABRIC, "{}: FI_HMEM: {why}", d.name);
        }
        return;
    }
    let direct = kind == EndpointKind::Direct && d.is_hardware();
    let old = q.api < version(1, 18);
    let reads = d.caps.rdma_read && params::efa().uses_device_rdma() && d.is_hardware();
    if (direct || old) && !hmem::peer_to_peer() || old && !reads {
        crate::info_log!(
            FI_LOG_FABRIC,
            "{}: FI_HMEM: had no peer-to-peer between adapter and GPU (dma-buf or nvidia-peermem; \
             FI_HMEM_DISABLE_P2P)",
            d.name
        );
        return;
    }
    let lost = if old { FI_ATOMIC } else { 0 };
    i.caps = i.caps & !lost | FI_HMEM;
    if let (Some(t), Some(r), Some(x)) = (&mut i.tx, &mut i.rx, &mut i.domain) {
        t.caps = t.caps & !lost | FI_HMEM;
        r.caps = r.caps & !lost | FI_HMEM;
        x.caps |= FI_HMEM;
        x.mr_mode |= FI_MR_HMEM;
        if kind == EndpointKind::Rdm {
            // Keys of regions that the adapter cannot reach are above its own.
            x.mr_key_size = 8;
        }
    }
}

/// Bytes in front of every datagram that the application leaves to the adapter (FI_MSG_PREFIX).
pub(crate) const DGRAM_PREFIX: usize = 40;

/// Longest message that is one work request.
pub(crate) fn raw_max(d: &AdapterAttr) -> usize {
    // The software adapter puts a header of up to 16 bytes in front of a message: whether it has
    // remote CQ data, and the data.
    match d.identity {
        Some(_) => d.mtu,
        None => d.mtu - 16,
    }
}

/// What endpoints without protocol have in common, before hints: the adapter's own queues and
/// packets, and no order.
fn raw(d: &AdapterAttr) -> Info {
    let mut i = rdm_info(d);
    if let (Some(t), Some(r)) = (&mut i.tx, &mut i.rx) {
        (t.msg_order, r.msg_order) = (0, 0);
        (t.size, r.size) = (d.raw.sends, d.raw.recvs);
        (t.iov_limit, r.iov_limit) = (d.raw.pieces, d.raw.pieces);
        t.inject_size = d.raw.inline;
    }
    if let Some(e) = &mut i.ep {
        e.protocol_version = 1;
        e.max_msg_size = raw_max(d);
        (
            e.max_order_raw_size,
            e.max_order_war_size,
            e.max_order_waw_size,
        ) = (0, 0, 0);
        e.mem_tag_format = 0;
    }
    i
}

/// The DGRAM candidate of an adapter, before hints.
fn dgram_info(d: &AdapterAttr) -> Info {
    let mut i = raw(d);
    i.caps = FI_MSG | FI_SEND | FI_RECV | FI_SOURCE | DOMAIN_CAPS;
    i.mode = FI_MSG_PREFIX;
    if let (Some(t), Some(r)) = (&mut i.tx, &mut i.rx) {
        (t.caps, r.caps) = (FI_MSG | FI_SEND, FI_MSG | FI_RECV | FI_SOURCE);
        (t.mode, r.mode) = (FI_MSG_PREFIX, FI_MSG_PREFIX);
        t.op_flags = FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE;
        t.rma_iov_limit = 0;
    }
    if let Some(e) = &mut i.ep {
        e.type_ = FI_EP_DGRAM;
        e.msg_prefix_size = DGRAM_PREFIX;
    }
    if let Some(x) = &mut i.domain {
        x.name = Some(format!("{}-dgrm", d.name));
        x.mr_mode |= FI_MR_LOCAL;
    }
    i
}

/// The candidate of an adapter whose work requests the application sees, before hints.
fn direct_info(d: &AdapterAttr, q: &Query) -> Info {
    let mut i = raw(d);
    let mode = q.hints.map_or(FI_RX_CQ_DATA, |h| h.mode);
    // A write with immediate data takes a receive here: offered to applications that expect this
    // (FI_RX_CQ_DATA).
    let rma =
        d.caps.rdma_read && d.caps.rdma_write && (d.caps.unsolicited || mode & FI_RX_CQ_DATA != 0);
    let (mut tx, mut rx) = (FI_MSG | FI_SEND, FI_MSG | FI_RECV | FI_SOURCE);
    if rma {
        tx |= FI_RMA | FI_READ | FI_WRITE;
        rx |= FI_RMA | FI_REMOTE_READ | FI_REMOTE_WRITE;
    }
    i.caps = tx | rx | FI_LOCAL_COMM | FI_REMOTE_COMM;
    i.mode = FI_CONTEXT2 | mode & FI_RX_CQ_DATA;
    if let (Some(t), Some(r)) = (&mut i.tx, &mut i.rx) {
        (t.caps, r.caps, t.mode, r.mode) = (tx, rx, FI_CONTEXT2, i.mode);
        // Wide work requests have more inline bytes, but fewer of them fit into the queue.
        let asked = q.hints.and_then(|h| h.tx.as_ref()).map(|t| t.inject_size);
        if let Some(w) = d.raw.wide.filter(|_| asked > Some(d.raw.inline)) {
            (t.inject_size, t.size) = (w.inline, w.sends);
        }
        r.op_flags = FI_COMPLETION;
    }
    if let Some(e) = &mut i.ep {
        // The size of reads and writes counts only if the hints ask for RMA.
        let asked = q.hints.is_none_or(|h| h.caps & FI_RMA != 0);
        let most = if rma && asked { d.max_rdma } else { 0 };
        e.max_msg_size = e.max_msg_size.max(most);
    }
    if let Some(x) = &mut i.domain {
        x.mr_mode = MR_MODE | FI_MR_LOCAL;
        x.caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
        // From API 2.5 on an application may open the adapter's counters: report their limit,
        // unless the hints ask for a larger one.
        let wanted = q.hints.and_then(|h| h.domain.as_ref());
        let wanted = wanted.map_or(0, |d| d.max_cntr_value.max(d.max_err_cntr_value));
        let most = d.raw.counts_to;
        if q.api >= version(2, 5) && most > 0 && wanted <= most {
            (x.max_cntr_value, x.max_err_cntr_value) = (most, most);
        }
    }
    if let Some(f) = &mut i.fabric {
        f.name = Some(DIRECT.into());
    }
    i
}

/// Candidates of all adapters that satisfy the query. `FI_ENODATA` when none does.
pub(crate) fn getinfo(q: &Query) -> Result<Vec<Info>> {
    let only = params::efa().iface.as_deref();
    let only = only.filter(|s| !s.starts_with("all"));
    let mut list = Vec::new();
    let mut candidates = Vec::new();
    let all = any::list()?;
    let named = |d: &AdapterAttr| only.is_none_or(|o| o.split(',').any(|n| n == d.name));
    if !all.iter().any(named) {
        crate::warn_once!(
            FI_LOG_FABRIC,
            "FI_EFA_IFACE: wanted {}, had {}: provider efa offers nothing",
            only.unwrap_or(""),
            Vec::from_iter(all.iter().map(|d| d.name.as_str())).join(", ")
        );
    }
    for dev in all {
        if !named(&dev) {
            crate::info_log!(
                FI_LOG_FABRIC,
                "rejected {}: FI_EFA_IFACE: wanted {}",
                dev.name,
                only.unwrap_or("")
            );
            continue;
        }
        let mut rdm = rdm_info(&dev);
        collective(&mut rdm, q.hints);
        let mut dgram = dgram_info(&dev);
        if dev.is_hardware() {
            hardware(&mut rdm, &dev);
            hardware(&mut dgram, &dev);
        } else {
            scalable(&mut rdm, q.hints);
        }
        let mut direct = direct_info(&dev, q);
        device_memory(&mut direct, q, &dev, EndpointKind::Direct);
        device_memory(&mut rdm, q, &dev, EndpointKind::Rdm);
        candidates.push((0, direct, dev.clone()));
        candidates.push((1, rdm, dev.clone()));
        candidates.push((3, dgram, dev));
    }
    // Order: efa-direct of all adapters, then RDM with the wire protocol, then DGRAM.
    candidates.sort_by_key(|(rank, _, _)| *rank);
    for (_, mut i, dev) in candidates {
        match candidate(&mut i, q, &dev) {
            Ok(()) => list.push(i),
            Err(m) => {
                let domain = i.domain.as_ref().and_then(|d| d.name.as_deref());
                let fabric = i.fabric.as_ref().and_then(|f| f.name.as_deref());
                crate::info_log!(
                    FI_LOG_FABRIC,
                    "rejected {} (fabric {}): {m}",
                    domain.unwrap_or("?"),
                    fabric.unwrap_or("?")
                );
            }
        }
    }
    if list.is_empty() {
        Err(FI_ENODATA)
    } else {
        Ok(list)
    }
}

/// Adapts mr_mode to the hints: the software adapter needs none of the mr_mode bits (fi_mr(3)), and
/// the domain's table of regions is made to match.
fn fit_mr_mode(i: &mut Info, q: &Query) {
    let asked = q.hints.and_then(|h| h.domain.as_ref()).map(|d| d.mr_mode);
    let (Some(asked), Some(d)) = (asked, &mut i.domain) else {
        return;
    };
    if asked == FI_MR_SCALABLE {
        d.mr_mode = FI_MR_SCALABLE;
    } else if q.api >= version(1, 5) && asked & (FI_MR_BASIC | FI_MR_SCALABLE) == 0 {
        // FI_MR_LOCAL and FI_MR_HMEM are not the table's: datagrams and device memory require them.
        d.mr_mode &= asked | FI_MR_LOCAL | FI_MR_HMEM;
    }
}

fn candidate(i: &mut Info, q: &Query, d: &AdapterAttr) -> check::Check {
    let gid = &d.gid;
    let direct = i
        .fabric
        .as_ref()
        .is_some_and(|f| f.name.as_deref() == Some(DIRECT));
    if !d.is_hardware() && !direct {
        fit_mr_mode(i, q);
    }
    if let Some(h) = q.hints {
        check::check(q.api, i, h)?;
    }
    addresses(i, q, gid)?;
    alter::alter(q.api, i, q.hints);
    // Traffic classes that an adapter cannot tell apart are not offered (fi_endpoint(3)).
    let offered = |t: u32| match t {
        FI_TC_BEST_EFFORT | FI_TC_LOW_LATENCY => t,
        _ => FI_TC_UNSPEC,
    };
    if let Some(t) = &mut i.tx {
        t.tclass = offered(t.tclass);
    }
    if let Some(d) = &mut i.domain {
        d.tclass = offered(d.tclass);
    }
    // What the provider decides where the application left it open.
    if !direct && i.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_RDM) {
        alter::default_sizes(i, q.hints, (d.sq_depth, d.rq_depth));
    }
    let asked = q.hints.and_then(|h| h.domain.as_ref());
    if let Some(d) = &mut i.domain {
        if asked.is_none_or(|h| h.progress == FI_PROGRESS_UNSPEC) {
            // Without a protocol no operation needs calls of the application for its progress.
            let progress = match direct {
                true => FI_PROGRESS_AUTO,
                false => FI_PROGRESS_MANUAL,
            };
            (d.progress, d.control_progress) = (progress, progress);
        }
    }
    opened::fill(i, q.hints);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::version;

    fn ask(
        h: Option<&Info>,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
    ) -> Result<Vec<Info>> {
        getinfo(&Query {
            api: version(1, 21),
            node,
            service,
            flags,
            hints: h,
        })
    }

    #[test]
    fn addresses_are_filled_in() {
        let src = |r: &Result<Vec<Info>>| {
            let i = &r.as_ref().unwrap()[0];
            addr::from_raw(i.src_addr.as_ref().unwrap()).unwrap()
        };
        let r = ask(None, None, None, 0);
        assert_eq!(src(&r).qpn, 0);
        assert!(r.unwrap()[0].dest_addr.is_none());
        let r = ask(None, Some("127.0.0.1"), Some("9228"), FI_SOURCE);
        assert_eq!(src(&r).qpn, 9228);
        let r = ask(None, Some("127.0.0.1"), Some("9228"), 0).unwrap();
        assert_eq!(
            addr::from_raw(r[0].dest_addr.as_ref().unwrap())
                .unwrap()
                .qpn,
            9228
        );
        assert_eq!(
            ask(None, Some("10.1.2.3"), None, FI_SOURCE).unwrap_err(),
            FI_ENODATA
        );
        assert_eq!(
            ask(None, Some("localhost"), None, FI_NUMERICHOST).unwrap_err(),
            FI_ENODATA
        );
    }

    #[test]
    fn tx_and_rx_caps_stay_on_their_side() {
        let i = &ask(None, None, None, 0).unwrap()[0];
        let (t, r) = (i.tx.as_ref().unwrap().caps, i.rx.as_ref().unwrap().caps);
        assert_eq!(t & (FI_RECV | FI_REMOTE_READ | FI_LOCAL_COMM), 0);
        assert_eq!(r & (FI_SEND | FI_READ | FI_LOCAL_COMM), 0);
        let progress = |i: &Info| i.domain.as_ref().unwrap().progress;
        let all = ask(None, None, None, 0).unwrap();
        let named = |n: &str| {
            let of = |i: &&Info| i.fabric.as_ref().unwrap().name.as_deref() == Some(n);
            progress(all.iter().find(of).unwrap())
        };
        assert_eq!(named(DIRECT), FI_PROGRESS_AUTO);
        assert_eq!(named(FABRIC), FI_PROGRESS_MANUAL);
    }
}
