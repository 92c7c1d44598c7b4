/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provider files for FI_PROVIDER_PATH: `outside`, whose getinfo returns one info, and whose fabric
 * fails (FI_ENOSYS); with -DUTILITY `ofi_outside`, which is layered over other providers; with
 * -DHOOK `ofi_hook_outside`, which leaves the name of the provider that it wraps in
 * OUTSIDE_HOOKED; with -DCRASH one that crashes while it is initialised.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/providers/fi_prov.h>

#if defined(UTILITY)
/* OFI_CORE_PROV_ONLY of the C library */
#define CORE_ONLY (1ULL << 59)

/* What the providers below offer, which the core names after both. */
static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags,
		   const struct fi_info *hints, struct fi_info **info)
{
	struct fi_info *below = fi_allocinfo();
	char asked[64] = "", name[80] = "^ofi_outside";
	int ret;

	if (!below)
		return -FI_ENOMEM;
	if (hints && hints->fabric_attr && hints->fabric_attr->prov_name)
		snprintf(asked, sizeof(asked), "%s", hints->fabric_attr->prov_name);
	for (char *rest = asked, *part; (part = strsep(&rest, ";"));)
		if (*part && strncmp(part, "ofi_", 4))
			snprintf(name, sizeof(name), "%s;^ofi_outside", part);
	below->fabric_attr->prov_name = strdup(name);
	ret = fi_getinfo(version, node, service, flags | CORE_ONLY, below, info);
	fi_freeinfo(below);
	return ret;
}

#elif !defined(HOOK)
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

#endif

#ifdef HOOK
static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	setenv("OUTSIDE_HOOKED", ((struct fi_provider *) context)->name, 1);
	*fabric = attr->fabric;
	return 0;
}

#else
static int fabric(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	(void) attr, (void) fabric, (void) context;
	return -FI_ENOSYS;
}

#endif

static struct fi_provider provider = {
	.version = FI_VERSION(3, 1),
	.fi_version = FI_VERSION(2, 6),
#if defined(HOOK)
	.name = "ofi_hook_outside",
#elif defined(UTILITY)
	.name = "ofi_outside",
	.getinfo = getinfo,
#else
	.name = "outside",
	.getinfo = getinfo,
#endif
	.fabric = fabric,
};

FI_EXT_INI
{
#ifdef CRASH
	abort();
#endif
	return &provider;
}
