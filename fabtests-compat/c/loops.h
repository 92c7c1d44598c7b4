/* SPDX-License-Identifier: BSD-2-Clause */
/* The measured loops, shared by the programs that differ only in the operation. */
#ifndef LOOPS_H
#define LOOPS_H

#include <stdlib.h>
#include "bench.h"

/* Turn by turn: the client sends first. */
static inline int loop_pingpong(struct bench *b, size_t size, int iters)
{
	int r = 0;

	for (int i = 0; i < iters && !r; i++) {
		r = bench_post_rx(b, size, i % b->window);
		if (b->verify)
			bench_fill(b->tx, size, (unsigned) i);
		if (!r && b->peer) {
			r = bench_post_tx(b, size, i % b->window);
			if (!r)
				r = bench_wait_tx(b);
		}
		if (!r)
			r = bench_wait_rx(b);
		if (!r && b->verify)
			r = bench_check("pingpong", b->rx, size, (unsigned) i);
		if (!r && !b->peer) {
			r = bench_post_tx(b, size, i % b->window);
			if (!r)
				r = bench_wait_tx(b);
		}
	}
	return r;
}

/* The client sends windows; the server answers each with a short message. */
static inline int loop_bw(struct bench *b, size_t size, int iters)
{
	int r = 0;

	if (b->verify)
		bench_fill(b->tx, size > 4 ? size : 4, 5);
	for (int i = 0; i < iters && !r; i += b->window) {
		int n = iters - i < b->window ? iters - i : b->window;

		if (b->peer) {
			for (int j = 0; j < n && !r; j++)
				r = bench_post_tx(b, size, j);
			if (!r)
				r = bench_post_rx(b, 4, 0);
			if (!r)
				r = bench_wait_tx(b);
			if (!r)
				r = bench_wait_rx(b);
		} else {
			for (int j = 0; j < n && !r; j++)
				r = bench_post_rx(b, size, j);
			if (!r)
				r = bench_wait_rx(b);
			if (!r && b->verify)
				r = bench_check("bandwidth", b->rx, size, 5);
			if (!r)
				r = bench_post_tx(b, 4, 0);
			if (!r)
				r = bench_wait_tx(b);
		}
	}
	return r;
}

/* Runs one program from start to end. */
static inline int program(enum bench_op op, bool rma, int xfers,
		int (*run)(struct bench *, size_t, int), int argc, char **argv)
{
	struct bench b;
	int r = bench_start(&b, op, rma, argc, argv);

	if (!r)
		r = bench_each(&b, xfers, run);
	int e = bench_end(&b);
	return r || e ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
