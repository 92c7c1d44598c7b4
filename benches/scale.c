/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What many of a thing cost, time and resident memory per item: scale PROVIDER WHAT N
 *
 *   endpoints    N endpoints of one domain opened, with a queue of their own, and closed
 *   turns        N endpoints, each opened and closed before the next
 *   addresses    N addresses inserted into an address vector
 *   connections  N endpoints of one process send a message to one endpoint of another
 *   known        an endpoint with N known addresses, 256 of which are processes, sends a message to
 *                each process and gets an answer, twice
 *   all          N processes, each of which sends a message to every other, twice
 */
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <rdma/fi_tagged.h>
#include "two.h"

enum { ADDR_MAX = 64, LEN = 64 };

struct shared {
	pthread_barrier_t barrier;
	char addr[ADDR_MAX];
	size_t addr_len;
	/* The callers' messages have left. */
	atomic_int done;
};

struct ranks {
	pthread_barrier_t barrier;
	struct rank {
		char addr[ADDR_MAX];
		double first, again;
		long kib;
	} rank[];
};

static const char *provider;

static void *share(size_t size, pthread_barrier_t **barrier, unsigned count)
{
	pthread_barrierattr_t attr;
	void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	check(at != MAP_FAILED, "mmap");
	*barrier = at;
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	check(pthread_barrier_init(*barrier, &attr, count) == 0, "pthread_barrier_init");
	return at;
}

static void open_domain(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };

	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->fabric_attr->prov_name = strdup(provider);
	if (strcmp(provider, "efa") == 0)
		hints->fabric_attr->name = strdup("efa");
	if (strcmp(provider, "tcp") == 0)
		hints->addr_format = FI_SOCKADDR_IN;
	DO(fi_getinfo(FI_VERSION(1, 21), "127.0.0.1", NULL, strcmp(provider, "tcp") ? 0 : FI_SOURCE,
			hints, &info));
	fi_freeinfo(hints);
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	DO(fi_av_open(domain, &aa, &av, NULL));
	DO(fi_cq_open(domain, &ca, &cq, NULL));
	buf = calloc(1, 1 << 20);
	DO(fi_mr_reg(domain, buf, 1 << 20, FI_SEND | FI_RECV, 0, 0, 0, &mr, NULL));
}

static void open_endpoint(struct fid_ep **e, struct fid_cq *q)
{
	DO(fi_endpoint(domain, info, e, NULL));
	DO(fi_ep_bind(*e, &av->fid, 0));
	DO(fi_ep_bind(*e, &q->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(*e));
}

static void line(const char *what, int n, double s, long kib)
{
	printf("%-34s %8d %10.2f us each %10.2f KiB each\n", what, n, s * 1e6 / n, (double) kib / n);
	fflush(stdout);
}

/* Takes completions until there were `n`. */
static void complete(int n)
{
	struct fi_cq_err_entry end;

	while (n > 0) {
		if (!read_completion(&end)) {
			sched_yield();
			continue;
		}
		check(!end.err, fi_strerror(end.err));
		n--;
	}
}

/* Sends; returns how many completions it took while the peer was being connected. */
static int send_to(struct fid_ep *e, fi_addr_t to, struct fi_context2 *ctx)
{
	struct fi_cq_err_entry end;
	ssize_t r;
	int done = 0;

	while ((r = fi_send(e, buf, LEN, fi_mr_desc(mr), to, ctx)) == -FI_EAGAIN) {
		if (read_completion(&end)) {
			check(!end.err, fi_strerror(end.err));
			done++;
		}
	}
	DO(r);
	return done;
}

static void open_with_queue(struct fid_ep **e, struct fid_cq **q)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };

	DO(fi_cq_open(domain, &ca, q, NULL));
	open_endpoint(e, *q);
}

static void close_with_queue(struct fid_ep *e, struct fid_cq *q)
{
	DO(fi_close(&e->fid));
	DO(fi_close(&q->fid));
}

static void endpoints(int n)
{
	struct fid_ep **eps = calloc((size_t) n, sizeof(*eps));
	struct fid_cq **cqs = calloc((size_t) n, sizeof(*cqs));
	long kib;
	double t;

	open_domain();
	kib = resident_kib();
	t = now_s();
	for (int i = 0; i < n; i++)
		open_with_queue(&eps[i], &cqs[i]);
	line("endpoints opened, with a queue", n, now_s() - t, resident_kib() - kib);
	t = now_s();
	for (int i = 0; i < n; i++)
		close_with_queue(eps[i], cqs[i]);
	line("endpoints closed", n, now_s() - t, resident_kib() - kib);
}

static void turns(int n)
{
	struct fid_cq *q;
	struct fid_ep *e;
	long kib;
	double t;

	open_domain();
	kib = resident_kib();
	t = now_s();
	for (int i = 0; i < n; i++) {
		open_with_queue(&e, &q);
		close_with_queue(e, q);
	}
	line("endpoints opened, closed, in turn", n, now_s() - t, resident_kib() - kib);
}

