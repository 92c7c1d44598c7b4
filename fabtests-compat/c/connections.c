/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connected endpoints of provider tcp (fi_cm(3)): a server, and callers that are processes of their
 * own. One is accepted, one rejected, one killed, one connects many times. Unknown callers send
 * invalid bytes, or nothing.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/fi_eq.h>
#include <sys/resource.h>
#include "two.h"

/* A quarter of DESCRIPTORS connections may be without a request. */
enum { LEN = 64, CALLS = 5, DESCRIPTORS = 400, SILENT = 120, INVALID_CALLERS = 40, AGAIN = 50 };

static struct fid_eq *eq;
/* The queue is the domain's, for endpoints that have none of their own. */
static int domain_has_queue;
static struct fid_pep *pep;
static struct sockaddr_in at;

static void open_fabric(const char *node, const char *service, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };

	setenv("FI_PROVIDER", "tcp", 1);
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	DO(fi_getinfo(FI_VERSION(2, 0), node, service, flags, hints, &info));
	fi_freeinfo(hints);
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_eq_open(fabric, &attr, &eq, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	domain_has_queue = node && !(flags & FI_SOURCE);
	if (domain_has_queue)
		DO(fi_domain_bind(domain, &eq->fid, 0));
}

/* Opens the endpoint for info `i`, with a completion queue and a posted receive. */
static void open_ep(struct fi_info *i)
{
	struct fi_cq_attr attr = { .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_UNSPEC };
	int fd = 0;

	DO(fi_endpoint(domain, i, &ep, NULL));
	DO(fi_cq_open(domain, &attr, &cq, NULL));
	if (!domain_has_queue) {
		check(fi_enable(ep) == -FI_ENOEQ, "fi_enable without an event queue: wanted FI_ENOEQ");
		DO(fi_ep_bind(ep, &eq->fid, 0));
	}
	DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(ep));
	check(fi_control(&ep->fid, FI_GET_FD, &fd) == -FI_EOPBADSTATE || fd > 2,
	      "FI_GET_FD: wanted a socket, or FI_EOPBADSTATE");
	check(fi_send(ep, buf, LEN, NULL, 0, NULL) == -FI_ENOTCONN,
	      "a send without a connection: wanted FI_ENOTCONN");
	DO(fi_recv(ep, buf, LEN, NULL, 0, buf));
}

static void close_ep(void)
{
	DO(fi_close(&ep->fid));
	DO(fi_close(&cq->fid));
}

/* The next event, and its data. */
static uint32_t event(struct fi_eq_cm_entry *e, char *data, size_t room)
{
	char all[sizeof(*e) + 256] = { 0 };
	uint32_t what;
	ssize_t n = fi_eq_sread(eq, &what, all, sizeof(all), 20000, 0);

	if (n < 0) {
		printf("fi_eq_sread: %s\n", fi_strerror((int) -n));
		exit(EXIT_FAILURE);
	}
	memcpy(e, all, sizeof(*e));
	memset(data, 0, room);
	if ((size_t) n > sizeof(*e))
		memcpy(data, all + sizeof(*e), (size_t) n - sizeof(*e));
	return what;
}

static void expect(uint32_t what, const char *data)
{
	struct fi_eq_cm_entry e;
	char had[256];

	check(event(&e, had, sizeof(had)) == what, "another event than was expected");
	check(e.fid == &ep->fid, "an event of another endpoint");
	check(strcmp(had, data) == 0, "an event with other data");
}

/* The next completion: 0, or the error it reports. */
static int completion(void *context)
{
	struct fi_cq_msg_entry c;
	struct fi_cq_err_entry e = { 0 };
	ssize_t n = fi_cq_sread(cq, &c, 1, NULL, 20000);

	if (n == 1) {
		check(c.op_context == context, "a completion of another operation");
		return 0;
	}
	check(n == -FI_EAVAIL, "no completion");
	check(fi_cq_readerr(cq, &e, 0) == 1, "fi_cq_readerr");
	check(e.op_context == context, "an error of another operation");
	return e.err;
}

static void open_caller(void)
{
	char port[16];

	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
	open_fabric("127.0.0.1", port, 0);
}

static void call(int server, const void *data, size_t len)
{
	check(read(server, &at, sizeof(at)) == sizeof(at), "the server is gone");
	open_caller();
	open_ep(info);
	DO(fi_connect(ep, info->dest_addr, data, len));
}

