/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Remote memory of provider tcp (fi_rma(3), fi_mr(3)): reads and writes of several pieces, up to
 * tx_attr->rma_iov_limit, and a region of the whole address space, whose offsets are addresses.
 */
#include <rdma/fi_rma.h>
#include "alone.h"

#define PIECES 4
#define PIECE 3000

static char from[PIECES * PIECE], to[PIECES][PIECE + 100];
static struct fid_mr *piece[PIECES], *all;

static void ask_tcp(void)
{
	struct fi_info *hints = fi_allocinfo();

	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_RMA;
	hints->tx_attr->rma_iov_limit = PIECES;
	DO(0, fi_getinfo(FI_VERSION(1, 20), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	TRUE(info->tx_attr->rma_iov_limit == PIECES);
	fi_freeinfo(hints);
}

static struct fi_cq_err_entry next(void)
{
	struct fi_cq_err_entry e = { 0 };
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	if (n == -FI_EAVAIL)
		DO(1, fi_cq_readerr(cq, &e, 0));
	return e;
}

/* Accesses `count` pieces by one call; `len` bytes of local memory. */
static ssize_t access_pieces(int write, size_t count, size_t len)
{
	struct fi_rma_iov remote[PIECES + 1] = { 0 };
	struct iovec local[2] = { { from, len / 3 }, { from + len / 3, len - len / 3 } };
	struct fi_msg_rma m = {
		.msg_iov = local, .iov_count = 2, .addr = self, .rma_iov = remote, .rma_iov_count = count,
		.context = from,
	};

	for (size_t i = 0; i < count && i < PIECES; i++) {
		/* Keys are ours, addresses are offsets into the region. */
		remote[i].addr = 100;
		remote[i].len = PIECE;
		remote[i].key = 10 + i;
	}
	return write ? fi_writemsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE)
		     : fi_readmsg(ep, &m, FI_COMPLETION);
}

static void pieces(size_t count)
{
	size_t len = count * PIECE;

	pattern(from, len);
	memset(to, 0, sizeof(to));
	POST(access_pieces(1, count, len));
	TRUE(next().op_context == from);
	for (size_t i = 0; i < count; i++) {
		TRUE(!memcmp(to[i] + 100, from + i * PIECE, PIECE));
		TRUE(to[i][99] == 0);
		pattern(to[i] + 100, PIECE);
	}
	POST(access_pieces(0, count, len));
	TRUE(next().op_context == from);
	for (size_t i = 0; i < count; i++)
		TRUE(!memcmp(to[i] + 100, from + i * PIECE, PIECE));
}

int main(void)
{
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;

	ask_tcp();
	open_asked();
	for (uint64_t i = 0; i < PIECES; i++)
		DO(0, fi_mr_reg(domain, to[i], sizeof(to[i]), access, 0, 10 + i, 0, &piece[i], NULL));
	DO(0, fi_mr_reg(domain, NULL, SIZE_MAX, access, 0, 99, 0, &all, NULL));
	enable();
	for (size_t n = 1; n <= PIECES; n++)
		pieces(n);
	/* Of remote memory that is longer the first bytes are used. */
	pattern(from, PIECE + 10);
	memset(to, 0, sizeof(to));
	POST(access_pieces(1, 3, PIECE + 10));
	TRUE(next().op_context == from);
	TRUE(!memcmp(to[0] + 100, from, PIECE) && !memcmp(to[1] + 100, from + PIECE, 10));
	TRUE(to[1][110] == 0 && to[2][100] == 0);
	/* Shorter remote memory, and more pieces than the limit. */
	DO(-FI_EINVAL, access_pieces(1, 2, 2 * PIECE + 1));
	DO(-FI_EINVAL, access_pieces(1, PIECES + 1, PIECES * PIECE));
	DO(-FI_EINVAL, access_pieces(0, 0, 0));

	pattern(from, 64);
	POST(fi_write(ep, from, 64, NULL, self, (uintptr_t) to[0], 99, to));
	TRUE(next().op_context == to);
	POST(fi_read(ep, from + 64, 64, NULL, self, (uintptr_t) to[0], 99, from));
	TRUE(next().op_context == from);
	TRUE(!memcmp(from, to[0], 64) && !memcmp(from, from + 64, 64));

	for (int i = 0; i < PIECES; i++)
		DO(0, fi_close(&piece[i]->fid));
	DO(0, fi_close(&all->fid));
	close_all();
	puts("all pieces as written and read");
	return EXIT_SUCCESS;
}
