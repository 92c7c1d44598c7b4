//! What fi_getinfo(3) offers: connected and RDM endpoints at each interface's address, shaped by
//! hints, node and service.
//!
//! An endpoint listens at an address that peers can reach: for a known destination the address from
//! which the system would send there; else physical networks come before bridges and tunnels, and
//! loopback last.

use crate::core::info::{DomainAttr, EpAttr, FabricAttr, RxAttr, TxAttr};
use crate::core::registry::Query;
use crate::core::sockaddr as addr;
use crate::core::{alter, check, opened, params, Info, Result};
use crate::device::interfaces::{interface_addrs, InterfaceAddr};
use crate::types::*;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

const EP_CAPS: u64 = FI_MSG | FI_RMA | FI_TAGGED;
const TX_CAPS: u64 = EP_CAPS | FI_SEND | FI_READ | FI_WRITE;
const RX_CAPS: u64 = EP_CAPS
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RMA_EVENT
    | FI_DIRECTED_RECV
    | FI_SOURCE
    | FI_MULTI_RECV;
/// A connection keeps everything in order.
const ORDER: u64 = FI_ORDER_RAR
    | FI_ORDER_RAW
    | FI_ORDER_RAS
    | FI_ORDER_WAW
    | FI_ORDER_WAS
    | FI_ORDER_SAW
    | FI_ORDER_SAS
    | FI_ORDER_RMA_RAR
    | FI_ORDER_RMA_RAW
    | FI_ORDER_RMA_WAW
    | FI_ORDER_ATOMIC_RAR
    | FI_ORDER_ATOMIC_RAW
    | FI_ORDER_ATOMIC_WAW;
/// FI_TAG_GENERIC: the application has all bits.
const TAGS: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Most operations that wait at a connected endpoint, by default.
const CONNECTED_SIZE: usize = 1024;
/// Connected endpoints of a domain.
const CONNECTED_MAX: usize = 8192;
/// Name of fabric and domain where no interface is known.
const ANYWHERE: &str = "tcp";

/// The RDM candidate, before hints.
pub(super) fn rdm() -> Info {
    let p = params::tcp();
    let tx = TxAttr {
        caps: TX_CAPS,
        op_flags: FI_INJECT
            | FI_COMPLETION
            | FI_INJECT_COMPLETE
            | FI_TRANSMIT_COMPLETE
            | FI_DELIVERY_COMPLETE,
        msg_order: ORDER,
        inject_size: p.inject_most(),
        size: 65536,
        iov_limit: crate::hmem::MAX_SEGS,
        rma_iov_limit: crate::core::iovs::MAX_IOV,
        ..TxAttr::default()
    };
    let rx = RxAttr {
        caps: RX_CAPS,
        op_flags: FI_COMPLETION | FI_MULTI_RECV,
        msg_order: ORDER,
        size: 65536,
        iov_limit: crate::hmem::MAX_SEGS,
        ..RxAttr::default()
    };
    let ep = EpAttr {
        type_: FI_EP_RDM,
        protocol: FI_PROTO_XNET,
        protocol_version: u32::from(super::wire::RDM_VERSION),
        max_msg_size: usize::MAX,
        max_order_raw_size: usize::MAX,
        max_order_waw_size: usize::MAX,
        mem_tag_format: TAGS,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        ..EpAttr::default()
    };
    let domain = DomainAttr {
        name: Some(ANYWHERE.into()),
        threading: FI_THREAD_SAFE,
        control_progress: FI_PROGRESS_AUTO,
        progress: FI_PROGRESS_AUTO,
        resource_mgmt: FI_RM_ENABLED,
        av_type: FI_AV_UNSPEC,
        mr_mode: FI_MR_SCALABLE | FI_MR_BASIC,
        mr_key_size: 8,
        cq_data_size: 8,
        cq_cnt: 256,
        ep_cnt: 256,
        tx_ctx_cnt: 256,
        rx_ctx_cnt: 256,
        max_ep_tx_ctx: 1,
        max_ep_srx_ctx: 256,
        max_ep_rx_ctx: 1,
        mr_iov_limit: 1,
        mr_cnt: 1 << 20,
        caps: FI_LOCAL_COMM | FI_REMOTE_COMM,
        max_err_data: 256,
        max_cntr_value: u64::MAX,
        max_err_cntr_value: u64::MAX,
        ..DomainAttr::default()
    };
    Info {
        caps: TX_CAPS | RX_CAPS | FI_LOCAL_COMM | FI_REMOTE_COMM,
        addr_format: FI_SOCKADDR_IP,
        tx: Some(tx),
        rx: Some(rx),
        ep: Some(ep),
        domain: Some(domain),
        fabric: Some(FabricAttr {
            name: Some(ANYWHERE.into()),
            prov_version: crate::core::PROV_VERSION,
            ..FabricAttr::default()
        }),
        ..Info::default()
    }
}

