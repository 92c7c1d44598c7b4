/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An MPI program that checks every byte it receives: messages of all sizes and orders, probes,
 * wildcards, collectives and one-sided operations. fabtests-compat/mpi.sh runs it on unmodified MPI
 * libraries, with 2 and with 4 ranks.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #cond); \
			MPI_Abort(MPI_COMM_WORLD, 1); \
		} \
	} while (0)
#define MAX (3 << 20)

static int rank, ranks;
static unsigned char *in, *out;

static void fill(unsigned char *b, int len, int seed)
{
	for (int i = 0; i < len; i++)
		b[i] = (unsigned char) (i * 7 + i / 251 + seed);
}

static void expect(const unsigned char *b, int len, int seed)
{
	for (int i = 0; i < len; i++)
		CHECK(b[i] == (unsigned char) (i * 7 + i / 251 + seed));
}

/* A ring: every size from nothing to beyond every protocol's switch, received early and late. */
static void messages(void)
{
	static const int sizes[] = { 0, 1, 64, 4095, 8192, 61000, 65536, 65537, 300000, 1 << 20, MAX };
	int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		for (int late = 0; late < 2; late++) {
			MPI_Request req[2];
			MPI_Status st;
			int n;

			memset(in, 0xee, (size_t) sizes[i]);
			fill(out, sizes[i], rank + (int) i);
			if (!late)
				MPI_Irecv(in, sizes[i], MPI_BYTE, from, (int) i, MPI_COMM_WORLD, &req[0]);
			MPI_Barrier(MPI_COMM_WORLD);
			MPI_Isend(out, sizes[i], MPI_BYTE, to, (int) i, MPI_COMM_WORLD, &req[1]);
			if (late) {
				MPI_Probe(MPI_ANY_SOURCE, (int) i, MPI_COMM_WORLD, &st);
				MPI_Get_count(&st, MPI_BYTE, &n);
				CHECK(n == sizes[i] && st.MPI_SOURCE == from);
				MPI_Irecv(in, n, MPI_BYTE, st.MPI_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &req[0]);
			}
			MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
			expect(in, sizes[i], from + (int) i);
			MPI_Barrier(MPI_COMM_WORLD);
		}
	}
}

/* Many small messages, received against the order of their tags; order within a tag is kept. */
static void tags(void)
{
	enum { TAGS = 8, EACH = 100 };
	int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
	MPI_Request req[TAGS * EACH];
	int v[TAGS * EACH];

	for (int i = 0; i < TAGS * EACH; i++) {
		v[i] = rank * 100000 + i;
		MPI_Isend(&v[i], 1, MPI_INT, to, i % TAGS, MPI_COMM_WORLD, &req[i]);
	}
	for (int t = TAGS - 1; t >= 0; t--) {
		for (int i = 0; i < EACH; i++) {
			MPI_Message m;
			int got;

			if (i % 3 == 0) {
				MPI_Mprobe(from, t, MPI_COMM_WORLD, &m, MPI_STATUS_IGNORE);
				MPI_Mrecv(&got, 1, MPI_INT, &m, MPI_STATUS_IGNORE);
			} else {
				MPI_Recv(&got, 1, MPI_INT, from, t, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			}
			CHECK(got == from * 100000 + i * TAGS + t);
		}
	}
	MPI_Waitall(TAGS * EACH, req, MPI_STATUSES_IGNORE);
}

static void collectives(void)
{
	for (int n = 1; n <= 100000; n *= 10) {
		double *a = malloc((size_t) n * sizeof(*a)), *b = malloc((size_t) n * sizeof(*b));

		for (int i = 0; i < n; i++)
			a[i] = rank + i;
		MPI_Allreduce(a, b, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(b[i] == ranks * (ranks - 1) / 2 + (double) ranks * i);
		if (rank == ranks - 1)
			memcpy(b, a, (size_t) n * sizeof(*a));
		MPI_Bcast(b, n, MPI_DOUBLE, ranks - 1, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(b[i] == ranks - 1 + i);
		free(a);
		free(b);
	}
	for (int n = 1; n <= 40000; n *= 200) {
		int *a = malloc((size_t) (n * ranks) * sizeof(*a));
		int *b = malloc((size_t) (n * ranks) * sizeof(*b));

		for (int i = 0; i < n * ranks; i++)
			a[i] = rank * 1000003 + i;
		MPI_Alltoall(a, n, MPI_INT, b, n, MPI_INT, MPI_COMM_WORLD);
		for (int i = 0; i < n * ranks; i++)
			CHECK(b[i] == i / n * 1000003 + rank * n + i % n);
		free(a);
		free(b);
	}
}

/* Put, get and accumulate on a neighbour, and one counter that all ranks raise. */
static void one_sided(void)
{
	enum { N = 50000 };
	long *base, got = -1, one = 1, *here = malloc(N * sizeof(*here));
	int to = (rank + 1) % ranks;
	MPI_Win win;

	MPI_Win_allocate((N + 1) * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	for (int i = 0; i <= N; i++)
		base[i] = 0;
	for (int i = 0; i < N; i++)
		here[i] = rank * 7L + i;
	MPI_Win_fence(0, win);
	MPI_Put(here, N, MPI_LONG, to, 0, N, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		CHECK(base[i] == (rank + ranks - 1) % ranks * 7L + i);
	MPI_Win_fence(0, win);
	MPI_Accumulate(here, N, MPI_LONG, to, 0, N, MPI_LONG, MPI_SUM, win);
	MPI_Win_fence(0, win);
	MPI_Get(here, N, MPI_LONG, to, 0, N, MPI_LONG, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < N; i++)
		CHECK(here[i] == 2 * (rank * 7L + i));
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < 50; i++) {
		MPI_Fetch_and_op(&one, &got, MPI_LONG, 0, N, MPI_SUM, win);
		MPI_Win_flush(0, win);
		CHECK(got >= i && got < 50L * ranks);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		CHECK(base[N] == 50L * ranks);
		MPI_Win_unlock(0, win);
	}
	MPI_Win_free(&win);
	free(here);
}

int main(int argc, char **argv)
{
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int len;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	in = malloc(MAX);
	out = malloc(MAX);
	messages();
	tags();
	collectives();
	one_sided();
	MPI_Get_library_version(version, &len);
	if (rank == 0)
		printf("%d ranks, everything checked: %.40s\n", ranks, strtok(version, "\n"));
	free(in);
	free(out);
	MPI_Finalize();
	return 0;
}
