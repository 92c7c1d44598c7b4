/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What becomes of reads when the adapter refuses them, for `efa-sim run` with such faults: every one ends, as a success or as an
 * error that says why.
 *
 * adapter_faults keys     some fail with FI_EINVAL (--bad-keys), others do not
 * adapter_faults link     all fail with FI_EHOSTUNREACH from some time on (--link-down-after)
 */
#include <rdma/fi_rma.h>
#include "alone.h"

enum { READS = 400 };

static char from[4096], to[4096];

/* The errno of the next completion, 0 for success. */
static int next(void *context)
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
	TRUE(err.op_context == context && err.flags & FI_READ);
	TRUE(strlen(fi_cq_strerror(cq, err.prov_errno, err.err_data, text, sizeof(text))) > 20);
	return err.err;
}

int main(int argc, char **argv)
{
	static struct fi_context2 context;
	struct fid_mr *far, *near;
	int failed = 0, done = 0, link = argc == 2 && !strcmp(argv[1], "link");
	const int want = link ? FI_EHOSTUNREACH : FI_EINVAL;

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
		err = next(&context);
		TRUE(err == 0 || err == want);
		TRUE(err || to[sizeof(to) - 1] == (char) i);
		/* What is down stays down. */
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
