/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * fi_info: what fi_getinfo(3) offers. Options and text are those of libfabric's fi_info, plus
 * --why (the reason for every candidate that was rejected) and --json.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_ext.h>

struct name {
	const char *text;
	uint64_t value;
};
#define N(x) { #x, x }

static const struct name CAPS[] = {
	N(FI_MSG), N(FI_RMA), N(FI_TAGGED), N(FI_ATOMIC), N(FI_MULTICAST), N(FI_COLLECTIVE), N(FI_READ),
	N(FI_WRITE), N(FI_RECV), N(FI_SEND), N(FI_REMOTE_READ), N(FI_REMOTE_WRITE), N(FI_MULTI_RECV),
	N(FI_REMOTE_CQ_DATA), N(FI_MORE), N(FI_PEEK), N(FI_TRIGGER), N(FI_FENCE), N(FI_RMA_PMEM),
	N(FI_SOURCE_ERR), N(FI_LOCAL_COMM), N(FI_REMOTE_COMM), N(FI_SHARED_AV), N(FI_RMA_EVENT),
	N(FI_SOURCE), N(FI_NAMED_RX_CTX), N(FI_DIRECTED_RECV), N(FI_HMEM), { NULL, 0 },
};
static const struct name MODES[] = {
	N(FI_CONTEXT), N(FI_CONTEXT2), N(FI_MSG_PREFIX), N(FI_ASYNC_IOV), N(FI_RX_CQ_DATA), { NULL, 0 },
};
static const struct name TYPES[] = {
	N(FI_EP_UNSPEC), N(FI_EP_MSG), N(FI_EP_DGRAM), N(FI_EP_RDM), { NULL, 0 },
};
static const struct name FORMATS[] = {
	N(FI_FORMAT_UNSPEC), N(FI_SOCKADDR), N(FI_SOCKADDR_IN), N(FI_SOCKADDR_IN6), N(FI_SOCKADDR_IB),
	N(FI_ADDR_MLX), N(FI_ADDR_STR), N(FI_ADDR_PSMX2), N(FI_ADDR_EFA), { NULL, 0 },
};

static int lookup(const char *what, const struct name *table, const char *text, uint64_t *value)
{
	for (; table->text; table++)
		if (strcasecmp(table->text, text) == 0) {
			*value |= table->value;
			return 0;
		}
	fprintf(stderr, "error: Unrecognized %s: %s\n", what, text);
	return -FI_EINVAL;
}

static int lookup_all(const char *what, const struct name *table, char *text, uint64_t *value)
{
	for (char *t = strtok(text, "|"); t; t = strtok(NULL, "|"))
		if (lookup(what, table, t, value))
			return -FI_EINVAL;
	return 0;
}

static const char *kind(enum fi_param_type t)
{
	switch (t) {
	case FI_PARAM_STRING: return "String";
	case FI_PARAM_INT: return "Integer";
	case FI_PARAM_SIZE_T: return "size_t";
	case FI_PARAM_BOOL: return "Boolean (0/1, on/off, true/false, yes/no)";
	default: return "Unknown";
	}
}

static int print_env(const char *part)
{
	struct fi_param *params;
	int count, ret = fi_getparams(&params, &count);

	if (ret)
		return ret;
	for (int i = 0; i < count; i++) {
		if (part && !strcasestr(params[i].name, part))
			continue;
		printf("# %s: %s\n# %s\n", params[i].name, kind(params[i].type), params[i].help_string);
		if (params[i].value) {
			const char *quote = strchr(params[i].value, ' ') ? "\"" : "";

			printf("%s=%s%s%s\n", params[i].name, quote, params[i].value, quote);
		}
		printf("\n");
	}
	fi_freeparams(params);
	return 0;
}

static void json_string(const char *key, const char *s, const char *end)
{
	printf("\"%s\": ", key);
	if (!s) {
		printf("null%s", end);
		return;
	}
	putchar('"');
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			printf("\\%c", *s);
		else if ((unsigned char) *s < 0x20)
			printf("\\u%04x", (unsigned char) *s);
		else
			putchar(*s);
	}
	printf("\"%s", end);
}