/// The candidate of connected endpoints whose receives are in a shared receive context, before
/// hints.
fn connected_shared() -> Info {
    let mut i = rdm();
    if let Some(t) = &mut i.tx {
        t.size = CONNECTED_SIZE;
    }
    if let Some(e) = &mut i.ep {
        e.type_ = FI_EP_MSG;
        e.protocol = FI_PROTO_SOCK_TCP;
        e.protocol_version = 0;
        e.rx_ctx_cnt = FI_SHARED_CONTEXT;
    }
    if let Some(d) = &mut i.domain {
        (d.ep_cnt, d.tx_ctx_cnt, d.rx_ctx_cnt) = (CONNECTED_MAX, CONNECTED_MAX, CONNECTED_MAX);
        d.max_ep_srx_ctx = CONNECTED_MAX;
    }
    i
}

/// The candidate of connected endpoints with receives of their own, before hints.
fn connected() -> Info {
    let mut i = connected_shared();
    let lacks = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_MULTI_RECV;
    i.caps &= !lacks;
    if let Some(t) = &mut i.tx {
        t.caps &= !lacks;
    }
    if let Some(r) = &mut i.rx {
        r.caps &= !lacks;
        r.op_flags = FI_COMPLETION;
        r.size = CONNECTED_SIZE;
    }
    if let Some(e) = &mut i.ep {
        (e.rx_ctx_cnt, e.mem_tag_format) = (1, 0);
    }
    i
}

/// The network of an interface's address, which is the name of its fabric. That of loopback is the
/// C library's.
fn network(a: &InterfaceAddr) -> String {
    if a.ip == Ipv4Addr::LOCALHOST {
        return "127.0.0.1/32".into();
    }
    let ip: IpAddr = match a.ip {
        IpAddr::V4(v) => {
            let mask = u32::MAX.checked_shl(32 - a.prefix).unwrap_or(0);
            (u32::from(v) & mask).to_be_bytes().into()
        }
        IpAddr::V6(v) => {
            let mask = u128::MAX.checked_shl(128 - a.prefix).unwrap_or(0);
            (u128::from(v) & mask).to_be_bytes().into()
        }
    };
    format!("{ip}/{}", a.prefix)
}

/// Whether peers elsewhere are seldom reached by an interface of this name: bridges of containers
/// and virtual machines, tunnels.
fn doubtful(a: &InterfaceAddr) -> bool {
    let names = [
        "docker", "br-", "virbr", "veth", "cni", "flannel", "cali", "tun", "tap", "wg", "vpn",
        "podman", "lxc", "lxd",
    ];
    a.point_to_point || names.iter().any(|n| a.name.starts_with(n))
}

/// The addresses to offer, best first.
fn interfaces() -> Vec<InterfaceAddr> {
    let only = params::tcp().iface.as_deref();
    let mut all = interface_addrs();
    if all.is_empty() {
        // No interface is up, or this process may not ask: its own host it can most likely reach.
        all = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            .map(InterfaceAddr::of_loopback)
            .to_vec();
    }
    all.retain(|a| {
        let named = |o: &str| a.name == o || a.ip.to_string() == o || a.loopback && o == "loopback";
        let wanted = only.is_none_or(named);
        if !wanted {
            crate::info_log!(
                FI_LOG_FABRIC,
                "rejected {} ({}): FI_TCP_IFACE: wanted {}",
                a.name,
                a.ip,
                only.unwrap_or("")
            );
        }
        wanted
    });
    if let (Some(o), true) = (only, all.is_empty()) {
        crate::warn_once!(
            FI_LOG_FABRIC,
            "FI_TCP_IFACE: wanted {o}, had {}: provider tcp offers nothing",
            interface_names().join(", ")
        );
    }
    let link_local =
        |ip: &IpAddr| matches!(ip, IpAddr::V6(v) if v.segments()[0] & 0xffc0 == 0xfe80);
    // The sort keeps the system's order among equals.
    all.sort_by_key(|a| (a.loopback, doubtful(a), a.ip.is_ipv6(), link_local(&a.ip)));
    all
}

