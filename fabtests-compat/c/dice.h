/* SPDX-License-Identifier: BSD-2-Clause */
/* Pseudo-random numbers that a seed repeats (xorshift64). */
#ifndef DICE_H
#define DICE_H

#include <stdint.h>

/* State of the generator, never 0. */
static uint64_t seed = 88172645463325252ull;

/* 64 bits. */
static inline uint64_t dice_bits(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

/* A number below n. */
static inline unsigned dice(unsigned n)
{
	return (unsigned) ((dice_bits() >> 20) % n);
}

#endif
