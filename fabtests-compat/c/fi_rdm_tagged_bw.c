/* SPDX-License-Identifier: BSD-2-Clause */
#include "loops.h"

int main(int argc, char **argv)
{
	return program(OP_TAGGED, false, 1, loop_bw, argc, argv);
}
