//! Requests (REQ packets): the first packet of every message, emulated read or write, and atomic
//! (protocol, 2.2, 3.2, 3.3 and 4).
//!
//! A request is a mandatory header, remote memory (`rma_iov`) where the operation names some, the
//! optional headers that `flags` announce, memory of the sender for the receiver to read
//! (`read_iov`) where the protocol reads, and payload.

use super::fields::{FieldReader, FieldWriter};
use super::{pkt, req, RAW_ADDR_LEN, VERSION};
pub use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};

fn emit_iovs(iovs: &Iovs, w: &mut FieldWriter) {
    for v in iovs.as_slice() {
        w.u64(v.addr);
        w.u64(v.len);
        w.u64(v.key);
    }
}

fn parse_iovs(count: u32, r: &mut FieldReader) -> Option<Iovs> {
    let mut list = [RmaIov::default(); MAX_IOV];
    let list = list.get_mut(..count as usize)?;
    for at in &mut *list {
        *at = RmaIov {
            addr: r.u64()?,
            len: r.u64()?,
            key: r.u64()?,
        };
    }
    Iovs::new(list)
}

/// Optional headers of a request, in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opt {
    /// The sender's raw address: until the sender has the receiver's handshake, and always with
    /// constant headers.
    pub raw_addr: Option<[u8; RAW_ADDR_LEN]>,
    /// Remote CQ data.
    pub cq_data: Option<u64>,
    /// The sender's connection id.
    pub connid: Option<u32>,
}

impl Opt {
    fn flags(&self) -> u16 {
        let mut flags = 0;
        for (set, flag) in [
            (self.raw_addr.is_some(), req::RAW_ADDR),
            (self.cq_data.is_some(), req::CQ_DATA),
            (self.connid.is_some(), req::CONNID),
        ] {
            flags |= if set { flag } else { 0 };
        }
        flags
    }

    fn emit(&self, w: &mut FieldWriter) {
        if let Some(a) = &self.raw_addr {
            w.u32(RAW_ADDR_LEN as u32);
            w.bytes(a);
        }
        if let Some(d) = self.cq_data {
            w.u64(d);
        }
        if let Some(c) = self.connid {
            w.u32(c);
        }
    }

    fn parse(flags: u16, r: &mut FieldReader) -> Option<Opt> {
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
        Some(opt)
    }
}

fn base(w: &mut FieldWriter, code: u8, flags: u16) {
    w.u8(code);
    w.u8(VERSION);
    w.u16(flags);
}

/// First fields of every request that takes several packets: message length, the sender's operation
/// number, and either the wanted number of packets or the number of memory pieces to read.
fn announce(w: &mut FieldWriter, length: u64, send_id: u32, count: u32) {
    w.u64(length);
    w.u32(send_id);
    w.u32(count);
}

/// Reads what [`announce`] writes.
fn announced(r: &mut FieldReader) -> Option<(u64, u32, u32)> {
    Some((r.u64()?, r.u32()?, r.u32()?))
}

/// How a message's bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtmKind {
    /// All in this packet.
    Eager,
    /// In several requests of one `msg_id`; this one carries the bytes from `offset` on.
    Medium { length: u64, offset: u64 },
    /// The first bytes are in this packet; the others follow as CTSDATA when the receiver clears
    /// them.
    LongCts {
        length: u64,
        send_id: u32,
        credits: u32,
    },
    /// Read by the receiver from the sender's memory.
    LongRead {
        length: u64,
        send_id: u32,
        from: Iovs,
    },
    /// The first `runt` bytes in several requests, this one's from `offset` on; the rest is read.
    RuntRead {
        length: u64,
        send_id: u32,
        offset: u64,
        runt: u64,
        from: Iovs,
    },
}

impl RtmKind {
    /// Whether further requests may have the same `msg_id`.
    pub fn several_requests(&self) -> bool {
        matches!(self, RtmKind::Medium { .. } | RtmKind::RuntRead { .. })
    }
}

/// A "request to message": the first packet of every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtm {
    /// Consecutive number of the message between these two endpoints.
    pub msg_id: u32,
    pub tag: Option<u64>,
    pub opt: Opt,
    pub kind: RtmKind,
    /// `send_id` of a message whose sender asks for a receipt. `None` in the read protocols, whose
    /// end-of-read packet serves as receipt.
    pub receipt: Option<u32>,
    /// This request takes the place of one whose memory the receiver could not read.
    pub after_nack: bool,
}

