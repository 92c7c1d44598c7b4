//! Does a candidate satisfy the hints? (fi_getinfo(3))
//!
//! A rule either accepts the candidate or returns the attribute, the wanted value and the
//! candidate's value, which `fi_info --why` and the log print. A zero hint means "anything". The
//! rules run in the order in which a reader would look: endpoint type, capabilities, mode,
//! addresses, fabric, domain, endpoint, receive and transmit side.

use super::info::*;
use super::version;
use crate::types::*;

/// Why a candidate was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Attribute, spelt as in C: `domain_attr->mr_mode`.
    pub attr: &'static str,
    /// What the hints ask for.
    pub wanted: String,
    /// What the candidate offers or demands.
    pub had: String,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: wanted {}, had {}", self.attr, self.wanted, self.had)
    }
}

/// Result of a rule.
pub type Check = Result<(), Mismatch>;

/// mr_mode bits that only concern a domain whose memory is a target of remote operations.
const MR_TARGET: i32 = FI_MR_RAW | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY | FI_MR_RMA_EVENT;
/// mr_mode values of API versions before 1.5.
pub const MR_OLD: i32 = FI_MR_BASIC | FI_MR_SCALABLE;
/// Capability bits on the transmit hints that only say something about the receive side.
const NOT_TX: u64 = FI_REMOTE_READ
    | FI_REMOTE_WRITE
    | FI_RECV
    | FI_DIRECTED_RECV
    | FI_MULTI_RECV
    | FI_SOURCE
    | FI_RMA_EVENT
    | FI_SOURCE_ERR;
/// Capability bits on the receive hints that only say something about the transmit side.
const NOT_RX: u64 = FI_READ | FI_WRITE | FI_SEND | FI_FENCE | FI_MULTICAST | FI_NAMED_RX_CTX;

fn no(attr: &'static str, wanted: impl Into<String>, had: impl Into<String>) -> Check {
    Err(Mismatch {
        attr,
        wanted: wanted.into(),
        had: had.into(),
    })
}

/// `hint` must not ask for bits that `have` lacks.
fn subset(attr: &'static str, hint: u64, have: u64, show: fn(u64) -> String) -> Check {
    if hint & !have != 0 {
        return no(attr, show(hint & !have), show(have));
    }
    Ok(())
}

fn at_most(attr: &'static str, hint: usize, have: usize) -> Check {
    if hint > have {
        return no(attr, hint.to_string(), format!("at most {have}"));
    }
    Ok(())
}

/// Checks an enumeration whose stricter values satisfy the looser ones; a lower rank is stricter.
fn ranked(
    attr: &'static str,
    hint: u32,
    have: u32,
    rank: fn(u32) -> i32,
    show: fn(u32) -> String,
) -> Check {
    if rank(hint) < rank(have) {
        return no(attr, show(hint), show(have));
    }
    Ok(())
}

fn threading_rank(t: u32) -> i32 {
    match t {
        FI_THREAD_SAFE => 1,
        FI_THREAD_FID => 2,
        FI_THREAD_ENDPOINT => 3,
        FI_THREAD_COMPLETION => 4,
        FI_THREAD_DOMAIN => 5,
        FI_THREAD_UNSPEC => 6,
        _ => -1,
    }
}

fn progress_rank(p: u32) -> i32 {
    match p {
        FI_PROGRESS_AUTO => 1,
        FI_PROGRESS_MANUAL => 2,
        FI_PROGRESS_CONTROL_UNIFIED => 3,
        FI_PROGRESS_UNSPEC => 4,
        _ => -1,
    }
}

fn rm_rank(r: u32) -> i32 {
    match r {
        FI_RM_ENABLED => 1,
        FI_RM_DISABLED => 2,
        FI_RM_UNSPEC => 3,
        _ => -1,
    }
}

/// Whether these capabilities make the endpoint's memory a target of remote access.
pub fn rma_target(caps: u64) -> bool {
    caps & (FI_RMA | FI_ATOMIC) != 0
        && (caps & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 || caps & (FI_READ | FI_WRITE) == 0)
}

/// The mr_mode bits of `mode` that matter to an application with these capabilities.
pub fn mr_mode_needed(caps: u64, mode: i32) -> i32 {
    let mut m = mode & !MR_OLD;
    if caps & FI_HMEM == 0 {
        m &= !FI_MR_HMEM;
    }
    if !rma_target(caps) {
        if m & (FI_MR_LOCAL | FI_MR_HMEM) == 0 {
            return 0;
        }
        m &= !MR_TARGET;
    }
    m
}

