//! Structures and constants of rdma-core's headers (`abi-tests` compares the layouts with facts
//! read from the headers). Of structures that the libraries allocate, only the leading members are
//! declared.

#![allow(non_camel_case_types)]

use crate::types::*;
use core::ffi::{c_char, c_int, c_uint, c_void};

/// `ibv_context`, with the calls that have no exported function.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut c_void,
    _ops: [usize; 11],
    pub poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    _more: [usize; 13],
    pub post_recv:
        unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    _rest: [usize; 5],
    _fds: [c_int; 2],
    pub num_comp_vectors: c_int,
}

#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    _members: [usize; 5],
    pub handle: u32,
    pub qp_num: u32,
    _rest: [u64; 13],
}

/// `ibv_qp_ex`: a queue pair with the extended posting calls (ibv_wr_post(3)).
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    _calls: [usize; 4],
    pub wr_rdma_read: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_send: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_send_imm: unsafe extern "C" fn(*mut ibv_qp_ex, u32),
    _more: [usize; 2],
    pub wr_set_ud_addr: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, u32, u32),
    _xrc: usize,
    pub wr_set_inline_data: unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize),
    _list: usize,
    pub wr_set_sge: unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge),
    pub wr_start: unsafe extern "C" fn(*mut ibv_qp_ex),
    pub wr_complete: unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int,
    pub wr_abort: unsafe extern "C" fn(*mut ibv_qp_ex),
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    /// The adapter's own status (`efa_io_comp_status`).
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    /// The sender's address handle number.
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// [`ibv_wc::wc_flags`]: there is immediate data.
pub const WC_WITH_IMM: c_uint = 1 << 1;
/// [`ibv_wc::opcode`] of a receive, and of a peer's write with immediate data.
pub const IBV_WC_RECV: c_uint = 128;
pub const IBV_WC_RECV_RDMA_WITH_IMM: c_uint = 129;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr_ex {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut c_void,
    pub cap: ibv_qp_cap,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
    pub comp_mask: u32,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut c_void,
    pub create_flags: u32,
    pub max_tso_header: u16,
    pub rwq_ind_tbl: *mut c_void,
    _rx_hash_conf: [usize; 3],
    pub source_qpn: u32,
    pub send_ops_flags: u64,
}

/// [`ibv_qp_init_attr_ex::qp_type`], `comp_mask` and `send_ops_flags`.
pub const IBV_QPT_DRIVER: c_uint = 0xff;
pub const IBV_QPT_UD: c_uint = 4;
pub const INIT_PD: u32 = 1;
pub const INIT_SEND_OPS: u32 = 1 << 6;
pub const OP_WRITE: u64 = 1;
pub const OP_WRITE_IMM: u64 = 1 << 1;
pub const OP_SEND: u64 = 1 << 2;
pub const OP_SEND_IMM: u64 = 1 << 3;
pub const OP_READ: u64 = 1 << 4;

/// Aligned as the GID's words are.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct ibv_ah_attr {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attr {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: ibv_qp_cap,
    pub ah_attr: ibv_ah_attr,
    pub alt_ah_attr: ibv_ah_attr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Queue pair states, each with the attribute mask of ibv_modify_qp(3) for the step to it.
pub const INIT: (c_uint, c_int) = (1, 0x71);
pub const RTR: (c_uint, c_int) = (2, 0x1);
pub const RTS: (c_uint, c_int) = (3, 0x1_0001);
/// Further bit of the mask: the number of RNR retries.
pub const SET_RNR_RETRY: c_int = 0x800;

/// `ibv_cq_init_attr_ex`, of a completion queue that libefa opens.
#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

/// `efadv_cq_init_attr`, with memory for the queue, whose descriptor is in the low half of `fd`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_cq_init_attr {
    pub comp_mask: u64,
    pub wc_flags: u64,
    pub flags: u64,
    pub buffer: *mut u8,
    pub length: u64,
    pub offset: u64,
    pub fd: u64,
}

/// [`efadv_cq_init_attr::wc_flags`] and `flags`.
pub const WC_SGID: u64 = 1;
pub const WC_UNSOLICITED: u64 = 1 << 1;
pub const CQ_DMABUF: u64 = 1;

