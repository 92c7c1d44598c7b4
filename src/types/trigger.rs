//! Mirror of `<rdma/fi_trigger.h>`: values and layouts only. Behaviour is documented in
//! fi_trigger(3).

use core::ffi::{c_int, c_uint, c_void};

#[allow(unused_imports)]
use super::*;

/// `enum fi_trigger_event`; see fi_trigger(3).
pub type fi_trigger_event = c_uint;
pub const FI_TRIGGER_THRESHOLD: fi_trigger_event = 0;
pub const FI_TRIGGER_XPU: fi_trigger_event = 1;

/// `enum fi_op_type`; see fi_trigger(3).
pub type fi_op_type = c_uint;
pub const FI_OP_RECV: fi_op_type = 0;
pub const FI_OP_SEND: fi_op_type = 1;
pub const FI_OP_TRECV: fi_op_type = 2;
pub const FI_OP_TSEND: fi_op_type = 3;
pub const FI_OP_READ: fi_op_type = 4;
pub const FI_OP_WRITE: fi_op_type = 5;
pub const FI_OP_ATOMIC: fi_op_type = 6;
pub const FI_OP_FETCH_ATOMIC: fi_op_type = 7;
pub const FI_OP_COMPARE_ATOMIC: fi_op_type = 8;
pub const FI_OP_CNTR_SET: fi_op_type = 9;
pub const FI_OP_CNTR_ADD: fi_op_type = 10;

/// `struct fi_trigger_threshold` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_threshold {
    pub cntr: *mut fid_cntr,
    pub threshold: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_var_value {
    pub val8: u8,
    pub val16: u16,
    pub val32: u32,
    pub val64: u64,
    pub data: *mut u8,
}
/// `struct fi_trigger_var` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_var {
    pub datatype: fi_datatype,
    pub count: c_int,
    pub addr: *mut c_void,
    pub value: fi_trigger_var_value,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_trigger_xpu_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
}
/// `struct fi_trigger_xpu` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_trigger_xpu {
    pub count: c_int,
    pub iface: fi_hmem_iface,
    pub device: fi_trigger_xpu_device,
    pub var: *mut fi_trigger_var,
}

/// `struct fi_op_msg` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_msg {
    pub ep: *mut fid_ep,
    pub msg: fi_msg,
    pub flags: u64,
}

/// `struct fi_op_tagged` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_tagged {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_tagged,
    pub flags: u64,
}

/// `struct fi_op_rma` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_rma {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_rma,
    pub flags: u64,
}

/// `struct fi_op_atomic` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub flags: u64,
}

/// `struct fi_op_fetch_atomic` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_fetch_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub flags: u64,
}

/// `struct fi_op_compare_atomic` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_compare_atomic {
    pub ep: *mut fid_ep,
    pub msg: fi_msg_atomic,
    pub fetch: fi_msg_fetch,
    pub compare: fi_msg_compare,
    pub flags: u64,
}

/// `struct fi_op_cntr` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_op_cntr {
    pub cntr: *mut fid_cntr,
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_triggered_context_trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 3],
}
/// `struct fi_triggered_context` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_triggered_context {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context_trigger,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_triggered_context2_trigger {
    pub threshold: fi_trigger_threshold,
    pub xpu: fi_trigger_xpu,
    pub internal: [*mut c_void; 7],
}
/// `struct fi_triggered_context2` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_triggered_context2 {
    pub event_type: fi_trigger_event,
    pub trigger: fi_triggered_context2_trigger,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_deferred_work_op {
    pub msg: *mut fi_op_msg,
    pub tagged: *mut fi_op_tagged,
    pub rma: *mut fi_op_rma,
    pub atomic: *mut fi_op_atomic,
    pub fetch_atomic: *mut fi_op_fetch_atomic,
    pub compare_atomic: *mut fi_op_compare_atomic,
    pub cntr: *mut fi_op_cntr,
}
/// `struct fi_deferred_work` of the public headers; see fi_trigger(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_deferred_work {
    pub context: fi_context2,
    pub threshold: u64,
    pub triggering_cntr: *mut fid_cntr,
    pub completion_cntr: *mut fid_cntr,
    pub op_type: fi_op_type,
    pub op: fi_deferred_work_op,
}
