/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What fi_open_ops gives out on a real adapter (rdma/fi_ext_efa.h), for `efa-sim run`: every answer is a true one, or
 * the errno of a libefa that cannot say.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext_efa.h>

#define DO(want, call) \
	do { \
		long got_ = (call); \
		if (got_ != (want)) { \
			printf("line %d: %s: %ld, wanted %ld\n", __LINE__, #call, got_, (long) (want)); \
			exit(EXIT_FAILURE); \
		} \
	} while (0)
#define TRUE(what) DO(1, !!(what))

static char buf[4096];

int main(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_efa_wq_attr sq = { 0 }, rq = { 0 };
	struct fi_efa_cq_attr memory = { 0 };
	struct fi_efa_mr_attr reach;
	struct fi_efa_ops_domain *domain_ops;
	struct fi_efa_ops_gda *gda;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_mr *mr;
	void *none;
	char name[64];
	size_t len = sizeof(name);
	fi_addr_t self;
	uint16_t ahn, qpn;
	uint32_t qkey;

	hints->fabric_attr->name = strdup("efa-direct");
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	DO(0, fi_getinfo(FI_VERSION(2, 1), NULL, NULL, 0, hints, &info));
	TRUE(info->nic && info->nic->bus_attr->bus_type == FI_BUS_PCI);
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
	DO(0, fi_open_ops(&domain->fid, FI_EFA_DOMAIN_OPS, 0, (void **) &domain_ops, NULL));
	DO(0, fi_open_ops(&domain->fid, FI_EFA_GDA_OPS, 0, (void **) &gda, NULL));
	DO(-FI_ENOSYS, fi_open_ops(&domain->fid, "no such ops", 0, &none, NULL));
	DO(-FI_EINVAL, gda->query_qp_wqs(ep, &sq, &rq));
	DO(0, fi_enable(ep));
	DO(0, fi_getname(&ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &self, 0, NULL));
	DO(0, fi_mr_reg(domain, buf, sizeof(buf), FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));

	DO(0, gda->query_addr(ep, self, &ahn, &qpn, &qkey));
	TRUE(!memcmp(&qpn, name + 16, 2) && !memcmp(&qkey, name + 20, 4) && ahn != 0xffff);
	DO(-FI_EINVAL, gda->query_addr(ep, 99, &ahn, &qpn, &qkey));
	TRUE(gda->get_mr_lkey(mr) != FI_KEY_NOTAVAIL);
	DO(-FI_EOPNOTSUPP, gda->cq_open_ext(domain, &ca, NULL, &cq, NULL));
	if (gda->query_qp_wqs(ep, &sq, &rq) == 0) {
		TRUE(sq.buffer && sq.doorbell && sq.entry_size == 64 && sq.num_entries >= info->tx_attr->size);
		TRUE(rq.buffer && rq.doorbell && rq.entry_size == 16 && rq.num_entries >= info->rx_attr->size);
		DO(0, gda->query_cq(cq, &memory));
		TRUE(memory.buffer && memory.num_entries >= info->tx_attr->size + info->rx_attr->size);
		DO(0, domain_ops->query_mr(mr, &reach));
		puts("queues and regions are told of");
	} else {
		DO(-FI_EOPNOTSUPP, gda->query_qp_wqs(ep, &sq, &rq));
		DO(-FI_EOPNOTSUPP, gda->query_cq(cq, &memory));
		puts("this libefa does not tell of queues");
	}
	DO(0, fi_close(&mr->fid));
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return EXIT_SUCCESS;
}
