/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * incast PROVIDER: senders that stream to one receiver without pause. The receiver takes messages
 * at its own pace: those that wait for their receive must not use up the memory for them, and every
 * sender must get its turn.
 */
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_tagged.h>
#include "do.h"

enum { SENDERS = 6, LEN = 64, RECEIVES = 64, WANTED = 600000, BATCH = 16, MOST_KIB = 128 << 10 };

static struct {
	volatile size_t len;
	volatile int senders;
	char name[128];
} *shared;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_av *av;
static struct fi_context2 contexts[RECEIVES];
static char buf[RECEIVES][LEN];

static void open_endpoint(const char *provider)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;

	hints->fabric_attr->prov_name = strdup(provider);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_TAGGED;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	DO(0, fi_getinfo(FI_VERSION(1, 20), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
	DO(0, fi_enable(ep));
	fi_freeinfo(hints);
	fi_freeinfo(info);
}

/* Streams until it is killed. */
static void stream(const char *provider, uint64_t number)
{
	struct fi_cq_tagged_entry e[BATCH];
	fi_addr_t to;

	open_endpoint(provider);
	while (!shared->len)
		usleep(1000);
	DO(1, fi_av_insert(av, shared->name, 1, &to, 0, NULL));
	for (int first = 1;; first = 0) {
		ssize_t ret;

		while ((ret = fi_tsend(ep, buf[0], LEN, NULL, to, number, &contexts[0])) == -FI_EAGAIN)
			TRUE(fi_cq_read(cq, e, BATCH) >= -FI_EAGAIN);
		DO(0, ret);
		if (first)
			__sync_fetch_and_add(&shared->senders, 1);
	}
}

static void post(int i)
{
	ssize_t ret;

	do
		ret = fi_trecv(ep, buf[i], LEN, NULL, FI_ADDR_UNSPEC, 0, 0xff, &contexts[i]);
	while (ret == -FI_EAGAIN);
	DO(0, ret);
}

/* KiB of memory that the process has. */
static long memory(void)
{
	long pages = 0, total;
	FILE *f = fopen("/proc/self/statm", "r");

	TRUE(f && fscanf(f, "%ld %ld", &total, &pages) == 2);
	fclose(f);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv)
{
	long of[SENDERS] = { 0 }, received = 0, most = 0;
	size_t len = sizeof(shared->name);
	pid_t pids[SENDERS];

	TRUE(argc == 2);
	alarm(120);
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	TRUE(shared != MAP_FAILED);
	for (uint64_t i = 0; i < SENDERS; i++) {
		pids[i] = fork();
		TRUE(pids[i] >= 0);
		if (!pids[i]) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			stream(argv[1], i);
		}
	}
	open_endpoint(argv[1]);
	for (int i = 0; i < RECEIVES; i++)
		post(i);
	DO(0, fi_getname(&ep->fid, shared->name, &len));
	__sync_synchronize();
	shared->len = len;
	while (received < WANTED) {
		struct fi_cq_tagged_entry e[BATCH];
		ssize_t n = fi_cq_read(cq, e, BATCH);
		long now = received % 1024 < BATCH ? memory() : 0;

		TRUE(n >= 0 || n == -FI_EAGAIN);
		if (now > most)
			most = now;
		for (ssize_t i = 0; i < n; i++) {
			of[e[i].tag]++;
			post((int) ((struct fi_context2 *) e[i].op_context - contexts));
		}
		received += n > 0 ? n : 0;
		if (shared->senders < SENDERS)
			received = 0;
	}
	for (int i = 0; i < SENDERS; i++) {
		int status;

		printf("sender %d: %ld messages\n", i, of[i]);
		DO(0, kill(pids[i], SIGKILL));
		DO(pids[i], waitpid(pids[i], &status, 0));
		TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
	for (int i = 0; i < SENDERS; i++)
		TRUE(of[i] > WANTED / SENDERS / 20);
	printf("at most %ld MiB of memory\n", most >> 10);
	TRUE(most < MOST_KIB);
	return 0;
}
