/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long tagged messages without a receive yet. Provider tcp announces them and leaves their bytes
 * with the sender, so that what comes behind them is not held up: they are found by FI_PEEK,
 * claimed, discarded and received in another order, and each send ends.
 *
 * announced PROVIDER
 */
#include <rdma/fi_tagged.h>
#include "two.h"

#define LONG (32u << 20)
#define MESSAGES 4

static fi_addr_t to;

/* Waits for the next completion, which must be a success. */
static struct fi_cq_err_entry next(void)
{
	struct fi_cq_err_entry e;
	double began = now_s();

	while (!read_completion(&e))
		check(now_s() - began < 60, "no completion within a minute");
	check(e.err == 0, "an operation failed");
	return e;
}

static void post(ssize_t (*call)(uint64_t), uint64_t tag)
{
	ssize_t ret;

	while ((ret = call(tag)) == -FI_EAGAIN)
		(void) fi_cq_read(cq, NULL, 0);
	DO(ret);
}

/* Message `tag` has its own bytes. */
static ssize_t send_long(uint64_t tag)
{
	char *at = buf + (tag - 1) * LONG;

	memset(at, (int) tag, LONG);
	return fi_tsend(ep, at, LONG, NULL, to, tag, NULL);
}

static ssize_t send_short(uint64_t tag)
{
	return fi_tsend(ep, &to, sizeof(to), NULL, to, tag, NULL);
}

static fi_addr_t meet_by(int fd, size_t size)
{
	struct hello me, other;

	caps = FI_MSG | FI_TAGGED;
	me = open_all(size);
	return meet(fd, &me, &other);
}

static int sender(int fd)
{
	char c;

	to = meet_by(fd, MESSAGES * (size_t) LONG);
	/* The connection is open, and known to take announcements. */
	post(send_short, 100);
	next();
	check(read(fd, &c, 1) == 1, "the other side is gone");
	for (uint64_t tag = 1; tag <= MESSAGES; tag++)
		post(send_long, tag);
	post(send_short, 101);
	for (int i = 0; i < MESSAGES + 1; i++)
		next();
	close_all();
	return EXIT_SUCCESS;
}

static void receive(uint64_t tag, size_t len, uint64_t flags, void *context)
{
	struct iovec v = { buf, len };
	struct fi_msg_tagged m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = tag,
			.context = context };

	DO(fi_trecvmsg(ep, &m, flags));
}

/* Looks for a message until there is one; its length is in the completion. */
static void peek(uint64_t tag, uint64_t flags, void *context)
{
	struct fi_cq_err_entry e;
	double began = now_s();

	do {
		check(now_s() - began < 60, "a message is not found");
		receive(tag, 0, FI_PEEK | flags, context);
		while (!read_completion(&e))
			;
		check(e.err == 0 || e.err == FI_ENOMSG, "a peek failed");
	} while (e.err);
	check(e.len == LONG, "FI_PEEK: another length");
}

static void has_bytes_of(int tag)
{
	check(buf[0] == tag && !memcmp(buf, buf + 1, LONG - 1), "wrong bytes");
	memset(buf, 0, LONG);
}

int main(int argc, char **argv)
{
	static struct fi_context2 claim, plain;
	struct fi_cq_err_entry e;
	int fd, status;
	pid_t child;

	provider = argc > 1 ? argv[1] : "tcp";
	child = spawn_peer(sender, &fd);
	to = meet_by(fd, LONG);
	receive(100, sizeof(to), 0, &plain);
	next();
	check(write(fd, "", 1) == 1, "the other side is gone");
	/* What was sent behind them is not held up. */
	receive(101, sizeof(to), 0, &plain);
	next();
	peek(1, 0, &plain);
	peek(2, FI_CLAIM, &claim);
	peek(3, FI_DISCARD, &plain);
	receive(3, LONG, FI_PEEK, &plain);
	while (!read_completion(&e))
		;
	check(e.err == FI_ENOMSG, "a message that was discarded is found");
	receive(4, LONG, 0, &plain);
	check(next().len == LONG, "another length");
	has_bytes_of(4);
	receive(2, LONG, FI_CLAIM, &claim);
	check(next().len == LONG, "another length");
	has_bytes_of(2);
	receive(1, LONG, 0, &plain);
	check(next().len == LONG, "another length");
	has_bytes_of(1);
	check(waitpid(child, &status, 0) == child && status == 0, "the sender failed");
	close_all();
	printf("long messages wait with their sender\n");
	return EXIT_SUCCESS;
}
