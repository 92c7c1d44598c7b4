/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * intruder [SECONDS]: a process of another user attacks two processes that exchange messages, and a
 * service endpoint.
 *
 * The intruder knows the source: the formats of datagrams and greetings, the ports, the address and
 * even the key of the registered memory, and the queue key of the service. It does not know the
 * addresses of the two processes, their tokens and verification tags. It sends datagrams of every
 * kind with guessed tokens, connects to the Unix sockets listed in /proc/net/unix, and asks the
 * service for admission. No memory may be read or written, every answer must be a refusal, and the
 * victims' memory and descriptors must not grow. A third endpoint, whose address it does know, has
 * to answer it, which shows that what it sends is understood. The cost to the message rate is
 * printed: phases of attack alternate with phases in which the same datagrams go to a socket
 * without a reader.
 */
#include "dice.h"
#include "two.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/un.h>

#define SIZE ((size_t) 1 << 16)
#define SECRET "this is nobody else's business! "
#define NOBODY 65534
#define PHASE 0.25
#define UDP 4
/* Of the format of datagrams (device/soft/packet.rs). */
#define VERSION 4
#define RESET 7
#define HELLO 9
#define WELCOME 10

/* What the intruder does: it waits, attacks by datagrams, sends them to the decoy, attacks by Unix
 * sockets, ends. */
enum phase { WAIT, ATTACK, DECOY, CONNECT, END };

/* What the intruder has, and its counts. */
struct known {
	volatile enum phase phase;
	volatile unsigned long sent, answered, refusals, welcomes, leaks, calls, understood;
	uint16_t ports[3];
	/* Queue key of the service, which is public. */
	uint32_t qkey;
	uint16_t decoy;
	uint64_t at, key;
	/* An address that is not secret, by which a caller is welcome. */
	unsigned char open_addr[32];
};

static struct known *known;

static void put(unsigned char *at, uint64_t v, int bytes)
{
	memcpy(at, &v, (size_t) bytes);
}

/* Makes a datagram of the software adapter, of random kind and with a wrong token. */
static size_t forge(unsigned char *d)
{
	struct timespec t;
	unsigned kind = 1 + (unsigned) (dice_bits() % 12);
	uint64_t tokens[] = { 0, 1, known->qkey, dice_bits(), dice_bits(), known->key };

	clock_gettime(CLOCK_MONOTONIC, &t);
	memset(d, 0, 128);
	put(d, 0x5efa, 2);
	d[2] = VERSION;
	d[3] = (unsigned char) (kind | (dice_bits() & 0x80));
	put(d + 4, (uint64_t) (t.tv_sec + 1) * 1000 + (uint64_t) t.tv_nsec / 1000000, 4);
	put(d + 8, tokens[dice_bits() % 6], 8);
	put(d + 16, dice_bits(), 8);
	put(d + 24, dice_bits() % 64, 4);
	put(d + 36, dice_bits(), 4);
	put(d + 40, dice_bits() % 2 ? known->qkey : dice_bits(), 4);
	put(d + 44, dice_bits(), 4);
	switch (kind) {
	case 2:
	case 3:
		put(d + 48, 1, 4);
		put(d + 52, 32, 4);
		put(d + 56, dice_bits() % 2 ? known->key : dice_bits(), 8);
		put(d + 64, known->at, 8);
		memset(d + 80, '!', 32);
		return 112;
	case 12:
		put(d + 48, 1, 4);
		put(d + 52, 30000, 4);
		put(d + 56, dice_bits() % 40000, 4);
		return 64 + dice_bits() % 64;
	case 4:
		put(d + 48, 1, 8);
		put(d + 56, dice_bits() % 2 ? known->key : dice_bits(), 8);
		put(d + 64, known->at, 8);
		put(d + 72, 4096, 4);
		return 80;
	default:
		return 48 + dice_bits() % 40;
	}
}

/* Makes the call of a process that has the address: its token, and its queue key as the tag. */
static void call(unsigned char *d)
{
	memset(d, 0, 48);
	put(d, 0x5efa, 2);
	d[2] = VERSION;
	d[3] = HELLO;
	memcpy(d + 8, known->open_addr + 24, 8);
	put(d + 16, dice_bits(), 8);
	put(d + 36, dice_bits(), 4);
	memcpy(d + 40, known->open_addr + 20, 4);
	put(d + 44, dice_bits(), 4);
}