/* A caller that is accepted, gets its message echoed and shuts down. */
static int accepted(int fd)
{
	struct sockaddr_in peer, own = { 0 };
	socklen_t own_len = sizeof(own);
	size_t len = sizeof(peer);
	char ok = 1;
	int s = -1;

	call(fd, "hello", 6);
	expect(FI_CONNECTED, "welcome");
	DO(fi_control(&ep->fid, FI_GET_FD, &s));
	check(getsockname(s, (struct sockaddr *) &own, &own_len) == 0 && own.sin_port, "FI_GET_FD");
	DO(fi_getpeer(ep, &peer, &len));
	check(peer.sin_port == at.sin_port, "fi_getpeer: another port");
	check(fi_connect(ep, info->dest_addr, NULL, 0) == -FI_EINVAL, "connected twice");
	memset(buf + LEN, 'x', LEN);
	DO(fi_send(ep, buf + LEN, LEN, NULL, 0, buf + LEN));
	check(completion(buf + LEN) == 0, "the send failed");
	check(completion(buf) == 0, "no echo");
	check(memcmp(buf, buf + LEN, LEN) == 0, "the echo has other bytes");
	DO(fi_shutdown(ep, 0));
	/* Both sides may end a connection. */
	DO(fi_shutdown(ep, 0));
	expect(FI_SHUTDOWN, "");
	close_ep();
	check(write(fd, &ok, 1) == 1, "the server is gone");
	return 0;
}

/* A caller that is rejected with a reason. */
static int rejected(int fd)
{
	struct fi_eq_cm_entry e;
	struct fi_eq_err_entry err = { 0 };
	char why[256] = { 0 }, ok = 1;
	uint32_t what;

	call(fd, "hello", 6);
	check(fi_eq_sread(eq, &what, &e, sizeof(e), 20000, 0) == -FI_EAVAIL, "not rejected");
	err.err_data = why;
	err.err_data_size = sizeof(why);
	check(fi_eq_readerr(eq, &err, 0) == sizeof(err), "fi_eq_readerr");
	check(err.err == FI_ECONNREFUSED && err.fid == &ep->fid, "another error");
	check(strcmp(why, "full") == 0, "the reason was lost");
	check(completion(buf) == FI_ECANCELED, "the receive was not flushed");
	close_ep();
	check(write(fd, &ok, 1) == 1, "the server is gone");
	return 0;
}

/* A caller that is connected until it is killed. */
static int killed(int fd)
{
	char ok = 1;

	call(fd, "hello", 6);
	expect(FI_CONNECTED, "welcome");
	check(write(fd, &ok, 1) == 1, "the server is gone");
	return pause();
}

/* A caller that opens AGAIN connections, each as soon as the previous one is connected. */
static int again(int fd)
{
	struct fid_ep *eps[AGAIN];
	struct fid_cq *cqs[AGAIN];
	char ok = 1;

	check(read(fd, &at, sizeof(at)) == sizeof(at), "the server is gone");
	open_caller();
	for (int i = 0; i < AGAIN; i++) {
		open_ep(info);
		DO(fi_connect(ep, info->dest_addr, "hello", 6));
		expect(FI_CONNECTED, "welcome");
		eps[i] = ep;
		cqs[i] = cq;
	}
	check(read(fd, &ok, 1) == 1, "the server is gone");
	for (int i = 0; i < AGAIN; i++) {
		ep = eps[i];
		cq = cqs[i];
		close_ep();
	}
	check(write(fd, &ok, 1) == 1, "the server is gone");
	return 0;
}

/* A TCP socket that is connected to the server. */
static int connect_socket(void)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);

	DO(s);
	DO(connect(s, (struct sockaddr *) &at, sizeof(at)));
	return s;
}

/* A caller of many sockets that say nothing: the first ones are closed for the last ones. */
static int silent(int fd)
{
	struct pollfd p[SILENT];
	char c, ok = 1;

	check(read(fd, &at, sizeof(at)) == sizeof(at), "the server is gone");
	for (int i = 0; i < SILENT; i++)
		p[i] = (struct pollfd) { .fd = connect_socket(), .events = POLLIN };
	for (int i = 0; i < SILENT - DESCRIPTORS / 4; i++)
		check(poll(&p[i], 1, 20000) == 1 && read(p[i].fd, &c, 1) <= 0,
		      "a silent caller too many is not turned away");
	check(poll(&p[SILENT - 1], 1, 0) == 0, "the last silent caller was turned away");
	check(write(fd, &ok, 1) == 1 && read(fd, &ok, 1) == 1, "the server is gone");
	check(write(fd, &ok, 1) == 1, "the server is gone");
	return 0;
}

