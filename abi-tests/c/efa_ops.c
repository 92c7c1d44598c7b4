/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Operations that fi_open_ops(3) returns on an EFA adapter (rdma/fi_ext_efa.h), for `efa-sim run`:
 * each query returns correct data, or FI_EOPNOTSUPP where libefa lacks the query.
 */
#include <rdma/fi_ext_efa.h>
#include "alone.h"

static char buf[4096];

int main(void)
{
	struct fi_efa_wq_attr sq = { 0 }, rq = { 0 };
	struct fi_efa_cq_attr memory = { 0 };
	struct fi_efa_mr_attr reach;
	struct fi_efa_ops_domain *domain_ops;
	struct fi_efa_ops_gda *gda;
	struct fid_mr *mr;
	void *none;
	uint16_t ahn, qpn;
	uint32_t qkey;

	open_disabled("efa-direct");
	TRUE(info->nic && info->nic->bus_attr->bus_type == FI_BUS_PCI);
	DO(0, fi_open_ops(&domain->fid, FI_EFA_DOMAIN_OPS, 0, (void **) &domain_ops, NULL));
	DO(0, fi_open_ops(&domain->fid, FI_EFA_GDA_OPS, 0, (void **) &gda, NULL));
	DO(-FI_ENOSYS, fi_open_ops(&domain->fid, "no such ops", 0, &none, NULL));
	DO(-FI_EINVAL, gda->query_qp_wqs(ep, &sq, &rq));
	enable();
	DO(0, fi_mr_reg(domain, buf, sizeof(buf), FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));

	DO(0, gda->query_addr(ep, self, &ahn, &qpn, &qkey));
	TRUE(!memcmp(&qpn, name + 16, 2) && !memcmp(&qkey, name + 20, 4) && ahn != 0xffff);
	DO(-FI_EINVAL, gda->query_addr(ep, 99, &ahn, &qpn, &qkey));
	TRUE(gda->get_mr_lkey(mr) != FI_KEY_NOTAVAIL);
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
	close_all();
	return EXIT_SUCCESS;
}
