//! Whole structures as text, in the layout that `fi_info -v` has always printed (fi_tostr(3)).

use super::info::*;
use super::{major, minor, sockaddr, tostr as t};
use crate::types::*;
use std::fmt::Write;

const TAB: &str = "    ";

/// A pointer as printf(3)'s `%p` writes it.
pub fn pointer(p: usize) -> String {
    if p == 0 {
        "(nil)".into()
    } else {
        format!("{p:#x}")
    }
}

/// A string or `(null)`.
pub fn text(s: &Option<String>) -> &str {
    s.as_deref().unwrap_or("(null)")
}

/// Appends `name: value` lines.
macro_rules! lines {
    ($out:expr, $pre:expr; $($name:literal: $value:expr;)+) => {
        $( let _ = writeln!($out, "{}{}: {}", $pre, $name, $value); )+
    };
}

fn bits(s: String) -> String {
    format!("[ {s} ]")
}

/// An address of the given format.
pub fn address(format: u32, raw: Option<&[u8]>) -> String {
    match (format, raw) {
        (_, None) => "(null)".into(),
        (FI_ADDR_EFA, Some(r)) => match r.first_chunk::<16>() {
            Some(gid) if r.len() >= 24 => format!(
                "fi_addr_efa://[{}]:{}:{}",
                std::net::Ipv6Addr::from(*gid),
                u16::from_le_bytes([r[16], r[17]]),
                u32::from_le_bytes([r[20], r[21], r[22], r[23]])
            ),
            _ => "(short address)".into(),
        },
        (FI_ADDR_STR, Some(r)) => {
            let text = r.split(|b| *b == 0).next().unwrap_or(r);
            String::from_utf8_lossy(text).into_owned()
        }
        (FI_SOCKADDR | FI_SOCKADDR_IP | FI_SOCKADDR_IN | FI_SOCKADDR_IN6, Some(r)) => {
            let a = sockaddr::from_raw(r);
            a.map_or("(short address)".into(), |a| sockaddr::to_text(&a))
        }
        (f, Some(r)) => {
            let hex: String = r.iter().map(|b| format!("{b:02x}")).collect();
            format!("{}://{hex}", t::addr_format(f).to_ascii_lowercase())
        }
    }
}

/// `struct fi_tx_attr`, every line behind `pre`.
pub fn tx_attr(a: Option<&TxAttr>, pre: &str) -> String {
    let Some(a) = a else {
        return format!("{pre}fi_tx_attr: (null)\n");
    };
    let mut o = format!("{pre}fi_tx_attr:\n");
    lines!(o, format!("{pre}{TAB}");
        "caps": bits(t::caps(a.caps));
        "mode": bits(t::mode(a.mode));
        "op_flags": bits(t::op_flags(a.op_flags));
        "msg_order": bits(t::msg_order(a.msg_order));
        "inject_size": a.inject_size;
        "size": a.size;
        "iov_limit": a.iov_limit;
        "rma_iov_limit": a.rma_iov_limit;
        "tclass": format!("{:#x}", a.tclass);
    );
    o
}

/// `struct fi_rx_attr`, every line behind `pre`.
pub fn rx_attr(a: Option<&RxAttr>, pre: &str) -> String {
    let Some(a) = a else {
        return format!("{pre}fi_rx_attr: (null)\n");
    };
    let mut o = format!("{pre}fi_rx_attr:\n");
    lines!(o, format!("{pre}{TAB}");
        "caps": bits(t::caps(a.caps));
        "mode": bits(t::mode(a.mode));
        "op_flags": bits(t::op_flags(a.op_flags));
        "msg_order": bits(t::msg_order(a.msg_order));
        "size": a.size;
        "iov_limit": a.iov_limit;
    );
    o
}

fn contexts(n: usize) -> String {
    if n == FI_SHARED_CONTEXT {
        "FI_SHARED_CONTEXT".into()
    } else {
        n.to_string()
    }
}

/// `struct fi_ep_attr`, every line behind `pre`.
pub fn ep_attr(a: Option<&EpAttr>, pre: &str) -> String {
    let Some(a) = a else {
        return format!("{pre}fi_ep_attr: (null)\n");
    };
    let mut o = format!("{pre}fi_ep_attr:\n");
    lines!(o, format!("{pre}{TAB}");
        "type": t::ep_type(a.type_);
        "protocol": t::protocol(a.protocol);
        "protocol_version": a.protocol_version;
        "max_msg_size": a.max_msg_size;
        "msg_prefix_size": a.msg_prefix_size;
        "max_order_raw_size": a.max_order_raw_size;
        "max_order_war_size": a.max_order_war_size;
        "max_order_waw_size": a.max_order_waw_size;
        "mem_tag_format": format!("0x{:016x}", a.mem_tag_format);
        "tx_ctx_cnt": contexts(a.tx_ctx_cnt);
        "rx_ctx_cnt": contexts(a.rx_ctx_cnt);
        "auth_key_size": a.auth_key_size;
        "xpu_ctx": pointer(0);
    );
    o
}

