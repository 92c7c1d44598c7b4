//! `fid_domain`: opening, closing, and the objects opened in it.

use super::entry::{entry, ControlArg, OutParam};
use super::fabric::FabricBody;
use super::handles::AnyObject;
use super::object::*;
use super::{atomic, av, cntr, collective, cq, ep, sep, sets, shared};
use crate::core::opened::Opened;
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
    /// The queue for events of endpoints that have none of their own (fi_domain_bind).
    pub eq: OnceLock<Arc<Eq>>,
    /// Known to fi_getinfo by its handle.
    opened: Opened,
    /// `fabric_attr->prov_name` of the info that it was opened with.
    provider: Option<String>,
}

impl<D: Domain> DomainBody<D> {
    /// Whether an info is of this domain's provider, as far as both say. `FI_ENODATA`, as the C
    /// library's providers return it.
    pub(super) fn provider_fits(&self, info: &Info) -> Result<()> {
        let of = info.fabric.as_ref().and_then(|f| f.prov_name.as_ref());
        match (of, &self.provider) {
            (Some(of), Some(own)) if !of.eq_ignore_ascii_case(own) => {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_endpoint: fabric_attr->prov_name: wanted {of}, had {own}: the info is not \
                     of the domain's provider"
                );
                Err(FI_ENODATA)
            }
            _ => Ok(()),
        }
    }
}

/// Opens a domain.
pub(crate) fn open<D: Domain>(
    fabric: &FabricBody,
    info: Info,
    context: *mut c_void,
) -> Result<*mut fid_domain> {
    let offer = info.clone();
    let provider = info.fabric.as_ref().and_then(|f| f.prov_name.clone());
    let domain = D::open(Arc::clone(fabric), info)?;
    let f = fid_domain {
        fid: new_fid(FI_CLASS_DOMAIN, context, Tables::<D>::DOMAIN_FI_OPS),
        ops: table(Tables::<D>::DOMAIN_OPS),
        mr: table(Tables::<D>::MR_OPS),
    };
    let opened = Opened::next();
    let body = DomainBody {
        domain,
        eq: OnceLock::new(),
        opened,
        provider,
    };
    let handle = hand_out(f, body);
    opened.domain(handle as usize, fabric.opened, &offer);
    Ok(handle)
}

close! {
    fn domain_close<D: Domain>(b: DomainBody<D> as fid_domain) {
        b.domain.close()?;
        b.opened.close();
        Ok(())
    }
}

entry! {
    fn domain_bind<D: Domain>(
        d: *mut fid as &DomainBody<D>,
        with: *mut fid as AnyObject<D>,
        flags: u64,
    ) -> c_int = "fi_domain_bind" {
        let AnyObject::Eq(q) = with else {
            return Err(FI_EINVAL);
        };
        if flags != 0 {
            crate::warn_log!(
                FI_LOG_DOMAIN,
                "fi_domain_bind: flags {flags:#x}: wanted none; registration is never asynchronous \
                 (FI_REG_MR)"
            );
            return Err(FI_EBADFLAGS);
        }
        d.eq.set(Arc::clone(&q.eq)).map_err(|_| FI_EINVAL)
    }
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

/// The table that fi_open_ops(3) gives out.
fn extension_table<D: Domain>(e: Extension) -> *mut c_void {
    match e {
        Extension::EfaFeatures => table(Tables::<D>::EFA_FEATURE_OPS).cast(),
        Extension::EfaNoFeatures => table(&NO_FEATURE_OPS).cast(),
        Extension::EfaDomain => table(Tables::<D>::EFA_DOMAIN_OPS).cast(),
        Extension::EfaGda => table(Tables::<D>::EFA_GDA_OPS).cast(),
    }
}

/// fi_open_ops of a domain and of a fabric: `FI_EBADFLAGS` for any flag, and NULL in `ops` where
/// the extension is not offered.
pub(super) fn open_extension<D: Domain>(
    flags: u64,
    ops: &OutParam<*mut c_void>,
    extension: impl FnOnce() -> Result<Extension>,
) -> Result<()> {
    if flags != 0 {
        return Err(FI_EBADFLAGS);
    }
    ops.put(null_mut());
    ops.put(extension_table::<D>(extension()?));
    Ok(())
}

entry! {
    fn domain_ops_open<D: Domain>(
        d: *mut fid as &DomainBody<D>,
        name: *const c_char as String,
        flags: u64,
        ops: *mut *mut c_void as OutParam<*mut c_void>,
        _context: *mut c_void,
    ) -> c_int = "fi_open_ops" {
        open_extension::<D>(flags, &ops, || d.domain.extension(&name))
    }
}

entry! {
    fn domain_control<D: Domain>(
        d: *mut fid as &DomainBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        super::work::control(&d.domain, command, &arg)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const DOMAIN_FI_OPS: &'static fi_ops = &fi_ops {
        ops_open: Some(domain_ops_open::<D>),
        ..ops(domain_close::<D>, domain_bind::<D>, domain_control::<D>)
    };
}

entry! {
    fn xpu_ctx(
        _domain: *mut fid_domain,
        _attr: *mut fi_xpu_attr,
        _out: *mut *mut fid_xpu_ctx,
        _context: *mut c_void,
    ) -> c_int = "fi_xpu_ctx" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const DOMAIN_OPS: &'static fi_ops_domain = &fi_ops_domain {
        size: size_of::<fi_ops_domain>(),
        av_open: Some(av::av_open::<D>),
        cq_open: Some(cq::cq_open::<D>),
        endpoint: Some(ep::endpoint::<D>),
        scalable_ep: Some(sep::scalable_ep::<D>),
        cntr_open: Some(cntr::cntr_open::<D>),
        poll_open: Some(sets::poll_open::<D>),
        stx_ctx: Some(shared::stx_ctx::<D>),
        srx_ctx: Some(shared::srx_ctx::<D>),
        query_atomic: Some(atomic::query_atomic::<D>),
        query_collective: Some(collective::query_collective::<D>),
        endpoint2: Some(ep::endpoint2::<D>),
        xpu_ctx: Some(xpu_ctx),
    };
}
