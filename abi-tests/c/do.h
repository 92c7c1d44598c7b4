/* SPDX-License-Identifier: BSD-2-Clause */
/* Checks that end the test with the line number and the failed expression. */
#ifndef DO_H
#define DO_H

#include <stdio.h>
#include <stdlib.h>
#include <rdma/fi_errno.h>

#define DO(want, call) \
	do { \
		long got_ = (long) (call); \
		if (got_ != (long) (want)) { \
			printf("line %d: %s: %ld (%s), wanted %ld\n", __LINE__, #call, got_, \
			       fi_strerror((int) -got_), (long) (want)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)
#define TRUE(cond) \
	do { \
		if (!(cond)) { \
			printf("line %d: %s\n", __LINE__, #cond); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

#endif
