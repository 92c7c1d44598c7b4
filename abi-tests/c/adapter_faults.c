/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Adapter faults, for `efa-sim run` with fault options: every operation ends, in a success or in an
 * error with a text.
 *
 * adapter_faults keys     some reads fail with FI_EINVAL (--bad-keys), others succeed
 * adapter_faults link     all reads fail with FI_EHOSTUNREACH once the link is down
 *                         (--link-down-after)
 * adapter_faults receiver messages without a receive fail with FI_ENORX after as many retries as
 *                         FI_OPT_EFA_RNR_RETRY permits
 * adapter_faults managed  the same with the protocol, whose messages need a buffer of the endpoint:
 *                         they fail with FI_RM_DISABLED only
 * adapter_faults parts    reads of several requests (--rdma-size 4096) are refused while there is
 *                         no room for all of them, and do not fail in the middle
 * adapter_faults more     FI_MORE, and the queue is polled before the last of these messages
 * adapter_faults long     long messages are read in parts (--rdma-size 65536)
 * adapter_faults lost     a peer that does not answer (--dead-after) is one event, whatever the
 *                         number of messages that fail
 * adapter_faults cached   registrations that no operation uses make room for the application's
 *                         (--max-mr 64)
 * adapter_faults levels   endpoints of every traffic class work where the adapter has service level
 *                         0 alone (--service-levels 0)
 * adapter_faults low      where it has level 8 alone (--service-levels 8), those of
 *                         FI_TC_LOW_LATENCY do, with a libefa that has levels (rdma-core 54)
 * adapter_faults order    the adapter keeps the order of 128 bytes (--in-order, with a libefa that
 *                         reports it): options are granted, but for messages of the protocol
 * adapter_faults disorder without: none is granted
 * adapter_faults crowded  an adapter that cannot be opened without descriptors is not replaced
 *                         by the software adapter, and is there when there are descriptors
 */
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_ext_efa.h>
#include <rdma/fi_rma.h>
#include "alone.h"

enum { READS = 400 };

static char from[4096], to[4096];

/* Takes the next completion, which must be of this kind: 0 for success, or its errno. */
static int next(void *context, uint64_t kind)
{
	struct fi_cq_err_entry err = { 0 };
	struct fi_cq_data_entry e;
	char text[512];
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	if (n == 1) {
		TRUE(e.op_context == context);
		return 0;
	}
	DO(-FI_EAVAIL, n);
	DO(1, fi_cq_readerr(cq, &err, 0));
	TRUE(err.op_context == context && err.flags & kind);
	TRUE(strlen(fi_cq_strerror(cq, err.prov_errno, err.err_data, text, sizeof(text))) > 20);
	return err.err;
}

/* Takes so many completions, none of which is an error. */
static void take(int wanted)
{
	struct fi_cq_data_entry e;

	while (wanted > 0) {
		ssize_t r = fi_cq_read(cq, &e, 1);

		TRUE(r == 1 || r == -FI_EAGAIN);
		wanted -= r == 1;
	}
}

