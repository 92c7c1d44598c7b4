/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Connected endpoints of provider tcp: what a listener does with callers that are more than its
 * backlog, that die before they have said all, or that leave before they are accepted; addresses
 * set by fi_setname(3); endpoints at a passive endpoint's address.
 *
 * callers [leaving|passive|backlog|exhausted]
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <rdma/fi_eq.h>
#include "two.h"

enum { CALLERS = 6 };
static struct fid_eq *eq;
static struct fid_pep *pep;

static void open_fabric(const char *node, const char *service, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr attr = { .wait_obj = FI_WAIT_UNSPEC };

	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->fabric_attr->prov_name = strdup("tcp");
	DO(fi_getinfo(FI_VERSION(2, 0), node, service, flags, hints, &info));
	fi_freeinfo(hints);
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_eq_open(fabric, &attr, &eq, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_UNSPEC };
	DO(fi_cq_open(domain, &ca, &cq, NULL));
}

static struct fid_ep *new_ep(struct fi_info *i)
{
	struct fid_ep *e;

	DO(fi_endpoint(domain, i, &e, NULL));
	DO(fi_ep_bind(e, &eq->fid, 0));
	DO(fi_ep_bind(e, &cq->fid, FI_TRANSMIT | FI_RECV));
	return e;
}

static int seen_events;
static int refuse_bad;
static uint32_t next_event(struct fi_eq_cm_entry *e)
{
	uint32_t what = 0;
	ssize_t n = fi_eq_sread(eq, &what, e, sizeof(*e), 20000, 0);

	seen_events++;
	if (n == -FI_EAVAIL) {
		struct fi_eq_err_entry err = { 0 };

		DO(fi_eq_readerr(eq, &err, 0));
		e->fid = err.fid;
		printf("event error %d %s\n", err.err, fi_strerror(err.err));
		return 1000 + (uint32_t) err.err;
	}
	if (n < 0) {
		printf("fi_eq_sread: %s after %d\n", fi_strerror((int) -n), seen_events);
		exit(EXIT_FAILURE);
	}
	return what;
}

/* Child: waits for the address, then calls CALLERS times at once; sends 'c'; waits for all
 * FI_CONNECTED. */
static int many(int fd)
{
	struct sockaddr_in at;
	struct fid_ep *eps[CALLERS];
	struct fi_eq_cm_entry e;
	char port[16], ok = 1;

	check(read(fd, &at, sizeof(at)) == sizeof(at), "server gone");
	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
	open_fabric("127.0.0.1", port, 0);
	for (int i = 0; i < CALLERS; i++) {
		eps[i] = new_ep(info);
		DO(fi_connect(eps[i], info->dest_addr, &i, sizeof(i)));
	}
	check(write(fd, &ok, 1) == 1, "server gone");
	double t = now_s();
	for (int i = 0; i < CALLERS; i++) {
		uint32_t w = next_event(&e);
		if (w != FI_CONNECTED)
			printf("caller event %u\n", w);
		check(w == FI_CONNECTED, "a caller was not connected");
	}
	printf("callers connected after %.2f s\n", now_s() - t);
	fflush(stdout);
	check(write(fd, &ok, 1) == 1, "server gone");
	check(read(fd, &ok, 1) == 1, "server gone");
	for (int i = 0; i < CALLERS; i++)
		DO(fi_close(&eps[i]->fid));
	return 0;
}