fn interface_names() -> Vec<String> {
    let names: BTreeSet<String> = interface_addrs().into_iter().map(|a| a.name).collect();
    Vec::from_iter(names)
}

/// Fabrics there are, by name.
pub(crate) fn fabrics() -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in interfaces().iter().map(network).chain([ANYWHERE.into()]) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// The address from which the system would send to `to`; `None` when this process has no socket
/// left to ask with. `FI_ENODATA` without a route.
fn route(to: &SocketAddr) -> Result<Option<SocketAddr>> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let none = |e: std::io::Error| {
        crate::info_log!(
            FI_LOG_FABRIC,
            "rejected tcp: dest_addr: no route to {to}: {e}"
        );
        FI_ENODATA
    };
    // Connecting a datagram socket sends nothing.
    let s = match UdpSocket::bind((any, 0)) {
        Ok(s) => s,
        Err(e) => match e.raw_os_error() {
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | FI_ENOMEM) => return Ok(None),
            _ => return Err(none(e)),
        },
    };
    let mut at = *to;
    if at.port() == 0 {
        at.set_port(9);
    }
    s.connect(at).map_err(none)?;
    let mut from = s.local_addr().map_err(none)?;
    from.set_port(0);
    Ok(Some(from))
}

/// Addresses that node and service stand for. With FI_NUMERICHOST only numbers are read.
pub(crate) fn resolve(node: &str, service: Option<&str>, flags: u64) -> Result<Vec<SocketAddr>> {
    let port = match service {
        None | Some("") => 0,
        Some(s) => s.parse::<u16>().map_err(|_| {
            crate::info_log!(FI_LOG_FABRIC, "service {s}: wanted a port, 0 to 65535");
            FI_ENODATA
        })?,
    };
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let scoped = node.split_once('%').map(|(ip, _)| ip.parse::<Ipv6Addr>());
    if flags & FI_NUMERICHOST != 0 && !matches!(scoped, Some(Ok(_))) {
        crate::info_log!(
            FI_LOG_FABRIC,
            "node {node} is not a numeric address (FI_NUMERICHOST)"
        );
        return Err(FI_ENODATA);
    }
    let list = (node, port).to_socket_addrs().map_err(|e| {
        crate::info_log!(FI_LOG_FABRIC, "node {node}: {e}");
        FI_ENODATA
    })?;
    Ok(list.collect())
}

/// Source and destination of candidates.
#[derive(Default)]
struct Places {
    src: Option<SocketAddr>,
    dest: Option<SocketAddr>,
}

/// Whether addresses of this kind have the format that was asked for.
pub(super) fn format_fits(format: u32, a: &SocketAddr) -> bool {
    match format {
        FI_SOCKADDR_IN => a.is_ipv4(),
        FI_SOCKADDR_IN6 => a.is_ipv6(),
        FI_FORMAT_UNSPEC | FI_SOCKADDR | FI_SOCKADDR_IP => true,
        _ => false,
    }
}

fn places(q: &Query) -> Result<Places> {
    let mut p = Places::default();
    let format = q.hints.map_or(FI_FORMAT_UNSPEC, |h| h.addr_format);
    if let Some(h) = q.hints {
        let read = |raw: &Option<Vec<u8>>, attr: &str| match raw {
            None => Ok(None),
            Some(r) => addr::from_raw(r).map(Some).ok_or_else(|| {
                crate::info_log!(
                    FI_LOG_FABRIC,
                    "rejected tcp: {attr}: wanted an address of another format, had \
                     FI_SOCKADDR_IN, FI_SOCKADDR_IN6"
                );
                FI_ENODATA
            }),
        };
        p.src = read(&h.src_addr, "src_addr")?;
        p.dest = read(&h.dest_addr, "dest_addr")?;
    }
    let source = q.flags & FI_SOURCE != 0;
    let named = match (q.node, q.service) {
        (Some(n), s) => {
            let list = resolve(n, s, q.flags)?;
            let v4 = list.iter().find(|a| a.is_ipv4() && format_fits(format, a));
            let first = v4.or_else(|| list.iter().find(|a| format_fits(format, a)));
            Some(*first.ok_or(FI_ENODATA)?)
        }
        (None, Some(s)) if source => {
            let any = match format {
                FI_SOCKADDR_IN6 => "::",
                _ => "0.0.0.0",
            };
            resolve(any, Some(s), q.flags)?.first().copied()
        }
        _ => None,
    };
    if named.is_some() {
        *(if source { &mut p.src } else { &mut p.dest }) = named;
    }
    if let (Some(d), None) = (&p.dest, &p.src) {
        p.src = route(d)?;
    }
    Ok(p)
}

