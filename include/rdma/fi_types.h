/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The types that cbindgen does not make: enumerations, and the structs that C expresses with
 * anonymous unions or a flexible member. The others are in gen/types.h, made from src/types/
 * by `make headers`; that file needs the enumerations complete, hence all of them here.
 * Included by fabric.h only.
 */
#ifndef FI_RS_FI_TYPES_H
#define FI_RS_FI_TYPES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pollfd;
struct fi_alias;
struct fi_atomic_attr;
struct fi_av_attr;
struct fi_av_set_attr;
struct fi_bus_attr;
struct fi_cntr_attr;
struct fi_collective_addr;
struct fi_collective_attr;
struct fi_context;
struct fi_context2;
struct fi_cq_attr;
struct fi_cq_data_entry;
struct fi_cq_entry;
struct fi_cq_err_entry;
struct fi_cq_msg_entry;
struct fi_cq_tagged_entry;
struct fi_deferred_work;
struct fi_device_attr;
struct fi_domain_attr;
struct fi_efa_comp_cntr_init_attr;
struct fi_efa_cq_attr;
struct fi_efa_cq_init_attr;
struct fi_efa_feature_ops;
struct fi_efa_memory_location;
struct fi_efa_mr_attr;
struct fi_efa_ops_domain;
struct fi_efa_ops_gda;
struct fi_efa_wq_attr;
struct fi_ep_attr;
struct fi_eq_attr;
struct fi_eq_cm_entry;
struct fi_eq_entry;
struct fi_eq_err_entry;
struct fi_fabric_attr;
struct fi_fid_export;
struct fi_fid_var;
struct fi_hmem_override_ops;
struct fi_info;
struct fi_ioc;
struct fi_link_attr;
struct fi_mr_attr;
struct fi_mr_auth_key;
struct fi_mr_dmabuf;
struct fi_mr_map_raw;
struct fi_mr_modify;
struct fi_mr_raw_attr;
struct fi_mr_xpu_desc;
struct fi_msg;
struct fi_msg_atomic;
struct fi_msg_collective;
struct fi_msg_compare;
struct fi_msg_fetch;
struct fi_msg_rma;
struct fi_msg_tagged;
struct fi_mutex_cond;
struct fi_op_atomic;
struct fi_op_cntr;
struct fi_op_compare_atomic;
struct fi_op_fetch_atomic;
struct fi_op_msg;
struct fi_op_rma;
struct fi_op_tagged;
struct fi_ops;
struct fi_ops_atomic;
struct fi_ops_av;
struct fi_ops_av_owner;
struct fi_ops_av_set;
struct fi_ops_av_set_owner;
struct fi_ops_cm;
struct fi_ops_cntr;
struct fi_ops_cntr_owner;
struct fi_ops_collective;
struct fi_ops_cq;
struct fi_ops_cq_owner;
struct fi_ops_domain;
struct fi_ops_ep;
struct fi_ops_eq;
struct fi_ops_fabric;
struct fi_ops_log;
struct fi_ops_mem_monitor;
struct fi_ops_mem_notify;
struct fi_ops_mr;
struct fi_ops_msg;
struct fi_ops_poll;
struct fi_ops_rma;
struct fi_ops_srx_owner;
struct fi_ops_srx_peer;
struct fi_ops_tagged;
struct fi_ops_transfer_peer;
struct fi_ops_wait;
struct fi_ops_xpu_ctx;
struct fi_param;
struct fi_pci_attr;
struct fi_peer_av_context;
struct fi_peer_av_set;
struct fi_peer_av_set_context;
struct fi_peer_cntr_context;
struct fi_peer_cq_context;
struct fi_peer_domain_context;
struct fi_peer_eq_context;
struct fi_peer_match_attr;
struct fi_peer_rx_entry;
struct fi_peer_srx_context;
struct fi_peer_transfer_context;
struct fi_poll_attr;
struct fi_profile_desc;
struct fi_profile_ops;
struct fi_provider;
struct fi_recv_context;
struct fi_rma_ioc;
struct fi_rma_iov;
struct fi_rx_attr;
struct fi_trigger_threshold;
struct fi_trigger_var;
struct fi_trigger_xpu;
struct fi_triggered_context;
struct fi_triggered_context2;
struct fi_tx_attr;
struct fi_wait_attr;
struct fi_wait_pollfd;
struct fi_xpu_attr;
struct fi_xpu_ctx_attr;
struct fi_xpu_ops;
struct fid;
struct fid_av;
struct fid_av_set;
struct fid_cntr;
struct fid_cq;
struct fid_domain;
struct fid_ep;
struct fid_eq;
struct fid_fabric;
struct fid_logging;
struct fid_mc;
struct fid_mem_monitor;
struct fid_mr;
struct fid_nic;
struct fid_peer_av;
struct fid_peer_av_set;
struct fid_peer_cntr;
struct fid_peer_cq;
struct fid_peer_srx;
struct fid_pep;
struct fid_poll;
struct fid_profile;
struct fid_stx;
struct fid_wait;
struct fid_xpu;
struct fid_xpu_cntr;
struct fid_xpu_cq;
struct fid_xpu_ctx;
struct fid_xpu_ep;

