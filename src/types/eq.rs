//! Mirror of `<rdma/fi_eq.h>`: values and layouts only. Behaviour is documented in fi_eq(3),
//! fi_cq(3), fi_cntr(3), fi_poll(3).

use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{pollfd, pthread_cond_t, pthread_mutex_t, ssize_t};

#[allow(unused_imports)]
use super::*;

/// `enum fi_wait_obj`; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
pub type fi_wait_obj = c_uint;
pub const FI_WAIT_NONE: fi_wait_obj = 0;
pub const FI_WAIT_UNSPEC: fi_wait_obj = 1;
pub const FI_WAIT_SET: fi_wait_obj = 2;
pub const FI_WAIT_FD: fi_wait_obj = 3;
pub const FI_WAIT_MUTEX_COND: fi_wait_obj = 4;
pub const FI_WAIT_YIELD: fi_wait_obj = 5;
pub const FI_WAIT_POLLFD: fi_wait_obj = 6;

pub const FI_NOTIFY: u32 = 0;
pub const FI_CONNREQ: u32 = 1;
pub const FI_CONNECTED: u32 = 2;
pub const FI_SHUTDOWN: u32 = 3;
pub const FI_MR_COMPLETE: u32 = 4;
pub const FI_AV_COMPLETE: u32 = 5;
pub const FI_JOIN_COMPLETE: u32 = 6;

/// `enum fi_cq_format`; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
pub type fi_cq_format = c_uint;
pub const FI_CQ_FORMAT_UNSPEC: fi_cq_format = 0;
pub const FI_CQ_FORMAT_CONTEXT: fi_cq_format = 1;
pub const FI_CQ_FORMAT_MSG: fi_cq_format = 2;
pub const FI_CQ_FORMAT_DATA: fi_cq_format = 3;
pub const FI_CQ_FORMAT_TAGGED: fi_cq_format = 4;

/// `enum fi_cq_wait_cond`; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
pub type fi_cq_wait_cond = c_uint;
pub const FI_CQ_COND_NONE: fi_cq_wait_cond = 0;
pub const FI_CQ_COND_THRESHOLD: fi_cq_wait_cond = 1;

/// `enum fi_cntr_events`; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
pub type fi_cntr_events = c_uint;
pub const FI_CNTR_EVENTS_COMP: fi_cntr_events = 0;
pub const FI_CNTR_EVENTS_BYTES: fi_cntr_events = 1;

/// `struct fi_wait_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_wait_attr {
    pub wait_obj: fi_wait_obj,
    pub flags: u64,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
/// fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_wait {
    pub size: usize,
    pub wait: Option<unsafe extern "C" fn(waitset: *mut fid_wait, timeout: c_int) -> c_int>,
}

/// `struct fid_wait` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_wait {
    pub fid: fid,
    pub ops: *mut fi_ops_wait,
}

/// `struct fi_mutex_cond` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mutex_cond {
    pub mutex: *mut pthread_mutex_t,
    pub cond: *mut pthread_cond_t,
}

/// `struct fi_wait_pollfd` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_wait_pollfd {
    pub change_index: u64,
    pub nfds: usize,
    pub fd: *mut pollfd,
}

/// `struct fi_poll_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_poll_attr {
    pub flags: u64,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
/// fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_poll {
    pub size: usize,
    pub poll: Option<
        unsafe extern "C" fn(
            pollset: *mut fid_poll,
            context: *mut *mut c_void,
            count: c_int,
        ) -> c_int,
    >,
    pub poll_add: Option<
        unsafe extern "C" fn(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int,
    >,
    pub poll_del: Option<
        unsafe extern "C" fn(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int,
    >,
}

/// `struct fid_poll` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_poll {
    pub fid: fid,
    pub ops: *mut fi_ops_poll,
}

/// `struct fi_eq_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_attr {
    pub size: usize,
    pub flags: u64,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_set: *mut fid_wait,
}

/// `struct fi_eq_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
}

