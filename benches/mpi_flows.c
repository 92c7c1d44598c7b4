/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Many flows at once, for an even number of ranks of which the second half are on another host
 * (benches/mpi.sh with HOSTS=1): pairs of ranks stream to each other over the link, the whole
 * second half streams to rank 0, and all ranks exchange with all. Prints "name bytes microseconds",
 * the median of seven rounds: per message, of all of them, or per MPI_Alltoall.
 */
#include "mpi_measure.h"

enum { WINDOW = 32, ROUNDS = 7, MOST = 1 << 20, RANKS_MAX = 64 };
enum { DATA = 2, ANSWER = 3 };

static int ranks, half;
static char *buf, *from, *to;

/* Streams to a rank that answers each window. */
static void stream(int peer, int len, int count)
{
	MPI_Request all[WINDOW];

	for (int i = 0; i < count; i += WINDOW) {
		for (int j = 0; j < WINDOW; j++)
			MPI_Isend(buf, len, MPI_CHAR, peer, DATA, MPI_COMM_WORLD, &all[j]);
		MPI_Waitall(WINDOW, all, MPI_STATUSES_IGNORE);
		MPI_Recv(NULL, 0, MPI_CHAR, peer, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

/* Receives what this many ranks stream here, in any order. */
static void take(int senders, int len, int count)
{
	int posted = 0, all = count * senders, got[RANKS_MAX] = { 0 };
	MPI_Request wait[WINDOW];

	for (; posted < WINDOW; posted++)
		MPI_Irecv(buf, len, MPI_CHAR, MPI_ANY_SOURCE, DATA, MPI_COMM_WORLD, &wait[posted]);
	for (int done = 0; done < all; done++) {
		MPI_Status s;
		int i;

		MPI_Waitany(WINDOW, wait, &i, &s);
		if (posted++ < all)
			MPI_Irecv(buf, len, MPI_CHAR, MPI_ANY_SOURCE, DATA, MPI_COMM_WORLD, &wait[i]);
		if (++got[s.MPI_SOURCE] % WINDOW == 0)
			MPI_Send(NULL, 0, MPI_CHAR, s.MPI_SOURCE, ANSWER, MPI_COMM_WORLD);
	}
}

static double pairs(int len, int count)
{
	double t = MPI_Wtime();

	if (me < half)
		stream(me + half, len, count);
	else
		take(1, len, count);
	MPI_Barrier(MPI_COMM_WORLD);
	return (MPI_Wtime() - t) / count / half;
}

static double to_one(int len, int count)
{
	double t = MPI_Wtime();

	if (me >= half)
		stream(0, len, count);
	else if (me == 0)
		take(half, len, count);
	MPI_Barrier(MPI_COMM_WORLD);
	return (MPI_Wtime() - t) / count / half;
}

static double to_all(int len, int count)
{
	int rounds = count / 16;
	double t = MPI_Wtime();

	for (int i = 0; i < rounds; i++)
		MPI_Alltoall(from, len, MPI_CHAR, to, len, MPI_CHAR, MPI_COMM_WORLD);
	return (MPI_Wtime() - t) / rounds;
}

static int messages(int len)
{
	return len <= 65536 ? 1024 : 64;
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 8, 4096, 65536, MOST };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	half = ranks / 2;
	buf = calloc(1, MOST);
	from = calloc(ranks, MOST);
	to = calloc(ranks, MOST);
	if (ranks % 2 || ranks > RANKS_MAX || !buf || !from || !to)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; i < 4; i++)
		measure("pairs", pairs, sizes[i], messages(sizes[i]), ROUNDS);
	for (int i = 0; i < 4; i++)
		measure("to-one", to_one, sizes[i], messages(sizes[i]), ROUNDS);
	for (int i = 0; i < 4; i++)
		measure("to-all", to_all, sizes[i], messages(sizes[i]), ROUNDS);
	MPI_Finalize();
	return 0;
}
