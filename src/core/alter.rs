//! The answer: a matching candidate, shaped by the hints (fi_getinfo(3), "capabilities").
//!
//! Primary capabilities are returned only when the hints ask for them, secondary ones at the
//! provider's choice. Sizes, modes, traffic classes and open objects of the hints are echoed, so
//! that the application can compare them.

use super::check::{mr_mode_needed, rma_target, MR_OLD};
use super::info::*;
use super::version;
use crate::types::*;

const PRIMARY: u64 = FI_MSG
    | FI_RMA
    | FI_TAGGED
    | FI_ATOMIC
    | FI_MULTICAST
    | FI_READ
    | FI_WRITE
    | FI_SEND
    | FI_RECV
    | FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_COLLECTIVE
    | FI_NAMED_RX_CTX
    | FI_HMEM
    | FI_DIRECTED_RECV
    | FI_AV_USER_ID
    | FI_PEER;
const SECONDARY: u64 = FI_TRIGGER
    | FI_FENCE
    | FI_RMA_PMEM
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_SOURCE_ERR
    | FI_SHARED_AV
    | FI_REMOTE_COMM
    | FI_LOCAL_COMM;

/// Capabilities of the answer: `whole` are those of the info, `hint` the requested ones, `part`
/// those of this attribute group.
fn caps(whole: u64, hint: u64, part: u64) -> u64 {
    let mut c = if hint == 0 {
        (whole & part & PRIMARY) | (part & SECONDARY)
    } else {
        let mut c = (hint & PRIMARY) | (part & SECONDARY);
        if hint & FI_SOURCE == 0 {
            c &= !FI_SOURCE;
        }
        c
    };
    if c & (FI_MSG | FI_TAGGED) != 0 && c & (FI_SEND | FI_RECV) == 0 {
        c |= part & (FI_SEND | FI_RECV);
    }
    let rma = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    if c & (FI_RMA | FI_ATOMIC) != 0 && c & rma == 0 {
        c |= part & rma;
    }
    c
}

fn set<T: Copy + PartialEq + Default>(to: &mut T, hint: T) {
    if hint != T::default() {
        *to = hint;
    }
}

/// Sizes of the contexts that the application left open.
pub fn default_sizes(info: &mut Info, hints: Option<&Info>, (tx, rx): (usize, usize)) {
    let asked_tx = hints.and_then(|h| h.tx.as_ref()).map_or(0, |t| t.size);
    let asked_rx = hints.and_then(|h| h.rx.as_ref()).map_or(0, |r| r.size);
    if let Some(t) = info.tx.as_mut().filter(|_| asked_tx == 0) {
        t.size = tx;
    }
    if let Some(r) = info.rx.as_mut().filter(|_| asked_rx == 0) {
        r.size = rx;
    }
}

/// Shapes `info` by `hints` for an application of API version `api`.
pub fn alter(api: u32, info: &mut Info, hints: Option<&Info>) {
    let asked = hints
        .and_then(|h| h.domain.as_ref())
        .map_or(0, |d| d.mr_mode);
    let local = info
        .domain
        .as_ref()
        .is_some_and(|d| d.mr_mode & FI_MR_LOCAL != 0);
    if local && (api < version(1, 5) || asked & MR_OLD != 0) {
        // The way to say FI_MR_LOCAL before 1.5.
        info.mode |= FI_LOCAL_MR;
    }
    let Some(hints) = hints else {
        if let Some(d) = &mut info.domain {
            d.mr_mode = if api < version(1, 5) {
                FI_MR_BASIC
            } else {
                d.mr_mode & !MR_OLD
            };
        }
        return;
    };
    let full = info.caps;
    let target_bits = info.domain.as_ref().map_or(0, |d| d.mr_mode & MR_TARGET);
    info.caps = caps(full, hints.caps, full);
    info.handle = hints.handle;
    if let (Some(d), Some(h)) = (&mut info.domain, &hints.domain) {
        alter_domain(api, d, h, info.caps);
    } else if let Some(d) = &mut info.domain {
        d.mr_mode = if api < version(1, 5) {
            FI_MR_BASIC
        } else {
            mr_mode_needed(info.caps, d.mr_mode)
        };
    }
    if let (Some(e), Some(h)) = (&mut info.ep, &hints.ep) {
        if info.caps & (FI_RMA | FI_ATOMIC) != 0 {
            set(&mut e.max_order_raw_size, h.max_order_raw_size);
            set(&mut e.max_order_war_size, h.max_order_war_size);
            set(&mut e.max_order_waw_size, h.max_order_waw_size);
        }
        set(&mut e.tx_ctx_cnt, h.tx_ctx_cnt);
        set(&mut e.rx_ctx_cnt, h.rx_ctx_cnt);
    }
    if let Some(r) = &mut info.rx {
        let h = hints.rx.clone().unwrap_or_default();
        r.caps = caps(info.caps, h.caps & !TX_ONLY_CAPS, r.caps);
        r.op_flags = h.op_flags;
        set(&mut r.size, h.size);
        set(&mut r.iov_limit, h.iov_limit);
    }
    if let Some(t) = &mut info.tx {
        let h = hints.tx.clone().unwrap_or_default();
        t.caps = caps(info.caps, h.caps & !RX_ONLY_CAPS, t.caps);
        t.op_flags = h.op_flags;
        set(&mut t.inject_size, h.inject_size);
        set(&mut t.size, h.size);
        set(&mut t.iov_limit, h.iov_limit);
        set(&mut t.rma_iov_limit, h.rma_iov_limit);
        t.tclass = h.tclass;
    }
    strip_target(api, info, hints, target_bits);
}

