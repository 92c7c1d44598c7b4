/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two ranks of any MPI library: ping-pong, ping-pong of ranks of which one computes for a while
 * before each message, and windows of 64 messages that are answered by a short one. Prints "name
 * bytes microseconds" per message, the median of eleven rounds.
 */
#include "mpi_measure.h"

enum { WINDOW = 64, ROUNDS = 11, PAUSES = 32, MOST = 1 << 20 };

static char *buf;

static double pingpong(int len, int count)
{
	double t = MPI_Wtime();

	for (int i = 0; i < count; i++) {
		if (me == 0)
			MPI_Send(buf, len, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(buf, len, MPI_CHAR, 1 - me, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (me == 1)
			MPI_Send(buf, len, MPI_CHAR, 0, 1, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - t) / (2 * count);
}

/*
 * As pingpong(), of messages that rank 0 sends after `pause` seconds without a call to MPI. The
 * median: one message in a hundred waits for another program.
 */
static double paused(int len, int count, double pause)
{
	double times[PAUSES];

	for (int i = 0; i < count; i++) {
		double t = MPI_Wtime();

		while (me == 0 && MPI_Wtime() - t < pause)
			;
		times[i] = pingpong(len, 1);
	}
	qsort(times, count, sizeof(*times), less);
	return times[count / 2];
}

static double after_1ms(int len, int count)
{
	return paused(len, count, 1e-3);
}

static double after_5ms(int len, int count)
{
	return paused(len, count, 5e-3);
}

static double rate(int len, int count)
{
	MPI_Request all[WINDOW];
	double t = MPI_Wtime();

	for (int i = 0; i < count; i += WINDOW) {
		for (int j = 0; j < WINDOW; j++) {
			if (me == 0)
				MPI_Isend(buf, len, MPI_CHAR, 1, 2, MPI_COMM_WORLD, &all[j]);
			else
				MPI_Irecv(buf, len, MPI_CHAR, 0, 2, MPI_COMM_WORLD, &all[j]);
		}
		MPI_Waitall(WINDOW, all, MPI_STATUSES_IGNORE);
		if (me == 0)
			MPI_Recv(buf, 1, MPI_CHAR, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else
			MPI_Send(buf, 1, MPI_CHAR, 0, 3, MPI_COMM_WORLD);
	}
	return (MPI_Wtime() - t) / count;
}

static int messages(int len)
{
	return len <= 65536 ? 4096 : 256;
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 8, 4096, 65536, MOST };

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	buf = calloc(1, MOST);
	for (int i = 0; buf && i < 4; i++)
		measure("PingPong", pingpong, sizes[i], messages(sizes[i]), ROUNDS);
	for (int i = 0; buf && i < 3; i++)
		measure("After1ms", after_1ms, sizes[i], PAUSES, ROUNDS);
	for (int i = 0; buf && i < 3; i++)
		measure("After5ms", after_5ms, sizes[i], PAUSES / 2, ROUNDS);
	for (int i = 0; buf && i < 4; i++)
		measure("Rate", rate, sizes[i], messages(sizes[i]), ROUNDS);
	MPI_Finalize();
	return buf ? EXIT_SUCCESS : EXIT_FAILURE;
}
