/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Bad input: NULL, wrong sizes, unknown flags, wrong order, closed objects. Every call must return
 * the errno of its man page; none may crash. Each EXPECT line is one case.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_collective.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_prov.h>

static int cases, failures;

#define EXPECT(want, call) \
	do { \
		long got_ = (long) (call); \
		cases++; \
		if (got_ != (long) (want)) { \
			failures++; \
			printf("line %d: %s: %ld (%s), wanted %ld\n", __LINE__, #call, got_, \
			       fi_strerror((int) -got_), (long) (want)); \
		} \
	} while (0)
#define API FI_VERSION(1, 21)
#define UNKNOWN (1ULL << 63)

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;

static int getinfo_with(void (*set)(struct fi_info *), uint32_t api)
{
	struct fi_info *h = fi_allocinfo(), *out = NULL;
	int r;

	h->mode = ~0ULL;
	h->domain_attr->mr_mode = ~3;
	set(h);
	r = fi_getinfo(api, NULL, NULL, 0, h, &out);
	fi_freeinfo(out);
	fi_freeinfo(h);
	return r;
}

static void nothing(struct fi_info *h) { (void) h; }
static void atomics(struct fi_info *h) { h->caps = FI_ATOMIC; }
static void unknown_caps(struct fi_info *h) { h->caps = UNKNOWN; }
static void msg_ep(struct fi_info *h) { h->ep_attr->type = FI_EP_MSG; }
static void odd_ep(struct fi_info *h) { h->ep_attr->type = (enum fi_ep_type) 99; }
static void sockaddrs(struct fi_info *h) { h->addr_format = FI_SOCKADDR_IN; }
static void other_prov(struct fi_info *h) { h->fabric_attr->prov_name = strdup("nosuch"); }
static void no_prov(struct fi_info *h) { h->fabric_attr->prov_name = strdup(""); }
static void other_domain(struct fi_info *h) { h->domain_attr->name = strdup("nosuch"); }
static void other_fabric(struct fi_info *h) { h->fabric_attr->name = strdup("nosuch"); }
static void newer_prov(struct fi_info *h) { h->fabric_attr->prov_version = ~0u; }
static void big_inject(struct fi_info *h) { h->tx_attr->inject_size = 1 << 30; }
static void big_tx(struct fi_info *h) { h->tx_attr->size = 1 << 30; }
static void big_rx(struct fi_info *h) { h->rx_attr->size = 1 << 30; }
static void many_iov(struct fi_info *h) { h->tx_attr->iov_limit = 99; }
static void many_rx_iov(struct fi_info *h) { h->rx_attr->iov_limit = 99; }
static void many_rma_iov(struct fi_info *h) { h->tx_attr->rma_iov_limit = 99; }
static void strict_order(struct fi_info *h) { h->tx_attr->msg_order = FI_ORDER_RAW; }
static void rx_order(struct fi_info *h) { h->rx_attr->msg_order = FI_ORDER_WAW; }
static void comp_order(struct fi_info *h) { h->tx_attr->comp_order = FI_ORDER_STRICT; }
static void op_flags(struct fi_info *h) { h->tx_attr->op_flags = FI_COMMIT_COMPLETE; }
static void scalable(struct fi_info *h) { h->domain_attr->mr_mode = FI_MR_SCALABLE; }
static void some_mr(struct fi_info *h)
{
	h->caps = FI_RMA;
	h->domain_attr->mr_mode = FI_MR_ALLOCATED;
}

static void odd_threads(struct fi_info *h) { h->domain_attr->threading = (enum fi_threading) 77; }
static void big_data(struct fi_info *h) { h->domain_attr->cq_data_size = 64; }
static void shared_av(struct fi_info *h) { h->domain_attr->caps = FI_SHARED_AV; }
static void many_ctx(struct fi_info *h) { h->ep_attr->tx_ctx_cnt = 99; }
static void protocol(struct fi_info *h) { h->ep_attr->protocol = FI_PROTO_UDP; }
static void proto_version(struct fi_info *h) { h->ep_attr->protocol_version = 99; }
static void auth_key(struct fi_info *h) { h->domain_attr->auth_key_size = 8; }
static void raw_order(struct fi_info *h)
{
	h->caps = FI_RMA;
	h->ep_attr->max_order_raw_size = SIZE_MAX;
}

static void short_dest(struct fi_info *h) { h->dest_addr = calloc(1, 8); h->dest_addrlen = 8; }
static void other_src(struct fi_info *h)
{
	h->src_addr = malloc(32);
	memset(h->src_addr, 0x11, 32);
	h->src_addrlen = 32;
}
static void basic(struct fi_info *h) { h->domain_attr->mr_mode = FI_MR_BASIC; }

