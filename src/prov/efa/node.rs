//! Node and service of fi_getinfo(3), and the addresses of its hints: an adapter's IP address and a
//! queue pair's number.

use super::addr;
use crate::core::registry::Query;
use crate::core::{check, Info, Result};
use crate::device::any::public_key;
use crate::device::{gid_of, QpAddr};
use crate::types::*;
use std::net::{IpAddr, ToSocketAddrs};

/// Addresses a node name stands for, as GIDs. With FI_NUMERICHOST only numbers are read.
fn resolve(node: &str, flags: u64) -> Result<Vec<[u8; 16]>> {
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Ok(vec![gid_of(ip)]);
    }
    if flags & FI_NUMERICHOST != 0 {
        crate::info_log!(
            FI_LOG_FABRIC,
            "node {node} is not a numeric address (FI_NUMERICHOST)"
        );
        return Err(FI_ENODATA);
    }
    let list = (node, 0).to_socket_addrs().map_err(|e| {
        crate::info_log!(FI_LOG_FABRIC, "node {node}: {e}");
        FI_ENODATA
    })?;
    Ok(list.map(|a| gid_of(a.ip())).collect())
}

fn port_of(service: Option<&str>) -> Result<u16> {
    let Some(s) = service else { return Ok(0) };
    s.parse().map_err(|_| {
        crate::info_log!(
            FI_LOG_FABRIC,
            "service {s}: wanted a queue pair number, 0 to 65535"
        );
        FI_ENODATA
    })
}

/// Whether an address of the hints is usable with this adapter; a zero GID fits every adapter.
fn usable(raw: &[u8], gid: &[u8; 16]) -> bool {
    addr::from_raw(raw).is_some_and(|a| a.gid == *gid || a.gid == [0; 16])
}

/// Fills in the source and destination addresses of a candidate; `Err` is the reason why they do
/// not fit.
pub(super) fn addresses(
    i: &mut Info,
    q: &Query,
    gid: &[u8; 16],
) -> core::result::Result<(), check::Mismatch> {
    let no = |attr, wanted: &str| check::Mismatch {
        attr,
        wanted: wanted.to_string(),
        had: std::net::Ipv6Addr::from(*gid).to_string(),
    };
    if let Some(h) = q.hints {
        if let Some(s) = &h.src_addr {
            if !usable(s, gid) {
                return Err(no("src_addr", "an address of another adapter"));
            }
            i.src_addr = Some(s.clone());
        }
        if let Some(d) = &h.dest_addr {
            if d.len() < addr::LEN {
                return Err(no("dest_addr", "an address of another format"));
            }
            i.dest_addr = Some(d.clone());
        }
    }
    let source_at = |port| {
        let at = QpAddr {
            gid: *gid,
            qpn: port,
            ..QpAddr::default()
        };
        addr::to_raw(&at).to_vec()
    };
    let source = q.flags & FI_SOURCE != 0;
    let port = match port_of(q.service) {
        Ok(p) => p,
        Err(_) => return Err(no("service", q.service.unwrap_or(""))),
    };
    let Some(node) = q.node else {
        if source && port != 0 {
            i.src_addr = Some(source_at(port));
        }
        return Ok(());
    };
    let Ok(gids) = resolve(node, q.flags) else {
        return Err(no("node", node));
    };
    if source {
        if !gids.contains(gid) {
            return Err(no("node", node));
        }
        i.src_addr = Some(source_at(port));
    } else {
        // The address of the adapter's own family first.
        let v4 = |g: &[u8; 16]| std::net::Ipv6Addr::from(*g).to_ipv4_mapped().is_some();
        let Some(dest) = gids.iter().find(|g| v4(g) == v4(gid)).or(gids.first()) else {
            return Err(no("node", node));
        };
        let dest = QpAddr {
            gid: *dest,
            qpn: port,
            qkey: public_key(port),
            token: 0,
        };
        i.dest_addr = Some(addr::to_raw(&dest).to_vec());
    }
    Ok(())
}
