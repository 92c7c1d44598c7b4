/* SPDX-License-Identifier: BSD-2-Clause */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <time.h>
#include <unistd.h>
#include "bench.h"
#include "gpu.h"

#define CHECK(call) \
	do { \
		int ret_ = (int) (call); \
		if (ret_ < 0) { \
			fprintf(stderr, "%s: %d (%s)\n", #call, ret_, fi_strerror(-ret_)); \
			return ret_; \
		} \
	} while (0)

static const size_t ALL_SIZES[] = {
	1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1 << 10, 1536,
	2 << 10, 3 << 10, 4 << 10, 6 << 10, 8 << 10, 12 << 10, 16 << 10, 24 << 10, 32 << 10, 48 << 10,
	64 << 10, 96 << 10, 128 << 10, 192 << 10, 256 << 10, 384 << 10, 512 << 10, 768 << 10, 1 << 20,
	1536 << 10, 2 << 20, 3 << 20, 4 << 20, 6 << 20, 8 << 20,
};
static const size_t DEFAULT_SIZES[] = { 64, 256, 1 << 10, 4 << 10, 64 << 10, 1 << 20 };

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

/* ---- options -------------------------------------------------------------------------------- */

static void usage(const char *name)
{
	printf("Usage:\n  %s [OPTIONS]\t\tstart server\n  %s [OPTIONS] <host>\tconnect to server\n\n"
	       "  -p PROV -d DOMAIN -f FABRIC -e rdm\twhat to ask fi_getinfo for\n"
	       "  -E[=PORT], -b[=PORT]\t\t\texchange addresses over TCP (always done; port 9228)\n"
	       "  -B PORT, -P PORT\t\t\tport of this or of the other side\n"
	       "  -o write|writedata|read\t\toperation of the RMA programs\n"
	       "  -S SIZE|all|a,b,c\t\t\tmessage sizes\n"
	       "  -I N -w N -W N\t\t\titerations, warm-up iterations, window\n"
	       "  -c spin|sread|fd\t\t\thow to wait for completions\n"
	       "  -j N\t\t\t\t\tlargest injected message\n"
	       "  -D cuda\t\t\t\tmemory of a GPU\n"
	       "  -v\t\t\t\t\tverify every byte\n"
	       "  --timeout N\t\t\t\tgive up waiting after so many seconds (60)\n", name, name);
}

static int parse_sizes(struct bench *b, char *arg)
{
	if (strcmp(arg, "all") == 0) {
		b->size_count = sizeof(ALL_SIZES) / sizeof(ALL_SIZES[0]);
		memcpy(b->sizes, ALL_SIZES, sizeof(ALL_SIZES));
		return 0;
	}
	if (strncmp(arg, "l:", 2) == 0)
		arg += 2;
	for (char *s = strtok(arg, ","); s != NULL; s = strtok(NULL, ",")) {
		char *end;
		unsigned long long v = strtoull(s, &end, 0);

		if (*end != '\0' || v > (1ULL << 32) || b->size_count == 64) {
			fprintf(stderr, "-S: %s is no size\n", s);
			return -FI_EINVAL;
		}
		b->sizes[b->size_count++] = v;
	}
	return b->size_count ? 0 : -FI_EINVAL;
}

static int parse(struct bench *b, bool rma, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "timeout", required_argument, NULL, 1 }, { "help", no_argument, NULL, 'h' }, { 0, 0, 0, 0 },
	};
	struct fi_info *h = b->hints;
	int c;

	while ((c = getopt_long(argc, argv, "p:d:f:e:E::b::B:P:s:o:S:I:w:W:c:j:a:t:D:vhUm", longs,
			NULL)) != -1) {
		switch (c) {
		case 'p': h->fabric_attr->prov_name = strdup(optarg); break;
		case 'd': h->domain_attr->name = strdup(optarg); break;
		case 'f': h->fabric_attr->name = strdup(optarg); break;
		case 'e':
			if (strcmp(optarg, "rdm") != 0) {
				fprintf(stderr, "-e: only rdm\n");
				return -FI_EINVAL;
			}
			break;
		case 'E': case 'b':
			if (optarg)
				b->port = optarg + (*optarg == '=');
			break;
		case 'B': case 'P': b->port = optarg; break;
		case 's': case 'a': case 't': case 'm': break;
		case 'U': h->tx_attr->op_flags |= FI_DELIVERY_COMPLETE; break;
		case 'o':
			if (!rma)
				return -FI_EINVAL;
			if (strcmp(optarg, "write") == 0)
				b->op = OP_WRITE;
			else if (strcmp(optarg, "writedata") == 0)
				b->op = OP_WRITEDATA;
			else if (strcmp(optarg, "read") == 0)
				b->op = OP_READ;
			else {
				fprintf(stderr, "-o: write, writedata or read\n");
				return -FI_EINVAL;
			}
			break;
		case 'S':
			if (parse_sizes(b, optarg))
				return -FI_EINVAL;
			break;
		case 'I': b->iterations = atoi(optarg); break;
		case 'w': b->warmup = atoi(optarg); break;
		case 'W': b->window = atoi(optarg); break;
		case 'c':
			b->wait = strcmp(optarg, "sread") == 0 ? WAIT_SREAD :
				strcmp(optarg, "fd") == 0 ? WAIT_FD : WAIT_SPIN;
			break;
		case 'j': b->inject_limit = atol(optarg); break;
		case 'D':
			if (strcmp(optarg, "cuda") != 0) {
				fprintf(stderr, "-D: only cuda\n");
				return -FI_EINVAL;
			}
			if (gpu_open())
				return -FI_ENOSYS;
			break;
		case 'v': b->verify = true; break;
		case 1: b->timeout_s = atoi(optarg); break;
		default: usage(argv[0]); return -FI_EINVAL;
		}
	}
	if (optind < argc)
		b->peer = argv[optind];
	if (b->window < 1 || b->iterations < 0 || b->warmup < 0)
		return -FI_EINVAL;
	if (b->size_count == 0) {
		b->size_count = sizeof(DEFAULT_SIZES) / sizeof(DEFAULT_SIZES[0]);
		memcpy(b->sizes, DEFAULT_SIZES, sizeof(DEFAULT_SIZES));
	}
	for (int i = 0; i < b->size_count; i++)
		if (b->sizes[i] > b->max_size)
			b->max_size = b->sizes[i];
	return 0;
}

