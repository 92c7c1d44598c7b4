//! Mirror of `<rdma/fi_domain.h>`: values and layouts only. Behaviour is documented in
//! fi_domain(3), fi_mr(3), fi_av(3).

use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{iovec, ssize_t};

#[allow(unused_imports)]
use super::*;

pub const FI_SYMMETRIC: u64 = 1 << 59;
pub const FI_SYNC_ERR: u64 = 1 << 58;
pub const FI_UNIVERSE: u64 = 1 << 57;
pub const FI_BARRIER_SET: u64 = 1 << 40;
pub const FI_BROADCAST_SET: u64 = 1 << 41;
pub const FI_ALLTOALL_SET: u64 = 1 << 42;
pub const FI_ALLREDUCE_SET: u64 = 1 << 43;
pub const FI_ALLGATHER_SET: u64 = 1 << 44;
pub const FI_REDUCE_SCATTER_SET: u64 = 1 << 45;
pub const FI_REDUCE_SET: u64 = 1 << 46;
pub const FI_SCATTER_SET: u64 = 1 << 47;
pub const FI_GATHER_SET: u64 = 1 << 48;
pub const FI_MR_SINGLE_USE: u64 = 1 << 41;
pub const FI_HMEM_HOST_ALLOC: u64 = 1 << 45;
pub const FI_HMEM_DEVICE_ONLY: u64 = 1 << 46;
pub const FI_COLLECTIVE_OFFSET: u64 = 1 << 8;
pub const FI_REG_MR: u64 = 1 << 59;

/// `enum fi_hmem_iface`; see fi_domain(3), fi_mr(3), fi_av(3).
pub type fi_hmem_iface = c_uint;
pub const FI_HMEM_SYSTEM: fi_hmem_iface = 0;
pub const FI_HMEM_CUDA: fi_hmem_iface = 1;
pub const FI_HMEM_ROCR: fi_hmem_iface = 2;
pub const FI_HMEM_ZE: fi_hmem_iface = 3;
pub const FI_HMEM_NEURON: fi_hmem_iface = 4;
pub const FI_HMEM_SYNAPSEAI: fi_hmem_iface = 5;

/// `enum fi_datatype`; see fi_domain(3), fi_mr(3), fi_av(3).
pub type fi_datatype = c_uint;
pub const FI_INT8: fi_datatype = 0;
pub const FI_UINT8: fi_datatype = 1;
pub const FI_INT16: fi_datatype = 2;
pub const FI_UINT16: fi_datatype = 3;
pub const FI_INT32: fi_datatype = 4;
pub const FI_UINT32: fi_datatype = 5;
pub const FI_INT64: fi_datatype = 6;
pub const FI_UINT64: fi_datatype = 7;
pub const FI_FLOAT: fi_datatype = 8;
pub const FI_DOUBLE: fi_datatype = 9;
pub const FI_FLOAT_COMPLEX: fi_datatype = 10;
pub const FI_DOUBLE_COMPLEX: fi_datatype = 11;
pub const FI_LONG_DOUBLE: fi_datatype = 12;
pub const FI_LONG_DOUBLE_COMPLEX: fi_datatype = 13;
pub const FI_INT128: fi_datatype = 14;
pub const FI_UINT128: fi_datatype = 15;
pub const FI_FLOAT16: fi_datatype = 16;
pub const FI_BFLOAT16: fi_datatype = 17;
pub const FI_FLOAT8_E4M3: fi_datatype = 18;
pub const FI_FLOAT8_E5M2: fi_datatype = 19;
pub const FI_VOID: fi_datatype = 256;

