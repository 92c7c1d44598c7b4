//! Completions as a provider reports them (fi_cq(3)); `abi` writes them in the caller's format.

use crate::types::*;

/// One completion, with everything any format wants: its beginning is what a caller's entry has, as
/// far as that goes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Entry {
    /// `op_context` of the operation.
    pub context: usize,
    /// What it was: FI_SEND, FI_RECV, FI_TAGGED, ...
    pub flags: u64,
    /// Bytes.
    pub len: usize,
    /// Where the data lies, for receives.
    pub buf: usize,
    /// Data that came with it (FI_REMOTE_CQ_DATA).
    pub data: u64,
    /// Tag of a received message.
    pub tag: u64,
    /// Index in the endpoint's address vector, or `FI_ADDR_NOTAVAIL`.
    pub src: fi_addr_t,
}

/// An error completion.
#[derive(Clone, Debug, Default)]
pub struct ErrEntry {
    /// The operation.
    pub entry: Entry,
    /// Bytes that had no room.
    pub olen: usize,
    /// Positive `FI_E*`.
    pub err: i32,
    /// Device status for fi_cq_strerror(3).
    pub prov_errno: i32,
    /// What happened, to whom, why.
    pub text: String,
}