/* ---- out-of-band channel -------------------------------------------------------------------- */

static int oob_open(struct bench *b)
{
	struct addrinfo want = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list;
	double until = now_s() + b->timeout_s;
	int one = 1, fd, r;

	want.ai_flags = b->peer ? 0 : AI_PASSIVE;
	r = getaddrinfo(b->peer, b->port, &want, &list);
	if (r) {
		fprintf(stderr, "%s: %s\n", b->peer ? b->peer : "*", gai_strerror(r));
		return -FI_EINVAL;
	}
	if (b->peer == NULL) {
		fd = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(fd, list->ai_addr, list->ai_addrlen) || listen(fd, 1)) {
			perror("bind");
			freeaddrinfo(list);
			return -FI_EADDRINUSE;
		}
		struct sockaddr_in me;
		socklen_t len = sizeof(me);

		/* With port 0 the runner reads the chosen port from this line. */
		getsockname(fd, (struct sockaddr *) &me, &len);
		if (strcmp(b->port, "0") == 0) {
			printf("port %d\n", ntohs(me.sin_port));
			fflush(stdout);
		}
		b->oob = accept(fd, NULL, NULL);
		close(fd);
	} else {
		/* The server may still be starting: ask again until it listens. */
		for (;;) {
			b->oob = socket(AF_INET, SOCK_STREAM, 0);
			if (connect(b->oob, list->ai_addr, list->ai_addrlen) == 0)
				break;
			close(b->oob);
			b->oob = -1;
			if (now_s() > until)
				break;
			poll(NULL, 0, 10);
		}
	}
	freeaddrinfo(list);
	if (b->oob < 0) {
		perror("out-of-band connection");
		return -FI_ECONNREFUSED;
	}
	setsockopt(b->oob, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return 0;
}

