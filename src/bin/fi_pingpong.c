/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fi_pingpong: messages back and forth between two processes, with the options and the table of
 * libfabric's fi_pingpong. Shares code with the benchmark programs; addresses are exchanged by TCP.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "loops.h"

static void usage(void)
{
	printf("Usage: fi_pingpong [OPTIONS] [HOST]\n"
	       "  -B PORT\tport of this side\n  -P PORT\tport of the server\n"
	       "  -d DOMAIN\tdomain name\n  -p PROVIDER\tprovider name (efa)\n  -e rdm\tendpoint type\n"
	       "  -m msg|tagged\tkind of messages\n  -I N\t\titerations\n  -S SIZE|all\tmessage sizes\n"
	       "  -c\t\tcheck the data\n  -h\t\tthis text\n");
}

int main(int argc, char **argv)
{
	/* The benchmark code uses -v for this program's -c, and gets the kind from program(). */
	char **args = calloc((size_t) argc + 4, sizeof(*args));
	enum bench_op op = OP_MSG;
	int c, n = 0;

	if (!args)
		return EXIT_FAILURE;
	args[n++] = argv[0];
	args[n++] = "-E=47592";
	while ((c = getopt(argc, argv, "B:P:d:p:e:m:I:S:chv")) != -1) {
		static char text[16][256];
		static int used;

		switch (c) {
		case 'm':
			op = strcmp(optarg, "tagged") == 0 ? OP_TAGGED : OP_MSG;
			break;
		case 'c':
			args[n++] = "-v";
			break;
		case 'v':
			break;
		case 'B': case 'P': case 'd': case 'p': case 'e': case 'I': case 'S':
			if (used == 16)
				return EXIT_FAILURE;
			snprintf(text[used], sizeof(text[used]), "-%c%s", c, optarg);
			args[n++] = text[used++];
			break;
		default:
			usage();
			return c == 'h' ? EXIT_SUCCESS : EXIT_FAILURE;
		}
	}
	if (optind < argc)
		args[n++] = argv[optind];
	optind = 1;
	return program(op, false, 2, loop_pingpong, n, args);
}
