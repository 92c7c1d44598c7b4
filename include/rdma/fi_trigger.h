/* SPDX-License-Identifier: BSD-2-Clause */
/* Triggered operations and deferred work. fi_trigger(3). */
#ifndef FI_RS_FI_TRIGGER_H
#define FI_RS_FI_TRIGGER_H

#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/fi_atomic.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif

#endif
