/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A server that is killed and started again with the same service number, while its client goes
 * on with the address that it has: what was under way ends, and later messages reach the new
 * server.
 *
 * restart efa|tcp [HOST [same|resolve|renew|renew-other]]
 */
#include "two.h"

enum { ROUNDS = 6, BURST = 40, LONG = 1 << 20, TRIES = 400 };

struct hello2 {
	uint32_t gen, len;
	char addr[64];
};

static const char *host = "127.0.0.1";
static char *self_path;
/* Messages to send; the receive buffer of answers; errors so far. */
static char *big, in[8];
static int errors;

static void open_at(const char *node, const char *service, uint64_t flags, struct fi_info **with)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };

	hints->caps = FI_MSG;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->ep_attr->type = FI_EP_RDM;
	hints->fabric_attr->prov_name = strdup(provider);
	hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
	if (!strcmp(provider, "efa"))
		hints->fabric_attr->name = strdup("efa");
	else
		hints->addr_format = FI_SOCKADDR_IN;
	DO(fi_getinfo(FI_VERSION(1, 21), node, service, flags, hints, &info));
	fi_freeinfo(hints);
	if (with)
		*with = info;
	DO(fi_fabric(info->fabric_attr, &fabric, NULL));
	DO(fi_domain(fabric, info, &domain, NULL));
	DO(fi_av_open(domain, &aa, &av, NULL));
	DO(fi_cq_open(domain, &ca, &cq, NULL));
	DO(fi_endpoint(domain, info, &ep, NULL));
	DO(fi_ep_bind(ep, &av->fid, 0));
	DO(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(ep));
}

/* restart server PROVIDER HOST SERVICE GEN FD */
static int server(char **argv)
{
	struct hello2 me = { 0 }, *message;
	size_t len = sizeof(me.addr);
	struct fi_cq_err_entry end;
	int fd = atoi(argv[6]);
	char *at = calloc(1, LONG), reply[8];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (strcmp(argv[2], "-"))
		provider = argv[2];
	open_at(argv[3], argv[4][0] == '0' ? NULL : argv[4], FI_SOURCE, NULL);
	DO(fi_getname(&ep->fid, me.addr, &len));
	me.len = (uint32_t) len;
	me.gen = (uint32_t) atoi(argv[5]);
	DO(fi_recv(ep, at, LONG, NULL, FI_ADDR_UNSPEC, at));
	check(write(fd, &me, sizeof(me)) == sizeof(me), "client gone");
	for (;;) {
		fi_addr_t to;

		if (!read_completion(&end))
			continue;
		if (end.err) {
			printf("server: error %d\n", end.err);
			continue;
		}
		if (end.op_context != at)
			continue;
		message = (void *) at;
		check(fi_av_insert(av, message->addr, 1, &to, 0, NULL) == 1, "insert");
		memcpy(reply, &me.gen, 4);
		memcpy(reply + 4, &message->gen, 4);
		while (fi_inject(ep, reply, 8, to) == -FI_EAGAIN)
			(void) fi_cq_read(cq, NULL, 0);
		DO(fi_recv(ep, at, LONG, NULL, FI_ADDR_UNSPEC, at));
	}
}