/* Sends and receives `len` bytes, and progresses the endpoint meanwhile. */
static int oob_swap(struct bench *b, const void *out, void *in, size_t len)
{
	size_t sent = 0, got = 0;
	double until = now_s() + b->timeout_s;

	while (sent < len || got < len) {
		ssize_t n;

		if (sent < len) {
			n = send(b->oob, (const char *) out + sent, len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
			sent += n > 0 ? (size_t) n : 0;
		}
		n = recv(b->oob, (char *) in + got, len - got, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
			fprintf(stderr, "the peer has closed the out-of-band connection\n");
			return -FI_ECONNRESET;
		}
		got += n > 0 ? (size_t) n : 0;
		if (b->ep)
			CHECK(bench_progress(b));
		if (now_s() > until) {
			fprintf(stderr, "no answer from the peer within %d s\n", b->timeout_s);
			return -FI_ETIMEDOUT;
		}
	}
	return 0;
}

int bench_sync(struct bench *b)
{
	char out = 's', in;

	return oob_swap(b, &out, &in, 1);
}

/* ---- resources ------------------------------------------------------------------------------ */

static int open_all(struct bench *b, bool rma)
{
	struct fi_cq_attr cq = { 0 };
	struct fi_av_attr av = { .type = FI_AV_TABLE, .count = 1 };
	size_t len = sizeof(b->inject_size), slot = b->max_size < 1024 ? 1024 : b->max_size;
	uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

	CHECK(fi_getinfo(FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION), NULL, NULL, 0, b->hints,
			&b->info));
	CHECK(fi_fabric(b->info->fabric_attr, &b->fabric, NULL));
	CHECK(fi_domain(b->fabric, b->info, &b->domain, NULL));
	cq.format = b->op == OP_TAGGED ? FI_CQ_FORMAT_TAGGED : FI_CQ_FORMAT_DATA;
	cq.wait_obj = b->wait == WAIT_SPIN ? FI_WAIT_NONE
			: b->wait == WAIT_FD ? FI_WAIT_FD : FI_WAIT_UNSPEC;
	cq.size = b->info->tx_attr->size;
	CHECK(fi_cq_open(b->domain, &cq, &b->txcq, NULL));
	cq.size = b->info->rx_attr->size;
	CHECK(fi_cq_open(b->domain, &cq, &b->rxcq, NULL));
	CHECK(fi_av_open(b->domain, &av, &b->av, NULL));
	CHECK(fi_endpoint(b->domain, b->info, &b->ep, NULL));
	CHECK(fi_ep_bind(b->ep, &b->av->fid, 0));
	CHECK(fi_ep_bind(b->ep, &b->txcq->fid, FI_TRANSMIT));
	CHECK(fi_ep_bind(b->ep, &b->rxcq->fid, FI_RECV));
	CHECK(fi_enable(b->ep));
	if (fi_getopt(&b->ep->fid, FI_OPT_ENDPOINT, rma ? FI_OPT_INJECT_RMA_SIZE : FI_OPT_INJECT_MSG_SIZE,
		      &b->inject_size, &len))
		b->inject_size = b->info->tx_attr->inject_size;
	if (b->inject_limit >= 0 && (size_t) b->inject_limit < b->inject_size)
		b->inject_size = (size_t) b->inject_limit;

	/* Verified writes have a place of their own per slot of the window; others share one. */
	b->buf_size = slot * (size_t) (b->verify && rma ? b->window : 1);
	b->buf = gpu.used ? gpu_alloc(2 * b->buf_size) :
		aligned_alloc(4096, (2 * b->buf_size + 4095) & ~(size_t) 4095);
	b->tx_ctx = calloc((size_t) b->window + 1, sizeof(*b->tx_ctx));
	b->rx_ctx = calloc((size_t) b->window + 1, sizeof(*b->rx_ctx));
	if (!b->buf || !b->tx_ctx || !b->rx_ctx)
		return -FI_ENOMEM;
	bench_clear(b->buf, 2 * b->buf_size);
	b->tx = b->buf;
	b->rx = b->buf + b->buf_size;
	if (rma || gpu.used || (b->info->domain_attr->mr_mode & FI_MR_LOCAL)) {
		struct iovec iov = { b->buf, 2 * b->buf_size };
		struct fi_mr_attr attr = { .mr_iov = &iov, .iov_count = 1, .access = access,
				.requested_key = 0x1234,
					   .iface = gpu.used ? FI_HMEM_CUDA : FI_HMEM_SYSTEM };

		CHECK(fi_mr_regattr(b->domain, &attr, 0, &b->mr));
		b->desc = fi_mr_desc(b->mr);
	}
	return 0;
}

