/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads and writes complete, with the right data, although the target makes no call: first with an
 * empty ring between the two processes, then behind messages that fill the ring. Completions are
 * queue entries, and a counter for injected writes.
 */
#include "two.h"

#define SIZE ((size_t) 1 << 20)
#define COUNT 200
#define LIMIT 30.0

/* Takes one message, answers with a byte, and blocks in read(2) from then on. */
static int target(int fd)
{
	struct hello me = open_all(SIZE), other;
	struct fi_cq_data_entry e;
	char c = 0;

	meet(fd, &me, &other);
	DO(fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
	while (fi_cq_read(cq, &e, 1) < 1)
		;
	if (write(fd, &c, 1) != 1)
		return EXIT_FAILURE;
	return read(fd, &c, 1) == 1 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Takes one completion; an error, or none before `until`, ends the test. */
static void completion(double until)
{
	struct fi_cq_data_entry e;
	struct fi_cq_err_entry err;
	ssize_t r;

	while ((r = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		if (now_s() > until) {
			printf("no completion within %.0f s\n", LIMIT);
			exit(EXIT_FAILURE);
		}
	if (r == -FI_EAVAIL) {
		memset(&err, 0, sizeof(err));
		DO(fi_cq_readerr(cq, &err, 0));
		printf("%s\n", fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0));
		exit(EXIT_FAILURE);
	}
	DO(r);
}

#define UNTIL_ROOM(call) \
	do { \
		long r_; \
		while ((r_ = (long) (call)) == -FI_EAGAIN) { \
			uint64_t ignored_ = fi_cntr_read(writes); \
			(void) ignored_; \
			if (now_s() > until) { \
				printf("%s: no room within %.0f s\n", #call, LIMIT); \
				exit(EXIT_FAILURE); \
			} \
		} \
		DO(r_); \
	} while (0)

static void write_and_read_back(fi_addr_t to, const struct hello *other, size_t len, unsigned round)
{
	double until = now_s() + LIMIT;
	uint64_t before = fi_cntr_read(writes), wrote;

	for (unsigned i = 0; i < COUNT; i++) {
		memset(buf, (int) (round * 7 + i + 1), len);
		if (len <= 64) {
			UNTIL_ROOM(fi_inject_write(ep, buf, len, to, other->at, other->key));
			while ((wrote = fi_cntr_read(writes)) < before + i + 1)
				if (now_s() > until) {
					printf("%llu injected writes of %u are counted\n",
					       (unsigned long long) (wrote - before), i + 1);
					exit(EXIT_FAILURE);
				}
		} else {
			UNTIL_ROOM(fi_write(ep, buf, len, NULL, to, other->at, other->key, NULL));
			completion(until);
		}
		memset(buf, 0, len);
		UNTIL_ROOM(fi_read(ep, buf, len, NULL, to, other->at, other->key, NULL));
		completion(until);
		for (size_t k = 0; k < len; k += len < 64 ? 1 : len / 64)
			if ((unsigned char) buf[k] != (unsigned char) (round * 7 + i + 1)) {
				printf("%zu bytes, %u: byte %zu is %d\n", len, i, k, buf[k]);
				exit(EXIT_FAILURE);
			}
	}
}

int main(void)
{
	static const size_t sizes[] = { 8, 4096, 100000, SIZE };
	struct hello me, other;
	int fd, status;
	unsigned filled = 0;
	fi_addr_t to;
	pid_t child;
	char c = 0;

	child = spawn_peer(target, &fd);
	me = open_all(SIZE);
	to = meet(fd, &me, &other);
	DO(fi_send(ep, buf, 8, NULL, to, NULL));
	completion(now_s() + LIMIT);
	if (read(fd, &c, 1) != 1)
		return EXIT_FAILURE;
	for (unsigned full = 0; full < 2; full++) {
		for (unsigned s = 0; s < sizeof(sizes) / sizeof(*sizes); s++)
			write_and_read_back(to, &other, sizes[s], 4 * full + s);
		/* The target takes none of these; a million fit only where sends have no limit. */
		while (!full && filled < 1000000 && fi_inject(ep, buf, 64, to) == 0)
			filled++;
	}
	if (write(fd, &c, 1) != 1 || waitpid(child, &status, 0) != child || status != 0)
		return EXIT_FAILURE;
	printf("done, the second time behind %u messages\n", filled);
	return EXIT_SUCCESS;
}