static void print_json(struct fi_info *list)
{
	printf("[");
	for (struct fi_info *i = list; i; i = i->next) {
		struct fi_device_attr *d = i->nic ? i->nic->device_attr : NULL;
		struct fi_link_attr *l = i->nic ? i->nic->link_attr : NULL;

		printf("%s\n  {", i == list ? "" : ",");
		json_string("provider", i->fabric_attr->prov_name, ", ");
		json_string("fabric", i->fabric_attr->name, ", ");
		json_string("domain", i->domain_attr->name, ",\n   ");
		printf("\"version\": \"%u.%u\", ", FI_MAJOR(i->fabric_attr->prov_version),
		       FI_MINOR(i->fabric_attr->prov_version));
		json_string("type", fi_tostr(&i->ep_attr->type, FI_TYPE_EP_TYPE), ", ");
		json_string("protocol", fi_tostr(&i->ep_attr->protocol, FI_TYPE_PROTOCOL), ",\n   ");
		json_string("caps", fi_tostr(&i->caps, FI_TYPE_CAPS), ",\n   ");
		json_string("mode", fi_tostr(&i->mode, FI_TYPE_MODE), ", ");
		json_string("mr_mode", fi_tostr(&i->domain_attr->mr_mode, FI_TYPE_MR_MODE), ",\n   ");
		json_string("addr_format", fi_tostr(&i->addr_format, FI_TYPE_ADDR_FORMAT), ", ");
		json_string("threading", fi_tostr(&i->domain_attr->threading, FI_TYPE_THREADING), ", ");
		json_string("progress", fi_tostr(&i->domain_attr->progress, FI_TYPE_PROGRESS), ",\n   ");
		printf("\"max_msg_size\": %zu, \"inject_size\": %zu, \"tx_size\": %zu, \"rx_size\": %zu,\n   ",
		       i->ep_attr->max_msg_size, i->tx_attr->inject_size, i->tx_attr->size, i->rx_attr->size);
		json_string("nic", d ? d->name : NULL, ", ");
		json_string("driver", d ? d->driver : NULL, ", ");
		printf("\"mtu\": %zu, \"speed\": %zu}", l ? l->mtu : (size_t) 0, l ? l->speed : (size_t) 0);
	}
	printf("\n]\n");
}

static void print_short(struct fi_info *list, int providers)
{
	for (struct fi_info *i = list; i; i = i->next) {
		uint32_t v = i->fabric_attr->prov_version;

		if (providers) {
			printf("%s:\n    version: %u.%u\n", i->fabric_attr->prov_name, FI_MAJOR(v), FI_MINOR(v));
			continue;
		}
		printf("provider: %s\n    fabric: %s\n    domain: %s\n    version: %u.%u\n",
		       i->fabric_attr->prov_name, i->fabric_attr->name, i->domain_attr->name, FI_MAJOR(v),
		       FI_MINOR(v));
		printf("    type: %s\n", fi_tostr(&i->ep_attr->type, FI_TYPE_EP_TYPE));
		printf("    protocol: %s\n", fi_tostr(&i->ep_attr->protocol, FI_TYPE_PROTOCOL));
	}
}

static void print_long(struct fi_info *list, const char *part)
{
	static char text[16384];

	for (struct fi_info *i = list; i; i = i->next) {
		fi_tostr_r(text, sizeof(text), i, FI_TYPE_INFO);
		if (!part || strcasestr(text, part))
			printf("---\n%s", text);
	}
}

/* ---- --why: the library's own lines about rejected candidates, by fi_import_log ---- */

static int why_enabled(const struct fi_provider *prov, enum fi_log_level level,
		       enum fi_log_subsys subsys, uint64_t flags)
{
	(void) prov, (void) subsys, (void) flags;
	return level <= FI_LOG_INFO;
}

