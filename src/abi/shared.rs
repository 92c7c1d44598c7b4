//! Shared contexts, fi_srx_context(3) and fi_stx_context(3).
//!
//! A shared receive context is a receive queue that endpoints are bound to; its handle is that of
//! an endpoint that only receives. A shared transmit context is a name: every endpoint has a queue
//! pair of its own.

use super::domain::of;
use super::ep::{ep, new_ep, EpBody};
use super::object::*;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

pub(crate) unsafe extern "C" fn srx_ctx<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_srx_context", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        let (domain, attr) = unsafe { (of::<D>(d)?, attr.as_ref()) };
        let (caps, flags) = (attr.map(|a| a.caps), attr.map_or(0, |a| a.op_flags));
        let id = domain.open_srx(caps, flags)?;
        let f = new_ep::<D>(FI_CLASS_SRX_CTX, context, Tables::<D>::SRX_FI_OPS);
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, EpBody::new(domain, Poster::Srx(id))) };
        Ok(())
    })
}

unsafe extern "C" fn srx_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only shared receive contexts have this table.
        unsafe {
            let b = ep::<D>(f.cast())?;
            let Poster::Srx(id) = b.who else {
                return Err(FI_EINVAL);
            };
            b.domain.close_srx(id)?;
            take::<fid_ep, EpBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn srx_control<D: Domain>(f: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only shared receive contexts have this table.
        unsafe { ep::<D>(f.cast())? };
        // It is ready when it is open.
        if command == FI_ENABLE {
            Ok(())
        } else {
            Err(FI_ENOSYS)
        }
    })
}

unsafe extern "C" fn srx_bind<D: Domain>(f: *mut fid, with: *mut fid, _: u64) -> c_int {
    guard_int("fi_ep_bind", || {
        // SAFETY: only shared receive contexts have this table; `with` is NULL or an open object.
        unsafe {
            ep::<D>(f.cast())?;
            // Completions go to the queues of the endpoints: these bindings ask for nothing more.
            match with.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_CQ | FI_CLASS_CNTR | FI_CLASS_AV | FI_CLASS_EQ => Ok(()),
                _ => Err(FI_EINVAL),
            }
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const SRX_FI_OPS: &'static fi_ops =
        &ops(srx_close::<D>, srx_bind::<D>, srx_control::<D>);
}

/// Body of a `fid_stx`.
pub(crate) struct StxBody<D: Domain> {
    _domain: Arc<D>,
}

pub(crate) unsafe extern "C" fn stx_ctx<D: Domain>(
    d: *mut fid_domain,
    _: *mut fi_tx_attr,
    out: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_stx_context", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours.
        let domain = unsafe { of::<D>(d)? };
        let f = fid_stx {
            fid: new_fid(FI_CLASS_STX_CTX, context, Tables::<D>::STX_FI_OPS),
            ops: super::ep::ep_ops::<D>(),
        };
        let b = StxBody {
            _domain: Arc::clone(domain),
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn stx_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only shared transmit contexts have this table.
        unsafe { take::<fid_stx, StxBody<D>>(f.cast())? };
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

impl<D: Domain> Tables<D> {
    pub(crate) const STX_FI_OPS: &'static fi_ops = &ops(stx_close::<D>, no_bind, no_control);
}
