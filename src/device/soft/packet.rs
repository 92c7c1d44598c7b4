//! Datagrams of the software adapter: one UDP payload each.
//!
//! A base header of 32 bytes that every datagram has, an extension by kind, then payload. All
//! integers are little-endian. Parsing is total: any bytes give a packet or `None`.
//!
//! ```text
//!  0 magic u16   2 version u8   3 kind u8   4 qkey of receiver u32   8 qkey of sender u32
//! 12 flow u32   16 psn u32     20 una u32  24 acknowledged flow u32  28 cumulative ack u32
//! WRITE, WRITE_IMM  32 op u32  36 key u32  40 addr u64  48 total u32  52 imm u32
//! READ_REQ          32 id u32  36 key u32  40 addr u64  48 len u32    52 zero
//! READ_RESP         32 id u32  36 zero     40 offset u64
//! ACK               32 window bytes u32  36 window packets u16  38 words u8  39 errors u8
//!                   40 words x u64, errors x (psn u32, status u32)
//! ```

const MAGIC: u16 = 0x5efa;
const VERSION: u8 = 1;
/// Length of the base header.
pub const BASE: usize = 32;
/// Longest header including any extension.
pub const HEAD_MAX: usize = BASE + 8 + 8 * MAX_WORDS + 8 * MAX_ERRS;
/// Longest header of a packet that carries payload.
pub const DATA_HEAD: usize = BASE + 24;
/// Most 64-packet words in a selective acknowledgement.
pub const MAX_WORDS: usize = 16;
/// Most refused packets named in one acknowledgement.
pub const MAX_ERRS: usize = 16;

/// What the datagram is for, with the fields of its extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    Write {
        op: u32,
        key: u32,
        addr: u64,
        total: u32,
        imm: Option<u32>,
    },
    ReadReq {
        id: u32,
        key: u32,
        addr: u64,
        len: u32,
    },
    ReadResp {
        id: u32,
        off: u64,
    },
    Ack {
        bytes: u32,
        packets: u16,
        words: u8,
        errs: u8,
    },
    /// The receiver has no such queue pair or key: whoever sends there should give up.
    Reset,
    /// Nothing but a wish to be acknowledged.
    Ping,
}

/// The base header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub dst_qkey: u32,
    pub src_qkey: u32,
    /// Instance of the sender's stream to this receiver; grows when it starts anew.
    pub flow: u32,
    /// Packet sequence number within the flow.
    pub psn: u32,
    /// Lowest number the sender still waits for.
    pub una: u32,
    /// Flow of the opposite direction that `ack_cum` is about, 0 for none.
    pub ack_flow: u32,
    /// All numbers below have arrived.
    pub ack_cum: u32,
    pub kind: Kind,
}

impl Kind {
    fn code(&self) -> u8 {
        match self {
            Kind::Send => 1,
            Kind::Write { imm: None, .. } => 2,
            Kind::Write { imm: Some(_), .. } => 3,
            Kind::ReadReq { .. } => 4,
            Kind::ReadResp { .. } => 5,
            Kind::Ack { .. } => 6,
            Kind::Reset => 7,
            Kind::Ping => 8,
        }
    }

