/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * starved PROVIDER long|behind: a process with hardly any address space gets tagged messages before
 * it posts their receives.
 *
 * long: two peers send messages that are longer than the room left, and of which two use up the
 * library's reserve. They arrive once they have receives.
 *
 * behind: one peer uses up the memory for messages; then a second one sends two messages, of which
 * the first has no receive. When the messages of the first peer have been received, the second
 * message of the other arrives, although the first one is before it.
 */
#include <rdma/fi_tagged.h>
#include "two.h"

enum { LONG = 14 << 20, LONG_MESSAGES = 3, LEN = 4000, MESSAGES = 10000, AT_ONCE = 64 };
enum { TAG_FLOOD = 1, TAG_FIRST, TAG_SECOND, TAG_HELLO };
/* Room for messages, beside the library's reserve, MiB. */
enum { ROOM_LONG = 4, ROOM_BEHIND = 1 };
/* A sender whose messages are not taken in for this time says so, seconds. */
static const double QUIET = 0.5;

static double deadline;

/* Takes the next completion, if there is one; `absent` is set where no message was found. */
static int next(int *absent)
{
	struct fi_cq_err_entry end;

	check(now_s() < deadline, "not all arrives");
	if (!read_completion(&end))
		return 0;
	check(!end.err || (absent && end.err == FI_ENOMSG), "an operation failed");
	if (absent)
		*absent = end.err == FI_ENOMSG;
	return 1;
}

static void await(int n)
{
	while (n > 0)
		n -= next(NULL);
}

static void send_one(fi_addr_t to, size_t len, uint64_t tag)
{
	ssize_t ret;

	while ((ret = fi_tsend(ep, buf, len, NULL, to, tag, NULL)) == -FI_EAGAIN)
		check(now_s() < deadline && fi_cq_read(cq, NULL, 0) != 1, "no send is taken");
	DO(ret);
}

static void receive(size_t len, uint64_t tag)
{
	ssize_t ret;

	while ((ret = fi_trecv(ep, buf, len, NULL, FI_ADDR_UNSPEC, tag, 0, NULL)) == -FI_EAGAIN)
		check(now_s() < deadline && fi_cq_read(cq, NULL, 0) != 1, "no receive is taken");
	DO(ret);
	await(1);
}

/* Whether a message with this tag is here. */
static int is_here(uint64_t tag)
{
	struct fi_msg_tagged m = { .addr = FI_ADDR_UNSPEC, .tag = tag };
	ssize_t ret;
	int absent = 0;

	while ((ret = fi_trecvmsg(ep, &m, FI_PEEK)) == -FI_EAGAIN)
		check(now_s() < deadline && fi_cq_read(cq, NULL, 0) != 1, "no peek is taken");
	DO(ret);
	while (!next(&absent))
		;
	return !absent;
}

static void tell(int fd)
{
	check(write(fd, "x", 1) == 1, "the other side ends");
}

static void hear(int fd)
{
	char c;

	check(read(fd, &c, 1) == 1, "the other side ends");
}

/* As hear(), with progress meanwhile. */
static void hear_and_poll(int fd)
{
	char c;

	while (recv(fd, &c, 1, MSG_DONTWAIT) != 1)
		check(now_s() < deadline && fi_cq_read(cq, NULL, 0) != 1, "the other side says nothing");
}

/* Opens everything and exchanges addresses; the connection is open when this returns. */
static fi_addr_t meet_as_sender(int fd, size_t size)
{
	struct hello me, other;
	fi_addr_t to;

	deadline = now_s() + 60;
	me = open_all(size);
	to = meet(fd, &me, &other);
	send_one(to, 1, TAG_HELLO);
	await(1);
	hear(fd);
	return to;
}