/* The server of `many`: stopped by its parent until all have called. */
static int stopped_server(int fd)
{
	struct sockaddr_in at;
	size_t len = sizeof(at);
	struct fid_ep *eps[CALLERS];
	struct fi_eq_cm_entry e;
	int backlog = 1, connected = 0, requests = 0, bad = -1;
	char ok = 1;

	open_fabric("127.0.0.1", NULL, FI_SOURCE);
	DO(fi_passive_ep(fabric, info, &pep, NULL));
	DO(fi_pep_bind(pep, &eq->fid, 0));
	check(fi_control(&pep->fid, FI_BACKLOG, &bad) == -FI_EINVAL, "backlog -1");
	DO(fi_control(&pep->fid, FI_BACKLOG, &backlog));
	DO(fi_getname(&pep->fid, &at, &len));
	DO(fi_listen(pep));
	check(write(fd, &at, sizeof(at)) == sizeof(at), "parent gone");
	check(read(fd, &ok, 1) == 1, "parent gone");
	while (connected < CALLERS) {
		uint32_t w = next_event(&e);

		if (w == FI_CONNREQ) {
			check(e.fid == &pep->fid, "not the pep");
			eps[requests] = new_ep(e.info);
			DO(fi_accept(eps[requests], NULL, 0));
			fi_freeinfo(e.info);
			requests++;
		} else if (w == FI_CONNECTED) {
			connected++;
		} else {
			printf("server event %u\n", w);
			exit(1);
		}
	}
	check(requests == CALLERS, "a caller called twice");
	check(write(fd, &ok, 1) == 1, "parent gone");
	check(read(fd, &ok, 1) == 1, "parent gone");
	for (int i = 0; i < CALLERS; i++)
		DO(fi_close(&eps[i]->fid));
	DO(fi_close(&pep->fid));
	return 0;
}

static void backlog_case(void)
{
	int s, c, st;
	pid_t server = spawn_peer(stopped_server, &s), caller = spawn_peer(many, &c);
	struct sockaddr_in at;
	char ok = 1;

	check(read(s, &at, sizeof(at)) == sizeof(at), "the server is gone");
	kill(server, SIGSTOP);
	check(waitpid(server, &st, WUNTRACED) == server && WIFSTOPPED(st), "not stopped");
	check(write(c, &at, sizeof(at)) == sizeof(at), "the caller is gone");
	check(read(c, &ok, 1) == 1, "the caller is gone");
	kill(server, SIGCONT);
	check(write(s, &ok, 1) == 1, "the server is gone");
	check(read(s, &ok, 1) == 1, "the server failed");
	check(read(c, &ok, 1) == 1, "the callers failed");
	check(write(s, &ok, 1) == 1 && write(c, &ok, 1) == 1, "gone");
	check(waitpid(server, &st, 0) == server && st == 0, "server status");
	check(waitpid(caller, &st, 0) == caller && st == 0, "caller status");
	close(s), close(c);
	puts("backlog: ok");
	fflush(stdout);
}

static int raw_call(struct sockaddr_in *at)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);

	DO(s);
	DO(connect(s, (struct sockaddr *) at, sizeof(*at)));
	return s;
}

/* Bytes of a request: its head, and six bytes of data. */
enum { REQUEST = 32 + 6 };

/* Calls with the first `part` bytes of a request; returns the socket. */
static int send_request(struct sockaddr_in *at, size_t part)
{
	unsigned char bytes[REQUEST] = { 3, 0, 0, 6, [24] = 1 };
	int s = raw_call(at);

	memcpy(bytes + 32, "hello", 6);
	check(send(s, bytes, part, MSG_NOSIGNAL) == (ssize_t) part, "send");
	return s;
}

/* Calls with a whole request, and reads its event; returns the caller's socket. */
static int request(struct sockaddr_in *at, struct fi_eq_cm_entry *e)
{
	int s = send_request(at, REQUEST);

	check(next_event(e) == FI_CONNREQ, "wanted a request");
	return s;
}

