/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Objects of two providers in one process: each call that takes an object of another provider, to
 * bind it for example, refuses it with FI_EINVAL, and fi_endpoint another provider's info with
 * FI_ENODATA. fi_getinfo returns what is open, and obeys its handles.
 *
 * two_providers FABRIC
 */
#include <stdbool.h>
#include <stdio.h>
#include <rdma/fi_eq.h>
#include "alone.h"

/* Objects of provider tcp. */
static struct fi_info *tcp_info;
static struct fid_fabric *tcp_fabric;
static struct fid_domain *tcp_domain;
static struct fid_cq *tcp_cq;
static struct fid_cntr *tcp_cntr;
static struct fid_av *tcp_av;
static struct fid_ep *tcp_ep, *tcp_srx;
static struct fid_stx *tcp_stx;

static void open_tcp(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_CONTEXT };
	struct fi_cntr_attr na = { 0 };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	hints->fabric_attr->prov_name = strdup("tcp");
	hints->ep_attr->type = FI_EP_RDM;
	DO(0, fi_getinfo(FI_VERSION(2, 5), "127.0.0.1", NULL, FI_SOURCE, hints, &tcp_info));
	fi_freeinfo(hints);
	DO(0, fi_fabric(tcp_info->fabric_attr, &tcp_fabric, NULL));
	DO(0, fi_domain(tcp_fabric, tcp_info, &tcp_domain, NULL));
	DO(0, fi_cq_open(tcp_domain, &ca, &tcp_cq, NULL));
	DO(0, fi_cntr_open(tcp_domain, &na, &tcp_cntr, NULL));
	DO(0, fi_av_open(tcp_domain, &aa, &tcp_av, NULL));
	DO(0, fi_endpoint(tcp_domain, tcp_info, &tcp_ep, NULL));
	DO(0, fi_srx_context(tcp_domain, NULL, &tcp_srx, NULL));
	DO(0, fi_stx_context(tcp_domain, NULL, &tcp_stx, NULL));
}

static void close_tcp(void)
{
	struct fid *all[] = { &tcp_stx->fid, &tcp_srx->fid, &tcp_ep->fid, &tcp_av->fid, &tcp_cntr->fid,
			&tcp_cq->fid, &tcp_domain->fid, &tcp_fabric->fid };

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		DO(0, fi_close(all[i]));
	fi_freeinfo(tcp_info);
}

static void refused(void)
{
	struct fid *theirs[] = { &tcp_cq->fid, &tcp_cntr->fid, &tcp_av->fid, &tcp_srx->fid,
			&tcp_stx->fid };
	struct fid *waited[] = { &tcp_cq->fid };
	struct fi_poll_attr pa = { 0 };
	struct fid_poll *set;
	struct fid_mr *mr;
	char buf[8];

	for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++)
		DO(-FI_EINVAL, fi_ep_bind(ep, theirs[i], FI_TRANSMIT | FI_RECV));
	DO(-FI_EINVAL, fi_ep_bind(tcp_ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(-FI_EINVAL, fi_ep_bind(tcp_ep, &av->fid, 0));
	DO(-FI_EINVAL, fi_trywait(fabric, waited, 1));
	DO(0, fi_poll_open(domain, &pa, &set));
	DO(-FI_EINVAL, fi_poll_add(set, &tcp_cq->fid, 0));
	DO(-FI_EINVAL, fi_poll_add(set, &tcp_cntr->fid, 0));
	DO(0, fi_poll_add(set, &cq->fid, 0));
	DO(0, fi_close(&set->fid));
	DO(0, fi_mr_reg(domain, buf, sizeof(buf), FI_SEND, 0, 0, 0, &mr, NULL));
	DO(-FI_EINVAL, fi_mr_bind(mr, &tcp_cntr->fid, FI_REMOTE_WRITE));
	DO(0, fi_close(&mr->fid));
}

/* Infos of this endpoint type for hints with these handles; returns how many. */
static int list(struct fid_fabric *f, struct fid_domain *d, struct fi_info **got)
{
	struct fi_info *hints = fi_allocinfo();
	int n = 0;

	hints->mode = ~0ull;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->fabric = f;
	hints->domain_attr->domain = d;
	*got = NULL;
	if (fi_getinfo(FI_VERSION(2, 5), NULL, NULL, 0, hints, got) == -FI_ENODATA)
		return 0;
	for (struct fi_info *i = *got; i; i = i->next)
		n++;
	fi_freeinfo(hints);
	return n;
}

static void handles(void)
{
	struct fi_info *all, *few;
	struct fid_ep *none;
	int own = 0;

	DO(-FI_ENODATA, fi_endpoint(domain, tcp_info, &none, NULL));
	DO(-FI_ENODATA, fi_endpoint(tcp_domain, info, &none, NULL));
	TRUE(list(NULL, NULL, &all) > 1);
	for (struct fi_info *i = all; i; i = i->next) {
		bool same = !strcmp(i->fabric_attr->name, info->fabric_attr->name)
				&& !strcmp(i->domain_attr->name, info->domain_attr->name);

		TRUE((i->domain_attr->domain == domain) == same);
		TRUE(!same || i->fabric_attr->fabric == fabric);
		own += same;
	}
	TRUE(own > 0);
	DO(own, list(fabric, domain, &few));
	TRUE(few->domain_attr->domain == domain);
	TRUE(!strcmp(few->domain_attr->name, info->domain_attr->name));
	fi_freeinfo(few);
	TRUE(list(NULL, tcp_domain, &few) > 0);
	for (struct fi_info *i = few; i; i = i->next) {
		TRUE(i->domain_attr->domain == tcp_domain && i->fabric_attr->fabric == tcp_fabric);
		TRUE(!strcmp(i->fabric_attr->prov_name, "tcp"));
	}
	fi_freeinfo(few);
	DO(0, list(tcp_fabric, domain, &few));
	fi_freeinfo(all);
}

/* What is closed is not returned, and restricts nothing. */
static void closed(void)
{
	struct fi_info *all;

	TRUE(list(NULL, NULL, &all) > 0);
	for (struct fi_info *i = all; i; i = i->next)
		TRUE(i->domain_attr->domain != tcp_domain && i->fabric_attr->fabric != tcp_fabric);
	fi_freeinfo(all);
	TRUE(list(tcp_fabric, NULL, &all) > 1);
	fi_freeinfo(all);
}

/* A shared transmit context has no operations. */
static void transmit_context(void)
{
	size_t value = 0, len = sizeof(value);

	DO(-FI_ENOSYS, fi_cancel(&tcp_stx->fid, NULL));
	DO(-FI_ENOPROTOOPT,
	   fi_getopt(&tcp_stx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, &len));
	DO(-FI_ENOPROTOOPT,
	   fi_setopt(&tcp_stx->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &value, len));
}

int main(int argc, char **argv)
{
	TRUE(argc == 2);
	DO(0, ask(argv[1], 0));
	open_domain();
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	open_tcp();
	refused();
	handles();
	transmit_context();
	close_tcp();
	closed();
	close_all();
	puts("objects of another provider are refused");
	return 0;
}