/// A counter of the adapter (rdma-core 65 and later).
#[repr(C)]
pub struct ibv_comp_cntr {
    pub context: *mut ibv_context,
    pub handle: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_init_attr {
    pub comp_mask: u32,
    pub r#type: c_uint,
    pub flags: u32,
}

/// [`ibv_comp_cntr_init_attr::type`]: operations, bytes.
pub const COUNT_REQUESTS: c_uint = 0;
pub const COUNT_BYTES: c_uint = 1;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_comp_cntr_caps {
    pub max_value: u64,
    pub max_counters: u32,
    pub supported_qp_attach_ops: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_qp_attach_comp_cntr_attr {
    pub comp_mask: u32,
    pub op_mask: u32,
}

/// `efadv_comp_cntr_init_attr`: where the numbers are. `fi_efa_memory_location` has the layout of
/// `efadv_memory_location`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct efadv_comp_cntr_init_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub reserved: u32,
    pub comp_cntr_ext_mem: fi_efa_memory_location,
    pub err_cntr_ext_mem: fi_efa_memory_location,
}

/// Access flags of ibv_reg_mr(3).
pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 2;
pub const ACCESS_REMOTE_READ: c_int = 4;

#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    _more: [u32; 3],
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    _rest: [u32; 23],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    _counters: [u32; 2],
    _lids: [u16; 3],
    _bits: [u8; 5],
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

/// `efadv_device_attr`; libraries before version 63 leave newer fields zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_device_attr {
    pub comp_mask: u64,
    pub max_sq_wr: u32,
    pub max_rq_wr: u32,
    pub max_sq_sge: u16,
    pub max_rq_sge: u16,
    pub inline_buf_size: u16,
    pub inline_buf_size_ex: u16,
    pub device_caps: u32,
    pub max_rdma_size: u32,
}

/// [`efadv_device_attr::device_caps`].
pub const CAP_RDMA_READ: u32 = 1;
pub const CAP_RNR_RETRY: u32 = 1 << 1;
pub const CAP_CQ_SGID: u32 = 1 << 2;
pub const CAP_RDMA_WRITE: u32 = 1 << 3;
pub const CAP_UNSOLICITED: u32 = 1 << 4;
pub const CAP_CQ_DMABUF: u32 = 1 << 5;
pub const CAP_COUNTERS: u32 = 1 << 6;
/// [`efadv_qp_init_attr::flags`]: writes with immediate data take no receive.
pub const QP_UNSOLICITED: u16 = 1;
/// Writes may carry their bytes in the work request (rdma-core 63 and later).
pub const QP_INLINE_WRITE: u16 = 2;
/// [`efadv_qp_init_attr::sl`]: the service level of FI_TC_LOW_LATENCY.
pub const LEVEL_LOW_LATENCY: u8 = 8;
/// `efadv_sq_depth_attr::flags`.
pub const DEPTH_INLINE_WRITE: u32 = 1;

/// `efadv_sq_depth_attr`: the features that a send queue has to support.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_sq_depth_attr {
    pub comp_mask: u64,
    pub flags: u32,
    pub max_send_sge: u32,
    pub max_rdma_sge: u32,
    pub max_inline_data: u32,
}

/// The part of `efadv_qp_init_attr` that every version has: 16 bytes. What follows is zero.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_qp_init_attr {
    pub comp_mask: u64,
    pub driver_qp_type: u32,
    pub flags: u16,
    pub sl: u8,
    pub reserved: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_ah_attr {
    pub comp_mask: u64,
    pub ahn: u16,
    _reserved: [u8; 6],
}

/// `efadv_wq_attr`: a queue of work requests (rdma-core 59 and later).
#[repr(C)]
pub struct efadv_wq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
    pub max_batch: u32,
    pub caps: u16,
    _reserved: [u8; 2],
}

/// `efadv_cq_attr`: a completion queue (rdma-core 59 and later; the doorbell from 60 on, NULL
/// before).
#[repr(C)]
pub struct efadv_cq_attr {
    pub comp_mask: u64,
    pub buffer: *mut u8,
    pub entry_size: u32,
    pub num_entries: u32,
    pub doorbell: *mut u32,
}

/// `efadv_mr_attr` (rdma-core 50 and later).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct efadv_mr_attr {
    pub comp_mask: u64,
    pub ic_id_validity: u16,
    pub recv_ic_id: u16,
    pub rdma_read_ic_id: u16,
    pub rdma_recv_ic_id: u16,
}

/// A flag of `ibv_query_qp_data_in_order`: the answer is a set of capabilities.
pub const ORDER_RETURN_CAPS: u32 = 1;
/// Of the adapter alone: processors other than x86 are not considered.
pub const ORDER_DEVICE_ONLY: u32 = 1 << 1;
/// A capability: each aligned 128 bytes.
pub const ORDER_ALIGNED_128_BYTES: c_int = 1 << 1;
pub const WR_RDMA_WRITE: c_int = 0;
pub const WR_SEND: c_int = 2;
