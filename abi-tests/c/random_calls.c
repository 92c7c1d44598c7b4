/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * random_calls COUNT [SEED]: random sequences of valid calls, checked against a model.
 *
 * Objects are opened, bound, enabled and closed, operations are posted from an endpoint to itself,
 * queues are read, and forked children close some of what they inherited. The model counts the
 * users of each object: fi_close returns FI_EBUSY exactly while an object has users. An operation
 * ends once, or not at all when its endpoint is closed. Calls fail only as the man pages say.
 * Meant for the address sanitizer.
 */
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include "../../fabtests-compat/c/dice.h"
#include "do.h"

#define MOST 4
#define OPS 256
#define LEN 4096
#define STEPS 400

enum kind { DOMAIN, CQ, AV, CNTR, MR, EP, KINDS };

static const char *const names[KINDS] = { "domain", "queue", "vector", "counter", "region",
		"endpoint" };

struct object {
	struct fid *fid;
	/* Number of objects that refer to this one; index of its domain. */
	int users, domain;
	/* Endpoints only: bound objects (-1: none), whether enabled, the own address. */
	int cq, av, cntr;
	bool enabled;
	fi_addr_t self;
	char *buf;
};

/* LATE: the endpoint was closed; a completion may still be unread, or never comes. */
enum state { FREE, POSTED, LATE };

struct op {
	int ep;
	enum state state;
	char buf[LEN];
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct object all[KINDS][MOST];
static struct op ops[OPS];
static uint64_t first;
static int step;

static void fail(const char *text, long r)
{
	printf("seed %#lx, step %d: %s: %ld\n", (unsigned long) first, step, text, r);
	fflush(stdout);
	_exit(EXIT_FAILURE);
}

/* A random open object of a kind, in `domain` unless that is -1; -1 when the slot is empty. */
static int some(enum kind k, int domain)
{
	int i = (int) dice(MOST);

	return all[k][i].fid && (domain < 0 || all[k][i].domain == domain) ? i : -1;
}

static struct fid_domain *dom(int i)
{
	return (struct fid_domain *) all[DOMAIN][i].fid;
}

static void open_one(void)
{
	enum kind k = (enum kind) dice(KINDS);
	int i = (int) dice(MOST), d = some(DOMAIN, -1);
	struct object *o = &all[k][i];
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED,
			.wait_obj = dice(2) ? FI_WAIT_FD : FI_WAIT_NONE };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	long r;

	if (o->fid || (k != DOMAIN && d < 0))
		return;
	memset(o, 0, sizeof(*o));
	o->domain = d;
	o->cq = o->av = o->cntr = -1;
	switch (k) {
	case DOMAIN:
		r = fi_domain(fabric, info, (struct fid_domain **) &o->fid, NULL);
		break;
	case CQ:
		r = fi_cq_open(dom(d), &ca, (struct fid_cq **) &o->fid, NULL);
		break;
	case AV:
		r = fi_av_open(dom(d), &aa, (struct fid_av **) &o->fid, NULL);
		break;
	case CNTR:
		r = fi_cntr_open(dom(d), &na, (struct fid_cntr **) &o->fid, NULL);
		break;
	case MR:
		o->buf = calloc(1, LEN);
		r = fi_mr_reg(dom(d), o->buf, LEN,
				FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
				0, 0, 0, (struct fid_mr **) &o->fid, NULL);
		break;
	default:
		r = fi_endpoint(dom(d), info, (struct fid_ep **) &o->fid, NULL);
	}
	if (r)
		fail("opening fails", r);
	if (k != DOMAIN)
		all[DOMAIN][d].users++;
}

static void close_one(enum kind k, int i)
{
	struct object *o = &all[k][i];
	long r = fi_close(o->fid), want = o->users ? -FI_EBUSY : 0;

	if (r != want) {
		printf("%s with %d users: ", names[k], o->users);
		fail("closing", r);
	}
	if (r)
		return;
	o->fid = NULL;
	if (k != DOMAIN)
		all[DOMAIN][o->domain].users--;
	if (k == MR)
		free(o->buf);
	if (k != EP)
		return;
	if (o->cq >= 0)
		all[CQ][o->cq].users--;
	if (o->av >= 0)
		all[AV][o->av].users--;
	if (o->cntr >= 0)
		all[CNTR][o->cntr].users--;
	for (int n = 0; n < OPS; n++)
		if (ops[n].ep == i && ops[n].state == POSTED)
			ops[n].state = LATE;
}

static void bind_one(void)
{
	int e = some(EP, -1), to;
	struct object *o;
	struct fid_ep *ep;
	long r;

	if (e < 0 || all[EP][e].enabled)
		return;
	o = &all[EP][e];
	ep = (struct fid_ep *) o->fid;
	if (o->cq < 0 && (to = some(CQ, o->domain)) >= 0) {
		r = fi_ep_bind(ep, all[CQ][to].fid, FI_TRANSMIT | FI_RECV);
		if (r)
			fail("binding a queue", r);
		all[CQ][o->cq = to].users++;
	}
	if (o->av < 0 && (to = some(AV, o->domain)) >= 0) {
		r = fi_ep_bind(ep, all[AV][to].fid, 0);
		if (r)
			fail("binding a vector", r);
		all[AV][o->av = to].users++;
	}
	if (o->cntr < 0 && (to = some(CNTR, o->domain)) >= 0) {
		r = fi_ep_bind(ep, all[CNTR][to].fid, FI_SEND | FI_WRITE);
		if (r)
			fail("binding a counter", r);
		all[CNTR][o->cntr = to].users++;
	}
	r = fi_enable(ep);
	if (o->cq >= 0 && o->av >= 0) {
		char addr[64];
		size_t len = sizeof(addr);

		if (r)
			fail("fi_enable", r);
		o->enabled = true;
		if (fi_getname(o->fid, addr, &len) || fi_av_insert((struct fid_av *) all[AV][o->av].fid, addr,
				1, &o->self, 0, NULL) != 1)
			fail("its own address", 0);
	} else if (r != -FI_ENOCQ && r != -FI_ENOAV) {
		fail("fi_enable without queue or vector", r);
	}
}

