//! Headers of the C library's provider tcp (its xnet_proto.h): to bytes and from bytes.
//!
//! A connection begins with a control message of each side (protocol version 3, 32 bytes and up to
//! 256 of the application's). After that each message is a header of 16 bytes, what its operation
//! adds, and its payload. Numbers are in the hosts' order where that is the same on both sides,
//! else in network order. Parsing is total: hostile bytes give an error with a reason.

use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};

/// Protocol version of control messages and of headers.
const VERSION: u8 = 3;
/// Bytes of the header that every message has.
pub(crate) const BASE: usize = 16;
/// Bytes of the longest header: a write with data to four pieces of memory.
pub(crate) const HEAD_MAX: usize = BASE + 8 + 24 * MAX_IOV;
/// Bytes of a control message before its data.
pub(crate) const CONTROL: usize = 32;
/// Bytes of data in a control message at most.
pub(crate) const CONTROL_DATA_MAX: usize = 256;

/// The message carries data for the receiver's completion.
pub(crate) const REMOTE_CQ_DATA: u16 = 1 << 0;
/// The sender asks for an acknowledgement.
pub(crate) const DELIVERY_COMPLETE: u16 = 1 << 2;
/// The same, and that the data is in persistent memory.
pub(crate) const COMMIT_COMPLETE: u16 = 1 << 3;
/// `op_data` of an acknowledgement, which is an [`XnetOp::Msg`].
pub(crate) const ACK: u8 = 2;

/// Why bytes are no message; for the log.
pub(crate) type Malformed = &'static str;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum XnetOp {
    Msg = 0,
    Tagged = 1,
    ReadReq = 2,
    ReadRsp = 3,
    Write = 4,
    /// A tagged message whose bytes are sent when they are asked for ([`XnetOp::Cts`]).
    TaggedRts = 5,
    Cts = 6,
    /// The bytes of an announced message.
    Data = 7,
}

impl XnetOp {
    fn from_code(code: u8) -> Option<XnetOp> {
        use XnetOp::*;
        let all = [Msg, Tagged, ReadReq, ReadRsp, Write, TaggedRts, Cts, Data];
        all.get(usize::from(code)).copied()
    }
}

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub op: XnetOp,
    pub flags: u16,
    /// Number of an announced message, or [`ACK`].
    pub op_data: u8,
    pub cq_data: Option<u64>,
    pub tag: u64,
    /// Length of an announced message.
    pub announced: u64,
    /// Remote memory of reads and writes.
    pub iovs: Iovs,
    /// Bytes that follow.
    pub payload: u64,
}

impl Head {
    pub(crate) fn new(op: XnetOp, payload: u64) -> Head {
        Head {
            op,
            flags: 0,
            op_data: 0,
            cq_data: None,
            tag: 0,
            announced: 0,
            iovs: Iovs::default(),
            payload,
        }
    }

    /// Whether the sender waits for an acknowledgement.
    pub(crate) fn wants_ack(&self) -> bool {
        self.flags & (DELIVERY_COMPLETE | COMMIT_COMPLETE) != 0
    }
}

/// The order of bytes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Host,
    Network,
}

struct Writer<'a> {
    out: &'a mut [u8; HEAD_MAX],
    at: usize,
    order: ByteOrder,
}

impl Writer<'_> {
    fn put(&mut self, b: &[u8]) {
        if let Some(to) = self.out.get_mut(self.at..self.at + b.len()) {
            to.copy_from_slice(b);
            self.at += b.len();
        }
    }

    fn word(&mut self, v: u64) {
        self.put(&match self.order {
            ByteOrder::Host => v.to_ne_bytes(),
            ByteOrder::Network => v.to_be_bytes(),
        });
    }
}

/// Offset of the header's sequence number, which debug builds of the C library check.
pub(crate) const ID_AT: usize = 7;

/// Writes a header; its length.
#[inline]
pub(crate) fn emit(h: &Head, order: ByteOrder, out: &mut [u8; HEAD_MAX]) -> usize {
    let mut w = Writer {
        out,
        at: BASE,
        order,
    };
    if let Some(d) = h.cq_data {
        w.word(d);
    }
    if matches!(h.op, XnetOp::Tagged | XnetOp::TaggedRts) {
        w.word(h.tag);
    }
    if h.op == XnetOp::TaggedRts {
        w.word(h.announced);
    }
    for v in h.iovs.as_slice() {
        w.word(v.addr);
        w.word(v.len);
        w.word(v.key);
    }
    let len = core::mem::replace(&mut w.at, 0);
    let flags = h.flags
        | if h.cq_data.is_some() {
            REMOTE_CQ_DATA
        } else {
            0
        };
    let flags = match order {
        ByteOrder::Host => flags.to_ne_bytes(),
        ByteOrder::Network => flags.to_be_bytes(),
    };
    w.put(&[VERSION, h.op as u8]);
    w.put(&flags);
    w.put(&[h.op_data, h.iovs.count() as u8, len as u8, 0]);
    w.word(h.payload + len as u64);
    len
}

