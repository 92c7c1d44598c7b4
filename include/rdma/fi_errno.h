/* SPDX-License-Identifier: BSD-2-Clause */
/* Error numbers: the system's where it has one, 256 and up otherwise. fi_errno(3). */
#ifndef FI_RS_FI_ERRNO_H
#define FI_RS_FI_ERRNO_H

#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FI_SUCCESS                   0
#define FI_EPERM                     1
#define FI_ENOENT                    2
#define FI_EINTR                     4
#define FI_EIO                       5
#define FI_E2BIG                     7
#define FI_EBADF                     9
#define FI_EAGAIN                    11
#define FI_ENOMEM                    12
#define FI_EACCES                    13
#define FI_EFAULT                    14
#define FI_EBUSY                     16
#define FI_ENODEV                    19
#define FI_EINVAL                    22
#define FI_EMFILE                    24
#define FI_ENOSPC                    28
#define FI_ENOSYS                    38
#define FI_EWOULDBLOCK               11
#define FI_ENOMSG                    42
#define FI_ENODATA                   61
#define FI_EPROTO                    71
#define FI_EOVERFLOW                 75
#define FI_EMSGSIZE                  90
#define FI_ENOPROTOOPT               92
#define FI_EOPNOTSUPP                95
#define FI_EADDRINUSE                98
#define FI_EADDRNOTAVAIL             99
#define FI_ENETDOWN                  100
#define FI_ENETUNREACH               101
#define FI_ECONNABORTED              103
#define FI_ECONNRESET                104
#define FI_ENOBUFS                   105
#define FI_EISCONN                   106
#define FI_ENOTCONN                  107
#define FI_ESHUTDOWN                 108
#define FI_ETIMEDOUT                 110
#define FI_ECONNREFUSED              111
#define FI_EHOSTDOWN                 112
#define FI_EHOSTUNREACH              113
#define FI_EALREADY                  114
#define FI_EINPROGRESS               115
#define FI_EREMOTEIO                 121
#define FI_ECANCELED                 125
#define FI_EKEYREJECTED              129
#define FI_ERRNO_OFFSET              256

enum {
	FI_EOTHER = 256,
	FI_ETOOSMALL = 257,
	FI_EOPBADSTATE = 258,
	FI_EAVAIL = 259,
	FI_EBADFLAGS = 260,
	FI_ENOEQ = 261,
	FI_EDOMAIN = 262,
	FI_ENOCQ = 263,
	FI_ECRC = 264,
	FI_ETRUNC = 265,
	FI_ENOKEY = 266,
	FI_ENOAV = 267,
	FI_EOVERRUN = 268,
	FI_ENORX = 269,
	FI_ENOMR = 270,
	FI_EFIREWALLADDR = 271,
	FI_ERRNO_MAX = 272,
};

const char *fi_strerror(int errnum);

#ifdef __cplusplus
}
#endif

#endif
