//! Addresses of endpoints: `struct sockaddr_in` and `sockaddr_in6` as bytes, and as text.

use crate::core::Result;
use crate::types::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// AF_INET and AF_INET6.
const V4: u16 = 2;
const V6: u16 = 10;
/// Bytes of the structs.
const LEN_V4: usize = 16;
const LEN_V6: usize = 28;

/// Bytes of an address that begins with these two. `FI_EINVAL` for other families.
pub(crate) fn addr_len(head: [u8; 2]) -> Result<usize> {
    match u16::from_ne_bytes(head) {
        V4 => Ok(LEN_V4),
        V6 => Ok(LEN_V6),
        _ => Err(FI_EINVAL),
    }
}

/// The bytes of an address.
pub(crate) fn to_raw(a: &SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(LEN_V6);
    let family = if a.is_ipv4() { V4 } else { V6 };
    out.extend_from_slice(&family.to_ne_bytes());
    out.extend_from_slice(&a.port().to_be_bytes());
    match a {
        SocketAddr::V4(v) => {
            out.extend_from_slice(&v.ip().octets());
            out.resize(LEN_V4, 0);
        }
        SocketAddr::V6(v) => {
            out.extend_from_slice(&v.flowinfo().to_ne_bytes());
            out.extend_from_slice(&v.ip().octets());
            out.extend_from_slice(&v.scope_id().to_ne_bytes());
        }
    }
    out
}

/// The address in these bytes; `None` for other families, or too few bytes.
pub(crate) fn from_raw(raw: &[u8]) -> Option<SocketAddr> {
    let (family, rest) = raw.split_first_chunk()?;
    let (port, rest) = rest.split_first_chunk()?;
    let port = u16::from_be_bytes(*port);
    match u16::from_ne_bytes(*family) {
        V4 => {
            let ip: &[u8; 4] = rest.first_chunk()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(*ip)), port))
        }
        V6 => {
            let (flow, rest) = rest.split_first_chunk()?;
            let (ip, rest) = rest.split_first_chunk::<16>()?;
            let scope = rest.first_chunk()?;
            Some(SocketAddr::V6(SocketAddrV6::new(
                Ipv6Addr::from(*ip),
                port,
                u32::from_ne_bytes(*flow),
                u32::from_ne_bytes(*scope),
            )))
        }
        _ => None,
    }
}

/// The text of an address, as the C library writes it.
pub(crate) fn to_text(a: &SocketAddr) -> String {
    match a {
        SocketAddr::V4(v) => format!("fi_sockaddr_in://{v}"),
        SocketAddr::V6(v) => format!("fi_sockaddr_in6://[{}]:{}", v.ip(), v.port()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.1.2.3:77", "[fd00::1]:65535"] {
            let a: SocketAddr = text.parse().unwrap();
            let raw = to_raw(&a);
            assert_eq!(addr_len([raw[0], raw[1]]), Ok(raw.len()));
            assert_eq!(from_raw(&raw), Some(a));
            assert_eq!(from_raw(&raw[..raw.len() - 13]), None);
        }
        assert_eq!(addr_len([9, 9]), Err(FI_EINVAL));
        assert_eq!(from_raw(&[9; 28]), None);
        assert_eq!(
            to_text(&"[::1]:5".parse().unwrap()),
            "fi_sockaddr_in6://[::1]:5"
        );
    }
}
