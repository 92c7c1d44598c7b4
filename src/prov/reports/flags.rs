//! Flags that calls of every provider may carry (fi_msg(3), fi_tagged(3), fi_rma(3)), and the check
//! for others.

use crate::core::Result;
use crate::types::*;

/// Flags of `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg` and `fi_readmsg`.
pub(crate) const SEND_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_FENCE;

/// Flags of `fi_recvmsg` and `fi_trecvmsg`. Those of completion levels and data have no meaning for
/// a receive, and are ignored as by the C library.
pub(crate) const RECV_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_MULTI_RECV
    | FI_PEEK
    | FI_CLAIM
    | FI_DISCARD
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE
    | FI_REMOTE_CQ_DATA;

/// `FI_EBADFLAGS`, with a line, for flags that are not among `all`.
#[inline]
pub(crate) fn known(flags: Option<u64>, all: u64, call: &str) -> Result<()> {
    match flags.unwrap_or(0) & !all {
        0 => Ok(()),
        bad => unknown(bad, call),
    }
}

#[cold]
fn unknown(bad: u64, call: &str) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "{call}: flags {bad:#x} ({}) are not supported",
        crate::core::tostr::op_flags(bad)
    );
    Err(FI_EBADFLAGS)
}