    /// Whether the packet has a sequence number and is acknowledged.
    pub fn reliable(&self) -> bool {
        !matches!(self, Kind::Ack { .. } | Kind::Reset)
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

impl Head {
    /// Writes the header and returns its length; `buf` holds [`HEAD_MAX`] bytes.
    /// Acknowledgement words and errors follow behind it and are the caller's to write.
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        put(buf, 0, MAGIC.to_le_bytes());
        put(buf, 2, [VERSION, self.kind.code()]);
        let words = [
            self.dst_qkey,
            self.src_qkey,
            self.flow,
            self.psn,
            self.una,
            self.ack_flow,
            self.ack_cum,
        ];
        for (i, w) in words.into_iter().enumerate() {
            put(buf, 4 + 4 * i, w.to_le_bytes());
        }
        match self.kind {
            Kind::Send | Kind::Reset | Kind::Ping => BASE,
            Kind::Write {
                op,
                key,
                addr,
                total,
                imm,
            } => {
                put(buf, 32, op.to_le_bytes());
                put(buf, 36, key.to_le_bytes());
                put(buf, 40, addr.to_le_bytes());
                put(buf, 48, total.to_le_bytes());
                put(buf, 52, imm.unwrap_or(0).to_le_bytes());
                BASE + 24
            }
            Kind::ReadReq { id, key, addr, len } => {
                put(buf, 32, id.to_le_bytes());
                put(buf, 36, key.to_le_bytes());
                put(buf, 40, addr.to_le_bytes());
                put(buf, 48, len.to_le_bytes());
                put(buf, 52, [0; 4]);
                BASE + 24
            }
            Kind::ReadResp { id, off } => {
                put(buf, 32, id.to_le_bytes());
                put(buf, 36, [0; 4]);
                put(buf, 40, off.to_le_bytes());
                BASE + 16
            }
            Kind::Ack {
                bytes,
                packets,
                words,
                errs,
            } => {
                put(buf, 32, bytes.to_le_bytes());
                put(buf, 36, packets.to_le_bytes());
                put(buf, 38, [words, errs]);
                BASE + 8
            }
        }
    }

    /// Reads a datagram: its header and what follows it.
    pub fn parse(buf: &[u8]) -> Option<(Head, &[u8])> {
        if get(buf, 0).map(u16::from_le_bytes)? != MAGIC || *buf.get(2)? != VERSION {
            return None;
        }
        let (kind, len) = match *buf.get(3)? {
            1 => (Kind::Send, BASE),
            c @ (2 | 3) => {
                let imm = u32_at(buf, 52)?;
                let k = Kind::Write {
                    op: u32_at(buf, 32)?,
                    key: u32_at(buf, 36)?,
                    addr: u64_at(buf, 40)?,
                    total: u32_at(buf, 48)?,
                    imm: (c == 3).then_some(imm),
                };
                (k, BASE + 24)
            }
            4 => {
                let k = Kind::ReadReq {
                    id: u32_at(buf, 32)?,
                    key: u32_at(buf, 36)?,
                    addr: u64_at(buf, 40)?,
                    len: u32_at(buf, 48)?,
                };
                (k, BASE + 24)
            }
            5 => (
                Kind::ReadResp {
                    id: u32_at(buf, 32)?,
                    off: u64_at(buf, 40)?,
                },
                BASE + 16,
            ),
            6 => {
                let (words, errs) = (*buf.get(38)?, *buf.get(39)?);
                if words as usize > MAX_WORDS || errs as usize > MAX_ERRS {
                    return None;
                }
                let packets = get(buf, 36).map(u16::from_le_bytes)?;
                (
                    Kind::Ack {
                        bytes: u32_at(buf, 32)?,
                        packets,
                        words,
                        errs,
                    },
                    BASE + 8,
                )
            }
            7 => (Kind::Reset, BASE),
            8 => (Kind::Ping, BASE),
            _ => return None,
        };
        let h = Head {
            dst_qkey: u32_at(buf, 4)?,
            src_qkey: u32_at(buf, 8)?,
            flow: u32_at(buf, 12)?,
            psn: u32_at(buf, 16)?,
            una: u32_at(buf, 20)?,
            ack_flow: u32_at(buf, 24)?,
            ack_cum: u32_at(buf, 28)?,
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
        let kinds = [
            Kind::Send,
            Kind::Write {
                op: 1,
                key: 2,
                addr: 3,
                total: 4,
                imm: None,
            },
            Kind::Write {
                op: 1,
                key: 2,
                addr: u64::MAX,
                total: 4,
                imm: Some(9),
            },
            Kind::ReadReq {
                id: 5,
                key: 6,
                addr: 7,
                len: 8,
            },
            Kind::ReadResp {
                id: 5,
                off: 1 << 40,
            },
            Kind::Ack {
                bytes: 1,
                packets: 2,
                words: 16,
                errs: 3,
            },
            Kind::Reset,
            Kind::Ping,
        ];
        for kind in kinds {
            let h = Head {
                dst_qkey: 1,
                src_qkey: 2,
                flow: 3,
                psn: 4,
                una: 5,
                ack_flow: 6,
                ack_cum: 7,
                kind,
            };
            let mut buf = vec![0u8; HEAD_MAX];
            let n = h.emit(&mut buf);
            buf.truncate(n);
            buf.extend(b"tail");
            assert_eq!(Head::parse(&buf), Some((h, &b"tail"[..])));
            for cut in 0..n {
                assert_eq!(Head::parse(&buf[..cut]), None, "{kind:?} cut at {cut}");
            }
        }
    }
}