static void datagrams(const int *sock, bool decoy)
{
	unsigned char d[128], answer[9000];
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_in from;
	socklen_t from_len = sizeof(from);
	uint16_t open_port;

	memcpy(&open_port, known->open_addr + 16, 2);
	if (!decoy && !known->understood) {
		call(d);
		to.sin_port = htons(open_port);
		sendto(sock[0], d, 48, MSG_DONTWAIT, (struct sockaddr *) &to, sizeof(to));
	}

	for (int i = 0; i < 64; i++) {
		int victim = (int) (dice_bits() % 3), s = sock[dice_bits() % UDP];
		size_t len = forge(d);
		ssize_t n;

		to.sin_port = htons(decoy ? known->decoy : known->ports[victim]);
		known->sent += sendto(s, d, len, MSG_DONTWAIT, (struct sockaddr *) &to, sizeof(to)) > 0;
		while ((n = recvfrom(s, answer, sizeof(answer), MSG_DONTWAIT, (struct sockaddr *) &from,
				     &from_len)) >= 0) {
			if (ntohs(from.sin_port) == open_port) {
				known->understood += n == 48 && (answer[3] & 0x7f) == WELCOME;
				continue;
			}
			known->answered++;
			known->refusals += n == 48 && (answer[3] & 0x7f) == RESET;
			known->welcomes += n >= 4 && (answer[3] & 0x7f) == WELCOME;
			known->leaks += memmem(answer, (size_t) n, SECRET, 16) != NULL;
		}
	}
}

/* Sends a greeting of the library, with a file descriptor, to a Unix socket. */
static void greet(const char *name, size_t len)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	int file = memfd_create("x", MFD_ALLOW_SEALING);
	unsigned char greeting[38], answer[256];
	struct iovec iov = { greeting, sizeof(greeting) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control,
			.msg_controllen = sizeof(control.bytes) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	struct pollfd p = { .fd = fd, .events = POLLIN };

	memcpy(to.sun_path, name, len);
	for (size_t i = 0; i < sizeof(greeting); i++)
		greeting[i] = (unsigned char) dice_bits();
	memcpy(greeting, "lfrshm05", 8);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &file, sizeof(file));
	if (ftruncate(file, 1 << 20) == 0 &&
	    connect(fd, (struct sockaddr *) &to,
		    (socklen_t) (offsetof(struct sockaddr_un, sun_path) + len)) == 0) {
		known->calls++;
		/* A ring's greeting of 38 bytes, or a request for admission of 34 bytes. */
		iov.iov_len = dice_bits() % 2 ? 38 : 34;
		m.msg_controllen = iov.iov_len == 38 ? m.msg_controllen : 0;
		if (sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) > 0 && poll(&p, 1, 5) > 0)
			known->welcomes += recv(fd, answer, sizeof(answer), MSG_DONTWAIT) > 0;
	}
	close(file);
	close(fd);
}

static void unix_sockets(void)
{
	char line[512];
	FILE *f = fopen("/proc/net/unix", "r");

	while (f && fgets(line, sizeof(line), f)) {
		char *at = strstr(line, "@libfabric-efa"), *end;
		size_t len;

		if (!at)
			continue;
		end = strchr(at, '\n');
		len = end ? (size_t) (end - at) : strlen(at);
		at[0] = 0;
		greet(at, len);
	}
	if (f)
		fclose(f);
}

static int intruder(int fd)
{
	int sock[UDP];
	char c;

	check(setgroups(0, NULL) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0
			&& setresuid(NOBODY, NOBODY, NOBODY) == 0,
	      "it cannot be another user");
	for (int i = 0; i < UDP; i++) {
		struct sockaddr_in me = { .sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (unsigned) i) };

		sock[i] = socket(AF_INET, SOCK_DGRAM, 0);
		check(sock[i] >= 0 && !bind(sock[i], (struct sockaddr *) &me, sizeof(me)),
				"a socket of the intruder");
	}
	check(write(fd, "x", 1) == 1, "write");
	while (known->phase != END)
		switch (known->phase) {
		case ATTACK:
		case DECOY:
			datagrams(sock, known->phase == DECOY);
			break;
		case CONNECT:
			unix_sockets();
			break;
		default:
			check(read(fd, &c, 1) == 1, "read");
		}
	return EXIT_SUCCESS;
}