/// Compares hints with a candidate for an application of API version `api`.
pub fn check(api: u32, have: &Info, hints: &Info) -> Check {
    use super::tostr as t;
    if let (Some(h), Some(p)) = (&hints.ep, &have.ep) {
        if h.type_ != FI_EP_UNSPEC && h.type_ != p.type_ {
            return no("ep_attr->type", t::ep_type(h.type_), t::ep_type(p.type_));
        }
    }
    subset("caps", hints.caps, have.caps, t::caps)?;
    let mut needed = have.mode;
    let asks_mr_local = hints
        .domain
        .as_ref()
        .is_some_and(|d| d.mr_mode & FI_MR_LOCAL != 0);
    let has_mr_local = have
        .domain
        .as_ref()
        .is_some_and(|d| d.mr_mode & FI_MR_LOCAL != 0);
    if has_mr_local && (api < version(1, 5) || (hints.domain.is_some() && !asks_mr_local)) {
        needed |= FI_LOCAL_MR;
    }
    if needed & !hints.mode != 0 {
        return no(
            "mode",
            t::mode(hints.mode),
            format!("a provider that needs {}", t::mode(needed & !hints.mode)),
        );
    }
    if hints.addr_format != FI_FORMAT_UNSPEC && hints.addr_format != have.addr_format {
        return no(
            "addr_format",
            t::addr_format(hints.addr_format),
            t::addr_format(have.addr_format),
        );
    }
    if let (Some(h), Some(p)) = (&hints.fabric, &have.fabric) {
        check_fabric(h, p)?;
    }
    super::opened::check(have, hints)?;
    if let (Some(h), Some(p)) = (&hints.domain, &have.domain) {
        check_domain(api, h, p, hints.caps, hints.mode)?;
    }
    if let (Some(h), Some(p)) = (&hints.ep, &have.ep) {
        check_ep(h, p, hints.caps, have.domain.as_ref())?;
    }
    if let (Some(h), Some(p)) = (&hints.rx, &have.rx) {
        check_rx(h, p, hints.mode)?;
    }
    if let (Some(h), Some(p)) = (&hints.tx, &have.tx) {
        check_tx(h, p, hints.mode)?;
    }
    Ok(())
}

fn check_fabric(h: &FabricAttr, p: &FabricAttr) -> Check {
    if let (Some(want), Some(got)) = (&h.name, &p.name) {
        if !want.eq_ignore_ascii_case(got) {
            return no("fabric_attr->name", want.clone(), got.clone());
        }
    }
    if h.prov_version > p.prov_version {
        return no(
            "fabric_attr->prov_version",
            h.prov_version.to_string(),
            p.prov_version.to_string(),
        );
    }
    Ok(())
}

fn check_mr_mode(api: u32, h: &DomainAttr, p: &DomainAttr, caps: u64, hint_mode: u64) -> Check {
    let show = |m: i32| super::tostr::mr_mode(m as u32 as u64);
    let refuse = || no("domain_attr->mr_mode", show(h.mr_mode), show(p.mr_mode));
    if api < version(1, 5) {
        return match h.mr_mode {
            0 if p.mr_mode & MR_OLD != 0 => Ok(()),
            FI_MR_BASIC | FI_MR_SCALABLE if p.mr_mode & h.mr_mode != 0 => Ok(()),
            _ => refuse(),
        };
    }
    if h.mr_mode & MR_OLD != 0 {
        let alone = h.mr_mode == FI_MR_BASIC || h.mr_mode == FI_MR_SCALABLE;
        return if alone && p.mr_mode & h.mr_mode != 0 {
            Ok(())
        } else {
            refuse()
        };
    }
    if p.mr_mode & FI_MR_LOCAL != 0 && h.mr_mode & FI_MR_LOCAL == 0 && hint_mode & FI_LOCAL_MR == 0
    {
        return refuse();
    }
    let needed = mr_mode_needed(caps, p.mr_mode);
    // Zero stands for "not said": old Open MPI and oneCCL pass it (clients.md).
    if h.mr_mode != 0 && h.mr_mode & needed != needed {
        return refuse();
    }
    Ok(())
}

