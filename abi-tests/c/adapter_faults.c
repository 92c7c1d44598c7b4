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
 */
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
	if (fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries, sizeof(tries)) == -FI_ENOSYS) {
		puts("the adapter tries for ever");
		close_all();
		return 0;
	}
	enable();
	DO(-FI_EOPBADSTATE, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &tries, sizeof(tries)));
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

int main(int argc, char **argv)
{
	static struct fi_context2 context;
	struct fid_mr *far, *near;
	int failed = 0, done = 0, link = argc == 2 && !strcmp(argv[1], "link");
	const int want = link ? FI_EHOSTUNREACH : FI_EINVAL;

	if (argc == 2 && !strcmp(argv[1], "receiver"))
		return receiver();
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
