/* SPDX-License-Identifier: BSD-2-Clause */
/* GPU memory for tests under `gpu-sim run`, where only CUDA can access it. */
#ifndef DEVICE_H
#define DEVICE_H

#include <dlfcn.h>
#include "alone.h"

enum {
	SIZE = 3 << 20,
	TO_DEVICE = 1,
	TO_HOST = 2,
	ALL = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE
};

static int (*gpu_malloc)(void **, size_t);
static int (*gpu_copy)(void *, const void *, size_t, int);
static uint64_t (*gpu_calls)(const char *library, const char *function) __attribute__((unused));
static char out[SIZE], back[SIZE];

/* As `ask`, with FI_HMEM; `mode` is FI_MR_HMEM, or 0 to leave that bit out. */
static inline int ask_device(const char *fabric_name, int mode)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	hints->fabric_attr->name = strdup(fabric_name);
	hints->fabric_attr->prov_name = strdup("efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA | FI_HMEM;
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode =
			FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | mode;
	ret = fi_getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return ret;
}

static void *symbol(const char *name)
{
	void *lib = dlopen("libcudart.so", RTLD_NOW), *at = lib ? dlsym(lib, name) : NULL;

	if (!at) {
		printf("no %s: not under gpu-sim run\n", name);
		exit(EXIT_FAILURE);
	}
	return at;
}

static inline void *device(void)
{
	void *at;

	DO(0, gpu_malloc(&at, SIZE));
	return at;
}

static inline struct fid_mr *registered(void *at, enum fi_hmem_iface iface)
{
	struct iovec iov = { at, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL, .iface = iface };
	struct fid_mr *mr;

	DO(0, fi_mr_regattr(domain, &attr, 0, &mr));
	return mr;
}

/* Waits for `wanted` completions. */
static inline void ends(int wanted)
{
	struct fi_cq_data_entry e;

	while (wanted > 0) {
		ssize_t n = fi_cq_read(cq, &e, 1);

		if (n == -FI_EAGAIN)
			continue;
		DO(1, n);
		wanted--;
	}
}

static inline void fill(void *at)
{
	pattern(out, SIZE);
	DO(0, gpu_copy(at, out, SIZE, TO_DEVICE));
}

static inline void check_device_memory(void *at, size_t len)
{
	memset(back, 0, SIZE);
	DO(0, gpu_copy(back, at, SIZE, TO_HOST));
	TRUE(memcmp(back, out, len) == 0);
}

/* Number of copies that the library has made through CUDA. */
static inline uint64_t copies(void)
{
	return gpu_calls("libfabric", "cuMemcpy");
}

/* Loads CUDA's functions. */
static inline void load_copies(void)
{
	gpu_malloc = (int (*)(void **, size_t)) symbol("cudaMalloc");
	gpu_copy = (int (*)(void *, const void *, size_t, int)) symbol("cudaMemcpy");
}

/* Loads CUDA's functions and gpu-sim's call counter. */
static inline void load_cuda(void)
{
	load_copies();
	gpu_calls = (uint64_t (*)(const char *, const char *)) symbol("gpu_sim_calls");
}

#endif