static int receiver(void)
{
	static struct fi_context2 sent, got;
	struct fid_mr *mr;
	size_t tries = 8;

	open_disabled("efa-direct");
	DO(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries, sizeof(tries)));
	tries = 2;
	if (fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries,
			sizeof(tries)) == -FI_ENOSYS) {
		puts("the adapter tries for ever");
		close_all();
		return 0;
	}
	enable();
	DO(-FI_EOPBADSTATE, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries,
			sizeof(tries)));
	DO(0, fi_mr_reg(domain, from, sizeof(from), FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
	for (int i = 0; i < 20; i++) {
		DO(0, fi_send(ep, from, 100, fi_mr_desc(mr), self, &sent));
		TRUE(next(&sent, FI_SEND) == FI_ENORX);
	}
	DO(0, fi_recv(ep, from + 2048, 2048, fi_mr_desc(mr), FI_ADDR_UNSPEC, &got));
	DO(0, fi_send(ep, from, 100, fi_mr_desc(mr), self, &got));
	TRUE(next(&got, FI_SEND) == 0 && next(&got, FI_RECV) == 0);
	puts("20 messages without a receive failed, one with a receive came");
	DO(0, fi_close(&mr->fid));
	close_all();
	return 0;
}

/* Sends more messages than it has buffers to an endpoint without progress; how many failed. */
static int overrun(enum fi_resource_mgmt mgmt)
{
	enum { MESSAGES = 5000, DEPTH = 2000 };
	static struct fi_context2 ctx[MESSAGES];
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fid_cq *other;
	struct fid_ep *target;
	struct fid_mr *mr;
	size_t tries = 0, sent = 0, done = 0, failed = 0;
	bool shm = false;

	DO(0, ask("efa", 0));
	info->domain_attr->resource_mgmt = mgmt;
	info->tx_attr->size = DEPTH;
	open_domain();
	DO(0, fi_cq_open(domain, &ca, &other, NULL));
	open_endpoint(other, other);
	DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &shm, sizeof(shm)));
	enable();
	target = ep;
	open_endpoint(cq, cq);
	DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &shm, sizeof(shm)));
	DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries, sizeof(tries)));
	DO(0, fi_enable(ep));
	DO(0, fi_mr_reg(domain, from, sizeof(from), FI_SEND, 0, 0, 0, &mr, NULL));
	/* So many messages may be under way. */
	for (; sent < DEPTH; sent++)
		DO(0, fi_send(ep, from, 32, fi_mr_desc(mr), self, &ctx[sent]));
	/* Without failures nothing more ends once all buffers are taken. A failure, where one must come,
	 * is waited for: on a busy machine the adapter's own process may take its time. */
	for (long idle = 0; done < sent || (sent < MESSAGES && !failed); idle++) {
		struct fi_cq_err_entry err = { 0 };
		struct fi_cq_data_entry e;
		ssize_t r = -FI_EAGAIN;

		if (sent < MESSAGES && !failed)
			r = fi_send(ep, from, 32, fi_mr_desc(mr), self, &ctx[sent]);
		TRUE(r == 0 || r == -FI_EAGAIN);
		sent += r == 0;
		r = fi_cq_read(cq, &e, 1);
		if (r == -FI_EAVAIL) {
			DO(1, fi_cq_readerr(cq, &err, 0));
			DO(FI_ENORX, err.err);
			failed++;
		}
		idle = r == -FI_EAGAIN ? idle : 0;
		done += r != -FI_EAGAIN;
		if (idle > 20000 && mgmt == FI_RM_ENABLED)
			break;
	}
	printf("%zu messages left, %zu failed\n", done, failed);
	DO(0, fi_close(&target->fid));
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&mr->fid));
	DO(0, fi_close(&other->fid));
	close_domain();
	return (int) failed;
}

/* Fills the queue almost with short reads, and posts a long one as soon as that is accepted. */
static int parts(void)
{
	enum { LONG = 16 * 4096, ROUNDS = 20 };
	static char far_mem[LONG], near_mem[LONG];
	const uint64_t at = (uint64_t) (uintptr_t) far_mem;
	struct fid_mr *far, *near;
	struct fi_cq_data_entry e;
	size_t posted = 0, done = 0;
	bool shm = false;
	ssize_t r;

	open_disabled("efa");
	DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_SHARED_MEMORY_PERMITTED, &shm, sizeof(shm)));
	enable();
	DO(0, fi_mr_reg(domain, far_mem, LONG, FI_REMOTE_READ, 0, 0, 0, &far, NULL));
	DO(0, fi_mr_reg(domain, near_mem, LONG, FI_READ, 0, 0, 0, &near, NULL));
	for (int round = 0; round < ROUNDS; round++) {
		static struct fi_context2 ctx;

		memset(far_mem, round, LONG);
		for (size_t i = 8; i < info->tx_attr->size; i++, posted++)
			DO(0, fi_read(ep, near_mem, 8, fi_mr_desc(near), self, at, fi_mr_key(far), &ctx));
		while ((r = fi_read(ep, near_mem, LONG, fi_mr_desc(near), self, at, fi_mr_key(far), &ctx))) {
			DO(-FI_EAGAIN, r);
			r = fi_cq_read(cq, &e, 1);
			TRUE(r == 1 || r == -FI_EAGAIN);
			done += r == 1;
		}
		for (posted++; done < posted; done += r == 1) {
			r = fi_cq_read(cq, &e, 1);
			TRUE(r == 1 || r == -FI_EAGAIN);
		}
		TRUE(near_mem[LONG - 1] == (char) round);
	}
	printf("%zu reads, none of them in part\n", done);
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&far->fid));
	close_all();
	return 0;
}

