//! Names of flags and enumerators, spelt as in the headers: what fi_tostr(3) prints.
//!
//! Tables, so that a new constant is one word in one place. Flag sets print in the order of their
//! table, separated by ", "; bits without a name print as one hexadecimal number. An unknown
//! enumerator prints as "Unknown" with its number. `super::describe` prints whole structs.

use crate::types::*;

/// Declares a function from a set of bits to its text.
macro_rules! flag_names {
    ($($(#[$doc:meta])* $name:ident: $($flag:ident)+;)+) => {$(
        $(#[$doc])*
        pub fn $name(bits: u64) -> String {
            names(bits, &[$(($flag as u64, stringify!($flag)),)+])
        }
    )+};
}

/// Declares a function from an enumerator to its name.
macro_rules! enum_names {
    ($($(#[$doc:meta])* $name:ident: $($value:ident)+;)+) => {$(
        $(#[$doc])*
        pub fn $name(value: u32) -> String {
            #[allow(unreachable_patterns)]
            match value {
                $(v if v == $value as u32 => stringify!($value).to_string(),)+
                other => format!("Unknown ({other})"),
            }
        }
    )+};
}

fn names(bits: u64, table: &[(u64, &str)]) -> String {
    let mut left = bits;
    let mut out: Vec<String> = Vec::new();
    for (bit, name) in table {
        if left & bit != 0 {
            out.push((*name).to_string());
            left &= !bit;
        }
    }
    if left != 0 {
        out.push(format!("{left:#x}"));
    }
    out.join(", ")
}

flag_names! {
    /// Bits of `op_flags`.
    op_flags:
        FI_MULTICAST FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_MORE FI_PEEK FI_TRIGGER FI_FENCE
        FI_COMPLETION FI_INJECT FI_INJECT_COMPLETE FI_TRANSMIT_COMPLETE FI_DELIVERY_COMPLETE
        FI_MATCH_COMPLETE FI_AFFINITY FI_CLAIM FI_DISCARD;
    /// Bits of `msg_order`.
    msg_order:
        FI_ORDER_RAR FI_ORDER_RAW FI_ORDER_RAS FI_ORDER_WAR FI_ORDER_WAW FI_ORDER_WAS
        FI_ORDER_SAR FI_ORDER_SAW FI_ORDER_SAS FI_ORDER_RMA_RAR FI_ORDER_RMA_RAW
        FI_ORDER_RMA_WAR FI_ORDER_RMA_WAW FI_ORDER_ATOMIC_RAR FI_ORDER_ATOMIC_RAW
        FI_ORDER_ATOMIC_WAR FI_ORDER_ATOMIC_WAW;
    /// Bits of `caps`.
    caps:
        FI_MSG FI_RMA FI_TAGGED FI_ATOMIC FI_MULTICAST FI_COLLECTIVE FI_READ FI_WRITE FI_RECV
        FI_SEND FI_REMOTE_READ FI_REMOTE_WRITE FI_MULTI_RECV FI_REMOTE_CQ_DATA FI_TRIGGER
        FI_FENCE FI_RMA_PMEM FI_SOURCE_ERR FI_LOCAL_COMM FI_REMOTE_COMM FI_SHARED_AV
        FI_RMA_EVENT FI_SOURCE FI_NAMED_RX_CTX FI_DIRECTED_RECV FI_AV_USER_ID FI_PEER FI_HMEM
        FI_XPU;
    /// Bits of `mode`.
    mode:
        FI_CONTEXT FI_MSG_PREFIX FI_ASYNC_IOV FI_RX_CQ_DATA FI_LOCAL_MR FI_CONTEXT2;
    /// Bits of `cq_event_flags`.
    cq_event_flags:
        FI_SEND FI_RECV FI_RMA FI_ATOMIC FI_MSG FI_TAGGED FI_READ FI_WRITE FI_REMOTE_READ
        FI_REMOTE_WRITE FI_REMOTE_CQ_DATA FI_MULTI_RECV FI_MORE FI_CLAIM;
    /// Bits of `mr_access`.
    mr_access:
        FI_RECV FI_SEND FI_READ FI_WRITE FI_REMOTE_READ FI_REMOTE_WRITE FI_COLLECTIVE;
    /// Bits of `av_flags`.
    av_flags:
        FI_EVENT FI_READ FI_SYMMETRIC;
    /// Bits of `cq_flags`.
    cq_flags:
        FI_AFFINITY;
    /// Bits of `mr_mode`.
    mr_mode:
        FI_MR_BASIC FI_MR_SCALABLE FI_MR_LOCAL FI_MR_RAW FI_MR_VIRT_ADDR FI_MR_ALLOCATED
        FI_MR_PROV_KEY FI_MR_MMU_NOTIFY FI_MR_RMA_EVENT FI_MR_ENDPOINT FI_MR_HMEM
        FI_MR_COLLECTIVE FI_MR_XPU_DESC;
}

enum_names! {
    /// Enumerators of `addr_format`.
    addr_format:
        FI_FORMAT_UNSPEC FI_SOCKADDR FI_SOCKADDR_IP FI_SOCKADDR_IN FI_SOCKADDR_IN6
        FI_SOCKADDR_IB FI_ADDR_PSMX FI_ADDR_PSMX2 FI_ADDR_GNI FI_ADDR_BGQ FI_ADDR_MLX
        FI_ADDR_UCX FI_ADDR_STR FI_ADDR_IB_UD FI_ADDR_EFA FI_ADDR_PSMX3 FI_ADDR_OPX FI_ADDR_CXI;
    /// Enumerators of `progress`.
    progress:
        FI_PROGRESS_UNSPEC FI_PROGRESS_AUTO FI_PROGRESS_MANUAL FI_PROGRESS_CONTROL_UNIFIED;
    /// Enumerators of `threading`.
    threading:
        FI_THREAD_UNSPEC FI_THREAD_SAFE FI_THREAD_FID FI_THREAD_DOMAIN FI_THREAD_COMPLETION
        FI_THREAD_ENDPOINT;
    /// Enumerators of `ep_type`.
    ep_type:
        FI_EP_UNSPEC FI_EP_MSG FI_EP_DGRAM FI_EP_RDM;
    /// Enumerators of `protocol`.
    protocol:
        FI_PROTO_UNSPEC FI_PROTO_RDMA_CM_IB_RC FI_PROTO_IWARP FI_PROTO_IB_UD FI_PROTO_PSMX
        FI_PROTO_PSMX2 FI_PROTO_UDP FI_PROTO_SOCK_TCP FI_PROTO_MXM FI_PROTO_IB_RDM
        FI_PROTO_IWARP_RDM FI_PROTO_GNI FI_PROTO_RXM FI_PROTO_RXD FI_PROTO_MLX FI_PROTO_UCX
        FI_PROTO_NETWORKDIRECT FI_PROTO_SHM FI_PROTO_MRAIL FI_PROTO_RSTREAM
        FI_PROTO_RDMA_CM_IB_XRC FI_PROTO_EFA FI_PROTO_PSMX3 FI_PROTO_RXM_TCP FI_PROTO_OPX
        FI_PROTO_CXI FI_PROTO_XNET FI_PROTO_COLL FI_PROTO_SM2 FI_PROTO_CXI_RNR FI_PROTO_LPP
        FI_PROTO_LNX;
    /// Enumerators of `resource_mgmt`.
    resource_mgmt:
        FI_RM_UNSPEC FI_RM_DISABLED FI_RM_ENABLED;
    /// Enumerators of `av_type`.
    av_type:
        FI_AV_UNSPEC FI_AV_MAP FI_AV_TABLE;
    /// Enumerators of `op_type`.
    op_type:
        FI_OP_RECV FI_OP_SEND FI_OP_TRECV FI_OP_TSEND FI_OP_READ FI_OP_WRITE FI_OP_ATOMIC
        FI_OP_FETCH_ATOMIC FI_OP_COMPARE_ATOMIC FI_OP_CNTR_SET FI_OP_CNTR_ADD;
    /// Enumerators of `atomic_type`.
    atomic_type:
        FI_INT8 FI_UINT8 FI_INT16 FI_UINT16 FI_INT32 FI_UINT32 FI_INT64 FI_UINT64 FI_INT128
        FI_UINT128 FI_FLOAT FI_DOUBLE FI_FLOAT_COMPLEX FI_DOUBLE_COMPLEX FI_LONG_DOUBLE
        FI_LONG_DOUBLE_COMPLEX FI_FLOAT16 FI_BFLOAT16 FI_FLOAT8_E4M3 FI_FLOAT8_E5M2 FI_VOID;
    /// Enumerators of `atomic_op`.
    atomic_op:
        FI_MIN FI_MAX FI_SUM FI_PROD FI_LOR FI_LAND FI_BOR FI_BAND FI_LXOR FI_BXOR
        FI_ATOMIC_READ FI_ATOMIC_WRITE FI_CSWAP FI_CSWAP_NE FI_CSWAP_LE FI_CSWAP_LT FI_CSWAP_GE
        FI_CSWAP_GT FI_MSWAP FI_DIFF FI_NOOP;
    /// Enumerators of `collective_op`.
    collective_op:
        FI_BARRIER FI_BROADCAST FI_ALLTOALL FI_ALLREDUCE FI_ALLGATHER FI_REDUCE_SCATTER
        FI_REDUCE FI_SCATTER FI_GATHER;
    /// Enumerators of `eq_event`.
    eq_event:
        FI_NOTIFY FI_CONNREQ FI_CONNECTED FI_SHUTDOWN FI_MR_COMPLETE FI_AV_COMPLETE
        FI_JOIN_COMPLETE;
    /// Enumerators of `hmem_iface`.
    hmem_iface:
        FI_HMEM_SYSTEM FI_HMEM_CUDA FI_HMEM_ROCR FI_HMEM_ZE FI_HMEM_NEURON FI_HMEM_SYNAPSEAI;
    /// Enumerators of `cq_format`.
    cq_format:
        FI_CQ_FORMAT_UNSPEC FI_CQ_FORMAT_CONTEXT FI_CQ_FORMAT_MSG FI_CQ_FORMAT_DATA
        FI_CQ_FORMAT_TAGGED;
    /// Enumerators of `wait_obj`.
    wait_obj:
        FI_WAIT_NONE FI_WAIT_UNSPEC FI_WAIT_SET FI_WAIT_FD FI_WAIT_MUTEX_COND FI_WAIT_YIELD
        FI_WAIT_POLLFD;
    /// Enumerators of `cq_wait_cond`.
    cq_wait_cond:
        FI_CQ_COND_NONE FI_CQ_COND_THRESHOLD;
    /// Enumerators of `cntr_events`.
    cntr_events:
        FI_CNTR_EVENTS_COMP FI_CNTR_EVENTS_BYTES;
    /// Enumerators of `link_state`.
    link_state:
        FI_LINK_UNKNOWN FI_LINK_DOWN FI_LINK_UP;
    /// Enumerators of `bus_type`.
    bus_type:
        FI_BUS_UNKNOWN FI_BUS_PCI;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_print_in_table_order_and_leave_nothing_out() {
        assert_eq!(caps(FI_TAGGED | FI_MSG), "FI_MSG, FI_TAGGED");
        assert_eq!(caps(FI_MSG | 1 << 63), "FI_MSG, 0x8000000000000000");
        assert_eq!(mr_mode(0), "");
        assert_eq!(ep_type(FI_EP_RDM), "FI_EP_RDM");
        assert_eq!(ep_type(77), "Unknown (77)");
    }
}