fn check_domain(api: u32, h: &DomainAttr, p: &DomainAttr, caps: u64, hint_mode: u64) -> Check {
    use super::tostr as t;
    if let (Some(want), Some(got)) = (&h.name, &p.name) {
        if !want.eq_ignore_ascii_case(got) {
            return no("domain_attr->name", want.clone(), got.clone());
        }
    }
    ranked(
        "domain_attr->threading",
        h.threading,
        p.threading,
        threading_rank,
        t::threading,
    )?;
    ranked(
        "domain_attr->progress",
        h.progress,
        p.progress,
        progress_rank,
        t::progress,
    )?;
    ranked(
        "domain_attr->resource_mgmt",
        h.resource_mgmt,
        p.resource_mgmt,
        rm_rank,
        t::resource_mgmt,
    )?;
    if h.av_type != FI_AV_UNSPEC && p.av_type != FI_AV_UNSPEC && h.av_type != p.av_type {
        return no(
            "domain_attr->av_type",
            t::av_type(h.av_type),
            t::av_type(p.av_type),
        );
    }
    at_most("domain_attr->cq_data_size", h.cq_data_size, p.cq_data_size)?;
    check_mr_mode(api, h, p, caps, hint_mode)?;
    if api < version(1, 5) {
        return Ok(());
    }
    at_most("domain_attr->mr_iov_limit", h.mr_iov_limit, p.mr_iov_limit)?;
    at_most("domain_attr->max_err_data", h.max_err_data, p.max_err_data)?;
    at_most("domain_attr->mr_cnt", h.mr_cnt, p.mr_cnt)?;
    subset("domain_attr->caps", h.caps, p.caps, t::caps)?;
    if p.mode & !h.mode != 0 {
        return no(
            "domain_attr->mode",
            t::mode(h.mode),
            format!("a domain that needs {}", t::mode(p.mode)),
        );
    }
    if h.auth_key_size != 0 && h.auth_key_size != p.auth_key_size {
        return no(
            "domain_attr->auth_key_size",
            h.auth_key_size.to_string(),
            p.auth_key_size.to_string(),
        );
    }
    if api >= version(1, 20) {
        at_most(
            "domain_attr->max_ep_auth_key",
            h.max_ep_auth_key,
            p.max_ep_auth_key,
        )?;
    }
    Ok(())
}

fn check_ep(h: &EpAttr, p: &EpAttr, caps: u64, domain: Option<&DomainAttr>) -> Check {
    use super::tostr as t;
    if h.protocol != 0 && h.protocol != p.protocol {
        return no(
            "ep_attr->protocol",
            t::protocol(h.protocol),
            t::protocol(p.protocol),
        );
    }
    at_most(
        "ep_attr->protocol_version",
        h.protocol_version as usize,
        p.protocol_version as usize,
    )?;
    at_most("ep_attr->max_msg_size", h.max_msg_size, p.max_msg_size)?;
    let (max_tx, max_rx) = domain.map_or((1, 1), |d| (d.max_ep_tx_ctx, d.max_ep_rx_ctx));
    let (max_stx, max_srx) = domain.map_or((0, 0), |d| (d.max_ep_stx_ctx, d.max_ep_srx_ctx));
    for (attr, wanted, had, max, max_shared) in [
        (
            "ep_attr->tx_ctx_cnt",
            h.tx_ctx_cnt,
            p.tx_ctx_cnt,
            max_tx,
            max_stx,
        ),
        (
            "ep_attr->rx_ctx_cnt",
            h.rx_ctx_cnt,
            p.rx_ctx_cnt,
            max_rx,
            max_srx,
        ),
    ] {
        match (wanted, had) {
            (FI_SHARED_CONTEXT, _) if max_shared == 0 => {
                return no(attr, "FI_SHARED_CONTEXT", max.to_string());
            }
            (FI_SHARED_CONTEXT, _) => {}
            // A shared context has to be asked for.
            (0, FI_SHARED_CONTEXT) => return no(attr, "0", "FI_SHARED_CONTEXT".to_string()),
            _ => at_most(attr, wanted, max)?,
        }
    }
    if caps & (FI_RMA | FI_ATOMIC) != 0 {
        at_most(
            "ep_attr->max_order_raw_size",
            h.max_order_raw_size,
            p.max_order_raw_size,
        )?;
        at_most(
            "ep_attr->max_order_war_size",
            h.max_order_war_size,
            p.max_order_war_size,
        )?;
        at_most(
            "ep_attr->max_order_waw_size",
            h.max_order_waw_size,
            p.max_order_waw_size,
        )?;
    }
    if h.auth_key_size != 0 && h.auth_key_size != p.auth_key_size {
        return no(
            "ep_attr->auth_key_size",
            h.auth_key_size.to_string(),
            p.auth_key_size.to_string(),
        );
    }
    let top = |f: u64| 64 - f.leading_zeros();
    if caps & FI_TAGGED != 0 && top(h.mem_tag_format) > top(p.mem_tag_format) {
        return no(
            "ep_attr->mem_tag_format",
            format!("{:#x}", h.mem_tag_format),
            format!("{:#x}", p.mem_tag_format),
        );
    }
    Ok(())
}

