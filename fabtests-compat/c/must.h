/* SPDX-License-Identifier: BSD-2-Clause */
/* A call succeeds, or the test prints the error and ends. */
#ifndef MUST_H
#define MUST_H

#include <stdio.h>
#include <stdlib.h>
#include <rdma/fi_errno.h>

#define DO(call) \
	do { \
		long r_ = (long) (call); \
		if (r_ < 0) { \
			printf("%s: %ld (%s)\n", #call, r_, fi_strerror((int) -r_)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)

#endif