static void discovery(void)
{
	struct fi_info *out = NULL;

	EXPECT(-FI_EINVAL, fi_getinfo(API, NULL, NULL, 0, NULL, NULL));
	EXPECT(-FI_ENOSYS, fi_getinfo(FI_VERSION(9, 9), NULL, NULL, 0, NULL, &out));
	EXPECT(-FI_ENODATA, fi_getinfo(API, "no such host.invalid", NULL, FI_NUMERICHOST, NULL, &out));
	EXPECT(-FI_ENODATA, fi_getinfo(API, "127.0.0.1", "http", 0, NULL, &out));
	EXPECT(-FI_ENODATA, fi_getinfo(API, "127.0.0.1", "70000", 0, NULL, &out));
	EXPECT(-FI_ENODATA, fi_getinfo(API, "192.0.2.1", NULL, FI_SOURCE, NULL, &out));
	EXPECT(0, out == NULL ? 0 : 1);
	EXPECT(0, getinfo_with(nothing, API));
	EXPECT(-FI_ENODATA, getinfo_with(nothing, 0));
	EXPECT(0, getinfo_with(basic, API));
	EXPECT(0, getinfo_with(basic, FI_VERSION(1, 0)));
	EXPECT(0, getinfo_with(atomics, API));
	EXPECT(-FI_ENODATA, getinfo_with(unknown_caps, API));
	EXPECT(-FI_ENODATA, getinfo_with(msg_ep, API));
	EXPECT(-FI_ENODATA, getinfo_with(odd_ep, API));
	EXPECT(-FI_ENODATA, getinfo_with(sockaddrs, API));
	EXPECT(-FI_ENODATA, getinfo_with(other_prov, API));
	EXPECT(-FI_ENODATA, getinfo_with(no_prov, API));
	EXPECT(-FI_ENODATA, getinfo_with(other_domain, API));
	EXPECT(-FI_ENODATA, getinfo_with(other_fabric, API));
	EXPECT(-FI_ENODATA, getinfo_with(newer_prov, API));
	EXPECT(-FI_ENODATA, getinfo_with(big_inject, API));
	EXPECT(-FI_ENODATA, getinfo_with(big_tx, API));
	EXPECT(-FI_ENODATA, getinfo_with(big_rx, API));
	EXPECT(-FI_ENODATA, getinfo_with(many_iov, API));
	EXPECT(-FI_ENODATA, getinfo_with(many_rx_iov, API));
	EXPECT(-FI_ENODATA, getinfo_with(many_rma_iov, API));
	EXPECT(-FI_ENODATA, getinfo_with(strict_order, API));
	EXPECT(-FI_ENODATA, getinfo_with(rx_order, API));
	EXPECT(-FI_ENODATA, getinfo_with(comp_order, API));
	EXPECT(-FI_ENODATA, getinfo_with(op_flags, API));
	EXPECT(0, getinfo_with(scalable, API));
	EXPECT(0, getinfo_with(some_mr, API));
	EXPECT(-FI_ENODATA, getinfo_with(odd_threads, API));
	EXPECT(-FI_ENODATA, getinfo_with(big_data, API));
	EXPECT(0, getinfo_with(shared_av, API));
	EXPECT(-FI_ENODATA, getinfo_with(many_ctx, API));
	EXPECT(-FI_ENODATA, getinfo_with(protocol, API));
	EXPECT(-FI_ENODATA, getinfo_with(proto_version, API));
	EXPECT(-FI_ENODATA, getinfo_with(auth_key, API));
	EXPECT(-FI_ENODATA, getinfo_with(raw_order, API));
	EXPECT(-FI_ENODATA, getinfo_with(short_dest, API));
	EXPECT(-FI_ENODATA, getinfo_with(other_src, API));
}

static void library(void)
{
	struct fid *f = NULL;
	struct fi_param *params;
	char text[8] = "x";
	uint64_t caps = FI_MSG | FI_RMA;
	int count, v;

	EXPECT(-FI_EINVAL, fi_open(API, NULL, NULL, 0, 0, &f, NULL));
	EXPECT(-FI_EINVAL, fi_open(API, "logging", NULL, 0, 0, NULL, NULL));
	EXPECT(-FI_ENOSYS, fi_open(API, "nosuch", NULL, 0, 0, &f, NULL));
	EXPECT(-FI_EBADFLAGS, fi_open(API, "logging", NULL, 0, UNKNOWN, &f, NULL));
	EXPECT(-FI_ENOSYS, fi_open(FI_VERSION(9, 0), "logging", NULL, 0, 0, &f, NULL));
	EXPECT(-FI_EINVAL, fi_getparams(NULL, &count));
	EXPECT(-FI_EINVAL, fi_getparams(&params, NULL));
	EXPECT(-FI_ENOENT, fi_param_get(NULL, "never_defined", &v));
	EXPECT(-FI_EINVAL, fi_param_get(NULL, NULL, &v));
	EXPECT(-FI_EINVAL, fi_param_get(NULL, "log_level", NULL));
	EXPECT(-FI_EINVAL, fi_param_define(NULL, NULL, FI_PARAM_INT, "x"));
	EXPECT(-FI_EINVAL, fi_param_define(NULL, "x", (enum fi_param_type) 9, "x"));
	EXPECT(0, fi_tostr_r(NULL, 8, &caps, FI_TYPE_CAPS) != NULL);
	EXPECT(0, fi_tostr_r(text, 0, &caps, FI_TYPE_CAPS) != NULL);
	EXPECT(0, fi_tostr_r(text, 8, NULL, FI_TYPE_CAPS) != NULL);
	EXPECT(0, fi_tostr_r(text, sizeof(text), &caps, FI_TYPE_CAPS) != text);
	EXPECT(0, strcmp(text, "FI_MSG,"));
	EXPECT(0, fi_tostr(&caps, (enum fi_type) 999) == NULL);
	EXPECT(0, fi_strerror(123456) == NULL);
	EXPECT(0, fi_strerror(-FI_EINVAL) == NULL);
	fi_freeparams(NULL);
	fi_freeinfo(NULL);
}

