//! fi_getinfo(3), fi_dupinfo and fi_freeinfo. Their eight versions differ in the layout of their
//! structs only (`layout`): `MINOR` is 8 in what FABRIC_1.8 exports.

use super::init;
use crate::abi::entry::guard;
use crate::abi::info;
use crate::abi::layout;
use crate::core::registry::{self, Query};
use crate::core::Info;
use crate::types::*;
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;

/// fi_getinfo(3).
///
/// # Safety
/// The pointer rules of [`crate::abi`]; structs have the layout of the node.
pub unsafe extern "C" fn getinfo<const MINOR: u32>(
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    let l = const { &layout::of_node(MINOR) };
    guard("fi_getinfo", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        init();
        // SAFETY: as promised by the caller.
        unsafe {
            *out = null_mut();
            let (node, service) = (info::string(node), info::string(service));
            let hints = info::read(hints, l);
            let q = Query {
                api,
                node: node.as_deref(),
                service: service.as_deref(),
                flags,
                hints: hints.as_ref(),
            };
            let list = registry::getinfo(&q)?;
            *out = info::write_list(&list, l);
            if (*out).is_null() {
                return Err(FI_ENOMEM);
            }
        }
        Ok(())
    })
}

/// fi_dupinfo(3).
///
/// # Safety
/// The pointer rules of [`crate::abi`]; structs have the layout of the node.
pub unsafe extern "C" fn dupinfo<const MINOR: u32>(i: *const fi_info) -> *mut fi_info {
    let l = const { &layout::of_node(MINOR) };
    let copy: *const fi_info = guard("fi_dupinfo", || {
        // SAFETY: as promised by the caller.
        let i = unsafe { info::read(i, l) }.unwrap_or_else(Info::empty);
        Ok(info::write(&i, l).cast_const())
    });
    copy.cast_mut()
}

/// fi_freeinfo(3).
///
/// # Safety
/// The pointer rules of [`crate::abi`]; structs have the layout of the node.
pub unsafe extern "C" fn freeinfo<const MINOR: u32>(i: *mut fi_info) {
    let l = const { &layout::of_node(MINOR) };
    // SAFETY: as promised by the caller.
    let _: c_int = guard("fi_freeinfo", || unsafe {
        info::free_list(i, l);
        Ok(())
    });
}
