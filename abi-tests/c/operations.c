/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Operations beyond plain messages, each with what its man page promises: FI_MULTI_RECV, FI_PEEK,
 * FI_CLAIM and FI_DISCARD, directed receives, FI_FENCE, aliases, shared receive contexts,
 * counters of memory regions, poll and wait sets, every atomic on every type. Two endpoints of one
 * domain; what needs two processes is in fabtests-compat.
 */
#include <complex.h>
#include <rdma/fi_atomic.h>
#include "pair.h"

static void multi_recv(void)
{
	struct iovec v = { buf[1], 4096 };
	struct fi_msg m = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &v };
	struct fi_cq_tagged_entry e;
	size_t least = 512, at = 0;

	DO(0, fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
	/* Two messages arrive before the buffer is posted. */
	for (int i = 0; i < 2; i++) {
		DO(0, fi_send(a.ep, buf[0], 1000, NULL, b.addr, NULL));
		(void) take(a.tx);
	}
	DO(0, fi_recvmsg(b.ep, &m, FI_MULTI_RECV));
	for (int i = 0; i < 4; i++) {
		if (i >= 2) {
			memset(buf[0], i, 1000);
			DO(0, fi_send(a.ep, buf[0], 1000, NULL, b.addr, NULL));
			(void) take(a.tx);
		}
		e = take(b.rx);
		TRUE(e.len == 1000 && e.op_context == &v && (char *) e.buf == buf[1] + at);
		/* 96 bytes are left after the fourth: less than FI_OPT_MIN_MULTI_RECV. */
		TRUE(!!(e.flags & FI_MULTI_RECV) == (i == 3) && (e.flags & FI_RECV));
		at += 1000;
	}
	TRUE(buf[1][2000] == 2 && buf[1][3999] == 3);

	/* A tagged buffer takes one message: FI_TAGGED_MULTI_RECV is not offered. */
	struct fi_msg_tagged t = { .msg_iov = &v, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .tag = 1 };

	DO(0, fi_trecvmsg(b.ep, &t, FI_MULTI_RECV));
	t.context = &b;
	DO(0, fi_trecvmsg(b.ep, &t, FI_MULTI_RECV));
	send_tagged(&b, 1, 1000);
	send_tagged(&b, 1, 1000);
	TRUE(take(b.rx).op_context == NULL);
	TRUE(take(b.rx).op_context == &b);
}

/* `rx` is an endpoint or a shared receive context; completions go to the queue of `s`. */
static void peek(struct fid_ep *rx, struct side *s)
{
	struct iovec v = { buf[1], 4096 };
	struct fi_msg_tagged m = { .addr = FI_ADDR_UNSPEC, .tag = 7, .context = &v };
	struct fi_cq_tagged_entry e;

	DO(0, fi_trecvmsg(rx, &m, FI_PEEK));
	DO(FI_ENOMSG, take_error(s->rx));
	for (uint64_t t = 7; t <= 10; t++)
		send_tagged(s, t, 100 * t);
	/* FI_PEEK makes no progress: reading the queue does. */
	do {
		(void) fi_cq_read(s->rx, NULL, 0);
		m.tag = 10;
		DO(0, fi_trecvmsg(rx, &m, FI_PEEK));
	} while (fi_cq_read(s->rx, &e, 1) == -FI_EAVAIL
			&& fi_cq_readerr(s->rx, &(struct fi_cq_err_entry) { 0 }, 0) == 1);
	TRUE(e.len == 1000 && e.tag == 10);
	m.tag = 8;
	DO(0, fi_trecvmsg(rx, &m, FI_PEEK | FI_CLAIM));
	TRUE(take(s->rx).len == 800);
	/* A claimed message is invisible to others. */
	DO(0, fi_trecvmsg(rx, &m, FI_PEEK));
	DO(FI_ENOMSG, take_error(s->rx));
	m.msg_iov = &v;
	m.iov_count = 1;
	DO(0, fi_trecvmsg(rx, &m, FI_CLAIM));
	e = take(s->rx);
	TRUE(e.len == 800 && e.tag == 8 && buf[1][799] == 8);
	DO(-FI_EINVAL, fi_trecvmsg(rx, &m, FI_CLAIM));
	m.tag = 9;
	DO(0, fi_trecvmsg(rx, &m, FI_PEEK | FI_DISCARD));
	TRUE(take(s->rx).tag == 9);
	DO(0, fi_trecvmsg(rx, &m, FI_PEEK));
	DO(FI_ENOMSG, take_error(s->rx));
	m.tag = 7;
	m.ignore = 0xff;
	DO(0, fi_trecvmsg(rx, &m, FI_PEEK | FI_CLAIM));
	TRUE(take(s->rx).tag == 7);
	DO(0, fi_trecvmsg(rx, &m, FI_CLAIM | FI_DISCARD));
	TRUE(take(s->rx).tag == 7);
	DO(-FI_EBADFLAGS, fi_trecvmsg(rx, &m, FI_DISCARD));
	DO(0, fi_trecv(rx, buf[1], 4096, NULL, a.addr, 10, 0, NULL));
	TRUE(take(s->rx).len == 1000);
}

