//! The host's network interfaces and their addresses (getifaddrs(3)).

use crate::types::*;
use core::ffi::c_int;

/// A network interface's address.
#[derive(Clone, Debug)]
pub(crate) struct InterfaceAddr {
    pub name: String,
    pub ip: std::net::IpAddr,
    /// Prefix length of the address's network, bits.
    pub prefix: u32,
    pub scope: u32,
    pub loopback: bool,
    /// The interface connects exactly two hosts: most often a tunnel.
    pub point_to_point: bool,
}

impl InterfaceAddr {
    /// An address of the loopback interface.
    pub(crate) fn of_loopback(ip: std::net::IpAddr) -> InterfaceAddr {
        InterfaceAddr {
            name: "lo".into(),
            prefix: if ip.is_ipv4() { 8 } else { 128 },
            ip,
            scope: 0,
            loopback: true,
            point_to_point: false,
        }
    }
}

/// Decodes an IPv4 or IPv6 socket address, with its scope id. `None` for other families.
///
/// # Safety
/// `a` is NULL or a socket address of the length of its family.
unsafe fn address(a: *const libc::sockaddr) -> Option<(std::net::IpAddr, u32)> {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    // SAFETY: as the caller vouches.
    unsafe {
        match i32::from(a.as_ref()?.sa_family) {
            libc::AF_INET => {
                let s = a.cast::<libc::sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(s.sin_addr.s_addr.to_ne_bytes());
                Some((IpAddr::V4(ip), 0))
            }
            libc::AF_INET6 => {
                let s = a.cast::<libc::sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(s.sin6_addr.s6_addr);
                Some((IpAddr::V6(ip), s.sin6_scope_id))
            }
            _ => None,
        }
    }
}

/// Addresses of the interfaces that are up, in the system's order.
pub(crate) fn interface_addrs() -> Vec<InterfaceAddr> {
    let mut out = Vec::new();
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: on success `list` is a list that we walk read-only and free once.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            let e = std::io::Error::last_os_error();
            crate::warn_limited!(FI_LOG_FABRIC, "no interface is known: getifaddrs(3): {e}");
            return out;
        }
        let mut at = list;
        while let Some(a) = at.as_ref() {
            at = a.ifa_next;
            let flags = a.ifa_flags as c_int;
            if flags & libc::IFF_UP == 0 {
                continue;
            }
            let Some((ip, scope)) = address(a.ifa_addr) else {
                continue;
            };
            let mask = address(a.ifa_netmask).map(|(m, _)| match m {
                std::net::IpAddr::V4(m) => u32::from(m).count_ones(),
                std::net::IpAddr::V6(m) => u128::from(m).count_ones(),
            });
            let name = core::ffi::CStr::from_ptr(a.ifa_name);
            out.push(InterfaceAddr {
                name: name.to_string_lossy().into_owned(),
                ip,
                prefix: mask.unwrap_or(0),
                scope,
                loopback: flags & libc::IFF_LOOPBACK != 0,
                point_to_point: flags & libc::IFF_POINTOPOINT != 0,
            });
        }
        libc::freeifaddrs(list);
    }
    out
}
