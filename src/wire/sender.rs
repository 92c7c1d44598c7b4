//! The sender of a packet, as far as the header identifies it.

use super::{pkt, req, Handshake, Opt, Repr, RAW_ADDR_LEN};

/// Identification of the sender in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The sender's raw address: in requests, until the sender has the receiver's handshake, and
    /// always with constant headers.
    pub raw_addr: Option<[u8; RAW_ADDR_LEN]>,
    /// Its connection id.
    pub connid: Option<u32>,
}

/// Whether a packet's header announces a raw address.
#[inline]
pub fn carries_raw_addr(packet: &[u8]) -> bool {
    match packet {
        [code, _, low, high, ..] => {
            *code >= pkt::REQ_FIRST && u16::from_le_bytes([*low, *high]) & req::RAW_ADDR != 0
        }
        _ => false,
    }
}

/// Reads the sender's identification; `None` for bytes that are no packet of the protocol.
pub fn sender(packet: &[u8]) -> Option<Sender> {
    let by = |o: &Opt| Sender {
        raw_addr: o.raw_addr,
        connid: o.connid,
    };
    Some(match Repr::parse(packet)?.0 {
        Repr::Rtm(r) => by(&r.opt),
        Repr::Rtw(r) => by(&r.opt),
        Repr::Rtr(r) => by(&r.opt),
        Repr::Rta(r) => by(&r.opt),
        Repr::Handshake => Sender {
            connid: Handshake::parse(packet)?.connid,
            ..Sender::default()
        },
        _ => Sender::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Rtm, RtmKind};
    use super::*;

    #[test]
    fn senders_are_read_from_what_carries_them() {
        let mut buf = [0; 256];
        let rtm = |opt| {
            Repr::Rtm(Rtm {
                msg_id: 1,
                tag: Some(2),
                opt,
                kind: RtmKind::Eager,
                receipt: None,
                after_nack: false,
            })
        };
        let opt = Opt {
            raw_addr: Some([7; RAW_ADDR_LEN]),
            ..Opt::default()
        };
        let n = rtm(opt).emit(None, &mut buf);
        assert!(carries_raw_addr(&buf[..n]));
        assert_eq!(sender(&buf[..n]).unwrap().raw_addr, opt.raw_addr);
        let opt = Opt {
            connid: Some(9),
            ..Opt::default()
        };
        let n = rtm(opt).emit(None, &mut buf);
        assert!(!carries_raw_addr(&buf[..n]));
        assert_eq!(sender(&buf[..n]).unwrap().connid, Some(9));
        let h = Handshake {
            connid: Some(5),
            ..Handshake::default()
        };
        let n = h.emit(&mut buf);
        assert_eq!(sender(&buf[..n]).unwrap().connid, Some(5));
        assert_eq!(sender(&[0; 40]), None);
    }
}