static void fabrics(void)
{
	struct fi_fabric_attr a = *info->fabric_attr;
	struct fid_fabric *f = NULL;
	struct fid_eq *eq = NULL;
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_NONE };
	struct fi_eq_entry e = { 0 };
	struct fid *none = NULL;
	uint32_t event;

	EXPECT(-FI_EINVAL, fi_fabric(NULL, &f, NULL));
	EXPECT(-FI_EINVAL, fi_fabric(&a, NULL, NULL));
	a.prov_name = NULL;
	EXPECT(-FI_EINVAL, fi_fabric(&a, &f, NULL));
	a.prov_name = "nosuch";
	EXPECT(-FI_ENODEV, fi_fabric(&a, &f, NULL));
	a.prov_name = "efa";
	a.name = "nosuch";
	EXPECT(-FI_ENODATA, fi_fabric(&a, &f, NULL));
	a.name = NULL;
	EXPECT(-FI_EINVAL, fi_fabric(&a, &f, NULL));
	EXPECT(-FI_EINVAL, fi_fabric2(NULL, &f, 0, NULL));
	EXPECT(-FI_EBADFLAGS, fi_fabric2(info, &f, UNKNOWN, NULL));
	EXPECT(-FI_EINVAL, fi_eq_open(fabric, &ea, NULL, NULL));
	ea.flags = UNKNOWN;
	EXPECT(-FI_EBADFLAGS, fi_eq_open(fabric, &ea, &eq, NULL));
	ea.flags = 0;
	ea.wait_obj = (enum fi_wait_obj) 88;
	EXPECT(-FI_ENOSYS, fi_eq_open(fabric, &ea, &eq, NULL));
	ea.wait_obj = FI_WAIT_SET;
	EXPECT(-FI_EINVAL, fi_eq_open(fabric, &ea, &eq, NULL));
	ea.wait_obj = FI_WAIT_NONE;
	EXPECT(0, fi_eq_open(fabric, &ea, &eq, NULL));
	EXPECT(-FI_EINVAL, fi_eq_write(eq, FI_NOTIFY, &e, sizeof(e), 0));
	EXPECT(-FI_EAGAIN, fi_eq_read(eq, &event, &e, sizeof(e), 0));
	EXPECT(-FI_ENOSYS, fi_eq_sread(eq, &event, &e, sizeof(e), 1, 0));
	EXPECT(-FI_EINVAL, fi_control(&eq->fid, FI_GETWAIT, NULL));
	EXPECT(-FI_EINVAL, fi_trywait(fabric, NULL, 1));
	EXPECT(-FI_EINVAL, fi_trywait(fabric, &none, 1));
	EXPECT(-FI_EBUSY, fi_close(&fabric->fid));
	EXPECT(0, fi_close(&eq->fid));
	EXPECT(-FI_EBADF, fi_close(&eq->fid));
	EXPECT(-FI_EBADF, fi_eq_read(eq, &event, &e, sizeof(e), 0));
	EXPECT(-FI_EINVAL, fi_domain(fabric, info, NULL, NULL));
	EXPECT(-FI_EINVAL, fi_domain(fabric, NULL, &domain, NULL));
}

