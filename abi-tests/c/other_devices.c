/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory of devices other than NVIDIA's, under `gpu-sim run --device KIND`: it is registered by
 * its interface, and sent, received, written and read; or the registration is refused, where
 * neither the adapter nor the device's library can move its bytes.
 *
 * other_devices rocr|neuron|synapse FABRIC moved|refused
 * other_devices rocr FABRIC peers: between two processes; on one host the receiver opens the
 * sender's memory.
 */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fi_rma.h>
#include "device.h"

static int (*sim_copy)(void *, const void *, size_t);
static enum fi_hmem_iface iface;

static void *allocated(const char *kind)
{
	const char *libs[] = { "libhsa-runtime64.so.1", "libnrt.so.1", "libSynapse.so" };
	void *lib, *at = NULL;

	iface = !strcmp(kind, "rocr") ? FI_HMEM_ROCR
			: !strcmp(kind, "neuron") ? FI_HMEM_NEURON : FI_HMEM_SYNAPSEAI;
	lib = dlopen(libs[iface == FI_HMEM_ROCR ? 0 : iface == FI_HMEM_NEURON ? 1 : 2], RTLD_NOW);
	TRUE(lib != NULL);
	sim_copy = (int (*)(void *, const void *, size_t)) dlsym(lib, "gpu_sim_copy");
	if (iface == FI_HMEM_ROCR) {
		uint32_t (*alloc)(uint64_t, size_t, void **) =
			(uint32_t (*)(uint64_t, size_t, void **)) dlsym(lib, "hsa_memory_allocate");
		DO(0, alloc(1, SIZE, &at));
	} else if (iface == FI_HMEM_NEURON) {
		int (*alloc)(int, int, size_t, const char *, void **) =
			(int (*)(int, int, size_t, const char *, void **)) dlsym(lib, "nrt_tensor_allocate");
		void *(*va)(void *) = (void *(*)(void *)) dlsym(lib, "nrt_tensor_get_va");
		void *tensor;

		DO(0, alloc(0, 0, SIZE, "test", &tensor));
		at = va(tensor);
	} else {
		int (*alloc)(uint32_t, uint64_t, uint64_t, uint32_t, uint64_t *) =
			(int (*)(uint32_t, uint64_t, uint64_t, uint32_t, uint64_t *)) dlsym(lib, "synDeviceMalloc");
		uint64_t where;

		DO(0, alloc(0, SIZE, 0, 0, &where));
		at = (void *) (uintptr_t) where;
	}
	return at;
}

static struct fi_context2 contexts[2];

static void moves(void *from, void *to, size_t len, int how, struct fid_mr *a, struct fid_mr *b)
{
	pattern(out, SIZE);
	DO(0, sim_copy(from, out, SIZE));
	memset(back, 0, SIZE);
	DO(0, sim_copy(to, back, SIZE));
	if (how == 0) {
		POST(fi_recv(ep, to, len, fi_mr_desc(b), FI_ADDR_UNSPEC, &contexts[1]));
		POST(fi_send(ep, from, len, fi_mr_desc(a), self, &contexts[0]));
		ends(2);
	} else if (how == 1) {
		POST(fi_write(ep, from, len, fi_mr_desc(a), self, (uintptr_t) to, fi_mr_key(b), &contexts[0]));
		ends(1);
	} else {
		POST(fi_read(ep, to, len, fi_mr_desc(b), self, (uintptr_t) from, fi_mr_key(a), &contexts[0]));
		ends(1);
	}
	DO(0, sim_copy(back, to, SIZE));
	TRUE(memcmp(out, back, len) == 0);
}

/* A child sends to its parent. */
static int peers(const char *kind, const char *fabric_name)
{
	uint64_t (*calls)(const char *, const char *);
	int there[2], here[2], status, in_fd, out_fd;
	char theirs[sizeof(name)], c = 0;
	const char *shm = getenv("FI_EFA_ENABLE_SHM_TRANSFER");
	const size_t len = 1 << 20;
	struct fid_mr *mr;
	fi_addr_t peer;
	void *at;
	pid_t child;

	TRUE(pipe(there) == 0 && pipe(here) == 0);
	child = fork();
	TRUE(child >= 0);
	out_fd = child ? there[1] : here[1];
	in_fd = child ? here[0] : there[0];
	close(child ? there[0] : here[0]);
	close(child ? here[1] : there[1]);
	at = allocated(kind);
	DO(0, ask_device(fabric_name, FI_MR_HMEM));
	open_asked();
	enable();
	mr = registered(at, iface);
	DO(sizeof(name), write(out_fd, name, sizeof(name)));
	DO(sizeof(name), read(in_fd, theirs, sizeof(theirs)));
	DO(1, fi_av_insert(av, theirs, 1, &peer, 0, NULL));
	for (size_t i = 0; i < len; i++)
		out[i] = (char) (i * 7);
	if (!child) {
		DO(0, sim_copy(at, out, len));
		POST(fi_send(ep, at, len, fi_mr_desc(mr), peer, &contexts[0]));
		ends(1);
		/* The memory stays until the parent has it. */
		read(in_fd, &c, 1);
		exit(EXIT_SUCCESS);
	}
	POST(fi_recv(ep, at, len, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[1]));
	ends(1);
	DO(0, sim_copy(back, at, len));
	TRUE(memcmp(out, back, len) == 0);
	calls = (uint64_t (*)(const char *, const char *)) dlsym(RTLD_DEFAULT, "gpu_sim_calls");
	if (!calls)
		calls = (uint64_t (*)(const char *, const char *))
				dlsym(dlopen("libhsa-runtime64.so.1", RTLD_NOW), "gpu_sim_calls");
	TRUE(calls("libfabric", "hsa_amd_ipc_memory_attach") == !(shm && *shm == '0'));
	close(out_fd);
	DO(child, waitpid(child, &status, 0));
	TRUE(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS);
	puts("every byte arrived");
	return 0;
}

int main(int argc, char **argv)
{
	static const size_t lens[] = { 8, 4096, 9000, 1 << 20 };
	struct fid_mr *a, *b;
	void *from, *to;
	int direct;

	TRUE(argc == 4);
	if (!strcmp(argv[3], "peers"))
		return peers(argv[1], argv[2]);
	from = allocated(argv[1]);
	to = allocated(argv[1]);
	direct = !strcmp(argv[2], "efa-direct");
	DO(0, ask_device(argv[2], FI_MR_HMEM));
	open_asked();
	enable();
	struct iovec iov = { from, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL, .iface = FI_HMEM_CUDA };

	DO(-FI_ENOSYS, fi_mr_regattr(domain, &attr, 0, &a));
	attr.iface = iface;
	if (!strcmp(argv[3], "refused")) {
		DO(-FI_EOPNOTSUPP, fi_mr_regattr(domain, &attr, 0, &a));
		close_all();
		puts("refused, as nothing can move its bytes");
		return 0;
	}
	if (iface == FI_HMEM_ROCR)
		DO(-FI_EINVAL, fi_mr_reg(domain, from, SIZE, ALL, 0, 0, 0, &a, NULL));
	a = registered(from, iface);
	b = registered(to, iface);
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		for (int how = direct && lens[i] > 4096 ? 1 : 0; how < 3; how++)
			moves(from, to, lens[i], how, a, b);
	DO(0, fi_close(&a->fid));
	DO(0, fi_close(&b->fid));
	close_all();
	puts("every byte arrived");
	return 0;
}
