//! Requests: what an application asks an endpoint for, without C pointers.
//!
//! A request is borrowed from the caller for the length of the call. The kinds of its buffers and
//! flags are type parameters: for calls with one buffer of host memory ([`Piece`] or [`InjectBuf`])
//! and without flags ([`PlainCall`]) or with flags of their own ([`FlaggedCall`]) a provider is
//! compiled with that knowledge; [`SendData`] and [`Common`] stand for any call.

use crate::core::iovs::{Iovs, RmaIov};
use crate::core::Result;
use crate::hmem::{InjectBuf, Owned, Piece, UserMem};
use crate::types::*;
use core::ffi::c_void;

/// Poster of a receive: an endpoint, or a shared receive context.
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
    Inject(InjectBuf<'a>),
}

/// Data of a request to send or write.
pub trait SendBuffer: Copy {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the caller gets its memory back when the call returns.
    fn injected(&self) -> bool;
    /// The one piece of host memory it is.
    fn piece(&self) -> Option<Piece>;
    /// The general form of the data.
    fn data(&self) -> SendData<'_>;
}

impl SendBuffer for Piece {
    #[inline(always)]
    fn len(&self) -> usize {
        Piece::len(self)
    }
    #[inline(always)]
    fn injected(&self) -> bool {
        false
    }
    #[inline(always)]
    fn piece(&self) -> Option<Piece> {
        Some(*self)
    }
    fn data(&self) -> SendData<'_> {
        SendData::User((*self).into())
    }
}

impl SendBuffer for InjectBuf<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.piece().len()
    }
    #[inline(always)]
    fn injected(&self) -> bool {
        true
    }
    #[inline(always)]
    fn piece(&self) -> Option<Piece> {
        Some(InjectBuf::piece(self))
    }
    fn data(&self) -> SendData<'_> {
        SendData::Inject(*self)
    }
}

impl SendBuffer for SendData<'_> {
    #[inline]
    fn len(&self) -> usize {
        match self {
            SendData::User(m) => m.len(),
            SendData::Inject(b) => SendBuffer::len(b),
        }
    }
    #[inline]
    fn injected(&self) -> bool {
        matches!(self, SendData::Inject(_))
    }
    #[inline]
    fn piece(&self) -> Option<Piece> {
        match self {
            SendData::User(m) => m.one(),
            SendData::Inject(b) => Some(b.piece()),
        }
    }
    fn data(&self) -> SendData<'_> {
        *self
    }
}

impl<'a> SendData<'a> {
    /// Application memory until the operation is done: none when the data is copied.
    pub fn lent(&self) -> UserMem {
        match self {
            SendData::User(m) => *m,
            SendData::Inject(_) => UserMem::EMPTY,
        }
    }

    /// The bytes to copy, if they are to be copied.
    pub fn inject_bytes(&self) -> Option<&'a [u8]> {
        match self {
            SendData::Inject(b) => Some(b.bytes()),
            SendData::User(_) => None,
        }
    }
}

/// Memory that an operation fills.
pub trait RecvBuffer: Copy {
    /// The one piece of host memory it is.
    fn piece(&self) -> Option<Piece>;
    /// The general form of the memory.
    fn mem(&self) -> UserMem;
}

impl RecvBuffer for Piece {
    #[inline(always)]
    fn piece(&self) -> Option<Piece> {
        Some(*self)
    }
    fn mem(&self) -> UserMem {
        (*self).into()
    }
}

impl RecvBuffer for UserMem {
    #[inline]
    fn piece(&self) -> Option<Piece> {
        self.one()
    }
    fn mem(&self) -> UserMem {
        *self
    }
}

/// Memory of a peer that an atomic works on.
pub trait AtomicMemory: Copy {
    /// The one piece it is.
    fn one(&self) -> Option<RmaIov>;
    /// As any number of pieces.
    fn iovs(&self) -> Iovs;
}

impl AtomicMemory for RmaIov {
    #[inline(always)]
    fn one(&self) -> Option<RmaIov> {
        Some(*self)
    }
    fn iovs(&self) -> Iovs {
        Iovs::new(&[*self]).unwrap_or_default()
    }
}

impl AtomicMemory for Iovs {
    fn one(&self) -> Option<RmaIov> {
        match self.as_slice() {
            [one] => Some(*one),
            _ => None,
        }
    }
    fn iovs(&self) -> Iovs {
        *self
    }
}