/* A caller whose connection is reset (RST) once its request has come, which `e` is. */
static void request_and_reset(struct sockaddr_in *at, struct fi_eq_cm_entry *e)
{
	struct linger l = { 1, 0 };
	int s = request(at, e);

	setsockopt(s, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
	close(s);
}

/* Accepts a request. */
static struct fid_ep *accept_request(struct fi_eq_cm_entry *e)
{
	struct fid_ep *accepted = new_ep(e->info);

	DO(fi_accept(accepted, NULL, 0));
	fi_freeinfo(e->info);
	return accepted;
}

static struct sockaddr_in passive_name(void)
{
	struct sockaddr_in at;
	size_t len = sizeof(at);

	DO(fi_getname(&pep->fid, &at, &len));
	return at;
}

/* Opens a listener, with fi_setname before: elsewhere, the same place, a foreign address; and after
 * fi_listen. Returns where it listens. */
static struct sockaddr_in listen_elsewhere(void)
{
	struct sockaddr_in at, was, other;
	size_t len = 4;
	int t;

	DO(fi_passive_ep(fabric, info, &pep, NULL));
	was = other = passive_name();
	other.sin_port = 0;
	DO(fi_setname(&pep->fid, &other, sizeof(other)));
	at = passive_name();
	check(at.sin_port != 0, "setname: no port");
	DO(fi_setname(&pep->fid, &at, sizeof(at)));
	check(passive_name().sin_port == at.sin_port, "setname to its own address moved it");
	check(fi_getname(&pep->fid, &other, &len) == -FI_ETOOSMALL && len == sizeof(at),
			"getname too small");
	check(fi_setname(&pep->fid, &at, 4) == -FI_EINVAL, "short setname");
	other = at;
	other.sin_addr.s_addr = inet_addr("203.0.113.9");
	check(fi_setname(&pep->fid, &other, sizeof(other)) == -FI_EADDRNOTAVAIL,
			"setname to a foreign address");
	check(passive_name().sin_port == at.sin_port, "a refused setname moved it");
	DO(fi_pep_bind(pep, &eq->fid, 0));
	DO(fi_listen(pep));
	check(fi_setname(&pep->fid, &at, sizeof(at)) == -FI_EOPBADSTATE, "setname while it listens");
	t = socket(AF_INET, SOCK_STREAM, 0);
	check(bind(t, (struct sockaddr *) &was, sizeof(was)) == 0, "the old address is still taken");
	close(t);
	return at;
}

/* Callers that leave at once, in the middle of the request, and after it: the last is accepted, and
 * its end is an event. */
static void leave_before_the_accept(struct sockaddr_in *at)
{
	struct fi_eq_cm_entry e;
	struct fid_ep *accepted;

	for (size_t part = 0; part < REQUEST; part += 5)
		close(send_request(at, part));
	close(send_request(at, REQUEST));
	check(next_event(&e) == FI_CONNREQ, "wanted a request");
	accepted = accept_request(&e);
	check(next_event(&e) == FI_CONNECTED && e.fid == &accepted->fid, "wanted FI_CONNECTED");
	check(next_event(&e) == FI_SHUTDOWN && e.fid == &accepted->fid, "wanted FI_SHUTDOWN");
	DO(fi_close(&accepted->fid));
}

/* Callers that reset the connection before it is rejected, or accepted. */
static void reset_before_the_answer(struct sockaddr_in *at)
{
	struct fi_eq_cm_entry e, end;
	struct fid_ep *accepted;
	int r;

	request_and_reset(at, &e);
	DO(fi_reject(pep, e.info->handle, "no", 2));
	fi_freeinfo(e.info);
	request_and_reset(at, &e);
	accepted = new_ep(e.info);
	r = fi_accept(accepted, NULL, 0);
	printf("accept of a reset caller: %d\n", r);
	if (r == 0) {
		uint32_t w = next_event(&end);

		printf("event %u\n", w);
		if (w == FI_CONNECTED)
			check(next_event(&end) == FI_SHUTDOWN, "wanted FI_SHUTDOWN");
	}
	fi_freeinfo(e.info);
	DO(fi_close(&accepted->fid));
}

/* A request whose endpoint is closed without being accepted: the caller sees the end. */
static void close_unaccepted(struct sockaddr_in *at)
{
	struct fi_eq_cm_entry e;
	struct fid_ep *closed;
	struct pollfd p = { .events = POLLIN };
	uint32_t what;
	char c;

	p.fd = request(at, &e);
	closed = new_ep(e.info);
	check(fi_reject(pep, e.info->handle, NULL, 0) == -FI_EINVAL, "rejected what an endpoint has");
	DO(fi_close(&closed->fid));
	fi_freeinfo(e.info);
	check(poll(&p, 1, 20000) == 1 && read(p.fd, &c, 1) <= 0, "the caller of a closed endpoint hangs");
	close(p.fd);
	check(fi_eq_read(eq, &what, &e, sizeof(e), 0) == -FI_EAGAIN, "one event too many");
}

/* Too much data with an answer: an error, after which the request is still there. */
static void too_much_data(struct sockaddr_in *at)
{
	static char much[300];
	struct fi_eq_cm_entry e;
	struct fid_ep *accepted;
	int s = request(at, &e), r;

	check(fi_reject(pep, e.info->handle, much, sizeof(much)) == -FI_EINVAL, "300 bytes of data");
	r = fi_reject(pep, e.info->handle, "no", 2);
	printf("fi_reject after one with too much data: %d\n", r);
	refuse_bad |= r != 0;
	fi_freeinfo(e.info);
	close(s);
	s = request(at, &e);
	accepted = new_ep(e.info);
	check(fi_accept(accepted, much, sizeof(much)) == -FI_EINVAL, "300 bytes of data");
	DO(fi_accept(accepted, "yes", 4));
	check(next_event(&e) == FI_CONNECTED, "not connected");
	DO(fi_close(&accepted->fid));
	close(s);
}

/* Settings of a passive endpoint that listens. */
static void set_while_it_listens(void)
{
	size_t cm = 0, len = sizeof(cm);
	int n = 3;

	DO(fi_control(&pep->fid, FI_BACKLOG, &n));
	DO(fi_getopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &cm, &len));
	check(cm == 256, "FI_OPT_CM_DATA_SIZE");
	check(fi_setopt(&pep->fid, FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE, &cm,
			sizeof(cm)) == -FI_ENOPROTOOPT, "setopt pep");
}

