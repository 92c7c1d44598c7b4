//! Mirror of `<rdma/fi_ext_efa.h>`: values and layouts only. Behaviour is documented in fi_efa(7).

use core::ffi::{c_char, c_int, c_uint, c_void};

#[allow(unused_imports)]
use super::*;

pub const FI_EFA_WR_HIGH_PPS: u64 = 1 << 60;

pub const FI_EFA_MR_ATTR_RECV_IC_ID: c_int = 1;
pub const FI_EFA_MR_ATTR_RDMA_READ_IC_ID: c_int = 2;
pub const FI_EFA_MR_ATTR_RDMA_RECV_IC_ID: c_int = 4;

pub const FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF: c_int = 1;

/// `enum fi_efa_wq_caps`; see fi_efa(7).
pub type fi_efa_wq_caps = c_uint;
pub const FI_EFA_WQ_CAPS_64_BIT_REQ_ID: fi_efa_wq_caps = 1;

/// `enum fi_efa_memory_location_type`; see fi_efa(7).
pub type fi_efa_memory_location_type = c_uint;
pub const FI_EFA_MEMORY_LOCATION_VA: fi_efa_memory_location_type = 0;
pub const FI_EFA_MEMORY_LOCATION_DMABUF: fi_efa_memory_location_type = 1;

pub const FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM: c_int = 1;
pub const FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM: c_int = 2;

/// `struct fi_efa_mr_attr` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_mr_attr {
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}

/// `struct fi_efa_wq_attr` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_wq_attr {
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    pub caps: u16,
}

/// `struct fi_efa_cq_attr` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_cq_attr {
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_cq_init_attr_ext_mem_dmabuf {
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: u32,
}
/// `struct fi_efa_cq_init_attr` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_cq_init_attr {
    pub flags: u64,
    pub ext_mem_dmabuf: fi_efa_cq_init_attr_ext_mem_dmabuf,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_memory_location_dmabuf {
    pub offset: u64,
    pub fd: i32,
    pub reserved: u32,
}
/// `struct fi_efa_memory_location` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_memory_location {
    pub ptr: *mut u8,
    pub dmabuf: fi_efa_memory_location_dmabuf,
    pub r#type: u8,
    pub reserved: [u8; 7],
}

/// `struct fi_efa_comp_cntr_init_attr` of the public headers; see fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: fi_efa_memory_location,
    pub err_cntr_ext_mem: fi_efa_memory_location,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_ops_domain {
    pub query_mr:
        Option<unsafe extern "C" fn(mr: *mut fid_mr, efa_mr_attr: *mut fi_efa_mr_attr) -> c_int>,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_ops_gda {
    pub query_addr: Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            addr: fi_addr_t,
            half: *mut u16,
            half2: *mut u16,
            word: *mut u32,
        ) -> c_int,
    >,
    pub query_qp_wqs: Option<
        unsafe extern "C" fn(
            ep: *mut fid_ep,
            efa_wq_attr: *mut fi_efa_wq_attr,
            efa_wq_attr2: *mut fi_efa_wq_attr,
        ) -> c_int,
    >,
    pub query_cq:
        Option<unsafe extern "C" fn(cq: *mut fid_cq, efa_cq_attr: *mut fi_efa_cq_attr) -> c_int>,
    pub cq_open_ext: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            cq_attr: *mut fi_cq_attr,
            efa_cq_init_attr: *mut fi_efa_cq_init_attr,
            cq: *mut *mut fid_cq,
            buf: *mut c_void,
        ) -> c_int,
    >,
    pub get_mr_lkey: Option<unsafe extern "C" fn(mr: *mut fid_mr) -> u64>,
    pub cntr_open_ext: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            cntr_attr: *mut fi_cntr_attr,
            cntr: *mut *mut fid_cntr,
            buf: *mut c_void,
            efa_comp_cntr_init_attr: *mut fi_efa_comp_cntr_init_attr,
        ) -> c_int,
    >,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_efa_feature_ops {
    pub query: Option<unsafe extern "C" fn(name: *const c_char) -> bool>,
}
