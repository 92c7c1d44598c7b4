//! Completions as a provider reports them (fi_cq(3)); `abi` writes them in the caller's format.

use crate::types::*;

/// One completion, with the fields of every format: the entry of a caller's format is a prefix of
/// this struct.
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
    /// Bytes of the message that were truncated.
    pub olen: usize,
    /// Positive `FI_E*`.
    pub err: i32,
    /// Device status for fi_cq_strerror(3).
    pub prov_errno: i32,
    /// Text: what failed, at which peer, and why.
    pub text: String,
}