/// Gives a candidate its address, and the names of the interface and network of that address;
/// `named`: the application asked for it.
fn place(i: &mut Info, src: SocketAddr, at: Option<&InterfaceAddr>, named: bool) {
    i.addr_format = match src {
        SocketAddr::V4(_) => FI_SOCKADDR_IN,
        SocketAddr::V6(_) => FI_SOCKADDR_IN6,
    };
    i.src_addr = Some(addr::to_raw(&src));
    let Some(at) = at else { return };
    if let Some(d) = &mut i.domain {
        d.name = Some(at.name.clone());
    }
    if let Some(f) = &mut i.fabric {
        f.name = Some(network(at));
    }
    // Loopback reaches no other host: FI_REMOTE_COMM is offered only where its address was named.
    if at.loopback && !named {
        i.caps &= !FI_REMOTE_COMM;
        if let Some(d) = &mut i.domain {
            d.caps &= !FI_REMOTE_COMM;
        }
    }
}

fn address_of(a: &InterfaceAddr) -> SocketAddr {
    let mut at = SocketAddr::new(a.ip, 0);
    if let SocketAddr::V6(v) = &mut at {
        v.set_scope_id(a.scope);
    }
    at
}

/// Candidates that satisfy the query. `FI_ENODATA` when none does.
pub(crate) fn getinfo(q: &Query) -> Result<Vec<Info>> {
    let p = places(q)?;
    let all = interfaces();
    let format = q.hints.map_or(FI_FORMAT_UNSPEC, |h| h.addr_format);
    let mut list = Vec::new();
    for base in [rdm(), connected(), connected_shared()] {
        let mut offer = |src: SocketAddr, at: Option<&InterfaceAddr>| {
            if !format_fits(format, &src) {
                return;
            }
            let mut i = base.clone();
            place(&mut i, src, at, p.src.is_some());
            i.dest_addr = p.dest.as_ref().map(addr::to_raw);
            match candidate(&mut i, q) {
                Ok(()) => list.push(i),
                Err(m) => {
                    let name = at.map_or(ANYWHERE, |a| &a.name);
                    crate::info_log!(FI_LOG_FABRIC, "rejected tcp at {name} ({}): {m}", src.ip());
                }
            }
        };
        match p.src {
            Some(src) => {
                offer(src, all.iter().find(|a| a.ip == src.ip()));
                // A service at every address is also one at each. (Not for a listener, which is to
                // be at all of them, unless the caller names one.)
                let wanted = q.hints.and_then(|h| h.domain.as_ref()?.name.as_ref());
                let rdm = base.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_RDM);
                let each = src.ip().is_unspecified() && (rdm || wanted.is_some());
                let each = all.iter().filter(|_| each);
                for a in each.filter(|a| a.ip.is_ipv4() == src.is_ipv4()) {
                    let mut own = address_of(a);
                    own.set_port(src.port());
                    offer(own, Some(a));
                }
            }
            None => {
                for a in &all {
                    offer(address_of(a), Some(a));
                }
            }
        }
    }
    if list.is_empty() {
        Err(FI_ENODATA)
    } else {
        Ok(list)
    }
}

fn candidate(i: &mut Info, q: &Query) -> check::Check {
    let format = i.addr_format;
    if let Some(h) = q.hints {
        // The candidate matches any format that asks for IP addresses.
        i.addr_format = match h.addr_format {
            FI_SOCKADDR | FI_SOCKADDR_IP => h.addr_format,
            _ => format,
        };
        check::check(q.api, i, h)?;
        i.addr_format = format;
    }
    alter::alter(q.api, i, q.hints);
    let p = params::tcp();
    alter::default_sizes(i, q.hints, (p.tx_size, p.rx_size));
    opened::fill(i, q.hints);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::version;

    #[test]
    fn datagrams_come_before_connections_where_no_type_is_asked_for() {
        let all = getinfo(&Query {
            api: version(2, 5),
            node: None,
            service: None,
            flags: 0,
            hints: None,
        })
        .unwrap_or_default();
        let types: Vec<_> = all
            .iter()
            .filter_map(|i| Some(i.ep.as_ref()?.type_))
            .collect();
        let connected = types.partition_point(|t| *t == FI_EP_RDM);
        assert!(connected > 0 && connected < types.len(), "{types:?}");
        assert!(types[connected..].iter().all(|t| *t == FI_EP_MSG));
    }
}
