/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An adapter driven by a device, whose part this program plays: completion queues and counters in
 * external memory (`fi_efa_ops_gda`), and work requests that the program writes into the queues.
 * For `efa-sim run`, where a memfd serves as dma-buf.
 *
 * gda             external queues and counters work
 * gda refused     the adapter, the driver or libefa does not support external memory
 */
#include <sys/mman.h>
#include <unistd.h>
#include <rdma/fi_ext_efa.h>
#include <rdma/fi_rma.h>
#include "alone.h"

enum { PAGE = 4096, QUEUE = 4 * PAGE, LEN = 1000, ROUNDS = 300 };
/* Operation codes; META_DESC of `ctrl1`; FIRST, LAST and COMP_REQ of `ctrl2` (EFA work request). */
enum { SEND = 0, WRITE = 2, META = 0x80, WHOLE = 0x1c };

/* A completion queue as a device sees it; `entry` is in bytes, `taken` counts completions. */
struct queue {
	struct fid_cq *cq;
	volatile uint64_t *at;
	uint32_t entry, mask, taken;
};

static struct fi_efa_ops_gda *gda;
static struct fi_efa_wq_attr sq, rq;
static uint32_t sent, posted;
static char both_ends[2 * LEN], *from = both_ends, *to = both_ends + LEN;
static struct fid_mr *mr;

static uint8_t *memory(int *fd, size_t len)
{
	uint8_t *at;

	*fd = memfd_create("dmabuf", MFD_CLOEXEC);
	TRUE(*fd >= 0);
	DO(0, ftruncate(*fd, len));
	at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	TRUE(at != MAP_FAILED);
	return at;
}

/* Opens a queue in a dma-buf; with `seen` the library gets the buffer's address, too. */
static struct queue external(size_t entries, int seen)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .size = entries,
			.wait_obj = FI_WAIT_NONE };
	struct fi_efa_cq_init_attr init = { .flags = FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF };
	struct fi_efa_cq_attr is;
	struct queue q = { 0 };
	uint8_t *at;
	int fd;

	at = memory(&fd, QUEUE + PAGE);
	init.ext_mem_dmabuf.fd = fd;
	init.ext_mem_dmabuf.offset = PAGE;
	init.ext_mem_dmabuf.length = QUEUE;
	init.ext_mem_dmabuf.buffer = seen ? at + PAGE : NULL;
	DO(0, gda->cq_open_ext(domain, &attr, &init, &q.cq, NULL));
	DO(0, close(fd));
	DO(0, gda->query_cq(q.cq, &is));
	TRUE(is.buffer == init.ext_mem_dmabuf.buffer && is.num_entries >= entries);
	q.at = (volatile uint64_t *) (at + PAGE);
	q.entry = is.entry_size;
	q.mask = is.num_entries - 1;
	return q;
}

/* Polls for the next completion as a device would; returns its first word. */
static uint64_t next(struct queue *q)
{
	volatile uint64_t *at = q->at + (q->taken & q->mask) * q->entry / 8;
	uint64_t phase = !(q->taken & (q->mask + 1)), first;

	while (((first = __atomic_load_n(at, __ATOMIC_ACQUIRE)) >> 24 & 1) != phase)
		;
	q->taken++;
	TRUE((first >> 16 & 0xff) == 0);
	return first;
}

static void tell(const struct fi_efa_wq_attr *q, uint32_t n)
{
	__sync_synchronize();
	__atomic_store_n(q->doorbell, n & 0xffff, __ATOMIC_RELEASE);
}

/* The device posts a receive. */
static void post(uint16_t request, char *at, uint16_t len)
{
	volatile uint64_t *e = (volatile uint64_t *) rq.buffer + 2 * (posted & (rq.num_entries - 1));

	e[0] = (uintptr_t) at;
	e[1] = request | (uint64_t) len << 16 | (gda->get_mr_lkey(mr) | 3ull << 30) << 32;
	tell(&rq, ++posted);
}

/* The device sends or writes `len` bytes to this endpoint. */
static void submit(int op, uint16_t request, uint32_t len, uint64_t remote)
{
	volatile uint64_t *e = (volatile uint64_t *) sq.buffer + 8 * (sent & (sq.num_entries - 1));
	uint64_t phase = !!(sent & sq.num_entries), lkey = gda->get_mr_lkey(mr), local, w[8] = { 0 };
	uint16_t ahn, qpn;
	uint32_t qkey;

	DO(0, gda->query_addr(ep, self, &ahn, &qpn, &qkey));
	w[0] = request | (uint64_t) (op | META) << 16 | (phase | WHOLE) << 24
			| (uint64_t) qpn << 32 | 1ull << 48;
	w[1] = (uint64_t) ahn << 32;
	w[2] = qkey;
	local = len | lkey << 32;
	if (op == SEND) {
		w[4] = local;
		w[5] = (uintptr_t) from;
	} else {
		w[4] = len | fi_mr_key(mr) << 32;
		w[5] = remote;
		w[6] = local;
		w[7] = (uintptr_t) from;
	}
	for (int i = 0; i < 8; i++)
		e[i] = w[i];
	tell(&sq, ++sent);
}