typedef uint64_t fi_addr_t;
typedef struct fid *fid_t;

/* fabric.h */
enum {
	FI_NAME_MAX = 64,
	FI_ATOMIC_OP_LAST = 19,
	FI_DATATYPE_LAST = 14,
};

/* fabric.h */
enum {
	FI_FORMAT_UNSPEC = 0,
	FI_SOCKADDR = 1,
	FI_SOCKADDR_IN = 2,
	FI_SOCKADDR_IN6 = 3,
	FI_SOCKADDR_IB = 4,
	FI_ADDR_PSMX = 5,
	FI_ADDR_GNI = 6,
	FI_ADDR_BGQ = 7,
	FI_ADDR_MLX = 8,
	FI_ADDR_STR = 9,
	FI_ADDR_PSMX2 = 10,
	FI_ADDR_IB_UD = 11,
	FI_ADDR_EFA = 12,
	FI_ADDR_PSMX3 = 13,
	FI_ADDR_OPX = 14,
	FI_ADDR_CXI = 15,
	FI_ADDR_UCX = 16,
	FI_SOCKADDR_IP = 17,
};

/* fabric.h */
enum fi_av_type {
	FI_AV_UNSPEC = 0,
	FI_AV_MAP = 1,
	FI_AV_TABLE = 2,
};

/* fabric.h */
enum fi_progress {
	FI_PROGRESS_UNSPEC = 0,
	FI_PROGRESS_AUTO = 1,
	FI_PROGRESS_MANUAL = 2,
	FI_PROGRESS_CONTROL_UNIFIED = 3,
};

/* fabric.h */
enum fi_threading {
	FI_THREAD_UNSPEC = 0,
	FI_THREAD_SAFE = 1,
	FI_THREAD_FID = 2,
	FI_THREAD_DOMAIN = 3,
	FI_THREAD_COMPLETION = 4,
	FI_THREAD_ENDPOINT = 5,
};

/* fabric.h */
enum fi_resource_mgmt {
	FI_RM_UNSPEC = 0,
	FI_RM_DISABLED = 1,
	FI_RM_ENABLED = 2,
};

/* fabric.h */
enum fi_ep_type {
	FI_EP_UNSPEC = 0,
	FI_EP_MSG = 1,
	FI_EP_DGRAM = 2,
	FI_EP_RDM = 3,
};

/* fabric.h */
enum {
	FI_PROTO_UNSPEC = 0,
	FI_PROTO_RDMA_CM_IB_RC = 1,
	FI_PROTO_IWARP = 2,
	FI_PROTO_IB_UD = 3,
	FI_PROTO_PSMX = 4,
	FI_PROTO_UDP = 5,
	FI_PROTO_SOCK_TCP = 6,
	FI_PROTO_MXM = 7,
	FI_PROTO_IWARP_RDM = 8,
	FI_PROTO_IB_RDM = 9,
	FI_PROTO_GNI = 10,
	FI_PROTO_RXM = 11,
	FI_PROTO_RXD = 12,
	FI_PROTO_MLX = 13,
	FI_PROTO_NETWORKDIRECT = 14,
	FI_PROTO_PSMX2 = 15,
	FI_PROTO_SHM = 16,
	FI_PROTO_MRAIL = 17,
	FI_PROTO_RSTREAM = 18,
	FI_PROTO_RDMA_CM_IB_XRC = 19,
	FI_PROTO_EFA = 20,
	FI_PROTO_PSMX3 = 21,
	FI_PROTO_RXM_TCP = 22,
	FI_PROTO_OPX = 23,
	FI_PROTO_CXI = 24,
	FI_PROTO_XNET = 25,
	FI_PROTO_COLL = 26,
	FI_PROTO_UCX = 27,
	FI_PROTO_SM2 = 28,
	FI_PROTO_CXI_RNR = 29,
	FI_PROTO_LPP = 30,
	FI_PROTO_LNX = 31,
};

