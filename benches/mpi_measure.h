/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the MPI programs that time loops have in common. A loop takes the bytes of a message and how
 * many messages, and returns the seconds of one.
 */
#ifndef MPI_MEASURE_H
#define MPI_MEASURE_H

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS_MAX = 16 };

static int me;

static int less(const void *a, const void *b)
{
	double x = *(const double *) a, y = *(const double *) b;

	return (x > y) - (x < y);
}

/* Prints "name bytes microseconds", the median of so many rounds after one that is not timed. */
static void measure(const char *name, double (*loop)(int, int), int len, int count, int rounds)
{
	double times[ROUNDS_MAX];

	loop(len, count);
	for (int i = 0; i < rounds; i++) {
		MPI_Barrier(MPI_COMM_WORLD);
		times[i] = loop(len, count);
	}
	qsort(times, rounds, sizeof(*times), less);
	if (me == 0)
		printf("%s %d %.3f\n", name, len, times[rounds / 2] * 1e6);
}

#endif