static void fill(void)
{
	pattern(from, LEN);
	memset(to, 0, LEN);
}

static void arrived(void)
{
	TRUE(!memcmp(from, to, LEN));
}

static void ready(struct fid_cq *tx, struct fid_cq *rx)
{
	struct fi_efa_cq_attr is;

	open_endpoint(tx, rx);
	enable();
	if (tx == rx)
		DO(0, gda->query_cq(tx, &is));
	DO(0, fi_mr_reg(domain, from, 2 * LEN, FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0,
			&mr, NULL));
	DO(0, gda->query_qp_wqs(ep, &sq, &rq));
	sent = posted = 0;
}

static void close_queues(struct queue *tx, struct queue *rx)
{
	DO(0, fi_close(&mr->fid));
	DO(-FI_EBUSY, fi_close(&tx->cq->fid));
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&tx->cq->fid));
	if (rx != tx)
		DO(0, fi_close(&rx->cq->fid));
}

/* The device posts all requests and reads all completions. */
static void by_device(void)
{
	struct queue tx = external(64, 0), rx = external(64, 0);
	struct fi_cq_err_entry err;
	struct fi_cq_data_entry e;

	ready(tx.cq, rx.cq);
	DO(-FI_ENOSYS, fi_cq_read(tx.cq, &e, 1));
	DO(-FI_ENOSYS, fi_cq_readerr(rx.cq, &err, 0));
	for (int i = 0; i < ROUNDS; i++) {
		fill();
		post(i, to, LEN);
		submit(SEND, i + 1000, LEN, 0);
		TRUE((next(&tx) & 0xffff) == i + 1000u);
		TRUE((next(&rx) & 0xffff) == (unsigned) i);
		arrived();
		fill();
		submit(WRITE, i, LEN, (uintptr_t) to);
		TRUE((next(&tx) & 0xffff) == (unsigned) i);
		arrived();
	}
	close_queues(&tx, &rx);
}

/* The library polls the queue, which two endpoints share. */
static void by_library(void)
{
	static struct fi_context2 contexts[4];
	struct queue both = external(256, 1);
	struct fi_cq_data_entry e;
	struct fid_ep *first, *second;
	int seen;

	ready(both.cq, both.cq);
	first = ep;
	open_endpoint(both.cq, both.cq);
	DO(0, fi_enable(ep));
	second = ep;
	for (int i = 0; i < ROUNDS; i++) {
		fill();
		DO(0, fi_recv(first, to, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[0]));
		DO(0, fi_send(second, from, LEN, fi_mr_desc(mr), self, &contexts[1]));
		DO(0, fi_write(first, from, 8, fi_mr_desc(mr), self, (uintptr_t) to, fi_mr_key(mr),
				&contexts[2]));
		for (seen = 0; seen != 7;) {
			ssize_t n = fi_cq_read(both.cq, &e, 1);

			if (n == -FI_EAGAIN)
				continue;
			DO(1, n);
			seen |= 1 << ((struct fi_context2 *) e.op_context - contexts);
		}
		arrived();
	}
	DO(0, fi_close(&second->fid));
	ep = first;
	close_queues(&both, &both);
}

static void reaches(struct fid_cntr *c, uint64_t n)
{
	DO(0, fi_cntr_wait(c, n, 10000));
	TRUE(fi_cntr_read(c) == n);
}

