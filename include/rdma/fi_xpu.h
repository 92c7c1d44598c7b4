/* SPDX-License-Identifier: BSD-2-Clause */
/* Accelerator-initiated communication: contexts and exports. */
#ifndef FI_RS_FI_XPU_H
#define FI_RS_FI_XPU_H

#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_XPU_ALLOC_DMABUF          (1ULL << 0)
#define FI_XPU_IMPORT_IOMEMORY       (1ULL << 0)
#define FI_XPU_IMPORT_DEVICEMAP      (1ULL << 1)
#define FI_XPU_CAP_EP                (1ULL << 0)
#define FI_XPU_CAP_CQ                (1ULL << 1)
#define FI_XPU_CAP_CNTR              (1ULL << 2)

static inline int fi_xpu_ctx(struct fid_domain *domain, struct fi_xpu_attr *attr,
		struct fid_xpu_ctx **ctx, void *context)
{
	if (!FI_CHECK_OP(domain->ops, struct fi_ops_domain, xpu_ctx))
		return -FI_ENOSYS;
	return domain->ops->xpu_ctx(domain, attr, ctx, context);
}

static inline int fi_xpu_ctx_query(struct fid_xpu_ctx *ctx, struct fi_xpu_ctx_attr *attr)
{
	return ctx->ops->query(ctx, attr);
}

#ifdef __cplusplus
}
#endif

#endif
