/* SPDX-License-Identifier: BSD-2-Clause */
/* The peer provider interface. fi_peer(3). */
#ifndef FI_RS_PROVIDERS_FI_PEER_H
#define FI_RS_PROVIDERS_FI_PEER_H

#include <stdbool.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_collective.h>
#include <rdma/providers/fi_prov.h>
#include <rdma/providers/fi_log.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
}
#endif

#endif
