/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests of one endpoint that talks to itself, of the fabric they name. */
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
/* Its address. */
static char name[64];

/* Bytes that are others each time. */
static inline void pattern(char *at, size_t len)
{
	static char seed;

	seed += 7;
	for (size_t i = 0; i < len; i++)
		at[i] = (char) (seed + i * 3);
}

/* Its fi_info, or the errno of fi_getinfo(3), of an endpoint that injects so many bytes; 0 leaves it open how many. */
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
	ret = fi_getinfo(FI_VERSION(2, 5), NULL, NULL, 0, hints, &info);
	fi_freeinfo(hints);
	return ret;
}

/* A domain, with a queue and an address vector. */
static void open_domain(void)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
}

/* An endpoint that is not enabled, with these queues. */
static void open_endpoint(struct fid_cq *tx, struct fid_cq *rx)
{
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &tx->fid, FI_TRANSMIT | (tx == rx ? FI_RECV : 0)));
	if (tx != rx)
		DO(0, fi_ep_bind(ep, &rx->fid, FI_RECV));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
}

/* Everything but fi_enable(3), as was asked for. */
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

/* Memory that is registered goes first. */
static inline void close_all(void)
{
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
}

#endif
