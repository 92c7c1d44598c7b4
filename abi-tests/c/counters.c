/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters and waiting: an endpoint sends to itself and waits by counter, by a blocking read, by
 * descriptor and by condition variable. A thread of its own sends, once it has been woken, so that
 * a wait most often begins before the message arrives; a lost wake-up shows as a time-out.
 */
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include "do.h"

#define ROUNDS 200

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static char in[64], out[64] = "to myself";

static struct fid_ep *ep;
static fi_addr_t self;
static sem_t go;

static void *sender(void *none)
{
	for (int i = 0; i < ROUNDS; i++) {
		while (sem_wait(&go))
			;
		DO(0, fi_send(ep, out, sizeof(out), NULL, self, out));
	}
	return none;
}

static void wait_for_entry(struct fid_cq *cq, enum fi_wait_obj wait)
{
	struct fi_cq_data_entry e;

	if (wait == FI_WAIT_FD) {
		struct fid *f = &cq->fid;
		struct pollfd p = { .events = POLLIN };

		DO(0, fi_control(f, FI_GETWAIT, &p.fd));
		if (fi_trywait(fabric, &f, 1) == 0)
			DO(1, poll(&p, 1, 10000));
	}
	DO(1, fi_cq_sread(cq, &e, 1, NULL, 10000));
}

static void round_trip(enum fi_wait_obj wait)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA, .wait_obj = wait };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = wait };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_cq_data_entry e;
	struct fid_cq *cq;
	struct fid_cntr *sent, *received;
	struct fid_av *av;
	pthread_t thread;
	char name[32];
	size_t len = sizeof(name);

	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_cntr_open(domain, &na, &sent, NULL));
	DO(0, fi_cntr_open(domain, &na, &received, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	DO(0, fi_endpoint(domain, info, &ep, NULL));
	DO(0, fi_ep_bind(ep, &av->fid, 0));
	DO(0, fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(0, fi_ep_bind(ep, &sent->fid, FI_SEND));
	DO(0, fi_enable(ep));
	/* Binds a counter after fi_enable(3), as Sandia OpenSHMEM does. */
	DO(0, fi_ep_bind(ep, &received->fid, FI_RECV));
	/* Two counters would count its sends. */
	DO(-FI_EINVAL, fi_ep_bind(ep, &received->fid, FI_SEND));
	DO(0, fi_getname(&ep->fid, name, &len));
	DO(1, fi_av_insert(av, name, 1, &self, 0, NULL));
	DO(-FI_ETIMEDOUT, fi_cntr_wait(received, 1, 1));
	DO(-FI_EAGAIN, fi_cq_sread(cq, &e, 1, NULL, 1));
	DO(0, pthread_create(&thread, NULL, sender, NULL));
	for (int i = 1; i <= ROUNDS; i++) {
		memset(in, 0, sizeof(in));
		DO(0, fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
		sem_post(&go);
		/* Whichever comes first has to wait. */
		if (i % 2)
			wait_for_entry(cq, wait);
		DO(0, fi_cntr_wait(received, (uint64_t) i, 10000));
		DO(0, strcmp(in, out));
		DO(0, fi_cntr_wait(sent, (uint64_t) i, 10000));
		if (i % 2 == 0)
			wait_for_entry(cq, wait);
		wait_for_entry(cq, wait);
	}
	DO(0, pthread_join(thread, NULL));
	DO(ROUNDS, fi_cntr_read(sent));
	DO(ROUNDS, fi_cntr_read(received));
	if (wait == FI_WAIT_MUTEX_COND) {
		/* No call drives progress here: the progress thread must receive and signal. */
		struct fi_mutex_cond mc;
		struct timespec until;

		DO(0, fi_control(&received->fid, FI_GETWAIT, &mc));
		DO(0, fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
		pthread_mutex_lock(mc.mutex);
		DO(0, fi_inject(ep, out, sizeof(out), self));
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		DO(0, pthread_cond_timedwait(mc.cond, mc.mutex, &until));
		pthread_mutex_unlock(mc.mutex);
		DO(0, fi_cntr_wait(received, ROUNDS + 1, 10000));
	}
	if (wait != FI_WAIT_MUTEX_COND) {
		/* The call that waits is the one that finds the failure. */
		DO(0, fi_recv(ep, in, 4, NULL, FI_ADDR_UNSPEC, in));
		DO(0, fi_inject(ep, out, sizeof(out), self));
		DO(-FI_EAVAIL, fi_cntr_wait(received, ROUNDS + 1, 10000));
		DO(1, fi_cntr_readerr(received));
	}
	DO(-FI_EBUSY, fi_close(&sent->fid));
	DO(0, fi_close(&ep->fid));
	DO(0, fi_close(&sent->fid));
	DO(0, fi_close(&received->fid));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&av->fid));
}

static void on_alarm(int number)
{
	(void) number;
}

/* A signal handler ends a blocking call, so that the program can look whether it is to stop. */
static void interrupted(void)
{
	struct itimerval often = { { 0, 20000 }, { 0, 20000 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cntr_attr na = { .events = FI_CNTR_EVENTS_COMP, .wait_obj = FI_WAIT_UNSPEC };
	struct fi_eq_attr ea = { .wait_obj = FI_WAIT_UNSPEC };
	struct fi_cq_data_entry e;
	struct fid_cntr *cntr;
	struct fid_cq *cq;
	struct fid_eq *eq;
	uint32_t event;

	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_cntr_open(domain, &na, &cntr, NULL));
	DO(0, fi_eq_open(fabric, &ea, &eq, NULL));
	DO(0, sigaction(SIGALRM, &act, NULL));
	DO(0, setitimer(ITIMER_REAL, &often, NULL));
	DO(-FI_EINTR, fi_cq_sread(cq, &e, 1, NULL, 20000));
	DO(-FI_EINTR, fi_cntr_wait(cntr, 1, 20000));
	DO(-FI_EINTR, fi_eq_sread(eq, &event, &e, sizeof(e), 20000, 0));
	DO(0, setitimer(ITIMER_REAL, &never, NULL));
	DO(0, fi_close(&cq->fid));
	DO(0, fi_close(&cntr->fid));
	DO(0, fi_close(&eq->fid));
}

int main(void)
{
	struct fi_info *hints = fi_allocinfo();

	hints->fabric_attr->name = strdup("efa");
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	DO(0, fi_getinfo(FI_VERSION(1, 21), NULL, NULL, 0, hints, &info));
	fi_freeinfo(hints);
	DO(0, sem_init(&go, 0, 0));
	DO(0, fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	round_trip(FI_WAIT_UNSPEC);
	round_trip(FI_WAIT_FD);
	round_trip(FI_WAIT_YIELD);
	round_trip(FI_WAIT_MUTEX_COND);
	interrupted();
	DO(0, fi_close(&domain->fid));
	DO(0, fi_close(&fabric->fid));
	fi_freeinfo(info);
	printf("every wait ended\n");
	return EXIT_SUCCESS;
}
