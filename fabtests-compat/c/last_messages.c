/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A peer injects messages that are to be confirmed (FI_DELIVERY_COMPLETE), closes its endpoint and
 * ends, as a rank does after its last reduction, before we have read the first of them: all of them
 * must arrive, although no process is left to receive their confirmations.
 *
 * The peer is forked, from the second round on by a process that has used the library: it must have
 * threads of its own, and touch nothing that a thread of its parent may have locked at the fork.
 *
 * last_messages PROVIDER
 */
#include "two.h"

#define MESSAGES 16
#define ROUNDS 20
#define SIZE 64

/* Opens everything, and exchanges a message with the other side: the connection is open then. */
static fi_addr_t open_connection(int fd)
{
	struct hello me = open_all((MESSAGES + 1) * SIZE), other;
	struct fi_cq_err_entry e;
	fi_addr_t to = meet(fd, &me, &other);

	struct iovec iov = { buf, SIZE };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC };

	/* Flags that have no meaning for a receive do no harm. */
	DO(fi_recvmsg(ep, &m, FI_COMPLETION | FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE));
	DO(fi_send(ep, buf, SIZE, NULL, to, NULL));
	for (int done = 0; done < 2;) {
		done += read_completion(&e);
		check(e.err == 0, "the first message failed");
	}
	return to;
}

static int sender(int fd)
{
	fi_addr_t to = open_connection(fd);
	char c;

	check(strcmp(provider, "efa") || threads() > 1, "a forked process has no threads of the library");
	check(read(fd, &c, 1) == 1, "the other side is gone");
	for (int i = 0; i < MESSAGES; i++) {
		struct iovec iov = { buf, SIZE };
		struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = to };

		memset(buf, i, SIZE);
		/* MPICH's pipelined messages ask for FI_MATCH_COMPLETE. */
		DO(fi_sendmsg(ep, &m, FI_INJECT | (i % 2 ? FI_MATCH_COMPLETE : FI_DELIVERY_COMPLETE)));
	}
	close_all();
	return EXIT_SUCCESS;
}

static void round_of_messages(void)
{
	struct fi_cq_err_entry e;
	int fd, status, got = 0;
	double began;
	pid_t child = spawn_peer(sender, &fd);

	open_connection(fd);
	for (int i = 1; i <= MESSAGES; i++)
		DO(fi_recv(ep, buf + i * SIZE, SIZE, NULL, FI_ADDR_UNSPEC, NULL));
	check(write(fd, "", 1) == 1, "the other side is gone");
	check(waitpid(child, &status, 0) == child && status == 0, "the other side failed");
	began = now_s();
	while (got < MESSAGES && now_s() - began < 10) {
		if (read_completion(&e)) {
			check(e.err == 0, "a message failed");
			got++;
		}
	}
	if (got < MESSAGES)
		printf("%d of %d messages arrived\n", got, MESSAGES);
	check(got == MESSAGES, "the last messages of a peer are lost");
	for (int i = 0; i < MESSAGES; i++)
		check(buf[(i + 1) * SIZE] == i && buf[(i + 2) * SIZE - 1] == i, "wrong bytes");
	close_all();
	close(fd);
}

int main(int argc, char **argv)
{
	provider = argc > 1 ? argv[1] : "efa";
	for (int i = 0; i < ROUNDS; i++)
		round_of_messages();
	printf("%d times %d messages of a peer that was gone\n", ROUNDS, MESSAGES);
	return EXIT_SUCCESS;
}