impl Rtm {
    fn code(&self) -> u8 {
        let untagged = match (self.kind, self.receipt.is_some()) {
            (RtmKind::Eager, false) => pkt::EAGER_MSGRTM,
            (RtmKind::Eager, true) => pkt::DC_EAGER_MSGRTM,
            (RtmKind::Medium { .. }, false) => pkt::MEDIUM_MSGRTM,
            (RtmKind::Medium { .. }, true) => pkt::DC_MEDIUM_MSGRTM,
            (RtmKind::LongCts { .. }, false) => pkt::LONGCTS_MSGRTM,
            (RtmKind::LongCts { .. }, true) => pkt::DC_LONGCTS_MSGRTM,
            (RtmKind::LongRead { .. }, _) => pkt::LONGREAD_MSGRTM,
            (RtmKind::RuntRead { .. }, _) => pkt::RUNTREAD_MSGRTM,
        };
        // The tagged form of every message follows the untagged one.
        untagged + u8::from(self.tag.is_some())
    }

    pub(super) fn emit(&self, w: &mut FieldWriter) {
        let mut flags = req::MSG | self.opt.flags();
        flags |= if self.tag.is_some() { req::TAGGED } else { 0 };
        flags |= if self.after_nack { req::READ_NACK } else { 0 };
        base(w, self.code(), flags);
        w.u32(self.msg_id);
        let mut read = None;
        match self.kind {
            RtmKind::Eager => {
                if let Some(id) = self.receipt {
                    w.u32(id);
                    w.u32(0);
                }
            }
            RtmKind::Medium { length, offset } => {
                if let Some(id) = self.receipt {
                    w.u32(id);
                    w.u32(0);
                }
                w.u64(length);
                w.u64(offset);
            }
            RtmKind::LongCts {
                length,
                send_id,
                credits,
            } => {
                announce(w, length, send_id, credits);
            }
            RtmKind::LongRead {
                length,
                send_id,
                from,
            } => {
                announce(w, length, send_id, from.count());
                read = Some(from);
            }
            RtmKind::RuntRead {
                length,
                send_id,
                offset,
                runt,
                from,
            } => {
                announce(w, length, send_id, from.count());
                w.u64(offset);
                w.u64(runt);
                read = Some(from);
            }
        }
        if let Some(t) = self.tag {
            w.u64(t);
        }
        self.opt.emit(w);
        if let Some(v) = read {
            emit_iovs(&v, w);
        }
    }

    /// Whether a packet type is a message.
    pub(super) fn is(code: u8) -> bool {
        matches!(
            code,
            pkt::EAGER_MSGRTM..=pkt::LONGCTS_TAGRTM
                | pkt::LONGREAD_MSGRTM
                | pkt::LONGREAD_TAGRTM
                | pkt::DC_EAGER_MSGRTM..=pkt::DC_LONGCTS_TAGRTM
                | pkt::RUNTREAD_MSGRTM
                | pkt::RUNTREAD_TAGRTM
        )
    }