static int why_ready(const struct fi_provider *prov, enum fi_log_level level,
		     enum fi_log_subsys subsys, uint64_t flags, uint64_t *showtime)
{
	(void) showtime;
	return why_enabled(prov, level, subsys, flags);
}

static void why_log(const struct fi_provider *prov, enum fi_log_level level,
		    enum fi_log_subsys subsys, const char *func, int line, const char *msg)
{
	static char last[1024];

	(void) prov, (void) level, (void) subsys, (void) func, (void) line;
	/* Infos of one adapter may lack the same for the same reason. */
	if (strncmp(last, msg, sizeof(last) - 1))
		fprintf(stderr, "why: %s", msg);
	snprintf(last, sizeof(last), "%s", msg);
}

static struct fi_ops_log why_ops = { sizeof(why_ops), why_enabled, why_ready, why_log };
static struct fid_logging why_fid = { { 0, NULL, NULL }, &why_ops };

/* Lists the providers when none has the wanted name. */
static void say_providers(const char *wanted)
{
	struct fi_info *list = NULL;
	int found = 0;

	if (fi_getinfo(fi_version(), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &list))
		return;
	for (struct fi_info *i = list; i; i = i->next)
		found |= strcasestr(wanted, i->fabric_attr->prov_name) != NULL;
	if (!found) {
		fprintf(stderr, "no provider %s here; there is:", wanted);
		for (struct fi_info *i = list; i; i = i->next)
			fprintf(stderr, "%s %s", i == list ? "" : ",", i->fabric_attr->prov_name);
		fprintf(stderr, "\n");
	}
	fi_freeinfo(list);
}

static void usage(void)
{
	printf("Usage: fi_info [OPTIONS]\n"
	       "  -h, --help\t\t\tdisplay this help and exit\n"
	       "  -s, --src_addr=ADDR\t\tsource name or address\n"
	       "  -n, --node=NAME\t\tdest node name or address\n"
	       "  -P, --port=PNUM\t\tport number\n"
	       "  -c, --caps=CAP1|CAP2..\tone or more capabilities: FI_MSG|FI_RMA...\n"
	       "  -m, --mode=MOD1|MOD2..\tone or more modes, default all modes\n"
	       "  -t, --ep_type=EPTYPE\t\tspecify single endpoint type: FI_EP_MSG, FI_EP_DGRAM...\n"
	       "  -d, --domain=DOMAIN\t\tspecify the domain name\n"
	       "  -f, --fabric=FABRIC\t\tspecify the fabric name\n"
	       "  -a, --addr_format=FMT\t\tspecify accepted address format: FI_FORMAT_UNSPEC, "
	       "FI_SOCKADDR...\n"
	       "  -p, --provider=PROV\t\tspecify provider explicitly\n"
	       "  -e, --env\t\t\tprint libfabric environment variables\n"
	       "  -g, --getenv=SUBSTR\t\tprint libfabric environment variables with substr\n"
	       "  -i, --info=SUBSTR\t\tprint fi_info structures containing substr\n"
	       "  -l, --list\t\t\tlist available libfabric providers\n"
	       "  -v, --verbose\t\t\tverbose output\n"
	       "      --version\t\t\tprint version info and exit\n"
	       "      --why\t\t\tprint why candidates were rejected\n"
	       "      --json\t\t\tprint as JSON\n");
}

static void replace(char **text, const char *by)
{
	free(*text);
	*text = strdup(by);
}

