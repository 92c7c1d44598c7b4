//! Headers of messages and of what controls them (protocol, chapters 2 and 3).

use super::fields::{Reader, Writer};
use super::{pkt, req, RAW_ADDR_LEN, VERSION};

/// Optional headers of a request, in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opt {
    /// The sender's address, until it knows that the receiver knows it.
    pub raw_addr: Option<[u8; RAW_ADDR_LEN]>,
    /// Remote CQ data.
    pub cq_data: Option<u64>,
    /// The sender's connection id.
    pub connid: Option<u32>,
}

/// A "request to message": the first packet of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtm {
    /// Consecutive number of the message between these two endpoints.
    pub msg_id: u32,
    pub tag: Option<u64>,
    pub opt: Opt,
    /// `(msg_length, send_id, credit_request)` of a long-CTS message; `None` for an eager one.
    pub long: Option<(u64, u32, u32)>,
    /// `send_id` of a message whose sender wants a receipt.
    pub receipt: Option<u32>,
}

/// A packet header; see the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repr {
    Rtm(Rtm),
    /// Clear to send: the receiver wants `length` more bytes of `send_id`, for its `recv_id`.
    Cts {
        send_id: u32,
        recv_id: u32,
        length: u64,
    },
    /// A segment of a long message.
    CtsData {
        recv_id: u32,
        length: u64,
        offset: u64,
        connid: Option<u32>,
    },
    /// All of message `msg_id` is in the receiver's buffer.
    Receipt {
        tx_id: u32,
        msg_id: u32,
    },
    /// The peer gave an operation up.
    PeerError {
        op_id: u32,
        kind: u32,
        errno: u32,
    },
    /// A handshake; its contents are read by [`super::Handshake`].
    Handshake,
    /// A packet of a type this version of the library does not speak.
    Unknown(u8),
}

impl Rtm {
    fn code(&self) -> u8 {
        match (
            self.long.is_some(),
            self.receipt.is_some(),
            self.tag.is_some(),
        ) {
            (false, false, false) => pkt::EAGER_MSGRTM,
            (false, false, true) => pkt::EAGER_TAGRTM,
            (true, false, false) => pkt::LONGCTS_MSGRTM,
            (true, false, true) => pkt::LONGCTS_TAGRTM,
            (false, true, false) => pkt::DC_EAGER_MSGRTM,
            (false, true, true) => pkt::DC_EAGER_TAGRTM,
            (true, true, false) => pkt::DC_LONGCTS_MSGRTM,
            (true, true, true) => pkt::DC_LONGCTS_TAGRTM,
        }
    }

    fn emit(&self, w: &mut Writer) {
        let mut flags = req::MSG;
        for (set, flag) in [
            (self.tag.is_some(), req::TAGGED),
            (self.opt.raw_addr.is_some(), req::RAW_ADDR),
            (self.opt.cq_data.is_some(), req::CQ_DATA),
            (self.opt.connid.is_some(), req::CONNID),
        ] {
            flags |= if set { flag } else { 0 };
        }
        w.u8(self.code());
        w.u8(VERSION);
        w.u16(flags);
        w.u32(self.msg_id);
        match (self.long, self.receipt) {
            (Some((length, send_id, credits)), _) => {
                w.u64(length);
                w.u32(send_id);
                w.u32(credits);
            }
            (None, Some(send_id)) => {
                w.u32(send_id);
                w.u32(0);
            }
            (None, None) => {}
        }
        if let Some(t) = self.tag {
            w.u64(t);
        }
        if let Some(a) = &self.opt.raw_addr {
            w.u32(RAW_ADDR_LEN as u32);
            w.bytes(a);
        }
        if let Some(d) = self.opt.cq_data {
            w.u64(d);
        }
        if let Some(c) = self.opt.connid {
            w.u32(c);
        }
    }