/// `enum fi_op`; see fi_domain(3), fi_mr(3), fi_av(3).
pub type fi_op = c_uint;
pub const FI_MIN: fi_op = 0;
pub const FI_MAX: fi_op = 1;
pub const FI_SUM: fi_op = 2;
pub const FI_PROD: fi_op = 3;
pub const FI_LOR: fi_op = 4;
pub const FI_LAND: fi_op = 5;
pub const FI_BOR: fi_op = 6;
pub const FI_BAND: fi_op = 7;
pub const FI_LXOR: fi_op = 8;
pub const FI_BXOR: fi_op = 9;
pub const FI_ATOMIC_READ: fi_op = 10;
pub const FI_ATOMIC_WRITE: fi_op = 11;
pub const FI_CSWAP: fi_op = 12;
pub const FI_CSWAP_NE: fi_op = 13;
pub const FI_CSWAP_LE: fi_op = 14;
pub const FI_CSWAP_LT: fi_op = 15;
pub const FI_CSWAP_GE: fi_op = 16;
pub const FI_CSWAP_GT: fi_op = 17;
pub const FI_MSWAP: fi_op = 18;
pub const FI_DIFF: fi_op = 19;
pub const FI_NOOP: fi_op = 256;

/// `enum fi_collective_op`; see fi_domain(3), fi_mr(3), fi_av(3).
pub type fi_collective_op = c_uint;
pub const FI_BARRIER: fi_collective_op = 0;
pub const FI_BROADCAST: fi_collective_op = 1;
pub const FI_ALLTOALL: fi_collective_op = 2;
pub const FI_ALLREDUCE: fi_collective_op = 3;
pub const FI_ALLGATHER: fi_collective_op = 4;
pub const FI_REDUCE_SCATTER: fi_collective_op = 5;
pub const FI_REDUCE: fi_collective_op = 6;
pub const FI_SCATTER: fi_collective_op = 7;
pub const FI_GATHER: fi_collective_op = 8;

/// `struct fi_av_attr` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_av_attr {
    pub r#type: fi_av_type,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `struct fi_av_set_attr` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_av_set_attr {
    pub count: usize,
    pub start_addr: fi_addr_t,
    pub end_addr: fi_addr_t,
    pub stride: u64,
    pub comm_key_size: usize,
    pub comm_key: *mut u8,
    pub flags: u64,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
/// fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_av {
    pub size: usize,
    pub insert: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            addr: *const c_void,
            count: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub insertsvc: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            node: *const c_char,
            service: *const c_char,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub insertsym: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            node: *const c_char,
            nodecnt: usize,
            service: *const c_char,
            svccnt: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub remove: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: *mut fi_addr_t,
            count: usize,
            flags: u64,
        ) -> c_int,
    >,
    pub lookup: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            addr: *mut c_void,
            addrlen: *mut usize,
        ) -> c_int,
    >,
    pub straddr: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            addr: *const c_void,
            buf: *mut c_char,
            len: *mut usize,
        ) -> *const c_char,
    >,
    pub av_set: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            attr: *mut fi_av_set_attr,
            set: *mut *mut fid_av_set,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub insert_auth_key: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            auth_key: *const c_void,
            auth_key_size: usize,
            fi_addr: *mut fi_addr_t,
            flags: u64,
        ) -> c_int,
    >,
    pub lookup_auth_key: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            addr: fi_addr_t,
            auth_key: *mut c_void,
            auth_key_size: *mut usize,
        ) -> c_int,
    >,
    pub set_user_id: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            user_id: fi_addr_t,
            flags: u64,
        ) -> c_int,
    >,
    pub lookup2: Option<
        unsafe extern "C" fn(
            av: *mut fid_av,
            fi_addr: fi_addr_t,
            buf: *mut c_void,
            len: *mut usize,
            flags: u64,
            ctx: *mut fid_xpu_ctx,
        ) -> c_int,
    >,
}

/// `struct fid_av` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_av {
    pub fid: fid,
    pub ops: *mut fi_ops_av,
}

/// A registered memory region; `key` is what a peer presents, `mem_desc` what local operations pass
/// as descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// `struct fi_mr_dmabuf` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_dmabuf {
    pub fd: c_int,
    pub offset: u64,
    pub len: usize,
    pub base_addr: *mut c_void,
}

