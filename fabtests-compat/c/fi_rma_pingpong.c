/* SPDX-License-Identifier: BSD-2-Clause */
/* Writes back and forth; the target detects a write by its last byte, or by its completion. */
#include <stdio.h>
#include "loops.h"

static int wait_byte(struct bench *b, size_t size, char want)
{
	volatile char *last = b->rx + size - 1;
	int r = 0;

	while (*last != want && !r)
		r = bench_progress(b);
	return r;
}

static int turn(struct bench *b, size_t size, int i)
{
	char mark = (char) (i % 100 + 1);

	b->tx[size - 1] = mark;
	if (b->verify)
		bench_fill(b->tx, size - 1, (unsigned) i);
	int r = bench_post_rma(b, b->op, size, 0);

	return r ? r : bench_wait_tx(b);
}

static int await_turn(struct bench *b, size_t size, int i)
{
	int r;

	if (b->op == OP_WRITEDATA) {
		b->rx_posted++;
		r = bench_wait_rx(b);
	} else {
		r = wait_byte(b, size, (char) (i % 100 + 1));
	}
	if (!r && b->verify && b->op == OP_WRITEDATA)
		r = bench_check("remote memory", b->rx, size - 1, (unsigned) i);
	return r;
}

static int run(struct bench *b, size_t size, int iters)
{
	if (bench_on_gpu()) {
		fprintf(stderr, "-D: not here, where the processor waits for a byte\n");
		return -FI_ENOSYS;
	}
	int r = 0;

	b->rx[size - 1] = 0;
	r = bench_sync(b);
	for (int i = 0; i < iters && !r; i++) {
		if (b->op == OP_READ) {
			/* Both read at once; there is nothing to wait for. */
			r = bench_post_rma(b, OP_READ, size, 0);
			if (!r)
				r = bench_wait_tx(b);
		} else if (b->peer) {
			r = turn(b, size, i);
			if (!r)
				r = await_turn(b, size, i);
		} else {
			r = await_turn(b, size, i);
			if (!r)
				r = turn(b, size, i);
		}
	}
	return r;
}

int main(int argc, char **argv)
{
	return program(OP_WRITE, true, 2, run, argc, argv);
}
