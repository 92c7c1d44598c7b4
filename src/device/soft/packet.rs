//! Datagrams of the software adapter: one UDP payload each.
//!
//! A base header of 48 bytes that every datagram has, an extension by kind, then payload. All
//! integers are little-endian. Parsing is total: any bytes give a packet or `None`.
//!
//! ```text
//!  0 magic u16  2 version u8  3 kind u8 (0x80: `ack` valid)  4 session u32
//!  8 dst u64: token that the receiver gave the sender    16 src u64: token for the other direction
//! 24 psn u32   28 una u32   32 ack u32 (all below have arrived)   36 qkey of sender u32
//! 40 verification tag of the receiver u32   44 verification tag of the sender u32
//! WRITE, WRITE_IMM  48 op u32  52 total u32  56 key u64  64 addr u64  72 imm u32  76 zero
//! READ_REQ          48 id u64  56 key u64    64 addr u64 72 len u32   76 zero
//! READ_RESP         48 id u64  56 offset u64  64 zero
//! SEND_PART         48 op u32  52 total u32  56 offset u32  60 zero
//! ACK, BYE          48 window bytes u32  52 window packets u16  54 words u8  55 errors u8
//!                   56 words x u64, errors x (psn u32, status u32)
//! HELLO             dst: token of the receiver's address, its qkey in place of the tag; session 0
//! WELCOME           dst: as src of the HELLO; src: token from now on; session: its number
//! RESET             dst: as src of the refused datagram
//! ```
//!
//! Packets of what takes several have headers of one length, so that full ones are of one length.
//!
//! A verification tag is a random number that a queue pair gives its peers. Security does not
//! depend on the tag: the kernel uses it to drop datagrams of unknown senders (`sock`), at the cost
//! of those senders.
//!
//! No answer to a HELLO or to an unknown sender is longer than what it answers.

/// First bytes of every datagram.
pub const MAGIC: u16 = 0x5efa;
/// Byte offsets of the kind, of the receiver's token and of its verification tag.
pub const KIND_AT: usize = 3;
pub const DST_AT: usize = 8;
pub const VTAG_AT: usize = 40;
/// Code of [`PacketKind::Hello`].
pub const HELLO: u8 = 9;
/// Version of the format; others are not understood.
pub const VERSION: u8 = 4;
/// Bit of the kind: the cumulative acknowledgement is valid.
const HAS_ACK: u8 = 0x80;
/// Length of the base header.
pub const BASE: usize = 48;
/// Longest header including any extension.
pub const HEAD_MAX: usize = BASE + 8 + 8 * MAX_WORDS + 8 * MAX_ERRS;
/// Longest header of a packet that carries payload.
pub const DATA_HEAD: usize = BASE + 32;
/// Most 64-packet words in a selective acknowledgement.
pub const MAX_WORDS: usize = 16;
/// Most refused packets named in one acknowledgement.
pub const MAX_ERRS: usize = 16;

/// The version of a datagram in another version of the format.
pub fn other_version(bytes: &[u8]) -> Option<u8> {
    let version = *bytes.strip_prefix(&MAGIC.to_le_bytes())?.first()?;
    (version != VERSION).then_some(version)
}

/// What the datagram is for, with the fields of its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    Send,
    /// Bytes of a message of `total`, from `off` on. `op` is of one message at a time.
    SendPart {
        op: u32,
        total: u32,
        off: u32,
    },
    Write {
        op: u32,
        key: u64,
        addr: u64,
        total: u32,
        imm: Option<u32>,
    },
    ReadReq {
        id: u64,
        key: u64,
        addr: u64,
        len: u32,
    },
    ReadResp {
        id: u64,
        off: u64,
    },
    Ack {
        bytes: u32,
        packets: u16,
        words: u8,
        errs: u8,
        /// The sender closes the session (BYE); this is its last datagram.
        bye: bool,
    },
    /// The receiver has no such session, queue pair or token.
    Reset,
    /// Carries no data; asks for an acknowledgement.
    Ping,
    /// Asks for a session.
    Hello,
    /// Answers HELLO: gives its sender a token, which only a reachable sender can present.
    Welcome,
}

/// The base header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHead {
    pub session: u32,
    pub dst: u64,
    pub src: u64,
    /// Packet sequence number within the session and direction.
    pub psn: u32,
    /// Lowest number the sender still waits for.
    pub una: u32,
    /// All numbers of the opposite direction below this one have arrived.
    pub ack: Option<u32>,
    pub src_qkey: u32,
    /// Verification tags of the receiver and of the sender.
    pub to_vtag: u32,
    pub vtag: u32,
    pub kind: PacketKind,
}