static int managed(void)
{
	TRUE(overrun(FI_RM_DISABLED) > 0);
	TRUE(overrun(FI_RM_ENABLED) == 0);
	return 0;
}

static int more(void)
{
	static struct fi_context2 ctx[6];
	volatile char *second = from + 2048;
	struct iovec iov = { from, 64 };
	struct fid_mr *mr;
	void *desc;

	open_disabled("efa-direct");
	enable();
	DO(0, fi_mr_reg(domain, from, sizeof(from), FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
	desc = fi_mr_desc(mr);
	struct fi_msg msg = { .msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = self,
			      .context = &ctx[5] };
	for (int i = 0; i < 3; i++)
		DO(0, fi_recv(ep, from + 1024 * (i + 1), 1024, desc, FI_ADDR_UNSPEC, &ctx[i]));
	from[0] = 1;
	DO(0, fi_send(ep, from, 64, desc, self, &ctx[3]));
	DO(0, fi_send(ep, from, 64, desc, self, &ctx[4]));
	DO(0, fi_sendmsg(ep, &msg, FI_MORE | FI_COMPLETION));
	/* Then the first one has its completion. */
	while (!*second)
		;
	take(6);
	DO(0, fi_close(&mr->fid));
	close_all();
	return 0;
}

static int long_messages(void)
{
	enum { LONG = 4 << 20 };
	static char out[LONG], in[LONG];
	static struct fi_context2 sent, got;

	open_disabled("efa");
	enable();
	for (int round = 0; round < 4; round++) {
		/* The first message precedes the handshake, and is not read. */
		size_t len = round ? LONG : 64;

		for (size_t i = 0; i < len; i++)
			out[i] = (char) (i >> 8) ^ (char) (i * 7 + (size_t) round);
		POST(fi_recv(ep, in, len, NULL, FI_ADDR_UNSPEC, &got));
		POST(fi_send(ep, out, len, NULL, self, &sent));
		take(2);
		TRUE(memcmp(in, out, len) == 0);
	}
	close_all();
	return 0;
}

static int lost(void)
{
	enum { MESSAGES = 50, LENGTH = 60000 };
	static char out[LENGTH];
	static struct fi_context2 ctx[MESSAGES];
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_NONE };
	struct fi_eq_err_entry event = { 0 };
	struct fi_eq_entry entry;
	struct fid_eq *eq;
	uint32_t type;
	int posted = 0, done = 0, failed = 0;

	DO(0, ask("efa", 0));
	open_domain();
	DO(0, fi_eq_open(fabric, &attr, &eq, NULL));
	open_endpoint(cq, cq);
	DO(0, fi_ep_bind(ep, &eq->fid, 0));
	enable();
	while (done < MESSAGES) {
		struct fi_cq_err_entry err = { 0 };
		struct fi_cq_data_entry e;
		ssize_t r;

		if (posted < MESSAGES && fi_send(ep, out, LENGTH, NULL, self, &ctx[posted]) == 0)
			posted++;
		r = fi_cq_read(cq, &e, 1);
		if (r == -FI_EAVAIL) {
			DO(1, fi_cq_readerr(cq, &err, 0));
			failed++;
		}
		done += r != -FI_EAGAIN;
	}
	TRUE(failed > 1);
	DO(-FI_EAVAIL, fi_eq_read(eq, &type, &entry, sizeof(entry), 0));
	TRUE(fi_eq_readerr(eq, &event, 0) > 0);
	DO(-FI_EAGAIN, fi_eq_read(eq, &type, &entry, sizeof(entry), 0));
	printf("%d messages failed, and one event tells so\n", failed);
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&eq->fid));
	close_domain();
	return 0;
}

