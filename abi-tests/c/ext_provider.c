/* SPDX-License-Identifier: BSD-2-Clause */
/* An external provider for FI_PROVIDER_PATH: getinfo returns one info, fabric fails (FI_ENOSYS). */
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **info)
{
	struct fi_info *i = fi_allocinfo();

	(void) version, (void) node, (void) service, (void) flags, (void) hints;
	if (!i)
		return -FI_ENOMEM;
	i->ep_attr->type = FI_EP_MSG;
	i->domain_attr->name = strdup("outside-domain");
	i->fabric_attr->name = strdup("outside-fabric");
	*info = i;
	return 0;
}

static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void) attr, (void) fabric, (void) context;
	return -FI_ENOSYS;
}

static struct fi_provider provider = {
	.version = FI_VERSION(3, 1),
	.fi_version = FI_VERSION(2, 6),
	.name = "outside",
	.getinfo = getinfo,
	.fabric = fabric,
};

FI_EXT_INI
{
	return &provider;
}