/* Makes address number `i` of the provider's format out of `addr`. */
static void vary(char *addr, unsigned i)
{
	if (strcmp(provider, "efa") == 0) {
		/* 16 bytes GID, number of the queue pair, key: 2^14 queue pairs of each host. */
		uint16_t qpn = i & 0x3fff;
		uint32_t key = i + 1;

		addr[13] = (char) (i >> 14);
		memcpy(addr + 16, &qpn, sizeof(qpn));
		memcpy(addr + 20, &key, sizeof(key));
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *) addr;

		in->sin_addr.s_addr = htonl(0x0a000001 + i / 1024);
		in->sin_port = htons((uint16_t) (10000 + i % 1024));
	}
}

static void addresses(int n)
{
	char addr[ADDR_MAX] = { 0 };
	size_t len = sizeof(addr);
	char *list;
	fi_addr_t *all = calloc((size_t) n, sizeof(*all));
	long kib;
	double t;

	open_domain();
	open_endpoint(&ep, cq);
	DO(fi_getname(&ep->fid, addr, &len));
	list = calloc((size_t) n, len);
	for (int i = 0; i < n; i++) {
		memcpy(list + (size_t) i * len, addr, len);
		vary(list + (size_t) i * len, (unsigned) i);
	}
	kib = resident_kib();
	t = now_s();
	DO(fi_av_insert(av, list, (size_t) n, all, 0, NULL));
	line("addresses inserted", n, now_s() - t, resident_kib() - kib);
	t = now_s();
	DO(fi_av_remove(av, all, (size_t) n, 0));
	line("addresses removed", n, now_s() - t, resident_kib() - kib);
}

static int callers(struct shared *s, int n)
{
	struct fid_ep **eps = calloc((size_t) n, sizeof(*eps));
	struct fi_context2 *ctx = calloc((size_t) n, sizeof(*ctx));
	fi_addr_t to;
	int done = 0;
	long kib;
	double t;

	open_domain();
	kib = resident_kib();
	t = now_s();
	for (int i = 0; i < n; i++)
		open_endpoint(&eps[i], cq);
	line("callers: endpoints opened", n, now_s() - t, resident_kib() - kib);
	pthread_barrier_wait(&s->barrier);
	DO(fi_av_insert(av, s->addr, 1, &to, 0, NULL));
	kib = resident_kib();
	t = now_s();
	for (int i = 0; i < n; i++)
		done += send_to(eps[i], to, &ctx[i]);
	complete(n - done);
	line("callers: connections", n, now_s() - t, resident_kib() - kib);
	atomic_store(&s->done, 1);
	return EXIT_SUCCESS;
}

static void connections(int n)
{
	pthread_barrier_t *barrier;
	struct shared *s = share(sizeof(*s), &barrier, 2);
	struct fi_context2 *ctx = calloc((size_t) n, sizeof(*ctx));
	pid_t child;
	long kib;
	double t;
	int status;

	fflush(stdout);
	child = fork();
	check(child >= 0, "fork");
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exit(callers(s, n));
	}
	open_domain();
	open_endpoint(&ep, cq);
	s->addr_len = sizeof(s->addr);
	DO(fi_getname(&ep->fid, s->addr, &s->addr_len));
	for (int i = 0; i < n; i++)
		DO(fi_recv(ep, buf, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &ctx[i]));
	kib = resident_kib();
	pthread_barrier_wait(&s->barrier);
	t = now_s();
	complete(n);
	line("accepting side: connections", n, now_s() - t, resident_kib() - kib);
	/* The callers' last messages may wait for this side's progress. */
	while (!atomic_load(&s->done)) {
		struct fi_cq_err_entry end;

		read_completion(&end);
		sched_yield();
	}
	waitpid(child, &status, 0);
	check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the callers failed");
}

static void round_of(int me, int n, const fi_addr_t *to, struct fi_context2 *ctx)
{
	struct fi_cq_err_entry end;
	int done = 0, sent = 0, posted;
	ssize_t r;

	for (posted = 0; posted < n - 1; posted++)
		DO(fi_recv(ep, buf, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &ctx[posted]));
	while (done < 2 * (n - 1)) {
		if (sent < n - 1) {
			r = fi_send(ep, buf + LEN, LEN, fi_mr_desc(mr), to[(me + 1 + sent) % n], &ctx[n + sent]);
			if (r != -FI_EAGAIN) {
				DO(r);
				sent++;
			}
		}
		if (read_completion(&end)) {
			check(!end.err, fi_strerror(end.err));
			done++;
		} else if (sent == n - 1) {
			sched_yield();
		}
	}
}

static void rank(struct ranks *s, int me, int n, int known)
{
	struct fi_context2 *ctx = calloc(2 * (size_t) n, sizeof(*ctx));
	fi_addr_t *to = calloc((size_t) n, sizeof(*to));
	size_t len = ADDR_MAX;
	long kib;
	double t;

	(void) known;
	open_domain();
	open_endpoint(&ep, cq);
	DO(fi_getname(&ep->fid, s->rank[me].addr, &len));
	pthread_barrier_wait(&s->barrier);
	for (int i = 0; i < n; i++)
		DO(fi_av_insert(av, s->rank[i].addr, 1, &to[i], 0, NULL));
	kib = resident_kib();
	pthread_barrier_wait(&s->barrier);
	t = now_s();
	round_of(me, n, to, ctx);
	s->rank[me].first = now_s() - t;
	pthread_barrier_wait(&s->barrier);
	t = now_s();
	round_of(me, n, to, ctx);
	s->rank[me].again = now_s() - t;
	s->rank[me].kib = resident_kib() - kib;
	pthread_barrier_wait(&s->barrier);
}

