//! fi_tostr(3): which type a pointer is, and its text.

use super::info::parts;
use super::layout::V1_10;
use crate::core::describe as d;
use crate::core::log;
use crate::core::tostr as t;
use crate::types::*;
use core::ffi::{c_char, c_void};

/// Copies `text` and a NUL into `len` bytes at `buf`, cut short where it does not fit.
///
/// # Safety
/// `buf` points to `len` writable bytes.
pub(crate) unsafe fn put(buf: *mut c_char, len: usize, text: &str) {
    if len == 0 || buf.is_null() {
        return;
    }
    let n = text.len().min(len - 1);
    // SAFETY: `n + 1 <= len` bytes are written.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast::<u8>(), n);
        *buf.add(n) = 0;
    }
}

/// Text of what `data` points to.
///
/// # Safety
/// `data` points to a valid value of the type that `kind` names.
pub(crate) unsafe fn describe(data: *const c_void, kind: fi_type) -> String {
    // SAFETY: only the reads that fit `kind` are made, of memory valid by contract.
    unsafe {
        let e = || data.cast::<u32>().read_unaligned();
        let f = || data.cast::<u64>().read_unaligned();
        match kind {
            FI_TYPE_INFO => {
                super::info::read(data.cast(), &V1_10).map_or(String::new(), |i| d::info(&i))
            }
            FI_TYPE_EP_TYPE => t::ep_type(e()),
            FI_TYPE_CAPS => t::caps(f()),
            FI_TYPE_OP_FLAGS => t::op_flags(f()),
            FI_TYPE_ADDR_FORMAT => t::addr_format(e()),
            FI_TYPE_TX_ATTR => d::tx_attr(Some(&parts::tx(data.cast())), ""),
            FI_TYPE_RX_ATTR => d::rx_attr(Some(&parts::rx(data.cast())), ""),
            FI_TYPE_EP_ATTR => d::ep_attr(Some(&parts::ep(data.cast())), ""),
            FI_TYPE_DOMAIN_ATTR => d::domain_attr(Some(&parts::domain(data.cast())), ""),
            FI_TYPE_FABRIC_ATTR => {
                d::fabric_attr(Some(&parts::fabric(data.cast(), V1_10.fabric)), "")
            }
            FI_TYPE_THREADING => t::threading(e()),
            FI_TYPE_PROGRESS => t::progress(e()),
            FI_TYPE_PROTOCOL => t::protocol(e()),
            FI_TYPE_MSG_ORDER => t::msg_order(f()),
            FI_TYPE_MODE => t::mode(f()),
            FI_TYPE_AV_TYPE => t::av_type(e()),
            FI_TYPE_ATOMIC_TYPE => t::atomic_type(e()),
            FI_TYPE_ATOMIC_OP => t::atomic_op(e()),
            FI_TYPE_VERSION => crate::core::LIBRARY_VERSION.to_string() + crate::core::OWN_RELEASE,
            FI_TYPE_EQ_EVENT => t::eq_event(e()),
            FI_TYPE_CQ_EVENT_FLAGS => t::cq_event_flags(f()),
            FI_TYPE_MR_MODE => t::mr_mode(u64::from(e())),
            FI_TYPE_OP_TYPE => t::op_type(e()),
            FI_TYPE_FID => fid_text(data.cast()),
            FI_TYPE_COLLECTIVE_OP => t::collective_op(e()),
            FI_TYPE_HMEM_IFACE => t::hmem_iface(e()),
            FI_TYPE_CQ_FORMAT => t::cq_format(e()),
            FI_TYPE_LOG_LEVEL => log::level_name(e()).into(),
            FI_TYPE_LOG_SUBSYS => log::subsys_name(e()).into(),
            FI_TYPE_AV_ATTR => av_attr(&*data.cast()),
            FI_TYPE_CQ_ATTR => cq_attr(&*data.cast()),
            FI_TYPE_MR_ATTR => mr_attr(&*data.cast()),
            FI_TYPE_CNTR_ATTR => cntr_attr(&*data.cast()),
            FI_TYPE_CQ_ERR_ENTRY => cq_err_entry(&*data.cast()),
            FI_TYPE_CQ_WAIT_COND => t::cq_wait_cond(e()),
            FI_TYPE_WAIT_OBJ => t::wait_obj(e()),
            _ => "Unknown type".to_string(),
        }
    }
}

/// # Safety
/// `f` points to an object of any class.
unsafe fn fid_text(f: *const fid) -> String {
    // SAFETY: every object begins with a valid fid.
    unsafe {
        if (*f).fclass == FI_CLASS_NIC {
            return d::nic(&parts::nic(f.cast()));
        }
    }
    format!("fid: {}\n", d::pointer(f as usize))
}

fn av_attr(a: &fi_av_attr) -> String {
    // SAFETY: the name is NULL or a string, as in any valid fi_av_attr.
    let name = unsafe { super::info::string(a.name) };
    format!(
        "fi_av_attr:\n    type: {}\n    count: {}\n    ep_per_node: {}\n    name: {}\n    flags: [ \
         {} ]\n",
        t::av_type(a.r#type),
        a.count,
        a.ep_per_node,
        d::text(&name),
        t::av_flags(a.flags)
    )
}

fn cq_attr(a: &fi_cq_attr) -> String {
    format!(
        "fi_cq_attr:\n    size: {}\n    flags: [ {} ]\n    format: {}\n    wait_obj: {}\n    \
         signaling_vector: {}\n    wait_cond: {}\n    xpu_ctx: {}\n",
        a.size,
        t::cq_flags(a.flags),
        t::cq_format(a.format),
        t::wait_obj(a.wait_obj),
        a.signaling_vector,
        t::cq_wait_cond(a.wait_cond),
        d::pointer(a.xpu_ctx as usize)
    )
}

fn mr_attr(a: &fi_mr_attr) -> String {
    // SAFETY: both members of the union are pointers; only the address is printed.
    let iov = unsafe { a.src.mr_iov } as usize;
    format!(
        "fi_mr_attr:\n    mr_iov: {}\n    iov_count: {}\n    access: [ {} ]\n    offset: {:#x}\n\
         \x20   requested_key: {:#x}\n    context: {}\n    auth_key_size: {}\n    iface: {}\n",
        d::pointer(iov),
        a.iov_count,
        t::mr_access(a.access),
        a.offset,
        a.requested_key,
        d::pointer(a.context as usize),
        a.auth_key_size,
        t::hmem_iface(a.iface)
    )
}

fn cntr_attr(a: &fi_cntr_attr) -> String {
    format!(
        "fi_cntr_attr:\n    events: {}\n    wait_obj: {}\n    flags: {:#x}\n    xpu_ctx: {}\n",
        t::cntr_events(a.events),
        t::wait_obj(a.wait_obj),
        a.flags,
        d::pointer(a.xpu_ctx as usize)
    )
}

fn cq_err_entry(e: &fi_cq_err_entry) -> String {
    format!(
        "fi_cq_err_entry:\n    op_context: {}\n    flags: {:#x}\n    len: {}\n    buf: {}\n    \
         data: {}\n    tag: {:#x}\n    olen: {}\n    err: {}\n    prov_errno: {}\n    \
         err_data: {}\n    err_data_size: {}\n",
        d::pointer(e.op_context as usize),
        e.flags,
        e.len,
        d::pointer(e.buf as usize),
        e.data,
        e.tag,
        e.olen,
        e.err,
        e.prov_errno,
        d::pointer(e.err_data as usize),
        e.err_data_size
    )
}