/* fabric.h */
enum {
	FI_TAG_BITS = 0,
	FI_TAG_MPI = 1,
	FI_TAG_CCL = 2,
	FI_TAG_MAX_FORMAT = 65536,
};

/* fabric.h */
enum {
	FI_TC_UNSPEC = 0,
	FI_TC_DSCP = 256,
	FI_TC_LABEL = 512,
	FI_TC_BEST_EFFORT = 512,
	FI_TC_LOW_LATENCY = 513,
	FI_TC_DEDICATED_ACCESS = 514,
	FI_TC_BULK_DATA = 515,
	FI_TC_SCAVENGER = 516,
	FI_TC_NETWORK_CTRL = 517,
};

/* fabric.h */
enum fi_bus_type {
	FI_BUS_UNSPEC = 0,
	FI_BUS_UNKNOWN = 0,
	FI_BUS_PCI = 1,
};

/* fabric.h */
enum fi_link_state {
	FI_LINK_UNKNOWN = 0,
	FI_LINK_DOWN = 1,
	FI_LINK_UP = 2,
};

/* fabric.h */
enum {
	FI_CLASS_UNSPEC = 0,
	FI_CLASS_FABRIC = 1,
	FI_CLASS_DOMAIN = 2,
	FI_CLASS_EP = 3,
	FI_CLASS_SEP = 4,
	FI_CLASS_RX_CTX = 5,
	FI_CLASS_SRX_CTX = 6,
	FI_CLASS_TX_CTX = 7,
	FI_CLASS_STX_CTX = 8,
	FI_CLASS_PEP = 9,
	FI_CLASS_INTERFACE = 10,
	FI_CLASS_AV = 11,
	FI_CLASS_MR = 12,
	FI_CLASS_EQ = 13,
	FI_CLASS_CQ = 14,
	FI_CLASS_CNTR = 15,
	FI_CLASS_WAIT = 16,
	FI_CLASS_POLL = 17,
	FI_CLASS_CONNREQ = 18,
	FI_CLASS_MC = 19,
	FI_CLASS_NIC = 20,
	FI_CLASS_AV_SET = 21,
	FI_CLASS_MR_CACHE = 22,
	FI_CLASS_MEM_MONITOR = 23,
	FI_CLASS_PEER_CQ = 24,
	FI_CLASS_PEER_SRX = 25,
	FI_CLASS_LOG = 26,
	FI_CLASS_PEER_AV = 27,
	FI_CLASS_PEER_AV_SET = 28,
	FI_CLASS_PEER_CNTR = 29,
	FI_CLASS_PROFILE = 30,
	FI_CLASS_XPU_CTX = 31,
};

/* fabric.h */
enum {
	FI_GETFIDFLAG = 0,
	FI_SETFIDFLAG = 1,
	FI_GETOPSFLAG = 2,
	FI_SETOPSFLAG = 3,
	FI_ALIAS = 4,
	FI_GETWAIT = 5,
	FI_ENABLE = 6,
	FI_BACKLOG = 7,
	FI_GET_RAW_MR = 8,
	FI_MAP_RAW_MR = 9,
	FI_UNMAP_KEY = 10,
	FI_QUEUE_WORK = 11,
	FI_CANCEL_WORK = 12,
	FI_FLUSH_WORK = 13,
	FI_REFRESH = 14,
	FI_DUP = 15,
	FI_GETWAITOBJ = 16,
	FI_GET_VAL = 17,
	FI_SET_VAL = 18,
	FI_EXPORT_FID = 19,
	FI_GET_FD = 20,
	FI_GET_MR_XPU_DESC = 21,
};