/* A request that was read outlives the listener. */
static void accept_after_the_listener(struct sockaddr_in *at)
{
	struct fi_eq_cm_entry e;
	struct fid_ep *accepted;
	int s = request(at, &e);

	DO(fi_close(&pep->fid));
	accepted = accept_request(&e);
	check(next_event(&e) == FI_CONNECTED, "not connected");
	DO(fi_close(&accepted->fid));
	close(s);
}

/* Listeners, and callers that leave at every point. */
static int leaving(int fd)
{
	struct sockaddr_in at;
	int before;

	(void) fd;
	open_fabric("127.0.0.1", NULL, FI_SOURCE);
	at = listen_elsewhere();
	before = descriptors();
	leave_before_the_accept(&at);
	reset_before_the_answer(&at);
	close_unaccepted(&at);
	/* All descriptors are back: those of the callers that left are closed by the thread, which has
	 * answered a later request since. */
	printf("descriptors %d, before %d\n", descriptors(), before);
	check(descriptors() <= before + 2, "descriptors leak");
	too_much_data(&at);
	set_while_it_listens();
	accept_after_the_listener(&at);
	check(!refuse_bad, "a refused fi_reject has taken the request");
	puts("leaving: ok");
	fflush(stdout);
	DO(fi_close(&cq->fid));
	DO(fi_close(&domain->fid));
	DO(fi_close(&eq->fid));
	DO(fi_close(&fabric->fid));
	return 0;
}

/* Takes the call of an endpoint in, which must come from `own`; returns the socket. */
static int take_call(int listener, const struct sockaddr_in *own, const char *wrong)
{
	struct sockaddr_in seen;
	socklen_t len = sizeof(seen);
	int s = accept(listener, (struct sockaddr *) &seen, &len);

	DO(s);
	check(seen.sin_port == own->sin_port, wrong);
	return s;
}