    fn parse(code: u8, flags: u16, r: &mut Reader) -> Option<Rtm> {
        let msg_id = r.u32()?;
        let long = match code {
            pkt::LONGCTS_MSGRTM
            | pkt::LONGCTS_TAGRTM
            | pkt::DC_LONGCTS_MSGRTM
            | pkt::DC_LONGCTS_TAGRTM => Some((r.u64()?, r.u32()?, r.u32()?)),
            _ => None,
        };
        let receipt = match code {
            pkt::DC_EAGER_MSGRTM | pkt::DC_EAGER_TAGRTM => {
                let id = r.u32()?;
                r.u32()?;
                Some(id)
            }
            pkt::DC_LONGCTS_MSGRTM | pkt::DC_LONGCTS_TAGRTM => long.map(|l| l.1),
            _ => None,
        };
        let tag = match code {
            pkt::EAGER_TAGRTM
            | pkt::LONGCTS_TAGRTM
            | pkt::DC_EAGER_TAGRTM
            | pkt::DC_LONGCTS_TAGRTM => Some(r.u64()?),
            _ => None,
        };
        let mut opt = Opt::default();
        if flags & req::RAW_ADDR != 0 {
            let len = r.u32()? as usize;
            let raw = r.bytes(len)?;
            opt.raw_addr = raw.first_chunk::<RAW_ADDR_LEN>().copied();
        }
        if flags & req::CQ_DATA != 0 {
            opt.cq_data = Some(r.u64()?);
        }
        if flags & req::CONNID != 0 {
            opt.connid = Some(r.u32()?);
        }
        Some(Rtm {
            msg_id,
            tag,
            opt,
            long,
            receipt,
        })
    }
}

