/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * flooded PROVIDER: a process with little address space gets far more messages than it can keep,
 * and posts receives only when no more come. Malloc fails meanwhile, for the library as for any
 * other caller. Every message arrives, once, in its order.
 */
#include "two.h"

enum { LEN = 4000, MESSAGES = 60000, ROOM_MIB = 48, AT_ONCE = 64, FREE = -1 };
/* The sender stops after this time without room, seconds, and says so; then the receives begin. */
static const double QUIET = 0.5;

/* The number of a message, or FREE, and its buffer, which begins with that number. */
struct message {
	int expected, number;
	char rest[LEN - sizeof(int)];
};

static double deadline;

/* Completions that were read, without errors, in any order. */
static int completions(void)
{
	struct fi_cq_err_entry end;
	int n = 0;

	while (n < AT_ONCE && read_completion(&end)) {
		struct message *m = end.op_context;

		check(!end.err, "an operation failed");
		check(m->number == m->expected, "a message is lost, or comes late");
		m->expected = FREE;
		n++;
	}
	check(now_s() < deadline, "not all arrives");
	return n;
}

/* The buffer for this message, NULL while an earlier one uses it. */
static struct message *slot(int number)
{
	struct message *m = (struct message *) buf + number % AT_ONCE;

	if (m->expected != FREE)
		return NULL;
	m->expected = number;
	return m;
}

static struct hello open_slots(void)
{
	struct hello me = open_all(AT_ONCE * sizeof(struct message));

	for (int i = 0; i < AT_ONCE; i++)
		((struct message *) buf)[i].expected = FREE;
	return me;
}

/* Posts message `number`, or a receive for it; 0 where there is no room. */
static int post(int number, fi_addr_t to)
{
	struct message *m = slot(number);
	ssize_t ret;

	if (!m)
		return 0;
	if (to == FI_ADDR_UNSPEC) {
		ret = fi_recv(ep, &m->number, LEN, NULL, to, m);
	} else {
		m->number = number;
		ret = fi_send(ep, &m->number, LEN, NULL, to, m);
	}
	if (ret)
		m->expected = FREE;
	check(ret == 0 || ret == -FI_EAGAIN, "a call fails");
	return ret == 0;
}

/* Streams messages that begin with their numbers. */
static int stream(int fd)
{
	struct hello me = open_slots(), other;
	fi_addr_t to = meet(fd, &me, &other);
	double since = now_s();
	int sent = 0, done = 0, full = 0;
	char go;

	deadline = now_s() + 60;
	check(read(fd, &go, 1) == 1, "the receiver ends");
	while (done < MESSAGES) {
		if (sent < MESSAGES && post(sent, to)) {
			sent++;
			since = now_s();
			continue;
		}
		done += completions();
		if (!full && (sent == MESSAGES || now_s() - since > QUIET))
			full = write(fd, "f", 1);
	}
	if (!full)
		full = write(fd, "f", 1);
	check(read(fd, &go, 1) == 1, "the receiver ends");
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct hello me, other;
	struct timeval soon = { .tv_usec = 1000 };
	int fd, status, n = 0, posted = 0;
	pid_t sender;
	char full;

	check(argc == 2, "flooded PROVIDER");
	provider = argv[1];
	setenv("FI_LOG_LEVEL", "none", 0);
	alarm(120);
	deadline = now_s() + 60;
	sender = spawn_peer(stream, &fd);
	me = open_slots();
	meet(fd, &me, &other);
	limit_space(ROOM_MIB);
	/* With a posted receive any further message may be the one that the application waits for. */
	posted += post(posted, FI_ADDR_UNSPEC);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
	check(write(fd, "g", 1) == 1, "the sender ends");
	while (read(fd, &full, 1) != 1)
		n += completions();
	while (n < MESSAGES) {
		n += completions();
		while (posted < MESSAGES && post(posted, FI_ADDR_UNSPEC))
			posted++;
	}
	check(write(fd, "e", 1) == 1, "the sender ends");
	check(waitpid(sender, &status, 0) == sender && status == 0, "the sender fails");
	printf("%d messages\n", n);
	return EXIT_SUCCESS;
}
