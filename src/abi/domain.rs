//! `fid_domain`: its life, and who opens what in it.

use super::fabric::FabricBody;
use super::object::*;
use super::{atomic, av, collective, ep, queues, sep, sets, shared};
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_domain`.
pub(crate) struct DomainBody<D: Domain> {
    pub domain: Arc<D>,
    eq: OnceLock<Arc<Eq>>,
}

/// Opens a domain.
///
/// # Safety
/// `out` is a place for a pointer.
pub(crate) unsafe fn open<D: Domain>(
    fabric: &FabricBody,
    info: Info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<()> {
    let domain = D::open(Arc::clone(fabric), info)?;
    let f = fid_domain {
        fid: new_fid(FI_CLASS_DOMAIN, context, Tables::<D>::DOMAIN_FI_OPS),
        ops: table(Tables::<D>::DOMAIN_OPS),
        mr: table(Tables::<D>::MR_OPS),
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
pub(crate) unsafe fn of<'a, D: Domain>(d: *mut fid_domain) -> Result<&'a Arc<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_domain, DomainBody<D>>(d) }.map(|b| &b.domain)
}

unsafe extern "C" fn domain_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only domains have this table.
        unsafe {
            body::<fid_domain, DomainBody<D>>(f.cast())?
                .domain
                .close()?;
            take::<fid_domain, DomainBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn domain_bind<D: Domain>(f: *mut fid, b: *mut fid, flags: u64) -> c_int {
    guard_int("fi_domain_bind", || {
        // SAFETY: only domains have this table; `b` is NULL or an open object.
        unsafe {
            let d = body::<fid_domain, DomainBody<D>>(f.cast())?;
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
unsafe extern "C" fn feature<D: Domain>(name: *const c_char) -> bool {
    // SAFETY: the name is NULL or a string.
    unsafe { super::info::string(name) }.is_some_and(|n| D::has_feature(&n))
}

impl<D: Domain> Tables<D> {
    pub(crate) const EFA_FEATURE_OPS: &'static fi_efa_feature_ops = &fi_efa_feature_ops {
        query: Some(feature::<D>),
    };
}

/// As [`feature`], where there is none.
unsafe extern "C" fn no_feature(_: *const c_char) -> bool {
    false
}

static NO_FEATURE_OPS: fi_efa_feature_ops = fi_efa_feature_ops {
    query: Some(no_feature),
};

/// Answers fi_open_ops(3) with the table that `find` names.
///
/// # Safety
/// `name` is NULL or a string, `ops` NULL or a place.
pub(crate) unsafe fn open_ops<D: Domain>(
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    find: impl FnOnce(&str) -> Result<Extension>,
) -> Result<()> {
    if name.is_null() || ops.is_null() {
        return Err(FI_EINVAL);
    }
    if flags != 0 {
        return Err(FI_EBADFLAGS);
    }
    // SAFETY: as promised by the caller.
    unsafe {
        *ops = null_mut();
        let name = super::info::string(name).ok_or(FI_EINVAL)?;
        *ops = match find(&name)? {
            Extension::EfaFeatures => table(Tables::<D>::EFA_FEATURE_OPS).cast(),
            Extension::EfaNoFeatures => table(&NO_FEATURE_OPS).cast(),
            Extension::EfaDomain => table(Tables::<D>::EFA_DOMAIN_OPS).cast(),
            Extension::EfaGda => table(Tables::<D>::EFA_GDA_OPS).cast(),
        };
    }
    Ok(())
}

unsafe extern "C" fn domain_ops_open<D: Domain>(
    f: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: only domains have this table; the name is a string, `ops` a place.
    guard_int("fi_open_ops", || unsafe {
        let d = body::<fid_domain, DomainBody<D>>(f.cast())?;
        open_ops::<D>(name, flags, ops, |name| d.domain.extension(name))
    })
}

unsafe extern "C" fn domain_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only domains have this table; `arg` is what the command wants.
        unsafe {
            let d = body::<fid_domain, DomainBody<D>>(f.cast())?;
            super::work::control(&*d.domain, command, arg)
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const DOMAIN_FI_OPS: &'static fi_ops = &fi_ops {
        ops_open: Some(domain_ops_open::<D>),
        ..ops(domain_close::<D>, domain_bind::<D>, domain_control::<D>)
    };
}

unsafe extern "C" fn xpu_ctx(
    _: *mut fid_domain,
    _: *mut fi_xpu_attr,
    _: *mut *mut fid_xpu_ctx,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

impl<D: Domain> Tables<D> {
    pub(crate) const DOMAIN_OPS: &'static fi_ops_domain = &fi_ops_domain {
        size: size_of::<fi_ops_domain>(),
        av_open: Some(av::av_open::<D>),
        cq_open: Some(queues::cq_open::<D>),
        endpoint: Some(ep::endpoint::<D>),
        scalable_ep: Some(sep::scalable_ep::<D>),
        cntr_open: Some(queues::cntr_open::<D>),
        poll_open: Some(sets::poll_open::<D>),
        stx_ctx: Some(shared::stx_ctx::<D>),
        srx_ctx: Some(shared::srx_ctx::<D>),
        query_atomic: Some(atomic::query_atomic::<D>),
        query_collective: Some(collective::query_collective::<D>),
        endpoint2: Some(ep::endpoint2::<D>),
        xpu_ctx: Some(xpu_ctx),
    };
}
