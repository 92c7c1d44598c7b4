/* SPDX-License-Identifier: BSD-2-Clause */
/* Imports, exports and provider-specific options. */
#ifndef FI_RS_FI_EXT_H
#define FI_RS_FI_EXT_H

#include <stdbool.h>
#include <rdma/fi_endpoint.h>
#include <rdma/providers/fi_prov.h>
#include <rdma/providers/fi_log.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_PROV_SPECIFIC_EFA         0xefa0000
#define FI_PROV_SPECIFIC_TCP         0x7cb0000
#define FI_LOG_PROV_FILTERED         (1ULL << 0)

static inline int fi_export_fid(struct fid *fid, uint64_t flags, struct fid **expfid,
		void *context)
{
	struct fi_fid_export exp = { expfid, flags, context };

	return fi_control(fid, FI_EXPORT_FID, &exp);
}

static inline int fi_import_fid(struct fid *fid, struct fid *expfid, uint64_t flags)
{
	return fid->ops->bind(fid, expfid, flags);
}

static inline int fi_import(uint32_t version, const char *name, void *attr, size_t attr_len,
		uint64_t flags, struct fid *fid, void *context)
{
	struct fid *opened;
	int ret = fi_open(version, name, attr, attr_len, flags, &opened, context);

	if (ret == 0) {
		ret = fi_import_fid(opened, fid, flags);
		fi_close(opened);
	}
	return ret;
}

static inline int fi_import_log(uint32_t version, uint64_t flags,
		struct fid_logging *log_fid)
{
	log_fid->fid.fclass = FI_CLASS_LOG;
	log_fid->ops->size = sizeof(struct fi_ops_log);
	return fi_import(version, "logging", NULL, 0, flags, &log_fid->fid, log_fid);
}

#ifdef __cplusplus
}
#endif

#endif
