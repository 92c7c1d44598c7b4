/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Clients of every symbol version, in one program: each node's functions by dlvsym, hints in that
 * node's own struct sizes placed right before an unmapped page (a read past them crashes), answers
 * checked, duplicated, and freed through the same node.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

struct node {
	const char *name;
	uint32_t api;
	size_t info, tx, ep, domain;
};

/* Sizes of fi_info, fi_tx_attr, fi_ep_attr and fi_domain_attr at each node (legacy-abi facts). */
static const struct node NODES[] = {
	{ "FABRIC_1.0", FI_VERSION(1, 0), 112, 72, 80, 120 },
	{ "FABRIC_1.1", FI_VERSION(1, 5), 112, 72, 96, 184 },
	{ "FABRIC_1.2", FI_VERSION(1, 6), 120, 72, 96, 184 },
	{ "FABRIC_1.3", FI_VERSION(1, 9), 120, 80, 96, 192 },
	{ "FABRIC_1.7", FI_VERSION(1, 20), 120, 80, 96, 200 },
	{ "FABRIC_1.8", FI_VERSION(2, 0), 120, 80, 96, 208 },
	{ "FABRIC_1.9", FI_VERSION(2, 5), 120, 80, 96, 224 },
	{ "FABRIC_1.10", FI_VERSION(2, 6), sizeof(struct fi_info), sizeof(struct fi_tx_attr),
	  sizeof(struct fi_ep_attr), sizeof(struct fi_domain_attr) },
};

typedef int (*getinfo_fn)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *,
			  struct fi_info **);
typedef struct fi_info *(*dupinfo_fn)(const struct fi_info *);
typedef void (*freeinfo_fn)(struct fi_info *);

static int failed;

#define EXPECT(cond) \
	do { \
		if (!(cond)) { \
			printf("%s: line %d: not so: %s\n", n->name, __LINE__, #cond); \
			failed = 1; \
		} \
	} while (0)

/* `size` zero bytes that end where a page without access begins. */
static void *at_the_edge(size_t size)
{
	size_t page = (size_t) sysconf(_SC_PAGESIZE);
	char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED || mprotect(p + page, page, PROT_NONE))
		exit(EXIT_FAILURE);
	return p + page - size;
}

static void client(const struct node *n, void *lib)
{
	getinfo_fn getinfo = (getinfo_fn) dlvsym(lib, "fi_getinfo", n->name);
	dupinfo_fn dupinfo = (dupinfo_fn) dlvsym(lib, "fi_dupinfo", n->name);
	freeinfo_fn freeinfo = (freeinfo_fn) dlvsym(lib, "fi_freeinfo", n->name);
	struct fi_info *hints = at_the_edge(n->info), *info = NULL, *copy, *fresh;

	EXPECT(getinfo && dupinfo && freeinfo);
	if (!getinfo || !dupinfo || !freeinfo)
		return;
	hints->caps = FI_MSG | FI_TAGGED;
	hints->mode = ~0ULL;
	hints->tx_attr = at_the_edge(n->tx);
	hints->tx_attr->iov_limit = 2;
	hints->ep_attr = at_the_edge(n->ep);
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr = at_the_edge(n->domain);
	hints->domain_attr->max_ep_srx_ctx = 0;
	/* The last member of every node's struct stays zero: nothing behind it may be read. */
	EXPECT(getinfo(n->api, NULL, NULL, 0, hints, &info) == 0);
	EXPECT(info != NULL);
	if (!info)
		return;
	EXPECT((info->caps & (FI_MSG | FI_TAGGED)) == (FI_MSG | FI_TAGGED));
	EXPECT(info->tx_attr->iov_limit == 2);
	EXPECT(info->ep_attr->type == FI_EP_RDM);
	EXPECT(strcmp(info->domain_attr->name, "efasoft0-rdm") == 0);
	EXPECT(strcmp(info->fabric_attr->prov_name, "efa") == 0);
	EXPECT(info->src_addrlen == 32 && info->src_addr != NULL);
	copy = dupinfo(info);
	EXPECT(copy && copy != info && copy->next == NULL);
	EXPECT(copy->caps == info->caps && copy->domain_attr != info->domain_attr);
	EXPECT(strcmp(copy->domain_attr->name, info->domain_attr->name) == 0);
	EXPECT(copy->domain_attr->max_ep_rx_ctx == info->domain_attr->max_ep_rx_ctx);
	EXPECT(memcmp(copy->src_addr, info->src_addr, 32) == 0);
	if (n->info > 112)
		EXPECT(copy->nic && strcmp(copy->nic->device_attr->name, "efasoft0") == 0);
	freeinfo(copy);
	freeinfo(info);
	/* A client may also duplicate and free what it made itself. */
	copy = dupinfo(hints);
	EXPECT(copy && copy->caps == hints->caps && copy->ep_attr->type == FI_EP_RDM);
	freeinfo(copy);
	fresh = dupinfo(NULL);
	EXPECT(fresh && fresh->tx_attr && fresh->rx_attr && fresh->ep_attr && fresh->domain_attr &&
	       fresh->fabric_attr);
	freeinfo(fresh);
	freeinfo(NULL);
}

int main(int argc, char **argv)
{
	void *lib = dlopen(argc > 1 ? argv[1] : "libfabric.so.1", RTLD_NOW);

	if (!lib) {
		printf("%s\n", dlerror());
		return EXIT_FAILURE;
	}
	for (size_t i = 0; i < sizeof(NODES) / sizeof(NODES[0]); i++)
		client(&NODES[i], lib);
	printf("%zu nodes, %s\n", sizeof(NODES) / sizeof(NODES[0]),
			failed ? "FAILED" : "all as they were");
	return failed;
}
