//! The header that most packets have: a whole message, from a sender whose address the receiver
//! has.
//!
//! [`Eager`] equals an [`Rtm`](super::Rtm) of kind `Eager` without receipt and raw address
//! (protocol, 2.2 and 3.2), but is read and written as 64-bit words. All other headers use
//! [`Repr`](super::Repr).

use super::{pkt, req, VERSION};

/// Longest [`Eager`] header, bytes.
pub const EAGER_MAX: usize = 32;

/// See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eager {
    pub msg_id: u32,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub connid: Option<u32>,
}

impl Eager {
    /// The header's bytes, padded with zeros, and its length.
    #[inline(always)]
    pub fn emit(&self) -> ([u8; EAGER_MAX], usize) {
        let mut out = [0; EAGER_MAX];
        let mut flags = req::MSG;
        let mut at = 8;
        let mut put = |at: usize, v: u64| {
            if let Some(to) = out.get_mut(at..at + 8) {
                to.copy_from_slice(&v.to_le_bytes());
            }
        };
        if let Some(t) = self.tag {
            flags |= req::TAGGED;
            put(at, t);
            at += 8;
        }
        if let Some(d) = self.cq_data {
            flags |= req::CQ_DATA;
            put(at, d);
            at += 8;
        }
        if let Some(c) = self.connid {
            flags |= req::CONNID;
            put(at, c.into());
            at += 4;
        }
        let code = pkt::EAGER_MSGRTM + u8::from(self.tag.is_some());
        let base = u64::from(code) | u64::from(VERSION) << 8 | u64::from(flags) << 16;
        put(0, base | u64::from(self.msg_id) << 32);
        (out, at)
    }

    /// Reads a header and returns it with its length; `None` for any other packet.
    #[inline]
    pub fn parse(packet: &[u8]) -> Option<(Eager, usize)> {
        let word = |at: usize| {
            let b = packet.get(at..)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*b))
        };
        let base = word(0)?;
        let flags = (base >> 16) as u16;
        let tagged = flags & req::TAGGED != 0;
        let code = pkt::EAGER_MSGRTM + u8::from(tagged);
        let known = req::MSG | req::TAGGED | req::CQ_DATA | req::CONNID;
        if base as u16 != u16::from(code) | u16::from(VERSION) << 8
            || flags & !known != 0
            || flags & req::MSG == 0
        {
            return None;
        }
        let mut e = Eager {
            msg_id: (base >> 32) as u32,
            tag: None,
            cq_data: None,
            connid: None,
        };
        let mut at = 8;
        if tagged {
            e.tag = Some(word(at)?);
            at += 8;
        }
        if flags & req::CQ_DATA != 0 {
            e.cq_data = Some(word(at)?);
            at += 8;
        }
        if flags & req::CONNID != 0 {
            let b = packet.get(at..)?.first_chunk::<4>()?;
            e.connid = Some(u32::from_le_bytes(*b));
            at += 4;
        }
        Some((e, at))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Opt, Repr, Rtm, RtmKind, HEADER_MAX};
    use super::*;

    #[test]
    fn eager_header_equals_the_general_encoding() {
        for i in 0..8u64 {
            let e = Eager {
                msg_id: 0x0102_0304,
                tag: (i & 1 != 0).then_some(0x1122_3344_5566_7788),
                cq_data: (i & 2 != 0).then_some(0x99aa_bbcc_ddee_ff00),
                connid: (i & 4 != 0).then_some(0xa1b2_c3d4),
            };
            let rtm = Rtm {
                msg_id: e.msg_id,
                tag: e.tag,
                opt: Opt {
                    raw_addr: None,
                    cq_data: e.cq_data,
                    connid: e.connid,
                },
                kind: RtmKind::Eager,
                receipt: None,
                after_nack: false,
            };
            let mut general = [0; HEADER_MAX];
            let n = Repr::Rtm(rtm).emit(None, &mut general);
            let (short, m) = e.emit();
            assert_eq!(short.get(..m), general.get(..n));
            assert_eq!(Eager::parse(&short[..m]), Some((e, m)));
            for cut in 0..m {
                assert_eq!(Eager::parse(&short[..cut]), None);
            }
        }
    }

    #[test]
    fn other_headers_do_not_parse_as_eager() {
        let opt = Opt {
            raw_addr: Some([7; 32]),
            ..Opt::default()
        };
        let plain = Rtm {
            msg_id: 1,
            tag: None,
            opt: Opt::default(),
            kind: RtmKind::Eager,
            receipt: None,
            after_nack: false,
        };
        let medium = RtmKind::Medium {
            length: 9,
            offset: 0,
        };
        for r in [
            Rtm { opt, ..plain },
            Rtm {
                receipt: Some(3),
                ..plain
            },
            Rtm {
                kind: medium,
                ..plain
            },
            Rtm {
                after_nack: true,
                ..plain
            },
        ] {
            let mut b = [0; HEADER_MAX];
            let n = Repr::Rtm(r).emit(None, &mut b);
            assert_eq!(Eager::parse(&b[..n]), None, "{r:?}");
        }
    }
}
