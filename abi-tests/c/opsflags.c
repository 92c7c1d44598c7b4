/* SPDX-License-Identifier: BSD-2-Clause */
/* FI_GETOPSFLAG and FI_SETOPSFLAG (fi_endpoint(3)), and what calls without flags do then.
 * opsflags efa|tcp [efa-direct] */
#include <string.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include "do.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct { struct fid_ep *ep; struct fid_cq *tx, *rx; fi_addr_t addr; } a, b;
static char out[4096], in[65536];
static struct fid_mr *mo, *mi;
static struct fi_context2 c[64];
static int failed;
#define SOFT(cond) \
	do { \
		if (!(cond)) { \
			printf("line %d: %s\n", __LINE__, #cond); \
			failed = 1; \
		} \
	} while (0)

static void open_side(void *p, uint64_t sel)
{
	__typeof__(&a) s = p;
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	char name[64];
	size_t len = sizeof(name);

	DO(0, fi_cq_open(domain, &ca, &s->tx, NULL));
	DO(0, fi_cq_open(domain, &ca, &s->rx, NULL));
	DO(0, fi_endpoint(domain, info, &s->ep, NULL));
	DO(0, fi_ep_bind(s->ep, &av->fid, 0));
	DO(0, fi_ep_bind(s->ep, &s->tx->fid, FI_TRANSMIT | sel));
	DO(0, fi_ep_bind(s->ep, &s->rx->fid, FI_RECV | sel));
	DO(0, fi_enable(s->ep));
	DO(0, fi_getname(&s->ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &s->addr, 0, NULL));
}

static void turn(void)
{
	(void) fi_cq_read(a.tx, NULL, 0);
	(void) fi_cq_read(b.tx, NULL, 0);
	(void) fi_cq_read(a.rx, NULL, 0);
	(void) fi_cq_read(b.rx, NULL, 0);
}

static struct fi_cq_data_entry take(struct fid_cq *q)
{
	struct fi_cq_data_entry e;
	ssize_t n;

	while ((n = fi_cq_read(q, &e, 1)) == -FI_EAGAIN)
		turn();
	DO(1, n);
	return e;
}

static int none(struct fid_cq *q)
{
	struct fi_cq_data_entry e;

	for (int i = 0; i < 2000; i++)
		turn();
	return fi_cq_read(q, &e, 1) == -FI_EAGAIN;
}

static int set(uint64_t flags)
{
	return fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags);
}

static uint64_t get(uint64_t side)
{
	uint64_t f = side;

	DO(0, fi_control(&a.ep->fid, FI_GETOPSFLAG, &f));
	return f;
}

static void post_recv(int i)
{
	DO(0, fi_recv(b.ep, in + i * 512, 512, fi_mr_desc(mi), FI_ADDR_UNSPEC, &c[i]));
}

static void send_now(void *ctx)
{
	ssize_t r;

	while ((r = fi_send(a.ep, out, 64, fi_mr_desc(mo), b.addr, ctx)) == -FI_EAGAIN)
		turn();
	DO(0, r);
}

/* A fabric of the provider, and both endpoints; the first reports what asks for it only. */
static void open_both(const char *provider, const char *fabric_name)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	hints->fabric_attr->prov_name = strdup(provider);
	if (fabric_name)
		hints->fabric_attr->name = strdup(fabric_name);
	else if (!strcmp(provider, "efa"))
		hints->fabric_attr->name = strdup("efa");
	hints->caps = fabric_name ? FI_MSG : FI_MSG | FI_MULTI_RECV;
	hints->mode = FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->ep_attr->type = FI_EP_RDM;
	DO(0, fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	DO(0, fi_mr_reg(domain, out, sizeof(out), FI_SEND, 0, 1, 0, &mo, NULL));
	DO(0, fi_mr_reg(domain, in, sizeof(in), FI_RECV, 0, 2, 0, &mi, NULL));
	open_side(&a, FI_SELECTIVE_COMPLETION);
	open_side(&b, 0);
}

static void close_both(void)
{
	DO(0, fi_close(&a.ep->fid));
	DO(0, fi_close(&b.ep->fid));
	DO(0, fi_close(&a.tx->fid));
	DO(0, fi_close(&b.tx->fid));
	DO(0, fi_close(&a.rx->fid));
	DO(0, fi_close(&b.rx->fid));
	DO(0, fi_close(&mo->fid));
	DO(0, fi_close(&mi->fid));
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
}

/* What is asked without a side, or for both: as the C library (efa), and fi_endpoint(3). */
static void sides(void)
{
	uint64_t f = 0;

	SOFT(fi_control(&a.ep->fid, FI_GETOPSFLAG, &f) == -FI_EINVAL);
	f = FI_TRANSMIT | FI_RECV;
	SOFT(fi_control(&a.ep->fid, FI_GETOPSFLAG, &f) == -FI_EINVAL);
	SOFT(set(FI_COMPLETION) == -FI_EINVAL);
	SOFT(set(FI_COMPLETION | FI_TRANSMIT | FI_RECV) == -FI_EINVAL);
	SOFT(get(FI_TRANSMIT) == info->tx_attr->op_flags);
	SOFT(get(FI_RECV) == info->rx_attr->op_flags);
}

