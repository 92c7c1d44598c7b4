/* SPDX-License-Identifier: BSD-2-Clause */
/* The fabric interface: capability flags, information, discovery. fi_fabric(3), fi_getinfo(3). */
#ifndef FI_RS_FABRIC_H
#define FI_RS_FABRIC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_types.h>
#include <rdma/gen/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) || defined(__clang__)
#define FI_DEPRECATED_FUNC __attribute__((deprecated))
#define FI_DEPRECATED_FIELD __attribute__((deprecated))
#define FI_FORMAT_PRINTF(string, first) __attribute__((__format__(__printf__, (string), (first))))
#else
#define FI_DEPRECATED_FUNC
#define FI_DEPRECATED_FIELD
#define FI_FORMAT_PRINTF(string, first)
#endif

#if defined(__GNUC__) && !defined(__clang__)
#define EXTERNALLY_VISIBLE externally_visible
#else
#define EXTERNALLY_VISIBLE
#endif

#define FI_VERSION(major, minor) (((major) << 16) | (minor))
#define FI_MAJOR(version) ((version) >> 16)
#define FI_MINOR(version) ((version) & 0xFFFF)
#define FI_VERSION_GE(v1, v2) ((v1) >= (v2))
#define FI_VERSION_LT(v1, v2) ((v1) < (v2))

/* True where the provider's table is long enough to hold the member and the member is set. */
#define FI_CHECK_OP(ops, opstype, op) ((ops) && ((ops)->size > offsetof(opstype, op)) && (ops)->op)

/* One space each: CMake modules of clients read these lines. */
#define FI_MAJOR_VERSION 2
#define FI_MINOR_VERSION 6
#define FI_REVISION_VERSION 0
#define FI_MSG                       (1ULL << 1)
#define FI_RMA                       (1ULL << 2)
#define FI_TAGGED                    (1ULL << 3)
#define FI_ATOMIC                    (1ULL << 4)
#define FI_ATOMICS                   (1ULL << 4)
#define FI_MULTICAST                 (1ULL << 5)
#define FI_COLLECTIVE                (1ULL << 6)
#define FI_READ                      (1ULL << 8)
#define FI_WRITE                     (1ULL << 9)
#define FI_RECV                      (1ULL << 10)
#define FI_SEND                      (1ULL << 11)
#define FI_TRANSMIT                  (1ULL << 11)
#define FI_REMOTE_READ               (1ULL << 12)
#define FI_REMOTE_WRITE              (1ULL << 13)
#define FI_MULTI_RECV                (1ULL << 16)
#define FI_REMOTE_CQ_DATA            (1ULL << 17)
#define FI_MORE                      (1ULL << 18)
#define FI_PEEK                      (1ULL << 19)
#define FI_TRIGGER                   (1ULL << 20)
#define FI_FENCE                     (1ULL << 21)
#define FI_COMPLETION                (1ULL << 24)
#define FI_EVENT                     (1ULL << 24)
#define FI_INJECT                    (1ULL << 25)
#define FI_INJECT_COMPLETE           (1ULL << 26)
#define FI_TRANSMIT_COMPLETE         (1ULL << 27)
#define FI_DELIVERY_COMPLETE         (1ULL << 28)
#define FI_AFFINITY                  (1ULL << 29)
#define FI_COMMIT_COMPLETE           (1ULL << 30)
#define FI_MATCH_COMPLETE            (1ULL << 31)
#define FI_RESCAN                    (1ULL << 35)
#define FI_PEER_TRANSFER             (1ULL << 36)
#define FI_MR_DMABUF                 (1ULL << 40)
#define FI_AV_USER_ID                (1ULL << 41)
#define FI_FIREWALL_ADDR             (1ULL << 42)
#define FI_PEER                      (1ULL << 43)
#define FI_XPU                       (1ULL << 44)
#define FI_TAGGED_DIRECTED_RECV      (1ULL << 45)
#define FI_TAGGED_MULTI_RECV         (1ULL << 46)
#define FI_HMEM                      (1ULL << 47)
#define FI_EXACT_DIRECTED_RECV       (1ULL << 48)
#define FI_RMA_PMEM                  (1ULL << 49)
#define FI_SOURCE_ERR                (1ULL << 50)
#define FI_LOCAL_COMM                (1ULL << 51)
#define FI_REMOTE_COMM               (1ULL << 52)
#define FI_SHARED_AV                 (1ULL << 53)
#define FI_PROV_ATTR_ONLY            (1ULL << 54)
#define FI_NUMERICHOST               (1ULL << 55)
#define FI_RMA_EVENT                 (1ULL << 56)
#define FI_SOURCE                    (1ULL << 57)
#define FI_NAMED_RX_CTX              (1ULL << 58)
#define FI_DIRECTED_RECV             (1ULL << 59)
#define FI_CLAIM                     (1ULL << 59)
#define FI_DISCARD                   (1ULL << 58)
#define FI_AUTH_KEY                  (1ULL << 57)
#define FI_ADDR_UNSPEC               ((uint64_t) -1)
#define FI_ADDR_NOTAVAIL             ((uint64_t) -1)
#define FI_KEY_NOTAVAIL              ((uint64_t) -1)
#define FI_SHARED_CONTEXT            SIZE_MAX
#define FI_AV_AUTH_KEY               SIZE_MAX
#define FI_MR_UNSPEC                 0
#define FI_MR_BASIC                  (1 << 0)
#define FI_MR_SCALABLE               (1 << 1)
#define FI_MR_LOCAL                  (1 << 2)
#define FI_MR_RAW                    (1 << 3)
#define FI_MR_VIRT_ADDR              (1 << 4)
#define FI_MR_ALLOCATED              (1 << 5)
#define FI_MR_PROV_KEY               (1 << 6)
#define FI_MR_MMU_NOTIFY             (1 << 7)
#define FI_MR_RMA_EVENT              (1 << 8)
#define FI_MR_ENDPOINT               (1 << 9)
#define FI_MR_HMEM                   (1 << 10)
#define FI_MR_COLLECTIVE             (1 << 11)
#define FI_MR_XPU_DESC               (1 << 12)
#define FI_ORDER_NONE                0
#define FI_ORDER_RAR                 (1ULL << 0)
#define FI_ORDER_RAW                 (1ULL << 1)
#define FI_ORDER_RAS                 (1ULL << 2)
#define FI_ORDER_WAR                 (1ULL << 3)
#define FI_ORDER_WAW                 (1ULL << 4)
#define FI_ORDER_WAS                 (1ULL << 5)
#define FI_ORDER_SAR                 (1ULL << 6)
#define FI_ORDER_SAW                 (1ULL << 7)
#define FI_ORDER_SAS                 (1ULL << 8)
#define FI_ORDER_STRICT              0x1ffULL
#define FI_ORDER_RMA_RAR             (1ULL << 32)
#define FI_ORDER_RMA_RAW             (1ULL << 33)
#define FI_ORDER_RMA_WAR             (1ULL << 34)
#define FI_ORDER_RMA_WAW             (1ULL << 35)
#define FI_ORDER_ATOMIC_RAR          (1ULL << 36)
#define FI_ORDER_ATOMIC_RAW          (1ULL << 37)
#define FI_ORDER_ATOMIC_WAR          (1ULL << 38)
#define FI_ORDER_ATOMIC_WAW          (1ULL << 39)
#define FI_ORDER_DATA                (1ULL << 16)
#define FI_CONTEXT                   (1ULL << 59)
#define FI_MSG_PREFIX                (1ULL << 58)
#define FI_ASYNC_IOV                 (1ULL << 57)
#define FI_RX_CQ_DATA                (1ULL << 56)
#define FI_LOCAL_MR                  (1ULL << 55)
#define FI_NOTIFY_FLAGS_ONLY         0
#define FI_RESTRICTED_COMP           0
#define FI_CONTEXT2                  (1ULL << 52)
#define FI_SELECTIVE_COMPLETION      (1ULL << 59)
#define FI_VARIABLE_MSG              0
#define FI_EP_SOCK_STREAM            0