/* The adapter counts completions; the application reads none. */
static void counted(void)
{
	struct fi_efa_comp_cntr_init_attr init = { .flags = FI_EFA_COMP_CNTR_INIT_WITH_COMP_EXTERNAL_MEM };
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	static struct fi_context2 contexts[2];
	struct fid_cntr *local, *remote, *unseen;
	volatile uint64_t *number;
	int fd;

	number = (volatile uint64_t *) memory(&fd, PAGE);
	init.comp_cntr_ext_mem.type = FI_EFA_MEMORY_LOCATION_DMABUF;
	init.comp_cntr_ext_mem.dmabuf.fd = fd;
	init.comp_cntr_ext_mem.dmabuf.offset = 64;
	DO(0, gda->cntr_open_ext(domain, &attr, &unseen, NULL, &init));
	DO(-FI_EOPNOTSUPP, fi_cntr_wait(unseen, 1, -1));
	DO(0, fi_cntr_set(unseen, 41));
	DO(0, fi_cntr_add(unseen, 1));
	TRUE(number[8] == 42);
	DO(0, fi_cntr_set(unseen, 0));

	init.comp_cntr_ext_mem.ptr = (uint8_t *) (number + 16);
	init.comp_cntr_ext_mem.dmabuf.offset = 128;
	DO(0, gda->cntr_open_ext(domain, &attr, &local, NULL, &init));
	init.comp_cntr_ext_mem.type = FI_EFA_MEMORY_LOCATION_VA;
	init.comp_cntr_ext_mem.ptr = NULL;
	DO(-FI_EINVAL, gda->cntr_open_ext(domain, &attr, &remote, NULL, &init));
	init.flags = 0;
	DO(0, gda->cntr_open_ext(domain, &attr, &remote, NULL, &init));
	init.flags = 8;
	DO(-FI_EINVAL, gda->cntr_open_ext(domain, &attr, &remote, NULL, &init));

	open_endpoint(cq, cq);
	DO(0, fi_ep_bind(ep, &local->fid, FI_WRITE));
	DO(0, fi_ep_bind(ep, &unseen->fid, FI_SEND | FI_RECV));
	DO(0, fi_ep_bind(ep, &remote->fid, FI_REMOTE_WRITE));
	enable();
	DO(0, fi_mr_reg(domain, from, 2 * LEN, FI_SEND | FI_RECV | FI_WRITE | FI_REMOTE_WRITE, 0, 0, 0,
			&mr, NULL));
	for (int i = 1; i <= ROUNDS; i++) {
		DO(0, fi_write(ep, from, 8, fi_mr_desc(mr), self, (uintptr_t) to, fi_mr_key(mr), &contexts[0]));
		reaches(local, i);
		reaches(remote, i);
	}
	TRUE(number[16] == ROUNDS && fi_cntr_readerr(local) == 0);
	/* No region has this key. */
	DO(0, fi_write(ep, from, 8, fi_mr_desc(mr), self, (uintptr_t) to, fi_mr_key(mr) ^ 1,
			&contexts[0]));
	DO(-FI_EAVAIL, fi_cntr_wait(local, ROUNDS + 1, 10000));
	TRUE(fi_cntr_readerr(local) == 1);
	DO(0, fi_recv(ep, to, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &contexts[0]));
	DO(0, fi_send(ep, from, LEN, fi_mr_desc(mr), self, &contexts[1]));
	while (__atomic_load_n(&number[8], __ATOMIC_ACQUIRE) != 2)
		;
	DO(-FI_EBUSY, fi_close(&local->fid));
	DO(0, fi_close(&mr->fid));
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&local->fid));
	DO(0, fi_close(&remote->fid));
	DO(0, fi_close(&unseen->fid));
	DO(0, close(fd));
}

/* Invalid arguments. */
static void wrong(void)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .size = 4096, .wait_obj = FI_WAIT_FD };
	struct fi_efa_cq_init_attr init = { .flags = FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF };
	struct fid_cq *none;
	int fd;

	memory(&fd, PAGE);
	init.ext_mem_dmabuf.fd = fd;
	init.ext_mem_dmabuf.length = PAGE;
	DO(-FI_EINVAL, gda->cq_open_ext(domain, &attr, NULL, &none, NULL));
	DO(-FI_ENOSYS, gda->cq_open_ext(domain, &attr, &init, &none, NULL));
	attr.wait_obj = FI_WAIT_NONE;
	/* 4096 entries do not fit into one page. */
	DO(-FI_EINVAL, gda->cq_open_ext(domain, &attr, &init, &none, NULL));
	init.flags = 0;
	DO(-FI_EINVAL, gda->cq_open_ext(domain, &attr, &init, &none, NULL));
	DO(0, close(fd));
}

static void refused(void)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_DATA, .size = 64, .wait_obj = FI_WAIT_NONE };
	struct fi_efa_cq_init_attr init = { .flags = FI_EFA_CQ_INIT_FLAGS_EXT_MEM_DMABUF };
	struct fi_efa_comp_cntr_init_attr none = { 0 };
	struct fid_cntr *cntr;
	struct fid_cq *q;
	int fd;

	memory(&fd, QUEUE);
	init.ext_mem_dmabuf.fd = fd;
	init.ext_mem_dmabuf.length = QUEUE;
	DO(-FI_EOPNOTSUPP, gda->cq_open_ext(domain, &attr, &init, &q, NULL));
	DO(-FI_EOPNOTSUPP, gda->cntr_open_ext(domain, NULL, &cntr, NULL, &none));
	DO(0, close(fd));
	puts("queues and counters in memory of others were refused");
}

int main(int argc, char **argv)
{
	(void) argv;
	DO(0, ask("efa-direct", 0));
	open_domain();
	DO(0, fi_open_ops(&domain->fid, FI_EFA_GDA_OPS, 0, (void **) &gda, NULL));
	if (argc > 1) {
		refused();
	} else {
		wrong();
		by_device();
		by_library();
		counted();
		puts("a device drives its queues and reads what was counted");
	}
	DO(0, fi_close(&av->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
	return EXIT_SUCCESS;
}
