/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The first message to a peer on this host that is stopped: it waits until the peer continues,
 * however long, and messages to other peers do not wait with it.
 *
 * first_contact [killed]   the peer is killed while it is stopped: the message ends in an error
 * first_contact writes     many writes to the stopped peer end, too, on a small stack
 */
#include <sys/resource.h>
#include "two.h"

enum { SIZE = 64 << 10, ROUNDS_LEAST = 20, WRITES = 1000, STACK = 160 << 10 };
/* Seconds: longer than a peer that is not stopped is waited for. */
static const double STOP = 3.5;

static void receive(void *at)
{
	DO(fi_recv(ep, at, SIZE, NULL, FI_ADDR_UNSPEC, at));
}

static void send_to(fi_addr_t to, void *ctx)
{
	ssize_t r;

	while ((r = fi_send(ep, buf, SIZE, NULL, to, ctx)) == -FI_EAGAIN)
		(void) fi_cq_read(cq, NULL, 0);
	DO(r);
}

/* Writes to the stopped peer, which continues then. */
static void write_to(fi_addr_t to, const struct hello *there, pid_t peer)
{
	struct fi_cq_err_entry end;
	struct rlimit stack = { STACK, STACK };
	double until = now_s() + 20;

	/* Starting an operation must not start the next one within it. */
	DO(setrlimit(RLIMIT_STACK, &stack));
	for (int i = 0; i < WRITES; i++)
		DO(fi_write(ep, buf, SIZE, NULL, to, there->at, there->key, NULL));
	DO(kill(peer, SIGCONT));
	for (int done = 0; done < WRITES;) {
		check(now_s() < until, "the writes never end");
		if (!read_completion(&end))
			continue;
		check(!end.err, "a write failed");
		done++;
	}
}

/* Answers every message. */
static void answer(fi_addr_t to)
{
	struct fi_cq_err_entry end;
	char *in = calloc(1, SIZE);

	receive(in);
	for (;;) {
		if (!read_completion(&end))
			continue;
		check(!end.err, "a peer's operation failed");
		if (end.op_context != in)
			continue;
		receive(in);
		send_to(to, buf);
	}
}

static int stopped_peer(int fd)
{
	struct hello me = open_all(SIZE), other;
	fi_addr_t to = meet(fd, &me, &other);

	raise(SIGSTOP);
	answer(to);
	return 0;
}

static int peer(int fd)
{
	struct hello me = open_all(SIZE), other;

	answer(meet(fd, &me, &other));
	return 0;
}

int main(int argc, char **argv)
{
	int killed = argc > 1 && !strcmp(argv[1], "killed");
	int writes = argc > 1 && !strcmp(argv[1], "writes");
	int fds[2], st, rounds = 0, sent = 0, answered = 0;
	struct hello me, there[2];
	struct fi_cq_err_entry end;
	pid_t children[2];
	char stat[32];
	fi_addr_t to[2];
	char *in = calloc(1, SIZE), *first = calloc(1, 1);
	double until;

	setvbuf(stdout, NULL, _IONBF, 0);
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "500", 0);
	children[0] = spawn_peer(stopped_peer, &fds[0]);
	children[1] = spawn_peer(peer, &fds[1]);
	me = open_all(SIZE);
	for (int i = 0; i < 2; i++)
		to[i] = meet(fds[i], &me, &there[i]);
	check(waitpid(children[0], &st, WUNTRACED) == children[0], "waitpid");
	check(WIFSTOPPED(st), "it is not stopped");
	snprintf(stat, sizeof(stat), "/proc/%d/stat", (int) children[0]);
	if (access(stat, R_OK)) {
		puts("left out: without /proc a stopped process is not noticed");
		kill(children[0], SIGKILL);
		kill(children[1], SIGKILL);
		return 0;
	}
	if (writes)
		write_to(to[0], &there[0], children[0]);

	receive(in);
	send_to(to[0], first);
	until = now_s() + (writes ? 0 : STOP);
	while (now_s() < until) {
		double limit = now_s() + 20;
		int here = 0;

		send_to(to[1], buf);
		while (!here) {
			check(now_s() < limit, "messages to another peer wait with those to the stopped one");
			if (!read_completion(&end))
				continue;
			check(end.op_context != first, "the message to the stopped peer has ended");
			check(!end.err, "an operation with the other peer failed");
			here = end.op_context == in;
		}
		receive(in);
		rounds++;
	}
	printf("%d messages were answered meanwhile\n", rounds);
	check(writes || rounds >= ROUNDS_LEAST, "few messages were answered meanwhile");

	DO(kill(children[0], killed ? SIGKILL : SIGCONT));
	until = now_s() + 20;
	while (!sent || !(answered || killed)) {
		check(now_s() < until, "the message to the peer never ends");
		if (!read_completion(&end))
			continue;
		if (end.op_context == first) {
			check((end.err != 0) == killed, "how the message ended");
			sent = 1;
		} else if (end.op_context == in) {
			answered = 1;
		}
	}
	for (int i = 0; i < 2; i++) {
		kill(children[i], SIGKILL);
		check(waitpid(children[i], &st, 0) == children[i], "waitpid");
	}
	close_all();
	puts("ok");
	return 0;
}
