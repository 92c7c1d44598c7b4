/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * broken_send: a tcp endpoint sends a message whose second half cannot be read. The peer, which has
 * the first half, must learn that nothing more comes, and the next message must arrive.
 */
#include "two.h"
#include <sys/mman.h>

enum { LEN = 1 << 20, SHORT = 64 };

static struct fi_context2 contexts[2];

/* The next completion, of any kind, within 30 seconds (see alarm). */
static struct fi_cq_err_entry next(void)
{
	struct fi_cq_err_entry end;

	while (!read_completion(&end))
		;
	return end;
}

static void post(const char *at, size_t len, fi_addr_t to, struct fi_context2 *context)
{
	ssize_t ret;

	while ((ret = fi_send(ep, at, len, NULL, to, context)) == -FI_EAGAIN)
		(void) fi_cq_read(cq, NULL, 0);
	DO(ret);
}

static int receiver(int fd)
{
	struct hello me = open_all(LEN), other;
	struct fi_cq_err_entry end;

	for (int i = 0; i < 2; i++)
		DO(fi_recv(ep, buf, LEN, NULL, FI_ADDR_UNSPEC, &contexts[i]));
	meet(fd, &me, &other);
	end = next();
	check(end.err && end.op_context == &contexts[0], "half a message: wanted an error");
	end = next();
	check(!end.err && end.len == SHORT && buf[0] == 'w', "the next message has not come");
	check(write(fd, "w", 1) == 1, "the sender is gone");
	return 0;
}

int main(void)
{
	struct hello me, other;
	struct fi_cq_err_entry end;
	pid_t child;
	fi_addr_t to;
	int fd, status;
	char *broken, done;

	alarm(30);
	provider = "tcp";
	child = spawn_peer(receiver, &fd);
	me = open_all(LEN);
	to = meet(fd, &me, &other);
	broken = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(broken != MAP_FAILED && !mprotect(broken + LEN / 2, LEN / 2, PROT_NONE), "mmap");
	post(broken, LEN, to, &contexts[0]);
	end = next();
	check(end.err == FI_EFAULT, "memory that cannot be read: wanted FI_EFAULT");
	memset(buf, 'w', SHORT);
	post(buf, SHORT, to, &contexts[1]);
	end = next();
	check(!end.err && end.op_context == &contexts[1], "the next message failed");
	check(read(fd, &done, 1) == 1, "the receiver has failed");
	check(waitpid(child, &status, 0) == child && status == 0, "the receiver has failed");
	close_all();
	puts("the message behind a broken one arrived");
	return 0;
}
