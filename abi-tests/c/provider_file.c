/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * provider_file [FILE]: loads libefa-fi.so as a C libfabric does (fi_provider(3)). This program is
 * the host: the provider's log lines and parameters must come here. The infos have no provider name
 * yet; an endpoint sends a message to itself.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#include <rdma/providers/fi_log.h>
#include "alone.h"
#include <rdma/providers/fi_prov.h>

static struct fi_provider *provider;
static int lines, defined, asked;

__attribute__((visibility("default")))
int fi_log_enabled(const struct fi_provider *prov, enum fi_log_level level,
		enum fi_log_subsys subsys)
{
	(void) subsys;
	TRUE(!strcmp(prov->name, "efa"));
	return level <= FI_LOG_INFO;
}

__attribute__((visibility("default")))
void fi_log(const struct fi_provider *prov, enum fi_log_level level, enum fi_log_subsys subsys,
		const char *func, int line, const char *format, ...)
{
	char text[1024];
	va_list args;

	(void) level, (void) subsys, (void) line;
	TRUE(!strcmp(prov->name, "efa") && *func);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	TRUE(text[strlen(text) - 1] == '\n');
	lines++;
}

__attribute__((visibility("default")))
int fi_param_define(const struct fi_provider *prov, const char *param, enum fi_param_type type,
		const char *format, ...)
{
	(void) type;
	TRUE(!strcmp(prov->name, "efa") && *param && !strcmp(format, "%s"));
	defined++;
	return 0;
}

/* The host's parameter values take precedence over the environment. */
__attribute__((visibility("default")))
int fi_param_get(struct fi_provider *prov, const char *param, void *value)
{
	TRUE(!strcmp(prov->name, "efa"));
	asked++;
	if (!strcmp(param, "soft")) {
		*(char **) value = "on";
		return 0;
	}
	if (!strcmp(param, "unexpected_size")) {
		*(size_t *) value = 1 << 20;
		return 0;
	}
	return -FI_ENODATA;
}

static struct fi_info *infos(uint64_t flags)
{
	struct fi_info *list = NULL;
	int n = 0;

	DO(0, provider->getinfo(FI_VERSION(1, 18), NULL, NULL, flags, NULL, &list));
	for (struct fi_info *i = list; i; i = i->next, n++) {
		TRUE(!i->fabric_attr->prov_name);
		i->fabric_attr->prov_name = strdup(provider->name);
	}
	TRUE(n > 1);
	return list;
}

int main(int argc, char **argv)
{
	static char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 64);
	void *file;
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_DATA };
	struct fi_av_attr aa = { .type = FI_AV_TABLE };
	struct fi_provider *(*ini)(void), *again;
	struct fi_cq_data_entry e;
	static char in[16], out[16] = "to myself";
	struct fi_info *hints, *list;

	TRUE(len > 0);
	/* The file is in `../provider`, seen from this program's folder. */
	while (len > 0 && path[len] != '/')
		len--;
	strcpy(path + len, "/../provider/libefa-fi.so");
	file = dlopen(argc > 1 ? argv[1] : path, RTLD_NOW | RTLD_LOCAL);
	if (!file) {
		fprintf(stderr, "%s\n", dlerror());
		return EXIT_FAILURE;
	}
	setenv("FI_EFA_SOFT", "off", 1);
	*(void **) &ini = dlsym(file, "fi_prov_ini");
	TRUE(ini);
	TRUE(dlsym(RTLD_DEFAULT, "fi_log") == (void *) fi_log);
	provider = ini();
	TRUE(provider && !strcmp(provider->name, "efa") && provider->version >= FI_VERSION(207, 0));
	TRUE(provider->fi_version == fi_version() && provider->getinfo && provider->fabric
			&& provider->cleanup);
	again = ini();
	TRUE(again && again != provider);
	list = infos(0);
	TRUE(defined > 30 && asked > 10);
	/* Internal flags that a libfabric core passes to its own providers. */
	for (int bit = 58; bit < 62; bit++)
		fi_freeinfo(infos(1ULL << bit));
	hints = fi_allocinfo();
	hints->caps = FI_MULTICAST;
	lines = 0;
	DO(-FI_ENODATA, provider->getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &info));
	TRUE(lines > 0);
	hints->caps = 0;
	hints->fabric_attr->name = strdup("efa");
	DO(0, provider->getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &info));
	info->fabric_attr->prov_name = strdup(provider->name);
	DO(0, provider->fabric(info->fabric_attr, &fabric, NULL));
	DO(0, fi_domain(fabric, info, &domain, NULL));
	DO(0, fi_cq_open(domain, &ca, &cq, NULL));
	DO(0, fi_av_open(domain, &aa, &av, NULL));
	open_endpoint(cq, cq);
	enable();
	DO(0, fi_recv(ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, in));
	DO(0, fi_inject(ep, out, sizeof(out), self));
	while (fi_cq_read(cq, &e, 1) == -FI_EAGAIN)
		;
	TRUE(e.op_context == in && !strcmp(in, out));
	fi_freeinfo(hints);
	fi_freeinfo(list);
	close_all();
	provider->cleanup();
	dlclose(file);
	printf("a host has provider efa from a file\n");
	return EXIT_SUCCESS;
}