/* Sends have no completion by default; then they have. */
static void completions(void)
{
	struct iovec iov = { out, 64 };
	void *desc = fi_mr_desc(mo);
	struct fi_msg m = { .msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = b.addr,
			.context = &c[63] };

	post_recv(0);
	send_now(&c[40]);
	take(b.rx);
	SOFT(none(a.tx));
	DO(0, set(FI_TRANSMIT | FI_COMPLETION));
	SOFT(get(FI_TRANSMIT) == FI_COMPLETION);
	post_recv(1);
	send_now(&c[41]);
	SOFT(take(a.tx).op_context == &c[41]);
	take(b.rx);
	/* The flags of a call replace them. */
	post_recv(1);
	while (fi_sendmsg(a.ep, &m, 0) == -FI_EAGAIN)
		turn();
	take(b.rx);
	SOFT(none(a.tx));
	DO(0, set(FI_TRANSMIT));
	SOFT(get(FI_TRANSMIT) == 0);
	post_recv(1);
	send_now(&c[42]);
	take(b.rx);
	SOFT(none(a.tx));
}

/* FI_INJECT: the buffer is free at once, also where the receive comes later. */
static void injected(int receive_first)
{
	DO(0, set(FI_TRANSMIT | FI_INJECT | FI_COMPLETION));
	if (info->tx_attr->inject_size < 64)
		return;
	if (receive_first)
		post_recv(2);
	memset(out, 'i', 64);
	send_now(&c[43]);
	memset(out, 'x', 64);
	if (!receive_first)
		post_recv(2);
	take(b.rx);
	SOFT(in[2 * 512] == 'i' && in[2 * 512 + 63] == 'i');
	SOFT(take(a.tx).op_context == &c[43]);
	SOFT(none(a.tx));
}

/* FI_DELIVERY_COMPLETE: no completion before there is a receive. */
static void delivered(void)
{
	DO(0, set(FI_TRANSMIT | FI_DELIVERY_COMPLETE | FI_COMPLETION));
	send_now(&c[44]);
	SOFT(none(a.tx));
	post_recv(3);
	SOFT(take(a.tx).op_context == &c[44]);
	take(b.rx);
	/* and back */
	DO(0, set(FI_TRANSMIT | FI_COMPLETION));
	send_now(&c[45]);
	SOFT(take(a.tx).op_context == &c[45]);
	post_recv(3);
	take(b.rx);
}

/* An alias has flags of its own. */
static void alias(void)
{
	struct fid_ep *al;
	uint64_t g = FI_TRANSMIT;

	DO(0, set(FI_TRANSMIT));
	DO(0, fi_ep_alias(a.ep, &al, FI_TRANSMIT | FI_COMPLETION));
	DO(0, fi_control(&al->fid, FI_GETOPSFLAG, &g));
	SOFT(g == FI_COMPLETION);
	post_recv(4);
	DO(0, fi_send(al, out, 64, fi_mr_desc(mo), b.addr, &c[46]));
	SOFT(take(a.tx).op_context == &c[46]);
	take(b.rx);
	g = FI_TRANSMIT;
	DO(0, fi_control(&al->fid, FI_SETOPSFLAG, &g));
	post_recv(4);
	DO(0, fi_send(al, out, 64, fi_mr_desc(mo), b.addr, &c[46]));
	take(b.rx);
	SOFT(none(a.tx));
	SOFT(get(FI_TRANSMIT) == 0);
	DO(0, fi_close(&al->fid));
}

/* Receives: selective, then with completion. */
static void receives(void)
{
	DO(0, fi_recv(a.ep, in, 512, fi_mr_desc(mi), FI_ADDR_UNSPEC, &c[5]));
	DO(0, fi_send(b.ep, out, 64, fi_mr_desc(mo), a.addr, &c[47]));
	take(b.tx);
	SOFT(none(a.rx));
	DO(0, set(FI_RECV | FI_COMPLETION));
	SOFT(get(FI_RECV) == FI_COMPLETION);
	DO(0, fi_recv(a.ep, in, 512, fi_mr_desc(mi), FI_ADDR_UNSPEC, &c[5]));
	DO(0, fi_send(b.ep, out, 64, fi_mr_desc(mo), a.addr, &c[47]));
	take(b.tx);
	SOFT(take(a.rx).op_context == &c[5]);
}

static void multi_receives(void)
{
	DO(0, set(FI_RECV | FI_COMPLETION | FI_MULTI_RECV));
	DO(0, fi_recv(a.ep, in, 65536, fi_mr_desc(mi), FI_ADDR_UNSPEC, &c[6]));
	for (int i = 0; i < 5; i++) {
		DO(0, fi_send(b.ep, out, 64, fi_mr_desc(mo), a.addr, &c[48]));
		take(b.tx);
		struct fi_cq_data_entry e = take(a.rx);
		SOFT(e.op_context == &c[6] && e.buf == in + i * 64);
	}
}

int main(int argc, char **argv)
{
	int direct = argc > 2;

	setvbuf(stdout, NULL, _IONBF, 0);
	open_both(argv[1], argv[2]);
	sides();
	completions();
	injected(direct);
	if (!direct && !strcmp(argv[1], "efa"))
		delivered();
	alias();
	receives();
	if (info->caps & FI_MULTI_RECV && !direct)
		multi_receives();
	close_both();
	puts(failed ? "FAILED" : "ok");
	return failed;
}
