/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What becomes of reads when the adapter refuses them, for `efa-sim run` with such faults: every one ends, as a success or as an
 * error that says why.
 *
 * adapter_faults keys     some fail with FI_EINVAL (--bad-keys), others do not
 * adapter_faults link     all fail with FI_EHOSTUNREACH from some time on (--link-down-after)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define DO(want, call) \
	do { \
		long got_ = (call); \
		if (got_ != (want)) { \
			printf("line %d: %s: %ld, wanted %ld\n", __LINE__, #call, got_, (long) (want)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)
#define TRUE(what) DO(1, !!(what))

enum { READS = 400 };

static struct fid_cq *cq;
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
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	static struct fi_context2 context;
	struct fid_mr *far, *near;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_av *av;
	fi_addr_t self;
	char name[64];
	size_t len = sizeof(name);
	int failed = 0, done = 0, link = argc == 2 && !strcmp(argv[1], "link");
	const int want = link ? FI_EHOSTUNREACH : FI_EINVAL;

	TRUE(link || (argc == 2 && !strcmp(argv[1], "keys")));
	hints->fabric_attr->name = strdup("efa");
	hints->fabric_attr->prov_name = strdup("efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	DO(0, fi_getinfo(FI_VERSION(2, 1), NULL, NULL, 0, hints, &info));
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
	DO(0, fi_enable(ep));
	DO(0, fi_getname(&ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &self, 0, NULL));
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
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&far->fid));
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