static void post_one(void)
{
	int e = some(EP, -1), n = (int) dice(OPS), m;
	struct object *o;
	struct fid_ep *ep;
	struct op *op = &ops[n];
	size_t len = dice(3) ? dice(64) : dice(LEN);
	uint64_t at = 0, key = 0;
	long r;

	if (e < 0 || op->state != FREE)
		return;
	o = &all[EP][e];
	ep = (struct fid_ep *) o->fid;
	m = some(MR, o->domain);
	if (m >= 0) {
		at = (uintptr_t) all[MR][m].buf;
		key = fi_mr_key((struct fid_mr *) all[MR][m].fid);
	}
	switch (dice(6)) {
	case 0:
		r = fi_send(ep, op->buf, len, NULL, o->self, op);
		break;
	case 1:
		r = fi_recv(ep, op->buf, len, NULL, FI_ADDR_UNSPEC, op);
		break;
	case 2:
		r = fi_tsend(ep, op->buf, len, NULL, o->self, dice(4), op);
		break;
	case 3:
		r = fi_trecv(ep, op->buf, len, NULL, FI_ADDR_UNSPEC, dice(4), dice(2), op);
		break;
	case 4:
		r = fi_write(ep, op->buf, len, NULL, o->self, at, key, op);
		break;
	default:
		r = fi_read(ep, op->buf, len, NULL, o->self, at, key, op);
	}
	if (!o->enabled) {
		if (r != -FI_EOPBADSTATE)
			fail("posting to an endpoint that is not enabled", r);
		return;
	}
	if (r && r != -FI_EAGAIN)
		fail("posting", r);
	op->state = r ? FREE : POSTED;
	op->ep = e;
}

static void ended(void *context)
{
	struct op *op = context;

	if (op < ops || op >= ops + OPS || op->state == FREE)
		fail("an operation ends that was not posted, or twice", (long) (op - ops));
	op->state = FREE;
}

static void read_one(void)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = { 0 };
	int q = some(CQ, -1);
	long r;

	if (q < 0)
		return;
	for (int i = 0; i < 20; i++) {
		struct fid_cq *cq = (struct fid_cq *) all[CQ][q].fid;

		r = fi_cq_read(cq, &e, 1);
		if (r == 1) {
			ended(e.op_context);
		} else if (r == -FI_EAVAIL) {
			if (fi_cq_readerr(cq, &err, 0) != 1)
				fail("fi_cq_readerr", 0);
			ended(err.op_context);
		} else if (r != -FI_EAGAIN) {
			fail("fi_cq_read", r);
		}
	}
}

static void cancel_one(void)
{
	int n = (int) dice(OPS);

	if (ops[n].state == POSTED && all[EP][ops[n].ep].fid)
		fi_cancel(all[EP][ops[n].ep].fid, &ops[n]);
}

/* A child closes some of what it has inherited, in any order. */
static void fork_one(void)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(20);
		for (int n = 0; n < 30; n++) {
			enum kind k = (enum kind) dice(KINDS);
			int i = some(k, -1);

			if (i >= 0 && !all[k][i].users)
				close_one(k, i);
		}
		_exit(EXIT_SUCCESS);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
		fail("a child", pid < 0 ? 0 : status);
}

static void everything(void)
{
	for (step = 0; step < STEPS; step++) {
		unsigned what = dice(100);
		enum kind k = (enum kind) dice(KINDS);
		int i;

		if (what < 25)
			open_one();
		else if (what < 37)
			bind_one();
		else if (what < 75)
			post_one();
		else if (what < 90)
			read_one();
		else if (what < 93)
			cancel_one();
		else if (what < 94 && dice(4) == 0)
			fork_one();
		else if ((i = some(k, -1)) >= 0)
			close_one(k, i);
	}
	/* Close in the reverse order of dependency. */
	for (int k = KINDS - 1; k >= 0; k--)
		for (int i = 0; i < MOST; i++)
			if (all[k][i].fid)
				close_one((enum kind) k, i);
	for (int n = 0; n < OPS; n++)
		ops[n].state = FREE;
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo();
	int count = argc > 1 ? atoi(argv[1]) : 20;

	first = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	/* Errors are expected: keep them out of the log. */
	setenv("FI_LOG_LEVEL", "none", 0);
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup("efa");
	hints->fabric_attr->name = strdup("efa");
	DO(0, fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	for (int n = 0; n < count; n++, first++) {
		seed = first * 0x9e3779b97f4a7c15ull | 1;
		everything();
	}
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
	printf("%d sequences of %d calls\n", count, STEPS);
	return EXIT_SUCCESS;
}