/// `struct fi_domain_attr`, every line behind `pre`.
pub fn domain_attr(a: Option<&DomainAttr>, pre: &str) -> String {
    let Some(a) = a else {
        return format!("{pre}fi_domain_attr: (null)\n");
    };
    let mut o = format!("{pre}fi_domain_attr:\n");
    lines!(o, format!("{pre}{TAB}");
        "domain": pointer(a.domain);
        "name": text(&a.name);
        "threading": t::threading(a.threading);
        "progress": t::progress(a.progress);
        "resource_mgmt": t::resource_mgmt(a.resource_mgmt);
        "av_type": t::av_type(a.av_type);
        "mr_mode": bits(t::mr_mode(a.mr_mode as u32 as u64));
        "mr_key_size": a.mr_key_size;
        "cq_data_size": a.cq_data_size;
        "cq_cnt": a.cq_cnt;
        "ep_cnt": a.ep_cnt;
        "tx_ctx_cnt": a.tx_ctx_cnt;
        "rx_ctx_cnt": a.rx_ctx_cnt;
        "max_ep_tx_ctx": a.max_ep_tx_ctx;
        "max_ep_rx_ctx": a.max_ep_rx_ctx;
        "max_ep_stx_ctx": a.max_ep_stx_ctx;
        "max_ep_srx_ctx": a.max_ep_srx_ctx;
        "cntr_cnt": a.cntr_cnt;
        "mr_iov_limit": a.mr_iov_limit;
        "caps": bits(t::caps(a.caps));
        "mode": bits(t::mode(a.mode));
        "auth_key_size": a.auth_key_size;
        "max_err_data": a.max_err_data;
        "mr_cnt": a.mr_cnt;
        "tclass": format!("{:#x}", a.tclass);
        "max_ep_auth_key": a.max_ep_auth_key;
        "max_group_id": a.max_group_id;
        "max_cntr_value": a.max_cntr_value;
        "max_err_cntr_value": a.max_err_cntr_value;
        "max_xpu_ctx_cnt": a.max_xpu_ctx_cnt;
    );
    o
}

/// `struct fi_fabric_attr`, every line behind `pre`.
pub fn fabric_attr(a: Option<&FabricAttr>, pre: &str) -> String {
    let Some(a) = a else {
        return format!("{pre}fi_fabric_attr: (null)\n");
    };
    let mut o = format!("{pre}fi_fabric_attr:\n");
    let v = |x: u32| format!("{}.{}", major(x), minor(x));
    lines!(o, format!("{pre}{TAB}");
        "name": text(&a.name);
        "prov_name": text(&a.prov_name);
        "prov_version": v(a.prov_version);
        "api_version": v(a.api_version);
    );
    o
}

/// `struct fid_nic`.
pub fn nic(n: &Nic) -> String {
    let mut o = format!("{TAB}nic:\n");
    let (p2, p3) = (TAB.repeat(2), TAB.repeat(3));
    if let Some(d) = &n.device {
        let _ = writeln!(o, "{p2}fi_device_attr:");
        lines!(o, p3;
            "name": text(&d.name);
            "device_id": text(&d.device_id);
            "device_version": text(&d.device_version);
            "vendor_id": text(&d.vendor_id);
            "driver": text(&d.driver);
            "firmware": text(&d.firmware);
        );
    }
    if let Some(b) = &n.bus {
        let _ = writeln!(o, "{p2}fi_bus_attr:");
        lines!(o, p3; "bus_type": t::bus_type(b.bus_type););
        if b.bus_type == FI_BUS_PCI {
            let p4 = TAB.repeat(4);
            let _ = writeln!(o, "{p3}fi_pci_attr:");
            lines!(o, p4;
                "domain_id": b.domain_id;
                "bus_id": b.bus_id;
                "device_id": b.device_id;
                "function_id": b.function_id;
            );
        }
    }
    if let Some(l) = &n.link {
        let _ = writeln!(o, "{p2}fi_link_attr:");
        lines!(o, p3;
            "address": text(&l.address);
            "mtu": l.mtu;
            "speed": l.speed;
            "state": t::link_state(l.state);
            "network_type": text(&l.network_type);
        );
    }
    o
}

/// `struct fi_info`, as `fi_info -v` prints it.
pub fn info(i: &Info) -> String {
    let mut o = String::from("fi_info:\n");
    lines!(o, TAB;
        "caps": bits(t::caps(i.caps));
        "mode": bits(t::mode(i.mode));
        "addr_format": t::addr_format(i.addr_format);
        "src_addrlen": i.src_addr.as_ref().map_or(0, Vec::len);
        "dest_addrlen": i.dest_addr.as_ref().map_or(0, Vec::len);
        "src_addr": address(i.addr_format, i.src_addr.as_deref());
        "dest_addr": address(i.addr_format, i.dest_addr.as_deref());
        "handle": pointer(i.handle);
    );
    o += &tx_attr(i.tx.as_ref(), TAB);
    o += &rx_attr(i.rx.as_ref(), TAB);
    o += &ep_attr(i.ep.as_ref(), TAB);
    o += &domain_attr(i.domain.as_ref(), TAB);
    o += &fabric_attr(i.fabric.as_ref(), TAB);
    match &i.nic {
        Some(n) => o += &nic(n),
        None => {
            lines!(o, TAB; "nic": pointer(0););
        }
    }
    o
}
