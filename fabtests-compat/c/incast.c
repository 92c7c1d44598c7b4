/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * incast PROVIDER: senders that stream to one receiver without pause. The receiver takes messages
 * at its own pace: those that wait for their receive must not use up the memory for them, and every
 * sender must get its turn.
 */
#include "two.h"
#include <stdbool.h>

enum { SENDERS = 6, LEN = 64, RECEIVES = 64, WANTED = 600000, MOST_KIB = 160 << 10 };

static struct fi_context2 contexts[RECEIVES];

static void post(char *at, fi_addr_t to, struct fi_context2 *context)
{
	struct fi_cq_err_entry end;
	ssize_t ret;

	for (;;) {
		ret = to == FI_ADDR_UNSPEC ? fi_recv(ep, at, LEN, NULL, to, context)
					   : fi_send(ep, at, LEN, NULL, to, NULL);
		if (ret != -FI_EAGAIN)
			break;
		/* Only senders find no room, and have completions of no other kind. */
		check(to != FI_ADDR_UNSPEC, "a receive finds no room");
		while (read_completion(&end))
			check(!end.err, "a send failed");
	}
	DO(ret);
}

/* Streams until it is killed; its messages carry its number, which the parent sends. */
static int stream(int fd)
{
	struct hello me = open_all(LEN), other;
	fi_addr_t to = meet(fd, &me, &other);

	if (read(fd, buf, 1) != 1)
		return EXIT_FAILURE;
	for (;;)
		post(buf, to, NULL);
}

int main(int argc, char **argv)
{
	long of[SENDERS] = { 0 }, received = 0, most = 0;
	int fds[SENDERS], status;
	pid_t pids[SENDERS];
	struct hello me;

	check(argc == 2, "incast PROVIDER");
	provider = argv[1];
	alarm(120);
	for (int i = 0; i < SENDERS; i++)
		pids[i] = spawn_peer(stream, &fds[i]);
	me = open_all(RECEIVES * LEN);
	for (int i = 0; i < RECEIVES; i++)
		post(buf + i * LEN, FI_ADDR_UNSPEC, &contexts[i]);
	for (char i = 0; i < SENDERS; i++) {
		struct hello other;

		meet(fds[(int) i], &me, &other);
		check(write(fds[(int) i], &i, 1) == 1, "a sender is gone");
	}
	for (bool all = false; received < WANTED;) {
		struct fi_cq_err_entry end;
		long at;

		if (!read_completion(&end))
			continue;
		check(!end.err && end.len == LEN, "a receive failed");
		at = (struct fi_context2 *) end.op_context - contexts;
		of[(int) buf[at * LEN]]++;
		post(buf + at * LEN, FI_ADDR_UNSPEC, &contexts[at]);
		/* Counting begins when all of them send. */
		for (int i = 0; !all && i <= SENDERS; i++) {
			all = i == SENDERS;
			if (!all && !of[i])
				break;
		}
		received += all;
		if (received % 4096 == 0 && resident_kib() > most)
			most = resident_kib();
	}
	for (int i = 0; i < SENDERS; i++) {
		printf("sender %d: %ld messages\n", i, of[i]);
		check(!kill(pids[i], SIGKILL) && waitpid(pids[i], &status, 0) == pids[i], "no such sender");
		check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a sender ended by itself");
	}
	for (int i = 0; i < SENDERS; i++)
		check(of[i] > WANTED / SENDERS / 20, "a sender had no turn");
	printf("at most %ld MiB of memory\n", most >> 10);
	check(most < MOST_KIB, "messages without a receive took too much memory");
	return 0;
}
