//! Requests that start later: behind a fence, or when a counter reaches a value (fi_trigger(3)).

use super::request::{AtomicReq, Common, MsgReq, RecvReq, RmaReq, SendData};
use crate::hmem::UserMem;

/// A request whose data, if it was to be copied, is in [`DeferredOp::copy`].
// Few of these exist, and not for long: their size does not matter.
#[allow(clippy::large_enum_variant)]
pub enum DeferredKind {
    /// A send.
    Msg(MsgReq<SendData<'static>>),
    /// A receive.
    Recv(RecvReq),
    /// A read or write.
    Rma(RmaReq<SendData<'static>>),
    /// An atomic.
    Atomic(AtomicReq<SendData<'static>>),
    /// A change of a counter, which needs no endpoint.
    Cntr {
        /// Which counter.
        cntr: u32,
        /// What is added, or set.
        value: u64,
        /// Whether it is set, else added.
        set: bool,
    },
}

/// A request that starts later: it owns what a request borrows.
pub struct DeferredOp {
    /// What to do.
    pub kind: DeferredKind,
    /// Copy of injected data, which the caller may overwrite.
    pub copy: Option<Box<[u8]>>,
    /// Context, flags and the counter that counts its end.
    pub common: Common,
}

/// Data to keep: application memory as it is, other bytes as a copy.
fn keep(d: &SendData) -> (SendData<'static>, Option<Box<[u8]>>) {
    match d {
        SendData::User(m) => (SendData::User(*m), None),
        SendData::Inject(b) => (SendData::User(UserMem::EMPTY), Some(b.bytes().into())),
    }
}

impl From<&MsgReq<SendData<'_>>> for DeferredOp {
    fn from(r: &MsgReq<SendData>) -> DeferredOp {
        let (data, copy) = keep(&r.data);
        DeferredOp {
            kind: DeferredKind::Msg(MsgReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl From<&RecvReq> for DeferredOp {
    fn from(r: &RecvReq) -> DeferredOp {
        DeferredOp {
            kind: DeferredKind::Recv(*r),
            copy: None,
            common: r.common,
        }
    }
}

impl From<&RmaReq<SendData<'_>>> for DeferredOp {
    fn from(r: &RmaReq<SendData>) -> DeferredOp {
        let (data, copy) = keep(&r.data);
        DeferredOp {
            kind: DeferredKind::Rma(RmaReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl From<&AtomicReq<SendData<'_>>> for DeferredOp {
    fn from(r: &AtomicReq<SendData>) -> DeferredOp {
        let (data, copy) = keep(&r.data);
        DeferredOp {
            kind: DeferredKind::Atomic(AtomicReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl DeferredOp {
    /// A change of a counter: `value` added, or put in its place.
    pub fn counter(cntr: u32, value: u64, set: bool) -> DeferredOp {
        DeferredOp {
            kind: DeferredKind::Cntr { cntr, value, set },
            copy: None,
            common: Common::default(),
        }
    }
}

/// An operation that a counter starts.
pub struct Trigger {
    /// The counter that is waited for.
    pub cntr: u32,
    /// The value at which it starts.
    pub threshold: u64,
    /// The endpoint that does it.
    pub ep: u32,
    /// What it does.
    pub op: DeferredOp,
    /// The application's name for it, for FI_CANCEL_WORK; 0 for a triggered operation.
    pub name: usize,
}
