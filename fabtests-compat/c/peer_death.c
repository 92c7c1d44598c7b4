/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer is killed by SIGKILL in the middle of transfers: a long receive that is partly filled, a
 * long send that is partly taken, writes and a read. Each operation of the survivor must end within
 * 20 s (FI_EFA_SOFT_TIMEOUT_MS is 1 s), some in an error; the first error's text is printed, with
 * peer and cause. Then the survivor must be able to close everything.
 *
 * peer_death forked: a child of the victim survives it, with copies of the victim's sockets.
 * peer_death closed: the victim has such a child, and closes everything instead of being killed.
 * peer_death atomics: a peer that makes no calls is killed after atomics were posted for it; each
 * of them is completed once.
 */
#include <poll.h>
#include <rdma/fi_atomic.h>
#include "two.h"

#define SIZE ((size_t) 64 << 20)
#define WRITES 8
#define ATOMICS 4

static int forks, closes;

/* The victim sends and receives as fast as it can until it is killed. */
static int victim(int fd)
{
	struct hello me = open_all(2 * SIZE), other;
	struct fi_cq_data_entry e[8];
	fi_addr_t to = meet(fd, &me, &other);

	if (forks && fork() == 0) {
		struct pollfd survivor = { .fd = fd };

		/* Until the survivor closes its end. */
		poll(&survivor, 1, -1);
		_exit(0);
	}
	DO(fi_send(ep, buf, SIZE, NULL, to, NULL));
	DO(fi_recv(ep, buf + SIZE, SIZE, NULL, to, NULL));
	for (char c; !closes || recv(fd, &c, 1, MSG_DONTWAIT) != 1;)
		fi_cq_read(cq, e, 8);
	close_all();
	return read(fd, &e, 1) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Takes one message, and makes no call after it. */
static int idler(int fd)
{
	struct hello me = open_all(SIZE), other;
	struct fi_cq_err_entry e;
	fi_addr_t to = meet(fd, &me, &other);

	DO(fi_recv(ep, buf, 8, NULL, to, NULL));
	while (!read_completion(&e))
		;
	check(e.err == 0 && write(fd, "", 1) == 1, "the first message failed");
	return pause();
}

/* Takes the next completion; returns its context. */
static size_t next_context(void)
{
	struct fi_cq_err_entry e;

	for (double until = now_s() + 20; now_s() < until;)
		if (read_completion(&e))
			return (size_t) e.op_context;
	return 0;
}

static int atomics(void)
{
	struct hello me, other;
	struct fi_cq_err_entry e;
	int fd, ended[ATOMICS + 2] = { 0 };
	pid_t child;
	fi_addr_t to;
	char c;

	caps |= FI_ATOMIC;
	child = spawn_peer(idler, &fd);
	me = open_all(SIZE);
	to = meet(fd, &me, &other);
	DO(fi_send(ep, buf, 8, NULL, to, (void *) (ATOMICS + 1)));
	check(next_context() == ATOMICS + 1 && read(fd, &c, 1) == 1, "the first message failed");
	for (size_t i = 1; i <= ATOMICS; i++)
		DO(fi_atomic(ep, buf, 1, NULL, to, other.at, other.key, FI_UINT64, FI_SUM, (void *) i));
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	/* When this fails, the end of the peer is known. */
	DO(fi_recv(ep, buf, 8, NULL, to, NULL));
	DO(fi_send(ep, buf, SIZE, NULL, to, (void *) (ATOMICS + 1)));
	for (int n = 0; n <= ATOMICS; n++)
		ended[next_context()]++;
	while (read_completion(&e))
		ended[(size_t) e.op_context]++;
	for (int i = 1; i <= ATOMICS + 1; i++)
		check(ended[i] == 1, "an operation was not completed once");
	printf("%d atomics and a message completed once each\n", ATOMICS);
	close_all();
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	int fd, errors = 0, done = 0, status, want = 4 + WRITES, explained = 1;
	double limit = 20, t;
	struct hello me, other;
	fi_addr_t to;
	pid_t child;

	setenv("FI_EFA_SOFT_TIMEOUT_MS", "1000", 0);
	if (argc > 1 && strcmp(argv[1], "atomics") == 0)
		return atomics();
	forks = argc > 1;
	closes = forks && strcmp(argv[1], "closed") == 0;
	child = spawn_peer(victim, &fd);
	me = open_all(2 * SIZE);
	to = meet(fd, &me, &other);
	/* Bytes may come in from the first call on. */
	volatile char *first = buf;

	*first = 1;
	DO(fi_recv(ep, buf, SIZE, NULL, to, (void *) 1));
	DO(fi_send(ep, buf + SIZE, SIZE, NULL, to, (void *) 2));
	/* The victim posts no receive for this message, so that it is pending in any case. */
	DO(fi_send(ep, buf + SIZE, SIZE, NULL, to, (void *) 5));
	for (int i = 0; i < WRITES; i++)
		DO(fi_write(ep, buf + SIZE, SIZE, NULL, to, other.at, other.key, (void *) 3));
	DO(fi_read(ep, buf + SIZE, SIZE, NULL, to, other.at, other.key, (void *) 4));

	/* Mid-transfer: as soon as bytes of the incoming message are here, and long before its end. */
	struct fi_cq_data_entry e;
	struct fi_cq_err_entry err;

	while (*first == 1) {
		ssize_t r = fi_cq_read(cq, &e, 1);

		done += r == 1;
		if (r == -FI_EAVAIL) {
			memset(&err, 0, sizeof(err));
			DO(fi_cq_readerr(cq, &err, 0));
			printf("error before the end: %s\n",
			       fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0));
			return EXIT_FAILURE;
		}
	}
	if (closes) {
		if (write(fd, "", 1) != 1)
			return EXIT_FAILURE;
	} else {
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
	}
	t = now_s();
	while (done + errors < want && now_s() - t < limit) {
		ssize_t r = fi_cq_read(cq, &e, 1);

		if (r == 1) {
			done++;
		} else if (r == -FI_EAVAIL) {
			memset(&err, 0, sizeof(err));
			DO(fi_cq_readerr(cq, &err, 0));
			const char *text = fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0);

			if (errors++ == 0)
				printf("first error after %.2f s: %s\n", now_s() - t, text);
			/* Loopback taken for a network's address: the text explains it. */
			if (strstr(text, ":127.0.0.1]") && strstr(text, "no answer"))
				explained &= strstr(text, "FI_EFA_SOFT_IFACE") != NULL;
		}
	}
	t = now_s() - t;
	printf("%d completed, %d ended in error, of %d, in %.2f s\n", done, errors, want, t);
	if (done + errors != want || errors == 0 || !explained)
		return EXIT_FAILURE;
	t = now_s();
	close_all();
	close(fd);
	if (closes && (waitpid(child, &status, 0) != child || status != 0))
		return EXIT_FAILURE;
	printf("everything closed in %.2f s\n", now_s() - t);
	return EXIT_SUCCESS;
}
