/* SPDX-License-Identifier: BSD-2-Clause */
/* Windows of writes, writes with data or reads by the client; the server posts nothing. */
#include "loops.h"

static int run(struct bench *b, size_t size, int iters)
{
	int r = 0;

	for (int i = 0; i < iters && !r; i += b->window) {
		int n = iters - i < b->window ? iters - i : b->window;
		size_t all = size * (size_t) n;

		if (b->verify) {
			bench_fill(b->tx, all, (unsigned) (i + 1));
			bench_clear(b->rx, all);
			r = bench_sync(b);
		}
		if (b->peer) {
			for (int j = 0; j < n && !r; j++)
				r = bench_post_rma(b, b->op, size, j);
			if (!r)
				r = bench_wait_tx(b);
		} else if (b->op == OP_WRITEDATA) {
			b->rx_posted += (uint64_t) n;
			r = bench_wait_rx(b);
		}
		if (!r && b->verify) {
			r = bench_sync(b);
			if (!r && (b->peer != NULL) == (b->op == OP_READ))
				r = bench_check("remote memory", b->rx, all, (unsigned) (i + 1));
			if (!r)
				r = bench_sync(b);
		}
	}
	/* The server waits here, so that both sides measure the same time. */
	return r ? r : bench_sync(b);
}

int main(int argc, char **argv)
{
	return program(OP_WRITE, true, 1, run, argc, argv);
}
