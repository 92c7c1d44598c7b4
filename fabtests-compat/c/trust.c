/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * trust CASE: a peer that ends, is stopped or has no room must not harm this process.
 *
 *   forked   a child of the parent closes what it inherited; the parent's peers still reach it
 *   killed   a peer dies while it accesses our memory; fi_close of the region does not wait
 *   stopped  a peer stops there; fi_close returns FI_EBUSY after the time-out, other calls go on
 *   full     the receiver has no descriptor left when the first message comes; all messages arrive
 *   refused  process_vm_writev(2) is forbidden; writes to a peer that makes no call arrive
 *   again    a write with data that was refused with FI_EAGAIN has changed nothing
 */
#include "two.h"
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define SIZE ((size_t) 1 << 20)
#define LONG_WAIT 20.0
#define MANY 20000

static enum { FORKED, KILLED, STOPPED, FULL, REFUSED, AGAIN } what;
/* The next process_vm_writev(2) of this process kills or stops it. */
static volatile int stumble;

ssize_t process_vm_writev(pid_t pid, const struct iovec *here, unsigned long n,
		const struct iovec *there, unsigned long m, unsigned long flags)
{
	if (what == REFUSED) {
		errno = EPERM;
		return -1;
	}
	if (stumble)
		kill(getpid(), what == KILLED ? SIGKILL : SIGSTOP);
	return syscall(SYS_process_vm_writev, pid, here, n, there, m, flags);
}

/* Waits for a byte from the other side. */
static void wait_byte(int fd)
{
	char c;

	check(read(fd, &c, 1) == 1, "the other side is gone");
}

static void tell(int fd)
{
	check(write(fd, "x", 1) == 1, "the other side is gone");
}

static void ends(double seconds)
{
	struct fi_cq_err_entry end;
	double until = now_s() + seconds;

	while (!read_completion(&end))
		check(now_s() < until, "an operation does not end");
	if (end.err)
		printf("%s\n", fi_cq_strerror(cq, end.prov_errno, end.err_data, NULL, 0));
	check(!end.err, "an operation ends in an error");
}

#define POST(call) \
	do { \
		long r_; \
		double until_ = now_s() + LONG_WAIT; \
		while ((r_ = (long) (call)) == -FI_EAGAIN) { \
			struct fi_cq_data_entry e_; \
			fi_cq_read(cq, &e_, 0); \
			check(now_s() < until_, #call ": no room"); \
		} \
		DO(r_); \
	} while (0)

/* Receives one message, blocked unless `waits` is FI_WAIT_NONE, and answers it. */
static void echo(fi_addr_t to)
{
	struct fi_cq_data_entry e;
	ssize_t r;

	POST(fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
	r = waits == FI_WAIT_NONE ? -FI_EAGAIN : fi_cq_sread(cq, &e, 1, NULL, 15000);
	if (r == -FI_EAGAIN)
		ends(LONG_WAIT);
	else
		DO(r);
	POST(fi_send(ep, buf, 8, NULL, to, NULL));
	ends(LONG_WAIT);
}

static void ask(fi_addr_t to)
{
	POST(fi_recv(ep, buf + 64, 8, NULL, FI_ADDR_UNSPEC, NULL));
	POST(fi_send(ep, buf, 8, NULL, to, NULL));
	ends(LONG_WAIT);
	ends(LONG_WAIT);
}

static int other_side(int fd)
{
	struct hello me, far;
	struct rlimit few;
	fi_addr_t to;

	me = open_all(SIZE);
	to = meet(fd, &me, &far);
	switch (what) {
	case FORKED:
		for (int i = 0; i < 20; i++) {
			wait_byte(fd);
			ask(to);
			tell(fd);
		}
		/* Stay until the other side has finished. */
		wait_byte(fd);
		break;
	case KILLED:
	case STOPPED:
		ask(to);
		wait_byte(fd);
		stumble = 1;
		/* Long, and the target does not poll: cross-memory attach from this process. */
		POST(fi_write(ep, buf, SIZE / 2, NULL, to, far.at, far.key, NULL));
		ends(LONG_WAIT);
		break;
	case FULL:
		few.rlim_cur = few.rlim_max = (rlim_t) dup(0);
		close((int) few.rlim_cur);
		check(!setrlimit(RLIMIT_NOFILE, &few), "setrlimit");
		tell(fd);
		for (int i = 0; i < 100; i++) {
			POST(fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
			ends(LONG_WAIT);
			check(*(int *) (void *) buf == i, "a message is missing");
		}
		tell(fd);
		break;
	case REFUSED:
	case AGAIN:
		/* Makes no call from here on; the library's own threads may run. */
		echo(to);
		tell(fd);
		wait_byte(fd);
		break;
	}
	return EXIT_SUCCESS;
}

/* Forks a child that closes everything and exits. */
static void child_closes(void)
{
	pid_t child = fork();
	int status;

	check(child >= 0, "fork");
	if (!child) {
		close_all();
		_exit(EXIT_SUCCESS);
	}
	check(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
			"the child failed");
}

/* Closes the region; `*done` gets the duration of the call in seconds. */
static int closes(void *done)
{
	double begun = now_s();
	int ret = fi_close(&mr->fid);

	*(double *) done = now_s() - begun;
	return ret;
}

/* The other side, `pid`, ends by itself. */
static void ends_well(pid_t pid)
{
	int status;

	check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status),
			"the other side failed");
}

static void forks_between_messages(int fd, fi_addr_t to)
{
	for (int i = 0; i < 20; i++) {
		child_closes();
		tell(fd);
		echo(to);
		wait_byte(fd);
	}
	tell(fd);
}

/* Closes a region whose peer is killed during an access. */
static void closes_after_the_kill(int fd, fi_addr_t to, pid_t pid)
{
	siginfo_t info_of;
	double took_s;
	int ret;

	echo(to);
	tell(fd);
	check(!waitid(P_PID, (id_t) pid, &info_of, WEXITED | WNOWAIT), "waitid");
	check(info_of.si_code == CLD_KILLED, "the other has not been killed during an access");
	ret = closes(&took_s);
	check(!ret, "fi_close fails");
	check(took_s < 1, "fi_close waits for the dead");
}

/* Closes a region whose peer is stopped during an access, and again once the peer is killed. */
static void closes_after_the_stop(int fd, fi_addr_t to, pid_t pid)
{
	pid_t watcher;
	double took_s;
	int status, ret;

	echo(to);
	tell(fd);
	check(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "it does not stop");
	/* Kills the stopped process after 30 s, in case fi_close() hangs. */
	watcher = fork();
	if (!watcher) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sleep(30);
		kill(pid, SIGKILL);
		_exit(0);
	}
	ret = closes(&took_s);
	check(ret == -FI_EBUSY, "fi_close does not say FI_EBUSY");
	check(took_s < 2, "fi_close waits longer than the time-out");
	kill(watcher, SIGKILL);
	kill(pid, SIGKILL);
	waitpid(watcher, NULL, 0);
	waitpid(pid, NULL, 0);
	ret = closes(&took_s);
	if (ret || took_s >= 1)
		printf("fi_close: %d after %.2f s\n", ret, took_s);
	check(!ret && took_s < 1, "it cannot be closed when the other is gone");
}

