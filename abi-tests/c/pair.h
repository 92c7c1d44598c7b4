/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests with two endpoints, `a` and `b`, of one domain. */
#ifndef PAIR_H
#define PAIR_H

#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_trigger.h>
#include "do.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static char buf[2][1 << 16];

struct side {
	struct fid_ep *ep;
	struct fid_cq *tx, *rx;
	struct fid_cntr *sent, *got, *far;
	fi_addr_t addr;
};
static struct side a, b;

static void open_side(struct side *s, struct fid_ep *srx, enum fi_wait_obj wait,
		struct fid_wait *set)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait, .wait_set = set };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	char name[64];
	size_t len = sizeof(name);

	DO(0, fi_cq_open(domain, &ca, &s->tx, s));
	DO(0, fi_cq_open(domain, &ca, &s->rx, s));
	DO(0, fi_cntr_open(domain, &na, &s->sent, NULL));
	DO(0, fi_cntr_open(domain, &na, &s->got, NULL));
	DO(0, fi_cntr_open(domain, &na, &s->far, NULL));
	DO(0, fi_endpoint(domain, info, &s->ep, NULL));
	DO(0, fi_ep_bind(s->ep, &av->fid, 0));
	DO(0, fi_ep_bind(s->ep, &s->tx->fid, FI_TRANSMIT));
	DO(0, fi_ep_bind(s->ep, &s->rx->fid, FI_RECV));
	DO(0, fi_ep_bind(s->ep, &s->sent->fid, FI_SEND | FI_WRITE | FI_READ));
	DO(0, fi_ep_bind(s->ep, &s->got->fid, FI_RECV));
	DO(0, fi_ep_bind(s->ep, &s->far->fid, FI_REMOTE_WRITE | FI_REMOTE_READ));
	if (srx)
		DO(0, fi_ep_bind(s->ep, &srx->fid, 0));
	DO(0, fi_enable(s->ep));
	DO(0, fi_getname(&s->ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &s->addr, 0, NULL));
}

static void close_side(struct side *s)
{
	DO(0, fi_close(&s->ep->fid));
	DO(0, fi_close(&s->tx->fid));
	DO(0, fi_close(&s->rx->fid));
	DO(0, fi_close(&s->sent->fid));
	DO(0, fi_close(&s->got->fid));
	DO(0, fi_close(&s->far->fid));
}

/* Reads one completion, and progresses both sides meanwhile. */
static struct fi_cq_tagged_entry take(struct fid_cq *q)
{
	struct fi_cq_tagged_entry e;
	ssize_t n;

	while ((n = fi_cq_read(q, &e, 1)) == -FI_EAGAIN) {
		(void) fi_cq_read(a.tx, NULL, 0);
		(void) fi_cq_read(b.tx, NULL, 0);
	}
	DO(1, n);
	return e;
}

static inline int take_error(struct fid_cq *q)
{
	struct fi_cq_err_entry e = { 0 };
	struct fi_cq_tagged_entry c;

	while (fi_cq_read(q, &c, 1) != -FI_EAVAIL) {
		(void) fi_cq_read(a.tx, NULL, 0);
		(void) fi_cq_read(b.tx, NULL, 0);
	}
	DO(1, fi_cq_readerr(q, &e, 0));
	return e.err;
}

static inline void send_tagged(struct side *to, uint64_t tag, size_t len)
{
	memset(buf[0], (int) tag, len);
	DO(0, fi_tsend(a.ep, buf[0], len, NULL, to->addr, tag, NULL));
	(void) take(a.tx);
}

/* Opens both endpoints and what they need. */
static void open_pair(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_DIRECTED_RECV
			| FI_RMA_EVENT | FI_TRIGGER | FI_FENCE;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->ep_attr->type = FI_EP_RDM;
	DO(0, fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	open_side(&a, NULL, FI_WAIT_NONE, NULL);
	open_side(&b, NULL, FI_WAIT_NONE, NULL);
	fi_freeinfo(hints);
}

static void close_pair(void)
{
	close_side(&a);
	close_side(&b);
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
}

#endif
