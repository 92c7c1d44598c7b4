//! What endpoints of all providers check and report in one way.

use super::completion::BoundCntrs;
use super::cq::Cq;
use crate::core::{Info, Result};
use crate::prov::contract::{names_receives, Entry, ErrEntry};
use crate::types::*;

/// FI_SETOPSFLAG: sets the default flags of the direction that FI_TRANSMIT or FI_RECV names.
/// `FI_EINVAL` for both or neither.
pub(crate) fn set_op_flags(flags: u64, tx: &mut u64, rx: &mut u64) -> Result<()> {
    let plain = flags & !(FI_TRANSMIT | FI_RECV);
    match names_receives(flags)? {
        false => *tx = plain,
        true => *rx = plain,
    }
    Ok(())
}

/// Checks `tx_attr->inject_size` of the info that an endpoint is opened with against what it can
/// inject at most. `FI_ENODATA`, as the C library's providers return it.
pub(crate) fn inject_fits(info: &Info, most: usize) -> Result<()> {
    let wanted = info.tx.as_ref().map_or(0, |t| t.inject_size);
    if wanted <= most {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "fi_endpoint: tx_attr->inject_size: wanted {wanted}, had at most {most}"
    );
    Err(FI_ENODATA)
}

/// Checks the kinds of operations that a counter of an endpoint is bound for (fi_endpoint(3)).
/// `FI_EBADFLAGS`.
pub(crate) fn check_cntr_kinds(flags: u64) -> Result<()> {
    known_kinds("fi_ep_bind: counter", flags, BoundCntrs::flags())
}

/// Checks the kinds of accesses that a counter of a region is bound for (fi_mr(3)). `FI_EBADFLAGS`.
pub(crate) fn check_region_kinds(flags: u64) -> Result<()> {
    known_kinds("fi_mr_bind", flags, FI_REMOTE_READ | FI_REMOTE_WRITE)
}

fn known_kinds(call: &str, flags: u64, known: u64) -> Result<()> {
    if flags & !known == 0 && flags != 0 {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "{call}: flags {flags:#x}: wanted one or more of {}",
        crate::core::tostr::cq_event_flags(known)
    );
    Err(FI_EBADFLAGS)
}

/// The completion of a peer's write with data.
pub(crate) fn remote_write_entry(data: u64, len: usize, src: fi_addr_t) -> Entry {
    Entry {
        flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
        len,
        data,
        src,
        ..Entry::default()
    }
}

/// Reports a peek (FI_PEEK): what it found, or that it found nothing.
pub(crate) fn push_peek(cq: &mut Cq, entry: Entry, found: bool) {
    match found {
        true => cq.push(entry),
        false => cq.push_error(ErrEntry {
            entry,
            err: FI_ENOMSG,
            text: "no message was found that matches the peek".to_string(),
            ..ErrEntry::default()
        }),
    }
}

/// The entry of a receive that was cancelled.
pub(crate) fn push_cancelled(cq: Option<&mut Cq>, entry: Entry, text: &str) {
    if let Some(cq) = cq {
        cq.push_error(ErrEntry {
            entry,
            err: FI_ECANCELED,
            text: text.to_string(),
            ..ErrEntry::default()
        });
    }
}
