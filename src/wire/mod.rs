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

/// Packet types (protocol, table 1.2; `RUNTREAD_*` are of section 4.5). Suffix `RTM`, `RTW`, `RTR`
/// or `RTA` marks a request: to message, to write, to read, atomic; prefix `DC` one that is
/// acknowledged by a [`RECEIPT`](pkt::RECEIPT) once its data are in place (delivery complete).
pub mod pkt {
    /// The receiver has room for more bytes of a long-CTS transfer (clear to send).
    pub const CTS: u8 = 3;
    /// Bytes that a CTS has asked for.
    pub const CTSDATA: u8 = 4;
    /// The bytes of an emulated short read.
    pub const READRSP: u8 = 5;
    /// The receiver has read all of a long-read transfer (end of read).
    pub const EOR: u8 = 7;
    /// The result of an atomic.
    pub const ATOMRSP: u8 = 8;
    /// The features of an endpoint (section 2.1).
    pub const HANDSHAKE: u8 = 9;
    /// The data of a DC request are in place.
    pub const RECEIPT: u8 = 10;
    /// The receiver cannot read: the sender is to send by long-CTS (section 4.7).
    pub const READ_NACK: u8 = 11;
    /// The peer has given up a long transfer (section 4.10).
    pub const PEER_ERROR: u8 = 12;
    /// Requests have this number or a greater one.
    pub const REQ_FIRST: u8 = 64;

    /// A whole message in one packet.
    pub const EAGER_MSGRTM: u8 = 64;
    pub const EAGER_TAGRTM: u8 = 65;
    /// A part of a message of a few packets, all of them requests.
    pub const MEDIUM_MSGRTM: u8 = 66;
    pub const MEDIUM_TAGRTM: u8 = 67;
    /// The first bytes of a message whose rest waits for CTS.
    pub const LONGCTS_MSGRTM: u8 = 68;
    pub const LONGCTS_TAGRTM: u8 = 69;
    /// An emulated write in one packet.
    pub const EAGER_RTW: u8 = 70;
    /// The first bytes of an emulated write whose rest waits for CTS.
    pub const LONGCTS_RTW: u8 = 71;
    /// An emulated read that one READRSP answers.
    pub const SHORT_RTR: u8 = 72;
    /// An emulated read, with the CTS for its bytes.
    pub const LONGCTS_RTR: u8 = 73;
    /// An atomic without a result, with one, and with an operand to compare with.
    pub const WRITE_RTA: u8 = 74;
    pub const FETCH_RTA: u8 = 75;
    pub const COMPARE_RTA: u8 = 76;
    /// A message that the receiver fetches by RDMA read.
    pub const LONGREAD_MSGRTM: u8 = 128;
    pub const LONGREAD_TAGRTM: u8 = 129;
    /// An emulated write whose data the target fetches by RDMA read.
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

    /// A part of the first bytes of a message whose rest the receiver fetches by RDMA read.
    pub const RUNTREAD_MSGRTM: u8 = 145;
    pub const RUNTREAD_TAGRTM: u8 = 146;
}

/// Flags of the base header of a request (protocol, table 3.1).
pub mod req {
    /// The sender's raw address follows, until it has our handshake.
    pub const RAW_ADDR: u16 = 1;
    /// Data for the receiver's completion follow.
    pub const CQ_DATA: u16 = 2;
    /// A message, tagged if [`TAGGED`] is there as well.
    pub const MSG: u16 = 4;
    pub const TAGGED: u16 = 8;
    /// An emulated read or write.
    pub const RMA: u16 = 0x10;
    pub const ATOMIC: u16 = 0x20;
    /// The long-CTS request that answers a READ_NACK (section 4.7).
    pub const READ_NACK: u16 = 0x2000;
    /// The sender's connection id follows: the qkey of its raw address.
    pub const CONNID: u16 = 0x8000;
}

/// Flag of a CTS that answers a long emulated read.
pub const CTS_EMULATED_READ: u16 = 0x80;

/// Extra features and requests, bits of the handshake (protocol, table 2.1).
#[allow(dead_code)] // As many as the protocol has, whether or not they matter here.
pub mod extra {
    /// Messages and writes may be fetched by RDMA read (section 4.1).
    pub const RDMA_READ: u64 = 1;
    /// DC requests are understood (4.2).
    pub const DELIVERY_COMPLETE: u64 = 2;
    /// Asks for headers of a constant length (4.3).
    pub const CONSTANT_HEADER: u64 = 4;
    /// Asks for the connection id in each header (4.4).
    pub const CONNID_HEADER: u64 = 8;
    /// Runting reads are understood (4.5).
    pub const RUNT: u64 = 16;
    /// Writes may be done by RDMA write (4.6).
    pub const RDMA_WRITE: u64 = 32;
    /// READ_NACK is understood (4.7).
    pub const READ_NACK: u64 = 64;
    /// A queue pair of its own takes messages for posted receives: the zero-copy receive mode of
    /// older releases (4.8).
    pub const USER_RECV_QP: u64 = 128;
    /// Writes with immediate data take no posted receive (4.9).
    pub const UNSOLICITED_WRITE_RECV: u64 = 256;
    /// PEER_ERROR is understood (4.10).
    pub const PEER_ERROR: u64 = 512;
    /// Number of bits that this version of the protocol defines.
    pub const COUNT: u32 = 10;
}