/* A directed receive does not match another peer's message. */
static void directed(void)
{
	DO(0, fi_trecv(b.ep, buf[1], 100, NULL, a.addr, 3, 0, &a));
	DO(0, fi_trecv(b.ep, buf[1], 100, NULL, b.addr, 3, 0, &b));
	DO(0, fi_tinject(b.ep, "x", 1, b.addr, 3));
	TRUE(take(b.rx).op_context == &b);
	DO(0, fi_cancel(&b.ep->fid, &a));
	DO(FI_ECANCELED, take_error(b.rx));
}

/* The fenced write takes effect after the much longer write before it. */
static void fence(void)
{
	static char big[8 << 20], target[8 << 20];
	struct fid_mr *mr;
	struct iovec v = { "!", 1 };
	struct fi_rma_iov r;
	struct fi_msg_rma m = { .msg_iov = &v, .iov_count = 1, .addr = b.addr, .rma_iov = &r,
				.rma_iov_count = 1, .context = &v };

	memset(big, 'b', sizeof(big));
	DO(0, fi_mr_reg(domain, target, sizeof(target), FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	r = (struct fi_rma_iov) { (uint64_t) (uintptr_t) (target + sizeof(target) - 1), 1, fi_mr_key(mr) };
	DO(0, fi_write(a.ep, big, sizeof(big), NULL, b.addr, (uint64_t) (uintptr_t) target,
			fi_mr_key(mr), big));
	DO(0, fi_writemsg(a.ep, &m, FI_FENCE | FI_COMPLETION));
	TRUE(take(a.tx).op_context == big);
	TRUE(take(a.tx).op_context == &v);
	TRUE(target[0] == 'b' && target[sizeof(target) - 1] == '!');
	DO(0, fi_close(&mr->fid));
}

static void alias(void)
{
	struct fid_ep *copy = NULL;
	uint64_t flags;

	DO(0, fi_ep_alias(a.ep, &copy, FI_TRANSMIT | FI_DELIVERY_COMPLETE));
	DO(-FI_EBUSY, fi_close(&a.ep->fid));
	DO(0, fi_recv(b.ep, buf[1], 10, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_send(copy, buf[0], 10, NULL, b.addr, copy));
	TRUE(take(b.rx).len == 10);
	TRUE(take(a.tx).op_context == copy);
	DO(-FI_EOPBADSTATE, fi_enable(copy));
	/* Its flags can be changed, and are not those of the endpoint. */
	flags = FI_TRANSMIT;
	DO(0, fi_control(&copy->fid, FI_GETOPSFLAG, &flags));
	DO(FI_DELIVERY_COMPLETE, flags);
	flags = FI_TRANSMIT | FI_TRANSMIT_COMPLETE;
	DO(0, fi_control(&copy->fid, FI_SETOPSFLAG, &flags));
	flags = FI_TRANSMIT;
	DO(0, fi_control(&copy->fid, FI_GETOPSFLAG, &flags));
	DO(FI_TRANSMIT_COMPLETE, flags);
	flags = FI_TRANSMIT;
	DO(0, fi_control(&a.ep->fid, FI_GETOPSFLAG, &flags));
	DO(0, flags);
	DO(0, fi_close(&copy->fid));
}

/* With FI_INJECT as a default a buffer may be changed when the call returns. */
static void injects(void)
{
	static char target[16];
	struct fi_cq_tagged_entry none;
	uint64_t flags = FI_TRANSMIT | FI_INJECT, at = (uint64_t) (uintptr_t) target;
	struct fid_mr *mr;

	DO(0, fi_mr_reg(domain, target, sizeof(target), FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	DO(0, fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
	memset(buf[1], 0, sizeof(buf[1]));
	for (int i = 0; i < 8; i++) {
		memset(buf[0], 'a' + i, 16);
		DO(0, fi_send(a.ep, buf[0], 16, NULL, b.addr, &flags));
		memset(buf[0], '#', 16);
	}
	DO(0, fi_inject(a.ep, buf[0], 16, b.addr));
	/* One that is too long is sent from the buffer. */
	DO(0, fi_send(a.ep, buf[0], sizeof(buf[0]) / 2, NULL, b.addr, &flags));
	for (int i = 0; i < 10; i++) {
		DO(0, fi_recv(b.ep, buf[1], sizeof(buf[1]), NULL, FI_ADDR_UNSPEC, NULL));
		TRUE(take(b.rx).len == (i < 9 ? 16 : sizeof(buf[0]) / 2));
		TRUE(i >= 8 || (buf[1][0] == 'a' + i && buf[1][15] == 'a' + i));
		/* fi_inject(3) is never reported. */
		TRUE(i == 8 || take(a.tx).op_context == &flags);
	}
	DO(-FI_EAGAIN, fi_cq_read(a.tx, &none, 1));
	memset(buf[0], 'w', 16);
	DO(0, fi_write(a.ep, buf[0], 16, NULL, b.addr, at, fi_mr_key(mr), &flags));
	memset(buf[0], '#', 16);
	TRUE(take(a.tx).op_context == &flags);
	while (((volatile char *) target)[15] != 'w')
		(void) fi_cq_read(b.rx, NULL, 0);
	flags = FI_TRANSMIT;
	DO(0, fi_control(&a.ep->fid, FI_SETOPSFLAG, &flags));
	DO(0, fi_close(&mr->fid));
}

static void region_counters(void)
{
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	static char target[100];
	struct fid_cntr *c, *theirs;
	struct fid_domain *elsewhere;
	struct fid_mr *mr;
	uint64_t before = fi_cntr_read(b.far), key, at = (uint64_t) (uintptr_t) target;

	DO(0, fi_cntr_open(domain, &na, &c, NULL));
	DO(0, fi_mr_reg(domain, target, sizeof(target), FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0,
			FI_RMA_EVENT, &mr, NULL));
	key = fi_mr_key(mr);
	DO(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	DO(0, fi_mr_bind(mr, &c->fid, FI_REMOTE_WRITE));
	DO(0, fi_domain(fabric, info, &elsewhere, NULL));
	DO(0, fi_cntr_open(elsewhere, &na, &theirs, NULL));
	DO(-FI_EINVAL, fi_mr_bind(mr, &theirs->fid, FI_REMOTE_WRITE));
	DO(0, fi_close(&theirs->fid));
	DO(0, fi_close(&elsewhere->fid));
	DO(0, fi_write(a.ep, "hello", 6, NULL, b.addr, at, key, NULL));
	DO(0, fi_cntr_wait(c, 1, 10000));
	TRUE(!strcmp(target, "hello"));
	(void) take(a.tx);
	DO(0, fi_read(a.ep, buf[0], 6, NULL, b.addr, at, key, NULL));
	(void) take(a.tx);
	DO(0, fi_cntr_wait(b.far, before + 2, 10000));
	DO(1, fi_cntr_read(c));
	DO(-FI_EBUSY, fi_close(&c->fid));
	DO(0, fi_close(&mr->fid));
	DO(0, fi_close(&c->fid));
}

/* Fetching atomics are remote reads. An access is counted when it has ended; what the library reads
 * for a message is none. */
static void remote_accesses(void)
{
	enum { LONG = 8 << 20 };
	static char target[LONG], copy[LONG];
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	uint64_t key, at = (uint64_t) (uintptr_t) target, one = 1, zero = 0, was;
	uint64_t counted = fi_cntr_read(a.far);
	struct fid_cntr *reads, *writes;
	struct fid_mr *mr;

	DO(0, fi_cntr_open(domain, &na, &reads, NULL));
	DO(0, fi_cntr_open(domain, &na, &writes, NULL));
	DO(0, fi_mr_reg(domain, target, LONG, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, FI_RMA_EVENT,
			&mr, NULL));
	key = fi_mr_key(mr);
	DO(0, fi_mr_bind(mr, &reads->fid, FI_REMOTE_READ));
	DO(0, fi_mr_bind(mr, &writes->fid, FI_REMOTE_WRITE));
	memset(target, 0, LONG);
	DO(0, fi_atomic(a.ep, &one, 1, NULL, b.addr, at, key, FI_UINT64, FI_SUM, NULL));
	(void) take(a.tx);
	DO(0, fi_cntr_wait(writes, 1, 10000));
	DO(0, fi_fetch_atomic(a.ep, &one, 1, NULL, &was, NULL, b.addr, at, key, FI_UINT64, FI_SUM, NULL));
	(void) take(a.tx);
	TRUE(was == 1);
	DO(0, fi_cntr_wait(reads, 1, 10000));
	DO(0, fi_compare_atomic(a.ep, &one, 1, NULL, &zero, NULL, &was, NULL, b.addr, at, key, FI_UINT64,
			FI_CSWAP, NULL));
	(void) take(a.tx);
	TRUE(was == 2);
	DO(0, fi_cntr_wait(reads, 2, 10000));
	DO(1, fi_cntr_read(writes));
	/* Once the read is counted, the memory may change. */
	memset(target, 1, LONG);
	DO(0, fi_read(a.ep, copy, LONG, NULL, b.addr, at, key, NULL));
	DO(0, fi_cntr_wait(reads, 3, 10000));
	memset(target, 2, LONG);
	(void) take(a.tx);
	TRUE(copy[0] == 1 && !memcmp(copy, copy + 1, LONG - 1));
	DO(0, fi_trecv(b.ep, copy, LONG, NULL, FI_ADDR_UNSPEC, 1, 0, NULL));
	DO(0, fi_tsend(a.ep, target, LONG, NULL, b.addr, 1, NULL));
	(void) take(a.tx);
	(void) take(b.rx);
	TRUE(fi_cntr_read(a.far) == counted);
	DO(0, fi_close(&mr->fid));
	DO(0, fi_close(&reads->fid));
	DO(0, fi_close(&writes->fid));
}

static void poll_set(void)
{
	struct fi_poll_attr pa = { 0 };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *go[2];
	struct fid_poll *set;
	void *ctx[4];
	int n;

	for (int i = 0; i < 2; i++)
		DO(0, fi_cntr_open(domain, &na, &go[i], &go[i]));
	DO(0, fi_poll_open(domain, &pa, &set));
	DO(0, fi_poll_add(set, &a.tx->fid, 0));
	DO(0, fi_poll_add(set, &b.rx->fid, 0));
	DO(0, fi_poll(set, ctx, 4));
	DO(0, fi_recv(b.ep, buf[1], 10, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_inject(a.ep, buf[0], 10, b.addr));
	while ((n = fi_poll(set, ctx, 4)) == 0)
		;
	DO(1, n);
	TRUE(ctx[0] == &b);
	(void) take(b.rx);
	DO(0, fi_poll_del(set, &b.rx->fid, 0));
	/* Of two counters with something new, the one without room is reported next. */
	DO(0, fi_poll_add(set, &go[0]->fid, 0));
	DO(0, fi_poll_add(set, &go[1]->fid, 0));
	for (int i = 0; i < 2; i++)
		DO(0, fi_cntr_add(go[i], 1));
	for (int i = 0; i < 2; i++) {
		DO(1, fi_poll(set, ctx, 1));
		TRUE(ctx[0] == &go[i]);
	}
	DO(0, fi_poll(set, ctx, 1));
	DO(0, fi_close(&set->fid));
	for (int i = 0; i < 2; i++)
		DO(0, fi_close(&go[i]->fid));
}

/* The memory that atomics change, as the peer names it. */
static char target[64] __attribute__((aligned(16)));
static uint64_t target_at, target_key;
static int atomics_done;

/* One atomic on `old`, which becomes `want`: `kind` 0 without result, 1 fetching, 2 comparing. */
#define ON(type, dt, op, old, with, cmp, kind, want) \
	do { \
		type o_ = (old), w_ = (with), c_ = (cmp), r_ = 0, x_ = (want); \
		size_t n_ = 0; \
		(void) c_; \
		memcpy(target, &o_, sizeof(o_)); \
		if (kind == 0) { \
			DO(0, fi_atomicvalid(a.ep, dt, op, &n_)); \
			struct fi_ioc v_ = { &w_, 1 }; \
			struct fi_rma_ioc far_ = { target_at, 1, target_key }; \
			struct fi_msg_atomic m_ = { &v_, NULL, 1, b.addr, &far_, 1, dt, op, NULL, 0 }; \
			DO(0, fi_atomicmsg(a.ep, &m_, FI_COMPLETION | FI_DELIVERY_COMPLETE)); \
		} else if (kind == 1) { \
			DO(0, fi_fetch_atomicvalid(a.ep, dt, op, &n_)); \
			DO(0, fi_fetch_atomic(a.ep, &w_, 1, NULL, &r_, NULL, b.addr, target_at, target_key, dt, \
					op, NULL)); \
		} else { \
			DO(0, fi_compare_atomicvalid(a.ep, dt, op, &n_)); \
			DO(0, fi_compare_atomic(a.ep, &w_, 1, NULL, &c_, NULL, &r_, NULL, b.addr, target_at, \
					target_key, dt, op, NULL)); \
		} \
		TRUE(n_ > 0); \
		(void) take(a.tx); \
		TRUE(kind == 0 || r_ == o_); \
		memcpy(&r_, target, sizeof(r_)); \
		TRUE(r_ == x_); \
		atomics_done++; \
	} while (0)
/* With and without the former value. */
#define BOTH(type, dt, op, old, with, want) \
	do { \
		ON(type, dt, op, old, with, 0, 0, want); \
		ON(type, dt, op, old, with, 0, 1, want); \
	} while (0)
/* Operations on all types. */
#define SOME(type, dt) \
	do { \
		BOTH(type, dt, FI_SUM, 6, 3, (type) 9); \
		BOTH(type, dt, FI_PROD, 6, 3, (type) 18); \
		BOTH(type, dt, FI_DIFF, 6, 3, (type) 3); \
		BOTH(type, dt, FI_LOR, 0, 3, (type) 1); \
		BOTH(type, dt, FI_LAND, 6, 0, (type) 0); \
		BOTH(type, dt, FI_LXOR, 6, 3, (type) 0); \
		BOTH(type, dt, FI_ATOMIC_WRITE, 6, 3, (type) 3); \
		ON(type, dt, FI_ATOMIC_READ, 6, 3, 0, 1, (type) 6); \
		ON(type, dt, FI_CSWAP, 6, 3, 6, 2, (type) 3); \
		ON(type, dt, FI_CSWAP, 6, 3, 5, 2, (type) 6); \
		ON(type, dt, FI_CSWAP_NE, 6, 3, 5, 2, (type) 3); \
	} while (0)
/* Operations on types with an order. */
#define REAL(type, dt) \
	do { \
		SOME(type, dt); \
		BOTH(type, dt, FI_MIN, 6, 3, (type) 3); \
		BOTH(type, dt, FI_MAX, 6, 3, (type) 6); \
		ON(type, dt, FI_CSWAP_LE, 6, 3, 6, 2, (type) 3); \
		ON(type, dt, FI_CSWAP_LT, 6, 3, 6, 2, (type) 6); \
		ON(type, dt, FI_CSWAP_GE, 6, 3, 5, 2, (type) 6); \
		ON(type, dt, FI_CSWAP_GT, 6, 3, 7, 2, (type) 3); \
	} while (0)
/* Operations on integers. */
#define WHOLE(type, dt) \
	do { \
		REAL(type, dt); \
		BOTH(type, dt, FI_BOR, 6, 3, (type) 7); \
		BOTH(type, dt, FI_BAND, 6, 3, (type) 2); \
		BOTH(type, dt, FI_BXOR, 6, 3, (type) 5); \
		ON(type, dt, FI_MSWAP, 6, 3, 1, 2, (type) 7); \
	} while (0)

/* Every operation on every type, against the plain C meaning. */
static void atomics_of_all_types(void)
{
	__extension__ typedef __int128 wide;
	__extension__ typedef unsigned __int128 uwide;

	WHOLE(int8_t, FI_INT8);
	WHOLE(uint8_t, FI_UINT8);
	WHOLE(int16_t, FI_INT16);
	WHOLE(uint16_t, FI_UINT16);
	WHOLE(int32_t, FI_INT32);
	WHOLE(uint32_t, FI_UINT32);
	WHOLE(int64_t, FI_INT64);
	WHOLE(uint64_t, FI_UINT64);
	WHOLE(wide, FI_INT128);
	WHOLE(uwide, FI_UINT128);
	REAL(float, FI_FLOAT);
	REAL(double, FI_DOUBLE);
#ifdef __x86_64__
	REAL(long double, FI_LONG_DOUBLE);
	SOME(long double complex, FI_LONG_DOUBLE_COMPLEX);
#endif
	SOME(float complex, FI_FLOAT_COMPLEX);
	SOME(double complex, FI_DOUBLE_COMPLEX);
}

static void refused_atomics(void)
{
	size_t n;

	DO(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_FLOAT, FI_BOR, &n));
	DO(-FI_EOPNOTSUPP, fi_compare_atomicvalid(a.ep, FI_INT32, FI_SUM, &n));
	DO(-FI_EOPNOTSUPP, fi_atomicvalid(a.ep, FI_INT32, FI_CSWAP, &n));
	/* A wrong key is an error at the initiator alone. */
	DO(0, fi_atomic(a.ep, target, 1, NULL, b.addr, target_at, target_key ^ 0x1000, FI_UINT64,
			FI_SUM, NULL));
	TRUE(take_error(a.tx) != 0);
}

/* Without FI_DELIVERY_COMPLETE the completion may precede the operation at the target. */
static void early_completion(void)
{
	memset(target, 0, 8);
	DO(0, fi_atomic(a.ep, "\5\0\0\0\0\0\0", 1, NULL, b.addr, target_at, target_key, FI_UINT64, FI_SUM,
			target));
	TRUE(take(a.tx).op_context == target);
	for (int i = 0; i < 1000000 && !target[0]; i++)
		(void) fi_cq_read(b.tx, NULL, 0);
	TRUE(target[0] == 5);
	DO(0, fi_inject_atomic(a.ep, "\1\0\0\0\0\0\0", 1, b.addr, target_at, target_key, FI_UINT64,
			FI_ATOMIC_WRITE));
	ON(uint64_t, FI_UINT64, FI_SUM, 1, 2, 0, 0, 3);
}

static void atomics(void)
{
	struct fid_mr *mr;

	DO(0, fi_mr_reg(domain, target, sizeof(target), FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &mr,
			NULL));
	target_at = (uint64_t) (uintptr_t) target;
	target_key = fi_mr_key(mr);
	atomics_of_all_types();
	refused_atomics();
	early_completion();
	DO(0, fi_close(&mr->fid));
	printf("%d atomics\n", atomics_done);
}

/* Receives of a shared receive context match messages to the endpoint that is bound to it. */
static void shared_context(void)
{
	struct fi_msg_tagged any = { .addr = FI_ADDR_UNSPEC };
	struct fid_ep *srx;
	struct side c;

	DO(0, fi_srx_context(domain, info->rx_attr, &srx, NULL));
	DO(-FI_ENOCQ, fi_trecvmsg(srx, &any, FI_PEEK));
	open_side(&c, srx, FI_WAIT_NONE, NULL);
	DO(0, fi_recv(srx, buf[1], 100, NULL, FI_ADDR_UNSPEC, &srx));
	DO(-FI_EOPNOTSUPP, fi_send(srx, buf[1], 100, NULL, a.addr, NULL));
	DO(0, fi_send(a.ep, buf[0], 100, NULL, c.addr, NULL));
	TRUE(take(c.rx).op_context == &srx);
	(void) take(a.tx);
	peek(srx, &c);
	DO(-FI_EBUSY, fi_close(&srx->fid));
	close_side(&c);
	DO(0, fi_close(&srx->fid));
}

static void wait_set(void)
{
	struct fi_wait_attr wa = { .wait_obj = FI_WAIT_UNSPEC };
	struct fid_wait *set;
	struct side c;

	DO(0, fi_wait_open(fabric, &wa, &set));
	open_side(&c, NULL, FI_WAIT_SET, set);
	DO(-FI_ETIMEDOUT, fi_wait(set, 1));
	DO(0, fi_recv(c.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, NULL));
	DO(0, fi_inject(a.ep, buf[0], 100, c.addr));
	while (fi_cq_read(c.rx, &(struct fi_cq_tagged_entry) { 0 }, 1) != 1)
		DO(0, fi_wait(set, 10000));
	DO(-FI_EBUSY, fi_close(&set->fid));
	close_side(&c);

	/* A change of a counter that came before the call, too. */
	struct fi_cntr_attr na = { .wait_obj = FI_WAIT_SET, .wait_set = set };
	struct fid_cntr *counter;

	DO(0, fi_cntr_open(domain, &na, &counter, NULL));
	DO(-FI_ETIMEDOUT, fi_wait(set, 1));
	DO(0, fi_cntr_add(counter, 1));
	DO(0, fi_wait(set, 10000));
	DO(-FI_ETIMEDOUT, fi_wait(set, 1));
	DO(0, fi_close(&counter->fid));

	/* An event queue is ready as long as it has events. */
	struct fi_eq_attr ea = { .flags = FI_WRITE, .wait_obj = FI_WAIT_SET, .wait_set = set };
	struct fi_eq_entry event = { 0 };
	struct fid *watched = &set->fid;
	struct fid_eq *eq;
	uint32_t what;

	DO(0, fi_eq_open(fabric, &ea, &eq, NULL));
	DO(-FI_ETIMEDOUT, fi_wait(set, 1));
	DO(0, fi_trywait(fabric, &watched, 1));
	DO((int) sizeof(event), fi_eq_write(eq, FI_NOTIFY, &event, sizeof(event), 0));
	DO(0, fi_wait(set, 10000));
	DO(-FI_EAGAIN, fi_trywait(fabric, &watched, 1));
	DO((int) sizeof(event), fi_eq_read(eq, &what, &event, sizeof(event), 0));
	DO(-FI_ETIMEDOUT, fi_wait(set, 1));
	DO(-FI_EBUSY, fi_close(&set->fid));
	DO(0, fi_close(&eq->fid));
	DO(0, fi_close(&set->fid));
}

/* What applications pass back as they got it, or keep from call to call. */
static void passed_back(void)
{
	char name[64], data[16];
	size_t len = sizeof(name);
	fi_addr_t addrs[2] = { 0, FI_ADDR_NOTAVAIL };
	struct fi_cq_err_entry e = { .err_data = data, .err_data_size = sizeof(data) };
	struct fi_cq_attr ca = { .wait_obj = FI_WAIT_UNSPEC };
	enum fi_wait_obj obj;
	struct fid_cq *q;
	struct side c;

	open_side(&c, NULL, FI_WAIT_NONE, NULL);
	addrs[0] = c.addr;
	DO(-FI_EINVAL, fi_av_remove(av, addrs, 2, 0));
	DO(-FI_EINVAL, fi_av_lookup(av, addrs[0], name, &len));
	DO(0, fi_recv(c.ep, buf[1], 100, NULL, FI_ADDR_UNSPEC, &e));
	DO(0, fi_cancel(&c.ep->fid, &e));
	while (fi_cq_read(c.rx, NULL, 0) != -FI_EAVAIL)
		;
	DO(1, fi_cq_readerr(c.rx, &e, 0));
	TRUE(e.err == FI_ECANCELED && e.err_data == data && e.err_data_size == 0);
	close_side(&c);
	DO(0, fi_cq_open(domain, &ca, &q, NULL));
	DO(0, fi_control(&q->fid, FI_GETWAITOBJ, &obj));
	TRUE(obj == FI_WAIT_FD);
	DO(0, fi_close(&q->fid));
}

static int posted, sent;

/* Posts the next message of the budget test if there is room, and counts send completions. */
static void push(int count, char (*out)[4096])
{
	struct fi_cq_tagged_entry e;

	if (posted < count) {
		memset(out[posted], posted, 4096);
		if (fi_send(a.ep, out[posted], 4096, NULL, b.addr, NULL) == 0)
			posted++;
	}
	sent += fi_cq_read(a.tx, &e, 1) == 1;
}

/*
 * More messages than the budget (main sets it) and than the adapter keeps for a process that does
 * not poll (8 MiB): senders wait, and nothing is lost or out of order.
 */
static void budget(void)
{
	enum { COUNT = 6000 };
	static char out[COUNT][4096];
	struct fi_cq_tagged_entry e;

	for (int polls = 0; polls < 30000; polls++) {
		push(COUNT, out);
		(void) fi_cq_read(b.rx, NULL, 0);
	}
	TRUE(sent > 100 && sent < COUNT);
	for (int got = 0; got < COUNT; got++) {
		DO(0, fi_recv(b.ep, buf[1], 4096, NULL, FI_ADDR_UNSPEC, NULL));
		while (fi_cq_read(b.rx, &e, 1) != 1)
			push(COUNT, out);
		TRUE(buf[1][0] == (char) got && buf[1][4095] == (char) got);
	}
	while (sent < COUNT)
		push(COUNT, out);
	printf("%d messages through a budget of 1 MB\n", sent);
}

int main(void)
{
	setenv("FI_EFA_UNEXPECTED_SIZE", "1000000", 1);
	open_pair();
	peek(b.ep, &b);
	directed();
	multi_recv();
	fence();
	alias();
	injects();
	region_counters();
	remote_accesses();
	poll_set();
	atomics();
	shared_context();
	wait_set();
	passed_back();
	budget();
	close_pair();
	printf("every operation does what it says\n");
	return EXIT_SUCCESS;
}
