/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the benchmark programs share: options with fabtests' letters, the resources of one endpoint,
 * address exchange over TCP (-E), posting and waiting, verification, and fabtests' tables.
 *
 * A program calls bench_start, runs its loop for every size with bench_each, and bench_end.
 * Every function returns 0 or a negative errno after printing what failed.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

enum bench_op { OP_MSG, OP_TAGGED, OP_WRITE, OP_WRITEDATA, OP_READ };
enum bench_wait { WAIT_SPIN, WAIT_SREAD, WAIT_FD };

struct bench {
	/* options */
	enum bench_op op;
	enum bench_wait wait;
	const char *peer;		/* server's host; NULL on the server */
	const char *port;
	size_t sizes[64];
	int size_count;
	size_t max_size;
	int iterations;			/* 0: by size, as fabtests does */
	int warmup;
	int window;
	bool verify;
	long inject_limit;		/* -1: the endpoint's */
	int timeout_s;
	struct fi_info *hints;

	/* resources */
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *txcq, *rxcq;
	struct fid_ep *ep;
	struct fid_mr *mr;
	char *buf, *tx, *rx;
	size_t buf_size;
	void *desc;
	fi_addr_t far;
	struct fi_rma_iov remote;
	struct fi_context2 *tx_ctx, *rx_ctx;
	int oob;
	size_t inject_size;

	/* completions so far and posts so far */
	uint64_t tx_posted, tx_done, rx_posted, rx_done;
	bool header_printed;
};

int bench_start(struct bench *b, enum bench_op op, bool rma, int argc, char **argv);
int bench_each(struct bench *b, int xfers_per_iter,
		int (*run)(struct bench *b, size_t size, int iters));
int bench_end(struct bench *b);

/* Posts one operation of slot `slot`; retries while the queue is full. */
int bench_post_tx(struct bench *b, size_t size, int slot);
int bench_post_rx(struct bench *b, size_t size, int slot);
int bench_post_rma(struct bench *b, enum bench_op op, size_t size, int slot);
/* Waits until all posted operations of that side are done. */
int bench_wait_tx(struct bench *b);
int bench_wait_rx(struct bench *b);
/* Waits until both sides are here; progresses the endpoint meanwhile. */
int bench_sync(struct bench *b);
void bench_fill(char *buf, size_t size, unsigned seed);
int bench_check(const char *what, char *buf, size_t size, unsigned seed);
void bench_clear(char *buf, size_t size);
/* Whether the buffers are a GPU's (-D cuda): the processor cannot look at them. */
bool bench_on_gpu(void);
/* Progresses the endpoint without waiting. */
int bench_progress(struct bench *b);

#endif
