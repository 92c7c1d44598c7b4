//! The record of an operation that takes more than the fast path, from its call until its
//! completion. Its number travels as `ctx` through the protocol and in the id of work requests
//! (`wr_id`).

use crate::device::any::Dev;
use crate::device::Device;
use crate::hmem::UserMem;
use crate::proto::{Failure, ShortRecv};
use crate::prov::efa::domain::State;
use crate::types::*;

/// Whose an operation's memory is.
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
    /// A counter that hears of its end, beside the endpoint's.
    pub done: Option<u32>,
    /// A collective operation it is a step of: that hears of its end, and nobody else.
    pub collective: Option<u32>,
    /// Keys made to let peers read `mem`, or keys the peer named to get it.
    pub keys: Vec<u64>,
    pub context: usize,
    /// Flags of its completion entry.
    pub flags: u64,
    pub mem: UserMem,
    /// Bytes to move: those of `mem`, or of data that was copied when the operation was posted.
    pub len: usize,
    /// Whether success is worth a completion entry.
    pub report: bool,
    pub peer: u32,
    /// Remote address and key of RMA, tag of tagged messages: for error texts and entries.
    pub raddr: u64,
    pub key: u64,
    /// Requests to the adapter that are not done.
    pub parts: u32,
    pub failed: Option<Failure>,
    /// Data to deliver when all parts have arrived, where one request could not carry both.
    pub late_imm: Option<u32>,
}

impl UserOp {
    /// An operation on this memory, otherwise blank.
    pub(crate) fn new(owner: u32, mem: UserMem) -> UserOp {
        UserOp {
            owner,
            kind: OpKind::User,
            multi: false,
            done: None,
            collective: None,
            keys: Vec::new(),
            context: 0,
            flags: 0,
            len: mem.len(),
            mem,
            report: true,
            peer: 0,
            raddr: 0,
            key: 0,
            parts: 0,
            failed: None,
            late_imm: None,
        }
    }

    /// Withdraws the keys that were made to let peers read its memory.
    pub(crate) fn withdraw(&self, dev: &Dev) {
        if self.kind == OpKind::User {
            for key in &self.keys {
                let _ = dev.dereg_mr(*key);
            }
        }
    }
}

/// The operation of a plain receive.
pub(crate) fn short_op(owner: u32, r: &ShortRecv) -> UserOp {
    let mut op = UserOp::new(owner, r.what.into.into());
    op.context = r.what.context;
    op.flags = FI_RECV | if r.what.tagged { FI_TAGGED } else { FI_MSG };
    op.report = r.what.report;
    op.peer = r.src;
    op.key = r.tag;
    op
}

/// Drops the operations of an endpoint or shared receive context that is closed.
pub(crate) fn drop_ops(s: &mut State, owner: u32) {
    for ctx in s.ops.select(|o| o.owner == owner) {
        if let Some(op) = s.ops.remove(ctx) {
            op.withdraw(&s.dev);
        }
    }
}
