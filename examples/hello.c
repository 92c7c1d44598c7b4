/*
 * A message from one process to another, by its tag.
 *
 *     cc hello.c -o hello $(pkg-config --cflags --libs libfabric)
 *     ./hello                     prints the command for the other side, and waits for a message
 *     ./hello ADDRESS             sends one
 *
 * Works with any provider of reliable datagrams and tags; FI_PROVIDER=efa names one.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 42, ADDRESS_MAX = 256 };

/* Ends the program with the error's text if `ret` is negative. */
static long ok(long ret, const char *call)
{
	if (ret < 0) {
		fprintf(stderr, "%s: %s\n", call, fi_strerror((int)-ret));
		exit(1);
	}
	return ret;
}

/* Waits for one completion. An error completion carries a text of the provider's. */
static struct fi_cq_tagged_entry next(struct fid_cq *cq)
{
	struct fi_cq_tagged_entry done = {0};
	struct fi_cq_err_entry bad = {0};
	ssize_t ret;

	do
		ret = fi_cq_sread(cq, &done, 1, NULL, -1);
	while (ret == -FI_EAGAIN);
	if (ret == -FI_EAVAIL) {
		ok(fi_cq_readerr(cq, &bad, 0), "fi_cq_readerr");
		fprintf(stderr, "%s\n", fi_cq_strerror(cq, bad.prov_errno, bad.err_data, NULL, 0));
		exit(1);
	}
	ok(ret, "fi_cq_sread");
	return done;
}

int main(int argc, char **argv)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_UNSPEC};
	struct fi_av_attr av_attr = {0};
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fi_context2 context;
	unsigned char address[ADDRESS_MAX] = {0};
	size_t len = sizeof(address);
	char text[64] = "hello";
	fi_addr_t peer;

	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	ok(fi_getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &info), "fi_getinfo");
	ok(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	ok(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	ok(fi_cq_open(domain, &cq_attr, &cq, NULL), "fi_cq_open");
	ok(fi_av_open(domain, &av_attr, &av, NULL), "fi_av_open");
	ok(fi_endpoint(domain, info, &ep, NULL), "fi_endpoint");
	ok(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
	ok(fi_ep_bind(ep, &av->fid, 0), "fi_ep_bind");
	ok(fi_enable(ep), "fi_enable");

	if (argc < 2) {
		ok(fi_getname(&ep->fid, address, &len), "fi_getname");
		printf("%s ", argv[0]);
		for (size_t i = 0; i < len; i++)
			printf("%02x", address[i]);
		printf("\n");
		fflush(stdout);
		ok(fi_trecv(ep, text, sizeof(text), NULL, FI_ADDR_UNSPEC, TAG, 0, &context), "fi_trecv");
		len = next(cq).len;
		printf("got \"%.*s\"\n", (int)len, text);
	} else {
		for (len = 0; len < sizeof(address) && sscanf(argv[1] + 2 * len, "%2hhx", &address[len]) == 1;)
			len++;
		if (ok(fi_av_insert(av, address, 1, &peer, 0, NULL), "fi_av_insert") != 1)
			ok(-FI_EADDRNOTAVAIL, "fi_av_insert");
		ssize_t ret;
		/* FI_EAGAIN: the queue is full, or the connection to the peer is being set up. */
		while ((ret = fi_tsend(ep, text, strlen(text), NULL, peer, TAG, &context)) == -FI_EAGAIN)
			fi_cq_read(cq, NULL, 0);
		ok(ret, "fi_tsend");
		next(cq);
	}

	fi_close(&ep->fid);
	fi_close(&av->fid);
	fi_close(&cq->fid);
	fi_close(&domain->fid);
	fi_close(&fabric->fid);
	fi_freeinfo(info);
	fi_freeinfo(hints);
	return 0;
}