static int cached(void)
{
	enum { BUFFERS = 16, LONG = 2 << 20, REGIONS = 100, MOST = 64 };
	static struct fid_mr *mrs[REGIONS];
	static struct fi_context2 sent, got;
	static char in[LONG];
	int regions[2] = { 0 };

	open_disabled("efa");
	enable();
	for (int round = 0; round < 2; round++) {
		/* Long messages of memory that is not registered, before the second round. */
		for (int i = 0; round && i < BUFFERS; i++) {
			char *out = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

			TRUE(out != MAP_FAILED);
			POST(fi_recv(ep, in, LONG, NULL, FI_ADDR_UNSPEC, &got));
			POST(fi_send(ep, out, LONG, NULL, self, &sent));
			take(2);
		}
		for (int i = 0; i < REGIONS; i++) {
			int r = fi_mr_reg(domain, from, sizeof(from), FI_SEND, 0, 0, 0, &mrs[i], NULL);

			TRUE(r == 0 || r == -FI_ENOMR);
			if (r)
				break;
			regions[round]++;
		}
		for (int i = 0; i < regions[round]; i++)
			DO(0, fi_close(&mrs[i]->fid));
	}
	printf("room for %d regions, and for %d after the messages\n", regions[0], regions[1]);
	TRUE(regions[0] < MOST && regions[1] == regions[0]);
	close_all();
	return 0;
}

/* Opens an endpoint of these traffic classes, and sends a message if it can be enabled. Returns
 * what fi_enable did. */
static int of_class(const char *fabric_name, uint32_t of_domain, uint32_t of_endpoint)
{
	static struct fi_context2 sent, got;
	struct fid_mr *mr;
	int ret;

	traffic[0] = of_domain;
	traffic[1] = of_endpoint;
	open_disabled(fabric_name);
	DO(of_endpoint == FI_TC_BULK_DATA ? FI_TC_UNSPEC : of_endpoint, info->tx_attr->tclass);
	DO(of_domain, info->domain_attr->tclass);
	ret = fi_enable(ep);
	if (!ret) {
		size_t len = sizeof(name);

		DO(0, fi_getname(&ep->fid, name, &len));
		DO(1, fi_av_insert(av, name, 1, &self, 0, NULL));
		DO(0, fi_mr_reg(domain, from, sizeof(from), FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
		POST(fi_recv(ep, from + 1024, 64, fi_mr_desc(mr), FI_ADDR_UNSPEC, &got));
		POST(fi_send(ep, from, 64, fi_mr_desc(mr), self, &sent));
		take(2);
		DO(0, fi_close(&mr->fid));
	}
	close_all();
	return ret;
}

/* Every traffic class, where the adapter has one service level: that of low latency, or 0. */
static int levels(bool low)
{
	const char *fabrics[] = { "efa", "efa-direct" };
	const uint32_t unspec = FI_TC_UNSPEC, best = FI_TC_BEST_EFFORT, fast = FI_TC_LOW_LATENCY;

	for (int i = 0; i < 2; i++) {
		DO(0, of_class(fabrics[i], unspec, fast));
		DO(0, of_class(fabrics[i], fast, unspec));
		DO(0, of_class(fabrics[i], best, fast));
		TRUE(!of_class(fabrics[i], fast, best) == !low);
		TRUE(!of_class(fabrics[i], unspec, unspec) == !low);
		TRUE(!of_class(fabrics[i], unspec, FI_TC_BULK_DATA) == !low);
	}
	return 0;
}

/* The options for bytes that arrive in order, where the adapter keeps it, and where not. */
static int order(bool kept)
{
	const int sends = FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES;
	const int writes = FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES;
	const char *fabrics[] = { "efa", "efa-direct" };
	const bool on = true, off = false;

	for (int i = 0; i < 2; i++) {
		bool got = true;
		size_t len = sizeof(got);

		open_disabled(fabrics[i]);
		DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, writes, &got, &len));
		TRUE(!got);
		DO(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, writes, &on, 2));
		DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, writes, &off, 1));
		DO(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, sends, &off, 1));
		DO(kept ? 0 : -FI_EOPNOTSUPP,
		   fi_setopt(&ep->fid, FI_OPT_ENDPOINT, writes, &on, 1));
		DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, writes, &got, &len));
		TRUE(got == kept);
		DO(kept && i == 1 ? 0 : -FI_EOPNOTSUPP,
		   fi_setopt(&ep->fid, FI_OPT_ENDPOINT, sends, &on, 1));
		enable();
		DO(-FI_EOPBADSTATE, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, writes, &on, 1));
		close_all();
	}
	return 0;
}

