/* SPDX-License-Identifier: BSD-2-Clause */
/* Extensions of provider efa. fi_efa(7). */
#ifndef FI_RS_FI_EXT_EFA_H
#define FI_RS_FI_EXT_EFA_H

#include <stdbool.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_cm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_EFA_DOMAIN_OPS "efa domain ops"
#define FI_EFA_FEATURE_OPS "efa feature ops"
#define FI_EFA_GDA_OPS "efa gda ops"
#define FI_EFA_WR_HIGH_PPS           (1ULL << 60)

#ifdef __cplusplus
}
#endif

#endif
