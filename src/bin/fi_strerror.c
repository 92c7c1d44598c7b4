/* SPDX-License-Identifier: BSD-2-Clause */
/* fi_strerror N...: the text of libfabric's error numbers; without numbers, all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

int main(int argc, char **argv)
{
	if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
		printf("Usage: fi_strerror [ERROR...]\n");
		return EXIT_SUCCESS;
	}
	for (int i = 1; i < argc; i++) {
		char *end;
		long v = strtol(argv[i], &end, 0);

		if (*argv[i] == '\0' || *end != '\0') {
			fprintf(stderr, "fi_strerror: %s is no number\n", argv[i]);
			return EXIT_FAILURE;
		}
		printf("%s\n", fi_strerror((int) v));
	}
	for (int e = FI_ERRNO_OFFSET; argc == 1 && e < FI_ERRNO_MAX; e++)
		printf("%d: %s\n", e, fi_strerror(e));
	return EXIT_SUCCESS;
}