static int exchange(struct bench *b)
{
	struct {
		char addr[64];
		uint64_t rx, key;
	} mine, theirs;
	size_t len = sizeof(mine.addr);

	memset(&mine, 0, sizeof(mine));
	CHECK(fi_getname(&b->ep->fid, mine.addr, &len));
	if (b->mr) {
		mine.rx = b->info->domain_attr->mr_mode & (FI_MR_VIRT_ADDR | FI_MR_BASIC) ?
			(uintptr_t) b->buf : 0;
		mine.key = fi_mr_key(b->mr);
	}
	CHECK(oob_swap(b, &mine, &theirs, sizeof(mine)));
	if (fi_av_insert(b->av, theirs.addr, 1, &b->far, 0, NULL) != 1) {
		fprintf(stderr, "fi_av_insert: the peer's address was refused\n");
		return -FI_EINVAL;
	}
	b->remote.addr = theirs.rx;
	b->remote.key = theirs.key;
	return 0;
}

int bench_start(struct bench *b, enum bench_op op, bool rma, int argc, char **argv)
{
	memset(b, 0, sizeof(*b));
	b->op = op;
	b->port = "9228";
	b->warmup = 10;
	b->window = 64;
	b->inject_limit = -1;
	b->timeout_s = 60;
	b->oob = -1;
	b->hints = fi_allocinfo();
	if (!b->hints)
		return -FI_ENOMEM;
	CHECK(parse(b, rma, argc, argv));
	b->hints->ep_attr->type = FI_EP_RDM;
	b->hints->caps = b->op == OP_TAGGED ? FI_TAGGED : FI_MSG;
	if (rma)
		b->hints->caps |= FI_RMA;
	b->hints->mode = FI_CONTEXT | FI_CONTEXT2;
	b->hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	b->hints->domain_attr->threading = FI_THREAD_DOMAIN;
	b->hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	if (gpu.used) {
		b->hints->caps |= FI_HMEM;
		b->hints->domain_attr->mr_mode |= FI_MR_HMEM;
	}
	if (b->op == OP_WRITEDATA)
		b->hints->domain_attr->cq_data_size = 4;
	if (b->verify && rma)
		b->hints->tx_attr->op_flags |= FI_DELIVERY_COMPLETE;
	CHECK(oob_open(b));
	CHECK(open_all(b, rma));
	CHECK(exchange(b));
	return bench_sync(b);
}

static int close_one(const char *what, struct fid *f)
{
	int r = f ? fi_close(f) : 0;

	if (r)
		fprintf(stderr, "fi_close(%s): %d (%s)\n", what, r, fi_strerror(-r));
	return r;
}

int bench_end(struct bench *b)
{
	int r = 0;

	if (b->oob >= 0)
		close(b->oob);
	r |= close_one("ep", b->ep ? &b->ep->fid : NULL);
	r |= close_one("mr", b->mr ? &b->mr->fid : NULL);
	r |= close_one("txcq", b->txcq ? &b->txcq->fid : NULL);
	r |= close_one("rxcq", b->rxcq ? &b->rxcq->fid : NULL);
	r |= close_one("av", b->av ? &b->av->fid : NULL);
	r |= close_one("domain", b->domain ? &b->domain->fid : NULL);
	r |= close_one("fabric", b->fabric ? &b->fabric->fid : NULL);
	if (gpu.used && b->buf)
		gpu.free(b->buf);
	else
		free(b->buf);
	free(b->tx_ctx);
	free(b->rx_ctx);
	fi_freeinfo(b->info);
	fi_freeinfo(b->hints);
	return r;
}

/* ---- completions ---------------------------------------------------------------------------- */

static int show_error(struct fid_cq *cq)
{
	struct fi_cq_err_entry e = { 0 };
	ssize_t r = fi_cq_readerr(cq, &e, 0);

	if (r < 0)
		return (int) r;
	fprintf(stderr, "completion error %d (%s): %s\n", e.err, fi_strerror(e.err),
		fi_cq_strerror(cq, e.prov_errno, e.err_data, NULL, 0));
	return -e.err;
}