struct Reader<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl Reader<'_> {
    fn word(&mut self) -> Result<u64, Malformed> {
        let (b, rest) = self
            .bytes
            .split_first_chunk()
            .ok_or("its header is too short")?;
        self.bytes = rest;
        Ok(match self.order {
            ByteOrder::Host => u64::from_ne_bytes(*b),
            ByteOrder::Network => u64::from_be_bytes(*b),
        })
    }
}

/// Length of the header that begins with these bytes.
#[inline]
pub(crate) fn head_len(base: &[u8; BASE]) -> Result<usize, Malformed> {
    if base[0] != VERSION {
        return Err("it is of another version of the protocol");
    }
    match usize::from(base[6]) {
        n @ BASE..=HEAD_MAX => Ok(n),
        _ => Err("its header has an impossible length"),
    }
}

/// Reads a header of the length that [`head_len`] returned.
#[inline]
pub(crate) fn parse(bytes: &[u8], order: ByteOrder) -> Result<Head, Malformed> {
    let (base, rest) = bytes
        .split_first_chunk::<BASE>()
        .ok_or("its header is too short")?;
    let op = XnetOp::from_code(base[1]).ok_or("its operation is unknown")?;
    let flags = [base[2], base[3]];
    let flags = match order {
        ByteOrder::Host => u16::from_ne_bytes(flags),
        ByteOrder::Network => u16::from_be_bytes(flags),
    };
    let mut size = Reader {
        bytes: &base[8..],
        order,
    };
    let size = size.word()?;
    let mut r = Reader { bytes: rest, order };
    let mut h = Head::new(op, 0);
    (h.flags, h.op_data) = (flags, base[4]);
    let payload = size.checked_sub(bytes.len() as u64);
    h.payload = payload.ok_or("it is shorter than its header")?;
    let data = matches!(
        op,
        XnetOp::Msg | XnetOp::Tagged | XnetOp::TaggedRts | XnetOp::Write
    );
    if data && flags & REMOTE_CQ_DATA != 0 {
        h.cq_data = Some(r.word()?);
    }
    match op {
        XnetOp::Tagged => h.tag = r.word()?,
        XnetOp::TaggedRts => {
            h.tag = r.word()?;
            h.announced = r.word()?;
        }
        XnetOp::ReadReq | XnetOp::Write => {
            let mut list = [RmaIov::default(); MAX_IOV];
            let list = list.get_mut(..usize::from(base[5]));
            let list = list.ok_or("it names too many pieces of memory")?;
            for v in list.iter_mut() {
                (v.addr, v.len, v.key) = (r.word()?, r.word()?, r.word()?);
            }
            h.iovs = Iovs::new(list).unwrap_or_default();
        }
        XnetOp::Msg | XnetOp::ReadRsp | XnetOp::Cts | XnetOp::Data => {}
    }
    if op == XnetOp::Write && h.iovs.total() != Some(h.payload) {
        return Err("its length is not that of the memory it names");
    }
    Ok(h)
}

/// What a control message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlKind {
    Request,
    Accept,
    Reject,
}

/// A control message before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub kind: ControlKind,
    /// Bytes of data.
    pub data: usize,
    pub order: ByteOrder,
}

/// Writes a control message with data of at most [`CONTROL_DATA_MAX`] bytes.
pub(crate) fn emit_control(kind: ControlKind, data: &[u8]) -> Vec<u8> {
    let data = data.get(..CONTROL_DATA_MAX).unwrap_or(data);
    let code = match kind {
        ControlKind::Request => 0,
        ControlKind::Accept => 1,
        ControlKind::Reject => 6,
    };
    let mut out = vec![0; CONTROL];
    out[0] = VERSION;
    out[1] = code;
    out[2..4].copy_from_slice(&(data.len() as u16).to_be_bytes());
    // The peer detects our byte order by this word.
    out[24..].copy_from_slice(&1u64.to_ne_bytes());
    out.extend_from_slice(data);
    out
}

/// Reads a control message's beginning.
pub(crate) fn parse_control(b: &[u8; CONTROL]) -> Result<Control, Malformed> {
    if b[0] != VERSION {
        return Err("it speaks another version of the connection protocol");
    }
    let kind = match b[1] {
        0 => ControlKind::Request,
        1 => ControlKind::Accept,
        6 => ControlKind::Reject,
        _ => return Err("its control message is of no known kind"),
    };
    let data = usize::from(u16::from_be_bytes([b[2], b[3]]));
    if data > CONTROL_DATA_MAX {
        return Err("its control message carries too much data");
    }
    let order = match b[24..].first_chunk() {
        Some(n) if u64::from_ne_bytes(*n) == 1 => ByteOrder::Host,
        _ => ByteOrder::Network,
    };
    Ok(Control { kind, data, order })
}