static int send_long(int fd, uint64_t tag)
{
	fi_addr_t to = meet_as_sender(fd, LONG);

	for (int i = 0; i < LONG_MESSAGES; i++)
		send_one(to, LONG, tag);
	await(LONG_MESSAGES);
	hear(fd);
	return EXIT_SUCCESS;
}

static int send_first(int fd)
{
	return send_long(fd, TAG_FIRST);
}

static int send_second(int fd)
{
	return send_long(fd, TAG_SECOND);
}

static int flood(int fd)
{
	fi_addr_t to = meet_as_sender(fd, LEN);
	double since = now_s();
	int sent = 0, done = 0, told = 0;

	while (done < MESSAGES) {
		int taken = next(NULL);

		if (taken)
			since = now_s();
		done += taken;
		if (sent < MESSAGES && sent - done < AT_ONCE)
			sent += fi_tsend(ep, buf, LEN, NULL, to, TAG_FLOOD, NULL) == 0;
		if (!told && now_s() - since > QUIET) {
			tell(fd);
			told = 1;
		}
	}
	check(told, "the receiver takes in everything");
	hear(fd);
	return EXIT_SUCCESS;
}

static int send_two(int fd)
{
	fi_addr_t to = meet_as_sender(fd, LEN);

	send_one(to, LEN, TAG_FIRST);
	send_one(to, LEN, TAG_SECOND);
	await(2);
	hear(fd);
	return EXIT_SUCCESS;
}

static void end(pid_t pid, int fd)
{
	int status;

	tell(fd);
	check(waitpid(pid, &status, 0) == pid && status == 0, "a sender fails");
}

static void long_ones(void)
{
	struct hello me, other;
	int fd[2];
	pid_t sender[2] = { spawn_peer(send_first, &fd[0]), spawn_peer(send_second, &fd[1]) };

	me = open_all(LONG);
	for (int i = 0; i < 2; i++) {
		meet(fd[i], &me, &other);
		receive(LEN, TAG_HELLO);
	}
	limit_space(ROOM_LONG);
	tell(fd[0]);
	tell(fd[1]);
	while (!is_here(TAG_FIRST) || !is_here(TAG_SECOND))
		;
	for (int i = 0; i < LONG_MESSAGES; i++) {
		receive(LONG, TAG_FIRST);
		receive(LONG, TAG_SECOND);
	}
	end(sender[0], fd[0]);
	end(sender[1], fd[1]);
}

static void behind(void)
{
	struct hello me, other;
	int fd[2];
	pid_t sender[2] = { spawn_peer(flood, &fd[0]), spawn_peer(send_two, &fd[1]) };

	me = open_all(LEN);
	meet(fd[0], &me, &other);
	meet(fd[1], &me, &other);
	receive(LEN, TAG_HELLO);
	receive(LEN, TAG_HELLO);
	limit_space(ROOM_BEHIND);
	tell(fd[0]);
	hear_and_poll(fd[0]);
	tell(fd[1]);
	if (strcmp(provider, "tcp") == 0) {
		while (!is_here(TAG_FIRST))
			;
		check(!is_here(TAG_SECOND), "there is memory for the second message");
	}
	for (int i = 0; i < MESSAGES; i++)
		receive(LEN, TAG_FLOOD);
	receive(LEN, TAG_SECOND);
	receive(LEN, TAG_FIRST);
	end(sender[0], fd[0]);
	end(sender[1], fd[1]);
}

int main(int argc, char **argv)
{
	check(argc == 3, "starved PROVIDER long|behind");
	provider = argv[1];
	caps = FI_MSG | FI_TAGGED | FI_RMA;
	setenv("FI_LOG_LEVEL", "none", 0);
	/* More than there is. */
	setenv("FI_TCP_SAVED_TOTAL", "268435456", 1);
	alarm(120);
	deadline = now_s() + 60;
	if (strcmp(argv[2], "long") == 0)
		long_ones();
	else
		behind();
	printf("%s: all messages\n", argv[2]);
	return EXIT_SUCCESS;
}