/* fabric.h */
enum fi_type {
	FI_TYPE_INFO = 0,
	FI_TYPE_EP_TYPE = 1,
	FI_TYPE_CAPS = 2,
	FI_TYPE_OP_FLAGS = 3,
	FI_TYPE_ADDR_FORMAT = 4,
	FI_TYPE_TX_ATTR = 5,
	FI_TYPE_RX_ATTR = 6,
	FI_TYPE_EP_ATTR = 7,
	FI_TYPE_DOMAIN_ATTR = 8,
	FI_TYPE_FABRIC_ATTR = 9,
	FI_TYPE_THREADING = 10,
	FI_TYPE_PROGRESS = 11,
	FI_TYPE_PROTOCOL = 12,
	FI_TYPE_MSG_ORDER = 13,
	FI_TYPE_MODE = 14,
	FI_TYPE_AV_TYPE = 15,
	FI_TYPE_ATOMIC_TYPE = 16,
	FI_TYPE_ATOMIC_OP = 17,
	FI_TYPE_VERSION = 18,
	FI_TYPE_EQ_EVENT = 19,
	FI_TYPE_CQ_EVENT_FLAGS = 20,
	FI_TYPE_MR_MODE = 21,
	FI_TYPE_OP_TYPE = 22,
	FI_TYPE_FID = 23,
	FI_TYPE_COLLECTIVE_OP = 24,
	FI_TYPE_HMEM_IFACE = 25,
	FI_TYPE_CQ_FORMAT = 26,
	FI_TYPE_LOG_LEVEL = 27,
	FI_TYPE_LOG_SUBSYS = 28,
	FI_TYPE_AV_ATTR = 29,
	FI_TYPE_CQ_ATTR = 30,
	FI_TYPE_MR_ATTR = 31,
	FI_TYPE_CNTR_ATTR = 32,
	FI_TYPE_CQ_ERR_ENTRY = 33,
	FI_TYPE_CQ_WAIT_COND = 34,
	FI_TYPE_WAIT_OBJ = 35,
};

/* fabric.h */
enum fi_param_type {
	FI_PARAM_STRING = 0,
	FI_PARAM_INT = 1,
	FI_PARAM_BOOL = 2,
	FI_PARAM_SIZE_T = 3,
};

/* fi_domain.h */
enum fi_hmem_iface {
	FI_HMEM_SYSTEM = 0,
	FI_HMEM_CUDA = 1,
	FI_HMEM_ROCR = 2,
	FI_HMEM_ZE = 3,
	FI_HMEM_NEURON = 4,
	FI_HMEM_SYNAPSEAI = 5,
};

/* fi_domain.h */
enum fi_datatype {
	FI_INT8 = 0,
	FI_UINT8 = 1,
	FI_INT16 = 2,
	FI_UINT16 = 3,
	FI_INT32 = 4,
	FI_UINT32 = 5,
	FI_INT64 = 6,
	FI_UINT64 = 7,
	FI_FLOAT = 8,
	FI_DOUBLE = 9,
	FI_FLOAT_COMPLEX = 10,
	FI_DOUBLE_COMPLEX = 11,
	FI_LONG_DOUBLE = 12,
	FI_LONG_DOUBLE_COMPLEX = 13,
	FI_INT128 = 14,
	FI_UINT128 = 15,
	FI_FLOAT16 = 16,
	FI_BFLOAT16 = 17,
	FI_FLOAT8_E4M3 = 18,
	FI_FLOAT8_E5M2 = 19,
	FI_VOID = 256,
};

/* fi_domain.h */
enum fi_op {
	FI_MIN = 0,
	FI_MAX = 1,
	FI_SUM = 2,
	FI_PROD = 3,
	FI_LOR = 4,
	FI_LAND = 5,
	FI_BOR = 6,
	FI_BAND = 7,
	FI_LXOR = 8,
	FI_BXOR = 9,
	FI_ATOMIC_READ = 10,
	FI_ATOMIC_WRITE = 11,
	FI_CSWAP = 12,
	FI_CSWAP_NE = 13,
	FI_CSWAP_LE = 14,
	FI_CSWAP_LT = 15,
	FI_CSWAP_GE = 16,
	FI_CSWAP_GT = 17,
	FI_MSWAP = 18,
	FI_DIFF = 19,
	FI_NOOP = 256,
};

/* fi_domain.h */
enum fi_collective_op {
	FI_BARRIER = 0,
	FI_BROADCAST = 1,
	FI_ALLTOALL = 2,
	FI_ALLREDUCE = 3,
	FI_ALLGATHER = 4,
	FI_REDUCE_SCATTER = 5,
	FI_REDUCE = 6,
	FI_SCATTER = 7,
	FI_GATHER = 8,
};

/* fi_endpoint.h */
enum {
	FI_OPT_ENDPOINT = 0,
};

