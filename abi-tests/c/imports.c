/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Objects that an application imports: a memory monitor (fi_import_fid with "mr_cache", as Open MPI
 * does) and a logger. Also a region that wraps around the address space, and a NULL operand that
 * FI_ATOMIC_READ ignores.
 */
#include <rdma/fi_atomic.h>
#include <rdma/fi_ext.h>
#include <rdma/fi_rma.h>
#include "alone.h"

static int start(struct fid_mem_monitor *m)
{
	(void) m;
	return 0;
}

static void stop(struct fid_mem_monitor *m)
{
	(void) m;
}

static int subscribe(struct fid_mem_monitor *m, const void *buf, size_t len)
{
	(void) m;
	(void) buf;
	(void) len;
	return 0;
}

static void unsubscribe(struct fid_mem_monitor *m, const void *buf, size_t len)
{
	(void) m;
	(void) buf;
	(void) len;
}

static bool valid(struct fid_mem_monitor *m, const void *buf, size_t len)
{
	(void) m;
	(void) buf;
	(void) len;
	return true;
}

static struct fi_ops_mem_monitor watch = {
	.size = sizeof(watch), .start = start, .stop = stop,
	.subscribe = subscribe, .unsubscribe = unsubscribe, .valid = valid,
};

static struct fid_mem_monitor *monitor(void)
{
	struct fid_mem_monitor *m = calloc(1, sizeof(*m));

	m->fid.fclass = FI_CLASS_MEM_MONITOR;
	m->export_ops = &watch;
	return m;
}

static void monitors(void)
{
	struct fid_mem_monitor *one = monitor(), *two = monitor();

	DO(0, fi_import(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &one->fid, NULL));
	TRUE(one->import_ops && one->import_ops->notify && one->fid.ops && one->fid.context);
	DO(-FI_EBUSY, fi_import(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &two->fid, NULL));
	one->import_ops->notify(one, one, 8);
	DO(0, fi_close(&one->fid));
	watch.size = 8;
	DO(-FI_EINVAL, fi_import(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &two->fid, NULL));
	watch.size = sizeof(watch);
	DO(0, fi_import(FI_VERSION(1, 13), "mr_cache", NULL, 0, 0, &two->fid, NULL));
	DO(0, fi_close(&two->fid));
	free(one);
	free(two);
}

static int lines;

static int log_enabled(const struct fi_provider *p, enum fi_log_level l, enum fi_log_subsys s,
		uint64_t f)
{
	(void) p;
	(void) l;
	(void) s;
	(void) f;
	return 1;
}

static void log_line(const struct fi_provider *p, enum fi_log_level l, enum fi_log_subsys s,
		const char *func, int line, const char *msg)
{
	(void) p;
	(void) l;
	(void) s;
	(void) func;
	(void) line;
	(void) msg;
	lines++;
}

static void loggers(void)
{
	struct fi_ops_log ops = { .size = sizeof(ops), .enabled = log_enabled, .log = log_line };
	struct fid_logging l = { .fid = { .fclass = FI_CLASS_LOG }, .ops = &ops };
	int before;

	DO(0, fi_import_log(FI_VERSION(1, 13), 0, &l));
	TRUE(l.fid.ops);
	DO(-FI_ENODATA, ask("nosuchfabric", 0));
	TRUE(lines > 0);
	DO(0, fi_close(&l.fid));
	before = lines;
	DO(-FI_ENODATA, ask("nosuchfabric", 0));
	TRUE(lines == before);
}

int main(void)
{
	static uint64_t word = 5, former;
	struct fid_mr *mr;
	struct fi_ioc result = { .addr = &former, .count = 1 };
	struct fi_rma_ioc far = { .count = 1 };
	struct fi_msg_atomic m = {
		.rma_iov = &far, .rma_iov_count = 1, .datatype = FI_UINT64, .op = FI_ATOMIC_READ,
	};
	struct fi_cq_data_entry e;
	ssize_t n;

	monitors();
	loggers();
	open_disabled("efa");
	enable();
	DO(-FI_EINVAL, fi_mr_reg(domain, (void *) (UINTPTR_MAX - 100), 4096, FI_REMOTE_WRITE, 0, 0, 0,
			&mr, NULL));
	DO(0, fi_mr_reg(domain, &word, sizeof(word), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr,
			NULL));
	far.addr = (uintptr_t) &word;
	far.key = fi_mr_key(mr);
	m.addr = self;
	DO(0, fi_fetch_atomicmsg(ep, &m, &result, NULL, 1, 0));
	while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	DO(1, n);
	TRUE(former == 5);
	DO(0, fi_close(&mr->fid));
	close_all();
	puts("imports are closed, operands of reads ignored");
	return EXIT_SUCCESS;
}