fn side_mode(attr: &'static str, hint: u64, all: u64, needed: u64) -> Check {
    let given = if hint != 0 { hint } else { all };
    if needed & !given != 0 {
        let t = super::tostr::mode;
        return no(attr, t(given), format!("a side that needs {}", t(needed)));
    }
    Ok(())
}

fn check_rx(h: &RxAttr, p: &RxAttr, mode: u64) -> Check {
    use super::tostr as t;
    subset("rx_attr->caps", h.caps & !NOT_RX, p.caps, t::caps)?;
    side_mode("rx_attr->mode", h.mode, mode, p.mode)?;
    subset("rx_attr->op_flags", h.op_flags, p.op_flags, t::op_flags)?;
    subset("rx_attr->msg_order", h.msg_order, p.msg_order, t::msg_order)?;
    subset(
        "rx_attr->comp_order",
        h.comp_order,
        p.comp_order,
        t::msg_order,
    )?;
    at_most(
        "rx_attr->total_buffered_recv",
        h.total_buffered_recv,
        p.total_buffered_recv,
    )?;
    at_most("rx_attr->size", h.size, p.size)?;
    at_most("rx_attr->iov_limit", h.iov_limit, p.iov_limit)
}

fn check_tx(h: &TxAttr, p: &TxAttr, mode: u64) -> Check {
    use super::tostr as t;
    subset("tx_attr->caps", h.caps & !NOT_TX, p.caps, t::caps)?;
    side_mode("tx_attr->mode", h.mode, mode, p.mode)?;
    subset("tx_attr->op_flags", h.op_flags, p.op_flags, t::op_flags)?;
    subset("tx_attr->msg_order", h.msg_order, p.msg_order, t::msg_order)?;
    subset(
        "tx_attr->comp_order",
        h.comp_order,
        p.comp_order,
        t::msg_order,
    )?;
    at_most("tx_attr->inject_size", h.inject_size, p.inject_size)?;
    at_most("tx_attr->size", h.size, p.size)?;
    at_most("tx_attr->iov_limit", h.iov_limit, p.iov_limit)?;
    at_most("tx_attr->rma_iov_limit", h.rma_iov_limit, p.rma_iov_limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Info {
        let mut i = Info::empty();
        i.caps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        if let Some(d) = &mut i.domain {
            d.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_BASIC;
            d.threading = FI_THREAD_SAFE;
            d.progress = FI_PROGRESS_MANUAL;
        }
        i
    }

    fn hints(f: impl FnOnce(&mut Info)) -> Info {
        let mut h = Info::empty();
        f(&mut h);
        h
    }

    fn rejected(api: u32, h: &Info) -> Option<&'static str> {
        check(api, &offer(), h).err().map(|m| m.attr)
    }

    #[test]
    fn empty_hints_reject_no_candidate() {
        assert_eq!(rejected(version(1, 18), &hints(|_| ())), None);
        assert_eq!(rejected(0, &hints(|_| ())), None);
    }

    #[test]
    fn a_rejection_names_the_attribute() {
        let v = version(1, 18);
        assert_eq!(rejected(v, &hints(|h| h.caps = FI_TAGGED)), Some("caps"));
        let auto = hints(|h| {
            if let Some(d) = &mut h.domain {
                d.progress = FI_PROGRESS_AUTO;
            }
        });
        assert_eq!(rejected(v, &auto), Some("domain_attr->progress"));
    }

    #[test]
    fn mr_mode_follows_the_version() {
        let with = |m: i32| {
            hints(|h| {
                h.caps = FI_MSG | FI_RMA;
                if let Some(d) = &mut h.domain {
                    d.mr_mode = m;
                }
            })
        };
        let all = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        assert_eq!(rejected(version(1, 4), &with(FI_MR_BASIC)), None);
        assert_eq!(
            rejected(version(1, 4), &with(FI_MR_SCALABLE)),
            Some("domain_attr->mr_mode")
        );
        assert_eq!(rejected(version(1, 18), &with(all)), None);
        assert_eq!(
            rejected(version(1, 18), &with(FI_MR_ALLOCATED)),
            Some("domain_attr->mr_mode")
        );
        assert_eq!(rejected(version(1, 18), &with(0)), None);
        assert_eq!(rejected(version(1, 18), &with(FI_MR_BASIC)), None);
    }
}
