/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * GPU memory (FI_HMEM_CUDA, fi_mr(3)): messages, reads and writes from it and into it, and calls
 * that must be refused. For `gpu-sim run`, where only CUDA can access such memory.
 *
 * device_memory FABRIC          everything works, by copies
 * device_memory FABRIC p2p      the same, with an adapter that is expected to access GPU memory
 * device_memory FABRIC uncopied as p2p, and reads and writes cause no copy
 * device_memory FABRIC refused  not offered: the fabric does not copy, and the adapter cannot
 *                               access GPU memory
 * device_memory FABRIC disabled the application sets FI_HMEM_P2P_DISABLED: everything is copied
 * device_memory FABRIC broken   copies fail (gpu-sim run --fail cuMemcpyAsync=700,gdr_open):
 *                               operations end in errors
 * device_memory FABRIC mapped [p2p]
 *                               GDRCopy copies what is short (efa), or is not there (`unmapped`:
 *                               gpu-sim run --no-gdrcopy)
 * device_memory FABRIC plain    registration without FI_HMEM must refuse GPU memory
 * device_memory FABRIC none     a machine without a GPU
 */
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_ext_efa.h>
#include "device.h"

static bool emulated(int option)
{
	bool yes;
	size_t len = sizeof(yes);

	DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, option, &yes, &len));
	return yes;
}

/* Options of an endpoint with device memory, and the feature query `mixed_hmem_iov`. */
static void options(int direct, int p2p, int disable)
{
	int mode = -1, required = FI_HMEM_P2P_REQUIRED, disabled = FI_HMEM_P2P_DISABLED;
	size_t len = sizeof(mode);
	bool off = false, on = true;
	struct fi_efa_feature_ops *features;
	struct fid_ep *plain;

	DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &mode, &len));
	TRUE(mode == (direct ? FI_HMEM_P2P_REQUIRED : p2p ? FI_HMEM_P2P_PREFERRED : FI_HMEM_P2P_DISABLED));
	DO(direct || p2p ? 0 : -FI_EOPNOTSUPP, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P,
			&required, sizeof(required)));
	DO(direct ? -FI_EOPNOTSUPP : 0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P,
			&disabled, sizeof(disabled)));
	/* Case `disabled` keeps FI_HMEM_P2P_DISABLED, so that everything is copied. */
	if (!disable)
		DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &mode, sizeof(mode)));
	DO(direct || p2p ? 0 : -FI_EOPNOTSUPP, fi_setopt(&ep->fid, FI_OPT_ENDPOINT,
			FI_OPT_CUDA_API_PERMITTED, &off, sizeof(off)));
	DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &on, sizeof(on)));
	/* An endpoint without FI_HMEM, of a domain that has it, as NVSHMEM opens them. */
	info->caps &= ~FI_HMEM;
	DO(0, fi_endpoint(domain, info, &plain, NULL));
	DO(direct || p2p ? 0 : -FI_EOPNOTSUPP, fi_setopt(&plain->fid, FI_OPT_ENDPOINT,
			FI_OPT_CUDA_API_PERMITTED, &off, sizeof(off)));
	DO(0, fi_setopt(&plain->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &on, sizeof(on)));
	DO(0, fi_close(&plain->fid));
	info->caps |= FI_HMEM;
	DO(0, fi_open_ops(&fabric->fid, FI_EFA_FEATURE_OPS, 0, (void **) &features, NULL));
	TRUE(features->query("mixed_hmem_iov") == direct && !features->query("no such feature"));
}

/* Takes `wanted` completions, of which at least one is an error that names the failed copy. */
static void fail(int wanted)
{
	int errors = 0;

	while (wanted > 0) {
		struct fi_cq_err_entry err = { 0 };
		struct fi_cq_data_entry e;
		ssize_t n = fi_cq_read(cq, &e, 1);

		if (n == -FI_EAGAIN)
			continue;
		if (n == -FI_EAVAIL) {
			DO(1, fi_cq_readerr(cq, &err, 0));
			DO(FI_EIO, err.err);
			TRUE(strstr(fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0),
					"device memory could not be copied"));
			errors++;
		} else {
			DO(1, n);
		}
		wanted--;
	}
	TRUE(errors > 0);
}