/* Connects, sends bytes that no endpoint sends, and closes the socket. */
static void send_invalid_bytes(int n)
{
	static const unsigned char said[][40] = {
		{ 0 }, { 3, 0, 0xff, 0xff }, { 3, 1 }, { 3, 6 }, { 9 }, { 'G', 'E', 'T', ' ' }
	};
	int s = connect_socket();
	size_t len = (size_t) n % sizeof(said[0]) + 1;

	check(send(s, said[n % 6], len, MSG_NOSIGNAL) == (ssize_t) len, "send");
	close(s);
}

/* Takes the next connection request, which must carry `data`; returns its info. */
static struct fi_info *request(const char *data)
{
	struct fi_eq_cm_entry e;
	char had[256];

	check(event(&e, had, sizeof(had)) == FI_CONNREQ, "wanted a request");
	check(e.fid == &pep->fid && e.info && e.info->handle, "a request without info");
	check(strcmp(had, data) == 0, "a request with other data");
	return e.info;
}

/* Accepts the next request, and returns when the endpoint is connected. */
static void accept_call(const char *data)
{
	struct fi_info *i = request(data);

	open_ep(i);
	DO(fi_accept(ep, "welcome", 8));
	expect(FI_CONNECTED, "");
	fi_freeinfo(i);
}

static void expect_shutdown(void)
{
	expect(FI_SHUTDOWN, "");
	check(completion(buf) == FI_ECANCELED, "the receive was not flushed");
	check(fi_send(ep, buf, LEN, NULL, 0, NULL) == -FI_ENOTCONN,
	      "a send after the end: wanted FI_ENOTCONN");
	close_ep();
}

/* Waits until the next event has come, without taking it, and reads it into too short a buffer. */
static void expect_unread(uint32_t what, struct fid *fid)
{
	struct fi_eq_cm_entry e = { 0 };
	uint32_t had;
	ssize_t n = fi_eq_sread(eq, &had, &e, sizeof(e), 20000, FI_PEEK);

	check(n == sizeof(e), "data of an event beyond the buffer is cut off");
	check(had == what && e.fid == fid, "another event than was expected");
	check(fi_eq_read(eq, &had, NULL, 0, FI_PEEK) == 0 && had == what, "an event without room");
}

/* A socket that has sent a request to connect. */
static int send_request(void)
{
	unsigned char bytes[32 + 6] = { 3, 0, 0, 6, [24] = 1 };
	int s = connect_socket();

	memcpy(bytes + 32, "hello", 6);
	check(send(s, bytes, sizeof(bytes), 0) == sizeof(bytes), "send");
	return s;
}

/* What the application closes reports no events, and its address is free. */
static void close_with_unread_events(void)
{
	struct fi_eq_cm_entry e;
	uint32_t what;
	int s = send_request();

	accept_call("hello");
	close(s);
	check(completion(buf) == FI_ECANCELED, "the receive was not flushed");
	expect_unread(FI_SHUTDOWN, &ep->fid);
	close_ep();
	check(fi_eq_read(eq, &what, &e, sizeof(e), 0) == -FI_EAGAIN, "an event of a closed endpoint");

	s = send_request();
	expect_unread(FI_CONNREQ, &pep->fid);
	DO(fi_close(&pep->fid));
	check(fi_eq_read(eq, &what, &e, sizeof(e), 0) == -FI_EAGAIN, "a request to a closed endpoint");
	close(s);
	memcpy(info->src_addr, &at, sizeof(at));
	for (int i = 0; i < AGAIN; i++) {
		DO(fi_passive_ep(fabric, info, &pep, NULL));
		DO(fi_pep_bind(pep, &eq->fid, 0));
		DO(fi_listen(pep));
		DO(fi_close(&pep->fid));
	}
}

/* Memory that no peer reaches needs no key of its own. */
static void local_regions(void)
{
	struct fid_mr *mr[2];

	for (int i = 0; i < 2; i++)
		DO(fi_mr_reg(domain, buf, LEN, FI_SEND | FI_RECV, 0, 0, 0, &mr[i], NULL));
	for (int i = 0; i < 2; i++)
		DO(fi_close(&mr[i]->fid));
}

