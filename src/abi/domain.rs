//! `fid_domain`: its life, and who opens what in it.

use super::fabric::FabricBody;
use super::object::*;
use super::{atomic, av, collective, efa_ops, ep, mr, queues, sep, sets, shared};
use crate::core::{Info, Result};
use crate::prov::efa::domain::Domain;
use crate::prov::efa::eq::Eq;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_domain`.
pub struct DomainBody {
    pub domain: Arc<Domain>,
    eq: OnceLock<Arc<Eq>>,
}

/// Opens a domain.
///
/// # Safety
/// `out` is a place for a pointer.
pub unsafe fn open(
    fabric: &FabricBody,
    info: Info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<()> {
    let domain = Domain::open(Arc::clone(fabric), info)?;
    let f = fid_domain {
        fid: new_fid(FI_CLASS_DOMAIN, context, &DOMAIN_FI_OPS),
        ops: table(&DOMAIN_OPS),
        mr: table(&mr::MR_OPS),
    };
    // SAFETY: as promised by the caller.
    unsafe {
        *out = hand_out(
            f,
            DomainBody {
                domain,
                eq: OnceLock::new(),
            },
        )
    };
    Ok(())
}

/// The domain behind a handle.
///
/// # Safety
/// `d` is NULL or a domain of ours.
pub unsafe fn of<'a>(d: *mut fid_domain) -> Result<&'a Arc<Domain>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_domain, DomainBody>(d) }.map(|b| &b.domain)
}

unsafe extern "C" fn domain_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only domains have this table.
        unsafe {
            body::<fid_domain, DomainBody>(f.cast())?.domain.close()?;
            take::<fid_domain, DomainBody>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn domain_bind(f: *mut fid, b: *mut fid, flags: u64) -> c_int {
    guard_int("fi_domain_bind", || {
        // SAFETY: only domains have this table; `b` is NULL or an open object.
        unsafe {
            let d = body::<fid_domain, DomainBody>(f.cast())?;
            if b.is_null() || (*b).fclass != FI_CLASS_EQ {
                return Err(FI_EINVAL);
            }
            if flags & !FI_REG_MR != 0 {
                return Err(FI_EBADFLAGS);
            }
            let eq = super::fabric::eq_of(b.cast())?;
            d.eq.set(eq).map_err(|_| FI_EINVAL)
        }
    })
}

/// Feature strings that `FI_EFA_FEATURE_OPS` answers for.
unsafe extern "C" fn feature(name: *const c_char) -> bool {
    // SAFETY: the name is NULL or a string.
    unsafe { super::info::string(name) }.as_deref() == Some("mixed_hmem_iov")
}

static FEATURE_OPS: fi_efa_feature_ops = fi_efa_feature_ops {
    query: Some(feature),
};

unsafe extern "C" fn domain_ops_open(
    f: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    guard_int("fi_open_ops", || {
        if name.is_null() || ops.is_null() {
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        // SAFETY: only domains have this table; the name is a string, `ops` a place.
        unsafe {
            let d = body::<fid_domain, DomainBody>(f.cast())?;
            *ops = null_mut();
            *ops = match super::info::string(name).as_deref() {
                Some("efa feature ops") => table(&FEATURE_OPS).cast(),
                Some("efa domain ops") => table(&efa_ops::DOMAIN).cast(),
                Some("efa gda ops") if d.domain.direct() => table(&efa_ops::GDA).cast(),
                Some("efa gda ops") => return Err(FI_EOPNOTSUPP),
                _ => return Err(FI_ENOSYS),
            };
        }
        Ok(())
    })
}

unsafe extern "C" fn domain_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only domains have this table; `arg` is what the command wants.
        unsafe {
            let d = body::<fid_domain, DomainBody>(f.cast())?;
            super::work::control(&d.domain, command, arg)
        }
    })
}

static DOMAIN_FI_OPS: fi_ops = fi_ops {
    ops_open: Some(domain_ops_open),
    ..ops(domain_close, domain_bind, domain_control)
};

unsafe extern "C" fn xpu_ctx(
    _: *mut fid_domain,
    _: *mut fi_xpu_attr,
    _: *mut *mut fid_xpu_ctx,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av::av_open),
    cq_open: Some(queues::cq_open),
    endpoint: Some(ep::endpoint),
    scalable_ep: Some(sep::scalable_ep),
    cntr_open: Some(queues::cntr_open),
    poll_open: Some(sets::poll_open),
    stx_ctx: Some(shared::stx_ctx),
    srx_ctx: Some(shared::srx_ctx),
    query_atomic: Some(atomic::query_atomic),
    query_collective: Some(collective::query_collective),
    endpoint2: Some(ep::endpoint2),
    xpu_ctx: Some(xpu_ctx),
};
