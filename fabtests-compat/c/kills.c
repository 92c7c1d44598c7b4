/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * kills COUNT [SEED]: peers die or stop at random moments, and a survivor goes on.
 *
 * Three processes: the survivor; one peer after another, each of which sends, writes and reads as
 * much as possible, as the survivor does; and this controller, which does not use the library,
 * exchanges the addresses, and kills (SIGKILL) or stops (SIGSTOP) the peer at a random moment. A
 * stopped peer is killed a while later: on one host operations wait for a stopped peer, as for a
 * process under a debugger. Then every operation of the survivor must end within the time-out, no
 * call may block, fi_av_remove must accept the peer's address, and the next peer starts. In the end
 * the survivor must have no more descriptors or memory than after the first peers.
 */
#include "dice.h"
#include "two.h"
#include <errno.h>
#include <poll.h>
#include <stdbool.h>

#define SIZE ((size_t) 1 << 20)
#define DEPTH 16
#define RECVS 16
/* Number of peers after which descriptors and memory are taken as the baseline. */
#define SETTLED 10
/* Seconds. The time-out is half a second; the rest allows for busy processors. */
#define ENDS_IN 10.0
#define BLOCKED 1.0
#define SLOW 0.05

struct command {
	enum { MEET, GONE, FINISH } what;
	struct hello who;
};

static double longest;
static unsigned slow;
static const char *longest_call = "none";

/* Makes a call and measures its time. */
#define TIMED(r, call) \
	do { \
		double begun_ = now_s(); \
		(r) = (call); \
		begun_ = now_s() - begun_; \
		slow += begun_ > SLOW; \
		if (begun_ > longest) { \
			longest = begun_; \
			longest_call = #call; \
		} \
	} while (0)

/* An operation under way; `what` names it in messages, NULL: the slot is free. */
struct op {
	const char *what;
	size_t len;
};

struct traffic {
	fi_addr_t to;
	struct hello far;
	struct op ops[DEPTH];
	int sends, recvs;
	unsigned long done, failed;
	/* Value of every byte that this process sends. */
	char mark;
};

static size_t some_size(void)
{
	static const size_t sizes[] = { 8, 200, 4000, 9000, 40000, 70000, 300000, SIZE / 2 };

	return sizes[dice(8)];
}

/* Takes completions; the context is an entry of `ops`, or the buffer of a receive. */
static void take(struct traffic *t)
{
	struct fi_cq_err_entry end;
	int some;

	do {
		TIMED(some, read_completion(&end));
		if (!some)
			return;
		t->done++;
		t->failed += end.err != 0;
		if ((char *) end.op_context < (char *) t->ops
				|| (char *) end.op_context >= (char *) (t->ops + DEPTH)) {
			const char *at = end.op_context;

			t->recvs--;
			for (size_t i = 0; !end.err && i < end.len; i++)
				check(at[i] == at[0], "a message has bytes of another");
		} else {
			((struct op *) end.op_context)->what = NULL;
			t->sends--;
		}
	} while (1);
}

/* Posts as much as fits; an operation refused with FI_EAGAIN is posted later. */
static void post(struct traffic *t)
{
	static int slot;
	size_t len = some_size();
	char *from = buf + SIZE, *into = buf + 2 * SIZE;
	struct iovec iov = { from, len };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = t->to };
	struct op *o = t->ops;
	ssize_t r = 0;

	while (t->recvs < RECVS) {
		char *at = buf + 4 * SIZE + (size_t) (slot++ % RECVS) * SIZE;

		TIMED(r, fi_recv(ep, at, SIZE, NULL, FI_ADDR_UNSPEC, at));
		if (r)
			break;
		t->recvs++;
	}
	check(!r || r == -FI_EAGAIN, "fi_recv fails");
	if (t->sends >= DEPTH)
		return;
	while (o->what)
		o++;
	o->len = len;
	switch (dice(4)) {
	case 0:
		o->what = "write";
		TIMED(r, fi_write(ep, from, len, NULL, t->to, t->far.at, t->far.key, o));
		break;
	case 1:
		o->what = "read";
		TIMED(r, fi_read(ep, into, len, NULL, t->to, t->far.at, t->far.key, o));
		break;
	case 2:
		o->what = "send with delivery";
		m.context = o;
		TIMED(r, fi_sendmsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		break;
	default:
		o->what = "send";
		TIMED(r, fi_send(ep, from, len, NULL, t->to, o));
	}
	check(!r || r == -FI_EAGAIN, "posting fails");
	if (r)
		o->what = NULL;
	t->sends += !r;
}

static int peer(int fd)
{
	struct hello me = open_all(24 * SIZE);
	struct traffic t = { .mark = 'p' };

	t.to = meet(fd, &me, &t.far);
	memset(buf + SIZE, t.mark, SIZE);
	/* Until this process is killed, or the controller ends. */
	while (getppid() != 1) {
		post(&t);
		take(&t);
	}
	return EXIT_SUCCESS;
}

