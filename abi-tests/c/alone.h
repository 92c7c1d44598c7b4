/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests with one endpoint that sends to itself, on the fabric that each test names. */
#ifndef ALONE_H
#define ALONE_H

#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include "do.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_ep *ep;
static fi_addr_t self;
/* How a reader of `cq` may wait. */
static enum fi_wait_obj queue_wait = FI_WAIT_NONE;
/* Traffic classes to ask for: the domain's, the endpoint's. */
static uint32_t traffic[2] = { FI_TC_UNSPEC, FI_TC_UNSPEC };
/* Address of `ep`. */
static char name[64];

/* Fills a buffer with bytes that differ from call to call. */
static inline void pattern(char *at, size_t len)
{
	static char seed;

	seed += 7;
	for (size_t i = 0; i < len; i++)
		at[i] = (char) (seed + i * 3);
}

/* Gets `info` of an endpoint that injects `inject` bytes (0: any); returns 0 or the errno. */
static int ask(const char *fabric_name, size_t inject)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	hints->fabric_attr->name = strdup(fabric_name);
	hints->fabric_attr->prov_name = strdup("efa");
	hints->ep_attr->type = FI_EP_RDM;
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->tx_attr->inject_size = inject;
	hints->domain_attr->tclass = traffic[0];
	hints->tx_attr->tclass = traffic[1];
	ret = fi_getinfo(FI_VERSION(2, 5), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return ret;
}

/* Opens a fabric and a domain, with a completion queue and an address vector. */
static void open_domain(void)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA, .wait_obj = queue_wait };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
}

/* Opens an endpoint with these queues, and does not enable it. */
static void open_endpoint(struct fid_cq *tx, struct fid_cq *rx)
{
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | (tx == rx ? FI_RECV : 0)));
	if (tx != rx)
		DO(0, fi_ep_bind(ep, &rx->fid, FI_RECV));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
}

/* Opens everything for `info`, up to fi_enable(3). */
static inline void open_asked(void)
{
	open_domain();
	open_endpoint(cq, cq);
}

static inline void open_disabled(const char *fabric_name)
{
	DO(0, ask(fabric_name, 0));
	open_asked();
}

static inline void enable(void)
{
	size_t len = sizeof(name);

	DO(0, fi_enable(ep));
	DO(0, fi_getname(&ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &self, 0, NULL));
}

/* Closes what a closed endpoint was opened with; memory regions must be closed before. */
static inline void close_domain(void)
{
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
}

/* Closes everything. */
static inline void close_all(void)
{
	DO(0, fi_close(&ep->fid));
	close_domain();
}

/* Posts an operation; polls and repeats while the call returns FI_EAGAIN. */
#define POST(call) \
	do { \
		ssize_t ret_; \
		while ((ret_ = (call)) == -FI_EAGAIN) \
			fi_cq_read(cq, NULL, 0); \
		DO(0, ret_); \
	} while (0)

#endif
