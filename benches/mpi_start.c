/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Start of a job of many ranks: the time of MPI_Init, of the first MPI_Barrier and MPI_Alltoall
 * (8 bytes for each rank), when connections are made, and of the next ones. Prints lines as
 * mpi_loops.c does, the longest time of any rank, and the bytes that a rank has sent to each.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 5 };

static int me;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void print(const char *name, int len, double took)
{
	double most;

	MPI_Reduce(&took, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (me == 0)
		printf("%s %d %.1f\n", name, len, most * 1e6);
}

int main(int argc, char **argv)
{
	double t = now(), init, barrier, all, later = 0;
	double *from, *to;
	int ranks;

	MPI_Init(&argc, &argv);
	init = now() - t;
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	from = calloc(ranks, sizeof(*from));
	to = calloc(ranks, sizeof(*to));
	if (!from || !to)
		MPI_Abort(MPI_COMM_WORLD, 1);
	t = now();
	MPI_Barrier(MPI_COMM_WORLD);
	barrier = now() - t;
	t = now();
	MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, MPI_COMM_WORLD);
	all = now() - t;
	for (int i = 0; i < ROUNDS; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		t = now();
		MPI_Alltoall(from, 1, MPI_DOUBLE, to, 1, MPI_DOUBLE, MPI_COMM_WORLD);
		later += (now() - t) / ROUNDS;
	}
	print("init", 0, init);
	print("barrier", 0, barrier);
	print("alltoall", 8, all);
	print("again", 8, later);
	free(from);
	free(to);
	MPI_Finalize();
	return 0;
}
