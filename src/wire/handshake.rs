//! The handshake packet (protocol, 2.1): identification and features of its sender.

use super::fields::{FieldReader, FieldWriter};
use super::{extra, pkt, req, VERSION};

const HOST_ID: u16 = 1;
const DEVICE_VERSION: u16 = 2;
const USER_RECV_QP: u16 = 4;
const HMEM_P2P: u16 = 8;

/// The contents of a handshake. Optional parts are `None` when absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// Bits of [`extra`].
    pub extra: u64,
    pub connid: Option<u32>,
    pub host_id: Option<u64>,
    pub device_version: Option<u32>,
    /// Queue pair number and key of a queue pair for user receives.
    pub user_recv_qp: Option<(u32, u32)>,
    /// Whether the sender's adapter accesses the sender's device memory; `None` when the sender has
    /// none.
    pub hmem_p2p: Option<bool>,
}

impl Handshake {
    /// Writes the packet and returns its length; 64 bytes are enough.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let mut w = FieldWriter::new(buf);
        let mut flags = 0;
        for (set, flag) in [
            (self.connid.is_some(), req::CONNID),
            (self.host_id.is_some(), HOST_ID),
            (self.device_version.is_some(), DEVICE_VERSION),
            (self.user_recv_qp.is_some(), USER_RECV_QP),
            (self.hmem_p2p.is_some(), HMEM_P2P),
        ] {
            flags |= if set { flag } else { 0 };
        }
        w.u8(pkt::HANDSHAKE);
        w.u8(VERSION);
        w.u16(flags);
        let words = extra::COUNT.div_ceil(64);
        w.u32(words + 3);
        w.u64(self.extra);
        if let Some(c) = self.connid {
            w.u64(u64::from(c));
        }
        if let Some(h) = self.host_id {
            w.u64(h);
        }
        if let Some(v) = self.device_version {
            w.u64(u64::from(v));
        }
        if let Some((qpn, qkey)) = self.user_recv_qp {
            w.u32(qpn);
            w.u32(qkey);
        }
        if let Some(p2p) = self.hmem_p2p {
            // One byte, and seven that are reserved.
            w.u64(u64::from(p2p));
        }
        w.len()
    }

    /// Reads the packet, base header included.
    pub fn parse(bytes: &[u8]) -> Option<Handshake> {
        let mut r = FieldReader::new(bytes);
        if r.u8()? != pkt::HANDSHAKE || r.u8()? != VERSION {
            return None;
        }
        let flags = r.u16()?;
        let words = r.u32()?.checked_sub(3).filter(|n| (1..=16).contains(n))?;
        let extra = r.u64()?;
        r.bytes((words as usize - 1) * 8)?;
        let mut h = Handshake {
            extra,
            ..Handshake::default()
        };
        if flags & req::CONNID != 0 {
            h.connid = Some(r.u64()? as u32);
        }
        if flags & HOST_ID != 0 {
            h.host_id = Some(r.u64()?);
        }
        if flags & DEVICE_VERSION != 0 {
            h.device_version = Some(r.u64()? as u32);
        }
        if flags & USER_RECV_QP != 0 {
            h.user_recv_qp = Some((r.u32()?, r.u32()?));
        }
        if flags & HMEM_P2P != 0 {
            h.hmem_p2p = Some(r.u64()? & 0xff != 0);
        }
        Some(h)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let all = Handshake {
            extra: extra::RDMA_READ | extra::PEER_ERROR,
            connid: Some(7),
            host_id: Some(8),
            device_version: Some(0xefa2),
            user_recv_qp: Some((9, 10)),
            hmem_p2p: Some(false),
        };
        for h in [
            all,
            Handshake {
                connid: None,
                ..all
            },
            Handshake::default(),
        ] {
            let mut buf = [0u8; 64];
            let n = h.emit(&mut buf);
            assert_eq!(Handshake::parse(&buf[..n]), Some(h));
            for cut in 0..n {
                assert_eq!(Handshake::parse(&buf[..cut]), None);
            }
        }
    }

    #[test]
    fn a_handshake_with_more_feature_words_is_parsed() {
        let mut buf = [0u8; 64];
        let h = Handshake {
            extra: 5,
            ..Handshake::default()
        };
        let n = h.emit(&mut buf);
        buf[4] += 2;
        assert_eq!(Handshake::parse(&buf[..n]), None);
        assert_eq!(Handshake::parse(&buf[..n + 16]), Some(h));
    }
}
