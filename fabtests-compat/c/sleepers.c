/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One thread blocks in fi_cq_sread(3), another posts reads, writes and messages and makes no other
 * call: the blocked thread must return each completion. Operations that end without a signal, such
 * as those that the target executes in a ring, or copies by the system, must be polled by the
 * blocked thread. At first the target polls, then it makes no call. At last it sends long messages,
 * for which receives are posted while a thread blocks.
 */
#include "two.h"
#include <pthread.h>
#include <sys/syscall.h>

#define MOST 65536
#define LONG (1 << 20)
#define MESSAGES 20
#define LIMIT_S 30

static const size_t lengths[] = { 8, 4096, 16384, MOST };

static int target(int fd)
{
	struct hello me = open_all(LONG), other;
	struct fi_cq_data_entry e;
	char c = 0;
	fi_addr_t to = meet(fd, &me, &other);

	/* Poll until the first byte, then block until the second. */
	while (recv(fd, &c, 1, MSG_DONTWAIT) != 1)
		fi_cq_read(cq, &e, 1);
	if (read(fd, &c, 1) != 1)
		return EXIT_FAILURE;
	for (int i = 0; i < MESSAGES; i++) {
		DO(fi_send(ep, buf, LONG, NULL, to, NULL));
		if (write(fd, "", 1) != 1)
			return EXIT_FAILURE;
		while (fi_cq_read(cq, &e, 1) == -FI_EAGAIN)
			;
	}
	return EXIT_SUCCESS;
}

static pid_t sleeps;

static void *sleeper(void *result)
{
	struct fi_cq_data_entry e;

	__atomic_store_n(&sleeps, (pid_t) syscall(SYS_gettid), __ATOMIC_RELEASE);
	*(ssize_t *) result = fi_cq_sread(cq, &e, 1, NULL, -1);
	return NULL;
}

/* Returns when the thread has blocked. */
static void until_asleep(void)
{
	char path[64], state = 0;
	pid_t tid;

	while (!(tid = __atomic_load_n(&sleeps, __ATOMIC_ACQUIRE)))
		;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	while (state != 'S') {
		FILE *f = fopen(path, "r");

		if (!f || fscanf(f, "%*d %*s %c", &state) != 1) {
			printf("it did not sleep\n");
			exit(EXIT_FAILURE);
		}
		fclose(f);
	}
}

/* Posts an operation while a thread blocks: its completion must wake the thread. */
static void completes(fi_addr_t to, const struct hello *other, int what, size_t len)
{
	static const char *const names[] = { "write", "read", "message", "receive" };
	ssize_t result = 0, r;
	pthread_t thread;
	struct timespec until;

	__atomic_store_n(&sleeps, 0, __ATOMIC_RELEASE);
	if (pthread_create(&thread, NULL, sleeper, &result))
		exit(EXIT_FAILURE);
	until_asleep();
	do {
		r = what == 0 ? fi_write(ep, buf, len, NULL, to, other->at, other->key, NULL)
		  : what == 1 ? fi_read(ep, buf, len, NULL, to, other->at, other->key, NULL)
		  : what == 2 ? fi_send(ep, buf, len, NULL, to, NULL)
			      : fi_recv(ep, buf, len, NULL, FI_ADDR_UNSPEC, NULL);
	} while (r == -FI_EAGAIN);
	DO(r);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += LIMIT_S;
	if (pthread_timedjoin_np(thread, NULL, &until) || result != 1) {
		printf("a %s of %zu bytes has not woken the blocked thread (%zd)\n", names[what], len, result);
		exit(EXIT_FAILURE);
	}
}

int main(void)
{
	int fd, status;
	struct hello me, other;
	struct fi_cq_data_entry e;
	unsigned woken = 0;
	pid_t child;

	waits = FI_WAIT_UNSPEC;
	child = spawn_peer(target, &fd);
	me = open_all(LONG);
	fi_addr_t to = meet(fd, &me, &other);

	/* The first operation sets up the rings between the processes. */
	DO(fi_write(ep, buf, 8, NULL, to, other.at, other.key, NULL));
	DO(fi_cq_sread(cq, &e, 1, NULL, -1));
	for (int polls = 1; polls >= 0; polls--) {
		for (int round = 0; round < 20; round++)
			for (int what = 0; what < 2; what++)
				for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++, woken++)
					completes(to, &other, what, lengths[i]);
		for (int i = 0; polls && i < 20; i++, woken++)
			completes(to, &other, 2, 8);
		if (write(fd, "", 1) != 1)
			return EXIT_FAILURE;
	}
	for (int i = 0; i < MESSAGES; i++, woken++) {
		char c;

		if (read(fd, &c, 1) != 1)
			return EXIT_FAILURE;
		completes(to, &other, 3, LONG);
	}
	waitpid(child, &status, 0);
	printf("%u operations woke the thread\n", woken);
	close_all();
	return status == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
