//! Mirror of `<rdma/fi_xpu.h>`: values and layouts only. Behaviour is documented in the fi_xpu
//! calls of 2.7.

use core::ffi::{c_int, c_uint, c_void};

#[allow(unused_imports)]
use super::*;

pub const FI_XPU_ALLOC_DMABUF: u64 = 1 << 0;
pub const FI_XPU_IMPORT_IOMEMORY: u64 = 1 << 0;
pub const FI_XPU_IMPORT_DEVICEMAP: u64 = 1 << 1;
pub const FI_XPU_CAP_EP: u64 = 1 << 0;
pub const FI_XPU_CAP_CQ: u64 = 1 << 1;
pub const FI_XPU_CAP_CNTR: u64 = 1 << 2;

pub const FI_XPU_WORK_ITEM: c_int = 0;
pub const FI_XPU_SUBGROUP: c_int = 1;
pub const FI_XPU_WORK_GROUP: c_int = 2;
pub const FI_XPU_DEVICE: c_int = 3;

/// `enum fi_xpu_provider`; see the fi_xpu calls of 2.7.
pub type fi_xpu_provider = c_uint;
pub const FI_XPU_PROV_EFA: fi_xpu_provider = 1;

/// Operations table; `size` is its size in bytes as the provider knows it. See the fi_xpu calls of
/// 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_ops {
    pub size: usize,
    pub alloc: Option<
        unsafe extern "C" fn(
            flags: u64,
            flags2: u64,
            flags3: u64,
            flags4: u64,
            buf: *mut *mut c_void,
            index: *mut c_int,
            flags5: *mut u64,
        ) -> c_int,
    >,
    pub import: Option<
        unsafe extern "C" fn(
            flags: u64,
            buf: *mut c_void,
            flags2: u64,
            flags3: u64,
            buf2: *mut *mut c_void,
        ) -> c_int,
    >,
    pub free: Option<unsafe extern "C" fn(flags: u64, buf: *mut c_void)>,
}

/// `struct fi_xpu_attr` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_attr {
    pub iface: fi_hmem_iface,
    pub device: u64,
    pub ops: *mut fi_xpu_ops,
}

/// `struct fi_xpu_ctx_attr` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_xpu_ctx_attr {
    pub caps: u64,
    pub av_addr_size: usize,
    pub mr_desc_size: usize,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See the fi_xpu calls of
/// 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_xpu_ctx {
    pub size: usize,
    pub query:
        Option<unsafe extern "C" fn(ctx: *mut fid_xpu_ctx, attr: *mut fi_xpu_ctx_attr) -> c_int>,
}

/// `struct fid_xpu_ctx` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_ctx {
    pub fid: fid,
    pub ops: *mut fi_ops_xpu_ctx,
}

/// `struct fid_xpu` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu {
    pub fclass: u32,
    pub prov_id: u32,
    pub prov_ctx: u64,
}

/// `struct fid_xpu_ep` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_ep {
    pub fid: fid_xpu,
}

/// `struct fid_xpu_cq` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_cq {
    pub fid: fid_xpu,
}

/// `struct fid_xpu_cntr` of the public headers; see the fi_xpu calls of 2.7.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_xpu_cntr {
    pub fid: fid_xpu,
}