/* fi_endpoint.h */
enum {
	FI_OPT_MIN_MULTI_RECV = 0,
	FI_OPT_CM_DATA_SIZE = 1,
	FI_OPT_BUFFERED_MIN = 2,
	FI_OPT_BUFFERED_LIMIT = 3,
	FI_OPT_SEND_BUF_SIZE = 4,
	FI_OPT_RECV_BUF_SIZE = 5,
	FI_OPT_TX_SIZE = 6,
	FI_OPT_RX_SIZE = 7,
	FI_OPT_FI_HMEM_P2P = 8,
	FI_OPT_XPU_TRIGGER = 9,
	FI_OPT_CUDA_API_PERMITTED = 10,
	FI_OPT_SHARED_MEMORY_PERMITTED = 11,
	FI_OPT_MAX_MSG_SIZE = 12,
	FI_OPT_MAX_TAGGED_SIZE = 13,
	FI_OPT_MAX_RMA_SIZE = 14,
	FI_OPT_MAX_ATOMIC_SIZE = 15,
	FI_OPT_INJECT_MSG_SIZE = 16,
	FI_OPT_INJECT_TAGGED_SIZE = 17,
	FI_OPT_INJECT_RMA_SIZE = 18,
	FI_OPT_INJECT_ATOMIC_SIZE = 19,
	FI_OPT_FIREWALL_ADDR = 20,
};

/* fi_endpoint.h */
enum {
	FI_HMEM_P2P_ENABLED = 0,
	FI_HMEM_P2P_REQUIRED = 1,
	FI_HMEM_P2P_PREFERRED = 2,
	FI_HMEM_P2P_DISABLED = 3,
};

/* fi_eq.h */
enum fi_wait_obj {
	FI_WAIT_NONE = 0,
	FI_WAIT_UNSPEC = 1,
	FI_WAIT_SET = 2,
	FI_WAIT_FD = 3,
	FI_WAIT_MUTEX_COND = 4,
	FI_WAIT_YIELD = 5,
	FI_WAIT_POLLFD = 6,
};

/* fi_eq.h */
enum {
	FI_NOTIFY = 0,
	FI_CONNREQ = 1,
	FI_CONNECTED = 2,
	FI_SHUTDOWN = 3,
	FI_MR_COMPLETE = 4,
	FI_AV_COMPLETE = 5,
	FI_JOIN_COMPLETE = 6,
};

/* fi_eq.h */
enum fi_cq_format {
	FI_CQ_FORMAT_UNSPEC = 0,
	FI_CQ_FORMAT_CONTEXT = 1,
	FI_CQ_FORMAT_MSG = 2,
	FI_CQ_FORMAT_DATA = 3,
	FI_CQ_FORMAT_TAGGED = 4,
};

/* fi_eq.h */
enum fi_cq_wait_cond {
	FI_CQ_COND_NONE = 0,
	FI_CQ_COND_THRESHOLD = 1,
};

/* fi_eq.h */
enum fi_cntr_events {
	FI_CNTR_EVENTS_COMP = 0,
	FI_CNTR_EVENTS_BYTES = 1,
};

/* fi_trigger.h */
enum fi_trigger_event {
	FI_TRIGGER_THRESHOLD = 0,
	FI_TRIGGER_XPU = 1,
};

/* fi_trigger.h */
enum fi_op_type {
	FI_OP_RECV = 0,
	FI_OP_SEND = 1,
	FI_OP_TRECV = 2,
	FI_OP_TSEND = 3,
	FI_OP_READ = 4,
	FI_OP_WRITE = 5,
	FI_OP_ATOMIC = 6,
	FI_OP_FETCH_ATOMIC = 7,
	FI_OP_COMPARE_ATOMIC = 8,
	FI_OP_CNTR_SET = 9,
	FI_OP_CNTR_ADD = 10,
};

/* fi_ext.h */
enum {
	FI_OPT_EFA_RNR_RETRY = -251265024,
	FI_OPT_EFA_EMULATED_READ = -251265023,
	FI_OPT_EFA_EMULATED_WRITE = -251265022,
	FI_OPT_EFA_EMULATED_ATOMICS = -251265021,
	FI_OPT_EFA_USE_DEVICE_RDMA = -251265020,
	FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES = -251265019,
	FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES = -251265018,
	FI_OPT_EFA_HOMOGENEOUS_PEERS = -251265017,
	FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV = -251265016,
};

/* fi_ext_efa.h */
enum {
	FI_EFA_MR_ATTR_RECV_IC_ID = 1,
	FI_EFA_MR_ATTR_RDMA_READ_IC_ID = 2,
	FI_EFA_MR_ATTR_RDMA_RECV_IC_ID = 4,
};

/* fi_ext_efa.h */
enum {
	FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF = 1,
};

/* fi_ext_efa.h */
enum fi_efa_wq_caps {
	FI_EFA_WQ_CAPS_64_BIT_REQ_ID = 1,
};