const MR_TARGET: i32 = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;

/// Removes the target capabilities if the hints lack the mr_mode bits of this provider: peers could
/// not address such an application's memory.
fn strip_target(api: u32, info: &mut Info, hints: &Info, bits: i32) {
    if !rma_target(info.caps) || bits == 0 {
        return;
    }
    let agreed = hints.domain.as_ref().is_some_and(|d| {
        (api < version(1, 5) && d.mr_mode == 0)
            || d.mr_mode == FI_MR_BASIC
            || d.mr_mode & bits == bits
    });
    if !agreed {
        info.caps &= !(FI_REMOTE_READ | FI_REMOTE_WRITE);
    }
}

const TX_ONLY_CAPS: u64 = FI_READ | FI_WRITE | FI_SEND;
const RX_ONLY_CAPS: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE | FI_RECV;

fn alter_domain(api: u32, d: &mut DomainAttr, h: &DomainAttr, info_caps: u64) {
    d.mr_mode = if h.mr_mode & MR_OLD != 0 {
        h.mr_mode
    } else if api < version(1, 5) {
        FI_MR_BASIC
    } else {
        let had = d.mr_mode & !MR_OLD;
        // If the hints set all bits, all are returned; else the bits that the hints set and these
        // capabilities need. Hints of zero ("not said") get zero.
        if h.mr_mode & had == had {
            had
        } else {
            mr_mode_needed(info_caps, had & h.mr_mode)
        }
    };
    d.caps = caps(d.caps, h.caps, d.caps);
    set(&mut d.threading, h.threading);
    if h.progress != FI_PROGRESS_UNSPEC {
        d.progress = h.progress;
        d.control_progress = h.progress;
    }
    set(&mut d.resource_mgmt, h.resource_mgmt);
    set(&mut d.av_type, h.av_type);
    set(&mut d.max_ep_auth_key, h.max_ep_auth_key);
    d.tclass = h.tclass;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primary_caps_are_only_those_asked_for() {
        let all = FI_MSG | FI_TAGGED | FI_SEND | FI_RECV | FI_LOCAL_COMM | FI_SOURCE;
        assert_eq!(
            caps(all, FI_MSG, all),
            FI_MSG | FI_SEND | FI_RECV | FI_LOCAL_COMM
        );
        assert_eq!(caps(all, 0, all), all);
    }

    #[test]
    fn registration_of_local_memory_is_said_as_the_application_knows_it() {
        let with_mode = |mr_mode| Info {
            domain: Some(DomainAttr {
                mr_mode,
                ..DomainAttr::default()
            }),
            ..Info::default()
        };
        for (api, asked, local) in [
            (version(1, 4), FI_MR_LOCAL, true),
            (version(1, 18), FI_MR_BASIC, true),
            (version(1, 18), FI_MR_LOCAL, false),
        ] {
            let mut i = with_mode(FI_MR_LOCAL);
            alter(api, &mut i, Some(&with_mode(asked)));
            assert_eq!(i.mode & FI_LOCAL_MR != 0, local);
        }
    }
}