static void completion_queues(void)
{
	struct fi_cq_attr ca = { .format = (enum fi_cq_format) 66 };
	struct fid_cq *cq = NULL;
	struct fi_cq_err_entry err;
	char buf[64];
	int fd;

	EXPECT(-FI_EINVAL, fi_cq_open(domain, NULL, &cq, NULL));
	EXPECT(-FI_EINVAL, fi_cq_open(domain, &ca, NULL, NULL));
	EXPECT(-FI_EINVAL, fi_cq_open(domain, &ca, &cq, NULL));
	ca.format = FI_CQ_FORMAT_UNSPEC;
	ca.wait_obj = FI_WAIT_SET;
	EXPECT(-FI_EINVAL, fi_cq_open(domain, &ca, &cq, NULL));
	ca.wait_obj = FI_WAIT_NONE;
	ca.flags = UNKNOWN;
	EXPECT(-FI_EBADFLAGS, fi_cq_open(domain, &ca, &cq, NULL));
	ca.flags = 0;
	ca.size = (size_t) -1;
	EXPECT(-FI_EINVAL, fi_cq_open(domain, &ca, &cq, NULL));
	ca.size = 0;
	EXPECT(0, fi_cq_open(domain, &ca, &cq, NULL));
	EXPECT(0, ca.size == 0);
	EXPECT(-FI_EINVAL, fi_cq_read(cq, NULL, 1));
	EXPECT(-FI_EAGAIN, fi_cq_read(cq, NULL, 0));
	EXPECT(-FI_EINVAL, fi_cq_readerr(cq, NULL, 0));
	EXPECT(-FI_EAGAIN, fi_cq_readerr(cq, &err, 0));
	EXPECT(-FI_ENOSYS, fi_cq_sread(cq, buf, 1, NULL, 1));
	EXPECT(-FI_ENOSYS, fi_cq_signal(cq));
	EXPECT(-FI_ENODATA, fi_control(&cq->fid, FI_GETWAIT, &fd));
	EXPECT(-FI_ENOSYS, fi_control(&cq->fid, 12345, &fd));
	EXPECT(0, fi_close(&cq->fid));
	EXPECT(-FI_EBADF, fi_close(&cq->fid));
	EXPECT(-FI_EBADF, fi_cq_read(cq, buf, 1));
}

static void counters(void)
{
	struct fi_cntr_attr na = { .events = (enum fi_cntr_events) 9 };
	struct fid_cntr *cntr = NULL;

	EXPECT(-FI_EINVAL, fi_cntr_open(domain, &na, &cntr, NULL));
	na.events = FI_CNTR_EVENTS_COMP;
	na.flags = UNKNOWN;
	EXPECT(-FI_EBADFLAGS, fi_cntr_open(domain, &na, &cntr, NULL));
	na.flags = 0;
	EXPECT(-FI_EINVAL, fi_cntr_open(domain, &na, NULL, NULL));
	EXPECT(0, fi_cntr_open(domain, &na, &cntr, NULL));
	EXPECT(-FI_ETIMEDOUT, fi_cntr_wait(cntr, 1, 1));
	EXPECT(0, fi_close(&cntr->fid));
	EXPECT(-FI_EBADF, fi_cntr_add(cntr, 1));
}

/* Entries of a vector that another one inserts cannot be removed. */
static void shared_vector(void)
{
	char shared[32], buf[64];
	struct fi_av_attr aa = { .type = FI_AV_MAP, .name = shared };
	struct fid_av *av, *reader;
	fi_addr_t fa[1];
	size_t len = sizeof(buf);

	snprintf(shared, sizeof(shared), "bad_input-%d", (int) getpid());
	EXPECT(0, fi_av_open(domain, &aa, &av, NULL));
	EXPECT(1, fi_av_insert(av, info->src_addr, 1, fa, 0, NULL));
	aa.flags = FI_READ;
	EXPECT(0, fi_av_open(domain, &aa, &reader, NULL));
	EXPECT(-FI_EINVAL, fi_av_remove(reader, fa, 1, 0));
	EXPECT(0, fi_av_lookup(reader, fa[0], buf, &len));
	EXPECT(0, fi_close(&reader->fid));
	EXPECT(0, fi_close(&av->fid));
}

