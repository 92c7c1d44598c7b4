/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of a GPU (FI_HMEM_CUDA, fi_mr(3)): messages, reads and writes from and into it, and what is refused. For
 * `gpu-sim run`; nobody but CUDA can touch such memory there.
 *
 * device_memory FABRIC        it works
 * device_memory FABRIC none   a machine without a GPU
 */
#include <dlfcn.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include "alone.h"

enum { SIZE = 3 << 20, TO_DEVICE = 1, TO_HOST = 2, ALL = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE };

static int (*gpu_malloc)(void **, size_t);
static int (*gpu_copy)(void *, const void *, size_t, int);
static char out[SIZE], back[SIZE];

/* As `ask`, with device memory or without the mode that goes with it. */
static int ask_device(const char *fabric_name, int mode)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	hints->fabric_attr->name = strdup(fabric_name);
	hints->fabric_attr->prov_name = strdup("efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA | FI_HMEM;
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | mode;
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

static void *device(void)
{
	void *at;

	DO(0, gpu_malloc(&at, SIZE));
	return at;
}

static struct fid_mr *registered(void *at, enum fi_hmem_iface iface)
{
	struct iovec iov = { at, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL, .iface = iface };
	struct fid_mr *mr;

	DO(0, fi_mr_regattr(domain, &attr, 0, &mr));
	return mr;
}

/* Waits for so many completions. */
static void ends(int wanted)
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

static void fill(void *at)
{
	pattern(out, SIZE);
	DO(0, gpu_copy(at, out, SIZE, TO_DEVICE));
}

static void holds(void *at, size_t len)
{
	memset(back, 0, SIZE);
	DO(0, gpu_copy(back, at, SIZE, TO_HOST));
	TRUE(memcmp(back, out, len) == 0);
}

#define POST(call) \
	do { \
		ssize_t ret_; \
		while ((ret_ = (call)) == -FI_EAGAIN) \
			fi_cq_read(cq, NULL, 0); \
		DO(0, ret_); \
	} while (0)

int main(int argc, char **argv)
{
	static struct fi_context2 contexts[2];
	int direct = argc > 1 && strcmp(argv[1], "efa-direct") == 0;
	size_t lens[] = { 8, 4096, 20000, 300000, SIZE };
	struct fi_mr_attr attr = { .iov_count = 1, .access = ALL, .iface = FI_HMEM_CUDA };
	struct iovec iov;
	struct fid_mr *near, *far, *host, *mr;
	char *a, *b;

	TRUE(argc >= 2);
	if (argc > 2) {
		DO(-FI_ENODATA, ask_device(argv[1], FI_MR_HMEM));
		open_disabled(argv[1]);
		enable();
		iov = (struct iovec) { out, SIZE };
		attr.mr_iov = &iov;
		DO(-FI_ENOSYS, fi_mr_regattr(domain, &attr, 0, &mr));
		puts("no device memory here");
		return 0;
	}
	gpu_malloc = (int (*)(void **, size_t)) symbol("cudaMalloc");
	gpu_copy = (int (*)(void *, const void *, size_t, int)) symbol("cudaMemcpy");
	DO(-FI_ENODATA, ask_device(argv[1], 0));
	DO(0, ask_device(argv[1], FI_MR_HMEM));
	TRUE(info->caps & FI_HMEM && info->domain_attr->mr_mode & FI_MR_HMEM);
	open_asked();
	enable();
	a = device();
	b = device();

	/* Registered plainly, it would be touched by the processor. */
	DO(-FI_EINVAL, fi_mr_reg(domain, a, SIZE, ALL, 0, 0, 0, &mr, NULL));
	iov = (struct iovec) { a, SIZE };
	attr.mr_iov = &iov;
	attr.iface = FI_HMEM_ROCR;
	DO(-FI_ENOSYS, fi_mr_regattr(domain, &attr, 0, &mr));
	attr.iface = (enum fi_hmem_iface) 77;
	DO(-FI_EINVAL, fi_mr_regattr(domain, &attr, 0, &mr));

	near = registered(a, FI_HMEM_CUDA);
	far = registered(b, FI_HMEM_CUDA);
	host = registered(back, FI_HMEM_SYSTEM);
	TRUE(fi_mr_desc(near) && fi_mr_desc(host));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		size_t len = lens[i];
		uint64_t there = (uint64_t) (uintptr_t) b;

		if (!direct || len < info->ep_attr->max_msg_size) {
			if (!direct || len < 60000) {
				fill(a);
				POST(fi_recv(ep, b, len, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
				POST(fi_send(ep, a, len, fi_mr_desc(near), self, &contexts[1]));
				ends(2);
				holds(b, len);
			}
			fill(a);
			POST(fi_write(ep, a, len, fi_mr_desc(near), self, there, fi_mr_key(far), &contexts[0]));
			ends(1);
			holds(b, len);
			fill(b);
			POST(fi_read(ep, a, len, fi_mr_desc(near), self, there, fi_mr_key(far), &contexts[0]));
			ends(1);
			holds(a, len);
			/* From the GPU into host memory. */
			POST(fi_read(ep, back, len, fi_mr_desc(host), self, there, fi_mr_key(far), &contexts[0]));
			ends(1);
			TRUE(memcmp(back, out, len) == 0);
		}
	}
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&far->fid));
	DO(0, fi_close(&host->fid));
	puts("device memory is sent, received, written and read");
	return 0;
}
