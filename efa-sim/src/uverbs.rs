//! Numbers of the kernel ABI, under the names of its headers: the ioctl interface
//! (`rdma/ib_user_ioctl_cmds.h`, `rdma/efa-abi.h`) and the write commands (`rdma/ib_user_verbs.h`).

/// `RDMA_DRIVER_EFA`.
pub const DRIVER_EFA: u32 = 17;

/// Attributes of driver data, of every method (`UVERBS_ATTR_UHW_*`).
pub const UHW_IN: u16 = 0x1000;
pub const UHW_OUT: u16 = 0x1001;

/// Objects (`UVERBS_OBJECT_*`).
pub mod object {
    pub const DEVICE: u16 = 0;
    pub const PD: u16 = 1;
    pub const CQ: u16 = 3;
    pub const QP: u16 = 4;
    pub const AH: u16 = 6;
    pub const MR: u16 = 7;
    pub const ASYNC_EVENT: u16 = 16;
    pub const COMP_CNTR: u16 = 19;
}

/// Methods of objects (`UVERBS_METHOD_*`).
pub mod method {
    pub const INVOKE_WRITE: u16 = 0;
    pub const QUERY_PORT: u16 = 2;
    pub const GET_CONTEXT: u16 = 3;
    pub const QUERY_GID_TABLE: u16 = 5;
    pub const QUERY_GID_ENTRY: u16 = 6;
    pub const QUERY_COMP_CNTR_CAPS: u16 = 8;

    pub const PD_DESTROY: u16 = 0;
    pub const AH_DESTROY: u16 = 0;
    pub const ASYNC_EVENT_ALLOC: u16 = 0;

    pub const MR_DESTROY: u16 = 1;
    pub const REG_DMABUF_MR: u16 = 4;
    /// `EFA_IB_METHOD_MR_QUERY`.
    pub const EFA_MR_QUERY: u16 = 0x1000;

    pub const CQ_CREATE: u16 = 0;
    pub const CQ_DESTROY: u16 = 1;

    pub const QP_CREATE: u16 = 0;
    pub const QP_DESTROY: u16 = 1;
    pub const QP_ATTACH_COMP_CNTR: u16 = 2;

    pub const COMP_CNTR_CREATE: u16 = 0;
    pub const COMP_CNTR_DESTROY: u16 = 1;
    pub const COMP_CNTR_MODIFY: u16 = 2;
    pub const COMP_CNTR_READ: u16 = 3;
}

/// Attributes of methods (`UVERBS_ATTR_*`).
pub mod attr {
    /// The object of every method that destroys one, or creates one.
    pub const HANDLE: u16 = 0;

    pub const CORE_IN: u16 = 0;
    pub const CORE_OUT: u16 = 1;
    pub const WRITE_CMD: u16 = 2;

    pub const QUERY_PORT_PORT_NUM: u16 = 0;
    pub const QUERY_PORT_RESP: u16 = 1;

    pub const GET_CONTEXT_NUM_COMP_VECTORS: u16 = 0;
    pub const GET_CONTEXT_CORE_SUPPORT: u16 = 1;

    pub const QUERY_GID_TABLE_ENTRY_SIZE: u16 = 0;
    pub const QUERY_GID_TABLE_RESP_ENTRIES: u16 = 2;
    pub const QUERY_GID_TABLE_RESP_NUM_ENTRIES: u16 = 3;

    pub const QUERY_GID_ENTRY_PORT: u16 = 0;
    pub const QUERY_GID_ENTRY_GID_INDEX: u16 = 1;
    pub const QUERY_GID_ENTRY_RESP_ENTRY: u16 = 3;

    pub const COMP_CNTR_CAPS_MAX_COUNTERS: u16 = 0;
    pub const COMP_CNTR_CAPS_MAX_VALUE: u16 = 1;
    pub const COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS: u16 = 2;

    pub const REG_DMABUF_MR_PD_HANDLE: u16 = 1;
    pub const REG_DMABUF_MR_OFFSET: u16 = 2;
    pub const REG_DMABUF_MR_LENGTH: u16 = 3;
    pub const REG_DMABUF_MR_IOVA: u16 = 4;
    pub const REG_DMABUF_MR_FD: u16 = 5;
    pub const REG_DMABUF_MR_ACCESS_FLAGS: u16 = 6;
    pub const REG_DMABUF_MR_RESP_LKEY: u16 = 7;
    pub const REG_DMABUF_MR_RESP_RKEY: u16 = 8;

    /// `EFA_IB_ATTR_QUERY_MR_*`.
    pub const EFA_QUERY_MR_HANDLE: u16 = 0x1000;
    pub const EFA_QUERY_MR_RESP_IC_ID_VALIDITY: u16 = 0x1001;
    pub const EFA_QUERY_MR_RESP_RDMA_RECV_IC_ID: u16 = 0x1004;

    pub const CREATE_CQ_CQE: u16 = 1;
    pub const CREATE_CQ_USER_HANDLE: u16 = 2;
    pub const CREATE_CQ_COMP_CHANNEL: u16 = 3;
    pub const CREATE_CQ_COMP_VECTOR: u16 = 4;
    pub const CREATE_CQ_RESP_CQE: u16 = 6;
    pub const CREATE_CQ_BUFFER_LENGTH: u16 = 9;
    pub const CREATE_CQ_BUFFER_FD: u16 = 10;
    pub const CREATE_CQ_BUFFER_OFFSET: u16 = 11;
    pub const DESTROY_CQ_RESP: u16 = 1;

    pub const CREATE_QP_PD_HANDLE: u16 = 2;
    pub const CREATE_QP_SEND_CQ_HANDLE: u16 = 4;
    pub const CREATE_QP_RECV_CQ_HANDLE: u16 = 5;
    pub const CREATE_QP_CAP: u16 = 8;
    pub const CREATE_QP_TYPE: u16 = 9;
    pub const CREATE_QP_FLAGS: u16 = 10;
    pub const CREATE_QP_RESP_CAP: u16 = 13;
    pub const CREATE_QP_RESP_QP_NUM: u16 = 14;
    pub const DESTROY_QP_RESP: u16 = 1;

    pub const QP_ATTACH_COMP_CNTR_CNTR_HANDLE: u16 = 1;
    pub const QP_ATTACH_COMP_CNTR_OP_MASK: u16 = 2;

    /// `EFA_IB_ATTR_CREATE_COMP_CNTR_*`.
    pub const EFA_CREATE_COMP_CNTR_COMP_BUFFER: u16 = 0x1000;
    pub const EFA_CREATE_COMP_CNTR_ERR_BUFFER: u16 = 0x1001;
    pub const MODIFY_COMP_CNTR_ENTRY: u16 = 1;
    pub const MODIFY_COMP_CNTR_OP: u16 = 2;
    pub const MODIFY_COMP_CNTR_VALUE: u16 = 3;
    pub const READ_COMP_CNTR_ENTRY: u16 = 1;
    pub const READ_COMP_CNTR_RESP_VALUE: u16 = 2;
}

/// Commands by write(2), or by [`method::INVOKE_WRITE`] (`IB_USER_VERBS_CMD_*`).
pub mod cmd {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const DEREG_MR: u32 = 13;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const DESTROY_CQ: u32 = 20;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;

    /// Set in the number of a command whose header is the extended one.
    pub const EXTENDED: u32 = 1 << 31;
    pub const EX_QUERY_DEVICE: u32 = EXTENDED | QUERY_DEVICE;
}
