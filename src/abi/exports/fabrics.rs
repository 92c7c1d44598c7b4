//! fi_fabric(3) and fi_fabric2(3).

use super::init;
use crate::abi::entry::{entry, FromC, OutParam};
use crate::abi::{info, layout};
use crate::core::info::FabricAttr;
use crate::core::registry::{self, RegisteredProvider};
use crate::core::{errno, Result};
use crate::types::*;
use core::ffi::{c_int, c_void};

/// Opens the fabric that attributes name.
fn open_fabric(attr: &FabricAttr, context: *mut c_void) -> Result<*mut fid_fabric> {
    init();
    let (Some(prov), Some(_)) = (attr.prov_name.as_deref(), attr.name.as_deref()) else {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: attr->prov_name and attr->name must be set"
        );
        return Err(FI_EINVAL);
    };
    let Some(p) = registry::by_name(prov) else {
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: prov_name: wanted {prov}, had {}",
            registry::names(|_| true)
        );
        return Err(FI_ENODEV);
    };
    let fabric = p.open_fabric(attr, context as usize)?;
    Ok(hooked(fabric, &*p))
}

/// The fabric as the hooking providers wrap it that `FI_HOOK` names, each around the one before. A
/// hook that is not here, or fails, is left out.
fn hooked(mut fabric: *mut fid_fabric, p: &dyn RegisteredProvider) -> *mut fid_fabric {
    let hooks = std::env::var("FI_HOOK").unwrap_or_default();
    for name in hooks.split(';').map(str::trim).filter(|n| !n.is_empty()) {
        let Some(hook) = registry::hook(name) else {
            continue;
        };
        let attr = FabricAttr {
            fabric: fabric as usize,
            ..FabricAttr::default()
        };
        match hook.open_fabric(&attr, p.c_struct()) {
            Ok(wrapped) => fabric = wrapped,
            Err(e) => crate::warn_log!(
                FI_LOG_FABRIC,
                "FI_HOOK: {name} does not wrap this fabric: {}",
                errno::text(e)
            ),
        }
    }
    fabric
}

/// Attributes of a fabric, in today's layout.
impl FromC<*mut fi_fabric_attr> for FabricAttr {
    unsafe fn from_c(attr: *mut fi_fabric_attr) -> Result<Self> {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in today's layout.
        Ok(unsafe { info::parts::fabric(attr, layout::V1_10.fabric) })
    }
}

/// Attributes of a fabric in the layout of FABRIC_1.0, which has no API version.
struct FabricAttr10(FabricAttr);

impl FromC<*mut fi_fabric_attr> for FabricAttr10 {
    unsafe fn from_c(attr: *mut fi_fabric_attr) -> Result<Self> {
        if attr.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the attributes are valid in this layout.
        let mut a = unsafe { info::parts::fabric(attr, layout::V1_0.fabric) };
        a.api_version = crate::core::version(1, 0);
        Ok(FabricAttr10(a))
    }
}

/// The attributes of an info's fabric.
struct FabricOfInfo(FabricAttr);

impl FromC<*mut fi_info> for FabricOfInfo {
    unsafe fn from_c(i: *mut fi_info) -> Result<Self> {
        // SAFETY: the info is NULL or valid in today's layout.
        unsafe { FabricAttr::from_c(i.as_ref().ok_or(FI_EINVAL)?.fabric_attr) }.map(FabricOfInfo)
    }
}

entry! {
    /// fi_fabric(3): opens a fabric of the provider that `attr` names.
    ///
    /// Errors: `-FI_EINVAL` without `attr`, `out` or a name; `-FI_ENODEV` for an unknown provider.
    ///
    /// # Safety
    /// The pointer rules of [`crate::abi`].
    pub fn fabric(
        attr: *mut fi_fabric_attr as FabricAttr,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        context: *mut c_void,
    ) -> c_int = "fi_fabric" {
        open_fabric(&attr, context).map(|f| out.put(f))
    }
}

entry! {
    /// fi_fabric(3) of FABRIC_1.0, whose attributes have no API version.
    ///
    /// Errors: As [`fabric`].
    ///
    /// # Safety
    /// The pointer rules of [`crate::abi`].
    pub fn fabric_1_0(
        attr: *mut fi_fabric_attr as FabricAttr10,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        context: *mut c_void,
    ) -> c_int = "fi_fabric" {
        open_fabric(&attr.0, context).map(|f| out.put(f))
    }
}

entry! {
    /// fi_fabric2(3): opens the fabric of an info.
    ///
    /// Errors: `-FI_EBADFLAGS` for any flag; else as [`fabric`].
    ///
    /// # Safety
    /// The pointer rules of [`crate::abi`].
    pub fn fabric2(
        info: *mut fi_info as FabricOfInfo,
        out: *mut *mut fid_fabric as OutParam<*mut fid_fabric>,
        flags: u64,
        context: *mut c_void,
    ) -> c_int = "fi_fabric2" {
        if flags != 0 {
            crate::warn_log!(FI_LOG_FABRIC, "fi_fabric2: flags {flags:#x}: wanted none");
            return Err(FI_EBADFLAGS);
        }
        open_fabric(&info.0, context).map(|f| out.put(f))
    }
}
