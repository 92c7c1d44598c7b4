/* SPDX-License-Identifier: BSD-2-Clause */
#include "loops.h"

int main(int argc, char **argv)
{
	return program(OP_MSG, false, 1, loop_bw, argc, argv);
}