/// What RDM endpoints tell each other as they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Version of the RDM protocol; in an answer, at most the requested version.
    pub version: u8,
    pub features: u8,
    /// The port that the endpoint listens on.
    pub port: u16,
    pub pid: u32,
}

/// Bytes of a [`Hello`].
pub(crate) const HELLO: usize = 8;
/// Bit of the version in an answer: the peer has evaluated our version.
pub(crate) const VERSION_SEEN: u8 = 1 << 7;
/// From this version on tagged messages may be announced before they are sent.
pub(crate) const RDM_VERSION: u8 = 1;

impl Hello {
    pub(crate) fn emit(&self) -> [u8; HELLO] {
        let mut b = [self.version, self.features, 0, 0, 0, 0, 0, 0];
        b[2..4].copy_from_slice(&self.port.to_be_bytes());
        b[4..].copy_from_slice(&self.pid.to_be_bytes());
        b
    }

    pub(crate) fn parse(b: &[u8]) -> Result<Hello, Malformed> {
        let b: &[u8; HELLO] = b.first_chunk().ok_or("it is no RDM endpoint")?;
        Ok(Hello {
            version: b[0],
            features: b[1],
            port: u16::from_be_bytes([b[2], b[3]]),
            pid: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_as_they_were_in_both_orders() {
        let iov = |n: u64| RmaIov {
            addr: n,
            len: 100 * n,
            key: !n,
        };
        let mut write = Head::new(XnetOp::Write, 300);
        write.iovs = Iovs::new(&[iov(1), iov(2)]).unwrap();
        let mut rts = Head::new(XnetOp::TaggedRts, 0);
        (rts.tag, rts.announced, rts.op_data) = (7, 1 << 40, 9);
        let tagged = Head {
            tag: 5,
            ..Head::new(XnetOp::Tagged, 3)
        };
        for plain in [write, rts, tagged, Head::new(XnetOp::Msg, 0)] {
            for cq_data in [None, Some(0x1234_5678_9abc)] {
                for order in [ByteOrder::Host, ByteOrder::Network] {
                    let flags = DELIVERY_COMPLETE | u16::from(cq_data.is_some());
                    let h = Head {
                        cq_data,
                        flags,
                        ..plain
                    };
                    let mut out = [0; HEAD_MAX];
                    let n = emit(&h, order, &mut out);
                    assert_eq!(head_len(out.first_chunk().unwrap()), Ok(n));
                    assert_eq!(parse(&out[..n], order), Ok(h));
                    assert!(parse(&out[..n - 1], order).is_err() || n == BASE);
                }
            }
        }
    }

    #[test]
    fn the_layout_is_that_of_the_c_library() {
        let mut out = [0; HEAD_MAX];
        let h = Head {
            tag: 0x11,
            cq_data: Some(0x22),
            ..Head::new(XnetOp::Tagged, 4)
        };
        assert_eq!(emit(&h, ByteOrder::Network, &mut out), 32);
        assert_eq!(out[..8], [3, 1, 0, 1, 0, 0, 32, 0]);
        assert_eq!(out[8..16], 36u64.to_be_bytes());
        assert_eq!(out[16..24], 0x22u64.to_be_bytes());
        assert_eq!(out[24..32], 0x11u64.to_be_bytes());
        let c = emit_control(ControlKind::Request, &[1, 2, 3]);
        assert_eq!((c.len(), &c[..4]), (35, &[3, 0, 0, 3][..]));
        let h = Hello {
            version: 1,
            features: 0,
            port: 0x1234,
            pid: 5,
        };
        assert_eq!(h.emit(), [1, 0, 0x12, 0x34, 0, 0, 0, 5]);
        assert_eq!(Hello::parse(&h.emit()), Ok(h));
    }

    #[test]
    fn hostile_headers_are_refused() {
        let mut out = [0; HEAD_MAX];
        let mut w = Head::new(XnetOp::Write, 10);
        w.iovs = Iovs::new(&[RmaIov::default()]).unwrap();
        let n = emit(&w, ByteOrder::Host, &mut out);
        assert!(parse(&out[..n], ByteOrder::Host).is_err());
        out[5] = 200;
        assert!(parse(&out[..n], ByteOrder::Host).is_err());
        let mut base = [0; BASE];
        assert!(head_len(&base).is_err());
        (base[0], base[6]) = (VERSION, 15);
        assert!(head_len(&base).is_err());
        base[6] = 255;
        assert!(head_len(&base).is_err());
        (base[1], base[6]) = (99, BASE as u8);
        assert!(parse(&base, ByteOrder::Host).is_err());
        let mut c = [0; CONTROL];
        assert!(parse_control(&c).is_err());
        (c[0], c[2]) = (VERSION, 0xff);
        assert!(parse_control(&c).is_err());
    }
}
