//! Addresses of queue pairs.

/// Where a queue pair is found: the raw EFA address without padding. Two addresses are equal when
/// they name the same queue pair, whether their token is known or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpAddr {
    /// Adapter: an IPv6 address, or an IPv4 one mapped into it.
    pub gid: [u8; 16],
    /// Queue pair number; the UDP port on the software adapter.
    pub qpn: u16,
    /// Tells apart queue pairs that reuse a number.
    pub qkey: u32,
    /// On the software adapter: 64 random bits that a caller has to present. 0 where they are not
    /// known, and for queue pairs that have none.
    pub token: u64,
}

impl QpAddr {
    /// The adapter's address, of IPv4 where it is mapped.
    pub fn ip(&self) -> std::net::IpAddr {
        std::net::Ipv6Addr::from(self.gid).to_canonical()
    }
}

/// An IP address as a queue pair's GID.
pub fn gid_of(ip: std::net::IpAddr) -> [u8; 16] {
    match ip {
        std::net::IpAddr::V4(v) => v.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v) => v.octets(),
    }
}

impl PartialEq for QpAddr {
    fn eq(&self, o: &QpAddr) -> bool {
        (self.qpn, self.qkey, self.gid) == (o.qpn, o.qkey, o.gid)
    }
}

impl Eq for QpAddr {}

impl std::hash::Hash for QpAddr {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        (self.gid, self.qpn, self.qkey).hash(h);
    }
}

impl std::fmt::Display for QpAddr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gid = std::net::Ipv6Addr::from(self.gid);
        write!(f, "[{gid}]:{}:{:#x}", self.qpn, self.qkey)
    }
}
