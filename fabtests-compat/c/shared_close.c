/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * One of two endpoints on a shared receive context is closed in the middle of a long message: the
 * receive ends with FI_ECANCELED, the sender's operation ends, and the other endpoint goes on.
 *
 * shared_close efa|tcp [tagged|multi]
 */
#include <rdma/fi_tagged.h>
#include "two.h"

enum { LONG = 64 << 20, SHORT = 200000, ROUNDS = 4 };

static struct fid_ep *srx;
static int tagged;

struct names {
	char addr[2][64];
};

static struct fid_ep *open_ep(struct fid_ep *shared)
{
	struct fid_ep *e;

	if (shared)
		info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
	DO(fi_endpoint(domain, info, &e, NULL));
	DO(fi_ep_bind(e, &av->fid, 0));
	DO(fi_ep_bind(e, &cq->fid, FI_TRANSMIT | FI_RECV));
	if (shared)
		DO(fi_ep_bind(e, &shared->fid, 0));
	DO(fi_enable(e));
	return e;
}

static int post(void *at, size_t len, void *ctx)
{
	return (int) (tagged ? fi_trecv(srx, at, len, NULL, FI_ADDR_UNSPEC, 7, 0, ctx)
			: fi_recv(srx, at, len, NULL, FI_ADDR_UNSPEC, ctx));
}

static int wait_for(struct fi_cq_err_entry *end, double limit)
{
	double until = now_s() + limit;

	while (!read_completion(end))
		if (now_s() > until)
			return 0;
	return 1;
}

