/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two processes of one host send GPU memory to each other, and read and write it, for `gpu-sim
 * run`. The receiver's GPU copies each message once, and the initiator's each read and write,
 * without the target. Memory of cuMemMap, which has no IPC handle, goes another way. The sender is
 * killed in the end, which must not block the receiver.
 *
 * device_peers FABRIC
 */
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include "device.h"

/* `CUmemAllocationProp`, of GPU 0. */
struct properties {
	unsigned type, handles, location, gpu;
	void *meta;
	unsigned char flags[8];
};

static struct fi_context2 context;
static fi_addr_t peer;
static int out_fd, in_fd;

static void put_bytes(const void *at, size_t len)
{
	DO(len, write(out_fd, at, len));
}

static void get_bytes(void *at, size_t len)
{
	DO(len, read(in_fd, at, len));
}

/* Whether the other side has sent bytes. */
static int has_bytes(void)
{
	struct pollfd p = { .fd = in_fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

/* Waits until the other side calls this function, too. */
static void meet(void)
{
	char c = 0;

	put_bytes(&c, 1);
	get_bytes(&c, 1);
}

static void *mapped(void)
{
	int (*create)(uint64_t *, size_t, const struct properties *, uint64_t) =
		(int (*)(uint64_t *, size_t, const struct properties *, uint64_t)) symbol("cuMemCreate");
	int (*reserve)(void **, size_t, size_t, size_t, uint64_t) =
		(int (*)(void **, size_t, size_t, size_t, uint64_t)) symbol("cuMemAddressReserve");
	int (*map)(void *, size_t, size_t, uint64_t, uint64_t) =
		(int (*)(void *, size_t, size_t, uint64_t, uint64_t)) symbol("cuMemMap");
	struct properties p = { .type = 1, .location = 1 };
	uint64_t handle;
	void *at;

	DO(0, create(&handle, SIZE, &p, 0));
	DO(0, reserve(&at, SIZE, 0, 0, 0));
	DO(0, map(at, SIZE, 0, handle, 0));
	return at;
}

/* Memory that is passed by a descriptor is the same for the process that imports it. */
static void imported(void)
{
	int (*create)(uint64_t *, size_t, const struct properties *, uint64_t) =
		(int (*)(uint64_t *, size_t, const struct properties *, uint64_t)) symbol("cuMemCreate");
	int (*export)(void *, uint64_t, unsigned, uint64_t) =
		(int (*)(void *, uint64_t, unsigned, uint64_t)) symbol("cuMemExportToShareableHandle");
	int (*import)(uint64_t *, void *, unsigned) =
		(int (*)(uint64_t *, void *, unsigned)) symbol("cuMemImportFromShareableHandle");
	int (*reserve)(void **, size_t, size_t, size_t, uint64_t) =
		(int (*)(void **, size_t, size_t, size_t, uint64_t)) symbol("cuMemAddressReserve");
	int (*map)(void *, size_t, size_t, uint64_t, uint64_t) =
		(int (*)(void *, size_t, size_t, uint64_t, uint64_t)) symbol("cuMemMap");
	struct properties p = { .type = 1, .location = 1 };
	uint64_t handle[2];
	void *at[2];
	int fd;

	DO(0, create(&handle[0], SIZE, &p, 0));
	DO(0, export(&fd, handle[0], 1, 0));
	DO(0, import(&handle[1], (void *) (uintptr_t) fd, 1));
	DO(0, close(fd));
	for (int i = 0; i < 2; i++) {
		DO(0, reserve(&at[i], SIZE, 0, 0, 0));
		DO(0, map(at[i], SIZE, 0, handle[i], 0));
	}
	memset(out, 42, SIZE);
	DO(0, gpu_copy(at[0], out, SIZE, TO_DEVICE));
	DO(0, gpu_copy(back, at[1], SIZE, TO_HOST));
	TRUE(memcmp(out, back, SIZE) == 0);
}

static void connect_peers(const char *fabric_name)
{
	char theirs[sizeof(name)];

	load_cuda();
	device();
	DO(0, ask_device(fabric_name, FI_MR_HMEM));
	queue_wait = FI_WAIT_FD;
	open_asked();
	enable();
	put_bytes(name, sizeof(name));
	get_bytes(theirs, sizeof(theirs));
	DO(1, fi_av_insert(av, theirs, 1, &peer, 0, NULL));
}

/* As `meet`, and polls meanwhile. */
static void served(void)
{
	char c = 0;

	while (!has_bytes())
		fi_cq_read(cq, NULL, 0);
	get_bytes(&c, 1);
	put_bytes(&c, 1);
}

static void transmit(void *at, struct fid_mr *mr, size_t len)
{
	memset(out, 0, SIZE);
	for (size_t i = 0; i < SIZE; i++)
		out[i] = (char) (i * 7 + len);
	DO(0, gpu_copy(at, out, SIZE, TO_DEVICE));
	POST(fi_send(ep, at, len, fi_mr_desc(mr), peer, &context));
	ends(1);
	meet();
}

/* Receives, blocked until the message is there: the end of a GPU's copy raises no event. */
static void take(void *at, struct fid_mr *mr, size_t len, int is_host)
{
	struct fi_cq_data_entry e;

	POST(fi_recv(ep, at, len, fi_mr_desc(mr), FI_ADDR_UNSPEC, &context));
	DO(1, fi_cq_sread(cq, &e, 1, NULL, 10000));
	if (!is_host)
		DO(0, gpu_copy(back, at, SIZE, TO_HOST));
	for (size_t i = 0; i < len; i++)
		TRUE(back[i] == (char) (i * 7 + len));
	meet();
}

static size_t lens[] = { 8, 8192, 9000, 65536, 1 << 20, SIZE };

enum { LENS = sizeof(lens) / sizeof(lens[0]) };

/* A region of the other process. */
struct region {
	uint64_t addr, key;
};

static void put_pattern(void *at, int is_host, char with)
{
	for (size_t i = 0; i < SIZE; i++)
		out[i] = (char) (i * 5 + with);
	if (is_host)
		memcpy(at, out, SIZE);
	else
		DO(0, gpu_copy(at, out, SIZE, TO_DEVICE));
}

static void has_pattern(void *at, int is_host, size_t len, char with)
{
	if (is_host)
		memcpy(back, at, SIZE);
	else
		DO(0, gpu_copy(back, at, SIZE, TO_HOST));
	for (size_t i = 0; i < len; i++)
		TRUE(back[i] == (char) (i * 5 + with));
}

static char host_memory[SIZE];

/* Writes to and reads from a region of the other process, whose GPU memory our GPU copies. */
static void initiator(void *at, struct fid_mr *mr, int is_host)
{
	struct region there;
	uint64_t before;

	for (int kind = 0; kind < 2; kind++) {
		get_bytes(&there, sizeof(there));
		for (int i = 0; i < LENS; i++) {
			put_pattern(at, is_host, (char) i);
			before = copies();
			POST(fi_write(ep, at, lens[i], fi_mr_desc(mr), peer, there.addr, there.key, &context));
			ends(1);
			TRUE(kind || is_host || copies() - before == 1);
			meet();
			meet();
			before = copies();
			POST(fi_read(ep, at, lens[i], fi_mr_desc(mr), peer, there.addr, there.key, &context));
			ends(1);
			TRUE(kind || is_host || copies() - before == 1);
			has_pattern(at, is_host, lens[i], (char) (i + 100));
			meet();
		}
		/* Several at once. */
		meet();
		for (int i = 0; i < 40; i++)
			POST(fi_write(ep, (char *) at + i * 1000, 1000, fi_mr_desc(mr), peer,
				      there.addr + i * 1000, there.key, &context));
		ends(40);
		meet();
		/* The region is closed while this side does not poll. */
		if (!kind && !is_host)
			POST(fi_write(ep, at, SIZE, fi_mr_desc(mr), peer, there.addr, there.key, &context));
		meet();
		meet();
		if (!kind && !is_host)
			ends(1);
	}
}

/* The other side, which only polls until the initiator's next byte. */
static void target(int initiator_is_host)
{
	void *own = device();
	uint64_t before;

	for (int kind = 0; kind < 2; kind++) {
		void *at = kind ? host_memory : own;
		struct fid_mr *mr = registered(at, kind ? FI_HMEM_SYSTEM : FI_HMEM_CUDA);
		struct region here = { (uintptr_t) at, fi_mr_key(mr) };

		put_pattern(at, kind, 77);
		put_bytes(&here, sizeof(here));
		for (int i = 0; i < LENS; i++) {
			before = copies();
			served();
			TRUE(kind || initiator_is_host || copies() == before);
			has_pattern(at, kind, lens[i], (char) i);
			put_pattern(at, kind, (char) (i + 100));
			meet();
			before = copies();
			served();
			TRUE(kind || initiator_is_host || copies() == before);
		}
		put_pattern(at, kind, 0);
		meet();
		served();
		has_pattern(at, kind, 40000, (char) (LENS - 1 + 100));
		served();
		DO(0, fi_close(&mr->fid));
		meet();
	}
}

static void sender(void)
{
	void *own = device(), *vmm = mapped();
	struct fid_mr *mr = registered(own, FI_HMEM_CUDA), *other = registered(vmm, FI_HMEM_CUDA);
	uint64_t before;

	imported();

	for (int i = 0; i < LENS; i++) {
		before = copies();
		transmit(own, mr, lens[i]);
		TRUE(lens[i] <= 8192 || copies() == before);
		transmit(own, mr, lens[i]);
		transmit(vmm, other, lens[i]);
	}
	initiator(own, mr, 0);
	initiator(host_memory, registered(host_memory, FI_HMEM_SYSTEM), 1);
	/* Die while the receiver still has the allocation open. */
	meet();
	raise(SIGKILL);
}

static void receiver(void)
{
	void *own = device();
	struct fid_mr *mr = registered(own, FI_HMEM_CUDA), *host = registered(back, FI_HMEM_SYSTEM);
	uint64_t before;

	for (int i = 0; i < LENS; i++) {
		before = copies();
		take(own, mr, lens[i], 0);
		/* GDRCopy copies what is short. */
		TRUE(copies() - before == (lens[i] > 3072 || gpu_calls("libfabric", "gdr_map") == 0));
		take(back, host, lens[i], 1);
		take(own, mr, lens[i], 0);
	}
	/* The receiver opens the allocation once, and closes it when the sender is gone. */
	TRUE(gpu_calls("libfabric", "cuIpcOpenMemHandle") == 1);
	target(0);
	target(1);
	meet();
	while (gpu_calls("libfabric", "cuIpcCloseMemHandle") == 0)
		fi_cq_read(cq, NULL, 0);
}

int main(int argc, char **argv)
{
	int there[2], here[2], status;
	pid_t child;

	TRUE(argc == 2 && pipe(there) == 0 && pipe(here) == 0);
	child = fork();
	TRUE(child >= 0);
	out_fd = child ? there[1] : here[1];
	in_fd = child ? here[0] : there[0];
	close(child ? there[0] : here[0]);
	close(child ? here[1] : there[1]);
	connect_peers(argv[1]);
	if (!child) {
		sender();
		return EXIT_FAILURE;
	}
	receiver();
	DO(child, waitpid(child, &status, 0));
	TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	puts("a GPU copies what another process sends, reads or writes, once");
	return 0;
}
