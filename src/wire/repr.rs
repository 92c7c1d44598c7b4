//! All packets: requests (see `request`), control packets and answers (protocol, chapters 2 to 4).

use super::fields::{FieldReader, FieldWriter};
use super::request::{Rta, Rtm, Rtr, Rtw};
use super::{pkt, req, CTS_EMULATED_READ, VERSION};

/// A packet header; see the module text of `wire`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)]
pub enum Repr {
    Rtm(Rtm),
    Rtw(Rtw),
    Rtr(Rtr),
    Rta(Rta),
    /// Clear to send: the receiver takes `length` more bytes of `send_id`, for its `recv_id`.
    Cts {
        send_id: u32,
        recv_id: u32,
        length: u64,
        /// The CTS belongs to an emulated read.
        read: bool,
    },
    /// A segment of a long message.
    CtsData {
        recv_id: u32,
        length: u64,
        offset: u64,
    },
    /// The answer to a short emulated read, or the first of a long one.
    ReadRsp {
        recv_id: u32,
        send_id: u32,
        length: u64,
    },
    /// The answer to a fetching atomic.
    AtomRsp {
        recv_id: u32,
        length: u64,
    },
    /// The sender's memory has been read.
    Eor {
        send_id: u32,
        recv_id: u32,
    },
    /// The sender's memory cannot be read: send it another way.
    ReadNack {
        send_id: u32,
        recv_id: u32,
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
    /// A packet of a type that this version of the library does not have.
    Unknown(u8),
}

/// `kind` of a [`Repr::PeerError`]: `op_id` is an operation of the packet's receiver.
pub const REF_OPERATION: u32 = 0;
// 1: the number of a message whose first packets have arrived.
/// `op_id` is the number of a message that will never arrive.
pub const REF_SKIP: u32 = 2;

impl Repr {
    /// Writes the header and returns its length; `buf` holds [`super::HEADER_MAX`] bytes. `connid`
    /// is the sender's connection id for control packets; requests carry theirs in their options.
    /// Handshakes and unknown packets write nothing.
    pub fn emit(&self, connid: Option<u32>, buf: &mut [u8]) -> usize {
        let mut w = FieldWriter::new(buf);
        let id = connid.unwrap_or(0);
        let base = |w: &mut FieldWriter, code: u8, more: u16| {
            w.u8(code);
            w.u8(VERSION);
            w.u16(more | if connid.is_some() { req::CONNID } else { 0 });
        };
        match *self {
            Repr::Rtm(r) => r.emit(&mut w),
            Repr::Rtw(r) => r.emit(&mut w),
            Repr::Rtr(r) => r.emit(&mut w),
            Repr::Rta(r) => r.emit(&mut w),
            Repr::Cts {
                send_id,
                recv_id,
                length,
                read,
            } => {
                base(&mut w, pkt::CTS, if read { CTS_EMULATED_READ } else { 0 });
                w.u32(id);
                w.u32(send_id);
                w.u32(recv_id);
                w.u64(length);
            }
            Repr::CtsData {
                recv_id,
                length,
                offset,
            } => {
                base(&mut w, pkt::CTSDATA, 0);
                w.u32(recv_id);
                w.u64(length);
                w.u64(offset);
                if let Some(c) = connid {
                    w.u32(c);
                    w.u32(0);
                }
            }
            Repr::ReadRsp {
                recv_id,
                send_id,
                length,
            } => {
                base(&mut w, pkt::READRSP, 0);
                w.u32(id);
                w.u32(recv_id);
                w.u32(send_id);
                w.u64(length);
            }
            Repr::AtomRsp { recv_id, length } => {
                base(&mut w, pkt::ATOMRSP, 0);
                w.u32(id);
                w.u32(0);
                w.u32(recv_id);
                w.u64(length);
            }
            Repr::Eor { send_id, recv_id } => {
                base(&mut w, pkt::EOR, 0);
                w.u32(send_id);
                w.u32(recv_id);
                w.u32(id);
            }
            Repr::ReadNack { send_id, recv_id } => {
                base(&mut w, pkt::READ_NACK, 0);
                w.u32(send_id);
                w.u32(recv_id);
                w.u32(id);
            }
            Repr::Receipt { tx_id, msg_id } => {
                base(&mut w, pkt::RECEIPT, 0);
                w.u32(tx_id);
                w.u32(msg_id);
                w.u32(id);
            }
            Repr::PeerError { op_id, kind, errno } => {
                base(&mut w, pkt::PEER_ERROR, 0);
                w.u32(op_id);
                w.u32(kind);
                w.u32(errno);
                w.u32(id);
            }
            Repr::Handshake | Repr::Unknown(_) => {}
        }
        w.len()
    }

