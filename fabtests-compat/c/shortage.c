/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * shortage WHAT [FIRST LAST]: a process that gets no more descriptors (`fds`: limits of 3 to 64),
 * address space (`space`: from its present size, in 40 steps) or memory (`memory`: every 100th
 * malloc fails, with 100 offsets), or whose files may have 1 to 4 MiB (`files`). `crowded`: a limit
 * of 4 descriptors, on one processor that other processes use, too. `standard`: the process has
 * closed its standard descriptors, and still writes lines to standard error.
 *
 * For each value pairs of processes are started, of which one has the limit: from its start, or
 * from the exchange of addresses on. They exchange messages of all lengths, writes and reads, and
 * check every byte. Good: everything arrives, or a call or an operation of either side ends in an
 * error. Bad: a signal, a hang, a wrong byte, or a message that was reported as sent and never
 * arrives.
 */
#include "two.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>

#define SIZE ((size_t) 1 << 20)
#define ROUNDS 24
#define TIMEOUT_S 10.0

enum { GOOD = EXIT_SUCCESS, BAD = EXIT_FAILURE, REFUSED = 3 };
enum shortage { FDS, SPACE, MEMORY, CROWDED, FILES, STANDARD };
/* Processes that use the processor of `crowded`. */
#define OTHERS 12

static enum shortage what;
static long value;
/* Every 100th malloc fails from now on. */
static volatile bool starving;
static volatile unsigned long calls, failed;

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t m);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t a, size_t n);

static bool fails(void)
{
	if (!starving || __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 100)
		return false;
	errno = ENOMEM;
	failed++;
	return true;
}

void *malloc(size_t n)
{
	return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t m)
{
	return fails() ? NULL : __libc_calloc(n, m);
}

void *realloc(void *p, size_t n)
{
	return fails() ? NULL : __libc_realloc(p, n);
}

int posix_memalign(void **p, size_t a, size_t n)
{
	if (fails())
		return ENOMEM;
	*p = __libc_memalign(a, n);
	return *p ? 0 : ENOMEM;
}

static void apply_limit(void)
{
	struct rlimit r;

	switch (what) {
	case FDS:
	case CROWDED:
		r.rlim_cur = r.rlim_max = (rlim_t) value;
		setrlimit(RLIMIT_NOFILE, &r);
		break;
	case SPACE:
		limit_space(value);
		break;
	case FILES:
		r.rlim_cur = r.rlim_max = (rlim_t) value << 20;
		setrlimit(RLIMIT_FSIZE, &r);
		break;
	case STANDARD:
		for (int i = 0; i < 3; i++)
			close(i);
		break;
	case MEMORY:
		calls = (unsigned long) value;
		starving = true;
		break;
	}
}

#define TRY(call) \
	do { \
		if ((call) < 0) \
			exit(REFUSED); \
	} while (0)

