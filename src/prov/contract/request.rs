//! Requests: what an application asks an endpoint for, without C pointers.
//!
//! A request is borrowed from the caller for the length of the call. The `Fast*` requests are those
//! of calls without flags and with one buffer: a provider may carry them out by a short path.

use crate::core::iovs::Iovs;
use crate::hmem::{Owned, Piece, UserMem};
use crate::types::*;

/// Who posts a receive: an endpoint, or a shared receive context.
#[derive(Clone, Copy, Debug)]
pub enum Poster {
    /// An endpoint.
    Ep(u32),
    /// A shared receive context.
    Srx(u32),
}

/// Where an operation's data is.
#[derive(Clone, Copy)]
pub enum SendData<'a> {
    /// In application memory until the operation is done.
    User(UserMem),
    /// Copied before the call returns (FI_INJECT).
    Inject(&'a [u8]),
}

impl SendData<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            SendData::User(m) => m.len(),
            SendData::Inject(b) => b.len(),
        }
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Application memory until the operation is done: none when the data is copied.
    pub fn lent(&self) -> UserMem {
        match self {
            SendData::User(m) => *m,
            SendData::Inject(_) => UserMem::EMPTY,
        }
    }

    /// The bytes to copy, if they are to be copied.
    pub fn injected(&self) -> Option<&[u8]> {
        match self {
            SendData::Inject(b) => Some(b),
            SendData::User(_) => None,
        }
    }
}

/// What every request has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common {
    /// `context` of the call, for its completion.
    pub context: usize,
    /// Flags of a `*msg` call: FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, ...
    pub flags: Option<u64>,
    /// Default flags where the call has none: those of an alias in place of the endpoint's.
    pub alias: Option<u64>,
    /// A counter that counts its end, beside the endpoint's (FI_QUEUE_WORK).
    pub completion_cntr: Option<u32>,
}

impl Common {
    /// What holds: the call's own flags, or the defaults of the alias or of the endpoint.
    pub fn flags_or(&self, default: u64) -> u64 {
        self.flags.or(self.alias).unwrap_or(default)
    }

    /// Whether the operation goes out at once: only a call with flags of its own can say FI_MORE.
    pub fn rings(&self) -> bool {
        self.flags.is_none_or(|f| f & FI_MORE == 0)
    }

    /// Whether success reports nothing: injecting calls without flags do not.
    pub fn silent(&self, data: &SendData) -> bool {
        self.flags.is_none() && data.injected().is_some()
    }
}

/// A send, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct MsgReq<'a> {
    /// What to send.
    pub data: SendData<'a>,
    /// The receiver.
    pub to: fi_addr_t,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// Context, flags and the counter that hears of its end.
    pub common: Common,
}

/// A receive, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct RecvReq {
    /// Where the message goes.
    pub mem: UserMem,
    /// The sender, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// Tag and the bits of it that do not matter.
    pub tag: Option<(u64, u64)>,
    /// Context, flags and the counter that hears of its end.
    pub common: Common,
}

/// A read or write of remote memory.
#[derive(Clone, Copy)]
pub struct RmaReq<'a> {
    /// Local memory, or data to write.
    pub data: SendData<'a>,
    /// Whose memory.
    pub peer: fi_addr_t,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub key: u64,
    /// A write, else a read.
    pub write: bool,
    /// Data for the target's completion.
    pub cq_data: Option<u64>,
    /// Context, flags and the counter that hears of its end.
    pub common: Common,
}

/// What an atomic brings back, and where.
#[derive(Clone, Copy)]
pub enum Fetch {
    /// Nothing.
    No,
    /// The former values.
    Former(UserMem),
    /// The former values; the second are values to compare with.
    Compare(UserMem, UserMem),
}

/// An atomic on remote memory.
#[derive(Clone, Copy)]
pub struct AtomicReq<'a> {
    /// Operands.
    pub data: SendData<'a>,
    /// What comes back.
    pub fetch: Fetch,
    /// Whose memory.
    pub peer: fi_addr_t,
    /// Remote memory.
    pub to: Iovs,
    /// Type of the elements.
    pub datatype: fi_datatype,
    /// What is done to them.
    pub op: fi_op,
    /// Context, flags and the counter that hears of its end.
    pub common: Common,
}

/// A send without flags of its own.
#[derive(Clone, Copy, Debug)]
pub struct FastSend {
    /// What to send.
    pub data: Piece,
    /// The receiver.
    pub to: fi_addr_t,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// `None`: an injecting call, which reports no success.
    pub context: Option<usize>,
}

/// A receive without flags of its own.
#[derive(Clone, Copy, Debug)]
pub struct FastRecv {
    /// Where the message goes.
    pub into: Piece,
    /// The sender, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// Tag and the bits of it that do not matter.
    pub tag: Option<(u64, u64)>,
    /// Of its completion.
    pub context: usize,
}

impl From<&FastRecv> for RecvReq {
    fn from(r: &FastRecv) -> RecvReq {
        RecvReq {
            mem: r.into.into(),
            src: r.src,
            tag: r.tag,
            common: Common {
                context: r.context,
                ..Common::default()
            },
        }
    }
}

/// A read or write without flags of its own.
#[derive(Clone, Copy, Debug)]
pub struct FastRma {
    /// Local memory.
    pub mem: Piece,
    /// Whose memory.
    pub peer: fi_addr_t,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub key: u64,
    /// A write, else a read.
    pub write: bool,
    /// Data for the target's completion.
    pub cq_data: Option<u64>,
    /// `None`: an injecting call, which reports no success.
    pub context: Option<usize>,
}

/// An atomic without flags of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastAtomic {
    /// Operands, nothing when it only reads.
    pub data: Piece,
    /// Values to compare with.
    pub compare: Option<Piece>,
    /// Where former values go.
    pub result: Option<Piece>,
    /// Whose memory.
    pub peer: fi_addr_t,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub key: u64,
    /// Type of the elements.
    pub datatype: fi_datatype,
    /// What is done to them.
    pub op: fi_op,
    /// Bytes of remote memory.
    pub len: usize,
    /// `None`: an injecting call, which reports no success.
    pub context: Option<usize>,
}

/// A collective operation as it was called.
pub struct CollReq {
    /// Which operation.
    pub what: fi_collective_op,
    /// The members.
    pub group: fi_addr_t,
    /// Member that has or gets the data, where there is one.
    pub root: fi_addr_t,
    /// Elements: of the whole array, or for each member where members have different ones.
    pub count: usize,
    /// Type of the elements.
    pub datatype: fi_datatype,
    /// How they are combined.
    pub op: fi_op,
    /// Context, flags and the counter that hears of its end.
    pub common: Common,
}

/// Bytes a call reads and writes at this member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Of the input.
    pub input: usize,
    /// Of the result.
    pub result: usize,
}

/// Makes scratch memory of so many bytes; it is kept until nothing uses it.
pub type Alloc<'a> = &'a dyn Fn(usize) -> Owned;
