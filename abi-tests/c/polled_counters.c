/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Two processes on one processor answer each other, and read their counters in a loop. A reader
 * that keeps the processor reads tens of thousands of times until the scheduler takes it away; one
 * that yields reads a few times.
 *
 * polled_counters FABRIC
 */
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include "alone.h"

enum { ROUNDS = 200, READS = 2000 };

static struct fid_cntr *sent, *received;
static char in[64], out[64];
static struct fi_context2 contexts[2];
static uint64_t reads;

static void counted(struct fid_cntr *c, uint64_t until)
{
	while (fi_cntr_read(c) < until)
		reads++;
}

static void open_counted(const char *fabric_name)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_NONE };

	open_disabled(fabric_name);
	DO(0, fi_cntr_open(domain, &attr, &sent, NULL));
	DO(0, fi_cntr_open(domain, &attr, &received, NULL));
	DO(0, fi_ep_bind(ep, &sent->fid, FI_SEND));
	DO(0, fi_ep_bind(ep, &received->fid, FI_RECV));
	enable();
}

/* Sends to the other process and receives its answer, or the reverse; returns how often it read. */
static uint64_t rounds(int begins, fi_addr_t peer)
{
	struct fi_cq_data_entry e[2];

	for (uint64_t i = 1; i <= ROUNDS; i++) {
		POST(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, &contexts[0]));
		if (!begins)
			counted(received, i);
		POST(fi_send(ep, out, sizeof(out), NULL, peer, &contexts[1]));
		counted(sent, i);
		if (begins)
			counted(received, i);
		TRUE(fi_cq_read(cq, e, 2) == 2);
		if (i == 1)
			reads = 0;
	}
	return reads;
}

int main(int argc, char **argv)
{
	int there[2], here[2], status;
	char theirs[sizeof(name)], byte = 0;
	cpu_set_t one;
	fi_addr_t peer;
	uint64_t n;
	pid_t child;

	TRUE(argc == 2 && pipe(there) == 0 && pipe(here) == 0);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	DO(0, sched_setaffinity(0, sizeof(one), &one));
	child = fork();
	TRUE(child >= 0);
	open_counted(argv[1]);
	DO(sizeof(name), write(child ? there[1] : here[1], name, sizeof(name)));
	DO(sizeof(theirs), read(child ? here[0] : there[0], theirs, sizeof(theirs)));
	DO(1, fi_av_insert(av, theirs, 1, &peer, 0, NULL));
	n = rounds(child != 0, peer);
	TRUE(n < (uint64_t) ROUNDS * READS);
	if (!child) {
		/* The endpoint stays until the other process has its last answer. */
		DO(1, read(there[0], &byte, 1));
		return EXIT_SUCCESS;
	}
	DO(1, write(there[1], &byte, 1));
	DO(child, waitpid(child, &status, 0));
	DO(0, status);
	printf("%d answers\n", ROUNDS);
	return EXIT_SUCCESS;
}