/* Sends one message and receives one; the side that does not lead receives first. */
static void exchange(fi_addr_t to, bool leads)
{
	struct fi_cq_err_entry end;
	int ends = 0;
	bool sent = false;

	DO(fi_recv(ep, buf + 128, 8, NULL, FI_ADDR_UNSPEC, buf + 128));
	while (ends < 2) {
		if (!sent && leads) {
			long r = fi_send(ep, buf + 64, 8, NULL, to, NULL);

			check(!r || r == -FI_EAGAIN, "fi_send");
			sent = !r;
		}
		if (!read_completion(&end))
			continue;
		check(!end.err, "an operation of the conversation fails");
		ends++;
		leads |= end.op_context != NULL;
	}
}

static int other_side(int fd)
{
	struct hello me = open_all(SIZE), far;
	fi_addr_t to = meet(fd, &me, &far);

	memset(buf, 'B', 64);
	for (;;) {
		exchange(to, false);
		/* The last message begins with 'e'. */
		if (buf[128] == 'e')
			return EXIT_SUCCESS;
	}
}

/* An endpoint that is found by its number alone. */
static struct fid_ep *service(struct fid_cq *q, uint16_t port)
{
	struct fi_info *hints = fi_dupinfo(info), *found;
	struct fid_ep *e;
	char number[8];

	free(hints->src_addr);
	hints->src_addr = NULL;
	hints->src_addrlen = 0;
	snprintf(number, sizeof(number), "%u", port);
	DO(fi_getinfo(FI_VERSION(1, 21), NULL, number, FI_SOURCE, hints, &found));
	DO(fi_endpoint(domain, found, &e, NULL));
	DO(fi_ep_bind(e, &av->fid, 0));
	DO(fi_ep_bind(e, &q->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(e));
	fi_freeinfo(hints);
	fi_freeinfo(found);
	return e;
}

static uint16_t socket_port(int s)
{
	struct sockaddr_in a;
	socklen_t len = sizeof(a);

	check(getsockname(s, (struct sockaddr *) &a, &len) == 0, "getsockname");
	return ntohs(a.sin_port);
}

static int any_socket(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	check(s >= 0 && !bind(s, (struct sockaddr *) &a, sizeof(a)), "a socket");
	return s;
}

/* The message rates of the phases of one kind, per second. */
struct rates {
	double *all;
	int n;
};

static double mean(const struct rates *r)
{
	double sum = 0;

	for (int i = 0; i < r->n; i++)
		sum += r->all[i];
	return r->n ? sum / r->n : 0;
}

/* The further endpoints of this process, and their queue. */
static struct fid_cq *queue;
static struct fid_ep *found_by_number, *open_to_all;

/* Opens the service, and the endpoint whose address the intruder is told. */
static void open_services(void)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	size_t len = sizeof(known->open_addr);
	int probe = any_socket();

	DO(fi_cq_open(domain, &ca, &queue, NULL));
	known->ports[2] = socket_port(probe);
	close(probe);
	found_by_number = service(queue, known->ports[2]);
	DO(fi_endpoint(domain, info, &open_to_all, NULL));
	DO(fi_ep_bind(open_to_all, &av->fid, 0));
	DO(fi_ep_bind(open_to_all, &queue->fid, FI_TRANSMIT | FI_RECV));
	DO(fi_enable(open_to_all));
	DO(fi_getname(&open_to_all->fid, known->open_addr, &len));
}

/* Tells the intruder what it knows of the two processes, and writes the secret. */
static void tell_intruder(const struct hello *me, const struct hello *far)
{
	known->decoy = socket_port(any_socket());
	for (size_t i = 1024; i + 32 <= SIZE; i += 32)
		memcpy(buf + i, SECRET, 32);
	/* An address: 16 bytes of gid, then port and key. */
	memcpy(&known->ports[0], me->addr + 16, 2);
	memcpy(&known->ports[1], far->addr + 16, 2);
	known->qkey = 0x0efa0000u | known->ports[2];
	known->at = me->at + 1024;
	known->key = me->key;
}