/* As open_all(), but a failure ends the process with REFUSED. */
static struct hello try_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct hello me;
	size_t len = sizeof(me.addr);

	if (!hints)
		exit(REFUSED);
	hints->caps = FI_MSG | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("efa");
	hints->fabric_attr->name = strdup("efa");
	TRY(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	TRY(fi_fabric(info->fabric_attr, &fabric, NULL));
	TRY(fi_domain(fabric, info, &domain, NULL));
	TRY(fi_av_open(domain, &aa, &av, NULL));
	TRY(fi_cq_open(domain, &ca, &cq, NULL));
	TRY(fi_endpoint(domain, info, &ep, NULL));
	TRY(fi_ep_bind(ep, &av->fid, 0));
	TRY(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	TRY(fi_enable(ep));
	TRY(fi_mr_reg(domain, buf, 4 * SIZE, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	TRY(fi_getname(&ep->fid, me.addr, &len));
	me.at = (uintptr_t) buf;
	me.key = fi_mr_key(mr);
	return me;
}

static void bad(const char *text, long n)
{
	printf("%ld: %s (%ld)\n", value, text, n);
	fflush(stdout);
	_exit(BAD);
}

/* Whether the other process has ended, so that nothing more can arrive. */
static bool alone(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;

	return poll(&p, 1, 0) > 0 && recv(fd, &c, 1, MSG_PEEK) <= 0;
}

static void end_one(int fd, const char *text, long n)
{
	struct fi_cq_err_entry end = { 0 };
	struct fi_cq_data_entry e;
	double until = now_s() + TIMEOUT_S;
	ssize_t r;

	while ((r = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN) {
		if (now_s() < until)
			continue;
		if (alone(fd))
			exit(REFUSED);
		bad(text, n);
	}
	if (r == -FI_EAVAIL)
		fi_cq_readerr(cq, &end, 0);
	if (r < 0) {
		starving = false;
		if (getenv("TRACE"))
			printf("%ld: told: not (%s, %ld): %ld %d\n", value, text, n, (long) r, end.err);
		exit(REFUSED);
	}
}

#define POST(call) \
	do { \
		long r_; \
		double until_ = now_s() + TIMEOUT_S; \
		while ((r_ = (long) (call)) == -FI_EAGAIN) { \
			struct fi_cq_data_entry e_; \
			fi_cq_read(cq, &e_, 0); \
			if (now_s() > until_) \
				exit(REFUSED); \
		} \
		if (r_ < 0) \
			exit(REFUSED); \
	} while (0)

static size_t size_of(int round)
{
	static const size_t sizes[] = { 8, 3000, 20000, 300000, 1, SIZE };

	return sizes[round % 6];
}

static void fill(char *at, int round)
{
	memset(at, round + 1, size_of(round));
}

static void verify(const char *at, int round, const char *text)
{
	size_t len = size_of(round);

	for (size_t i = 0; i < len; i++)
		if (at[i] != (char) (round + 1))
			bad(text, round);
}

/* Both sides do the same, but `leads` sends first. */
static int talk(int fd, bool leads, bool early, bool late)
{
	static const char line[64] = "a line of the program's own, wherever it goes\n";
	struct hello me, far;
	fi_addr_t to;

	buf = calloc(4, SIZE);
	if (!buf)
		return BAD;
	if (early)
		apply_limit();
	me = try_all();
	if (write(fd, &me, sizeof(me)) != sizeof(me) || read(fd, &far, sizeof(far)) != sizeof(far))
		return REFUSED;
	TRY(fi_av_insert(av, far.addr, 1, &to, 0, NULL));
	if (late)
		apply_limit();
	for (int i = 0; i < ROUNDS; i++) {
		size_t len = size_of(i);

		if (what == STANDARD && (early || late))
			(void) !write(STDERR_FILENO, line, sizeof(line));
		if (leads) {
			fill(buf, i);
			POST(fi_send(ep, buf, len, NULL, to, NULL));
			end_one(fd, "a send does not end", i);
		}
		memset(buf + SIZE, 0, len);
		POST(fi_recv(ep, buf + SIZE, len, NULL, FI_ADDR_UNSPEC, NULL));
		end_one(fd, "a message was lost", i);
		verify(buf + SIZE, i, "a message has wrong bytes");
		if (!leads) {
			fill(buf, i);
			POST(fi_send(ep, buf, len, NULL, to, NULL));
			end_one(fd, "a send does not end", i);
		}
		/* Into the quarter that the other side writes to, and back. */
		fill(buf, i);
		POST(fi_write(ep, buf, len, NULL, to, far.at + 2 * SIZE, far.key, NULL));
		end_one(fd, "a write does not end", i);
		memset(buf + 3 * SIZE, 0, len);
		POST(fi_read(ep, buf + 3 * SIZE, len, NULL, to, far.at + 2 * SIZE, far.key, NULL));
		end_one(fd, "a read does not end", i);
		verify(buf + 3 * SIZE, i, "a write is not there");
	}
	starving = false;
	if (early && what == MEMORY && !failed)
		bad("no call of malloc failed", (long) calls);
	/* The other side may still need progress here. */
	if (write(fd, "x", 1) == 1) {
		double until = now_s() + 2 * TIMEOUT_S;
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct fi_cq_data_entry e;

		while (poll(&p, 1, 0) == 0 && now_s() < until)
			fi_cq_read(cq, &e, 0);
	}
	return GOOD;
}

static int status_of(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, 0) != pid)
		return BAD;
	if (WIFSIGNALED(status)) {
		printf("%ld: ended by signal %d\n", value, WTERMSIG(status));
		return BAD;
	}
	return WEXITSTATUS(status);
}

static pid_t start(int fd, int other, bool leads, bool early, bool late)
{
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* A hang ends by SIGALRM, which counts as bad. */
	alarm(60);
	close(other);
	/* No clean-up: other tests cover it, and the limits would still apply to it. */
	_exit(talk(fd, leads, early, late));
}

/* Binds this process to one processor, and starts others there. */
static void crowd(pid_t *others)
{
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	for (int i = 0; i < OTHERS; i++) {
		others[i] = fork();
		if (others[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			;
	}
}

int main(int argc, char **argv)
{
	static const char *const names[] = { "fds", "space", "memory", "crowded", "files",
					     "standard" };
	static const long first[] = { 3, 0, 0, 4, 1, 0 }, last[] = { 64, 39, 99, 4, 4, 1 };
	pid_t others[OTHERS];
	int count[4] = { 0 };
	long from, to;

	for (what = FDS; argc >= 2 && what <= STANDARD; what++)
		if (!strcmp(argv[1], names[what]))
			break;
	if (argc < 2 || what > STANDARD)
		return EXIT_FAILURE;
	from = argc > 2 ? atol(argv[2]) : first[what];
	to = argc > 3 ? atol(argv[3]) : last[what];
	setenv("FI_LOG_LEVEL", "none", 0);
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "1000", 1);
	signal(SIGPIPE, SIG_IGN);
	if (what == CROWDED)
		crowd(others);
	for (value = from; value <= to; value++)
		for (int kind = 0; kind < 4; kind++) {
			bool leads = kind & 1, early = kind & 2;
			int pair[2], r[2];
			pid_t limited, free_one;

			if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
				return EXIT_FAILURE;
			limited = start(pair[0], pair[1], leads, early, !early);
			free_one = start(pair[1], pair[0], !leads, false, false);
			close(pair[0]);
			close(pair[1]);
			r[0] = status_of(limited);
			r[1] = status_of(free_one);
			if ((r[0] != GOOD && r[0] != REFUSED) || (r[1] != GOOD && r[1] != REFUSED)) {
				printf("%s %ld, kind %d: limited %d, free %d\n", names[what], value, kind, r[0], r[1]);
				count[BAD]++;
			} else {
				count[r[0] == GOOD && r[1] == GOOD ? GOOD : REFUSED]++;
			}
		}
	for (int i = 0; what == CROWDED && i < OTHERS; i++) {
		kill(others[i], SIGKILL);
		waitpid(others[i], NULL, 0);
	}
	printf("%s: %d did everything, %d were told of an error, %d bad\n", names[what], count[GOOD],
			count[REFUSED], count[BAD]);
	/* Nothing is short for `standard`. */
	if (what == STANDARD && count[REFUSED])
		return EXIT_FAILURE;
	return count[BAD] || !count[GOOD] ? EXIT_FAILURE : EXIT_SUCCESS;
}