static pid_t start_server(const char *service, int gen, struct hello2 *it)
{
	int pair[2];
	pid_t child;
	char fd[16], g[16];

	check(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
	snprintf(fd, sizeof(fd), "%d", pair[1]);
	snprintf(g, sizeof(g), "%d", gen);
	child = fork();
	if (child == 0) {
		close(pair[0]);
		execl(self_path, "restart", "server", provider, host, service, g, fd, NULL);
		_exit(99);
	}
	close(pair[1]);
	check(read(pair[0], it, sizeof(*it)) == sizeof(*it), "the server did not start");
	close(pair[0]);
	return child;
}

static void kill_server(pid_t p)
{
	int st;

	kill(p, SIGKILL);
	check(waitpid(p, &st, 0) == p, "waitpid");
}

/* The number of a free port: the first server takes any, later ones the same. */
static void find_service(char *service, size_t size)
{
	struct hello2 it;
	pid_t p = start_server("0", 0, &it);
	/* The port of a socket address is in network byte order. */
	const unsigned char *at = (const unsigned char *) it.addr;
	int port = strcmp(provider, "tcp") ? at[17] << 8 | at[16] : at[2] << 8 | at[3];

	snprintf(service, size, "%d", port);
	kill_server(p);
}

/*
 * The client gets the new server's address (fi_getname) by other means, removes the old one and
 * inserts the new one: the next message reaches the new server. `other`: it inserts another address
 * meanwhile.
 */
static int renew(int other)
{
	struct hello2 it, me = { 0 };
	char service[16];
	size_t len = sizeof(me.addr);
	struct fi_cq_err_entry end;
	fi_addr_t to;
	pid_t p;
	double t;

	find_service(service, sizeof(service));
	p = start_server(service, 0, &it);
	open_at(NULL, NULL, 0, NULL);
	big = calloc(1, 256);
	DO(fi_getname(&ep->fid, me.addr, &len));
	me.len = (uint32_t) len;
	DO(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
	for (int round = 0; round < 4; round++) {
		int replied = 0, tries = 0, sent = 0;

		DO(fi_av_insert(av, it.addr, 1, &to, 0, NULL) - 1);
		me.gen = (uint32_t) round;
		memcpy(big, &me, sizeof(me));
		t = now_s();
		while (!replied || !sent) {
			check(now_s() < t + 8, "the new server is not reached");
			if (sent == 0) {
				ssize_t r = fi_send(ep, big, 200, NULL, to, big);
				if (r == 0)
					sent = 1, tries++;
				else
					check(r == -FI_EAGAIN, "fi_send");
			}
			if (!read_completion(&end))
				continue;
			if (end.op_context == in) {
				replied = 1;
				DO(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
			} else if (end.err) {
				char text[300];
				if (tries < 4)
					printf("round %d: %s\n", round, fi_cq_strerror(cq, end.prov_errno, end.err_data, text,
							sizeof(text)));
				sent = 0;
				if (other) {
					fi_addr_t own;
					DO(fi_av_insert(av, me.addr, 1, &own, 0, NULL) - 1);
				}
			}
		}
		printf("round %d: %d tries\n", round, tries);
		kill_server(p);
		p = start_server(service, round + 1, &it);
		DO(fi_av_remove(av, &to, 1, 0));
	}
	kill_server(p);
	puts("ok");
	return 0;
}

/* Takes the completions of message `id`: of the send and, if it was delivered, of the answer.
 * Returns whether the answer came. */
static int answered(int round, uint32_t id, int log)
{
	struct fi_cq_err_entry end;
	int replied = 0, ended = 0;
	double t = now_s();

	while (!ended || (ended == 1 && !replied)) {
		check(now_s() < t + 20, ended ? "a delivered message is not answered" : "a send never ends");
		if (!read_completion(&end))
			continue;
		if (end.op_context == in) {
			uint32_t w[2];

			check(end.err == 0, "receive failed");
			memcpy(w, in, 8);
			check(w[0] == (uint32_t) round, "the answer of another server");
			if (w[1] == id)
				replied = 1;
			else
				printf("late answer to %u\n", w[1]);
			DO(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
			continue;
		}
		check(end.op_context == big && !ended, "another completion");
		ended = end.err ? 2 : 1;
		if (end.err) {
			char text[400];

			if (log)
				printf("round %d: %s: %s\n", round, fi_strerror(end.err),
						fi_cq_strerror(cq, end.prov_errno, end.err_data, text, sizeof(text)));
			errors++;
		}
	}
	return replied;
}

/* Sends messages until one is answered by the server of this round. */
static void reach(int round, struct hello2 *me, fi_addr_t to)
{
	static uint32_t id;
	struct fi_cq_err_entry end;
	int replied = 0, tries = 0;
	double t = now_s();

	while (!replied) {
		double t1 = now_s();
		ssize_t r;

		if (tries >= TRIES || now_s() > t + 30)
			printf("%d tries, %.1f s\n", tries, now_s() - t);
		check(tries++ < TRIES && now_s() < t + 30, "the new server is not reached");
		me->gen = ++id;
		memcpy(big, me, sizeof(*me));
		while ((r = fi_send(ep, big, 200, NULL, to, big)) == -FI_EAGAIN) {
			if (read_completion(&end)) {
				printf("round %d: stray completion %p err %d\n", round, end.op_context, end.err);
				exit(1);
			}
			check(now_s() < t1 + 20, "EAGAIN for ever");
		}
		if (r) {
			errors++;
			if (tries < 3)
				printf("round %d: fi_send: %s\n", round, fi_strerror((int) -r));
			continue;
		}
		replied = answered(round, id, tries < 3);
	}
	printf("round %d: reached after %d tries, %.2f s\n", round, tries, now_s() - t);
}

/* The server stops in the middle of long messages, and is killed. Returns the new one. */
static pid_t stop_within_messages(int round, pid_t p, const char *service, struct hello2 *it,
		fi_addr_t to)
{
	struct fi_cq_err_entry end;
	int posted = 0, done = 0, failed = 0, st;
	double t;

	kill(p, SIGSTOP);
	check(waitpid(p, &st, WUNTRACED) == p, "stop");
	for (; posted < BURST; posted++) {
		char *at = big + posted * LONG;

		if (fi_send(ep, at, posted & 1 ? LONG : 4000, NULL, to, at))
			break;
	}
	kill_server(p);
	p = start_server(service, round + 1, it);
	t = now_s();
	while (done < posted) {
		check(now_s() < t + 20, "sends to a killed server never end");
		if (!read_completion(&end))
			continue;
		if (end.op_context == in) {	/* the new one may have got some */
			DO(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
			continue;
		}
		done++;
		failed += end.err != 0;
	}
	printf("round %d: %d of %d failed, %.2f s\n", round, failed, posted, now_s() - t);
	return p;
}

/* A message while there is no server. */
static void send_to_none(int round, fi_addr_t to)
{
	struct fi_cq_err_entry end;
	double t = now_s();
	ssize_t r = fi_send(ep, big, 200, NULL, to, big);

	if (r) {
		printf("round %d: to no server: fi_send %s\n", round, fi_strerror((int) -r));
		return;
	}
	while (!read_completion(&end))
		check(now_s() < t + 20, "a send to no peer never ends");
	check(end.err != 0, "a send to no peer succeeded");
	printf("round %d: to no server: %s, %.2f s\n", round, fi_strerror(end.err), now_s() - t);
}

/* Opens the endpoint, and inserts the address that fi_getinfo returns for the service. */
static fi_addr_t open_client(const char *service, const struct hello2 *it)
{
	struct fi_info *i;
	fi_addr_t to;
	int differs;

	open_at(host, service, 0, &i);
	check(i->dest_addr != NULL, "no dest_addr");
	differs = memcmp(i->dest_addr, it->addr, it->len < i->dest_addrlen ? it->len : i->dest_addrlen);
	printf("dest_addr %s getname\n", differs ? "differs from" : "equals");
	DO(fi_av_insert(av, i->dest_addr, 1, &to, 0, NULL) - 1);
	return to;
}

int main(int argc, char **argv)
{
	struct hello2 it, me = { 0 };
	char service[16];
	size_t len = sizeof(me.addr);
	fi_addr_t to;
	pid_t p;
	int resolve;

	setvbuf(stdout, NULL, _IONBF, 0);
	setenv("FI_EFA_SOFT_TIMEOUT_MS", "1500", 0);
	self_path = "/proc/self/exe";
	if (argc > 1 && !strcmp(argv[1], "server"))
		return server(argv);
	if (argc > 1)
		provider = argv[1];
	if (argc > 2)
		host = argv[2];
	if (argc > 3 && !strncmp(argv[3], "renew", 5))
		return renew(!strcmp(argv[3], "renew-other"));
	resolve = argc > 3 && !strcmp(argv[3], "resolve");
	find_service(service, sizeof(service));
	printf("service %s\n", service);
	p = start_server(service, 0, &it);
	to = open_client(service, &it);
	DO(fi_getname(&ep->fid, me.addr, &len));
	me.len = (uint32_t) len;
	big = calloc(BURST, LONG);
	DO(fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
	for (int round = 0; round < ROUNDS; round++) {
		reach(round, &me, to);
		if (round == ROUNDS - 1)
			break;
		if (round % 3 == 1) {
			p = stop_within_messages(round, p, service, &it, to);
		} else {
			kill_server(p);
			if (round % 3 == 2)
				send_to_none(round, to);
			p = start_server(service, round + 1, &it);
		}
		if (resolve) {
			DO(fi_av_remove(av, &to, 1, 0));
			DO(fi_av_insert(av, it.addr, 1, &to, 0, NULL) - 1);
		}
	}
	kill_server(p);
	printf("ok, %d errors\n", errors);
	return 0;
}