uint32_t fi_version(void);
int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		const struct fi_info *hints, struct fi_info **info);
void fi_freeinfo(struct fi_info *info);
int fi_fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
int fi_fabric2(struct fi_info *info, struct fid_fabric **fabric, uint64_t flags, void *context);
char *fi_tostr(const void *data, enum fi_type datatype);
char *fi_tostr_r(char *buf, size_t len, const void *data, enum fi_type datatype);
int fi_getparams(struct fi_param **params, int *count);
void fi_freeparams(struct fi_param *params);
struct fi_info *fi_dupinfo(const struct fi_info *info);
int fi_open(uint32_t version, const char *name, void *attr, size_t attr_len, uint64_t flags,
		struct fid **fid, void *context);

static inline uint32_t fi_tc_dscp_set(uint8_t dscp)
{
	return FI_TC_DSCP | (uint32_t) dscp;
}

static inline uint8_t fi_tc_dscp_get(uint32_t tclass)
{
	return (tclass & FI_TC_DSCP) ? (uint8_t) (tclass & 0xff) : 0;
}

static inline struct fi_info *fi_allocinfo(void)
{
	return fi_dupinfo(NULL);
}

static inline int fi_close(struct fid *fid)
{
	return fid->ops->close(fid);
}

static inline int fi_control(struct fid *fid, int command, void *arg)
{
	return fid->ops->control(fid, command, arg);
}

static inline int fi_alias(struct fid *fid, struct fid **alias_fid, uint64_t flags)
{
	struct fi_alias alias = { alias_fid, flags };

	return fi_control(fid, FI_ALIAS, &alias);
}

static inline int fi_get_val(struct fid *fid, int name, void *val)
{
	struct fi_fid_var var = { name, val };

	return fi_control(fid, FI_GET_VAL, &var);
}

static inline int fi_set_val(struct fid *fid, int name, void *val)
{
	struct fi_fid_var var = { name, val };

	return fi_control(fid, FI_SET_VAL, &var);
}

static inline int fi_open_ops(struct fid *fid, const char *name, uint64_t flags, void **ops,
		void *context)
{
	return fid->ops->ops_open(fid, name, flags, ops, context);
}

static inline int fi_set_ops(struct fid *fid, const char *name, uint64_t flags, void *ops,
		void *context)
{
	if (!FI_CHECK_OP(fid->ops, struct fi_ops, ops_set))
		return -FI_ENOSYS;
	return fid->ops->ops_set(fid, name, flags, ops, context);
}

#ifdef __cplusplus
}
#endif

#endif
