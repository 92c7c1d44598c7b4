/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests of two processes: what both open, and the exchange of addresses over a socket pair. */
#ifndef TWO_H
#define TWO_H

#include <dirent.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include "must.h"

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_cntr *writes;
static struct fid_ep *ep;
static struct fid_mr *mr;
static char *buf;
/* Provider of all objects. */
static const char *provider = "efa";
/* Capabilities of the endpoint. */
static uint64_t caps = FI_MSG | FI_RMA;
/* Wait object of the completion queue. */
static enum fi_wait_obj waits = FI_WAIT_NONE;

struct hello {
	char addr[32];
	uint64_t at, key;
};

/* Ends the test with a line unless this holds. */
static inline void check(int ok, const char *text)
{
	if (ok)
		return;
	printf("%s\n", text);
	fflush(stdout);
	_exit(EXIT_FAILURE);
}

static inline int entries(const char *folder)
{
	DIR *d = opendir(folder);
	int n = 0;

	check(d != NULL, folder);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* Number of open descriptors of this process. */
static inline int descriptors(void)
{
	return entries("/proc/self/fd");
}

/* Number of threads of this process. */
static inline int threads(void)
{
	return entries("/proc/self/task") - 2;
}

/* Pages of this process: of its address space, and in memory. */
static inline void pages(long *space, long *resident)
{
	FILE *f = fopen("/proc/self/statm", "r");

	check(f && fscanf(f, "%ld %ld", space, resident) == 2, "/proc/self/statm");
	fclose(f);
}

static inline long resident_kib(void)
{
	long space, resident;

	pages(&space, &resident);
	return resident * 4;
}

/* From now on this process gets so many MiB more of address space. */
static inline void limit_space(long mib)
{
	struct rlimit r;
	long space, resident;

	pages(&space, &resident);
	r.rlim_cur = r.rlim_max = (rlim_t) space * 4096 + ((rlim_t) mib << 20);
	check(setrlimit(RLIMIT_AS, &r) == 0, "setrlimit");
}

/* Opens a domain of the provider with `caps`, a vector and a queue. */
static inline void open_domain(void)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA, .wait_obj = waits };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	hints->caps = caps;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup(provider);
	if (strcmp(provider, "efa") == 0)
		hints->fabric_attr->name = strdup("efa");
	DO(fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	DO(fi_av_open(domain, &aa, &av, NULL));
	DO(fi_cq_open(domain, &ca, &cq, NULL));
}

/* Opens an endpoint with a queue, a counter of writes, and `size` bytes of registered memory. */
static inline struct hello open_all(size_t size)
{
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP };
	struct hello me;
	size_t len = sizeof(me.addr);

	open_domain();
	DO(fi_cntr_open(domain, &na, &writes, NULL));
	DO(fi_endpoint(domain, info, &ep, NULL));
	DO(fi_ep_bind(ep, &av->fid, 0));
	DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_ep_bind(ep, &writes->fid, FI_WRITE));
	DO(fi_enable(ep));
	buf = calloc(1, size);
	DO(fi_mr_reg(domain, buf, size, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	DO(fi_getname(&ep->fid, me.addr, &len));
	me.at = (uintptr_t) buf;
	me.key = fi_mr_key(mr);
	return me;
}

/* Exchanges addresses with the other side, and inserts its address. */
static inline fi_addr_t meet(int fd, const struct hello *me, struct hello *other)
{
	fi_addr_t to;

	if (write(fd, me, sizeof(*me)) != sizeof(*me) || read(fd, other, sizeof(*other)) != sizeof(*other))
		exit(EXIT_FAILURE);
	DO(fi_av_insert(av, other->addr, 1, &to, 0, NULL));
	return to;
}

/*
 * Forks a process that runs `run` with one end of a socket pair and is killed with this one. The
 * other end goes to `*fd`.
 */
static inline pid_t spawn_peer(int (*run)(int fd), int *fd)
{
	int pair[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || (child = fork()) < 0)
		exit(EXIT_FAILURE);
	if (child == 0) {
		/* The child must not outlive its parent. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		exit(run(pair[1]));
	}
	close(pair[1]);
	*fd = pair[0];
	return child;
}

/* Takes the next completion, if there is one; `err` is 0 for a success. */
static inline int read_completion(struct fi_cq_err_entry *end)
{
	struct fi_cq_data_entry e;
	ssize_t r = fi_cq_read(cq, &e, 1);

	memset(end, 0, sizeof(*end));
	if (r == -FI_EAGAIN)
		return 0;
	if (r == -FI_EAVAIL) {
		DO(fi_cq_readerr(cq, end, 0));
		return 1;
	}
	DO(r);
	end->op_context = e.op_context;
	end->len = e.len;
	return 1;
}

/* Closes what open_all() has opened. */
static inline void close_all(void)
{
	DO(fi_close(&ep->fid));
	DO(fi_close(&mr->fid));
	DO(fi_close(&cq->fid));
	DO(fi_close(&writes->fid));
	DO(fi_close(&av->fid));
	DO(fi_close(&domain->fid));
	DO(fi_close(&fabric->fid));
	fi_freeinfo(info);
	free(buf);
}

static inline double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

#endif
