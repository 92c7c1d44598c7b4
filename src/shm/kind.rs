//! Kinds of records in a ring.

/// A packet of the EFA RDM protocol.
pub const PACKET: u8 = 1;
/// A whole message: its tag and data words, and its bytes.
pub const MESSAGE: u8 = 2;
/// What the sender has done to our memory: key, length, and the data of a write.
pub const RMA_EVENT: u8 = 3;
/// The beginning of a long message: its tag and data, length, address, and first bytes.
pub const RTS: u8 = 4;
/// Bytes of a long message that follow without being asked for.
pub const EAGER_FRAG: u8 = 5;
/// Bytes of a long message that its receiver has asked for.
pub const DATA: u8 = 6;
/// The receiver of a long message has a place for it, and asks for the rest.
pub const CTS: u8 = 7;
/// The receiver copies a long message itself, and the sender may help.
pub const SPLIT_COPY: u8 = 8;
/// The receiver has copied a long message, or could not.
pub const FIN: u8 = 9;
/// The sender has copied what there was to copy of a split copy.
pub const SPLIT_DONE: u8 = 10;

/// The initiator of a long access copies it itself, and the target may help.
pub const SPLIT_RMA: u8 = 11;

/// Flags of [`MESSAGE`] and [`RTS`]: which words precede the bytes, the tag before the data. An
/// access may carry data, too.
pub const TAGGED: u8 = 1;
pub const WITH_DATA: u8 = 2;

/// Bit of an access's kind, and of its record's flags.
pub const ACCESS: u8 = 0x80;
/// Kinds from here on are accesses, which hold the ring's lock ([`super::rma`]).
pub const WRITE: u8 = ACCESS | 0x20;
pub const READ: u8 = ACCESS | 0x21;
pub const ATOMIC: u8 = ACCESS | 0x22;
/// A message whose completion means that the peer has received it.
pub const CONFIRMED: u8 = ACCESS | 0x23;