/// An error event read with fi_eq_readerr(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_err_entry {
    pub fid: fid_t,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// `struct fi_eq_cm_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_eq_cm_entry {
    pub fid: fid_t,
    pub info: *mut fi_info,
    pub data: [u8; 0],
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
/// fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_eq {
    pub size: usize,
    pub read: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut c_void,
            len: usize,
            flags: u64,
        ) -> ssize_t,
    >,
    pub readerr: Option<
        unsafe extern "C" fn(eq: *mut fid_eq, buf: *mut fi_eq_err_entry, flags: u64) -> ssize_t,
    >,
    pub write: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: u32,
            buf: *const c_void,
            len: usize,
            flags: u64,
        ) -> ssize_t,
    >,
    pub sread: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            event: *mut u32,
            buf: *mut c_void,
            len: usize,
            timeout: c_int,
            flags: u64,
        ) -> ssize_t,
    >,
    pub strerror: Option<
        unsafe extern "C" fn(
            eq: *mut fid_eq,
            prov_errno: c_int,
            err_data: *const c_void,
            buf: *mut c_char,
            len: usize,
        ) -> *const c_char,
    >,
}

/// `struct fid_eq` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_eq {
    pub fid: fid,
    pub ops: *mut fi_ops_eq,
}

/// `struct fi_cq_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_entry {
    pub op_context: *mut c_void,
}

/// `struct fi_cq_msg_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_msg_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
}

/// `struct fi_cq_data_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// `struct fi_cq_tagged_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3),
/// fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// An error completion: `err` is a positive FI_E* value, `prov_errno` a device status for
/// fi_cq_strerror(3), `err_data` the provider text (library-owned buffers are valid until the next
/// fi_cq_readerr).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
    pub src_addr: fi_addr_t,
}

/// `struct fi_cq_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cq_attr {
    pub size: usize,
    pub flags: u64,
    pub format: fi_cq_format,
    pub wait_obj: fi_wait_obj,
    pub signaling_vector: c_int,
    pub wait_cond: fi_cq_wait_cond,
    pub wait_set: *mut fid_wait,
    pub xpu_ctx: *mut fid_xpu_ctx,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
/// fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cq {
    pub size: usize,
    pub read:
        Option<unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> ssize_t>,
    pub readfrom: Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut c_void,
            count: usize,
            src_addr: *mut fi_addr_t,
        ) -> ssize_t,
    >,
    pub readerr: Option<
        unsafe extern "C" fn(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, flags: u64) -> ssize_t,
    >,
    pub sread: Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut c_void,
            count: usize,
            cond: *const c_void,
            timeout: c_int,
        ) -> ssize_t,
    >,
    pub sreadfrom: Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            buf: *mut c_void,
            count: usize,
            src_addr: *mut fi_addr_t,
            cond: *const c_void,
            timeout: c_int,
        ) -> ssize_t,
    >,
    pub signal: Option<unsafe extern "C" fn(cq: *mut fid_cq) -> c_int>,
    pub strerror: Option<
        unsafe extern "C" fn(
            cq: *mut fid_cq,
            prov_errno: c_int,
            err_data: *const c_void,
            buf: *mut c_char,
            len: usize,
        ) -> *const c_char,
    >,
    pub export_xpu:
        Option<unsafe extern "C" fn(cq: *mut fid_cq, flags: u64, xpu_cq: *mut fid_xpu_cq) -> c_int>,
}

/// `struct fid_cq` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_cq {
    pub fid: fid,
    pub ops: *mut fi_ops_cq,
}

/// `struct fi_cntr_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_cntr_attr {
    pub events: fi_cntr_events,
    pub wait_obj: fi_wait_obj,
    pub wait_set: *mut fid_wait,
    pub flags: u64,
    pub xpu_ctx: *mut fid_xpu_ctx,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
/// fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_cntr {
    pub size: usize,
    pub read: Option<unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64>,
    pub readerr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr) -> u64>,
    pub add: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    pub set: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    pub wait:
        Option<unsafe extern "C" fn(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int>,
    pub adderr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    pub seterr: Option<unsafe extern "C" fn(cntr: *mut fid_cntr, value: u64) -> c_int>,
    pub export_xpu: Option<
        unsafe extern "C" fn(cntr: *mut fid_cntr, flags: u64, xpu_cntr: *mut fid_xpu_cntr) -> c_int,
    >,
}

/// `struct fid_cntr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_cntr {
    pub fid: fid,
    pub ops: *mut fi_ops_cntr,
}