static void address_vectors(void)
{
	struct fi_av_attr aa = { .type = (enum fi_av_type) 9 };
	struct fid_av *av = NULL;
	fi_addr_t fa[2];
	char zero[64] = { 0 }, buf[64];
	size_t len = sizeof(buf);

	EXPECT(-FI_EINVAL, fi_av_open(domain, NULL, &av, NULL));
	EXPECT(-FI_EINVAL, fi_av_open(domain, &aa, &av, NULL));
	aa.type = FI_AV_MAP;
	aa.name = "../shared";
	EXPECT(-FI_EINVAL, fi_av_open(domain, &aa, &av, NULL));
	aa.name = "not made";
	aa.flags = FI_READ;
	EXPECT(-FI_ENOENT, fi_av_open(domain, &aa, &av, NULL));
	aa.name = NULL;
	EXPECT(-FI_EINVAL, fi_av_open(domain, &aa, &av, NULL));
	aa.flags = 0;
	aa.rx_ctx_bits = 9;
	EXPECT(-FI_EINVAL, fi_av_open(domain, &aa, &av, NULL));
	aa.rx_ctx_bits = 0;
	aa.flags = FI_EVENT;
	EXPECT(-FI_ENOSYS, fi_av_open(domain, &aa, &av, NULL));
	aa.flags = UNKNOWN;
	EXPECT(-FI_EBADFLAGS, fi_av_open(domain, &aa, &av, NULL));
	aa.flags = 0;
	EXPECT(0, fi_av_open(domain, &aa, &av, NULL));
	EXPECT(-FI_EINVAL, fi_av_insert(av, NULL, 1, fa, 0, NULL));
	EXPECT(-FI_EINVAL, fi_av_insert(av, zero, 1, NULL, 0, NULL));
	EXPECT(-FI_EBADFLAGS, fi_av_insert(av, zero, 1, fa, UNKNOWN, NULL));
	EXPECT(-FI_EINVAL, fi_av_insert(av, zero, 1, fa, FI_SYNC_ERR, NULL));
	EXPECT(0, fi_av_insert(av, zero, 2, fa, 0, NULL));
	EXPECT(0, fa[1] != FI_ADDR_NOTAVAIL);
	EXPECT(1, fi_av_insert(av, info->src_addr, 1, fa, 0, NULL));
	EXPECT(-FI_EINVAL, fi_av_lookup(av, 77, buf, &len));
	EXPECT(-FI_EINVAL, fi_av_lookup(av, fa[0], buf, NULL));
	len = 4;
	EXPECT(0, fi_av_lookup(av, fa[0], buf, &len));
	EXPECT(32, len);
	EXPECT(-FI_EINVAL, fi_av_insertsvc(av, NULL, "1", fa, 0, NULL));
	EXPECT(-FI_EINVAL, fi_av_insertsym(av, "127.0.0.1", 0, "1", 1, fa, 0, NULL));
	EXPECT(-FI_EBADFLAGS, fi_av_remove(av, fa, 1, UNKNOWN));
	EXPECT(-FI_EINVAL, fi_av_remove(av, NULL, 1, 0));
	EXPECT(0, fi_av_remove(av, fa, 1, 0));
	EXPECT(-FI_EINVAL, fi_av_remove(av, fa, 1, 0));
	EXPECT(0, fi_close(&av->fid));
	EXPECT(-FI_EBADF, fi_av_insert(av, zero, 1, fa, 0, NULL));
}

static void regions(void)
{
	char buf[64], other[8];
	struct fid_mr *mr = NULL;
	struct iovec iov[2] = { { buf, 8 }, { other, 8 } };
	struct fi_mr_attr ma = { .mr_iov = iov, .iov_count = 1, .iface = FI_HMEM_CUDA };

	EXPECT(-FI_EINVAL, fi_mr_reg(domain, NULL, 8, FI_SEND, 0, 0, 0, &mr, NULL));
	/* Bits without a meaning are ignored: LCI passes FI_RMA. */
	EXPECT(0, fi_mr_reg(domain, buf, 8, FI_SEND | FI_RMA | UNKNOWN, 0, 0, 0, &mr, NULL));
	EXPECT(0, fi_close(&mr->fid));
	EXPECT(-FI_EBADFLAGS, fi_mr_reg(domain, buf, 8, FI_SEND, 0, 0, UNKNOWN, &mr, NULL));
	EXPECT(-FI_EINVAL, fi_mr_reg(domain, buf, 8, FI_SEND, 4, 0, 0, &mr, NULL));
	EXPECT(-FI_EINVAL, fi_mr_reg(domain, buf, 8, FI_SEND, 0, 0, 0, NULL, NULL));
	EXPECT(-FI_EINVAL, fi_mr_regv(domain, iov, 2, FI_SEND, 0, 0, 0, &mr, NULL));
	EXPECT(-FI_EINVAL, fi_mr_regv(domain, iov, 0, FI_SEND, 0, 0, 0, &mr, NULL));
	EXPECT(-FI_EINVAL, fi_mr_regattr(domain, NULL, 0, &mr));
	EXPECT(-FI_ENOSYS, fi_mr_regattr(domain, &ma, 0, &mr));
	ma.iface = FI_HMEM_SYSTEM;
	EXPECT(-FI_EINVAL, fi_mr_regattr(domain, &ma, FI_MR_DMABUF, &mr));
	EXPECT(0, fi_mr_reg(domain, buf, 8, FI_SEND, 0, 0, 0, &mr, NULL));
	EXPECT(0, fi_mr_key(mr) == 0);
	EXPECT(-FI_EINVAL, fi_mr_bind(mr, NULL, 0));
	EXPECT(-FI_EBUSY, fi_close(&domain->fid));
	EXPECT(0, fi_close(&mr->fid));
	EXPECT(-FI_EBADF, fi_close(&mr->fid));
}

