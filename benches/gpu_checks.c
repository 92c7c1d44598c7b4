/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What can be asked of a GPU beside the library, for benches/gpu.sh: `floors` prints how fast CUDA
 * itself copies, `context` whether fi_getinfo made a context, `dmabuf` which exports the driver
 * has, `kernel` whether a message reaches a kernel that waits for it on the default stream.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>
#include "device.h"

typedef int (*call)();

static call cu(const char *symbol_name)
{
	static void *lib;

	lib = lib ? lib : dlopen("libcuda.so.1", RTLD_NOW);
	return lib ? (call) dlsym(lib, symbol_name) : NULL;
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static void floors(void)
{
	call wait = (call) symbol("cudaDeviceSynchronize"), host_alloc = (call) symbol("cudaMallocHost");
	size_t sizes[] = { 4096, 65536, 1 << 20, 8 << 20, 64 << 20 };
	void *a, *b, *h;

	DO(0, gpu_malloc(&a, 64 << 20));
	DO(0, gpu_malloc(&b, 64 << 20));
	DO(0, host_alloc(&h, (size_t) (64 << 20)));
	printf("%-10s%14s%14s%14s   GB/s\n", "bytes", "device-device", "host-device", "device-host");
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct {
			void *to, *from;
			int kind;
		} ways[] = { { b, a, 3 }, { a, h, TO_DEVICE }, { h, a, TO_HOST } };

		printf("%-10zu", sizes[i]);
		for (int w = 0; w < 3; w++) {
			int n = 50;
			double t;

			gpu_copy(ways[w].to, ways[w].from, sizes[i], ways[w].kind);
			DO(0, wait());
			t = now();
			for (int k = 0; k < n; k++)
				gpu_copy(ways[w].to, ways[w].from, sizes[i], ways[w].kind);
			DO(0, wait());
			printf("%14.2f", (double) sizes[i] * n / (now() - t) / 1e9);
		}
		putchar('\n');
	}
}

static void context(void)
{
	call init = cu("cuInit"), state = cu("cuDevicePrimaryCtxGetState");
	unsigned flags = 0;
	int active = -1;

	TRUE(init && state);
	DO(0, init(0));
	DO(0, ask_device("efa", FI_MR_HMEM));
	DO(0, state(0, &flags, &active));
	printf("context on GPU 0 after fi_getinfo: %s\n", active ? "YES, which is a defect" : "none");
	TRUE(!active);
}

static void dmabuf(void)
{
	int (*export)(void *, void *, size_t, int, unsigned long long) =
		(int (*)(void *, void *, size_t, int, unsigned long long)) cu("cuMemGetHandleForAddressRange");
	void *at;
	int fd;

	if (!export) {
		puts("dma-buf: not run, this driver has no cuMemGetHandleForAddressRange");
		return;
	}
	DO(0, gpu_malloc(&at, 4 << 20));
	for (unsigned long long flags = 0; flags < 2; flags++)
		printf("dma-buf export %s the PCIe mapping: CUDA error %d\n", flags ? "with" : "without",
		       export(&fd, at, 4 << 20, 1, flags));
}

/* Waits until the first word of its argument is not 0. */
static const char PTX[] =
	".version 7.0\n.target sm_70\n.address_size 64\n"
	".visible .entry wait_for(.param .u64 at)\n{\n"
	".reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %rd<3>;\n"
	"ld.param.u64 %rd1, [at]; cvta.to.global.u64 %rd2, %rd1;\n"
	"again: ld.volatile.global.u32 %r1, [%rd2]; setp.eq.u32 %p1, %r1, 0; @%p1 bra again;\nret;\n}\n";

static void kernel(void)
{
	call load = cu("cuModuleLoadData"), find = cu("cuModuleGetFunction");
	call wait = (call) symbol("cudaDeviceSynchronize");
	typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			unsigned, void *, void **, void **);
	launch_fn *launch = (launch_fn *)
		cu("cuLaunchKernel");
	struct fi_context2 contexts[2];
	struct fid_mr *mr, *host;
	void *module, *function, *at;

	if (!load || !find || !launch) {
		puts("kernel that waits for a message: not run, no kernels here");
		return;
	}
	DO(0, ask_device("efa", FI_MR_HMEM));
	open_asked();
	enable();
	at = device();
	memset(out, 0, SIZE);
	DO(0, gpu_copy(at, out, SIZE, TO_DEVICE));
	mr = registered(at, FI_HMEM_CUDA);
	host = registered(back, FI_HMEM_SYSTEM);
	memset(back, 1, SIZE);
	DO(0, load(&module, PTX));
	DO(0, find(&function, module, "wait_for"));
	void *args[] = { &at };

	POST(fi_recv(ep, at, 65536, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[0]));
	DO(0, launch(function, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL));
	POST(fi_send(ep, back, 65536, fi_mr_desc(host), self, &contexts[1]));
	ends(2);
	DO(0, wait());
	puts("kernel that waits for a message: it came");
}

int main(int argc, char **argv)
{
	TRUE(argc == 2);
	if (strcmp(argv[1], "context") == 0) {
		context();
		return 0;
	}
	load_copies();
	if (strcmp(argv[1], "floors") == 0)
		floors();
	else if (strcmp(argv[1], "dmabuf") == 0)
		dmabuf();
	else
		kernel();
	return 0;
}
