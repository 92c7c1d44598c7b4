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
 */
#include <stdbool.h>
#include <unistd.h>
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
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
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
