/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Memory registered by a file descriptor (FI_MR_DMABUF, fi_mr(3)), as target of writes, source of
 * reads and source of sends. The descriptor is a memfd, which the software adapter and the emulated
 * one accept as a dma-buf.
 *
 * dmabuf FABRIC             the registration works
 * dmabuf FABRIC refused     the adapter or its driver does not support dma-bufs
 */
#include <sys/mman.h>
#include <unistd.h>
#include <rdma/fi_rma.h>
#include "alone.h"

enum { FILE_SIZE = 1 << 16, OFFSET = 8192, SIZE = 16384, PART = 4000 };

static char plain[SIZE];

static void end_of(void *context)
{
	struct fi_cq_data_entry e;
	ssize_t n;

	while ((n = fi_cq_read(cq, &e, 1)) == -FI_EAGAIN)
		;
	DO(1, n);
	TRUE(e.op_context == context);
}

static struct fid_mr *registered(struct fid_domain *domain, void *at, size_t len)
{
	struct fid_mr *mr;

	DO(0, fi_mr_reg(domain, at, len, FI_SEND | FI_RECV | FI_READ | FI_WRITE, 0, 0, 0, &mr, NULL));
	return mr;
}

int main(int argc, char **argv)
{
	static struct fi_context2 contexts[4];
	struct fi_mr_dmabuf dmabuf;
	struct fi_mr_attr attr = { .dmabuf = &dmabuf, .iov_count = 1, .requested_key = 1 };
	struct fid_mr *mr, *near, *none;
	char *base;
	uint64_t there;
	int fd = memfd_create("dmabuf", MFD_CLOEXEC);

	TRUE(fd >= 0 && argc >= 2);
	DO(0, ftruncate(fd, FILE_SIZE));
	base = mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	TRUE(base != MAP_FAILED);

	open_disabled(argv[1]);
	enable();

	dmabuf = (struct fi_mr_dmabuf) { .fd = fd, .offset = OFFSET, .len = SIZE, .base_addr = base };
	attr.access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	if (argc > 2) {
		DO(-FI_EOPNOTSUPP, fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &mr));
		puts("memory of a descriptor was refused");
		return 0;
	}
	DO(0, fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &mr));
	near = registered(domain, plain, sizeof(plain));
	there = (uint64_t) (uintptr_t) (base + OFFSET + PART);

	/* RMA addresses the region by where it is mapped in this process. */
	memset(plain, 'w', PART);
	DO(0, fi_write(ep, plain, PART, fi_mr_desc(near), self, there, fi_mr_key(mr), &contexts[0]));
	end_of(&contexts[0]);
	TRUE(base[OFFSET + PART] == 'w' && base[OFFSET + 2 * PART - 1] == 'w' && !base[OFFSET + 2 * PART]);
	base[OFFSET + PART] = 'r';
	DO(0, fi_read(ep, plain + PART, PART, fi_mr_desc(near), self, there, fi_mr_key(mr), &contexts[1]));
	end_of(&contexts[1]);
	TRUE(plain[PART] == 'r' && plain[2 * PART - 1] == 'w');
	/* Send from the region. */
	memset(base + OFFSET, 's', PART);
	DO(0, fi_recv(ep, plain, sizeof(plain), fi_mr_desc(near), FI_ADDR_UNSPEC, &contexts[2]));
	DO(0, fi_send(ep, base + OFFSET, PART, fi_mr_desc(mr), self, &contexts[3]));
	for (int got = 0; got < 2;) {
		struct fi_cq_data_entry e;
		ssize_t n = fi_cq_read(cq, &e, 1);

		TRUE(n == 1 || n == -FI_EAGAIN);
		got += n == 1;
	}
	TRUE(plain[0] == 's' && plain[PART - 1] == 's');

	/* Attributes without a valid dma-buf are refused. */
	dmabuf.fd = -1;
	DO(-FI_EINVAL, fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &none));
	dmabuf.fd = fd;
	dmabuf.base_addr = NULL;
	DO(-FI_EINVAL, fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &none));
	attr.dmabuf = NULL;
	DO(-FI_EINVAL, fi_mr_regattr(domain, &attr, FI_MR_DMABUF, &none));

	DO(0, fi_close(&near->fid));
	DO(0, fi_close(&mr->fid));
	close_all();
	puts("memory of a descriptor was written, read and sent");
	return 0;
}