impl Repr {
    /// Writes the header and returns its length; `buf` holds [`super::HEADER_MAX`] bytes.
    /// Handshakes and unknown packets write nothing.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let mut w = Writer::new(buf);
        let base = |w: &mut Writer, code: u8, flags: u16| {
            w.u8(code);
            w.u8(VERSION);
            w.u16(flags);
        };
        match *self {
            Repr::Rtm(r) => r.emit(&mut w),
            Repr::Cts {
                send_id,
                recv_id,
                length,
            } => {
                base(&mut w, pkt::CTS, 0);
                w.u32(0);
                w.u32(send_id);
                w.u32(recv_id);
                w.u64(length);
            }
            Repr::CtsData {
                recv_id,
                length,
                offset,
                connid,
            } => {
                base(
                    &mut w,
                    pkt::CTSDATA,
                    if connid.is_some() { req::CONNID } else { 0 },
                );
                w.u32(recv_id);
                w.u64(length);
                w.u64(offset);
                if let Some(c) = connid {
                    w.u32(c);
                    w.u32(0);
                }
            }
            Repr::Receipt { tx_id, msg_id } => {
                base(&mut w, pkt::RECEIPT, 0);
                w.u32(tx_id);
                w.u32(msg_id);
                w.u32(0);
            }
            Repr::PeerError { op_id, kind, errno } => {
                base(&mut w, pkt::PEER_ERROR, 0);
                w.u32(op_id);
                w.u32(kind);
                w.u32(errno);
                w.u32(0);
            }
            Repr::Handshake | Repr::Unknown(_) => {}
        }
        w.len()
    }

    /// Reads a packet: its header and the payload behind it. `None` for a packet of another
    /// protocol version or one that is shorter than its header says.
    pub fn parse(bytes: &[u8]) -> Option<(Repr, &[u8])> {
        let mut r = Reader::new(bytes);
        let code = r.u8()?;
        if r.u8()? != VERSION {
            return None;
        }
        let flags = r.u16()?;
        let repr = match code {
            pkt::EAGER_MSGRTM
            | pkt::EAGER_TAGRTM
            | pkt::LONGCTS_MSGRTM
            | pkt::LONGCTS_TAGRTM
            | pkt::DC_EAGER_MSGRTM
            | pkt::DC_EAGER_TAGRTM
            | pkt::DC_LONGCTS_MSGRTM
            | pkt::DC_LONGCTS_TAGRTM => Repr::Rtm(Rtm::parse(code, flags, &mut r)?),
            pkt::CTS => {
                r.u32()?;
                Repr::Cts {
                    send_id: r.u32()?,
                    recv_id: r.u32()?,
                    length: r.u64()?,
                }
            }
            pkt::CTSDATA => {
                let (recv_id, length, offset) = (r.u32()?, r.u64()?, r.u64()?);
                let mut connid = None;
                if flags & req::CONNID != 0 {
                    connid = Some(r.u32()?);
                    r.u32()?;
                }
                Repr::CtsData {
                    recv_id,
                    length,
                    offset,
                    connid,
                }
            }
            pkt::RECEIPT => {
                let p = Repr::Receipt {
                    tx_id: r.u32()?,
                    msg_id: r.u32()?,
                };
                r.u32()?;
                p
            }
            pkt::PEER_ERROR => {
                let p = Repr::PeerError {
                    op_id: r.u32()?,
                    kind: r.u32()?,
                    errno: r.u32()?,
                };
                r.u32()?;
                p
            }
            pkt::HANDSHAKE => Repr::Handshake,
            other => Repr::Unknown(other),
        };
        Some((repr, r.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::HEADER_MAX;
    use super::*;

    fn samples() -> Vec<Repr> {
        let mut v = vec![
            Repr::Cts {
                send_id: 1,
                recv_id: 2,
                length: 3,
            },
            Repr::CtsData {
                recv_id: 1,
                length: 2,
                offset: 3,
                connid: None,
            },
            Repr::CtsData {
                recv_id: 1,
                length: 2,
                offset: 3,
                connid: Some(4),
            },
            Repr::Receipt {
                tx_id: 1,
                msg_id: 2,
            },
            Repr::PeerError {
                op_id: 1,
                kind: 2,
                errno: 3,
            },
        ];
        for bits in 0..64u32 {
            let on = |b: u32| bits >> b & 1 == 1;
            let long = on(0).then_some((1 << 40, 5, 6));
            v.push(Repr::Rtm(Rtm {
                msg_id: 9,
                tag: on(1).then_some(u64::MAX),
                opt: Opt {
                    raw_addr: on(2).then_some([7; RAW_ADDR_LEN]),
                    cq_data: on(3).then_some(8),
                    connid: on(4).then_some(11),
                },
                long,
                receipt: on(5).then_some(5),
            }));
        }
        v
    }

    #[test]
    fn what_is_emitted_is_parsed_and_nothing_shorter_is() {
        for p in samples() {
            let mut buf = vec![0u8; HEADER_MAX];
            let n = p.emit(&mut buf);
            assert!(n > 0);
            buf.truncate(n);
            for cut in 0..n {
                assert_eq!(Repr::parse(&buf[..cut]), None, "{p:?} cut at {cut}");
            }
            buf.extend(b"payload");
            assert_eq!(Repr::parse(&buf), Some((p, &b"payload"[..])));
        }
    }

    /// Offsets of the protocol document, by example.
    #[test]
    fn layouts_are_those_of_the_protocol() {
        let mut buf = [0u8; HEADER_MAX];
        let rtm = Rtm {
            msg_id: 0x0403_0201,
            tag: Some(0x1122),
            opt: Opt {
                cq_data: Some(0x55),
                ..Opt::default()
            },
            long: None,
            receipt: None,
        };
        let n = Repr::Rtm(rtm).emit(&mut buf);
        assert_eq!(n, 24);
        assert_eq!(buf[..9], [65, 4, 2 | 4 | 8, 0, 1, 2, 3, 4, 0x22]);
        assert_eq!(buf[16], 0x55);
        let n = Repr::Cts {
            send_id: 1,
            recv_id: 2,
            length: 3,
        }
        .emit(&mut buf);
        assert_eq!((n, buf[8], buf[12], buf[16]), (24, 1, 2, 3));
    }
}
