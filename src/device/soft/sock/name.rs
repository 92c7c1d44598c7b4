//! Internet addresses as the system calls take them.

use core::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A socket address as the system takes it, and its length.
pub(super) type Name = (libc::sockaddr_storage, libc::socklen_t);

/// The name of `a`.
pub(super) fn to_sys(a: &SocketAddr) -> Name {
    // SAFETY: all-zero is a valid sockaddr_storage.
    let mut s: libc::sockaddr_storage = unsafe { zeroed() };
    match a {
        SocketAddr::V4(v) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_in fits into a sockaddr_storage, which is aligned for it.
            unsafe { (&raw mut s).cast::<libc::sockaddr_in>().write(sin) };
            (s, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(v) => {
            let sin = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v.ip().octets(),
                },
                sin6_scope_id: v.scope_id(),
            };
            // SAFETY: as above, for sockaddr_in6.
            unsafe { (&raw mut s).cast::<libc::sockaddr_in6>().write(sin) };
            (s, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

/// `None`: of another family.
pub(super) fn from_sys(s: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(s.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family shows that this storage holds a sockaddr_in.
            let v = unsafe { (&raw const *s).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(v.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for sockaddr_in6.
            let v = unsafe { (&raw const *s).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(v.sin6_addr.s6_addr);
            Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(v.sin6_port)))
        }
        _ => None,
    }
}