static int take(struct fid_cq *cq, uint64_t *done)
{
	struct fi_cq_tagged_entry e[16];
	ssize_t n = fi_cq_read(cq, e, 16);

	if (n > 0)
		*done += (uint64_t) n;
	else if (n == -FI_EAVAIL)
		return show_error(cq);
	else if (n != -FI_EAGAIN)
		return (int) n;
	return 0;
}

int bench_progress(struct bench *b)
{
	CHECK(take(b->txcq, &b->tx_done));
	return take(b->rxcq, &b->rx_done);
}

static int wait_for(struct bench *b, struct fid_cq *cq, uint64_t *done, uint64_t want)
{
	double until = 0;
	unsigned turns = 0;

	while (*done < want) {
		CHECK(take(cq, done));
		if (*done >= want)
			break;
		if (b->wait == WAIT_SREAD) {
			struct fi_cq_tagged_entry e[16];
			ssize_t n = fi_cq_sread(cq, e, 16, NULL, 1000);

			if (n > 0)
				*done += (uint64_t) n;
			else if (n != -FI_EAGAIN && n != -FI_EAVAIL)
				return (int) n;
		} else if (b->wait == WAIT_FD) {
			struct fid *fids[] = { &cq->fid };
			struct pollfd p = { .events = POLLIN };

			CHECK(fi_control(&cq->fid, FI_GETWAIT, &p.fd));
			if (fi_trywait(b->fabric, fids, 1) == 0)
				poll(&p, 1, 1000);
		}
		if (++turns % 65536 == 0 || b->wait != WAIT_SPIN) {
			if (until == 0)
				until = now_s() + b->timeout_s;
			if (now_s() > until) {
				fprintf(stderr, "no completion within %d s\n", b->timeout_s);
				return -FI_ETIMEDOUT;
			}
		}
	}
	return 0;
}

int bench_wait_tx(struct bench *b)
{
	return wait_for(b, b->txcq, &b->tx_done, b->tx_posted);
}

int bench_wait_rx(struct bench *b)
{
	return wait_for(b, b->rxcq, &b->rx_done, b->rx_posted);
}

/* ---- posting -------------------------------------------------------------------------------- */