/// `struct fi_mr_auth_key` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_auth_key {
    pub av: *mut fid_av,
    pub src_addr: fi_addr_t,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_u {
    pub mr_iov: *const iovec,
    pub dmabuf: *const fi_mr_dmabuf,
}
#[repr(C)]
#[derive(Clone, Copy)]
pub union fi_mr_attr_device {
    pub reserved: u64,
    pub cuda: c_int,
    pub ze: c_int,
    pub neuron: c_int,
    pub synapseai: c_int,
    pub rocr: c_int,
}
/// `struct fi_mr_attr` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_attr {
    pub src: fi_mr_attr_u,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
    pub iface: fi_hmem_iface,
    pub device: fi_mr_attr_device,
    pub hmem_data: *mut c_void,
    pub page_size: usize,
    pub base_mr: *const fid_mr,
    pub sub_mr_cnt: usize,
}

/// `struct fi_mr_modify` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_mr_modify {
    pub flags: u64,
    pub attr: fi_mr_attr,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
/// fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_hmem_override_ops {
    pub size: usize,
    pub copy_from_hmem_iov: Option<
        unsafe extern "C" fn(
            buf: *mut c_void,
            len: usize,
            iface: fi_hmem_iface,
            flags: u64,
            iov: *const iovec,
            len2: usize,
            flags2: u64,
        ) -> ssize_t,
    >,
    pub copy_to_hmem_iov: Option<
        unsafe extern "C" fn(
            iface: fi_hmem_iface,
            flags: u64,
            iov: *const iovec,
            len: usize,
            flags2: u64,
            buf: *const c_void,
            len2: usize,
        ) -> ssize_t,
    >,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
/// fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_domain {
    pub size: usize,
    pub av_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_av_attr,
            av: *mut *mut fid_av,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub cq_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cq_attr,
            cq: *mut *mut fid_cq,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub endpoint: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub scalable_ep: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            sep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub cntr_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_cntr_attr,
            cntr: *mut *mut fid_cntr,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub poll_open: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_poll_attr,
            pollset: *mut *mut fid_poll,
        ) -> c_int,
    >,
    pub stx_ctx: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_tx_attr,
            stx: *mut *mut fid_stx,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub srx_ctx: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_rx_attr,
            rx_ep: *mut *mut fid_ep,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub query_atomic: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            datatype: fi_datatype,
            op: fi_op,
            attr: *mut fi_atomic_attr,
            flags: u64,
        ) -> c_int,
    >,
    pub query_collective: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            coll: fi_collective_op,
            attr: *mut fi_collective_attr,
            flags: u64,
        ) -> c_int,
    >,
    pub endpoint2: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            info: *mut fi_info,
            ep: *mut *mut fid_ep,
            flags: u64,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub xpu_ctx: Option<
        unsafe extern "C" fn(
            domain: *mut fid_domain,
            attr: *mut fi_xpu_attr,
            ctx: *mut *mut fid_xpu_ctx,
            context: *mut c_void,
        ) -> c_int,
    >,
}

/// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
/// fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fi_ops_mr {
    pub size: usize,
    pub reg: Option<
        unsafe extern "C" fn(
            domain: *mut fid,
            buf: *const c_void,
            len: usize,
            acs: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub regv: Option<
        unsafe extern "C" fn(
            domain: *mut fid,
            iov: *const iovec,
            count: usize,
            acs: u64,
            offset: u64,
            requested_key: u64,
            flags: u64,
            mr: *mut *mut fid_mr,
            context: *mut c_void,
        ) -> c_int,
    >,
    pub regattr: Option<
        unsafe extern "C" fn(
            domain: *mut fid,
            attr: *const fi_mr_attr,
            flags: u64,
            mr: *mut *mut fid_mr,
        ) -> c_int,
    >,
}

/// `struct fid_domain` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fid_domain {
    pub fid: fid,
    pub ops: *mut fi_ops_domain,
    pub mr: *mut fi_ops_mr,
}