impl PacketKind {
    fn code(&self) -> u8 {
        match self {
            PacketKind::Send => 1,
            PacketKind::Write { imm: None, .. } => 2,
            PacketKind::Write { imm: Some(_), .. } => 3,
            PacketKind::ReadReq { .. } => 4,
            PacketKind::ReadResp { .. } => 5,
            PacketKind::Ack { bye: false, .. } => 6,
            PacketKind::Reset => 7,
            PacketKind::Ping => 8,
            PacketKind::Hello => HELLO,
            PacketKind::Welcome => 10,
            PacketKind::Ack { bye: true, .. } => 11,
            PacketKind::SendPart { .. } => 12,
        }
    }

    /// Whether the packet has a sequence number and is acknowledged.
    pub fn reliable(&self) -> bool {
        !matches!(
            self,
            PacketKind::Ack { .. } | PacketKind::Reset | PacketKind::Hello | PacketKind::Welcome
        )
    }
}

fn put<const N: usize>(buf: &mut [u8], at: usize, v: [u8; N]) {
    if let Some(to) = buf.get_mut(at..at + N) {
        to.copy_from_slice(&v);
    }
}

fn get<const N: usize>(buf: &[u8], at: usize) -> Option<[u8; N]> {
    buf.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Little-endian `u32` at byte `at`.
pub fn u32_at(buf: &[u8], at: usize) -> Option<u32> {
    get(buf, at).map(u32::from_le_bytes)
}

/// Little-endian `u64` at byte `at`.
pub fn u64_at(buf: &[u8], at: usize) -> Option<u64> {
    get(buf, at).map(u64::from_le_bytes)
}

impl PacketHead {
    /// Writes the header and returns its length; `buf` holds [`HEAD_MAX`] bytes.
    /// Acknowledgement words and errors follow behind it and are the caller's to write.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let ack = if self.ack.is_some() { HAS_ACK } else { 0 };
        put(buf, 0, MAGIC.to_le_bytes());
        put(buf, 2, [VERSION, self.kind.code() | ack]);
        put(buf, 4, self.session.to_le_bytes());
        put(buf, 8, self.dst.to_le_bytes());
        put(buf, 16, self.src.to_le_bytes());
        put(buf, 24, self.psn.to_le_bytes());
        put(buf, 28, self.una.to_le_bytes());
        put(buf, 32, self.ack.unwrap_or(0).to_le_bytes());
        put(buf, 36, self.src_qkey.to_le_bytes());
        put(buf, VTAG_AT, self.to_vtag.to_le_bytes());
        put(buf, VTAG_AT + 4, self.vtag.to_le_bytes());
        match self.kind {
            PacketKind::Send
            | PacketKind::Reset
            | PacketKind::Ping
            | PacketKind::Hello
            | PacketKind::Welcome => BASE,
            PacketKind::Write {
                op,
                key,
                addr,
                total,
                imm,
            } => {
                put(buf, BASE, op.to_le_bytes());
                put(buf, BASE + 4, total.to_le_bytes());
                put(buf, BASE + 8, key.to_le_bytes());
                put(buf, BASE + 16, addr.to_le_bytes());
                put(buf, BASE + 24, imm.unwrap_or(0).to_le_bytes());
                put(buf, BASE + 28, [0; 4]);
                DATA_HEAD
            }
            PacketKind::ReadReq { id, key, addr, len } => {
                put(buf, BASE, id.to_le_bytes());
                put(buf, BASE + 8, key.to_le_bytes());
                put(buf, BASE + 16, addr.to_le_bytes());
                put(buf, BASE + 24, len.to_le_bytes());
                put(buf, BASE + 28, [0; 4]);
                DATA_HEAD
            }
            PacketKind::ReadResp { id, off } => {
                put(buf, BASE, id.to_le_bytes());
                put(buf, BASE + 8, off.to_le_bytes());
                put(buf, BASE + 16, [0; 16]);
                DATA_HEAD
            }
            PacketKind::SendPart { op, total, off } => {
                put(buf, BASE, op.to_le_bytes());
                put(buf, BASE + 4, total.to_le_bytes());
                put(buf, BASE + 8, off.to_le_bytes());
                put(buf, BASE + 12, [0; 20]);
                DATA_HEAD
            }
            PacketKind::Ack {
                bytes,
                packets,
                words,
                errs,
                ..
            } => {
                put(buf, BASE, bytes.to_le_bytes());
                put(buf, BASE + 4, packets.to_le_bytes());
                put(buf, BASE + 6, [words, errs]);
                BASE + 8
            }
        }
    }

    /// Reads a datagram: its header and what follows it.
    pub fn parse(buf: &[u8]) -> Option<(PacketHead, &[u8])> {
        if get(buf, 0).map(u16::from_le_bytes)? != MAGIC || *buf.get(2)? != VERSION {
            return None;
        }
        let code = *buf.get(3)?;
        let (kind, len) = match code & !HAS_ACK {
            1 => (PacketKind::Send, BASE),
            c @ (2 | 3) => {
                let imm = u32_at(buf, BASE + 24)?;
                let k = PacketKind::Write {
                    op: u32_at(buf, BASE)?,
                    total: u32_at(buf, BASE + 4)?,
                    key: u64_at(buf, BASE + 8)?,
                    addr: u64_at(buf, BASE + 16)?,
                    imm: (c == 3).then_some(imm),
                };
                (k, DATA_HEAD)
            }
            4 => {
                let k = PacketKind::ReadReq {
                    id: u64_at(buf, BASE)?,
                    key: u64_at(buf, BASE + 8)?,
                    addr: u64_at(buf, BASE + 16)?,
                    len: u32_at(buf, BASE + 24)?,
                };
                (k, DATA_HEAD)
            }
            5 => (
                PacketKind::ReadResp {
                    id: u64_at(buf, BASE)?,
                    off: u64_at(buf, BASE + 8)?,
                },
                DATA_HEAD,
            ),
            12 => (
                PacketKind::SendPart {
                    op: u32_at(buf, BASE)?,
                    total: u32_at(buf, BASE + 4)?,
                    off: u32_at(buf, BASE + 8)?,
                },
                DATA_HEAD,
            ),
            c @ (6 | 11) => {
                let (words, errs) = (*buf.get(BASE + 6)?, *buf.get(BASE + 7)?);
                if words as usize > MAX_WORDS || errs as usize > MAX_ERRS {
                    return None;
                }
                let k = PacketKind::Ack {
                    bytes: u32_at(buf, BASE)?,
                    packets: get(buf, BASE + 4).map(u16::from_le_bytes)?,
                    words,
                    errs,
                    bye: c == 11,
                };
                (k, BASE + 8)
            }
            7 => (PacketKind::Reset, BASE),
            8 => (PacketKind::Ping, BASE),
            HELLO => (PacketKind::Hello, BASE),
            10 => (PacketKind::Welcome, BASE),
            _ => return None,
        };
        let ack = u32_at(buf, 32)?;
        let h = PacketHead {
            session: u32_at(buf, 4)?,
            dst: u64_at(buf, 8)?,
            src: u64_at(buf, 16)?,
            psn: u32_at(buf, 24)?,
            una: u32_at(buf, 28)?,
            ack: (code & HAS_ACK != 0).then_some(ack),
            src_qkey: u32_at(buf, 36)?,
            to_vtag: u32_at(buf, VTAG_AT)?,
            vtag: u32_at(buf, VTAG_AT + 4)?,
            kind,
        };
        Some((h, buf.get(len..)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_parsed() {
        let write = |imm| PacketKind::Write {
            op: 1,
            key: 2 << 40,
            addr: u64::MAX,
            total: 4,
            imm,
        };
        let ack = |bye| PacketKind::Ack {
            bytes: 1,
            packets: 2,
            words: 16,
            errs: 3,
            bye,
        };
        let kinds = [
            PacketKind::Send,
            write(None),
            write(Some(9)),
            PacketKind::ReadReq {
                id: 5 << 33,
                key: 6,
                addr: 7,
                len: 8,
            },
            PacketKind::ReadResp {
                id: 5,
                off: 1 << 40,
            },
            PacketKind::SendPart {
                op: 6,
                total: 1 << 20,
                off: 1 << 16,
            },
            ack(false),
            ack(true),
            PacketKind::Reset,
            PacketKind::Ping,
            PacketKind::Hello,
            PacketKind::Welcome,
        ];
        for (kind, ack) in kinds.into_iter().flat_map(|k| [(k, None), (k, Some(7))]) {
            let h = PacketHead {
                session: 1,
                dst: 2 << 50,
                src: 3 << 50,
                psn: 4,
                una: 5,
                ack,
                src_qkey: 6,
                to_vtag: 7,
                vtag: 8,
                kind,
            };
            let mut buf = vec![0u8; HEAD_MAX];
            let n = h.emit(&mut buf);
            buf.truncate(n);
            buf.extend(b"tail");
            assert_eq!(PacketHead::parse(&buf), Some((h, &b"tail"[..])));
            for cut in 0..n {
                assert_eq!(
                    PacketHead::parse(&buf[..cut]),
                    None,
                    "{kind:?} cut at {cut}"
                );
            }
        }
    }
}
