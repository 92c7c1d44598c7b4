/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Long messages with lengths around the limits of the copy methods, verified: through a ring, by
 * the receiver's copy, by copies of both sides. More messages are under way than receives are
 * posted, so that some are unexpected. Every fifth receive is too short, or has no memory at all,
 * and must end in FI_ETRUNC. In the end the receiver is killed by SIGKILL while messages without a
 * receive are pending: each must end, and those that need a CTS in an error.
 *
 * long_messages reluctantly: process_vm_readv(2) copies less than asked, now and then, or nothing.
 */
#include "two.h"
#include <sys/syscall.h>
#include <sys/uio.h>

#define SLOT (((size_t) 1 << 20) + 64)
#define POSTED 4
#define UNDER_WAY 7
#define MESSAGES (UNDER_WAY * 200)
#define WAITING 12

static const size_t lengths[] = { 8193, 65536, 20000, 49152, 65537, 49151, 16385, 100000,
		1048576 + 5, 65535, 262144, 12288 };

static size_t length(unsigned n)
{
	return lengths[n % (sizeof(lengths) / sizeof(*lengths))];
}

static int reluctant;

/*
 * Replaces the C library's function, within what its man page permits: now and then a call for a
 * whole message is refused, and a call for several copies only a part. A message that the sender
 * copies, too, in chunks of whole pages, is never refused: it has no other way by then.
 */
ssize_t process_vm_readv(pid_t pid, const struct iovec *to, unsigned long n,
		const struct iovec *from, unsigned long m, unsigned long flags)
{
	static unsigned calls;
	struct iovec first = *to;

	/* The first call is the library's probe for cross-memory attach. */
	if (!reluctant || calls++ % 3 != 1)
		return syscall(SYS_process_vm_readv, pid, to, n, from, m, flags);
	for (unsigned i = 0; n == 1 && i < sizeof(lengths) / sizeof(*lengths); i++)
		if (first.iov_len == lengths[i] && first.iov_len % 4096) {
			errno = EPERM;
			return -1;
		}
	first.iov_len -= first.iov_len / 3;
	return syscall(SYS_process_vm_readv, pid, &first, 1ul, from, m, flags);
}

/* Length of the receive for message n. */
static size_t room(unsigned n)
{
	const size_t of[] = { 0, 100, 8192, length(n) - 1 };

	return n % 5 ? SLOT : of[n / 5 % 4];
}

/* Bytes of message n: messages differ, and a word at one place occurs at no other. */
static void fill(char *at, unsigned n, size_t len)
{
	for (size_t i = 0; i + 8 <= len; i += 8) {
		uint64_t w = (i + 1) * 0x9e3779b97f4a7c15u ^ n;

		memcpy(at + i, &w, 8);
	}
	memset(at + len / 8 * 8, (int) n, len % 8);
}

/* A posted receive: the number of its message, and the buffer. */
static struct place {
	unsigned n;
	char *at;
} places[POSTED];

static void post(struct place *p, unsigned n)
{
	p->n = n;
	DO(fi_recv(ep, p->at, room(n), NULL, FI_ADDR_UNSPEC, p));
}

/* Receives and verifies all messages, then takes no more until it is killed. */
static int receiver(int fd)
{
	struct hello me = open_all(POSTED * SLOT), other;
	struct fi_cq_data_entry e;
	char *expected = malloc(SLOT);
	unsigned posted = 0, got = 0;

	meet(fd, &me, &other);
	for (; posted < POSTED; posted++) {
		places[posted].at = buf + posted * SLOT;
		post(&places[posted], posted);
	}
	while (got < MESSAGES) {
		struct fi_cq_err_entry end;

		if (!read_completion(&end))
			continue;
		struct place *p = end.op_context;
		size_t len = length(p->n), kept = len < room(p->n) ? len : room(p->n);

		fill(expected, p->n, len);
		if (end.err != (kept < len ? FI_ETRUNC : 0) || end.len != kept ||
		    memcmp(expected, p->at, kept)) {
			printf("message %u of %zu bytes, for %zu: %s, or not its bytes\n", p->n, len, room(p->n),
			       fi_strerror(end.err));
			exit(EXIT_FAILURE);
		}
		got++;
		if (posted < MESSAGES)
			post(p, posted++);
	}
	if (write(fd, "", 1) != 1)
		exit(EXIT_FAILURE);
	for (;;)
		fi_cq_read(cq, &e, 1);
}

int main(int argc, char **argv)
{
	int fd, status, errors = 0, done = 0;
	struct hello me, other;
	struct fi_cq_data_entry e;
	unsigned sent = 0, ended = 0, over = 0;
	pid_t child;
	char c;

	reluctant = argc > 1 && !strcmp(argv[1], "reluctantly");
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "1000", 0);
	child = spawn_peer(receiver, &fd);
	me = open_all(WAITING * SLOT);
	fi_addr_t to = meet(fd, &me, &other);

	while (ended < MESSAGES) {
		for (; sent < ended + UNDER_WAY; sent++) {
			char *at = buf + (sent - ended) * SLOT;
			ssize_t r = -FI_EAGAIN;

			fill(at, sent, length(sent));
			while (r == -FI_EAGAIN) {
				r = fi_send(ep, at, length(sent), NULL, to, NULL);
				over += r == -FI_EAGAIN && fi_cq_read(cq, &e, 1) == 1;
			}
			DO(r);
		}
		while (ended + over < sent) {
			ssize_t r = fi_cq_read(cq, &e, 1);

			if (r == -FI_EAGAIN)
				continue;
			DO(r);
			over++;
		}
		ended = sent;
		over = 0;
	}
	if (read(fd, &c, 1) != 1)
		return EXIT_FAILURE;
	for (int i = 0; i < WAITING; i++)
		DO(fi_send(ep, buf + i * SLOT, i % 2 ? 65537 : SLOT, NULL, to, NULL));
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	for (double t = now_s(); done + errors < WAITING && now_s() - t < 20;) {
		struct fi_cq_err_entry err = { 0 };
		ssize_t r = fi_cq_read(cq, &e, 1);

		done += r == 1;
		if (r != -FI_EAVAIL)
			continue;
		DO(fi_cq_readerr(cq, &err, 0));
		if (errors++ == 0)
			printf("first error: %s\n", fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0));
	}
	printf("%u messages verified; of %d without receives %d ended in error, %d well\n", ended,
			WAITING, errors, done);
	close_all();
	return errors == WAITING ? EXIT_SUCCESS : EXIT_FAILURE;
}