static uint64_t calls(const char *function)
{
	return gpu_calls("libfabric", function);
}

/*
 * Short copies go by GDRCopy while a region is registered, if the GPU's window has room for it.
 * Bounce buffers of an adapter are registered with CUDA for as long as they exist.
 */
static void check_short_copies(int there)
{
	static struct fi_context2 contexts[2];
	enum { LARGE = 80 << 20, SHORT = 3072 };
	size_t lens[] = { 1, 8, SHORT, SHORT + 1 };
	struct iovec iov = { .iov_len = LARGE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL, .iface = FI_HMEM_CUDA };
	struct fid_mr *large, *near, *far, *again;
	int (*free_memory)(void *) = (int (*)(void *)) symbol("cudaFree");
	char *a = device(), *b = device(), *c;

	DO(0, gpu_malloc(&iov.iov_base, LARGE));
	DO(0, fi_mr_regattr(domain, &attr, 0, &large));
	TRUE(calls("gdr_pin_buffer") == 0);
	near = registered(a, FI_HMEM_CUDA);
	far = registered(b, FI_HMEM_CUDA);
	TRUE(calls("gdr_pin_buffer") == (there ? 2 : 0) && calls("gdr_map") == calls("gdr_pin_buffer"));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		uint64_t before = copies(), mapped = calls("gdr_copy");

		fill(a);
		/* At odd addresses, to the last byte. */
		POST(fi_recv(ep, b + SIZE - lens[i], lens[i], fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
		POST(fi_send(ep, a + 1, lens[i], fi_mr_desc(near), self, &contexts[1]));
		ends(2);
		memset(back, 0, SIZE);
		DO(0, gpu_copy(back, b + SIZE - lens[i], lens[i], TO_HOST));
		TRUE(memcmp(back, out + 1, lens[i]) == 0);
		TRUE((copies() == before) == (there && lens[i] <= SHORT));
		TRUE((calls("gdr_copy") > mapped) == (there && lens[i] <= SHORT));
	}
	/* Memory that is freed before its region is closed, and whose addresses are allocated again. */
	DO(0, free_memory(a));
	c = device();
	TRUE(c == a);
	fill(c);
	POST(fi_recv(ep, b, 64, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
	POST(fi_inject(ep, c, 64, self));
	ends(1);
	check_device_memory(b, 64);
	again = registered(c, FI_HMEM_CUDA);
	POST(fi_recv(ep, b, 64, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
	POST(fi_send(ep, c + 70000, 64, fi_mr_desc(again), self, &contexts[1]));
	ends(2);
	memset(back, 0, 64);
	DO(0, gpu_copy(back, b, 64, TO_HOST));
	TRUE(memcmp(back, out + 70000, 64) == 0);
	DO(0, fi_close(&again->fid));
	DO(0, fi_close(&far->fid));
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&large->fid));
	TRUE(calls("gdr_unmap") == calls("gdr_pin_buffer")
			&& calls("gdr_unpin") == calls("gdr_pin_buffer"));
	/* Each registration sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. */
	TRUE(calls("cuPointerSetAttribute") == 4);
	if (info->nic && strncmp(info->nic->device_attr->name, "efasoft", 7) != 0)
		TRUE(calls("cuMemHostRegister") > 0);
	DO(0, fi_close(&ep->fid));
	TRUE(calls("cuMemHostUnregister") == calls("cuMemHostRegister"));
	puts(there ? "short copies go by GDRCopy" : "without GDRCopy CUDA copies everything");
}

static struct fi_context2 contexts[2];
static const size_t lens[] = { 8, 4096, 20000, 300000, SIZE };
/* GPU memory, and regions of it and of `back`. */
static char *a, *b;
static struct fid_mr *near, *far, *host;

/* Registered as host memory, it would be accessed by the CPU: the library must refuse. */
static void bad_registrations(void)
{
	struct iovec iov = { a, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL };
	struct fid_mr *mr;

	DO(-FI_EINVAL, fi_mr_reg(domain, a, SIZE, ALL, 0, 0, 0, &mr, NULL));
	attr.iface = FI_HMEM_ROCR;
	DO(-FI_ENOSYS, fi_mr_regattr(domain, &attr, 0, &mr));
	attr.iface = (enum fi_hmem_iface) 77;
	DO(-FI_EINVAL, fi_mr_regattr(domain, &attr, 0, &mr));
}

static int without_gpu(const char *fabric_name)
{
	struct iovec iov = { out, SIZE };
	struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = ALL,
			.iface = FI_HMEM_CUDA };
	struct fid_mr *mr;

	DO(-FI_ENODATA, ask_device(fabric_name, FI_MR_HMEM));
	open_disabled(fabric_name);
	enable();
	DO(-FI_ENOSYS, fi_mr_regattr(domain, &attr, 0, &mr));
	puts("no device memory here");
	return 0;
}

/* Copies of the GPU fail: operations up to `most` bytes end in errors. */
static int broken_copies(int direct, size_t most)
{
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		if (lens[i] > most)
			continue;
		POST(fi_recv(ep, b, lens[i], fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
		POST(fi_send(ep, back, lens[i], fi_mr_desc(host), self, &contexts[1]));
		fail(2);
		POST(fi_recv(ep, back, lens[i], fi_mr_desc(host), FI_ADDR_UNSPEC, &contexts[0]));
		POST(fi_send(ep, a, lens[i], fi_mr_desc(near), self, &contexts[1]));
		fail(2);
		/* A copy that fails at the target's GPU must fail the initiator's operation. */
		POST(fi_write(ep, back, lens[i], fi_mr_desc(host), self, (uintptr_t) b, fi_mr_key(far),
				&contexts[0]));
		fail(1);
		POST(fi_read(ep, back, lens[i], fi_mr_desc(host), self, (uintptr_t) b, fi_mr_key(far),
				&contexts[0]));
		fail(1);
	}
	if (!direct) {
		POST(fi_atomic(ep, back, 1, fi_mr_desc(host), self, (uintptr_t) b, fi_mr_key(far), FI_UINT64,
				FI_SUM, &contexts[0]));
		fail(1);
		DO(-FI_EIO, fi_atomic(ep, a, 1, fi_mr_desc(near), self, (uintptr_t) back, fi_mr_key(host),
				FI_UINT64, FI_SUM, &contexts[0]));
		DO(-FI_EIO, fi_inject(ep, a, 64, self));
	}
	puts("what the GPU could not copy ends with an error");
	return 0;
}

/* A message of up to `most` bytes, a write and reads of `len` bytes. `uncopied`: writes and reads
 * cause no copy; `copied`: they do. */
static void transfer(size_t len, size_t most, int uncopied, int copied)
{
	uint64_t there = (uint64_t) (uintptr_t) b, before, short_copies;

	if (len <= most) {
		fill(a);
		POST(fi_recv(ep, b, len, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
		POST(fi_send(ep, a, len, fi_mr_desc(near), self, &contexts[1]));
		ends(2);
		check_device_memory(b, len);
	}
	before = copies();
	fill(a);
	POST(fi_write(ep, a, len, fi_mr_desc(near), self, there, fi_mr_key(far), &contexts[0]));
	ends(1);
	check_device_memory(b, len);
	TRUE(copies() == before || !uncopied || emulated(FI_OPT_EFA_EMULATED_WRITE));
	before = copies();
	short_copies = calls("gdr_copy");
	fill(b);
	POST(fi_read(ep, a, len, fi_mr_desc(near), self, there, fi_mr_key(far), &contexts[0]));
	ends(1);
	check_device_memory(a, len);
	/* From the GPU into host memory. */
	POST(fi_read(ep, back, len, fi_mr_desc(host), self, there, fi_mr_key(far), &contexts[0]));
	ends(1);
	TRUE(memcmp(back, out, len) == 0);
	TRUE(copies() == before || !uncopied || emulated(FI_OPT_EFA_EMULATED_READ));
	TRUE(!copied || copies() > before || calls("gdr_copy") > short_copies);
}

/* Calls without a descriptor, and messages of host and GPU memory. */
static void mixed_memory(void)
{
	/* Without a descriptor the library must recognise GPU memory by its address. */
	fill(a);
	POST(fi_recv(ep, b, 64, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
	POST(fi_inject(ep, a, 64, self));
	ends(1);
	check_device_memory(b, 64);
	fill(a);
	POST(fi_inject_write(ep, a, 64, self, (uint64_t) (uintptr_t) back, fi_mr_key(host)));
	while (memcmp(back, out, 64) != 0)
		fi_cq_read(cq, NULL, 0);
	/* Host and GPU memory in one message. */
	memcpy(back, out, 512);
	struct iovec mixed[] = { { back, 512 }, { a + 512, 40000 } };
	void *descs[] = { fi_mr_desc(host), fi_mr_desc(near) };
	POST(fi_recv(ep, b, SIZE, fi_mr_desc(far), FI_ADDR_UNSPEC, &contexts[0]));
	POST(fi_sendv(ep, mixed, descs, 2, self, &contexts[1]));
	ends(2);
	check_device_memory(b, 40512);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 2 ? argv[2] : "";
	int direct = argc > 1 && strcmp(argv[1], "efa-direct") == 0;
	int uncopied = strcmp(kind, "uncopied") == 0, disable = strcmp(kind, "disabled") == 0;
	int p2p = disable || uncopied || (argc > 2 && strcmp(argv[argc - 1], "p2p") == 0);
	size_t most = SIZE, size = sizeof(most);
	struct fid_mr *mr;

	TRUE(argc >= 2);
	if (strcmp(kind, "none") == 0)
		return without_gpu(argv[1]);
	load_cuda();
	if (strcmp(kind, "plain") == 0) {
		open_disabled(argv[1]);
		DO(-FI_EINVAL, fi_mr_reg(domain, device(), SIZE, ALL, 0, 0, 0, &mr, NULL));
		puts("device memory is not taken for the host's");
		return 0;
	}
	a = device();
	b = device();
	if (strcmp(kind, "refused") == 0) {
		DO(-FI_ENODATA, ask_device(argv[1], FI_MR_HMEM));
		puts("device memory is not offered");
		return 0;
	}
	DO(-FI_ENODATA, ask_device(argv[1], 0));
	DO(0, ask_device(argv[1], FI_MR_HMEM));
	TRUE(info->caps & FI_HMEM && info->domain_attr->mr_mode & FI_MR_HMEM);
	open_asked();
	options(direct, p2p, disable);
	enable();
	if (strstr(kind, "mapped")) {
		check_short_copies(strcmp(kind, "mapped") == 0);
		return 0;
	}
	if (direct)
		DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &most, &size));
	bad_registrations();
	near = registered(a, FI_HMEM_CUDA);
	far = registered(b, FI_HMEM_CUDA);
	host = registered(back, FI_HMEM_SYSTEM);
	if (strcmp(kind, "broken") == 0)
		return broken_copies(direct, most);
	TRUE(fi_mr_desc(near) && fi_mr_desc(host));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++)
		/* The first operation may precede the peer's handshake: it is emulated then. */
		if (!direct || lens[i] < info->ep_attr->max_msg_size)
			transfer(lens[i], most, uncopied && i > 0, disable);
	if (!direct)
		mixed_memory();
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&far->fid));
	DO(0, fi_close(&host->fid));
	puts("device memory is sent, received, written and read");
	return 0;
}
