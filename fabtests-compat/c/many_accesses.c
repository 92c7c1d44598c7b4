/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads and writes of a peer's memory, many at once without a poll in between, verified: adjacent
 * and scattered, short and long, in two regions. Some name a wrong key or go beyond the region;
 * only these must end in an error. Between the rounds a fence: a read before a fenced write returns
 * the old bytes, a read after it the new ones. The target polls at first, then blocks.
 *
 * many_accesses reluctantly: process_vm_readv(2) and process_vm_writev(2) copy less than asked, now
 * and then.
 */
#include "two.h"
#include <sys/syscall.h>
#include <sys/uio.h>

#define SLOT ((size_t) 64 << 10)
#define OPS 48
#define ROUNDS 120
/* One half of the target's memory is read, the other is written. */
#define HALF (OPS * SLOT)

static const size_t lengths[] = { 4096, 2048, 65536, 4096, 8192, 3001, 20000, 64, 8193, 16384 };
static int reluctant;

/* Replaces the C library's functions, within what the man page permits: short copies. */
static ssize_t some(long which, pid_t pid, const struct iovec *here, unsigned long n,
		const struct iovec *there, unsigned long m, unsigned long flags)
{
	static unsigned calls;
	struct iovec first = *here;

	/* The first call is the library's probe for cross-memory attach. */
	if (!reluctant || calls++ % 3 != 1)
		return syscall(which, pid, here, n, there, m, flags);
	first.iov_len -= first.iov_len / 3;
	return syscall(which, pid, &first, 1ul, there, m, flags);
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long n,
		const struct iovec *there, unsigned long m, unsigned long flags)
{
	return some(SYS_process_vm_readv, pid, here, n, there, m, flags);
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *here, unsigned long n,
		const struct iovec *there, unsigned long m, unsigned long flags)
{
	return some(SYS_process_vm_writev, pid, here, n, there, m, flags);
}

/* One operation. Reads and writes alternate in runs of eight, adjacent or scattered. */
static struct op {
	size_t len, at;
	int write, bad, ended;
} ops[OPS];

/* Value of the byte at an offset of the target's memory, as written in `round`. */
static char byte(size_t at, unsigned round)
{
	return (char) (at * 2654435761u >> 13 ^ round * 31);
}

static void fill(char *to, size_t at, size_t len, unsigned round)
{
	for (size_t i = 0; i < len; i++)
		to[i] = byte(at + i, round);
}

static int is(const char *what, size_t at, size_t len, unsigned round)
{
	for (size_t i = 0; i < len; i++)
		if (what[i] != byte(at + i, round))
			return 0;
	return 1;
}

/* The operations of a round, the same on both sides. */
static void plan(unsigned round)
{
	size_t next[2] = { 0, HALF };

	for (unsigned i = 0; i < OPS; i++) {
		struct op *o = &ops[i];

		o->len = lengths[(round + i / 4) % (sizeof(lengths) / sizeof(*lengths))];
		o->write = (i / 8 + round) % 2;
		o->bad = i % 16 == 5 + round % 4;
		o->ended = 0;
		o->at = next[o->write];
		next[o->write] += (i / 8) % 2 ? SLOT : o->len;
	}
}

static int target(int fd)
{
	struct hello me = open_all(2 * HALF), other;
	struct fi_cq_data_entry e;
	unsigned round;

	fill(buf, 0, HALF, 0);
	meet(fd, &me, &other);
	for (unsigned n = 0; n < ROUNDS; n++) {
		int sleeps = n >= ROUNDS / 2;

		while (recv(fd, &round, sizeof(round), sleeps ? MSG_WAITALL : MSG_DONTWAIT) != sizeof(round))
			fi_cq_read(cq, &e, 1);
		plan(round);
		for (struct op *o = ops; o < ops + OPS; o++)
			if (o->write && !o->bad && !is(buf + o->at, o->at, o->len, round)) {
				printf("round %u: a write of %zu bytes at %zu is not there\n", round, o->len, o->at);
				return EXIT_FAILURE;
			}
		if (write(fd, &round, sizeof(round)) != sizeof(round))
			return EXIT_FAILURE;
	}
	/* Wait until the last fence is over. */
	if (read(fd, &round, sizeof(round)) != sizeof(round))
		return EXIT_FAILURE;
	close_all();
	return EXIT_SUCCESS;
}

static unsigned under_way;

