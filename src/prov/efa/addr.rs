//! The raw address of an endpoint (FI_ADDR_EFA, fi_efa(7)): 32 bytes.
//!
//! `gid[16], qpn u16, zero u16, qkey u32, token u64`, little-endian. The token, zero on a real
//! adapter, is a secret: any process that has the address may connect to the endpoint.

use crate::device::QpAddr;

/// Length of a raw address, bytes.
pub(crate) const LEN: usize = 32;

/// Raw form of an address.
pub(crate) fn to_raw(a: &QpAddr) -> [u8; LEN] {
    let mut raw = [0u8; LEN];
    let [g @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = &mut raw;
    g.copy_from_slice(&a.gid);
    let tail = a
        .qpn
        .to_le_bytes()
        .into_iter()
        .chain([0, 0])
        .chain(a.qkey.to_le_bytes())
        .chain(a.token.to_le_bytes());
    for (to, from) in raw.iter_mut().skip(16).zip(tail) {
        *to = from;
    }
    raw
}

/// Reads a raw address; `None` when it is too short.
pub(crate) fn from_raw(raw: &[u8]) -> Option<QpAddr> {
    let gid = *raw.first_chunk::<16>()?;
    let rest = raw.get(16..LEN)?;
    let qpn = u16::from_le_bytes(*rest.first_chunk()?);
    let qkey = u32::from_le_bytes(*rest.get(4..)?.first_chunk()?);
    let token = u64::from_le_bytes(*rest.get(8..)?.first_chunk()?);
    Some(QpAddr {
        gid,
        qpn,
        qkey,
        token,
    })
}

/// Text form: `fi_addr_efa://[gid]:qpn:qkey`, without the token: such texts are printed.
pub(crate) fn to_text(a: &QpAddr) -> String {
    format!(
        "fi_addr_efa://[{}]:{}:{}",
        std::net::Ipv6Addr::from(a.gid),
        a.qpn,
        a.qkey
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_addresses_go_there_and_back() {
        let gid = core::array::from_fn(|i| i as u8);
        let a = QpAddr {
            gid,
            qpn: 0x1234,
            qkey: 0xdead_beef,
            token: 0x1122_3344_5566_7788,
        };
        let raw = to_raw(&a);
        assert_eq!(raw[16..24], [0x34, 0x12, 0, 0, 0xef, 0xbe, 0xad, 0xde]);
        assert_eq!(raw[24..], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert_eq!(from_raw(&raw).map(|b| (b, b.token)), Some((a, a.token)));
        assert_eq!(from_raw(&raw[..31]), None);
    }
}