static void domain_calls(void)
{
	struct fid_ep *ep = NULL;
	void *ops;

	EXPECT(-FI_EINVAL, fi_endpoint(domain, NULL, &ep, NULL));
	EXPECT(-FI_EINVAL, fi_endpoint(domain, info, NULL, NULL));
	EXPECT(-FI_EBADFLAGS, fi_endpoint2(domain, info, &ep, UNKNOWN, NULL));
	EXPECT(-FI_ENOSYS, fi_open_ops(&domain->fid, "nosuch", 0, &ops, NULL));
	EXPECT(-FI_EINVAL, fi_open_ops(&domain->fid, NULL, 0, &ops, NULL));
	EXPECT(-FI_EINVAL, fi_domain_bind(domain, NULL, 0));
	EXPECT(-FI_EINVAL, fi_scalable_ep(domain, NULL, &ep, NULL));
	EXPECT(-FI_EINVAL, fi_scalable_ep(domain, info, NULL, NULL));
	EXPECT(-FI_EINVAL, fi_srx_context(domain, NULL, NULL, NULL));
	EXPECT(-FI_EINVAL, fi_control(&domain->fid, FI_QUEUE_WORK, NULL));
}

/* The endpoint of the following cases, which sends to itself, and what is bound to it. */
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_ep *ep;
static fi_addr_t self;
static char buf[8192], name[32];

static void open_endpoint(void)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	size_t len = 4;

	EXPECT(0, fi_cq_open(domain, &ca, &cq, NULL));
	EXPECT(0, fi_av_open(domain, &aa, &av, NULL));
	EXPECT(0, fi_endpoint(domain, info, &ep, NULL));
	EXPECT(-FI_EOPBADSTATE, fi_send(ep, buf, 8, NULL, 0, NULL));
	EXPECT(-FI_EOPBADSTATE, fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
	EXPECT(-FI_ENOAV, fi_enable(ep));
	EXPECT(-FI_EINVAL, fi_ep_bind(ep, NULL, 0));
	EXPECT(-FI_EINVAL, fi_ep_bind(ep, &domain->fid, 0));
	EXPECT(0, fi_ep_bind(ep, &av->fid, 0));
	EXPECT(-FI_EINVAL, fi_ep_bind(ep, &av->fid, 0));
	EXPECT(-FI_ENOCQ, fi_enable(ep));
	EXPECT(-FI_EBADFLAGS, fi_ep_bind(ep, &cq->fid, 0));
	EXPECT(-FI_EBADFLAGS, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | UNKNOWN));
	EXPECT(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT));
	EXPECT(-FI_ENOCQ, fi_enable(ep));
	EXPECT(-FI_EINVAL, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT));
	EXPECT(0, fi_ep_bind(ep, &cq->fid, FI_RECV));
	EXPECT(0, fi_enable(ep));
	EXPECT(-FI_EOPBADSTATE, fi_enable(ep));
	EXPECT(-FI_EOPBADSTATE, fi_ep_bind(ep, &cq->fid, FI_RECV));
	EXPECT(-FI_EOPBADSTATE, fi_ep_bind(ep, &av->fid, 0));
	EXPECT(-FI_ETOOSMALL, fi_getname(&ep->fid, name, &len));
	EXPECT(32, len);
	EXPECT(-FI_EINVAL, fi_getname(&ep->fid, name, NULL));
	EXPECT(0, fi_getname(&ep->fid, name, &len));
	EXPECT(-FI_EOPBADSTATE, fi_setname(&ep->fid, name, len));
	EXPECT(-FI_EINVAL, fi_setname(&ep->fid, NULL, len));
	EXPECT(1, fi_av_insert(av, name, 1, &self, 0, NULL));
}

