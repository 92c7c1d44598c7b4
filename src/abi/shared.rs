//! Shared contexts, fi_srx_context(3) and fi_stx_context(3).
//!
//! A shared receive context is a receive queue that endpoints are bound to; its handle is that of
//! an endpoint that only receives. A shared transmit context is a name: every endpoint has a queue
//! pair of its own.

use super::domain::of;
use super::ep::{ep, new_ep, EpBody};
use super::object::*;
use crate::prov::efa::domain::Domain;
use crate::prov::efa::rdm::{Poster, Srx};
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

pub unsafe extern "C" fn srx_ctx(
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
        let (domain, attr) = unsafe { (of(d)?, attr.as_ref()) };
        let (caps, flags) = (attr.map(|a| a.caps), attr.map_or(0, |a| a.op_flags));
        let id = Srx::open(&mut domain.lock(), &domain.info, caps, flags);
        let f = new_ep(FI_CLASS_SRX_CTX, context, &SRX_FI_OPS);
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, EpBody::new(domain, Poster::Srx(id))) };
        Ok(())
    })
}

unsafe extern "C" fn srx_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only shared receive contexts have this table.
        unsafe {
            let b = ep(f.cast())?;
            let Poster::Srx(id) = b.who else {
                return Err(FI_EINVAL);
            };
            let mut s = b.domain.lock();
            if s.eps.iter().any(|(_, e)| e.uses_srx(id)) {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_close: this shared receive context still has endpoints bound to it"
                );
                return Err(FI_EBUSY);
            }
            Srx::close(&mut s, id);
            drop(s);
            take::<fid_ep, EpBody>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn srx_control(f: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only shared receive contexts have this table.
        unsafe { ep(f.cast())? };
        // It is ready when it is open.
        if command == FI_ENABLE {
            Ok(())
        } else {
            Err(FI_ENOSYS)
        }
    })
}

unsafe extern "C" fn srx_bind(f: *mut fid, with: *mut fid, _: u64) -> c_int {
    guard_int("fi_ep_bind", || {
        // SAFETY: only shared receive contexts have this table; `with` is NULL or an open object.
        unsafe {
            ep(f.cast())?;
            // Completions go to the queues of the endpoints: these bindings ask for nothing more.
            match with.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_CQ | FI_CLASS_CNTR | FI_CLASS_AV | FI_CLASS_EQ => Ok(()),
                _ => Err(FI_EINVAL),
            }
        }
    })
}

static SRX_FI_OPS: fi_ops = ops(srx_close, srx_bind, srx_control);

/// Body of a `fid_stx`.
pub struct StxBody {
    _domain: Arc<Domain>,
}

pub unsafe extern "C" fn stx_ctx(
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
        let domain = unsafe { of(d)? };
        let f = fid_stx {
            fid: new_fid(FI_CLASS_STX_CTX, context, &STX_FI_OPS),
            ops: super::ep::ep_ops(),
        };
        let b = StxBody {
            _domain: Arc::clone(domain),
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn stx_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only shared transmit contexts have this table.
        unsafe { take::<fid_stx, StxBody>(f.cast())? };
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

static STX_FI_OPS: fi_ops = ops(stx_close, no_bind, no_control);
