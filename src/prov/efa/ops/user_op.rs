//! The record of an operation that is carried out in several parts, or by the protocol: what is
//! reported of it when all parts have ended. Its number travels as `ctx` through the protocol, and
//! in the completions of its parts ([`Report::Op`]).

use crate::device::any::Dev;
use crate::device::Device;
use crate::hmem::UserMem;
use crate::proto::{Failure, RecvEntryMatch};
use crate::prov::contract::WorkEnd;
use crate::prov::efa::domain::State;
use crate::prov::reports::completion::reported;
use crate::transport::{Completion, RemoteAddr, Report};
use crate::types::*;

/// The owner of an operation's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpKind {
    /// The application's, lent with a call.
    User,
    /// A registered region's, named by a peer.
    Target { write: bool },
}

/// Marks operations of a shared receive context in [`UserOp::owner`].
pub(crate) const SRX_OWNER: u32 = 1 << 31;

/// A posted operation.
#[derive(Debug)]
pub(crate) struct UserOp {
    /// The endpoint, or the shared receive context with [`SRX_OWNER`].
    pub owner: u32,
    pub kind: OpKind,
    /// A receive for several messages (FI_MULTI_RECV).
    pub multi: bool,
    /// What is reported of it.
    pub done: Completion,
    /// Of deferred work, what counts its end.
    pub work: Option<WorkEnd>,
    /// The collective operation that this is a step of; the end is reported to it alone.
    pub collective: Option<u32>,
    /// Keys registered so that peers can read `mem`; of a target, the keys that the peer has named.
    pub keys: Vec<u64>,
    pub mem: UserMem,
    /// Requests to a transport that have not ended.
    pub parts: u32,
    pub failed: Option<Failure>,
    /// Immediate data to post after all parts have ended, where one request could not carry both.
    pub late_imm: Option<u64>,
}

impl UserOp {
    /// The counters that count the end; `bound` is the endpoint's for such operations.
    pub(crate) fn cntrs(&self, bound: Option<u32>) -> [Option<u32>; 2] {
        end_cntrs(self.work, self.done.report == Report::Entry, bound)
    }

    /// An operation on this memory, of one part.
    pub(crate) fn new(owner: u32, mem: UserMem, done: Completion) -> UserOp {
        UserOp {
            owner,
            kind: OpKind::User,
            multi: false,
            done,
            work: None,
            collective: None,
            keys: Vec::new(),
            mem,
            parts: 1,
            failed: None,
            late_imm: None,
        }
    }

    /// Withdraws the keys that were made to let peers read its memory.
    pub(crate) fn withdraw(&self, dev: &Dev) {
        if self.kind == OpKind::User {
            for key in &self.keys {
                dev.release_mr(*key);
            }
        }
    }
}

/// The counters that count the end of an operation, which has an `entry` in the completion queue or
/// not; `bound` is the endpoint's, which counts once where deferred work names it, too.
pub(crate) fn end_cntrs(
    work: Option<WorkEnd>,
    entry: bool,
    bound: Option<u32>,
) -> [Option<u32>; 2] {
    match work {
        None => [bound, None],
        Some(WorkEnd { cntr }) => [cntr, bound.filter(|_| entry && bound != cntr)],
    }
}

/// The operation of a plain receive.
pub(crate) fn short_op(owner: u32, r: &RecvEntryMatch) -> UserOp {
    let kind = if r.what.tagged { FI_TAGGED } else { FI_MSG };
    let done = Completion {
        context: r.what.context,
        len: r.what.into.len(),
        flags: (FI_RECV | kind) as u32,
        peer: r.src,
        report: reported(r.what.report),
        remote: RemoteAddr {
            addr: 0,
            key: r.tag,
        },
    };
    UserOp::new(owner, r.what.into.into(), done)
}

/// Drops the operations of an endpoint or shared receive context that is closed.
pub(crate) fn drop_ops(s: &mut State, owner: u32) {
    for ctx in s.ops.select(|o| o.owner == owner) {
        if let Some(op) = s.ops.remove(ctx) {
            op.withdraw(&s.dev);
        }
    }
}
