/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Five processes run every collective operation of fi_collective(3), with short and long arrays,
 * several at a time and in groups that overlap, and check each element. Then one is killed by
 * SIGKILL while the others are in an allreduce: each of them must get an error completion.
 *
 * collectives leave   a member that has done its part of a reduction ends before others do theirs
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define RANKS 5
#define LONG 40000
#define DO(call) \
	do { \
		long r_ = (long) (call); \
		if (r_ < 0) { \
			printf("rank %d: %s: %ld (%s)\n", rank, #call, r_, fi_strerror((int) -r_)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)
#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("rank %d, line %d: %s is not so\n", rank, __LINE__, #what); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

static int rank;
static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_eq *eq;
static struct fid_ep *ep;
static fi_addr_t addrs[RANKS];

struct name {
	char addr[32];
};

static struct name open_all(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	struct name me;
	size_t len = sizeof(me.addr);

	hints->caps = FI_MSG | FI_TAGGED | FI_COLLECTIVE;
	hints->fabric_attr->prov_name = strdup("efa");
	DO(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	CHECK(info->caps & FI_COLLECTIVE);
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	DO(fi_av_open(domain, &aa, &av, NULL));
	DO(fi_cq_open(domain, &ca, &cq, NULL));
	DO(fi_eq_open(fabric, &ea, &eq, NULL));
	DO(fi_endpoint(domain, info, &ep, NULL));
	DO(fi_ep_bind(ep, &av->fid, 0));
	DO(fi_ep_bind(ep, &eq->fid, 0));
	DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(ep));
	DO(fi_getname(&ep->fid, me.addr, &len));
	return me;
}

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

/* Waits for the completion of this context; 0, or the error's number. */
static int done(void *context)
{
	struct fi_cq_tagged_entry e = { 0 };
	struct fi_cq_err_entry err = { 0 };
	double until = now_s() + 30;

	while (now_s() < until) {
		ssize_t r = fi_cq_read(cq, &e, 1);

		if (r == 1 && e.op_context == context) {
			CHECK(e.flags & (FI_COLLECTIVE | FI_TAGGED));
			return 0;
		}
		if (r == -FI_EAVAIL) {
			DO(fi_cq_readerr(cq, &err, 0));
			CHECK(err.op_context == context);
			return err.err;
		}
		CHECK(r == 1 || r == -FI_EAGAIN);
	}
	printf("rank %d: no completion\n", rank);
	exit(EXIT_FAILURE);
}

static struct fid_mc *join(struct fid_av_set *set)
{
	struct fid_mc *mc;
	struct fi_eq_entry e;
	fi_addr_t addr;
	uint32_t event;

	DO(fi_av_set_addr(set, &addr));
	DO(fi_join_collective(ep, addr, set, 0, &mc, set));
	DO(fi_eq_sread(eq, &event, &e, sizeof(e), 30000, 0));
	CHECK(event == FI_JOIN_COMPLETE && e.context == set && e.fid == &mc->fid);
	return mc;
}

static struct fid_av_set *set_of(uint64_t first, uint64_t last, uint64_t stride)
{
	struct fi_av_set_attr a = { .start_addr = first, .end_addr = last, .stride = stride };
	struct fid_av_set *s;

	DO(fi_av_set(av, &a, &s, NULL));
	return s;
}

/* Element i of the input of member r. */
static uint64_t value(int r, size_t i)
{
	return (uint64_t) r * 1000003 + i * 7 + 1;
}

static uint64_t *bring(size_t n)
{
	uint64_t *v = malloc((n + 1) * sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = value(rank, i);
	return v;
}

static void reductions(fi_addr_t g, size_t n, int root)
{
	uint64_t *in = bring(n * RANKS), *out = calloc(n * RANKS, sizeof(*out)), sum;
	double d[2] = { 0.1 * (rank + 1), -rank }, all[2], expect = 0;

	DO(fi_allreduce(ep, in, n, NULL, out, NULL, g, FI_UINT64, FI_SUM, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n; i++) {
		sum = 0;
		for (int r = 0; r < RANKS; r++)
			sum += value(r, i);
		CHECK(out[i] == sum);
	}
	memset(out, 0, n * sizeof(*out));
	DO(fi_reduce(ep, in, n, NULL, rank == root ? out : NULL, NULL, g, addrs[root], FI_UINT64,
			FI_MAX, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; rank == root && i < n; i++)
		CHECK(out[i] == value(RANKS - 1, i));
	DO(fi_reduce_scatter(ep, in, n, NULL, out, NULL, g, FI_UINT64, FI_BXOR, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n; i++) {
		sum = 0;
		for (int r = 0; r < RANKS; r++)
			sum ^= value(r, (size_t) rank * n + i);
		CHECK(out[i] == sum);
	}
	DO(fi_allreduce(ep, d, 2, NULL, all, NULL, g, FI_DOUBLE, FI_SUM, 0, d));
	CHECK(done(d) == 0);
	for (int r = 0; r < RANKS; r++)
		expect += 0.1 * (r + 1);
	CHECK(all[0] - expect < 1e-12 && expect - all[0] < 1e-12 && all[1] == -10);
	free(in);
	free(out);
}

static void movements(fi_addr_t g, size_t n, int root)
{
	uint64_t *in = bring(n * RANKS), *out = calloc(n * RANKS, sizeof(*out));

	DO(fi_broadcast(ep, in, n, NULL, g, addrs[root], FI_UINT64, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n; i++)
		CHECK(in[i] == value(root, i));
	for (size_t i = 0; i < n; i++)
		in[i] = value(rank, i);
	DO(fi_allgather(ep, in, n, NULL, out, NULL, g, FI_UINT64, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n * RANKS; i++)
		CHECK(out[i] == value((int) (i / n), i % n));
	memset(out, 0, n * RANKS * sizeof(*out));
	DO(fi_gather(ep, in, n, NULL, rank == root ? out : NULL, NULL, g, addrs[root], FI_UINT64, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; rank == root && i < n * RANKS; i++)
		CHECK(out[i] == value((int) (i / n), i % n));
	DO(fi_scatter(ep, rank == root ? in : NULL, n, NULL, out, NULL, g, addrs[root], FI_UINT64, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n; i++)
		CHECK(out[i] == value(root, (size_t) rank * n + i));
	DO(fi_alltoall(ep, in, n, NULL, out, NULL, g, FI_UINT64, 0, in));
	CHECK(done(in) == 0);
	for (size_t i = 0; i < n * RANKS; i++)
		CHECK(out[i] == value((int) (i / n), (size_t) rank * n + i % n));
	free(in);
	free(out);
}

/* Several operations in two groups at once, beside a receive with wildcards. */
static void together(fi_addr_t world, fi_addr_t odd)
{
	uint64_t in[8], out[8], any = 0, hello = 42, other, others = 0;
	void *ctx[8];
	int left = 0, heard = 0;

	DO(fi_trecv(ep, &any, 8, NULL, FI_ADDR_UNSPEC, 0, ~0ull >> 1, &any));
	for (int i = 0; i < 8; i++) {
		in[i] = (uint64_t) (rank + 1) << (8 * i);
		ctx[i] = &in[i];
		DO(fi_allreduce(ep, &in[i], 1, NULL, &out[i], NULL, world, FI_UINT64, FI_SUM, 0, ctx[i]));
		left++;
	}
	if (rank % 2) {
		other = 1ull << rank;
		DO(fi_allreduce(ep, &other, 1, NULL, &others, NULL, odd, FI_UINT64, FI_BOR, 0, &other));
		left++;
	}
	while (left > 0) {
		struct fi_cq_tagged_entry e;
		ssize_t r = fi_cq_read(cq, &e, 1);

		CHECK(r == 1 || r == -FI_EAGAIN);
		if (r == 1 && e.op_context == &any)
			heard = 1;
		else
			left -= r == 1;
	}
	for (int i = 0; i < 8; i++)
		CHECK(out[i] == 15ull << (8 * i));
	CHECK(rank % 2 == 0 || others == (1 << 1 | 1 << 3));
	DO(fi_tinject(ep, &hello, 8, addrs[(rank + 1) % RANKS], 7));
	CHECK((heard || done(&any) == 0) && any == 42);
	CHECK(fi_trecv(ep, &any, 8, NULL, FI_ADDR_UNSPEC, 1ull << 63, 0, NULL) == -FI_EINVAL);
}

static void sets(void)
{
	struct fid_av_set *a = set_of(0, 3, 1), *b = set_of(1, 4, 3);
	struct fid_av_set *c = set_of(FI_ADDR_NOTAVAIL, FI_ADDR_NOTAVAIL, 0);
	struct fid_mc *mc;
	fi_addr_t addr;

	DO(fi_av_set_insert(c, 3));
	CHECK(fi_av_set_insert(c, 3) == -FI_EINVAL && fi_av_set_insert(c, 99) == -FI_EINVAL);
	DO(fi_av_set_union(c, b));
	DO(fi_av_set_intersect(a, c));
	DO(fi_av_set_diff(c, a));
	DO(fi_av_set_remove(c, 4));
	CHECK(fi_av_set_remove(c, 4) == -FI_EINVAL);
	/* Set c is empty: no endpoint can join it. */
	DO(fi_av_set_addr(c, &addr));
	CHECK(fi_join_collective(ep, addr, c, 0, &mc, NULL) == -FI_EINVAL);
	CHECK(fi_close(&av->fid) == -FI_EBUSY);
	DO(fi_close(&a->fid));
	DO(fi_close(&b->fid));
	DO(fi_close(&c->fid));
}

static void queries(void)
{
	struct fi_collective_attr a = { .op = FI_SUM, .datatype = FI_DOUBLE };

	DO(fi_query_collective(domain, FI_ALLREDUCE, &a, 0));
	CHECK(a.datatype_attr.size == 8 && a.datatype_attr.count > 1000 && a.max_members > 1000);
	a.op = FI_BAND;
	CHECK(fi_query_collective(domain, FI_ALLREDUCE, &a, 0) == -FI_EOPNOTSUPP);
	a.op = FI_CSWAP;
	a.datatype = FI_INT32;
	CHECK(fi_query_collective(domain, FI_REDUCE, &a, 0) == -FI_EOPNOTSUPP);
	a.op = FI_NOOP;
	a.datatype = FI_VOID;
	DO(fi_query_collective(domain, FI_BARRIER, &a, 0));
}

static void close_all(void)
{
	DO(fi_close(&ep->fid));
	DO(fi_close(&cq->fid));
	DO(fi_close(&eq->fid));
	DO(fi_close(&av->fid));
	DO(fi_close(&domain->fid));
	DO(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* The parent writes a byte to ranks 1 to RANKS - 2 when the last one has ended. */
static int leave(int parent)
{
	struct fid_av_set *all = set_of(0, RANKS - 1, 1);
	struct fid_mc *world = join(all);
	uint64_t in = 1ull << rank, out = 0;
	char word;

	CHECK(write(parent, "", 1) == 1);
	while (rank != 0 && rank != RANKS - 1 && recv(parent, &word, 1, MSG_DONTWAIT) != 1)
		CHECK(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
	DO(fi_reduce(ep, &in, 1, NULL, rank == 0 ? &out : NULL, NULL, fi_mc_addr(world), addrs[0],
			FI_UINT64, FI_SUM, 0, &in));
	CHECK(done(&in) == 0);
	CHECK(rank != 0 || out == (1u << RANKS) - 1);
	DO(fi_close(&world->fid));
	DO(fi_close(&all->fid));
	close_all();
	return EXIT_SUCCESS;
}

static int work(int parent)
{
	struct fid_av_set *all = set_of(0, RANKS - 1, 1), *some = set_of(1, RANKS - 1, 2);
	struct fid_mc *world = join(all), *odd = NULL, *again = join(all);
	uint64_t in = 1, out;
	fi_addr_t g = fi_mc_addr(world), gone = fi_mc_addr(again);
	double t;
	char word;
	int err;

	if (rank % 2)
		odd = join(some);
	queries();
	sets();
	for (int root = 0; root < RANKS; root++) {
		reductions(g, 3, root);
		movements(g, 3, root);
	}
	reductions(g, LONG, 2);
	movements(g, LONG, 3);
	together(g, odd ? fi_mc_addr(odd) : 0);
	DO(fi_barrier(ep, fi_mc_addr(again), &in));
	CHECK(done(&in) == 0);
	DO(fi_close(&again->fid));
	/* The address of a closed group is invalid. */
	CHECK(fi_barrier(ep, gone, NULL) == -FI_EINVAL);
	/* It would not wait for the counter. */
	CHECK(fi_barrier2(ep, fi_mc_addr(again), FI_TRIGGER, &in) == -FI_EBADFLAGS);
	if (odd)
		DO(fi_close(&odd->fid));
	/* The parent kills the last rank when all ranks are here, then writes a byte. */
	CHECK(write(parent, "", 1) == 1 && read(parent, &word, 1) == 1);
	t = now_s();
	DO(fi_allreduce(ep, &in, 1, NULL, &out, NULL, g, FI_UINT64, FI_SUM, 0, &in));
	err = done(&in);
	printf("rank %d: a member was killed: %s after %.1f s\n", rank, fi_strerror(err), now_s() - t);
	CHECK(err != 0);
	DO(fi_close(&world->fid));
	DO(fi_close(&some->fid));
	DO(fi_close(&all->fid));
	close_all();
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	struct name names[RANKS];
	int fds[RANKS] = { 0 }, status, bad = 0;
	int leaves = argc > 1 && strcmp(argv[argc - 1], "leave") == 0;
	pid_t child[RANKS];

	if (argc >= 3) {
		rank = atoi(argv[1]);
		names[0] = open_all();
		if (write(atoi(argv[2]), names, sizeof(names[0])) != sizeof(names[0]) ||
		    recv(atoi(argv[2]), names, sizeof(names), MSG_WAITALL) != sizeof(names))
			return EXIT_FAILURE;
		CHECK(fi_av_insert(av, names, RANKS, addrs, 0, NULL) == RANKS);
		return leaves ? leave(atoi(argv[2])) : work(atoi(argv[2]));
	}
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "1000", 0);
	for (int i = 0; i < RANKS; i++) {
		int pair[2];
		char me[16], fd[16];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			return EXIT_FAILURE;
		fflush(stdout);
		child[i] = fork();
		if (child[i] == 0) {
			close(pair[0]);
			snprintf(me, sizeof(me), "%d", i);
			snprintf(fd, sizeof(fd), "%d", pair[1]);
			execl("/proc/self/exe", argv[0], me, fd, leaves ? "leave" : NULL, (char *) NULL);
			_exit(127);
		}
		close(pair[1]);
		fds[i] = pair[0];
	}
	for (int i = 0; i < RANKS; i++)
		bad |= recv(fds[i], &names[i], sizeof(names[i]), MSG_WAITALL) != sizeof(names[i]);
	for (int i = 0; i < RANKS && !bad; i++)
		bad |= write(fds[i], names, sizeof(names)) != sizeof(names);
	for (int i = 0; i < RANKS && !bad; i++)
		bad |= read(fds[i], &names[0], 1) != 1;
	if (!leaves)
		kill(child[RANKS - 1], SIGKILL);
	else if (!bad)
		waitid(P_PID, (id_t) child[RANKS - 1], &(siginfo_t) { 0 }, WEXITED | WNOWAIT);
	if (!bad && !leaves)
		printf("%d ranks: every operation checked\n", RANKS);
	fflush(stdout);
	for (int i = leaves; i < RANKS - 1 && !bad; i++)
		bad |= write(fds[i], "", 1) != 1;
	for (int i = 0; i < RANKS; i++) {
		if (bad)
			kill(child[i], SIGKILL);
		waitpid(child[i], &status, 0);
		if (i == RANKS - 1 && !leaves)
			bad |= !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL;
		else
			bad |= !WIFEXITED(status) || WEXITSTATUS(status) != EXIT_SUCCESS;
	}
	printf("%s\n", bad ? "failed" : "passed");
	return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
