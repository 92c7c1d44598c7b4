/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * forks FABRIC: a program forks children while messages and reads are under way, as launchers and
 * subprocess.run() do. Some children exec, some close every descriptor, and some open and close
 * objects while a thread of the parent does the same. The parent's operations must end with the
 * right data.
 */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fi_rma.h>
#include "alone.h"

enum { LEN = 60000, ROUNDS = 60, UNDER_WAY = 3 };

static char *memory, *from, *to, *read_into;
static struct fid_mr *mr;
static struct fi_context2 contexts[UNDER_WAY];

static void fill(void)
{
	pattern(from, LEN);
	memset(to, 0, 2 * LEN);
}

static volatile int stops;

static void open_and_close(void)
{
	struct fid_fabric *f;

	DO(0, fi_fabric(info->fabric_attr, &f, NULL));
	DO(0, fi_close(&f->fid));
}

static void *closer(void *none)
{
	while (!stops)
		open_and_close();
	return none;
}

/*
 * Forks a child that execs, closes its descriptors, or opens and closes an object. The child writes
 * its own memory only: registered memory may be missing in a child (ibv_fork_init(3)).
 */
static pid_t child(int round)
{
	static char own[LEN];
	pid_t pid = fork();

	TRUE(pid >= 0);
	if (pid)
		return pid;
	memset(own, 0x55, LEN);
	if (round % 3 == 0)
		execl("/bin/true", "true", (char *) NULL);
	if (round % 3 == 1)
		for (int fd = 3; fd < 256; fd++)
			close(fd);
	if (round % 3 == 2) {
		/* Locks that the thread held at the fork are free here. */
		alarm(30);
		for (int i = 0; i < 100; i++)
			open_and_close();
	}
	_exit(0);
}

/* With an older libefa, efa-direct has no FI_RMA for programs without FI_RX_CQ_DATA (fi_efa(7)). */
static int reading(void)
{
	return !!(info->caps & FI_RMA);
}

static void wait_all(void)
{
	struct fi_cq_data_entry e;
	int done = reading() ? 0 : 1;
	ssize_t n;

	while (done < UNDER_WAY) {
		n = fi_cq_read(cq, &e, 1);
		if (n == -FI_EAGAIN)
			continue;
		DO(1, n);
		done++;
	}
}

static void post(ssize_t (*post_call)(void))
{
	ssize_t ret;

	while ((ret = post_call()) == -FI_EAGAIN)
		fi_cq_read(cq, NULL, 0);
	DO(0, ret);
}

static size_t piece;

static ssize_t receives(void)
{
	return fi_recv(ep, to, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[0]);
}

static ssize_t sends(void)
{
	return fi_send(ep, from, piece, fi_mr_desc(mr), self, &contexts[1]);
}

static ssize_t reads(void)
{
	return fi_read(ep, read_into, LEN, fi_mr_desc(mr), self, (uintptr_t) from, fi_mr_key(mr),
			&contexts[2]);
}

int main(int argc, char **argv)
{
	int status;
	pthread_t thread;

	TRUE(argc == 2);
	open_disabled(argv[1]);
	enable();
	/* A message of efa-direct is one packet. */
	piece = strcmp(argv[1], "efa") ? 4000 : LEN;
	/* Whole pages, because a fork copies pages. */
	DO(0, posix_memalign((void **) &memory, 4096, 3 * LEN));
	from = memory;
	to = memory + LEN;
	read_into = memory + 2 * LEN;
	DO(0, fi_mr_reg(domain, memory, 3 * LEN, FI_SEND | FI_RECV | FI_READ | FI_REMOTE_READ, 0, 0, 0,
			&mr, NULL));
	TRUE(!pthread_create(&thread, NULL, closer, NULL));
	for (int i = 0; i < ROUNDS; i++) {
		pid_t before, after;

		fill();
		post(receives);
		before = child(i);
		if (reading())
			post(reads);
		post(sends);
		after = child(i + 1);
		wait_all();
		TRUE(!memcmp(to, from, piece) && (!reading() || !memcmp(read_into, from, LEN)));
		TRUE(waitpid(before, &status, 0) == before && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		TRUE(waitpid(after, &status, 0) == after && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	stops = 1;
	TRUE(!pthread_join(thread, NULL));
	DO(0, fi_close(&mr->fid));
	close_all();
	puts("children came and went");
	return EXIT_SUCCESS;
}