/* Takes a completion if there is one; completions come in any order. */
static void end_one(void)
{
	struct fi_cq_err_entry end;

	if (!read_completion(&end))
		return;
	struct op *o = end.op_context;

	if (!o && end.err) {
		printf("at a fence: %s\n", fi_strerror(end.err));
		exit(EXIT_FAILURE);
	}
	if (o && (o->ended++ || o->bad != (end.err != 0))) {
		printf("a %s of %zu bytes at %zu, %s, ended with %s\n", o->write ? "write" : "read", o->len,
				o->at,
		       o->bad ? "not permitted" : "permitted", fi_strerror(end.err));
		exit(EXIT_FAILURE);
	}
	under_way--;
}

static void end_all(void)
{
	while (under_way > 0)
		end_one();
}

static void begin(struct op *o, fi_addr_t to, const struct hello *other)
{
	char *here = buf + o->at;
	uint64_t there = other->at + o->at, key = other->key;
	ssize_t r = -FI_EAGAIN;

	/* A wrong key, or a range beyond the region. */
	if (o->bad && o->len % 2)
		key ^= 0x55;
	else if (o->bad)
		there = other->at + 2 * HALF - o->len + 1;
	while (r == -FI_EAGAIN) {
		r = o->write ? fi_write(ep, here, o->len, NULL, to, there, key, o)
			     : fi_read(ep, here, o->len, NULL, to, there, key, o);
		if (r == -FI_EAGAIN)
			end_one();
	}
	DO(r);
	under_way++;
}

/*
 * Reads, then a fenced write to the same place and a fenced read of it. The place is behind the
 * memory that other operations write, and in front of the part that an invalid write covers.
 */
static void fence(fi_addr_t to, const struct hello *other, unsigned round)
{
	static char aside[20000], before[SLOT], data[SLOT], after[SLOT];
	size_t len = lengths[round % (sizeof(lengths) / sizeof(*lengths))], at = 2 * HALF - 4 * SLOT;
	static unsigned last;
	struct iovec v = { data, len }, back = { after, len };
	struct fi_rma_iov there = { other->at + at, len, other->key };
	struct fi_msg_rma m = { .msg_iov = &v, .iov_count = 1, .addr = to, .rma_iov = &there,
			.rma_iov_count = 1 };
	static size_t known;

	fill(data, at, len, round);
	DO(fi_read(ep, aside, sizeof(aside), NULL, to, other->at, other->key, NULL));
	for (int i = 0; i < 2; i++)
		DO(fi_read(ep, before, len, NULL, to, there.addr, there.key, NULL));
	DO(fi_writemsg(ep, &m, FI_FENCE | FI_COMPLETION));
	m.msg_iov = &back;
	DO(fi_readmsg(ep, &m, FI_FENCE | FI_COMPLETION));
	under_way += 5;
	end_all();
	if (!is(after, at, len, round) || (last && !is(before, at, known < len ? known : len, last))) {
		printf("round %u: a fence of %zu bytes was passed\n", round, len);
		exit(EXIT_FAILURE);
	}
	last = round;
	known = len;
}

int main(int argc, char **argv)
{
	int fd, status;
	unsigned answer, accesses = 0;
	struct hello me, other;

	reluctant = argc > 1 && !strcmp(argv[1], "reluctantly");
	pid_t child = spawn_peer(target, &fd);

	me = open_all(2 * HALF);
	fi_addr_t to = meet(fd, &me, &other);

	for (unsigned round = 1; round <= ROUNDS; round++) {
		plan(round);
		memset(buf, 0, HALF);
		for (struct op *o = ops; o < ops + OPS; o++)
			if (o->write)
				fill(buf + o->at, o->at, o->len, round);
		for (struct op *o = ops; o < ops + OPS; o++)
			begin(o, to, &other);
		end_all();
		accesses += OPS;
		for (struct op *o = ops; o < ops + OPS; o++)
			if (!o->write && !o->bad && !is(buf + o->at, o->at, o->len, 0)) {
				printf("round %u: a read of %zu bytes at %zu is not what is there\n", round, o->len, o->at);
				return EXIT_FAILURE;
			}
		if (write(fd, &round, sizeof(round)) != sizeof(round)
				|| read(fd, &answer, sizeof(answer)) != sizeof(answer))
			return EXIT_FAILURE;
		fence(to, &other, round);
	}
	if (write(fd, &answer, sizeof(answer)) != sizeof(answer))
		return EXIT_FAILURE;
	waitpid(child, &status, 0);
	printf("%u reads and writes verified, and %u fences\n", accesses, ROUNDS);
	close_all();
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