/// How an operation was called: context and flags.
pub trait Call: Copy {
    /// Whether every such call is without flags, of an endpoint that is no alias.
    const PLAIN: bool;

    /// `context` of the call, for its completion.
    fn context(&self) -> usize;
    /// Flags of a `*msg` call: FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, ...
    fn flags(&self) -> Option<u64>;
    /// The general form of the call.
    fn common(&self) -> Common;

    /// Whether the operation goes out at once: only a call with flags of its own can say FI_MORE.
    #[inline(always)]
    fn rings(&self) -> bool {
        self.flags().is_none_or(|f| f & FI_MORE == 0)
    }
    /// The flags in effect: the call's own, or the defaults of the alias or of the endpoint.
    fn flags_or(&self, default: u64) -> u64;
    /// Whether it is deferred work, whose end [`WorkEnd`] describes.
    #[inline(always)]
    fn is_work(&self) -> bool {
        false
    }
    /// Whether success is unsignaled, as for inject calls without flags.
    #[inline(always)]
    fn unsignaled(&self, injected: bool) -> bool {
        self.flags().is_none() && injected
    }
}

/// Whether flags of FI_GETOPSFLAG or FI_SETOPSFLAG name receives (FI_RECV) or sends (FI_TRANSMIT).
/// `FI_EINVAL` for both or neither.
pub fn names_receives(flags: u64) -> Result<bool> {
    match flags & (FI_TRANSMIT | FI_RECV) {
        FI_TRANSMIT => Ok(false),
        FI_RECV => Ok(true),
        _ => Err(FI_EINVAL),
    }
}

/// A call without flags, of an endpoint that is no alias.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainCall {
    /// `context` of the call, for its completion.
    pub context: usize,
}

impl Call for PlainCall {
    const PLAIN: bool = true;

    #[inline(always)]
    fn context(&self) -> usize {
        self.context
    }
    #[inline(always)]
    fn flags(&self) -> Option<u64> {
        None
    }
    #[inline(always)]
    fn flags_or(&self, default: u64) -> u64 {
        default
    }
    fn common(&self) -> Common {
        Common {
            context: self.context,
            ..Common::default()
        }
    }
}

/// A `*msg` call, which has flags of its own: the defaults of an alias or of the endpoint do not
/// matter. Not with FI_TRIGGER.
#[derive(Clone, Copy, Debug)]
pub struct FlaggedCall {
    /// `context` of the call, for its completion.
    pub context: usize,
    /// FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, ...
    pub flags: u64,
}

impl FlaggedCall {
    /// A call with this `context` and these flags.
    #[inline(always)]
    pub fn new(context: *mut c_void, flags: u64) -> FlaggedCall {
        let context = context as usize;
        FlaggedCall { context, flags }
    }
}

impl Call for FlaggedCall {
    const PLAIN: bool = false;

    #[inline(always)]
    fn context(&self) -> usize {
        self.context
    }
    #[inline(always)]
    fn flags(&self) -> Option<u64> {
        Some(self.flags)
    }
    #[inline(always)]
    fn flags_or(&self, _: u64) -> u64 {
        self.flags
    }
    fn common(&self) -> Common {
        Common {
            context: self.context,
            flags: Some(self.flags),
            ..Common::default()
        }
    }
}

/// How any operation was called.
#[derive(Clone, Copy, Debug, Default)]
pub struct Common {
    /// `context` of the call, for its completion.
    pub context: usize,
    /// Flags of a `*msg` call: FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_MORE, ...
    pub flags: Option<u64>,
    /// Default flags where the call has none: those of an alias in place of the endpoint's.
    pub alias: Option<u64>,
    /// Of deferred work, what counts its end.
    pub work: Option<WorkEnd>,
}

/// How deferred work (FI_QUEUE_WORK) ends: the endpoint's counters do not count it, nor does its
/// completion queue get an entry, unless the work has FI_COMPLETION (fi_trigger(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkEnd {
    /// The counter that counts it, if any.
    pub cntr: Option<u32>,
}

impl Call for Common {
    const PLAIN: bool = false;

