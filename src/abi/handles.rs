//! Which body the object of each handle has, and what a handle of any class is.

use super::av::AvBody;
use super::av_set::SetBody;
use super::cm::PepBody;
use super::cntr::CntrBody;
use super::cq::CqBody;
use super::domain::DomainBody;
use super::entry::FromC;
use super::ep::EpBody;
use super::fabric::{EqBody, FabricBody};
use super::logging::Import;
use super::mr::MrBody;
use super::object::{body, body_of_type};
use super::sets::{PollBody, WaitBody};
use super::shared::StxBody;
use crate::core::Result;
use crate::prov::contract::Domain;
use crate::types::*;
use core::ffi::c_int;
use core::marker::PhantomData;
use std::sync::Arc;

/// Converts the handles of a class, and the `fid` that they begin with.
macro_rules! handles {
    ($([$($d:ident)?] $body:ty: $fid:ty;)+) => {$(
        impl $(<$d: Domain>)? FromC<*mut $fid> for &$body {
            #[inline(always)]
            unsafe fn from_c(p: *mut $fid) -> Result<Self> {
                // SAFETY: the handle came through a table that only such objects have.
                unsafe { body::<$fid, $body>(p) }
            }
        }
        impl $(<$d: Domain>)? FromC<*mut fid> for &$body {
            #[inline(always)]
            unsafe fn from_c(p: *mut fid) -> Result<Self> {
                // SAFETY: as above; a handle begins with its `fid`.
                unsafe { body::<$fid, $body>(p.cast()) }
            }
        }
    )+};
}

handles! {
    [] FabricBody: fid_fabric;
    [] EqBody: fid_eq;
    [] Import: fid_logging;
    [D] DomainBody<D>: fid_domain;
    [D] PepBody<D>: fid_pep;
    [D] EpBody<D>: fid_ep;
    [D] AvBody<D>: fid_av;
    [D] SetBody<D>: fid_av_set;
    [D] CqBody<D>: fid_cq;
    [D] CntrBody<D>: fid_cntr;
    [D] MrBody<D>: fid_mr;
    [D] PollBody<D>: fid_poll;
    [D] Arc<WaitBody<D>>: fid_wait;
}

/// A domain, for the calls that open something in it.
impl<'a, D: Domain> FromC<*mut fid_domain> for &'a Arc<D> {
    #[inline(always)]
    unsafe fn from_c(p: *mut fid_domain) -> Result<Self> {
        // SAFETY: as promised by the caller.
        let b: &'a DomainBody<D> = unsafe { FromC::from_c(p)? };
        Ok(&b.domain)
    }
}

/// The handle of a set that another call reads.
impl<D: Domain> FromC<*const fid_av_set> for &SetBody<D> {
    unsafe fn from_c(p: *const fid_av_set) -> Result<Self> {
        // SAFETY: as promised by the caller.
        unsafe { FromC::from_c(p.cast_mut()) }
    }
}

/// An object of one of the classes that other objects work with.
pub(crate) enum AnyObject<'a, D: Domain> {
    Domain(&'a DomainBody<D>),
    Eq(&'a EqBody),
    Av(&'a AvBody<D>),
    Cq(&'a CqBody<D>),
    Cntr(&'a CntrBody<D>),
    Ep(&'a EpBody<D>),
    SharedRx(&'a EpBody<D>),
    SharedTx,
    Passive(&'a PepBody<D>),
    Wait(&'a Arc<WaitBody<D>>),
    Set(&'a SetBody<D>),
    /// Any other, by its class.
    Other(usize),
}

/// `FI_EINVAL` for NULL and for an object of another provider, `FI_EBADF` for a closed one.
impl<'a, D: Domain> FromC<*mut fid> for AnyObject<'a, D> {
    unsafe fn from_c(f: *mut fid) -> Result<Self> {
        // SAFETY: as promised by the caller; the objects of these classes are the library's own,
        // and their types differ with the provider only.
        unsafe {
            Ok(match f.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_DOMAIN => AnyObject::Domain(body_of_type::<fid_domain, _>(f)?),
                FI_CLASS_EQ => AnyObject::Eq(body_of_type::<fid_eq, _>(f)?),
                FI_CLASS_AV => AnyObject::Av(body_of_type::<fid_av, _>(f)?),
                FI_CLASS_CQ => AnyObject::Cq(body_of_type::<fid_cq, _>(f)?),
                FI_CLASS_CNTR => AnyObject::Cntr(body_of_type::<fid_cntr, _>(f)?),
                FI_CLASS_EP => AnyObject::Ep(body_of_type::<fid_ep, _>(f)?),
                FI_CLASS_SRX_CTX => AnyObject::SharedRx(body_of_type::<fid_ep, _>(f)?),
                FI_CLASS_STX_CTX => {
                    body_of_type::<fid_stx, StxBody<D>>(f)?;
                    AnyObject::SharedTx
                }
                FI_CLASS_PEP => AnyObject::Passive(body_of_type::<fid_pep, _>(f)?),
                FI_CLASS_WAIT => AnyObject::Wait(body_of_type::<fid_wait, _>(f)?),
                FI_CLASS_AV_SET => AnyObject::Set(body_of_type::<fid_av_set, _>(f)?),
                class => AnyObject::Other(class),
            })
        }
    }
}

impl<D: Domain> AnyObject<'_, D> {
    /// Its class, for a line in the log.
    pub(crate) fn class(&self) -> usize {
        match self {
            AnyObject::Domain(_) => FI_CLASS_DOMAIN,
            AnyObject::Eq(_) => FI_CLASS_EQ,
            AnyObject::Av(_) => FI_CLASS_AV,
            AnyObject::Cq(_) => FI_CLASS_CQ,
            AnyObject::Cntr(_) => FI_CLASS_CNTR,
            AnyObject::Ep(_) => FI_CLASS_EP,
            AnyObject::SharedRx(_) => FI_CLASS_SRX_CTX,
            AnyObject::SharedTx => FI_CLASS_STX_CTX,
            AnyObject::Passive(_) => FI_CLASS_PEP,
            AnyObject::Wait(_) => FI_CLASS_WAIT,
            AnyObject::Set(_) => FI_CLASS_AV_SET,
            AnyObject::Other(class) => *class,
        }
    }
}

/// An array of handles.
pub(crate) struct Handles<'a, D> {
    list: &'a [*mut fid],
    of: PhantomData<D>,
}

impl<'a, D: Domain> Handles<'a, D> {
    /// What they are, one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<AnyObject<'a, D>>> + '_ {
        // SAFETY: every element is NULL or an object, as the caller of the entry point vouches.
        self.list.iter().map(|f| unsafe { FromC::from_c(*f) })
    }
}

impl<D> FromC<(*mut *mut fid, c_int)> for Handles<'_, D> {
    unsafe fn from_c((list, count): (*mut *mut fid, c_int)) -> Result<Self> {
        let (false, Ok(count)) = (list.is_null(), usize::try_from(count)) else {
            return Err(FI_EINVAL);
        };
        // SAFETY: the caller passes as many handles as it says.
        let list = unsafe { core::slice::from_raw_parts(list, count) };
        let of = PhantomData;
        Ok(Handles { list, of })
    }
}