    pub(super) fn parse(code: u8, flags: u16, r: &mut FieldReader) -> Option<Rtm> {
        let msg_id = r.u32()?;
        // As in `code`: tagged types have the untagged number plus one. Untagged numbers are odd
        // among the DC and runting-read types, even among the others.
        let dc = (pkt::DC_EAGER_MSGRTM..=pkt::DC_LONGCTS_TAGRTM).contains(&code);
        let tagged = code & 1 == u8::from(!dc && !(pkt::RUNTREAD_MSGRTM..).contains(&code));
        let mut receipt = None;
        let mut counted = 0;
        let mut kind = match code {
            pkt::EAGER_MSGRTM | pkt::EAGER_TAGRTM => RtmKind::Eager,
            pkt::DC_EAGER_MSGRTM | pkt::DC_EAGER_TAGRTM => {
                receipt = Some(r.u32()?);
                r.u32()?;
                RtmKind::Eager
            }
            pkt::MEDIUM_MSGRTM | pkt::MEDIUM_TAGRTM => RtmKind::Medium {
                length: r.u64()?,
                offset: r.u64()?,
            },
            pkt::DC_MEDIUM_MSGRTM | pkt::DC_MEDIUM_TAGRTM => {
                receipt = Some(r.u32()?);
                r.u32()?;
                RtmKind::Medium {
                    length: r.u64()?,
                    offset: r.u64()?,
                }
            }
            pkt::LONGREAD_MSGRTM | pkt::LONGREAD_TAGRTM => {
                let (length, send_id, pieces) = announced(r)?;
                counted = pieces;
                RtmKind::LongRead {
                    length,
                    send_id,
                    from: Iovs::default(),
                }
            }
            pkt::RUNTREAD_MSGRTM | pkt::RUNTREAD_TAGRTM => {
                let (length, send_id, pieces) = announced(r)?;
                counted = pieces;
                RtmKind::RuntRead {
                    length,
                    send_id,
                    offset: r.u64()?,
                    runt: r.u64()?,
                    from: Iovs::default(),
                }
            }
            _ => {
                let (length, send_id, credits) = announced(r)?;
                receipt = dc.then_some(send_id);
                RtmKind::LongCts {
                    length,
                    send_id,
                    credits,
                }
            }
        };
        let tag = if tagged { Some(r.u64()?) } else { None };
        let opt = Opt::parse(flags, r)?;
        if let RtmKind::LongRead { from, .. } | RtmKind::RuntRead { from, .. } = &mut kind {
            *from = parse_iovs(counted, r)?;
        }
        Some(Rtm {
            msg_id,
            tag,
            opt,
            kind,
            receipt,
            after_nack: flags & req::READ_NACK != 0,
        })
    }
}

/// How an emulated write's bytes travel; as [`RtmKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtwKind {
    Eager,
    LongCts {
        length: u64,
        send_id: u32,
        credits: u32,
    },
    LongRead {
        length: u64,
        send_id: u32,
        from: Iovs,
    },
}

/// A "request to write": an emulated write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtw {
    pub opt: Opt,
    /// Memory of the receiver. Empty in a packet that only asks for a handshake.
    pub to: Iovs,
    pub kind: RtwKind,
    /// As [`Rtm::receipt`].
    pub receipt: Option<u32>,
    pub after_nack: bool,
}

impl Rtw {
    pub(super) fn emit(&self, w: &mut FieldWriter) {
        let code = match (self.kind, self.receipt.is_some()) {
            (RtwKind::Eager, false) => pkt::EAGER_RTW,
            (RtwKind::Eager, true) => pkt::DC_EAGER_RTW,
            (RtwKind::LongCts { .. }, false) => pkt::LONGCTS_RTW,
            (RtwKind::LongCts { .. }, true) => pkt::DC_LONGCTS_RTW,
            (RtwKind::LongRead { .. }, _) => pkt::LONGREAD_RTW,
        };
        let mut flags = req::RMA | self.opt.flags();
        flags |= if self.after_nack { req::READ_NACK } else { 0 };
        base(w, code, flags);
        w.u32(self.to.count());
        let mut read = None;
        match self.kind {
            RtwKind::Eager => {
                if let Some(id) = self.receipt {
                    w.u32(id);
                    w.u32(0);
                }
            }
            RtwKind::LongCts {
                length,
                send_id,
                credits,
            } => {
                announce(w, length, send_id, credits);
            }
            RtwKind::LongRead {
                length,
                send_id,
                from,
            } => {
                announce(w, length, send_id, from.count());
                read = Some(from);
            }
        }
        emit_iovs(&self.to, w);
        self.opt.emit(w);
        if let Some(v) = read {
            emit_iovs(&v, w);
        }
    }