static void begin_phase(int to_intruder, enum phase phase)
{
	known->phase = phase;
	check(write(to_intruder, "x", 1) == 1, "the intruder is gone");
}

/* Exchanges messages for so long, while the intruder goes through its phases. Returns how many. */
static unsigned long exchange_under_attack(double seconds, int to_intruder, fi_addr_t to,
		struct rates rates[2])
{
	double end = now_s() + seconds;
	unsigned long messages = 0;

	for (int turn = 0; now_s() < end; turn++) {
		enum phase phase = ATTACK + turn % 3;
		double begun = now_s(), until = begun + PHASE;
		unsigned long count = 0;

		begin_phase(to_intruder, phase);
		while (now_s() < until) {
			struct fi_cq_data_entry e;

			exchange(to, true);
			check(fi_cq_read(queue, &e, 1) == -FI_EAGAIN, "an attacker has reached the service");
			count++;
		}
		if (phase != CONNECT) {
			struct rates *r = &rates[phase - ATTACK];

			r->all[r->n++] = (double) count / (now_s() - begun);
		}
		messages += count;
	}
	return messages;
}

static void report(unsigned long messages, const struct rates rates[2])
{
	double attacked = mean(&rates[0]), left_alone = mean(&rates[1]);

	printf("%lu datagrams, %lu calls; %lu answers, %lu of them refusals; %lu welcomes, %lu leaks\n",
			known->sent, known->calls, known->answered, known->refusals, known->welcomes,
			known->leaks);
	printf("%lu messages and back; while it attacks %.0f a second, while it sends elsewhere %.0f: "
			"%.3f\n", messages, attacked, left_alone, attacked / left_alone);
}

static void check_refused(void)
{
	check(known->sent > 100 && known->calls > 0, "the intruder did nothing");
	check(known->understood > 0, "not even an honest call was understood");
	check(known->answered == known->refusals && !known->welcomes && !known->leaks,
			"the intruder was let in");
	for (size_t i = 1024; i + 32 <= SIZE; i += 32)
		check(!memcmp(buf + i, SECRET, 32), "the intruder has written");
}

static void ends_well(pid_t pid, const char *failed)
{
	int status;

	check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && !WEXITSTATUS(status), failed);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 4;
	struct rates rates[2] = { 0 };
	struct hello me, far;
	unsigned long messages;
	pid_t other, bad;
	int fd, to_intruder, fds;
	fi_addr_t to;
	long kib;
	char c;

	if (geteuid()) {
		printf("not root, no other user to be: left out\n");
		return EXIT_SUCCESS;
	}
	for (int i = 0; i < 2; i++)
		rates[i].all = calloc((size_t) (seconds / PHASE) + 8, sizeof(double));
	known = mmap(NULL, sizeof(*known), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(known != MAP_FAILED, "mmap");
	bad = spawn_peer(intruder, &to_intruder);
	other = spawn_peer(other_side, &fd);
	me = open_all(SIZE);
	to = meet(fd, &me, &far);
	open_services();
	tell_intruder(&me, &far);
	check(read(to_intruder, &c, 1) == 1, "the intruder does not begin");
	for (int i = 0; i < 1000; i++)
		exchange(to, true);
	kib = resident_kib();
	fds = descriptors();
	messages = exchange_under_attack(seconds, to_intruder, to, rates);
	begin_phase(to_intruder, END);
	ends_well(bad, "the intruder failed");
	buf[64] = 'e';
	exchange(to, true);
	report(messages, rates);
	printf("%ld KiB before, %ld after; descriptors %d, %d\n", kib, resident_kib(), fds, descriptors());
	check_refused();
	check(resident_kib() < kib + 4096, "memory grows");
	check(descriptors() <= fds, "descriptors are left");
	ends_well(other, "the other side failed");
	DO(fi_close(&open_to_all->fid));
	DO(fi_close(&found_by_number->fid));
	DO(fi_close(&queue->fid));
	close_all();
	return EXIT_SUCCESS;
}