/* An endpoint with the address of a passive one, which may get another address and listen there. */
static void call_from_passive(int l, struct sockaddr_in *at)
{
	struct sockaddr_in own, any, seen;
	size_t len = sizeof(own);
	struct fi_eq_cm_entry e;
	struct fid_ep *a, *b;
	struct fid_pep *listener;
	struct fi_info *i = fi_dupinfo(info);
	unsigned char req[REQUEST];
	int s, r;

	DO(fi_passive_ep(fabric, info, &listener, NULL));
	DO(fi_getname(&listener->fid, &own, &len));
	i->handle = &listener->fid;
	DO(fi_endpoint(domain, i, &a, NULL));
	len = sizeof(seen);
	r = fi_getname(&listener->fid, &seen, &len);
	printf("getname of a passive endpoint whose address is taken: %d\n", r);
	DO(fi_pep_bind(listener, &eq->fid, 0));
	check(fi_listen(listener) < 0, "a passive endpoint without an address listens");
	check(fi_endpoint(domain, i, &b, NULL) < 0, "an address is taken twice");
	DO(fi_ep_bind(a, &eq->fid, 0));
	DO(fi_ep_bind(a, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_connect(a, at, "hello", 6));
	s = take_call(l, &own, "the call is not from the passive endpoint's address");
	check(recv(s, req, REQUEST, MSG_WAITALL) == REQUEST && req[0] == 3 && req[1] == 0
			&& memcmp(req + 32, "hello", 6) == 0, "request");
	req[1] = 1, req[3] = 0, req[2] = 0;
	check(send(s, req, 32, 0) == 32, "send");
	check(next_event(&e) == FI_CONNECTED && e.fid == &a->fid, "not connected");
	any = own;
	any.sin_port = 0;
	DO(fi_setname(&listener->fid, &any, sizeof(any)));
	DO(fi_listen(listener));
	DO(fi_close(&listener->fid));
	close(s);
	check(next_event(&e) == FI_SHUTDOWN, "no shutdown");
	DO(fi_close(&a->fid));
	fi_freeinfo(i);
}

/* An active endpoint with an address of its own choice; its connection ends within an answer. */
static void call_from_own_address(int l, struct sockaddr_in *at)
{
	struct sockaddr_in own = *at;
	size_t len = sizeof(own);
	struct fi_eq_cm_entry e;
	struct fid_ep *a = new_ep(info);
	unsigned char req[32];
	uint32_t w;
	int s;

	own.sin_port = 0;
	DO(fi_setname(&a->fid, &own, sizeof(own)));
	DO(fi_getname(&a->fid, &own, &len));
	check(own.sin_port != 0, "no port");
	DO(fi_setname(&a->fid, &own, sizeof(own)));
	DO(fi_connect(a, at, NULL, 0));
	s = take_call(l, &own, "the call is not from the endpoint's address");
	check(fi_setname(&a->fid, &own, sizeof(own)) == -FI_EOPBADSTATE,
			"setname of a connected endpoint");
	check(recv(s, req, 32, MSG_WAITALL) == 32, "request");
	req[1] = 1;
	check(send(s, req, 16, 0) == 16, "send");
	close(s);
	w = next_event(&e);
	printf("half an answer: event %u\n", w);
	check(w > 1000 && e.fid == &a->fid, "wanted an error");
	DO(fi_close(&a->fid));
}

/* Endpoints whose addresses are a passive one's, and set by fi_setname. */
static int from_passive(int fd)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	(void) fd;
	DO(bind(l, (struct sockaddr *) &at, sizeof(at)));
	DO(listen(l, 8));
	DO(getsockname(l, (struct sockaddr *) &at, &len));
	open_fabric("127.0.0.1", NULL, FI_SOURCE);
	call_from_passive(l, &at);
	call_from_own_address(l, &at);
	DO(fi_close(&cq->fid));
	DO(fi_close(&domain->fid));
	DO(fi_close(&eq->fid));
	DO(fi_close(&fabric->fid));
	puts("from_passive: ok");
	fflush(stdout);
	return 0;
}

