/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * inject N: inline data of work requests on `efa-direct`, for `efa-sim run`. Messages of 1 to N
 * bytes, and writes where N is above 32, which takes wide work requests. Longer operations follow
 * on the same queue.
 */
#include <rdma/fi_rma.h>
#include "alone.h"

#define LEN 4096

static char from[LEN], to[LEN];
static struct fid_mr *sent, *got;

static struct fi_cq_data_entry next(void)
{
	struct fi_cq_data_entry e = { 0 };
	struct fi_cq_err_entry err = { 0 };
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	if (n == -FI_EAVAIL)
		fi_cq_readerr(cq, &err, 0);
	if (n != 1)
		fprintf(stderr, "error %d, %d\n", err.err, err.prov_errno);
	DO(1, n);
	return e;
}

static void fill(void)
{
	pattern(from, LEN);
	memset(to, 0, LEN);
}

static void arrived(size_t len)
{
	TRUE(!memcmp(from, to, len));
	for (size_t i = len; i < LEN; i++)
		TRUE(to[i] == 0);
}

/* Posts the receive for the next message. */
static void expect(void)
{
	fill();
	DO(0, fi_recv(ep, to, LEN, fi_mr_desc(got), FI_ADDR_UNSPEC, NULL));
}

/* fi_sendmsg of `len` bytes to itself, into a receive of fi_recvmsg; both have completions. */
static void send_flagged(size_t len, uint64_t flags)
{
	void *desc[] = { fi_mr_desc(sent), fi_mr_desc(got) };
	struct iovec out = { from, len }, in = { to, LEN };
	struct fi_msg msg = { .msg_iov = &out, .desc = desc, .iov_count = 1, .addr = self, .data = 77 };
	struct fi_msg rcv = { .msg_iov = &in, .desc = desc + 1, .iov_count = 1, .addr = FI_ADDR_UNSPEC };
	int receives = 0;

	fill();
	DO(0, fi_recvmsg(ep, &rcv, FI_COMPLETION));
	DO(0, fi_sendmsg(ep, &msg, flags | FI_COMPLETION));
	for (int i = 0; i < 2; i++) {
		struct fi_cq_data_entry e = next();

		if (e.flags & FI_RECV) {
			receives++;
			TRUE(e.len == len);
			TRUE(!(flags & FI_REMOTE_CQ_DATA) == !(e.flags & FI_REMOTE_CQ_DATA));
			TRUE(!(flags & FI_REMOTE_CQ_DATA) || e.data == 77);
		}
	}
	DO(1, receives);
	arrived(len);
}

int main(int argc, char **argv)
{
	size_t most = argc > 1 ? strtoul(argv[1], NULL, 0) : 32, n = sizeof(size_t), writes = 99;
	uint64_t key, at;
	int ret = ask("efa-direct", most), rma;

	if (most > 32 && ret == -FI_ENODATA) {
		puts("no wide requests: an adapter or a libefa that has none");
		return EXIT_SUCCESS;
	}
	DO(0, ret);
	TRUE(info->tx_attr->inject_size == most);
	rma = !!(info->caps & FI_RMA);
	open_asked();
	DO(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_INJECT_RMA_SIZE, &writes, &n));
	TRUE(writes == (rma && most > 32 ? most : 0));
	enable();
	DO(0, fi_mr_reg(domain, from, LEN, FI_SEND | FI_WRITE | FI_READ, 0, 0, 0, &sent, NULL));
	DO(0, fi_mr_reg(domain, to, LEN, FI_RECV | FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &got, NULL));
	key = fi_mr_key(got);
	at = (uint64_t) to;

	for (size_t len = 1; len <= most; len++) {
		expect();
		DO(0, fi_inject(ep, from, len, self));
		TRUE(next().len == len);
		arrived(len);
		expect();
		DO(0, fi_injectdata(ep, from, len, 1000 + len, self));
		TRUE(next().data == 1000 + len);
		arrived(len);
	}
	DO(-FI_EMSGSIZE, fi_inject(ep, from, most + 1, self));
	for (size_t len = 1; len <= most; len++) {
		send_flagged(len, FI_INJECT);
		send_flagged(len, FI_INJECT | FI_REMOTE_CQ_DATA);
		send_flagged(len, FI_REMOTE_CQ_DATA);
		send_flagged(len * 20, 0);
	}
	for (size_t len = 1; len <= writes; len++) {
		fill();
		DO(0, fi_inject_write(ep, from, len, self, at, key));
		/* An injected write has no completion: issue reads until the data is there. */
		while (memcmp(from, to, len)) {
			DO(0, fi_read(ep, from + LEN / 2, 8, fi_mr_desc(sent), self, at, key, NULL));
			TRUE(next().flags & FI_READ);
		}
		for (size_t i = len; i < LEN; i++)
			TRUE(to[i] == 0);
	}
	DO(rma ? -FI_EMSGSIZE : -FI_EOPNOTSUPP, fi_inject_write(ep, from, writes + 1, self, at, key));

	/* Operations that are too long for inline data. */
	for (int i = 0; i < 3000; i++) {
		struct iovec two[] = { { from, 1000 }, { from + 1000, 500 } };
		void *desc[] = { fi_mr_desc(sent), fi_mr_desc(sent) };
		size_t len = i % 3 == 2 ? 3000 : 1500;

		if (i % 3 == 2 && !rma)
			continue;
		if (i % 3 < 2)
			expect();
		else
			fill();
		if (i % 3 == 0)
			DO(0, fi_send(ep, from, 1500, desc[0], self, NULL));
		else if (i % 3 == 1)
			DO(0, fi_sendv(ep, two, desc, 2, self, NULL));
		else
			DO(0, fi_write(ep, from, 3000, desc[0], self, at, key, NULL));
		next();
		if (i % 3 < 2)
			next();
		arrived(len);
	}
	puts(most > 32 ? "wide requests" : "requests");
	DO(0, fi_close(&sent->fid));
	DO(0, fi_close(&got->fid));
	close_all();
	return EXIT_SUCCESS;
}