/* Sends numbered messages to a peer that has no descriptor left. */
static void sends_numbers(int fd, fi_addr_t to)
{
	wait_byte(fd);
	for (int i = 0; i < 100; i++) {
		*(int *) (void *) buf = i;
		POST(fi_send(ep, buf, 8, NULL, to, NULL));
		ends(LONG_WAIT);
	}
	wait_byte(fd);
}

/* Writes and reads memory of a peer that makes no calls. */
static void writes_and_reads(int fd, fi_addr_t to, const struct hello *far)
{
	ask(to);
	wait_byte(fd);
	for (size_t len = 8; len <= SIZE / 2; len *= 4) {
		memset(buf, 7, len);
		POST(fi_write(ep, buf, len, NULL, to, far->at, far->key, NULL));
		ends(LONG_WAIT);
		memset(buf, 0, len);
		POST(fi_read(ep, buf, len, NULL, to, far->at, far->key, NULL));
		ends(LONG_WAIT);
		check(buf[0] == 7 && buf[len - 1] == 7, "a write is not there");
	}
	tell(fd);
}

/* Writes one byte each, until a write is refused, which must not have been done. */
static void writes_until_refused(int fd, fi_addr_t to, const struct hello *far, pid_t pid)
{
	struct fi_cq_err_entry end;
	long r = 0;
	int i = 0;

	ask(to);
	wait_byte(fd);
	memset(buf, 0, 64);
	buf[0] = 1;
	for (; i < MANY; i++) {
		r = fi_writedata(ep, buf, 1, NULL, 5, to, far->at + 4096 + (size_t) i, far->key, NULL);
		if (r)
			break;
		read_completion(&end);
	}
	check(r == -FI_EAGAIN, "no write is refused");
	char seen = 2;
	struct iovec here = { &seen, 1 }, there = { (char *) (uintptr_t) far->at + 4096 + i, 1 };

	check(process_vm_readv(pid, &here, 1, &there, 1, 0) == 1, "process_vm_readv");
	check(seen == 0, "a write that was refused is there");
	kill(pid, SIGKILL);
}

static void one_side(int fd, pid_t pid)
{
	struct hello me = open_all(SIZE), far;
	fi_addr_t to = meet(fd, &me, &far);

	switch (what) {
	case FORKED:
		forks_between_messages(fd, to);
		ends_well(pid);
		break;
	case KILLED:
		closes_after_the_kill(fd, to, pid);
		break;
	case STOPPED:
		closes_after_the_stop(fd, to, pid);
		break;
	case FULL:
		sends_numbers(fd, to);
		ends_well(pid);
		break;
	case REFUSED:
		writes_and_reads(fd, to, &far);
		ends_well(pid);
		break;
	case AGAIN:
		writes_until_refused(fd, to, &far, pid);
		break;
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "forked", "killed", "stopped", "full", "refused", "again" };
	int fd;
	pid_t pid;

	for (what = FORKED; argc == 2 && what <= AGAIN; what++)
		if (!strcmp(argv[1], names[what]))
			break;
	if (argc != 2 || what > AGAIN)
		return EXIT_FAILURE;
	if (what == FORKED)
		waits = FI_WAIT_FD;
	if (what == STOPPED)
		setenv("FI_EFA_SOFT_TIMEOUT_MS", "500", 1);
	pid = spawn_peer(other_side, &fd);
	one_side(fd, pid);
	printf("%s: as it should be\n", argv[1]);
	return EXIT_SUCCESS;
}
