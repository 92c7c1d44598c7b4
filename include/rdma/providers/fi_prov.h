/* SPDX-License-Identifier: BSD-2-Clause */
/* What an external provider needs. fi_provider(3), fi_param_get(3). */
#ifndef FI_RS_PROVIDERS_FI_PROV_H
#define FI_RS_PROVIDERS_FI_PROV_H

#include <rdma/fabric.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_LIB_EXTENSION "fi"
#define FI_LIB_SUFFIX                FI_LIB_EXTENSION ".so"

int fi_param_define(const struct fi_provider *provider, const char *param_name,
		enum fi_param_type type, const char *help_string_fmt, ...) FI_FORMAT_PRINTF(4, 5);
int fi_param_get(struct fi_provider *provider, const char *param_name, void *value);

/* The entry point every external provider (lib*-fi.so) exports. */
#define FI_EXT_INI \
	__attribute__((visibility("default"), EXTERNALLY_VISIBLE)) struct fi_provider *fi_prov_ini(void)

static inline int fi_param_get_str(struct fi_provider *provider, const char *param_name,
		char **value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int fi_param_get_int(struct fi_provider *provider, const char *param_name,
		int *value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int fi_param_get_bool(struct fi_provider *provider, const char *param_name,
		int *value)
{
	return fi_param_get(provider, param_name, value);
}

static inline int fi_param_get_size_t(struct fi_provider *provider, const char *param_name,
		size_t *value)
{
	return fi_param_get(provider, param_name, value);
}

#ifdef __cplusplus
}
#endif

#endif