    #[inline]
    fn context(&self) -> usize {
        self.context
    }
    #[inline]
    fn flags(&self) -> Option<u64> {
        self.flags
    }
    #[inline]
    fn flags_or(&self, default: u64) -> u64 {
        self.flags.or(self.alias).unwrap_or(default)
    }
    #[inline]
    fn is_work(&self) -> bool {
        self.work.is_some()
    }
    fn common(&self) -> Common {
        *self
    }
}

/// A send, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct MsgReq<D, C = Common> {
    /// What to send.
    pub data: D,
    /// The receiver.
    pub to: fi_addr_t,
    /// Tag of a tagged message.
    pub tag: Option<u64>,
    /// Data for the receiver's completion.
    pub cq_data: Option<u64>,
    /// Context and flags.
    pub common: C,
}

impl<D: SendBuffer, C: Call> MsgReq<D, C> {
    /// The general form of the request.
    pub fn to_general(&self) -> MsgReq<SendData<'_>> {
        MsgReq {
            data: self.data.data(),
            to: self.to,
            tag: self.tag,
            cq_data: self.cq_data,
            common: self.common.common(),
        }
    }
}

/// A receive, tagged when `tag` is there.
#[derive(Clone, Copy)]
pub struct RecvReq<M = UserMem, C = Common> {
    /// Where the message goes.
    pub mem: M,
    /// The sender, FI_ADDR_UNSPEC for any.
    pub src: fi_addr_t,
    /// Tag and ignore mask.
    pub tag: Option<(u64, u64)>,
    /// Context and flags.
    pub common: C,
}

impl<M: RecvBuffer, C: Call> RecvReq<M, C> {
    /// The general form of the request.
    pub fn to_general(&self) -> RecvReq {
        RecvReq {
            mem: self.mem.mem(),
            src: self.src,
            tag: self.tag,
            common: self.common.common(),
        }
    }
}

/// A read or write of remote memory.
#[derive(Clone, Copy)]
pub struct RmaReq<D, C = Common> {
    /// Local memory, or data to write.
    pub data: D,
    /// The peer whose memory is accessed.
    pub peer: fi_addr_t,
    /// Remote address.
    pub addr: u64,
    /// Remote key.
    pub key: u64,
    /// A write, else a read.
    pub write: bool,
    /// Data for the target's completion.
    pub cq_data: Option<u64>,
    /// Context and flags.
    pub common: C,
}

impl<D: SendBuffer, C: Call> RmaReq<D, C> {
    /// The general form of the request.
    pub fn to_general(&self) -> RmaReq<SendData<'_>> {
        RmaReq {
            data: self.data.data(),
            peer: self.peer,
            addr: self.addr,
            key: self.key,
            write: self.write,
            cq_data: self.cq_data,
            common: self.common.common(),
        }
    }
}

/// What an atomic brings back, and where.
#[derive(Clone, Copy)]
pub enum Fetch<M = UserMem> {
    /// Nothing.
    No,
    /// The former values.
    Former(M),
    /// The former values; the second are values to compare with.
    Compare(M, M),
}

impl<M: RecvBuffer> Fetch<M> {
    /// The general form, for any memory.
    pub fn to_general(&self) -> Fetch {
        match self {
            Fetch::No => Fetch::No,
            Fetch::Former(m) => Fetch::Former(m.mem()),
            Fetch::Compare(m, c) => Fetch::Compare(m.mem(), c.mem()),
        }
    }
}

/// An atomic on remote memory.
#[derive(Clone, Copy)]
pub struct AtomicReq<D, M = UserMem, T = Iovs, C = Common> {
    /// Operands.
    pub data: D,
    /// What comes back.
    pub fetch: Fetch<M>,
    /// The peer whose memory is accessed.
    pub peer: fi_addr_t,
    /// Remote memory.
    pub to: T,
    /// Type of the elements.
    pub datatype: fi_datatype,
    /// What is done to them.
    pub op: fi_op,
    /// Context and flags.
    pub common: C,
}

impl<D: SendBuffer, M: RecvBuffer, T: AtomicMemory, C: Call> AtomicReq<D, M, T, C> {
    /// The general form of the request.
    pub fn to_general(&self) -> AtomicReq<SendData<'_>> {
        AtomicReq {
            data: self.data.data(),
            fetch: self.fetch.to_general(),
            peer: self.peer,
            to: self.to.iovs(),
            datatype: self.datatype,
            op: self.op,
            common: self.common.common(),
        }
    }
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
    /// Context, flags and the counter that counts its end.
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