static void serve(void)
{
	int (*const callers[CALLS])(int) = { accepted, rejected, killed, again, silent };
	const struct rlimit descriptors = { DESCRIPTORS, DESCRIPTORS };
	int fds[CALLS], status;
	pid_t pids[CALLS];
	size_t len = sizeof(at);
	char ok;

	/* Fork the callers before this process uses the library; they wait for the address. */
	for (int i = 0; i < CALLS; i++)
		pids[i] = spawn_peer(callers[i], &fds[i]);
	DO(setrlimit(RLIMIT_NOFILE, &descriptors));
	/* Connections without a request do not time out within this test. */
	setenv("FI_TCP_CONNECT_TIMEOUT_MS", "120000", 1);
	open_fabric("127.0.0.1", NULL, FI_SOURCE);
	DO(fi_passive_ep(fabric, info, &pep, NULL));
	check(fi_listen(pep) == -FI_ENOEQ, "fi_listen without an event queue: wanted FI_ENOEQ");
	DO(fi_pep_bind(pep, &eq->fid, 0));
	DO(fi_getname(&pep->fid, &at, &len));
	DO(fi_listen(pep));
	check(fi_listen(pep) == -FI_EINVAL, "listens twice");

	local_regions();
	check(strstr(fi_tostr(info, FI_TYPE_INFO), "fi_sockaddr_in://127.0.0.1:") != NULL,
	      "fi_tostr: no address");
	for (int i = 0; i < INVALID_CALLERS; i++)
		send_invalid_bytes(i);
	/* They stay during the first call. */
	check(write(fds[4], &at, sizeof(at)) == sizeof(at), "a caller is gone");
	check(read(fds[4], &ok, 1) == 1, "the silent caller is gone");
	check(write(fds[0], &at, sizeof(at)) == sizeof(at), "a caller is gone");
	accept_call("hello");
	check(completion(buf) == 0, "no message");
	DO(fi_recv(ep, buf, LEN, NULL, 0, buf));
	memset(buf + LEN, 'x', LEN);
	DO(fi_send(ep, buf + LEN, LEN, NULL, 0, buf + LEN));
	check(completion(buf + LEN) == 0, "the echo failed");
	expect_shutdown();
	check(write(fds[4], &ok, 1) == 1, "the silent caller is gone");

	check(write(fds[1], &at, sizeof(at)) == sizeof(at), "a caller is gone");
	{
		struct fi_info *i = request("hello");

		DO(fi_reject(pep, i->handle, "full", 5));
		check(fi_reject(pep, i->handle, "full", 5) == -FI_EINVAL, "rejected twice");
		fi_freeinfo(i);
	}

	check(write(fds[2], &at, sizeof(at)) == sizeof(at), "a caller is gone");
	accept_call("hello");
	check(read(fds[2], &ok, 1) == 1, "the third caller is gone");
	kill(pids[2], SIGKILL);
	expect_shutdown();

	/* A valid connection request, followed by bytes that are no message header. */
	{
		int s = send_request();

		accept_call("hello");
		check(send(s, "GET / HTTP/1.1\r\n\r\n", 18, 0) == 18, "send");
		expect_shutdown();
		close(s);
	}

	check(write(fds[3], &at, sizeof(at)) == sizeof(at), "a caller is gone");
	{
		struct fid_ep *eps[AGAIN];
		struct fid_cq *cqs[AGAIN];

		for (int i = 0; i < AGAIN; i++) {
			accept_call("hello");
			eps[i] = ep;
			cqs[i] = cq;
		}
		for (int i = 0; i < AGAIN; i++) {
			ep = eps[i];
			cq = cqs[i];
			close_ep();
		}
		check(write(fds[3], &ok, 1) == 1, "a caller is gone");
	}

	for (int i = 0; i < CALLS; i++) {
		if (i != 2)
			check(read(fds[i], &ok, 1) == 1, "a caller was not content");
		check(waitpid(pids[i], &status, 0) == pids[i], "waitpid");
		check(i == 2 || status == 0, "a caller failed");
	}
	close_with_unread_events();
	DO(fi_close(&domain->fid));
	DO(fi_close(&eq->fid));
	DO(fi_close(&fabric->fid));
	fi_freeinfo(info);
}

int main(void)
{
	static char bytes[2 * LEN];

	buf = bytes;
	serve();
	puts("accepted, rejected and killed callers, and bytes that are no request: as they should be");
	return 0;
}
