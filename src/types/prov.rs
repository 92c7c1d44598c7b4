//! Mirror of `<rdma/providers/fi_prov.h>`: values and layouts only. Behaviour is documented in
//! fi_provider(3).

use core::ffi::{c_char, c_int, c_void};

#[allow(unused_imports)]
use super::*;

/// What an external provider returns from its entry point `fi_prov_ini`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    pub context: fi_context,
    pub name: *const c_char,
    pub getinfo: Option<
        unsafe extern "C" fn(
            word: u32,
            name: *const c_char,
            name2: *const c_char,
            flags: u64,
            info: *const fi_info,
            info2: *mut *mut fi_info,
        ) -> c_int,
    >,
    pub fabric: Option<
        unsafe extern "C" fn(
            fabric_attr: *mut fi_fabric_attr,
            fabric: *mut *mut fid_fabric,
            buf: *mut c_void,
        ) -> c_int,
    >,
    pub cleanup: Option<unsafe extern "C" fn()>,
}