static int receiver(int fd)
{
	struct names n = { 0 };
	struct fi_cq_err_entry end;
	struct fid_ep *e[2];
	size_t len;
	volatile char *in = calloc(1, LONG);
	char *other = calloc(1, SHORT), ok = 1;
	int cancelled = 0;

	open_domain();
	DO(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	e[1] = open_ep(srx);
	for (int round = 0; round < ROUNDS; round++) {
		e[0] = open_ep(srx);
		for (int i = 0; i < 2; i++) {
			len = sizeof(n.addr[i]);
			DO(fi_getname(&e[i]->fid, n.addr[i], &len));
		}
		memset((char *) in, 0, LONG);
		memset(other, 0, SHORT);
		DO(post((void *) in, LONG, (void *) in));
		check(write(fd, &n, sizeof(n)) == sizeof(n), "sender gone");
		/* Until the first bytes are here. */
		while (!in[0] && !in[LONG / 2] && !in[LONG - 1])
			check(!read_completion(&end), "an early completion");
		if (round & 1)	/* deeper into the message */
			while (!in[LONG / 4] && !in[LONG - 1])
				check(!read_completion(&end), "an early completion");
		check(post(other, SHORT, other) == 0, "post");
		DO(fi_close(&e[0]->fid));
		/* The receive that was under way. */
		check(wait_for(&end, 20), "the receive under way never ends");
		check(end.op_context == (void *) in, "the receive that waits was ended, not the one under way");
		if (end.err) {
			check(end.err == FI_ECANCELED, "wanted FI_ECANCELED");
			cancelled++;
		}
		memset((char *) in, 0, LONG);
		check(write(fd, &ok, 1) == 1, "sender gone");
		check(wait_for(&end, 20), "the other endpoint receives nothing");
		check(end.op_context == other && !end.err && end.len == SHORT,
				"the other endpoint's message failed");
		for (int i = 0; i < SHORT; i++)
			check(other[i] == 'b', "other bytes");
		/* Nothing of the closed endpoint's message is written any more. */
		check(read(fd, &ok, 1) == 1, "sender gone");
		for (int i = 0; i < LONG; i++)
			check(!in[i], "memory was written after FI_ECANCELED");
		check(!read_completion(&end), "one completion too many");
	}
	printf("receiver: %d of %d cancelled\n", cancelled, ROUNDS);
	check(cancelled > 0, "none was cancelled in the middle");
	/* A receive that waits is cancelled with fi_cancel, or dropped with the context. */
	DO(post(other, SHORT, other));
	DO(fi_cancel(&srx->fid, other));
	check(wait_for(&end, 5) && end.err == FI_ECANCELED, "fi_cancel of a shared receive");
	check(fi_close(&srx->fid) == -FI_EBUSY, "a context in use is closed");
	DO(fi_close(&e[1]->fid));
	DO(fi_close(&srx->fid));
	DO(fi_close(&cq->fid));
	DO(fi_close(&av->fid));
	DO(fi_close(&domain->fid));
	DO(fi_close(&fabric->fid));
	fi_freeinfo(info);
	return 0;
}

/* As `receiver`, with a multi-receive buffer: it stays posted, and is given back when it is full.
 * */
static int multi_receiver(int fd)
{
	struct names n = { 0 };
	struct fid_ep *e[2];
	size_t len, room = LONG + 5 * SHORT;
	char *buffer = calloc(1, room), ok = 1;
	struct iovec iov = { buffer, room };
	struct fi_msg m = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = buffer };

	open_domain();
	DO(fi_srx_context(domain, info->rx_attr, &srx, NULL));
	e[1] = open_ep(srx);
	for (int round = 0; round < ROUNDS; round++) {
		int got = 0, back = 0, cancelled = 0;
		volatile char *in = buffer;
		double until;

		e[0] = open_ep(srx);
		for (int i = 0; i < 2; i++) {
			len = sizeof(n.addr[i]);
			DO(fi_getname(&e[i]->fid, n.addr[i], &len));
		}
		memset(buffer, 0, room);
		DO(fi_recvmsg(srx, &m, FI_MULTI_RECV | FI_COMPLETION));
		check(write(fd, &n, sizeof(n)) == sizeof(n), "sender gone");
		while (!in[0] && !in[LONG / 2] && !in[LONG - 1])
			(void) fi_cq_read(cq, NULL, 0);
		DO(fi_close(&e[0]->fid));
		check(write(fd, &ok, 1) == 1, "sender gone");
		until = now_s() + 20;
		while (got < 5 || !back) {
			struct fi_cq_data_entry c;
			struct fi_cq_err_entry err = { 0 };
			ssize_t r = fi_cq_read(cq, &c, 1);

			if (now_s() > until) {
				printf("round %d: %d messages, given back %d, cancelled %d\n", round, got, back, cancelled);
				exit(1);
			}
			if (r == -FI_EAVAIL) {
				DO(fi_cq_readerr(cq, &err, 0));
				check(err.op_context == buffer && err.err == FI_ECANCELED && !cancelled++, "another error");
				back |= (err.flags & FI_MULTI_RECV) != 0;
				printf("round %d: FI_ECANCELED, FI_MULTI_RECV %d\n", round, !!(err.flags & FI_MULTI_RECV));
				if (err.flags & FI_MULTI_RECV)
					break;
			}
			if (r != 1)
				continue;
			check(c.op_context == buffer, "another context");
			if (c.len == SHORT) {
				for (int i = 0; i < SHORT; i++)
					check(((char *) c.buf)[i] == 'b', "other bytes");
				got++;
			} else
				printf("round %d: the cut message ended well\n", round);
			check(!back, "a message after the buffer was given back");
			back |= (c.flags & FI_MULTI_RECV) != 0;
		}
		check(write(fd, &ok, 1) == 1 && read(fd, &ok, 1) == 1, "sender gone");
	}
	DO(fi_close(&e[1]->fid));
	DO(fi_close(&srx->fid));
	puts("multi: ok");
	return 0;
}

