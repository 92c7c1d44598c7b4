/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The two exports that take a variable number of arguments. They format and hand a finished
 * string to Rust (src/lib.rs), which does the rest.
 */
#include <stdarg.h>
#include <stdio.h>

struct fi_provider;

int fi_rs_log_line(const struct fi_provider *prov, int level, int subsys, const char *func,
		   int line, const char *text);
int fi_rs_param_define(const struct fi_provider *prov, const char *name, int type,
		       const char *help);

__attribute__((visibility("default"), format(printf, 6, 7)))
void fi_log(const struct fi_provider *prov, int level, int subsys, const char *func, int line,
	    const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	fi_rs_log_line(prov, level, subsys, func, line, text);
}

__attribute__((visibility("default"), format(printf, 4, 5)))
int fi_param_define(const struct fi_provider *prov, const char *name, int type,
		    const char *fmt, ...)
{
	char help[2048] = "";
	va_list args;

	if (fmt) {
		va_start(args, fmt);
		vsnprintf(help, sizeof(help), fmt, args);
		va_end(args);
	}
	return fi_rs_param_define(prov, name, type, help);
}