    /// Reads a packet: its header and the payload behind it. `None` for a packet of another
    /// protocol version or one that is shorter than the length in its header.
    pub fn parse(bytes: &[u8]) -> Option<(Repr, &[u8])> {
        let mut r = FieldReader::new(bytes);
        let code = r.u8()?;
        if r.u8()? != VERSION {
            return None;
        }
        let flags = r.u16()?;
        let repr = match code {
            _ if Rtm::is(code) => Repr::Rtm(Rtm::parse(code, flags, &mut r)?),
            pkt::EAGER_RTW
            | pkt::LONGCTS_RTW
            | pkt::LONGREAD_RTW
            | pkt::DC_EAGER_RTW
            | pkt::DC_LONGCTS_RTW => Repr::Rtw(Rtw::parse(code, flags, &mut r)?),
            pkt::SHORT_RTR | pkt::LONGCTS_RTR => Repr::Rtr(Rtr::parse(code, flags, &mut r)?),
            pkt::WRITE_RTA | pkt::FETCH_RTA | pkt::COMPARE_RTA | pkt::DC_WRITE_RTA => {
                Repr::Rta(Rta::parse(code, flags, &mut r)?)
            }
            pkt::CTS => {
                r.u32()?;
                Repr::Cts {
                    send_id: r.u32()?,
                    recv_id: r.u32()?,
                    length: r.u64()?,
                    read: flags & CTS_EMULATED_READ != 0,
                }
            }
            pkt::CTSDATA => {
                let (recv_id, length, offset) = (r.u32()?, r.u64()?, r.u64()?);
                if flags & req::CONNID != 0 {
                    r.u64()?;
                }
                Repr::CtsData {
                    recv_id,
                    length,
                    offset,
                }
            }
            pkt::READRSP => {
                r.u32()?;
                Repr::ReadRsp {
                    recv_id: r.u32()?,
                    send_id: r.u32()?,
                    length: r.u64()?,
                }
            }
            pkt::ATOMRSP => {
                r.u64()?;
                Repr::AtomRsp {
                    recv_id: r.u32()?,
                    length: r.u64()?,
                }
            }
            pkt::EOR | pkt::READ_NACK => {
                let (send_id, recv_id) = (r.u32()?, r.u32()?);
                r.u32()?;
                if code == pkt::EOR {
                    Repr::Eor { send_id, recv_id }
                } else {
                    Repr::ReadNack { send_id, recv_id }
                }
            }
            pkt::RECEIPT => {
                let (tx_id, msg_id) = (r.u32()?, r.u32()?);
                r.u32()?;
                Repr::Receipt { tx_id, msg_id }
            }
            pkt::PEER_ERROR => {
                let (op_id, kind, errno) = (r.u32()?, r.u32()?, r.u32()?);
                r.u32()?;
                Repr::PeerError { op_id, kind, errno }
            }
            pkt::HANDSHAKE => Repr::Handshake,
            other => Repr::Unknown(other),
        };
        Some((repr, r.rest()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Iovs, Opt, RmaIov, RtaKind, RtmKind, RtwKind, HEADER_MAX, MAX_IOV, RAW_ADDR_LEN,
    };
    use super::*;

    fn iovs(n: usize) -> Iovs {
        let v: Vec<RmaIov> = (0..n as u64)
            .map(|i| RmaIov {
                addr: i << 40,
                len: 7 + i,
                key: 9 * i,
            })
            .collect();
        Iovs::new(&v).unwrap()
    }

    fn controls() -> Vec<Repr> {
        vec![
            Repr::Cts {
                send_id: 1,
                recv_id: 2,
                length: 3,
                read: false,
            },
            Repr::Cts {
                send_id: 1,
                recv_id: 2,
                length: 3,
                read: true,
            },
            Repr::CtsData {
                recv_id: 1,
                length: 2,
                offset: 3,
            },
            Repr::ReadRsp {
                recv_id: 1,
                send_id: 2,
                length: 3,
            },
            Repr::AtomRsp {
                recv_id: 1,
                length: 2,
            },
            Repr::Eor {
                send_id: 1,
                recv_id: 2,
            },
            Repr::ReadNack {
                send_id: 1,
                recv_id: 2,
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
        ]
    }

    fn requests() -> Vec<Repr> {
        let mut v = Vec::new();
        for bits in 0..64u32 {
            let on = |b: u32| bits >> b & 1 == 1;
            let opt = Opt {
                raw_addr: on(0).then_some([7; RAW_ADDR_LEN]),
                cq_data: on(1).then_some(8),
                connid: on(2).then_some(11),
            };
            let from = iovs(1 + bits as usize % MAX_IOV);
            let receipt = on(3).then_some(5);
            let long = RtmKind::LongCts {
                length: 1 << 40,
                send_id: 5,
                credits: 6,
            };
            let medium = RtmKind::Medium {
                length: 9,
                offset: 4,
            };
            let read = RtmKind::LongRead {
                length: 9,
                send_id: 5,
                from,
            };
            let runt = RtmKind::RuntRead {
                length: 9,
                send_id: 5,
                offset: 2,
                runt: 4,
                from,
            };
            for kind in [RtmKind::Eager, medium, long, read, runt] {
                let reads = matches!(kind, RtmKind::LongRead { .. } | RtmKind::RuntRead { .. });
                v.push(Repr::Rtm(Rtm {
                    msg_id: 9,
                    tag: on(4).then_some(u64::MAX),
                    opt,
                    kind,
                    receipt: receipt.filter(|_| !reads),
                    after_nack: on(5),
                }));
            }
            let long = RtwKind::LongCts {
                length: 1 << 40,
                send_id: 5,
                credits: 6,
            };
            let read = RtwKind::LongRead {
                length: 9,
                send_id: 5,
                from,
            };
            for kind in [RtwKind::Eager, long, read] {
                let reads = matches!(kind, RtwKind::LongRead { .. });
                v.push(Repr::Rtw(Rtw {
                    opt,
                    to: from,
                    kind,
                    receipt: receipt.filter(|_| !reads),
                    after_nack: on(5),
                }));
            }
            v.push(Repr::Rtr(Rtr {
                opt,
                from,
                length: 77,
                recv_id: 3,
                window: on(3).then_some(66),
            }));
            for kind in [
                RtaKind::Write,
                RtaKind::WriteReceipt(1),
                RtaKind::Fetch(2),
                RtaKind::Compare(3),
            ] {
                v.push(Repr::Rta(Rta {
                    msg_id: 1,
                    opt,
                    to: from,
                    datatype: 7,
                    op: 12,
                    kind,
                }));
            }
        }
        v
    }

    #[test]
    fn what_is_emitted_is_parsed_and_nothing_shorter_is() {
        let both = controls().into_iter().map(|p| (p, Some(4)));
        let none = controls().into_iter().chain(requests()).map(|p| (p, None));
        for (p, connid) in both.chain(none) {
            let mut buf = vec![0u8; HEADER_MAX];
            let n = p.emit(connid, &mut buf);
            assert!(n > 0);
            buf.truncate(n);
            // Miri is a thousand times slower.
            for cut in (0..n).step_by(if cfg!(miri) { 5 } else { 1 }) {
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
            kind: RtmKind::Eager,
            receipt: None,
            after_nack: false,
        };
        let n = Repr::Rtm(rtm).emit(None, &mut buf);
        assert_eq!(n, 24);
        assert_eq!(buf[..9], [65, 4, 2 | 4 | 8, 0, 1, 2, 3, 4, 0x22]);
        assert_eq!(buf[16], 0x55);
        let cts = Repr::Cts {
            send_id: 1,
            recv_id: 2,
            length: 3,
            read: false,
        };
        let n = cts.emit(None, &mut buf);
        assert_eq!((n, buf[8], buf[12], buf[16]), (24, 1, 2, 3));
        // Lengths of the mandatory headers, from the recorded facts (efa-rdm-protocol-v4.json).
        let len = |kind, receipt, tag| {
            let r = Rtm {
                kind,
                receipt,
                tag,
                opt: Opt::default(),
                ..rtm
            };
            Repr::Rtm(r).emit(None, &mut [0u8; HEADER_MAX])
        };
        let medium = RtmKind::Medium {
            length: 1,
            offset: 0,
        };
        let runt = RtmKind::RuntRead {
            length: 1,
            send_id: 1,
            offset: 0,
            runt: 1,
            from: iovs(0),
        };
        assert_eq!(len(RtmKind::Eager, None, None), 8);
        assert_eq!(len(RtmKind::Eager, Some(1), Some(1)), 24);
        assert_eq!(len(medium, None, None), 24);
        assert_eq!(len(medium, Some(1), Some(1)), 40);
        assert_eq!(len(runt, None, Some(1)), 48);
    }
}