    pub(super) fn parse(code: u8, flags: u16, r: &mut FieldReader) -> Option<Rtw> {
        let count = r.u32()?;
        let mut receipt = None;
        let mut counted = 0;
        let mut kind = match code {
            pkt::EAGER_RTW => RtwKind::Eager,
            pkt::DC_EAGER_RTW => {
                receipt = Some(r.u32()?);
                r.u32()?;
                RtwKind::Eager
            }
            pkt::LONGREAD_RTW => {
                let (length, send_id, pieces) = announced(r)?;
                counted = pieces;
                RtwKind::LongRead {
                    length,
                    send_id,
                    from: Iovs::default(),
                }
            }
            _ => {
                let (length, send_id, credits) = announced(r)?;
                receipt = (code == pkt::DC_LONGCTS_RTW).then_some(send_id);
                RtwKind::LongCts {
                    length,
                    send_id,
                    credits,
                }
            }
        };
        let to = parse_iovs(count, r)?;
        let opt = Opt::parse(flags, r)?;
        if let RtwKind::LongRead { from, .. } = &mut kind {
            *from = parse_iovs(counted, r)?;
        }
        Some(Rtw {
            opt,
            to,
            kind,
            receipt,
            after_nack: flags & req::READ_NACK != 0,
        })
    }
}

/// A "request to read": an emulated read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtr {
    pub opt: Opt,
    /// Memory of the receiver of this packet.
    pub from: Iovs,
    pub length: u64,
    /// Number of the read, for the answer.
    pub recv_id: u32,
    /// Bytes cleared to send, in a long read; `None` for one whose answer is a single packet.
    pub window: Option<u32>,
}

impl Rtr {
    pub(super) fn emit(&self, w: &mut FieldWriter) {
        let code = if self.window.is_some() {
            pkt::LONGCTS_RTR
        } else {
            pkt::SHORT_RTR
        };
        base(w, code, req::RMA | self.opt.flags());
        w.u32(self.from.count());
        w.u64(self.length);
        w.u32(self.recv_id);
        // The first window of a read that one packet answers is all of it.
        w.u32(self.window.unwrap_or(self.length as u32));
        emit_iovs(&self.from, w);
        self.opt.emit(w);
    }

    pub(super) fn parse(code: u8, flags: u16, r: &mut FieldReader) -> Option<Rtr> {
        let count = r.u32()?;
        let (length, recv_id, window) = (r.u64()?, r.u32()?, r.u32()?);
        let from = parse_iovs(count, r)?;
        let opt = Opt::parse(flags, r)?;
        Some(Rtr {
            opt,
            from,
            length,
            recv_id,
            window: (code == pkt::LONGCTS_RTR).then_some(window),
        })
    }
}

/// How the target acknowledges an atomic, with the requester's operation number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtaKind {
    Write,
    /// With a receipt for this operation.
    WriteReceipt(u32),
    /// Answered with the former value.
    Fetch(u32),
    /// As `Fetch`; the payload is operands followed by values to compare with.
    Compare(u32),
}

/// A "request to atomic".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rta {
    pub msg_id: u32,
    pub opt: Opt,
    pub to: Iovs,
    /// `enum fi_datatype` and `enum fi_op`.
    pub datatype: u32,
    pub op: u32,
    pub kind: RtaKind,
}

impl Rta {
    pub(super) fn emit(&self, w: &mut FieldWriter) {
        let (code, id) = match self.kind {
            RtaKind::Write => (pkt::WRITE_RTA, 0),
            RtaKind::WriteReceipt(id) => (pkt::DC_WRITE_RTA, id),
            RtaKind::Fetch(id) => (pkt::FETCH_RTA, id),
            RtaKind::Compare(id) => (pkt::COMPARE_RTA, id),
        };
        base(w, code, req::ATOMIC | self.opt.flags());
        w.u32(self.msg_id);
        w.u32(self.to.count());
        w.u32(self.datatype);
        w.u32(self.op);
        w.u32(id);
        emit_iovs(&self.to, w);
        self.opt.emit(w);
    }

    pub(super) fn parse(code: u8, flags: u16, r: &mut FieldReader) -> Option<Rta> {
        let (msg_id, count) = (r.u32()?, r.u32()?);
        let (datatype, op, id) = (r.u32()?, r.u32()?, r.u32()?);
        let to = parse_iovs(count, r)?;
        let opt = Opt::parse(flags, r)?;
        Some(Rta {
            msg_id,
            opt,
            to,
            datatype,
            op,
            kind: match code {
                pkt::WRITE_RTA => RtaKind::Write,
                pkt::DC_WRITE_RTA => RtaKind::WriteReceipt(id),
                pkt::FETCH_RTA => RtaKind::Fetch(id),
                _ => RtaKind::Compare(id),
            },
        })
    }
}
