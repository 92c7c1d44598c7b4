/* SPDX-License-Identifier: BSD-2-Clause */
/* Memory of a GPU for the benchmark programs (-D cuda), by CUDA's runtime, real or gpu-sim's. */
#ifndef GPU_H
#define GPU_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <rdma/fi_errno.h>

static struct {
	bool used;
	int (*malloc)(void **, size_t);
	int (*free)(void *);
	int (*copy)(void *, const void *, size_t, int);
	/* Host buffer for data that is copied to or from the GPU. */
	char *host;
	size_t size;
} gpu;

enum { GPU_FROM_HOST = 1, GPU_TO_HOST = 2 };

static inline int gpu_open(void)
{
	static const char *const names[] = { "libcudart.so", "libcudart.so.13", "libcudart.so.12" };
	void *lib = NULL;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !lib; i++)
		lib = dlopen(names[i], RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "-D cuda: no libcudart.so (try: gpu-sim run -- ...)\n");
		return -FI_ENOSYS;
	}
	gpu.malloc = (int (*)(void **, size_t)) dlsym(lib, "cudaMalloc");
	gpu.free = (int (*)(void *)) dlsym(lib, "cudaFree");
	gpu.copy = (int (*)(void *, const void *, size_t, int)) dlsym(lib, "cudaMemcpy");
	gpu.used = gpu.malloc && gpu.free && gpu.copy;
	return gpu.used ? 0 : -FI_ENOSYS;
}

static inline void *gpu_alloc(size_t size)
{
	void *at;

	gpu.host = malloc(size);
	gpu.size = size;
	if (!gpu.host || gpu.malloc(&at, size) != 0) {
		fprintf(stderr, "cudaMalloc of %zu bytes failed\n", size);
		return NULL;
	}
	return at;
}

/* Host address of `size` bytes at `at`: of a copy for GPU memory, else `at` itself. */
static inline char *gpu_seen(char *at, size_t size)
{
	if (!gpu.used)
		return at;
	return size <= gpu.size && gpu.copy(gpu.host, at, size, GPU_TO_HOST) == 0 ? gpu.host : NULL;
}

static inline void gpu_store(char *at, size_t size)
{
	if (gpu.used && gpu.copy(at, gpu.host, size, GPU_FROM_HOST) != 0)
		fprintf(stderr, "cudaMemcpy of %zu bytes failed\n", size);
}

#endif