#define POST(b, call) \
	do { \
		ssize_t ret_; \
		while ((ret_ = (call)) == -FI_EAGAIN) \
			CHECK(bench_progress(b)); \
		if (ret_) { \
			fprintf(stderr, "%s: %zd (%s)\n", #call, ret_, fi_strerror((int) -ret_)); \
			return (int) ret_; \
		} \
	} while (0)

int bench_post_tx(struct bench *b, size_t size, int slot)
{
	uint64_t tag = b->tx_posted;
	void *ctx = &b->tx_ctx[slot];

	if (size <= b->inject_size) {
		if (b->op == OP_TAGGED)
			POST(b, fi_tinject(b->ep, b->tx, size, b->far, tag));
		else
			POST(b, fi_inject(b->ep, b->tx, size, b->far));
		b->tx_done++;
	} else if (b->op == OP_TAGGED) {
		POST(b, fi_tsend(b->ep, b->tx, size, b->desc, b->far, tag, ctx));
	} else {
		POST(b, fi_send(b->ep, b->tx, size, b->desc, b->far, ctx));
	}
	b->tx_posted++;
	return 0;
}

int bench_post_rx(struct bench *b, size_t size, int slot)
{
	if (b->op == OP_TAGGED)
		POST(b, fi_trecv(b->ep, b->rx, size, b->desc, b->far, b->rx_posted, 0, &b->rx_ctx[slot]));
	else
		POST(b, fi_recv(b->ep, b->rx, size, b->desc, b->far, &b->rx_ctx[slot]));
	b->rx_posted++;
	return 0;
}

int bench_post_rma(struct bench *b, enum bench_op op, size_t size, int slot)
{
	size_t at = b->verify ? (size_t) slot * size : 0;
	uint64_t far_rx = b->remote.addr + b->buf_size + at, far_tx = b->remote.addr + at;
	void *ctx = &b->tx_ctx[slot];

	if (at + size > b->buf_size)
		return -FI_ETOOSMALL;
	switch (op) {
	case OP_WRITE:
		if (size <= b->inject_size && !b->verify) {
			POST(b, fi_inject_write(b->ep, b->tx + at, size, b->far, far_rx, b->remote.key));
			b->tx_done++;
		} else {
			POST(b, fi_write(b->ep, b->tx + at, size, b->desc, b->far, far_rx, b->remote.key, ctx));
		}
		break;
	case OP_WRITEDATA:
		if (size <= b->inject_size && !b->verify) {
			POST(b, fi_inject_writedata(b->ep, b->tx + at, size, (uint32_t) slot, b->far, far_rx,
						    b->remote.key));
			b->tx_done++;
		} else {
			POST(b, fi_writedata(b->ep, b->tx + at, size, b->desc, (uint32_t) slot, b->far, far_rx,
					     b->remote.key, ctx));
		}
		break;
	default:
		POST(b, fi_read(b->ep, b->rx + at, size, b->desc, b->far, far_tx, b->remote.key, ctx));
	}
	b->tx_posted++;
	return 0;
}

/* ---- data and tables ------------------------------------------------------------------------ */

void bench_fill(char *buf, size_t size, unsigned seed)
{
	char *at = gpu.used ? gpu.host : buf;

	for (size_t i = 0; i < size; i++)
		at[i] = (char) (seed * 31 + i * 7 + (i >> 8));
	gpu_store(buf, size);
}

void bench_clear(char *buf, size_t size)
{
	memset(gpu.used ? gpu.host : buf, 0, size);
	gpu_store(buf, size);
}

bool bench_on_gpu(void)
{
	return gpu.used;
}

int bench_check(const char *what, char *buf, size_t size, unsigned seed)
{
	buf = gpu_seen(buf, size);
	if (!buf)
		return -FI_EIO;
	for (size_t i = 0; i < size; i++) {
		char want = (char) (seed * 31 + i * 7 + (i >> 8));

		if (buf[i] != want) {
			fprintf(stderr, "%s: byte %zu of %zu is %#x, not %#x\n", what, i, size,
				(unsigned char) buf[i], (unsigned char) want);
			return -FI_EIO;
		}
	}
	return 0;
}

static const char *scaled(char *out, size_t len, uint64_t v, uint64_t step, const char *units)
{
	uint64_t base = 1;
	int u = 0;

	while (v / base >= step && units[u] != '\0') {
		base *= step;
		u++;
	}
	if (u && v / base < 10 && v % base)
		snprintf(out, len, "%llu.%llu%c", (unsigned long long) (v / base),
			 (unsigned long long) (v % base * 10 / base), units[u - 1]);
	else if (u)
		snprintf(out, len, "%llu%c", (unsigned long long) (v / base), units[u - 1]);
	else
		snprintf(out, len, "%llu", (unsigned long long) v);
	return out;
}

static void print_row(struct bench *b, size_t size, int iters, double s, int xfers)
{
	char a[32], c[32], d[32];
	double bytes = (double) size * iters * xfers, us = s * 1e6, per = us / iters / xfers;

	if (!b->header_printed)
		printf("%-8s%-8s%-8s%8s %10s%13s%13s\n", "bytes", "iters", "total", "time", "MB/sec",
		       "usec/xfer", "Mxfers/sec");
	b->header_printed = true;
	printf("%-8s%-8s%-8s%8.2fs%10.2f%11.2f%11.2f\n", scaled(a, sizeof(a), size, 1024, "kmg"),
	       scaled(c, sizeof(c), (uint64_t) iters, 1000, "kmb"),
	       scaled(d, sizeof(d), (uint64_t) bytes, 1024, "kmg"), s, bytes / us, per, 1 / per);
	fflush(stdout);
}

static int default_iterations(size_t size)
{
	return size >= 1 << 20 ? 100 : size >= 64 << 10 ? 1000 : 10000;
}

int bench_each(struct bench *b, int xfers, int (*run)(struct bench *b, size_t size, int iters))
{
	for (int i = 0; i < b->size_count; i++) {
		size_t size = b->sizes[i];
		int iters = b->iterations ? b->iterations : default_iterations(size);
		double t;

		if (size > b->info->ep_attr->max_msg_size)
			continue;
		CHECK(bench_sync(b));
		if (b->warmup)
			CHECK(run(b, size, b->warmup));
		CHECK(bench_sync(b));
		t = now_s();
		CHECK(run(b, size, iters));
		print_row(b, size, iters, now_s() - t, xfers);
		CHECK(bench_wait_tx(b));
		CHECK(bench_sync(b));
	}
	return 0;
}