static void messages(void)
{
	struct fi_msg m = { 0 };
	struct iovec iov[5];

	for (int i = 0; i < 5; i++)
		iov[i] = (struct iovec) { buf, 8 };
	EXPECT(-FI_EINVAL, fi_send(ep, buf, 8, NULL, 99, NULL));
	EXPECT(-FI_EINVAL, fi_send(ep, buf, 8, NULL, FI_ADDR_UNSPEC, NULL));
	EXPECT(-FI_EINVAL, fi_send(ep, NULL, 8, NULL, self, NULL));
	EXPECT(-FI_EINVAL, fi_recv(ep, NULL, 8, NULL, FI_ADDR_UNSPEC, NULL));
	EXPECT(-FI_EINVAL, fi_sendv(ep, iov, NULL, 5, self, NULL));
	EXPECT(-FI_EINVAL, fi_sendv(ep, NULL, NULL, 1, self, NULL));
	EXPECT(-FI_EINVAL, fi_recvv(ep, iov, NULL, 5, FI_ADDR_UNSPEC, NULL));
	EXPECT(-FI_EINVAL, fi_sendmsg(ep, NULL, 0));
	EXPECT(-FI_EINVAL, fi_recvmsg(ep, NULL, 0));
	m.addr = self;
	EXPECT(-FI_EBADFLAGS, fi_sendmsg(ep, &m, UNKNOWN));
	EXPECT(-FI_EBADFLAGS, fi_recvmsg(ep, &m, UNKNOWN));
	EXPECT(-FI_EMSGSIZE, fi_inject(ep, buf, sizeof(buf), self));
	EXPECT(-FI_EMSGSIZE, fi_tinject(ep, buf, sizeof(buf), self, 1));
	EXPECT(-FI_EINVAL, fi_inject(ep, NULL, 8, self));
	EXPECT(-FI_EINVAL, fi_tsend(ep, buf, 8, NULL, 99, 1, NULL));
	EXPECT(-FI_EINVAL, fi_trecv(ep, NULL, 8, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	EXPECT(-FI_EINVAL, fi_tsendmsg(ep, NULL, 0));
}

static void accesses(void)
{
	struct fi_msg_rma rm = { 0 };

	EXPECT(-FI_EINVAL, fi_write(ep, buf, 8, NULL, 99, 0, 0, NULL));
	EXPECT(-FI_EINVAL, fi_read(ep, NULL, 8, NULL, self, 0, 0, NULL));
	EXPECT(-FI_EMSGSIZE, fi_inject_write(ep, buf, sizeof(buf), self, 0, 0));
	EXPECT(-FI_EINVAL, fi_writemsg(ep, NULL, 0));
	rm.addr = self;
	EXPECT(-FI_EINVAL, fi_writemsg(ep, &rm, 0));
	EXPECT(-FI_EINVAL, fi_readmsg(ep, &rm, 0));
}

static void atomic_operations(void)
{
	EXPECT(-FI_EINVAL, fi_atomic(ep, NULL, 1, NULL, self, 0, 0, FI_INT32, FI_SUM, NULL));
	EXPECT(-FI_EINVAL, fi_atomic(ep, buf, 0, NULL, self, 0, 0, FI_INT32, FI_SUM, NULL));
	EXPECT(-FI_EINVAL, fi_atomic(ep, buf, 1, NULL, 99, 0, 0, FI_INT32, FI_SUM, NULL));
	EXPECT(-FI_EINVAL, fi_atomicmsg(ep, NULL, 0));
	EXPECT(-FI_EMSGSIZE, fi_atomic(ep, buf, 1 << 20, NULL, self, 0, 0, FI_INT8, FI_SUM, NULL));
	EXPECT(-FI_EOPNOTSUPP, fi_atomic(ep, buf, 1, NULL, self, 0, 0, (enum fi_datatype) 99, FI_SUM,
			NULL));
	EXPECT(-FI_EOPNOTSUPP, fi_atomic(ep, buf, 1, NULL, self, 0, 0, FI_INT32, (enum fi_op) 99, NULL));
	EXPECT(-FI_EOPNOTSUPP, fi_atomic(ep, buf, 1, NULL, self, 0, 0, FI_DOUBLE, FI_BXOR, NULL));
}

static void options(void)
{
	size_t value = 0, len = sizeof(value);
	bool yes = true, no = false;

	EXPECT(-FI_ENOPROTOOPT, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, 4242, &value, &len));
	EXPECT(-FI_ENOPROTOOPT, fi_getopt(&ep->fid, 7, FI_OPT_MAX_MSG_SIZE, &value, &len));
	EXPECT(-FI_EINVAL, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, NULL, &len));
	len = 1;
	EXPECT(-FI_ETOOSMALL, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &value, &len));
	EXPECT(sizeof(value), len);
	EXPECT(-FI_ENOPROTOOPT, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, 4242, &value, sizeof(value)));
	EXPECT(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, &value, 2));
	EXPECT(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_MAX_MSG_SIZE, NULL, sizeof(value)));
	value = 1 << 30;
	EXPECT(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_INJECT_MSG_SIZE, &value,
			sizeof(value)));
	EXPECT(-FI_EOPBADSTATE, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_RNR_RETRY, &value,
			sizeof(value)));
	EXPECT(-FI_EINVAL, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_EMULATED_WRITE, &yes,
			sizeof(yes)));
	/* As in the C library, these options are also accepted after fi_enable(3). */
	EXPECT(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_HOMOGENEOUS_PEERS, &yes, sizeof(yes)));
	EXPECT(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV, &no,
			sizeof(no)));
}

/* Each inject size is its own. */
static void inject_sizes(void)
{
	size_t before = 0, after = 0, eight = 8, size = sizeof(size_t);

	EXPECT(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_INJECT_RMA_SIZE, &before, &size));
	EXPECT(0, fi_setopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_INJECT_ATOMIC_SIZE, &eight, sizeof(eight)));
	EXPECT(0, fi_getopt(&ep->fid, FI_OPT_ENDPOINT, FI_OPT_INJECT_RMA_SIZE, &after, &size));
	EXPECT(before, after);
}

