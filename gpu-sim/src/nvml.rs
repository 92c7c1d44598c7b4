//! The management library (libnvidia-ml.so.1): how many GPUs there are, without a context.

use crate::config;
use core::ffi::{c_int, c_uint, c_void};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn nvmlInit_v2() -> c_int {
    config::failure("nvmlInit_v2").unwrap_or(SUCCESS)
}

/// # Safety
/// None.
#[no_mangle]
pub unsafe extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// # Safety
/// `n` is NULL or a place for a number.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(n: *mut c_uint) -> c_int {
    if n.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as promised by the caller.
    unsafe { n.write(config::get().gpus as c_uint) };
    SUCCESS
}

/// # Safety
/// `d` is NULL or a place for a handle.
#[no_mangle]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(i: c_uint, d: *mut *mut c_void) -> c_int {
    if d.is_null() || i as usize >= config::get().gpus {
        return INVALID_ARGUMENT;
    }
    // SAFETY: as promised by the caller.
    unsafe { d.write((i as usize + 1) as *mut c_void) };
    SUCCESS
}