static void multi_sender(int fd)
{
	struct names n;
	struct fi_cq_err_entry end;
	fi_addr_t to[2];
	char *out = malloc(LONG), *other = malloc(SHORT), ok = 1;

	memset(out, 'a', LONG);
	memset(other, 'b', SHORT);
	open_domain();
	ep = open_ep(NULL);
	for (int round = 0; round < ROUNDS; round++) {
		int ended = 0, posted = 0, content = 0;

		check(read(fd, &n, sizeof(n)) == sizeof(n), "receiver gone");
		DO(fi_av_insert(av, n.addr[0], 1, &to[0], 0, NULL));
		DO(fi_av_insert(av, n.addr[1], 1, &to[1], 0, NULL));
		DO(fi_send(ep, out, LONG, NULL, to[0], out));
		while (recv(fd, &ok, 1, MSG_DONTWAIT) != 1)
			ended += read_completion(&end);
		while (posted < 5 || ended < 6) {
			if (posted < 5 && fi_send(ep, other, SHORT, NULL, to[1], other) == 0)
				posted++;
			if (read_completion(&end)) {
				check(end.op_context == out || !end.err, "another send failed");
				ended++;
			}
			if (recv(fd, &ok, 1, MSG_DONTWAIT) == 1) {	/* the receiver is content */
				content = 1;
				break;
			}
		}
		while (ended < posted + 1)
			ended += read_completion(&end);
		check(content || read(fd, &ok, 1) == 1, "receiver gone");
		check(write(fd, &ok, 1) == 1, "receiver gone");
		DO(fi_av_remove(av, &to[0], 1, 0));
		DO(fi_av_remove(av, &to[1], 1, 0));
	}
}

static void sender(int fd)
{
	struct names n;
	struct fi_cq_err_entry end;
	fi_addr_t to[2];
	char *out = malloc(LONG), *other = malloc(SHORT), ok = 1;
	int failed = 0;

	memset(out, 'a', LONG);
	memset(other, 'b', SHORT);
	open_domain();
	ep = open_ep(NULL);
	for (int round = 0; round < ROUNDS; round++) {
		int got = 0, sent = 0;

		check(read(fd, &n, sizeof(n)) == sizeof(n), "receiver gone");
		DO(fi_av_insert(av, n.addr[0], 1, &to[0], 0, NULL));
		DO(fi_av_insert(av, n.addr[1], 1, &to[1], 0, NULL));
		DO(tagged ? fi_tsend(ep, out, LONG, NULL, to[0], 7, out) : fi_send(ep, out, LONG, NULL, to[0],
				out));
		while (!got) {
			if (read_completion(&end)) {
				check(end.op_context == out, "another completion");
				sent = 1;
				failed += end.err != 0;
			}
			got = recv(fd, &ok, 1, MSG_DONTWAIT) == 1;
		}
		while (1) {
			ssize_t r = tagged ? fi_tsend(ep, other, SHORT, NULL, to[1], 7, other)
					: fi_send(ep, other, SHORT, NULL, to[1], other);
			if (r == 0)
				break;
			check(r == -FI_EAGAIN, "send");
			if (read_completion(&end)) {
				check(end.op_context == out && !sent, "another completion");
				sent = 1;
				failed += end.err != 0;
			}
		}
		for (got = 0; !got || !sent;) {
			check(wait_for(&end, 20), got ? "the send to the closed endpoint never ends"
					: "no end of the other send");
			if (end.op_context == out) {
				check(!sent, "two completions of one send");
				sent = 1;
				failed += end.err != 0;
				if (end.err) { char t[256]; printf("sender: %d %s: %s\n", end.err, fi_strerror(end.err),
						fi_cq_strerror(cq, end.prov_errno, end.err_data, t, sizeof t)); }
			} else {
				check(!end.err, "the other send failed");
				got = 1;
			}
		}
		check(write(fd, &ok, 1) == 1, "receiver gone");
		DO(fi_av_remove(av, &to[0], 1, 0));
		DO(fi_av_remove(av, &to[1], 1, 0));
	}
	printf("sender: %d of %d failed\n", failed, ROUNDS);
}

int main(int argc, char **argv)
{
	int fd, st;
	pid_t p;

	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc > 1)
		provider = argv[1];
	caps = FI_MSG | FI_TAGGED | FI_MULTI_RECV;
	tagged = argc > 2 && !strcmp(argv[2], "tagged");
	alarm(50);
	if (argc > 2 && !strcmp(argv[2], "multi")) {
		p = spawn_peer(multi_receiver, &fd);
		multi_sender(fd);
	} else {
		p = spawn_peer(receiver, &fd);
		sender(fd);
	}
	check(waitpid(p, &st, 0) == p && st == 0, "the receiver failed");
	puts("ok");
	return 0;
}