/* Number 0 has many addresses in its vector; the others answer it, twice. */
static void one_of(struct ranks *s, int me, int count, int known)
{
	struct fi_context2 *ctx = calloc(2 * (size_t) count, sizeof(*ctx));
	fi_addr_t *to = calloc((size_t) known, sizeof(*to));
	char fake[ADDR_MAX];
	size_t len = ADDR_MAX;
	long kib;
	double t;

	open_domain();
	open_endpoint(&ep, cq);
	DO(fi_getname(&ep->fid, s->rank[me].addr, &len));
	pthread_barrier_wait(&s->barrier);
	kib = resident_kib();
	if (me) {
		DO(fi_av_insert(av, s->rank[0].addr, 1, &to[0], 0, NULL));
	} else {
		/* The real ones lie among the others. */
		for (int i = 0, real = 1; i < known; i++) {
			bool is_real = i % (known / (count - 1)) == 0 && real < count;

			memcpy(fake, s->rank[0].addr, ADDR_MAX);
			vary(fake, (unsigned) i);
			DO(fi_av_insert(av, is_real ? s->rank[real].addr : fake, 1, &to[i], 0, NULL));
			if (is_real)
				to[real++ - 1] = to[i];
		}
	}
	for (int round = 0; round < 2; round++) {
		pthread_barrier_wait(&s->barrier);
		t = now_s();
		for (int i = 0; i < (me ? 1 : count - 1); i++)
			DO(fi_recv(ep, buf, LEN, fi_mr_desc(mr), FI_ADDR_UNSPEC, &ctx[i]));
		if (me) {
			complete(1);
			complete(1 - send_to(ep, to[0], &ctx[count]));
		} else {
			int done = 0;

			for (int i = 0; i < count - 1; i++)
				done += send_to(ep, to[i], &ctx[count + i]);
			complete(2 * (count - 1) - done);
			*(round ? &s->rank[0].again : &s->rank[0].first) = now_s() - t;
		}
	}
	s->rank[me].kib = resident_kib() - kib;
	pthread_barrier_wait(&s->barrier);
}

/* Starts `n` processes that do this, and waits for their ends. */
static void processes(struct ranks *s, int n, void (*each)(struct ranks *, int, int, int),
		int known)
{
	int status;

	fflush(stdout);
	for (int i = 0; i < n; i++) {
		pid_t child = fork();

		check(child >= 0, "fork");
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			each(s, i, n, known);
			/* Closing is not measured, and the system does it faster. */
			_exit(EXIT_SUCCESS);
		}
	}
	for (int i = 0; i < n; i++)
		check(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank failed");
}

static void known(int n)
{
	enum { COUNT = 257 };
	pthread_barrier_t *barrier;
	struct ranks *s = share(sizeof(*s) + COUNT * sizeof(struct rank), &barrier, COUNT);

	check(n >= COUNT - 1, "fewer addresses than processes");
	processes(s, COUNT, one_of, n);
	printf("of %d addresses known:\n", n);
	line("one to each: first, there and back", COUNT - 1, s->rank[0].first, s->rank[0].kib);
	line("one to each: again, there and back", COUNT - 1, s->rank[0].again, 0);
}

static void all(int n)
{
	pthread_barrier_t *barrier;
	struct ranks *s = share(sizeof(*s) + (size_t) n * sizeof(struct rank), &barrier, (unsigned) n);
	double first = 0, again = 0;
	long kib = 0;

	processes(s, n, rank, 0);
	for (int i = 0; i < n; i++) {
		first = s->rank[i].first > first ? s->rank[i].first : first;
		again = s->rank[i].again > again ? s->rank[i].again : again;
		kib += s->rank[i].kib;
	}
	line("all to all: first, per pair", n * (n - 1), first, kib);
	line("all to all: again, per pair", n * (n - 1), again, 0);
}

int main(int argc, char **argv)
{
	struct rlimit files;
	int n;

	if (argc != 4 || (n = atoi(argv[3])) < 2) {
		fprintf(stderr, "usage: %s PROVIDER endpoints|turns|addresses|connections|known|all N\n",
				argv[0]);
		return EXIT_FAILURE;
	}
	provider = argv[1];
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (strcmp(argv[2], "endpoints") == 0)
		endpoints(n);
	else if (strcmp(argv[2], "turns") == 0)
		turns(n);
	else if (strcmp(argv[2], "known") == 0)
		known(n);
	else if (strcmp(argv[2], "addresses") == 0)
		addresses(n);
	else if (strcmp(argv[2], "connections") == 0)
		connections(n);
	else
		all(n);
	return EXIT_SUCCESS;
}
