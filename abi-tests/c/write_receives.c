/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes with data on `efa-direct` with FI_RX_CQ_DATA: each write consumes a receive of the target,
 * and the completion has that receive's context (fi_rma(3), fi_efa(7)). On the software adapter a
 * write waits for a receive. On an emulated adapter (any argument) the receive is posted first.
 */
#include <rdma/fi_rma.h>
#include "alone.h"

static char from[64], to[64], unused[2][64];
static struct fid_mr *mr[3];

/* Takes the completions of a write with data, at initiator and target, in either order. */
static void both(uint64_t data, void *context)
{
	int sent = 0, told = 0;

	while (!sent || !told) {
		struct fi_cq_data_entry e = { 0 };
		ssize_t n = fi_cq_read(cq, &e, 1);

		if (n == -FI_EAGAIN)
			continue;
		DO(1, n);
		if (e.flags & FI_REMOTE_CQ_DATA) {
			told++;
			TRUE(e.op_context == context);
			TRUE(e.data == data && e.len == sizeof(from));
		} else {
			sent++;
			TRUE(e.op_context == from);
		}
	}
	DO(-FI_EAGAIN, fi_cq_read(cq, unused, 1));
	TRUE(!memcmp(from, to, sizeof(from)));
}

static void receive(int i)
{
	DO(0, fi_recv(ep, unused[i], sizeof(unused[i]), fi_mr_desc(mr[2]), FI_ADDR_UNSPEC, unused[i]));
}

int main(int argc, char **argv)
{
	struct { void *at; size_t len; uint64_t access; } m[] = {
		{ from, sizeof(from), FI_WRITE }, { to, sizeof(to), FI_REMOTE_WRITE },
		{ unused, sizeof(unused), FI_RECV },
	};

	(void) argv;
	DO(0, ask("efa-direct", 0));
	info->mode |= FI_RX_CQ_DATA;
	if (!(info->caps & FI_RMA)) {
		puts("no writes with data: an adapter or a libefa that has none");
		return EXIT_SUCCESS;
	}
	open_asked();
	for (int i = 0; i < 3; i++)
		DO(0, fi_mr_reg(domain, m[i].at, m[i].len, m[i].access, 0, 0, 0, &mr[i], NULL));
	enable();
	for (uint64_t i = 0; i < 300; i++) {
		int early = argc > 1 || i % 3;

		pattern(from, sizeof(from));
		if (early)
			receive(i & 1);
		DO(0, fi_writedata(ep, from, sizeof(from), fi_mr_desc(mr[0]), 1000 + i, self, (uintptr_t) to,
				fi_mr_key(mr[1]), from));
		for (int n = 0; !early && n < 100; n++)
			DO(-FI_EAGAIN, fi_cq_readfrom(cq, unused, 0, NULL));
		if (!early)
			receive(i & 1);
		both(1000 + i, unused[i & 1]);
	}
	for (int i = 0; i < 3; i++)
		DO(0, fi_close(&mr[i]->fid));
	close_all();
	puts("each write took a receive");
	return EXIT_SUCCESS;
}
