//! Packet headers of the EFA RDM wire protocol, version 4: parsed and emitted, nothing more.
//!
//! A [`Repr`] is a packet's header as a Rust value. `parse` reads the header from untrusted bytes
//! and returns it with the payload behind it; `emit` writes the header in front of a payload. Both
//! are total: no input makes them panic. All integers are little-endian. Field names are those of
//! the protocol document (`efa_rdm_protocol_v4.md` of libfabric), chapters 2 to 4.
#![forbid(unsafe_code)]

mod eager;
mod fields;
mod handshake;
mod repr;
mod request;
mod sender;

pub use eager::{Eager, EAGER_MAX};
pub use handshake::Handshake;
pub use repr::{Repr, REF_OPERATION, REF_SKIP};
pub use request::{Iovs, Opt, RmaIov, Rta, RtaKind, Rtm, RtmKind, Rtr, Rtw, RtwKind, MAX_IOV};
pub use sender::{carries_raw_addr, sender};

/// Version every base header carries.
pub const VERSION: u8 = 4;
/// Upper bound of a header's length: a tagged runting read's 48 bytes, every optional header, and
/// the longest `rma_iov` and `read_iov`.
pub const HEADER_MAX: usize = 48 + 4 + RAW_ADDR_LEN + 8 + 4 + 24 * MAX_IOV + 24 * MAX_IOV;
/// Length of a raw address.
pub const RAW_ADDR_LEN: usize = 32;

/// Packet types (protocol, table 1.3 and 3.x).
pub mod pkt {
    pub const CTS: u8 = 3;
    pub const CTSDATA: u8 = 4;
    pub const READRSP: u8 = 5;
    pub const EOR: u8 = 7;
    pub const ATOMRSP: u8 = 8;
    pub const HANDSHAKE: u8 = 9;
    pub const RECEIPT: u8 = 10;
    pub const READ_NACK: u8 = 11;
    pub const PEER_ERROR: u8 = 12;
    /// Requests have this number or a greater one.
    pub const REQ_FIRST: u8 = 64;
    pub const EAGER_MSGRTM: u8 = 64;
    pub const EAGER_TAGRTM: u8 = 65;
    pub const MEDIUM_MSGRTM: u8 = 66;
    pub const MEDIUM_TAGRTM: u8 = 67;
    pub const LONGCTS_MSGRTM: u8 = 68;
    pub const LONGCTS_TAGRTM: u8 = 69;
    pub const EAGER_RTW: u8 = 70;
    pub const LONGCTS_RTW: u8 = 71;
    pub const SHORT_RTR: u8 = 72;
    pub const LONGCTS_RTR: u8 = 73;
    pub const WRITE_RTA: u8 = 74;
    pub const FETCH_RTA: u8 = 75;
    pub const COMPARE_RTA: u8 = 76;
    pub const LONGREAD_MSGRTM: u8 = 128;
    pub const LONGREAD_TAGRTM: u8 = 129;
    pub const LONGREAD_RTW: u8 = 130;
    pub const DC_EAGER_MSGRTM: u8 = 133;
    pub const DC_EAGER_TAGRTM: u8 = 134;
    pub const DC_MEDIUM_MSGRTM: u8 = 135;
    pub const DC_MEDIUM_TAGRTM: u8 = 136;
    pub const DC_LONGCTS_MSGRTM: u8 = 137;
    pub const DC_LONGCTS_TAGRTM: u8 = 138;
    pub const DC_EAGER_RTW: u8 = 139;
    pub const DC_LONGCTS_RTW: u8 = 140;
    pub const DC_WRITE_RTA: u8 = 141;
    pub const RUNTREAD_MSGRTM: u8 = 145;
    pub const RUNTREAD_TAGRTM: u8 = 146;
}

/// Flags of the base header of a request (REQ) packet.
pub mod req {
    pub const RAW_ADDR: u16 = 1;
    pub const CQ_DATA: u16 = 2;
    pub const MSG: u16 = 4;
    pub const TAGGED: u16 = 8;
    pub const RMA: u16 = 0x10;
    pub const ATOMIC: u16 = 0x20;
    pub const READ_NACK: u16 = 0x2000;
    pub const CONNID: u16 = 0x8000;
}

/// Flag of a CTS that answers a long emulated read.
pub const CTS_EMULATED_READ: u16 = 0x80;

/// Extra features and requests, bits of the handshake.
#[allow(dead_code)] // As many as the protocol has, whether or not they matter here.
pub mod extra {
    pub const RDMA_READ: u64 = 1;
    pub const DELIVERY_COMPLETE: u64 = 2;
    pub const CONSTANT_HEADER: u64 = 4;
    pub const CONNID_HEADER: u64 = 8;
    pub const RUNT: u64 = 16;
    pub const RDMA_WRITE: u64 = 32;
    pub const READ_NACK: u64 = 64;
    pub const USER_RECV_QP: u64 = 128;
    pub const UNSOLICITED_WRITE_RECV: u64 = 256;
    pub const PEER_ERROR: u64 = 512;
    /// Number of bits that this version of the protocol defines.
    pub const COUNT: u32 = 10;
}
