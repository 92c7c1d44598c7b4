//! Mirror of `<rdma/fi_ext.h>`: values and layouts only. Behaviour is documented in fi_provider(7),
//! fi_mr(3).

use core::ffi::{c_char, c_int, c_void};

#[allow(unused_imports)]
use super::*;

pub const FI_PROV_SPECIFIC_EFA: c_int = 251265024;
pub const FI_PROV_SPECIFIC_TCP: c_int = 130744320;
pub const FI_LOG_PROV_FILTERED: u64 = 1;

pub const FI_OPT_EFA_RNR_RETRY: c_int = -251265024;
pub const FI_OPT_EFA_EMULATED_READ: c_int = -251265023;
pub const FI_OPT_EFA_EMULATED_WRITE: c_int = -251265022;
pub const FI_OPT_EFA_EMULATED_ATOMICS: c_int = -251265021;
pub const FI_OPT_EFA_USE_DEVICE_RDMA: c_int = -251265020;
pub const FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES: c_int = -251265019;
pub const FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES: c_int = -251265018;
pub const FI_OPT_EFA_HOMOGENEOUS_PEERS: c_int = -251265017;
pub const FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV: c_int = -251265016;

/// `struct fi_fid_export` of the public headers; see fi_provider(7), fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_fid_export {
    pub fid: *mut *mut fid,
    pub flags: u64,
    pub context: *mut c_void,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
/// fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_monitor {
    pub size: usize,
    pub start: Option<unsafe extern "C" fn(mem_monitor: *mut fid_mem_monitor) -> c_int>,
    pub stop: Option<unsafe extern "C" fn(mem_monitor: *mut fid_mem_monitor)>,
    pub subscribe: Option<
        unsafe extern "C" fn(
            mem_monitor: *mut fid_mem_monitor,
            buf: *const c_void,
            len: usize,
        ) -> c_int,
    >,
    pub unsubscribe: Option<
        unsafe extern "C" fn(mem_monitor: *mut fid_mem_monitor, buf: *const c_void, len: usize),
    >,
    pub valid: Option<
        unsafe extern "C" fn(
            mem_monitor: *mut fid_mem_monitor,
            buf: *const c_void,
            len: usize,
        ) -> bool,
    >,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
/// fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mem_notify {
    pub size: usize,
    pub notify: Option<
        unsafe extern "C" fn(mem_monitor: *mut fid_mem_monitor, buf: *const c_void, len: usize),
    >,
}

/// `struct fid_mem_monitor` of the public headers; see fi_provider(7), fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mem_monitor {
    pub fid: fid,
    pub export_ops: *mut fi_ops_mem_monitor,
    pub import_ops: *mut fi_ops_mem_notify,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
/// fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_log {
    pub size: usize,
    pub enabled: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            flags: u64,
        ) -> c_int,
    >,
    pub ready: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            flags: u64,
            flags2: *mut u64,
        ) -> c_int,
    >,
    pub log: Option<
        unsafe extern "C" fn(
            prov: *const fi_provider,
            level: fi_log_level,
            subsys: fi_log_subsys,
            name: *const c_char,
            index: c_int,
            name2: *const c_char,
        ),
    >,
}

/// `struct fid_logging` of the public headers; see fi_provider(7), fi_mr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_logging {
    pub fid: fid,
    pub ops: *mut fi_ops_log,
}
