/* SPDX-License-Identifier: BSD-2-Clause */
#include "loops.h"

int main(int argc, char **argv)
{
	return program(OP_MSG, false, 2, loop_pingpong, argc, argv);
}
