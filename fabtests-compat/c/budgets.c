/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Start-up costs in time and resident memory: fi_getinfo, endpoints, addresses. Prints a line for
 * each. The first argument is the fabric (default "efa"), the second the number of endpoints.
 */
#include <string.h>
#include <time.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include "must.h"

#define ADDRS 100000

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[256];
	long kib = 0;

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, "VmRSS:", 6) == 0)
			kib = atol(line + 6);
	if (f)
		fclose(f);
	return kib;
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

static struct fi_info *hints_for(const char *fabric)
{
	struct fi_info *h = fi_allocinfo();

	h->fabric_attr->name = strdup(fabric);
	h->fabric_attr->prov_name = strdup("efa");
	h->mode = FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	return h;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "efa";
	int count = argc > 2 ? atoi(argv[2]) : 4;
	struct fi_info *hints = hints_for(name), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *av;
	struct fid_cq *cq;
	struct fid_ep *ep = NULL;
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_cq_data_entry e;
	char addr[64], *list;
	size_t len = sizeof(addr);
	double t = now_ms();
	long kib;

	DO(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	printf("%-32s %10.2f ms\n", "first fi_getinfo", now_ms() - t);
	fi_freeinfo(info);
	t = now_ms();
	DO(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	printf("%-32s %10.3f ms\n", "fi_getinfo again", now_ms() - t);
	kib = resident_kib();
	t = now_ms();
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	DO(fi_av_open(domain, &aa, &av, NULL));
	printf("%-32s %10.2f ms %8ld KiB\n", "fabric, domain, address vector", now_ms() - t,
			resident_kib() - kib);
	for (int i = 0; i < count; i++) {
		kib = resident_kib();
		t = now_ms();
		DO(fi_cq_open(domain, &ca, &cq, NULL));
		DO(fi_endpoint(domain, info, &ep, NULL));
		DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
		DO(fi_ep_bind(ep, &av->fid, 0));
		DO(fi_enable(ep));
		fi_cq_read(cq, &e, 1);
		printf("endpoint %-23d %10.2f ms %8ld KiB\n", i + 1, now_ms() - t, resident_kib() - kib);
	}
	DO(fi_getname(&ep->fid, addr, &len));
	list = malloc(ADDRS * len);
	for (unsigned i = 0; i < ADDRS; i++) {
		unsigned key = i + 1;
		unsigned short qpn = i & 0x3fff;

		/* Each address has another number and key: 16 bytes GID, number, reserved, key. */
		memcpy(list + i * len, addr, len);
		memcpy(list + i * len + 16, &qpn, sizeof(qpn));
		memcpy(list + i * len + 20, &key, sizeof(key));
	}
	kib = resident_kib();
	t = now_ms();
	DO(fi_av_insert(av, list, ADDRS, NULL, 0, NULL));
	printf("%-32s %10.2f ms %8ld KiB\n", "100,000 addresses", now_ms() - t, resident_kib() - kib);
	fi_freeinfo(hints);
	return EXIT_SUCCESS;
}
