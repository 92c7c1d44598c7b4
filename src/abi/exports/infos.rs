//! fi_getinfo(3), fi_dupinfo and fi_freeinfo. Their eight versions differ in the layout of their
//! structs only, see `layout`.

use super::init;
use crate::abi::entry::guard;
use crate::abi::info;
use crate::abi::layout::{self, Layout};
use crate::core::registry::{self, Query};
use crate::core::Info;
use crate::types::*;
use core::ffi::{c_char, c_int};
use core::ptr::null_mut;

/// # Safety
/// As fi_getinfo(3), in the layout of the node.
unsafe fn getinfo(
    l: &Layout,
    api: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
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

/// # Safety
/// As fi_dupinfo(3), in the layout of the node.
unsafe fn dupinfo(l: &Layout, i: *const fi_info) -> *mut fi_info {
    let copy: *const fi_info = guard("fi_dupinfo", || {
        // SAFETY: as promised by the caller.
        let i = unsafe { info::read(i, l) }.unwrap_or_else(Info::empty);
        Ok(info::write(&i, l).cast_const())
    });
    copy.cast_mut()
}

/// # Safety
/// As fi_freeinfo(3), in the layout of the node.
unsafe fn freeinfo(l: &Layout, i: *mut fi_info) {
    // SAFETY: as promised by the caller.
    let _: c_int = guard("fi_freeinfo", || unsafe {
        info::free_list(i, l);
        Ok(())
    });
}

macro_rules! info_calls {
    ($($layout:ident: $get:ident $dup:ident $free:ident;)+) => {$(
        /// fi_getinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`crate::abi`].
        pub unsafe extern "C" fn $get(
            api: u32,
            node: *const c_char,
            service: *const c_char,
            flags: u64,
            hints: *const fi_info,
            out: *mut *mut fi_info,
        ) -> c_int {
            // SAFETY: as promised by our caller, whose structs are of this node.
            unsafe { getinfo(&layout::$layout, api, node, service, flags, hints, out) }
        }
        /// fi_dupinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`crate::abi`].
        pub unsafe extern "C" fn $dup(i: *const fi_info) -> *mut fi_info {
            // SAFETY: as above.
            unsafe { dupinfo(&layout::$layout, i) }
        }
        /// fi_freeinfo(3), in the layout of one version.
        ///
        /// # Safety
        /// The pointer rules of [`crate::abi`].
        pub unsafe extern "C" fn $free(i: *mut fi_info) {
            // SAFETY: as above.
            unsafe { freeinfo(&layout::$layout, i) }
        }
    )+};
}

info_calls! {
    V1_0: getinfo_1_0 dupinfo_1_0 freeinfo_1_0;
    V1_1: getinfo_1_1 dupinfo_1_1 freeinfo_1_1;
    V1_2: getinfo_1_2 dupinfo_1_2 freeinfo_1_2;
    V1_3: getinfo_1_3 dupinfo_1_3 freeinfo_1_3;
    V1_7: getinfo_1_7 dupinfo_1_7 freeinfo_1_7;
    V1_8: getinfo_1_8 dupinfo_1_8 freeinfo_1_8;
    V1_9: getinfo_1_9 dupinfo_1_9 freeinfo_1_9;
    V1_10: getinfo_1_10 dupinfo_1_10 freeinfo_1_10;
}