static int survivor(int fd)
{
	struct hello me = open_all(24 * SIZE);
	struct traffic t = { .mark = 's' };
	struct command c;
	struct pollfd p = { .fd = fd, .events = POLLIN };
	int peers = 0, fds = 0, busy = 0;
	long kib = 0;
	bool here = false;

	memset(buf, t.mark, 2 * SIZE);
	for (;;) {
		double until;
		int r;

		if (here)
			post(&t);
		take(&t);
		if (poll(&p, 1, 0) <= 0)
			continue;
		if (read(fd, &c, sizeof(c)) != sizeof(c) || c.what == FINISH)
			break;
		if (c.what == MEET) {
			t.far = c.who;
			DO(fi_av_insert(av, c.who.addr, 1, &t.to, 0, NULL));
			check(write(fd, &me, sizeof(me)) == sizeof(me), "write");
			here = true;
			continue;
		}
		here = false;
		until = now_s() + ENDS_IN;
		while (t.sends) {
			take(&t);
			if (now_s() < until)
				continue;
			printf("after peer %d:\n", peers + 1);
			for (struct op *o = t.ops; o < t.ops + DEPTH; o++)
				if (o->what)
					printf("%s of %zu bytes does not end\n", o->what, o->len);
			check(0, "operations do not end");
		}
		TIMED(r, fi_av_remove(av, &t.to, 1, 0));
		DO(r);
		/* Sometimes replaces the region; FI_EBUSY while a stopped peer accesses it. */
		if (dice(4) == 0) {
			double begun = now_s();

			r = fi_close(&mr->fid);
			check(!r || r == -FI_EBUSY, "fi_close of a region fails");
			check(now_s() - begun < 0.5 + BLOCKED, "fi_close of a region blocks");
			busy += r != 0;
			if (!r) {
				DO(fi_mr_reg(domain, buf, 24 * SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
				me.key = fi_mr_key(mr);
			}
		}
		if (++peers == SETTLED) {
			fds = descriptors();
			kib = resident_kib();
		}
		check(write(fd, "x", 1) == 1, "write");
	}
	printf("survivor: %d peers, %lu operations ended, %lu of them in an error; longest call %.1f ms, "
	       "%u beyond %.0f ms (%s); regions busy %d\n",
	       peers, t.done, t.failed, longest * 1e3, slow, SLOW * 1e3, longest_call, busy);
	check(longest < BLOCKED, "a call blocks");
	if (peers > SETTLED) {
		double until = now_s() + ENDS_IN;

		/* Wait until the descriptors of the last peers are closed. */
		while (descriptors() > fds + 2 && now_s() < until)
			take(&t);
		printf("survivor: %d descriptors, %d in the end; %ld KiB, %ld in the end\n", fds,
				descriptors(), kib, resident_kib());
		check(descriptors() <= fds + 2, "descriptors are left");
		check(resident_kib() < kib + (32 << 10), "memory grows");
	}
	fflush(stdout);
	close_all();
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 20, to_survivor, status;
	pid_t alive;

	if (argc > 2)
		seed = strtoull(argv[2], NULL, 0) | 1;
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "500", 1);
	/* Writes to a dead survivor fail with EPIPE; the survivor prints its own errors. */
	signal(SIGPIPE, SIG_IGN);
	alive = spawn_peer(survivor, &to_survivor);
	for (int i = 0; i < count; i++) {
		struct command c = { .what = MEET };
		struct hello far;
		struct timespec moment = { .tv_nsec = (long) dice(20000000) };
		int fd, how = dice(3) ? SIGKILL : SIGSTOP;
		pid_t pid = spawn_peer(peer, &fd);
		char ok;

		/* Another sequence of operations with every peer. */
		dice(2);
		check(read(fd, &c.who, sizeof(c.who)) == sizeof(c.who), "a peer does not open");
		check(write(to_survivor, &c, sizeof(c)) == sizeof(c), "the survivor is gone");
		check(read(to_survivor, &far, sizeof(far)) == sizeof(far), "the survivor is gone");
		check(write(fd, &far, sizeof(far)) == sizeof(far), "a peer is gone");
		nanosleep(&moment, NULL);
		check(waitpid(pid, &status, WNOHANG) == 0, "a peer ends by itself");
		kill(pid, how);
		c.what = GONE;
		check(write(to_survivor, &c, sizeof(c)) == sizeof(c), "the survivor is gone");
		if (how == SIGSTOP) {
			moment.tv_nsec = 100000000 + (long) dice(700000000);
			nanosleep(&moment, NULL);
			kill(pid, SIGKILL);
		}
		check(read(to_survivor, &ok, 1) == 1, "the survivor is gone");
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		close(fd);
	}
	{
		struct command c = { .what = FINISH };

		check(write(to_survivor, &c, sizeof(c)) == sizeof(c), "the survivor is gone");
	}
	check(waitpid(alive, &status, 0) == alive && WIFEXITED(status) && !WEXITSTATUS(status),
			"the survivor failed");
	return EXIT_SUCCESS;
}
