/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Provider files under the library: names in layers, hooks, and files that cannot be used. The
 * files are in the folder FOLDER: `outside`, `ofi_outside`, `ofi_hook_outside`, one that crashes
 * and one that is no library.
 *
 * layers FOLDER
 */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>
#include <rdma/fabric.h>
#include "do.h"

static struct fi_info *list;

/* Infos for a provider name, or its errno. */
static int ask(const char *provider)
{
	struct fi_info *hints = fi_allocinfo();
	int ret;

	fi_freeinfo(list);
	list = NULL;
	hints->fabric_attr->prov_name = provider ? strdup(provider) : NULL;
	ret = fi_getinfo(FI_VERSION(1, 18), NULL, NULL, 0, hints, &list);
	fi_freeinfo(hints);
	return ret;
}

/* Number of infos of this provider; all of them without a name. */
static int count(const char *provider)
{
	int n = 0;

	for (struct fi_info *i = list; i; i = i->next)
		n += !provider || !strcmp(i->fabric_attr->prov_name, provider);
	return n;
}

/* Place of the first info of this provider. */
static int place(const char *provider)
{
	int n = 0;

	for (struct fi_info *i = list; i && strcmp(i->fabric_attr->prov_name, provider); i = i->next)
		n++;
	return n;
}

int main(int argc, char **argv)
{
	static char said[65536];
	struct fid_fabric *fabric;
	FILE *lines = tmpfile();
	int err = dup(2);

	TRUE(argc == 2 && lines);
	setenv("FI_PROVIDER_PATH", argv[1], 1);
	setenv("FI_HOOK", "outside;absent", 1);
	dup2(fileno(lines), 2);

	DO(0, ask("tcp;ofi_outside"));
	TRUE(count("tcp;ofi_outside") > 0 && count(NULL) == count("tcp;ofi_outside"));
	DO(0, ask("ofi_outside;tcp"));
	TRUE(count(NULL) == count("tcp;ofi_outside"));
	DO(0, ask("tcp"));
	TRUE(count("tcp") > 0 && count("tcp;ofi_outside") > 0
			&& count(NULL) == count("tcp") + count("tcp;ofi_outside"));
	DO(0, ask("efa"));
	TRUE(count(NULL) == count("efa"));
	DO(0, ask("ofi_outside"));
	TRUE(count("outside;ofi_outside") == 1 && count("tcp;ofi_outside") > 0
			&& count("efa;ofi_outside") == 0);
	DO(0, ask(NULL));
	TRUE(count("efa") > 0 && place("efa") < place("tcp") && place("tcp") < place("outside"));
	DO(-FI_ENODATA, ask("ofi_hook_outside"));
	DO(-FI_ENODATA, ask("outside;ofi_absent"));

	setenv("FI_PROVIDER", "tcp;ofi_outside", 1);
	DO(0, ask(NULL));
	TRUE(count(NULL) == count("tcp;ofi_outside"));
	setenv("FI_PROVIDER", "^tcp,efa", 1);
	DO(0, ask(NULL));
	TRUE(count("outside") == 1 && count("tcp") == 0 && count("tcp;ofi_outside") == 0);
	unsetenv("FI_PROVIDER");

	/* The hook is passed the fabric and the provider; the one that is not here is left out. */
	DO(0, ask("tcp"));
	DO(0, fi_fabric(list->fabric_attr, &fabric, NULL));
	TRUE(getenv("OUTSIDE_HOOKED") && !strcmp(getenv("OUTSIDE_HOOKED"), "tcp"));
	DO(0, fi_close(&fabric->fid));

	fi_freeinfo(list);
	fflush(stderr);
	dup2(err, 2);
	rewind(lines);
	TRUE(fread(said, 1, sizeof(said) - 1, lines) > 0);
	TRUE(strstr(said, "libcrash-fi.so: it ends the process when it is initialised"));
	TRUE(strstr(said, "libbroken-fi.so: "));
	TRUE(strstr(said, "provider ofi_absent is not here: wanted its file, libabsent-fi.so"));
	TRUE(strstr(said, "FI_HOOK: wanted absent, had ofi_hook_outside"));
	puts("providers are layered and hooked by name, and bad files are left out");
	return 0;
}