int main(int argc, char **argv)
{
	enum { VERSION = 1, WHY, JSON };
	static const struct option longs[] = {
		{ "help", 0, 0, 'h' }, { "src_addr", 1, 0, 's' }, { "node", 1, 0, 'n' }, { "port", 1, 0, 'P' },
		{ "caps", 1, 0, 'c' }, { "mode", 1, 0, 'm' }, { "ep_type", 1, 0, 't' }, { "domain", 1, 0, 'd' },
		{ "fabric", 1, 0, 'f' }, { "addr_format", 1, 0, 'a' }, { "provider", 1, 0, 'p' },
		{ "env", 0, 0, 'e' }, { "getenv", 1, 0, 'g' }, { "info", 1, 0, 'i' }, { "list", 0, 0, 'l' },
		{ "verbose", 0, 0, 'v' }, { "version", 0, 0, VERSION }, { "why", 0, 0, WHY },
		{ "json", 0, 0, JSON }, { 0, 0, 0, 0 },
	};
	struct fi_info *hints = fi_allocinfo(), *list = NULL;
	const char *node = NULL, *port = NULL, *part = NULL;
	int env = 0, providers = 0, verbose = 0, json = 0, use = 0, c, ret;
	uint64_t flags = 0, v;

	if (!hints)
		return EXIT_FAILURE;
	hints->mode = ~0ULL;
	hints->domain_attr->mode = ~0ULL;
	hints->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE);
	while ((c = getopt_long(argc, argv, "s:n:P:c:m:t:a:p:d:f:eg:i:lhv", longs, NULL)) != -1) {
		switch (c) {
		case 's': node = optarg; flags |= FI_SOURCE; break;
		case 'n': node = optarg; break;
		case 'P': port = optarg; break;
		case 'c':
			if (lookup_all("capability", CAPS, optarg, &hints->caps))
				return EXIT_FAILURE;
			use = 1;
			break;
		case 'm':
			hints->mode = 0;
			if (lookup_all("mode", MODES, optarg, &hints->mode))
				return EXIT_FAILURE;
			use = 1;
			break;
		case 't':
			v = 0;
			if (lookup("endpoint type", TYPES, optarg, &v))
				return EXIT_FAILURE;
			hints->ep_attr->type = (enum fi_ep_type) v;
			use = 1;
			break;
		case 'a':
			v = 0;
			if (lookup("address format", FORMATS, optarg, &v))
				return EXIT_FAILURE;
			hints->addr_format = (uint32_t) v;
			use = 1;
			break;
		case 'p':
			replace(&hints->fabric_attr->prov_name, optarg);
			use = 1;
			break;
		case 'd':
			replace(&hints->domain_attr->name, optarg);
			use = 1;
			break;
		case 'f':
			replace(&hints->fabric_attr->name, optarg);
			use = 1;
			break;
		case 'g': part = optarg; env = 1; break;
		case 'e': env = 1; break;
		case 'i': part = optarg; verbose = 1; break;
		case 'l': providers = 1; flags |= FI_PROV_ATTR_ONLY; break;
		case 'v': verbose = 1; break;
		case VERSION:
			printf("%s: %s\nlibfabric: %s\nlibfabric api: %d.%d\n", argv[0],
			       fi_tostr("1", FI_TYPE_VERSION), fi_tostr("1", FI_TYPE_VERSION),
			       FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
			return EXIT_SUCCESS;
		case WHY:
			ret = fi_import_log(fi_version(), 0, &why_fid);
			if (ret)
				fprintf(stderr, "--why: %s\n", fi_strerror(-ret));
			break;
		case JSON: json = 1; break;
		default:
			usage();
			return c == 'h' ? EXIT_SUCCESS : EXIT_FAILURE;
		}
	}
	ret = fi_getinfo(fi_version(), node, port, flags, use ? hints : NULL, &list);
	if (ret && !env) {
		fprintf(stderr, "fi_getinfo: %d (%s)\n", ret, fi_strerror(-ret));
		if (ret == -FI_ENODATA && hints->fabric_attr->prov_name)
			say_providers(hints->fabric_attr->prov_name);
	} else if (env)
		ret = print_env(part);
	else if (json)
		print_json(list);
	else if (verbose)
		print_long(list, part);
	else
		print_short(list, providers);
	fi_freeinfo(list);
	fi_freeinfo(hints);
	return -ret;
}