/* fi_ext_efa.h */
enum fi_efa_memory_location_type {
	FI_EFA_MEMORY_LOCATION_VA = 0,
	FI_EFA_MEMORY_LOCATION_DMABUF = 1,
};

/* fi_ext_efa.h */
enum {
	FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM = 1,
	FI_EFA_COMP_CNTR_INIT_WITH_ERR_EXTERNAL_MEM = 2,
};

/* fi_profile.h */
enum {
	FI_VAR_UNEXP_MSG_CNT = 0,
	FI_VAR_UNEXP_MSG_QUEUE = 1,
	FI_VAR_MSG_QUEUE_CNT = 2,
	FI_VAR_CONNECTION_CNT = 3,
	FI_VAR_CONN_REQUEST = 4,
	FI_VAR_CONN_ACCEPT = 5,
	FI_VAR_CONN_REJECT = 6,
	FI_VAR_OFI_MEM = 7,
};

/* fi_profile.h */
enum {
	FI_EVENT_UNEXP_MSG_RECVD = 0,
	FI_EVENT_UNEXP_MSG_MATCHED = 1,
};

/* fi_profile.h */
enum fi_profile_type {
	fi_primitive_type = 0,
	fi_defined_type = 1,
};

/* fi_xpu.h */
enum {
	FI_XPU_WORK_ITEM = 0,
	FI_XPU_SUBGROUP = 1,
	FI_XPU_WORK_GROUP = 2,
	FI_XPU_DEVICE = 3,
};

/* fi_xpu.h */
enum fi_xpu_provider {
	FI_XPU_PROV_EFA = 1,
};

/* providers/fi_log.h */
enum fi_log_subsys {
	FI_LOG_CORE = 0,
	FI_LOG_FABRIC = 1,
	FI_LOG_DOMAIN = 2,
	FI_LOG_EP_CTRL = 3,
	FI_LOG_EP_DATA = 4,
	FI_LOG_AV = 5,
	FI_LOG_CQ = 6,
	FI_LOG_EQ = 7,
	FI_LOG_MR = 8,
	FI_LOG_CNTR = 9,
};

/* providers/fi_log.h */
enum fi_log_level {
	FI_LOG_WARN = 0,
	FI_LOG_TRACE = 1,
	FI_LOG_INFO = 2,
	FI_LOG_DEBUG = 3,
};

struct fi_domain_attr {
	struct fid_domain *domain;
	char *name;
	enum fi_threading threading;
	enum fi_progress control_progress;
	union {
		enum fi_progress data_progress;
		enum fi_progress progress;
	};
	enum fi_resource_mgmt resource_mgmt;
	enum fi_av_type av_type;
	int mr_mode;
	size_t mr_key_size;
	size_t cq_data_size;
	size_t cq_cnt;
	size_t ep_cnt;
	size_t tx_ctx_cnt;
	size_t rx_ctx_cnt;
	size_t max_ep_tx_ctx;
	size_t max_ep_rx_ctx;
	size_t max_ep_stx_ctx;
	size_t max_ep_srx_ctx;
	size_t cntr_cnt;
	size_t mr_iov_limit;
	uint64_t caps;
	uint64_t mode;
	uint8_t *auth_key;
	size_t auth_key_size;
	size_t max_err_data;
	size_t mr_cnt;
	uint32_t tclass;
	size_t max_ep_auth_key;
	uint32_t max_group_id;
	uint64_t max_cntr_value;
	uint64_t max_err_cntr_value;
	size_t max_xpu_ctx_cnt;
};

struct fi_mr_attr {
	union {
		const struct iovec *mr_iov;
		const struct fi_mr_dmabuf *dmabuf;
	};
	size_t iov_count;
	uint64_t access;
	uint64_t offset;
	uint64_t requested_key;
	void *context;
	size_t auth_key_size;
	uint8_t *auth_key;
	enum fi_hmem_iface iface;
	union {
		uint64_t reserved;
		int cuda;
		int ze;
		int neuron;
		int synapseai;
		int rocr;
	} device;
	void *hmem_data;
	size_t page_size;
	const struct fid_mr *base_mr;
	size_t sub_mr_cnt;
};

struct fi_eq_cm_entry {
	fid_t fid;
	struct fi_info *info;
	uint8_t data[];
};

struct fi_mutex_cond {
	pthread_mutex_t *mutex;
	pthread_cond_t *cond;
};

#ifdef __cplusplus
}
#endif

#endif