static int crowded(void)
{
	struct rlimit few = { 0 }, all;
	int last = dup(0);

	DO(0, getrlimit(RLIMIT_NOFILE, &all));
	few.rlim_max = all.rlim_max;
	/* The libraries can be loaded, which needs one descriptor at a time. */
	few.rlim_cur = (rlim_t) last + 1;
	DO(0, close(last));
	DO(0, setrlimit(RLIMIT_NOFILE, &few));
	DO(-FI_ENODATA, ask("efa", 0));
	DO(0, setrlimit(RLIMIT_NOFILE, &all));
	DO(0, ask("efa", 0));
	TRUE(info->nic && info->nic->device_attr);
	fi_freeinfo(info);
	return 0;
}

int main(int argc, char **argv)
{
	static struct fi_context2 context;
	struct fid_mr *far, *near;
	int failed = 0, done = 0, link = argc == 2 && !strcmp(argv[1], "link");
	const int want = link ? FI_EHOSTUNREACH : FI_EINVAL;

	alarm(120);
	if (argc == 2 && !strcmp(argv[1], "receiver"))
		return receiver();
	if (argc == 2 && !strcmp(argv[1], "managed"))
		return managed();
	if (argc == 2 && !strcmp(argv[1], "parts"))
		return parts();
	if (argc == 2 && !strcmp(argv[1], "more"))
		return more();
	if (argc == 2 && !strcmp(argv[1], "long"))
		return long_messages();
	if (argc == 2 && !strcmp(argv[1], "lost"))
		return lost();
	if (argc == 2 && !strcmp(argv[1], "cached"))
		return cached();
	if (argc == 2 && !strcmp(argv[1], "levels"))
		return levels(false);
	if (argc == 2 && !strcmp(argv[1], "low"))
		return levels(true);
	if (argc == 2 && !strcmp(argv[1], "order"))
		return order(true);
	if (argc == 2 && !strcmp(argv[1], "disorder"))
		return order(false);
	if (argc == 2 && !strcmp(argv[1], "crowded"))
		return crowded();
	TRUE(link || (argc == 2 && !strcmp(argv[1], "keys")));
	open_disabled("efa");
	enable();
	DO(0, fi_mr_reg(domain, from, sizeof(from), FI_REMOTE_READ, 0, 0, 0, &far, NULL));
	DO(0, fi_mr_reg(domain, to, sizeof(to), FI_READ, 0, 0, 0, &near, NULL));
	for (int i = 0; i < READS; i++) {
		int err;

		memset(from, i, sizeof(from));
		DO(0, fi_read(ep, to, sizeof(to), fi_mr_desc(near), self, (uint64_t) (uintptr_t) from,
			      fi_mr_key(far), &context));
		err = next(&context, FI_READ);
		TRUE(err == 0 || err == want);
		TRUE(err || to[sizeof(to) - 1] == (char) i);
		/* A link that is down stays down. */
		TRUE(!link || err || !failed);
		failed += err != 0;
		done += err == 0;
	}
	TRUE(failed && done);
	printf("%d reads were done, %d failed: %s\n", done, failed, fi_strerror(want));
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&far->fid));
	close_all();
	return 0;
}