/* Reads the error of the operation that was posted last. */
static void read_error(struct fi_cq_err_entry *err)
{
	struct fi_cq_tagged_entry e;
	ssize_t r;

	while ((r = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	EXPECT(-FI_EAVAIL, r);
	EXPECT(1, fi_cq_readerr(cq, err, 0));
}

/* A write to a region without FI_REMOTE_WRITE ends in an error that names the key. */
static void refused_key(void)
{
	struct fi_cq_err_entry err = { 0 };
	struct fid_mr *mr;

	EXPECT(0, fi_mr_reg(domain, buf, 8, FI_REMOTE_READ, 0, 0, 0, &mr, NULL));
	EXPECT(0, fi_write(ep, buf + 64, 8, NULL, self, (uintptr_t) buf, fi_mr_key(mr), NULL));
	read_error(&err);
	EXPECT(FI_EKEYREJECTED, err.err);
	EXPECT(0, strstr(fi_cq_strerror(cq, err.prov_errno, err.err_data, NULL, 0), "key") == NULL);
	EXPECT(0, fi_close(&mr->fid));
}

/* A text that does not fit into the buffer for it is cut, and ends. */
static void short_error_texts(void)
{
	char few[33], text[64];
	struct fi_cq_err_entry err = { .err_data = few, .err_data_size = 32 };

	memset(few, 'x', sizeof(few));
	EXPECT(0, fi_write(ep, buf + 64, 8, NULL, self, (uintptr_t) buf, 12345, NULL));
	read_error(&err);
	EXPECT(32, err.err_data_size);
	EXPECT(31, strlen(few));
	EXPECT('x', few[32]);
	EXPECT(31, strlen(fi_cq_strerror(cq, err.prov_errno, few, text, sizeof(text))));
}

/* Without data nothing is written to the buffer for it, nor read. */
static void no_error_data(void)
{
	char none[32], text[64];
	struct fi_cq_err_entry err = { .err_data = none, .err_data_size = sizeof(none) };

	memset(none, 'x', sizeof(none));
	EXPECT(0, fi_recv(ep, buf, 8, NULL, FI_ADDR_UNSPEC, buf));
	EXPECT(0, fi_cancel(&ep->fid, buf));
	EXPECT(1, fi_cq_readerr(cq, &err, 0));
	EXPECT(0, err.err_data_size);
	EXPECT(0, fi_cq_strerror(cq, err.prov_errno, none, text, sizeof(text))[0] == 'x');
}

static void endpoints(void)
{
	open_endpoint();
	messages();
	accesses();
	atomic_operations();
	EXPECT(-FI_EOPNOTSUPP, fi_barrier(ep, 0, NULL));
	EXPECT(0, fi_cancel(&ep->fid, buf));
	options();
	inject_sizes();
	EXPECT(-FI_ENOSYS, fi_connect(ep, name, NULL, 0));
	EXPECT(-FI_ENOSYS, fi_tx_size_left(ep));
	EXPECT(-FI_EBUSY, fi_close(&cq->fid));
	EXPECT(-FI_EBUSY, fi_close(&av->fid));
	refused_key();
	short_error_texts();
	no_error_data();
	EXPECT(0, fi_close(&ep->fid));
	EXPECT(-FI_EBADF, fi_close(&ep->fid));
	EXPECT(-FI_EBADF, fi_send(ep, buf, 8, NULL, self, NULL));
	EXPECT(0, fi_close(&cq->fid));
	EXPECT(0, fi_close(&av->fid));
}

int main(void)
{
	/* Use provider efa alone: another provider may accept these inputs. */
	setenv("FI_PROVIDER", "efa", 1);
	setvbuf(stdout, NULL, _IOLBF, 0);
	discovery();
	library();
	struct fi_info *wire = fi_allocinfo();

	wire->fabric_attr->name = strdup("efa");
	wire->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	if (fi_getinfo(API, NULL, NULL, 0, wire, &info) || fi_fabric(info->fabric_attr, &fabric, NULL)) {
		printf("no provider\n");
		return EXIT_FAILURE;
	}
	fi_freeinfo(wire);
	fabrics();
	EXPECT(0, fi_domain(fabric, info, &domain, NULL));
	completion_queues();
	counters();
	address_vectors();
	shared_vector();
	regions();
	domain_calls();
	endpoints();
	EXPECT(0, fi_close(&domain->fid));
	EXPECT(-FI_EBADF, fi_close(&domain->fid));
	EXPECT(0, fi_close(&fabric->fid));
	EXPECT(-FI_EBADF, fi_close(&fabric->fid));
	fi_freeinfo(info);
	printf("%d cases, %d failed\n", cases, failures);
	return failures || cases < 100 ? EXIT_FAILURE : EXIT_SUCCESS;
}