/* A listener without descriptors (muted) takes callers in as soon as there are some. */
static int muted_pipe[2];
static int held[4096], nheld;

static void *free_descriptors(void *arg)
{
	char line[4096];
	size_t have = 0;
	ssize_t n;

	(void) arg;
	while ((n = read(muted_pipe[0], line + have, sizeof(line) - 1 - have)) > 0) {
		have += (size_t) n;
		line[have] = 0;
		if (strstr(line, "cannot take a connection in"))
			break;
		if (have > 3000)
			have = 0;
	}
	while (nheld > 0)
		close(held[--nheld]);
	return NULL;
}

static int exhausted(int fd)
{
	struct rlimit few = { 200, 200 };
	struct sockaddr_in at;
	size_t len = sizeof(at);
	struct fi_eq_cm_entry e;
	pthread_t t;
	char ok = 1;
	int d;

	open_fabric("127.0.0.1", NULL, FI_SOURCE);
	DO(fi_passive_ep(fabric, info, &pep, NULL));
	DO(fi_pep_bind(pep, &eq->fid, 0));
	DO(fi_getname(&pep->fid, &at, &len));
	DO(fi_listen(pep));
	DO(pipe(muted_pipe));
	DO(dup2(muted_pipe[1], 2));
	DO(setrlimit(RLIMIT_NOFILE, &few));
	while ((d = dup(0)) >= 0)
		held[nheld++] = d;
	check(write(fd, &at, sizeof(at)) == sizeof(at), "gone");
	pthread_create(&t, NULL, free_descriptors, NULL);
	uint32_t w = next_event(&e);
	check(w == FI_CONNREQ, "no request after a shortage of descriptors");
	ep = new_ep(e.info);
	DO(fi_accept(ep, NULL, 0));
	check(next_event(&e) == FI_CONNECTED, "not connected");
	check(write(fd, &ok, 1) == 1 && read(fd, &ok, 1) == 1, "gone");
	pthread_join(t, NULL);
	puts("exhausted: ok");
	fflush(stdout);
	return 0;
}

static int one(int fd)
{
	struct sockaddr_in at;
	struct fi_eq_cm_entry e;
	char port[16], ok = 1;

	check(read(fd, &at, sizeof(at)) == sizeof(at), "server gone");
	snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
	open_fabric("127.0.0.1", port, 0);
	ep = new_ep(info);
	DO(fi_connect(ep, info->dest_addr, NULL, 0));
	check(next_event(&e) == FI_CONNECTED, "not connected");
	check(write(fd, &ok, 1) == 1 && read(fd, &ok, 1) == 1, "gone");
	return 0;
}

static void exhausted_case(void)
{
	int s, c, st;
	pid_t server = spawn_peer(exhausted, &s), caller = spawn_peer(one, &c);
	struct sockaddr_in at;
	char ok = 1;

	check(read(s, &at, sizeof(at)) == sizeof(at), "server gone");
	check(write(c, &at, sizeof(at)) == sizeof(at), "caller gone");
	check(read(s, &ok, 1) == 1, "server failed");
	check(read(c, &ok, 1) == 1, "caller failed");
	check(write(s, &ok, 1) == 1 && write(c, &ok, 1) == 1, "gone");
	check(waitpid(server, &st, 0) == server && st == 0, "server");
	check(waitpid(caller, &st, 0) == caller && st == 0, "caller");
}

static void alone(int (*f)(int))
{
	int fd, st;
	pid_t p = spawn_peer(f, &fd);

	check(waitpid(p, &st, 0) == p, "waitpid");
	check(st == 0, "a case failed");
	close(fd);
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc < 2 || !strcmp(argv[1], "leaving"))
		alone(leaving);
	if (argc < 2 || !strcmp(argv[1], "passive"))
		alone(from_passive);
	if (argc < 2 || !strcmp(argv[1], "backlog"))
		backlog_case();
	if (argc < 2 || !strcmp(argv[1], "exhausted"))
		exhausted_case();
	return 0;
}
