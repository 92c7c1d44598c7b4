/* Made by `make headers` from src/types/: do not edit. */
#ifndef FI_GEN_TYPES_H
#define FI_GEN_TYPES_H

// `struct fi_ioc` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_ioc {
  void *addr;
  size_t count;
};

// `struct fi_tx_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_tx_attr {
  uint64_t caps;
  uint64_t mode;
  uint64_t op_flags;
  uint64_t msg_order;
  uint64_t comp_order;
  size_t inject_size;
  size_t size;
  size_t iov_limit;
  size_t rma_iov_limit;
  uint32_t tclass;
};

// `struct fi_rx_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_rx_attr {
  uint64_t caps;
  uint64_t mode;
  uint64_t op_flags;
  uint64_t msg_order;
  uint64_t comp_order;
  size_t total_buffered_recv;
  size_t size;
  size_t iov_limit;
};

// Operations common to every object: close, bind, control, open_ops, set_ops.
struct fi_ops {
  size_t size;
  int (*close)(struct fid *fid);
  int (*bind)(struct fid *fid, struct fid *bfid, uint64_t flags);
  int (*control)(struct fid *fid, int command, void *arg);
  int (*ops_open)(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);
  int (*tostr)(const struct fid *fid, char *name, size_t len);
  int (*ops_set)(struct fid *fid, const char *name, uint64_t flags, void *ops, void *context);
};

// Head of every object the library hands out: its class (`FI_CLASS_*`), the user context and the
// common operations.
struct fid {
  size_t fclass;
  void *context;
  struct fi_ops *ops;
};

// `struct fi_xpu_ctx_attr` of the public headers; see the fi_xpu calls of 2.7.
struct fi_xpu_ctx_attr {
  uint64_t caps;
  size_t av_addr_size;
  size_t mr_desc_size;
};

// Operations table; `size` is its size in bytes as the provider knows it. See the fi_xpu calls of
// 2.7.
struct fi_ops_xpu_ctx {
  size_t size;
  int (*query)(struct fid_xpu_ctx *ctx, struct fi_xpu_ctx_attr *attr);
};

// `struct fid_xpu_ctx` of the public headers; see the fi_xpu calls of 2.7.
struct fid_xpu_ctx {
  struct fid fid;
  struct fi_ops_xpu_ctx *ops;
};

// `struct fi_ep_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_ep_attr {
  enum fi_ep_type type;
  uint32_t protocol;
  uint32_t protocol_version;
  size_t max_msg_size;
  size_t msg_prefix_size;
  size_t max_order_raw_size;
  size_t max_order_war_size;
  size_t max_order_waw_size;
  uint64_t mem_tag_format;
  size_t tx_ctx_cnt;
  size_t rx_ctx_cnt;
  size_t auth_key_size;
  uint8_t *auth_key;
  struct fid_xpu_ctx *xpu_ctx;
};

// `struct fi_device_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_device_attr {
  char *name;
  char *device_id;
  char *device_version;
  char *vendor_id;
  char *driver;
  char *firmware;
};

// `struct fi_pci_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_pci_attr {
  uint16_t domain_id;
  uint8_t bus_id;
  uint8_t device_id;
  uint8_t function_id;
};

union fi_bus_attr_attr {
  struct fi_pci_attr pci;
};

// `struct fi_bus_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_bus_attr {
  enum fi_bus_type bus_type;
  union fi_bus_attr_attr attr;
};

// `struct fi_link_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_link_attr {
  char *address;
  size_t mtu;
  size_t speed;
  enum fi_link_state state;
  char *network_type;
};

// `struct fid_nic` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fid_nic {
  struct fid fid;
  struct fi_device_attr *device_attr;
  struct fi_bus_attr *bus_attr;
  struct fi_link_attr *link_attr;
  void *prov_attr;
};

// One way to reach the network, as returned by fi_getinfo(3); also the form of hints.
struct fi_info {
  struct fi_info *next;
  uint64_t caps;
  uint64_t mode;
  uint32_t addr_format;
  size_t src_addrlen;
  size_t dest_addrlen;
  void *src_addr;
  void *dest_addr;
  fid_t handle;
  struct fi_tx_attr *tx_attr;
  struct fi_rx_attr *rx_attr;
  struct fi_ep_attr *ep_attr;
  struct fi_domain_attr *domain_attr;
  struct fi_fabric_attr *fabric_attr;
  struct fid_nic *nic;
};

// `struct fi_av_attr` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fi_av_attr {
  enum fi_av_type type;
  int rx_ctx_bits;
  size_t count;
  size_t ep_per_node;
  const char *name;
  void *map_addr;
  uint64_t flags;
};

// `struct fi_av_set_attr` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fi_av_set_attr {
  size_t count;
  fi_addr_t start_addr;
  fi_addr_t end_addr;
  uint64_t stride;
  size_t comm_key_size;
  uint8_t *comm_key;
  uint64_t flags;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_collective(3),
// fi_av_set(3).
struct fi_ops_av_set {
  size_t size;
  int (*set_union)(struct fid_av_set *dst, const struct fid_av_set *src);
  int (*intersect)(struct fid_av_set *dst, const struct fid_av_set *src);
  int (*diff)(struct fid_av_set *dst, const struct fid_av_set *src);
  int (*insert)(struct fid_av_set *set, fi_addr_t addr);
  int (*remove)(struct fid_av_set *set, fi_addr_t addr);
  int (*addr)(struct fid_av_set *set, fi_addr_t *coll_addr);
};

// `struct fid_av_set` of the public headers; see fi_collective(3), fi_av_set(3).
struct fid_av_set {
  struct fid fid;
  struct fi_ops_av_set *ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
// fi_mr(3), fi_av(3).
struct fi_ops_av {
  size_t size;
  int (*insert)(struct fid_av *av,
                const void *addr,
                size_t count,
                fi_addr_t *fi_addr,
                uint64_t flags,
                void *context);
  int (*insertsvc)(struct fid_av *av,
                   const char *node,
                   const char *service,
                   fi_addr_t *fi_addr,
                   uint64_t flags,
                   void *context);
  int (*insertsym)(struct fid_av *av,
                   const char *node,
                   size_t nodecnt,
                   const char *service,
                   size_t svccnt,
                   fi_addr_t *fi_addr,
                   uint64_t flags,
                   void *context);
  int (*remove)(struct fid_av *av, fi_addr_t *fi_addr, size_t count, uint64_t flags);
  int (*lookup)(struct fid_av *av, fi_addr_t fi_addr, void *addr, size_t *addrlen);
  const char *(*straddr)(struct fid_av *av, const void *addr, char *buf, size_t *len);
  int (*av_set)(struct fid_av *av,
                struct fi_av_set_attr *attr,
                struct fid_av_set **set,
                void *context);
  int (*insert_auth_key)(struct fid_av *av,
                         const void *auth_key,
                         size_t auth_key_size,
                         fi_addr_t *fi_addr,
                         uint64_t flags);
  int (*lookup_auth_key)(struct fid_av *av, fi_addr_t addr, void *auth_key, size_t *auth_key_size);
  int (*set_user_id)(struct fid_av *av, fi_addr_t fi_addr, fi_addr_t user_id, uint64_t flags);
  int (*lookup2)(struct fid_av *av,
                 fi_addr_t fi_addr,
                 void *buf,
                 size_t *len,
                 uint64_t flags,
                 struct fid_xpu_ctx *ctx);
};

// `struct fid_av` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fid_av {
  struct fid fid;
  struct fi_ops_av *ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
// fi_cntr(3), fi_poll(3).
struct fi_ops_wait {
  size_t size;
  int (*wait)(struct fid_wait *waitset, int timeout);
};

// `struct fid_wait` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fid_wait {
  struct fid fid;
  struct fi_ops_wait *ops;
};

// `struct fi_cq_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_cq_attr {
  size_t size;
  uint64_t flags;
  enum fi_cq_format format;
  enum fi_wait_obj wait_obj;
  int signaling_vector;
  enum fi_cq_wait_cond wait_cond;
  struct fid_wait *wait_set;
  struct fid_xpu_ctx *xpu_ctx;
};

// An error completion: `err` is a positive FI_E* value, `prov_errno` a device status for
// fi_cq_strerror(3), `err_data` the provider text (library-owned buffers are valid until the next
// fi_cq_readerr).
struct fi_cq_err_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
  uint64_t tag;
  size_t olen;
  int err;
  int prov_errno;
  void *err_data;
  size_t err_data_size;
  fi_addr_t src_addr;
};

// `struct fid_xpu` of the public headers; see the fi_xpu calls of 2.7.
struct fid_xpu {
  uint32_t fclass;
  uint32_t prov_id;
  uint64_t prov_ctx;
};

// `struct fid_xpu_cq` of the public headers; see the fi_xpu calls of 2.7.
struct fid_xpu_cq {
  struct fid_xpu fid;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
// fi_cntr(3), fi_poll(3).
struct fi_ops_cq {
  size_t size;
  ssize_t (*read)(struct fid_cq *cq, void *buf, size_t count);
  ssize_t (*readfrom)(struct fid_cq *cq, void *buf, size_t count, fi_addr_t *src_addr);
  ssize_t (*readerr)(struct fid_cq *cq, struct fi_cq_err_entry *buf, uint64_t flags);
  ssize_t (*sread)(struct fid_cq *cq, void *buf, size_t count, const void *cond, int timeout);
  ssize_t (*sreadfrom)(struct fid_cq *cq,
                       void *buf,
                       size_t count,
                       fi_addr_t *src_addr,
                       const void *cond,
                       int timeout);
  int (*signal)(struct fid_cq *cq);
  const char *(*strerror)(struct fid_cq *cq,
                          int prov_errno,
                          const void *err_data,
                          char *buf,
                          size_t len);
  int (*export_xpu)(struct fid_cq *cq, uint64_t flags, struct fid_xpu_cq *xpu_cq);
};

// `struct fid_cq` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fid_cq {
  struct fid fid;
  struct fi_ops_cq *ops;
};

// `struct fid_xpu_ep` of the public headers; see the fi_xpu calls of 2.7.
struct fid_xpu_ep {
  struct fid_xpu fid;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_endpoint(3),
// fi_msg(3).
struct fi_ops_ep {
  size_t size;
  ssize_t (*cancel)(fid_t fid, void *context);
  int (*getopt)(fid_t fid, int level, int optname, void *optval, size_t *optlen);
  int (*setopt)(fid_t fid, int level, int optname, const void *optval, size_t optlen);
  int (*tx_ctx)(struct fid_ep *ep,
                int idx,
                struct fi_tx_attr *attr,
                struct fid_ep **tx_ep,
                void *context);
  int (*rx_ctx)(struct fid_ep *ep,
                int idx,
                struct fi_rx_attr *attr,
                struct fid_ep **rx_ep,
                void *context);
  ssize_t (*rx_size_left)(struct fid_ep *ep);
  ssize_t (*tx_size_left)(struct fid_ep *ep);
  int (*export_xpu)(struct fid_ep *ep, uint64_t flags, struct fid_xpu_ep *xpu_ep);
};

// `struct fid_pep` of the public headers; see fi_endpoint(3), fi_msg(3).
struct fid_pep {
  struct fid fid;
  struct fi_ops_ep *ops;
  struct fi_ops_cm *cm;
};

// `struct fid_mc` of the public headers; see fi_cm(3).
struct fid_mc {
  struct fid fid;
  fi_addr_t fi_addr;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_cm(3).
struct fi_ops_cm {
  size_t size;
  int (*setname)(fid_t fid, void *addr, size_t addrlen);
  int (*getname)(fid_t fid, void *addr, size_t *addrlen);
  int (*getpeer)(struct fid_ep *ep, void *addr, size_t *addrlen);
  int (*connect)(struct fid_ep *ep, const void *addr, const void *param, size_t paramlen);
  int (*listen)(struct fid_pep *pep);
  int (*accept)(struct fid_ep *ep, const void *param, size_t paramlen);
  int (*reject)(struct fid_pep *pep, fid_t handle, const void *param, size_t paramlen);
  int (*shutdown)(struct fid_ep *ep, uint64_t flags);
  int (*join)(struct fid_ep *ep, const void *addr, uint64_t flags, struct fid_mc **mc, void *context);
};

// `struct fi_msg` of the public headers; see fi_endpoint(3), fi_msg(3).
struct fi_msg {
  const struct iovec *msg_iov;
  void **desc;
  size_t iov_count;
  fi_addr_t addr;
  void *context;
  uint64_t data;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_endpoint(3),
// fi_msg(3).
struct fi_ops_msg {
  size_t size;
  ssize_t (*recv)(struct fid_ep *ep,
                  void *buf,
                  size_t len,
                  void *desc,
                  fi_addr_t src_addr,
                  void *context);
  ssize_t (*recvv)(struct fid_ep *ep,
                   const struct iovec *iov,
                   void **desc,
                   size_t count,
                   fi_addr_t src_addr,
                   void *context);
  ssize_t (*recvmsg)(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags);
  ssize_t (*send)(struct fid_ep *ep,
                  const void *buf,
                  size_t len,
                  void *desc,
                  fi_addr_t dest_addr,
                  void *context);
  ssize_t (*sendv)(struct fid_ep *ep,
                   const struct iovec *iov,
                   void **desc,
                   size_t count,
                   fi_addr_t dest_addr,
                   void *context);
  ssize_t (*sendmsg)(struct fid_ep *ep, const struct fi_msg *msg, uint64_t flags);
  ssize_t (*inject)(struct fid_ep *ep, const void *buf, size_t len, fi_addr_t dest_addr);
  ssize_t (*senddata)(struct fid_ep *ep,
                      const void *buf,
                      size_t len,
                      void *desc,
                      uint64_t data,
                      fi_addr_t dest_addr,
                      void *context);
  ssize_t (*injectdata)(struct fid_ep *ep,
                        const void *buf,
                        size_t len,
                        uint64_t data,
                        fi_addr_t dest_addr);
};

// `struct fi_rma_iov` of the public headers; see fi_rma(3).
struct fi_rma_iov {
  uint64_t addr;
  size_t len;
  uint64_t key;
};

// `struct fi_msg_rma` of the public headers; see fi_rma(3).
struct fi_msg_rma {
  const struct iovec *msg_iov;
  void **desc;
  size_t iov_count;
  fi_addr_t addr;
  const struct fi_rma_iov *rma_iov;
  size_t rma_iov_count;
  void *context;
  uint64_t data;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_rma(3).
struct fi_ops_rma {
  size_t size;
  ssize_t (*read)(struct fid_ep *ep,
                  void *buf,
                  size_t len,
                  void *desc,
                  fi_addr_t src_addr,
                  uint64_t addr,
                  uint64_t key,
                  void *context);
  ssize_t (*readv)(struct fid_ep *ep,
                   const struct iovec *iov,
                   void **desc,
                   size_t count,
                   fi_addr_t src_addr,
                   uint64_t addr,
                   uint64_t key,
                   void *context);
  ssize_t (*readmsg)(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags);
  ssize_t (*write)(struct fid_ep *ep,
                   const void *buf,
                   size_t len,
                   void *desc,
                   fi_addr_t dest_addr,
                   uint64_t addr,
                   uint64_t key,
                   void *context);
  ssize_t (*writev)(struct fid_ep *ep,
                    const struct iovec *iov,
                    void **desc,
                    size_t count,
                    fi_addr_t dest_addr,
                    uint64_t addr,
                    uint64_t key,
                    void *context);
  ssize_t (*writemsg)(struct fid_ep *ep, const struct fi_msg_rma *msg, uint64_t flags);
  ssize_t (*inject)(struct fid_ep *ep,
                    const void *buf,
                    size_t len,
                    fi_addr_t dest_addr,
                    uint64_t addr,
                    uint64_t key);
  ssize_t (*writedata)(struct fid_ep *ep,
                       const void *buf,
                       size_t len,
                       void *desc,
                       uint64_t data,
                       fi_addr_t dest_addr,
                       uint64_t addr,
                       uint64_t key,
                       void *context);
  ssize_t (*injectdata)(struct fid_ep *ep,
                        const void *buf,
                        size_t len,
                        uint64_t data,
                        fi_addr_t dest_addr,
                        uint64_t addr,
                        uint64_t key);
};

// `struct fi_msg_tagged` of the public headers; see fi_tagged(3).
struct fi_msg_tagged {
  const struct iovec *msg_iov;
  void **desc;
  size_t iov_count;
  fi_addr_t addr;
  uint64_t tag;
  uint64_t ignore;
  void *context;
  uint64_t data;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_tagged(3).
struct fi_ops_tagged {
  size_t size;
  ssize_t (*recv)(struct fid_ep *ep,
                  void *buf,
                  size_t len,
                  void *desc,
                  fi_addr_t src_addr,
                  uint64_t tag,
                  uint64_t ignore,
                  void *context);
  ssize_t (*recvv)(struct fid_ep *ep,
                   const struct iovec *iov,
                   void **desc,
                   size_t count,
                   fi_addr_t src_addr,
                   uint64_t tag,
                   uint64_t ignore,
                   void *context);
  ssize_t (*recvmsg)(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags);
  ssize_t (*send)(struct fid_ep *ep,
                  const void *buf,
                  size_t len,
                  void *desc,
                  fi_addr_t dest_addr,
                  uint64_t tag,
                  void *context);
  ssize_t (*sendv)(struct fid_ep *ep,
                   const struct iovec *iov,
                   void **desc,
                   size_t count,
                   fi_addr_t dest_addr,
                   uint64_t tag,
                   void *context);
  ssize_t (*sendmsg)(struct fid_ep *ep, const struct fi_msg_tagged *msg, uint64_t flags);
  ssize_t (*inject)(struct fid_ep *ep,
                    const void *buf,
                    size_t len,
                    fi_addr_t dest_addr,
                    uint64_t tag);
  ssize_t (*senddata)(struct fid_ep *ep,
                      const void *buf,
                      size_t len,
                      void *desc,
                      uint64_t data,
                      fi_addr_t dest_addr,
                      uint64_t tag,
                      void *context);
  ssize_t (*injectdata)(struct fid_ep *ep,
                        const void *buf,
                        size_t len,
                        uint64_t data,
                        fi_addr_t dest_addr,
                        uint64_t tag);
};

// `struct fi_rma_ioc` of the public headers; see fi_rma(3).
struct fi_rma_ioc {
  uint64_t addr;
  size_t count;
  uint64_t key;
};

// `struct fi_msg_atomic` of the public headers; see fi_atomic(3).
struct fi_msg_atomic {
  const struct fi_ioc *msg_iov;
  void **desc;
  size_t iov_count;
  fi_addr_t addr;
  const struct fi_rma_ioc *rma_iov;
  size_t rma_iov_count;
  enum fi_datatype datatype;
  enum fi_op op;
  void *context;
  uint64_t data;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_atomic(3).
struct fi_ops_atomic {
  size_t size;
  ssize_t (*write)(struct fid_ep *ep,
                   const void *buf,
                   size_t count,
                   void *desc,
                   fi_addr_t dest_addr,
                   uint64_t addr,
                   uint64_t key,
                   enum fi_datatype datatype,
                   enum fi_op op,
                   void *context);
  ssize_t (*writev)(struct fid_ep *ep,
                    const struct fi_ioc *iov,
                    void **desc,
                    size_t count,
                    fi_addr_t dest_addr,
                    uint64_t addr,
                    uint64_t key,
                    enum fi_datatype datatype,
                    enum fi_op op,
                    void *context);
  ssize_t (*writemsg)(struct fid_ep *ep, const struct fi_msg_atomic *msg, uint64_t flags);
  ssize_t (*inject)(struct fid_ep *ep,
                    const void *buf,
                    size_t count,
                    fi_addr_t dest_addr,
                    uint64_t addr,
                    uint64_t key,
                    enum fi_datatype datatype,
                    enum fi_op op);
  ssize_t (*readwrite)(struct fid_ep *ep,
                       const void *buf,
                       size_t count,
                       void *desc,
                       void *result,
                       void *result_desc,
                       fi_addr_t dest_addr,
                       uint64_t addr,
                       uint64_t key,
                       enum fi_datatype datatype,
                       enum fi_op op,
                       void *context);
  ssize_t (*readwritev)(struct fid_ep *ep,
                        const struct fi_ioc *iov,
                        void **desc,
                        size_t count,
                        struct fi_ioc *resultv,
                        void **result_desc,
                        size_t result_count,
                        fi_addr_t dest_addr,
                        uint64_t addr,
                        uint64_t key,
                        enum fi_datatype datatype,
                        enum fi_op op,
                        void *context);
  ssize_t (*readwritemsg)(struct fid_ep *ep,
                          const struct fi_msg_atomic *msg,
                          struct fi_ioc *resultv,
                          void **result_desc,
                          size_t result_count,
                          uint64_t flags);
  ssize_t (*compwrite)(struct fid_ep *ep,
                       const void *buf,
                       size_t count,
                       void *desc,
                       const void *compare,
                       void *compare_desc,
                       void *result,
                       void *result_desc,
                       fi_addr_t dest_addr,
                       uint64_t addr,
                       uint64_t key,
                       enum fi_datatype datatype,
                       enum fi_op op,
                       void *context);
  ssize_t (*compwritev)(struct fid_ep *ep,
                        const struct fi_ioc *iov,
                        void **desc,
                        size_t count,
                        const struct fi_ioc *comparev,
                        void **compare_desc,
                        size_t compare_count,
                        struct fi_ioc *resultv,
                        void **result_desc,
                        size_t result_count,
                        fi_addr_t dest_addr,
                        uint64_t addr,
                        uint64_t key,
                        enum fi_datatype datatype,
                        enum fi_op op,
                        void *context);
  ssize_t (*compwritemsg)(struct fid_ep *ep,
                          const struct fi_msg_atomic *msg,
                          const struct fi_ioc *comparev,
                          void **compare_desc,
                          size_t compare_count,
                          struct fi_ioc *resultv,
                          void **result_desc,
                          size_t result_count,
                          uint64_t flags);
  int (*writevalid)(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count);
  int (*readwritevalid)(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count);
  int (*compwritevalid)(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count);
};

// `struct fi_msg_collective` of the public headers; see fi_collective(3), fi_av_set(3).
struct fi_msg_collective {
  const struct fi_ioc *msg_iov;
  void **desc;
  size_t iov_count;
  fi_addr_t coll_addr;
  fi_addr_t root_addr;
  enum fi_collective_op coll;
  enum fi_datatype datatype;
  enum fi_op op;
  void *context;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_collective(3),
// fi_av_set(3).
struct fi_ops_collective {
  size_t size;
  ssize_t (*barrier)(struct fid_ep *ep, fi_addr_t coll_addr, void *context);
  ssize_t (*broadcast)(struct fid_ep *ep,
                       void *buf,
                       size_t count,
                       void *desc,
                       fi_addr_t coll_addr,
                       fi_addr_t root_addr,
                       enum fi_datatype datatype,
                       uint64_t flags,
                       void *context);
  ssize_t (*alltoall)(struct fid_ep *ep,
                      const void *buf,
                      size_t count,
                      void *desc,
                      void *result,
                      void *result_desc,
                      fi_addr_t coll_addr,
                      enum fi_datatype datatype,
                      uint64_t flags,
                      void *context);
  ssize_t (*allreduce)(struct fid_ep *ep,
                       const void *buf,
                       size_t count,
                       void *desc,
                       void *result,
                       void *result_desc,
                       fi_addr_t coll_addr,
                       enum fi_datatype datatype,
                       enum fi_op op,
                       uint64_t flags,
                       void *context);
  ssize_t (*allgather)(struct fid_ep *ep,
                       const void *buf,
                       size_t count,
                       void *desc,
                       void *result,
                       void *result_desc,
                       fi_addr_t coll_addr,
                       enum fi_datatype datatype,
                       uint64_t flags,
                       void *context);
  ssize_t (*reduce_scatter)(struct fid_ep *ep,
                            const void *buf,
                            size_t count,
                            void *desc,
                            void *result,
                            void *result_desc,
                            fi_addr_t coll_addr,
                            enum fi_datatype datatype,
                            enum fi_op op,
                            uint64_t flags,
                            void *context);
  ssize_t (*reduce)(struct fid_ep *ep,
                    const void *buf,
                    size_t count,
                    void *desc,
                    void *result,
                    void *result_desc,
                    fi_addr_t coll_addr,
                    fi_addr_t root_addr,
                    enum fi_datatype datatype,
                    enum fi_op op,
                    uint64_t flags,
                    void *context);
  ssize_t (*scatter)(struct fid_ep *ep,
                     const void *buf,
                     size_t count,
                     void *desc,
                     void *result,
                     void *result_desc,
                     fi_addr_t coll_addr,
                     fi_addr_t root_addr,
                     enum fi_datatype datatype,
                     uint64_t flags,
                     void *context);
  ssize_t (*gather)(struct fid_ep *ep,
                    const void *buf,
                    size_t count,
                    void *desc,
                    void *result,
                    void *result_desc,
                    fi_addr_t coll_addr,
                    fi_addr_t root_addr,
                    enum fi_datatype datatype,
                    uint64_t flags,
                    void *context);
  ssize_t (*msg)(struct fid_ep *ep,
                 const struct fi_msg_collective *msg_collective,
                 struct fi_ioc *ioc,
                 void **buf,
                 size_t len,
                 uint64_t flags);
  ssize_t (*barrier2)(struct fid_ep *ep, fi_addr_t coll_addr, uint64_t flags, void *context);
};

// `struct fid_ep` of the public headers; see fi_endpoint(3), fi_msg(3).
struct fid_ep {
  struct fid fid;
  struct fi_ops_ep *ops;
  struct fi_ops_cm *cm;
  struct fi_ops_msg *msg;
  struct fi_ops_rma *rma;
  struct fi_ops_tagged *tagged;
  struct fi_ops_atomic *atomic;
  struct fi_ops_collective *collective;
};

// `struct fi_cntr_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_cntr_attr {
  enum fi_cntr_events events;
  enum fi_wait_obj wait_obj;
  struct fid_wait *wait_set;
  uint64_t flags;
  struct fid_xpu_ctx *xpu_ctx;
};

// `struct fid_xpu_cntr` of the public headers; see the fi_xpu calls of 2.7.
struct fid_xpu_cntr {
  struct fid_xpu fid;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
// fi_cntr(3), fi_poll(3).
struct fi_ops_cntr {
  size_t size;
  uint64_t (*read)(struct fid_cntr *cntr);
  uint64_t (*readerr)(struct fid_cntr *cntr);
  int (*add)(struct fid_cntr *cntr, uint64_t value);
  int (*set)(struct fid_cntr *cntr, uint64_t value);
  int (*wait)(struct fid_cntr *cntr, uint64_t threshold, int timeout);
  int (*adderr)(struct fid_cntr *cntr, uint64_t value);
  int (*seterr)(struct fid_cntr *cntr, uint64_t value);
  int (*export_xpu)(struct fid_cntr *cntr, uint64_t flags, struct fid_xpu_cntr *xpu_cntr);
};

// `struct fid_cntr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fid_cntr {
  struct fid fid;
  struct fi_ops_cntr *ops;
};

// `struct fi_poll_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_poll_attr {
  uint64_t flags;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
// fi_cntr(3), fi_poll(3).
struct fi_ops_poll {
  size_t size;
  int (*poll)(struct fid_poll *pollset, void **context, int count);
  int (*poll_add)(struct fid_poll *pollset, struct fid *event_fid, uint64_t flags);
  int (*poll_del)(struct fid_poll *pollset, struct fid *event_fid, uint64_t flags);
};

// `struct fid_poll` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fid_poll {
  struct fid fid;
  struct fi_ops_poll *ops;
};

// `struct fid_stx` of the public headers; see fi_endpoint(3), fi_msg(3).
struct fid_stx {
  struct fid fid;
  struct fi_ops_ep *ops;
};

// `struct fi_atomic_attr` of the public headers; see fi_atomic(3).
struct fi_atomic_attr {
  size_t count;
  size_t size;
};

// `struct fi_collective_attr` of the public headers; see fi_collective(3), fi_av_set(3).
struct fi_collective_attr {
  enum fi_op op;
  enum fi_datatype datatype;
  struct fi_atomic_attr datatype_attr;
  size_t max_members;
  uint64_t mode;
};

// Operations table; `size` is its size in bytes as the provider knows it. See the fi_xpu calls of
// 2.7.
struct fi_xpu_ops {
  size_t size;
  int (*alloc)(uint64_t flags,
               uint64_t flags2,
               uint64_t flags3,
               uint64_t flags4,
               void **buf,
               int *index,
               uint64_t *flags5);
  int (*import)(uint64_t flags, void *buf, uint64_t flags2, uint64_t flags3, void **buf2);
  void (*free)(uint64_t flags, void *buf);
};

// `struct fi_xpu_attr` of the public headers; see the fi_xpu calls of 2.7.
struct fi_xpu_attr {
  enum fi_hmem_iface iface;
  uint64_t device;
  struct fi_xpu_ops *ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
// fi_mr(3), fi_av(3).
struct fi_ops_domain {
  size_t size;
  int (*av_open)(struct fid_domain *domain,
                 struct fi_av_attr *attr,
                 struct fid_av **av,
                 void *context);
  int (*cq_open)(struct fid_domain *domain,
                 struct fi_cq_attr *attr,
                 struct fid_cq **cq,
                 void *context);
  int (*endpoint)(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);
  int (*scalable_ep)(struct fid_domain *domain,
                     struct fi_info *info,
                     struct fid_ep **sep,
                     void *context);
  int (*cntr_open)(struct fid_domain *domain,
                   struct fi_cntr_attr *attr,
                   struct fid_cntr **cntr,
                   void *context);
  int (*poll_open)(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **pollset);
  int (*stx_ctx)(struct fid_domain *domain,
                 struct fi_tx_attr *attr,
                 struct fid_stx **stx,
                 void *context);
  int (*srx_ctx)(struct fid_domain *domain,
                 struct fi_rx_attr *attr,
                 struct fid_ep **rx_ep,
                 void *context);
  int (*query_atomic)(struct fid_domain *domain,
                      enum fi_datatype datatype,
                      enum fi_op op,
                      struct fi_atomic_attr *attr,
                      uint64_t flags);
  int (*query_collective)(struct fid_domain *domain,
                          enum fi_collective_op coll,
                          struct fi_collective_attr *attr,
                          uint64_t flags);
  int (*endpoint2)(struct fid_domain *domain,
                   struct fi_info *info,
                   struct fid_ep **ep,
                   uint64_t flags,
                   void *context);
  int (*xpu_ctx)(struct fid_domain *domain,
                 struct fi_xpu_attr *attr,
                 struct fid_xpu_ctx **ctx,
                 void *context);
};

// A registered memory region; `key` is what a peer presents, `mem_desc` what local operations pass
// as descriptor.
struct fid_mr {
  struct fid fid;
  void *mem_desc;
  uint64_t key;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
// fi_mr(3), fi_av(3).
struct fi_ops_mr {
  size_t size;
  int (*reg)(struct fid *domain,
             const void *buf,
             size_t len,
             uint64_t acs,
             uint64_t offset,
             uint64_t requested_key,
             uint64_t flags,
             struct fid_mr **mr,
             void *context);
  int (*regv)(struct fid *domain,
              const struct iovec *iov,
              size_t count,
              uint64_t acs,
              uint64_t offset,
              uint64_t requested_key,
              uint64_t flags,
              struct fid_mr **mr,
              void *context);
  int (*regattr)(struct fid *domain,
                 const struct fi_mr_attr *attr,
                 uint64_t flags,
                 struct fid_mr **mr);
};

// `struct fid_domain` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fid_domain {
  struct fid fid;
  struct fi_ops_domain *ops;
  struct fi_ops_mr *mr;
};

// `struct fi_eq_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_eq_attr {
  size_t size;
  uint64_t flags;
  enum fi_wait_obj wait_obj;
  int signaling_vector;
  struct fid_wait *wait_set;
};

// An error event read with fi_eq_readerr(3).
struct fi_eq_err_entry {
  fid_t fid;
  void *context;
  uint64_t data;
  int err;
  int prov_errno;
  void *err_data;
  size_t err_data_size;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_eq(3), fi_cq(3),
// fi_cntr(3), fi_poll(3).
struct fi_ops_eq {
  size_t size;
  ssize_t (*read)(struct fid_eq *eq, uint32_t *event, void *buf, size_t len, uint64_t flags);
  ssize_t (*readerr)(struct fid_eq *eq, struct fi_eq_err_entry *buf, uint64_t flags);
  ssize_t (*write)(struct fid_eq *eq, uint32_t event, const void *buf, size_t len, uint64_t flags);
  ssize_t (*sread)(struct fid_eq *eq,
                   uint32_t *event,
                   void *buf,
                   size_t len,
                   int timeout,
                   uint64_t flags);
  const char *(*strerror)(struct fid_eq *eq,
                          int prov_errno,
                          const void *err_data,
                          char *buf,
                          size_t len);
};

// `struct fid_eq` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fid_eq {
  struct fid fid;
  struct fi_ops_eq *ops;
};

// `struct fi_wait_attr` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_wait_attr {
  enum fi_wait_obj wait_obj;
  uint64_t flags;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_fabric(3),
// fi_getinfo(3).
struct fi_ops_fabric {
  size_t size;
  int (*domain)(struct fid_fabric *fabric,
                struct fi_info *info,
                struct fid_domain **domain,
                void *context);
  int (*passive_ep)(struct fid_fabric *fabric,
                    struct fi_info *info,
                    struct fid_pep **pep,
                    void *context);
  int (*eq_open)(struct fid_fabric *fabric,
                 struct fi_eq_attr *attr,
                 struct fid_eq **eq,
                 void *context);
  int (*wait_open)(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **waitset);
  int (*trywait)(struct fid_fabric *fabric, struct fid **fids, int count);
  int (*domain2)(struct fid_fabric *fabric,
                 struct fi_info *info,
                 struct fid_domain **domain,
                 uint64_t flags,
                 void *context);
};

// `struct fid_fabric` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fid_fabric {
  struct fid fid;
  struct fi_ops_fabric *ops;
  uint32_t api_version;
};

// `struct fi_fabric_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_fabric_attr {
  struct fid_fabric *fabric;
  char *name;
  char *prov_name;
  uint32_t prov_version;
  uint32_t api_version;
};

// `struct fi_alias` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_alias {
  struct fid **fid;
  uint64_t flags;
};

// `struct fi_fid_var` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_fid_var {
  int name;
  void *val;
};

// `struct fi_mr_raw_attr` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_mr_raw_attr {
  uint64_t flags;
  uint64_t *base_addr;
  uint8_t *raw_key;
  size_t *key_size;
};

// `struct fi_mr_xpu_desc` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_mr_xpu_desc {
  void *buf;
  size_t *len;
  uint64_t flags;
  struct fid_xpu_ctx *ctx;
};

// `struct fi_mr_map_raw` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_mr_map_raw {
  uint64_t flags;
  uint64_t base_addr;
  uint8_t *raw_key;
  size_t key_size;
  uint64_t *key;
};

// `struct fi_param` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_param {
  const char *name;
  enum fi_param_type type;
  const char *help_string;
  const char *value;
};

// Space the application lends to the provider for the life of an operation (mode FI_CONTEXT).
struct fi_context {
  void *internal[4];
};

// As fi_context, twice the size (mode FI_CONTEXT2).
struct fi_context2 {
  void *internal[8];
};

// `struct fi_recv_context` of the public headers; see fi_fabric(3), fi_getinfo(3).
struct fi_recv_context {
  struct fid_ep *ep;
  void *context;
};

// `struct fi_mr_dmabuf` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fi_mr_dmabuf {
  int fd;
  uint64_t offset;
  size_t len;
  void *base_addr;
};

// `struct fi_mr_auth_key` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fi_mr_auth_key {
  struct fid_av *av;
  fi_addr_t src_addr;
};

// `struct fi_mr_modify` of the public headers; see fi_domain(3), fi_mr(3), fi_av(3).
struct fi_mr_modify {
  uint64_t flags;
  struct fi_mr_attr attr;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_domain(3),
// fi_mr(3), fi_av(3).
struct fi_hmem_override_ops {
  size_t size;
  ssize_t (*copy_from_hmem_iov)(void *buf,
                                size_t len,
                                enum fi_hmem_iface iface,
                                uint64_t flags,
                                const struct iovec *iov,
                                size_t len2,
                                uint64_t flags2);
  ssize_t (*copy_to_hmem_iov)(enum fi_hmem_iface iface,
                              uint64_t flags,
                              const struct iovec *iov,
                              size_t len,
                              uint64_t flags2,
                              const void *buf,
                              size_t len2);
};

// `struct fi_wait_pollfd` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_wait_pollfd {
  uint64_t change_index;
  size_t nfds;
  struct pollfd *fd;
};

// `struct fi_eq_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_eq_entry {
  fid_t fid;
  void *context;
  uint64_t data;
};

// `struct fi_cq_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_cq_entry {
  void *op_context;
};

// `struct fi_cq_msg_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_cq_msg_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
};

// `struct fi_cq_data_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3), fi_poll(3).
struct fi_cq_data_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
};

// `struct fi_cq_tagged_entry` of the public headers; see fi_eq(3), fi_cq(3), fi_cntr(3),
// fi_poll(3).
struct fi_cq_tagged_entry {
  void *op_context;
  uint64_t flags;
  size_t len;
  void *buf;
  uint64_t data;
  uint64_t tag;
};

// `struct fi_msg_fetch` of the public headers; see fi_atomic(3).
struct fi_msg_fetch {
  struct fi_ioc *msg_iov;
  void **desc;
  size_t iov_count;
};

// `struct fi_msg_compare` of the public headers; see fi_atomic(3).
struct fi_msg_compare {
  const struct fi_ioc *msg_iov;
  void **desc;
  size_t iov_count;
};

// `struct fi_collective_addr` of the public headers; see fi_collective(3), fi_av_set(3).
struct fi_collective_addr {
  const struct fid_av_set *set;
  fi_addr_t coll_addr;
};

// `struct fi_trigger_threshold` of the public headers; see fi_trigger(3).
struct fi_trigger_threshold {
  struct fid_cntr *cntr;
  size_t threshold;
};

union fi_trigger_var_value {
  uint8_t val8;
  uint16_t val16;
  uint32_t val32;
  uint64_t val64;
  uint8_t *data;
};

// `struct fi_trigger_var` of the public headers; see fi_trigger(3).
struct fi_trigger_var {
  enum fi_datatype datatype;
  int count;
  void *addr;
  union fi_trigger_var_value value;
};

union fi_trigger_xpu_device {
  uint64_t reserved;
  int cuda;
  int ze;
};

// `struct fi_trigger_xpu` of the public headers; see fi_trigger(3).
struct fi_trigger_xpu {
  int count;
  enum fi_hmem_iface iface;
  union fi_trigger_xpu_device device;
  struct fi_trigger_var *var;
};

// `struct fi_op_msg` of the public headers; see fi_trigger(3).
struct fi_op_msg {
  struct fid_ep *ep;
  struct fi_msg msg;
  uint64_t flags;
};

// `struct fi_op_tagged` of the public headers; see fi_trigger(3).
struct fi_op_tagged {
  struct fid_ep *ep;
  struct fi_msg_tagged msg;
  uint64_t flags;
};

// `struct fi_op_rma` of the public headers; see fi_trigger(3).
struct fi_op_rma {
  struct fid_ep *ep;
  struct fi_msg_rma msg;
  uint64_t flags;
};

// `struct fi_op_atomic` of the public headers; see fi_trigger(3).
struct fi_op_atomic {
  struct fid_ep *ep;
  struct fi_msg_atomic msg;
  uint64_t flags;
};

// `struct fi_op_fetch_atomic` of the public headers; see fi_trigger(3).
struct fi_op_fetch_atomic {
  struct fid_ep *ep;
  struct fi_msg_atomic msg;
  struct fi_msg_fetch fetch;
  uint64_t flags;
};

// `struct fi_op_compare_atomic` of the public headers; see fi_trigger(3).
struct fi_op_compare_atomic {
  struct fid_ep *ep;
  struct fi_msg_atomic msg;
  struct fi_msg_fetch fetch;
  struct fi_msg_compare compare;
  uint64_t flags;
};

// `struct fi_op_cntr` of the public headers; see fi_trigger(3).
struct fi_op_cntr {
  struct fid_cntr *cntr;
  uint64_t value;
};

union fi_triggered_context_trigger {
  struct fi_trigger_threshold threshold;
  struct fi_trigger_xpu xpu;
  void *internal[3];
};

// `struct fi_triggered_context` of the public headers; see fi_trigger(3).
struct fi_triggered_context {
  enum fi_trigger_event event_type;
  union fi_triggered_context_trigger trigger;
};

union fi_triggered_context2_trigger {
  struct fi_trigger_threshold threshold;
  struct fi_trigger_xpu xpu;
  void *internal[7];
};

// `struct fi_triggered_context2` of the public headers; see fi_trigger(3).
struct fi_triggered_context2 {
  enum fi_trigger_event event_type;
  union fi_triggered_context2_trigger trigger;
};

union fi_deferred_work_op {
  struct fi_op_msg *msg;
  struct fi_op_tagged *tagged;
  struct fi_op_rma *rma;
  struct fi_op_atomic *atomic;
  struct fi_op_fetch_atomic *fetch_atomic;
  struct fi_op_compare_atomic *compare_atomic;
  struct fi_op_cntr *cntr;
};

// `struct fi_deferred_work` of the public headers; see fi_trigger(3).
struct fi_deferred_work {
  struct fi_context2 context;
  uint64_t threshold;
  struct fid_cntr *triggering_cntr;
  struct fid_cntr *completion_cntr;
  enum fi_op_type op_type;
  union fi_deferred_work_op op;
};

// `struct fi_fid_export` of the public headers; see fi_provider(7), fi_mr(3).
struct fi_fid_export {
  struct fid **fid;
  uint64_t flags;
  void *context;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
// fi_mr(3).
struct fi_ops_mem_notify {
  size_t size;
  void (*notify)(struct fid_mem_monitor *mem_monitor, const void *buf, size_t len);
};

// `struct fid_mem_monitor` of the public headers; see fi_provider(7), fi_mr(3).
struct fid_mem_monitor {
  struct fid fid;
  struct fi_ops_mem_monitor *export_ops;
  struct fi_ops_mem_notify *import_ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
// fi_mr(3).
struct fi_ops_mem_monitor {
  size_t size;
  int (*start)(struct fid_mem_monitor *mem_monitor);
  void (*stop)(struct fid_mem_monitor *mem_monitor);
  int (*subscribe)(struct fid_mem_monitor *mem_monitor, const void *buf, size_t len);
  void (*unsubscribe)(struct fid_mem_monitor *mem_monitor, const void *buf, size_t len);
  bool (*valid)(struct fid_mem_monitor *mem_monitor, const void *buf, size_t len);
};

// What an external provider returns from its entry point `fi_prov_ini`.
struct fi_provider {
  uint32_t version;
  uint32_t fi_version;
  struct fi_context context;
  const char *name;
  int (*getinfo)(uint32_t word,
                 const char *name,
                 const char *name2,
                 uint64_t flags,
                 const struct fi_info *info,
                 struct fi_info **info2);
  int (*fabric)(struct fi_fabric_attr *fabric_attr, struct fid_fabric **fabric, void *buf);
  void (*cleanup)(void);
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_provider(7),
// fi_mr(3).
struct fi_ops_log {
  size_t size;
  int (*enabled)(const struct fi_provider *prov,
                 enum fi_log_level level,
                 enum fi_log_subsys subsys,
                 uint64_t flags);
  int (*ready)(const struct fi_provider *prov,
               enum fi_log_level level,
               enum fi_log_subsys subsys,
               uint64_t flags,
               uint64_t *flags2);
  void (*log)(const struct fi_provider *prov,
              enum fi_log_level level,
              enum fi_log_subsys subsys,
              const char *name,
              int index,
              const char *name2);
};

// `struct fid_logging` of the public headers; see fi_provider(7), fi_mr(3).
struct fid_logging {
  struct fid fid;
  struct fi_ops_log *ops;
};

// `struct fi_efa_mr_attr` of the public headers; see fi_efa(7).
struct fi_efa_mr_attr {
  uint16_t ic_id_validity;
  uint16_t recv_ic_id;
  uint16_t rdma_read_ic_id;
  uint16_t rdma_recv_ic_id;
};

// `struct fi_efa_wq_attr` of the public headers; see fi_efa(7).
struct fi_efa_wq_attr {
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
  uint32_t *doorbell;
  uint32_t max_batch;
  uint16_t caps;
};

// `struct fi_efa_cq_attr` of the public headers; see fi_efa(7).
struct fi_efa_cq_attr {
  uint8_t *buffer;
  uint32_t entry_size;
  uint32_t num_entries;
};

struct fi_efa_cq_init_attr_ext_mem_dmabuf {
  uint8_t *buffer;
  uint64_t length;
  uint64_t offset;
  uint32_t fd;
};

// `struct fi_efa_cq_init_attr` of the public headers; see fi_efa(7).
struct fi_efa_cq_init_attr {
  uint64_t flags;
  struct fi_efa_cq_init_attr_ext_mem_dmabuf ext_mem_dmabuf;
};

struct fi_efa_memory_location_dmabuf {
  uint64_t offset;
  int32_t fd;
  uint32_t reserved;
};

// `struct fi_efa_memory_location` of the public headers; see fi_efa(7).
struct fi_efa_memory_location {
  uint8_t *ptr;
  struct fi_efa_memory_location_dmabuf dmabuf;
  uint8_t type;
  uint8_t reserved[7];
};

// `struct fi_efa_comp_cntr_init_attr` of the public headers; see fi_efa(7).
struct fi_efa_comp_cntr_init_attr {
  uint64_t comp_mask;
  uint32_t flags;
  uint32_t reserved;
  struct fi_efa_memory_location comp_cntr_ext_mem;
  struct fi_efa_memory_location err_cntr_ext_mem;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
struct fi_efa_ops_domain {
  int (*query_mr)(struct fid_mr *mr, struct fi_efa_mr_attr *efa_mr_attr);
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
struct fi_efa_ops_gda {
  int (*query_addr)(struct fid_ep *ep,
                    fi_addr_t addr,
                    uint16_t *half,
                    uint16_t *half2,
                    uint32_t *word);
  int (*query_qp_wqs)(struct fid_ep *ep,
                      struct fi_efa_wq_attr *efa_wq_attr,
                      struct fi_efa_wq_attr *efa_wq_attr2);
  int (*query_cq)(struct fid_cq *cq, struct fi_efa_cq_attr *efa_cq_attr);
  int (*cq_open_ext)(struct fid_domain *domain,
                     struct fi_cq_attr *cq_attr,
                     struct fi_efa_cq_init_attr *efa_cq_init_attr,
                     struct fid_cq **cq,
                     void *buf);
  uint64_t (*get_mr_lkey)(struct fid_mr *mr);
  int (*cntr_open_ext)(struct fid_domain *domain,
                       struct fi_cntr_attr *cntr_attr,
                       struct fid_cntr **cntr,
                       void *buf,
                       struct fi_efa_comp_cntr_init_attr *efa_comp_cntr_init_attr);
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_efa(7).
struct fi_efa_feature_ops {
  bool (*query)(const char *name);
};

union fi_profile_desc_datatype {
  enum fi_datatype primitive;
  enum fi_type defined;
};

// `struct fi_profile_desc` of the public headers; see fi_profile(3).
struct fi_profile_desc {
  uint32_t id;
  enum fi_profile_type datatype_sel;
  union fi_profile_desc_datatype datatype;
  uint64_t flags;
  size_t size;
  const char *name;
  const char *desc;
};

// `struct fid_profile` of the public headers; see fi_profile(3).
struct fid_profile {
  struct fid fid;
  struct fi_profile_ops *ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_profile(3).
struct fi_profile_ops {
  size_t size;
  void (*reset)(struct fid_profile *prof_fid, uint64_t flags);
  ssize_t (*query_vars)(struct fid_profile *prof_fid, struct fi_profile_desc *varlist, size_t *count);
  ssize_t (*query_events)(struct fid_profile *prof_fid,
                          struct fi_profile_desc *eventlist,
                          size_t *count);
  ssize_t (*read_var)(struct fid_profile *profile, uint32_t word, void *buf, size_t *len);
  int (*reg_callback)(struct fid_profile *prof_fid,
                      uint32_t event_id,
                      int (*callback)(struct fid_profile *profile,
                                      struct fi_profile_desc *profile_desc,
                                      void *buf,
                                      size_t len,
                                      void *buf2),
                      void *context);
  void (*start_reads)(struct fid_profile *prof_fid, uint64_t flags);
  void (*end_reads)(struct fid_profile *prof_fid, uint64_t flags);
};

// `struct fid_peer_av` of the public headers; see fi_peer(3).
struct fid_peer_av {
  struct fid fid;
  struct fi_ops_av_owner *owner_ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_av_owner {
  size_t size;
  int (*query)(struct fid_peer_av *peer_av, struct fi_av_attr *av_attr);
  fi_addr_t (*ep_addr)(struct fid_peer_av *peer_av, struct fid_ep *ep);
};

// `struct fi_peer_av_context` of the public headers; see fi_peer(3).
struct fi_peer_av_context {
  size_t size;
  struct fid_peer_av *av;
};

// `struct fid_peer_av_set` of the public headers; see fi_peer(3).
struct fid_peer_av_set {
  struct fid fid;
  struct fi_ops_av_set_owner *owner_ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_av_set_owner {
  size_t size;
  int (*members)(struct fid_peer_av_set *peer_av_set, fi_addr_t *addr, size_t *len);
};

// `struct fi_peer_av_set_context` of the public headers; see fi_peer(3).
struct fi_peer_av_set_context {
  size_t size;
  struct fi_peer_av_set *av_set;
};

// `struct fid_peer_cq` of the public headers; see fi_peer(3).
struct fid_peer_cq {
  struct fid fid;
  struct fi_ops_cq_owner *owner_ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_cq_owner {
  size_t size;
  ssize_t (*write)(struct fid_peer_cq *peer_cq,
                   void *buf,
                   uint64_t flags,
                   size_t len,
                   void *buf2,
                   uint64_t flags2,
                   uint64_t flags3,
                   fi_addr_t addr);
  ssize_t (*writeerr)(struct fid_peer_cq *peer_cq, const struct fi_cq_err_entry *cq_err_entry);
};

// `struct fi_peer_cq_context` of the public headers; see fi_peer(3).
struct fi_peer_cq_context {
  size_t size;
  struct fid_peer_cq *cq;
};

// `struct fid_peer_cntr` of the public headers; see fi_peer(3).
struct fid_peer_cntr {
  struct fid fid;
  struct fi_ops_cntr_owner *owner_ops;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_cntr_owner {
  size_t size;
  void (*inc)(struct fid_peer_cntr *peer_cntr);
  void (*incerr)(struct fid_peer_cntr *peer_cntr);
};

// `struct fi_peer_cntr_context` of the public headers; see fi_peer(3).
struct fi_peer_cntr_context {
  size_t size;
  struct fid_peer_cntr *cntr;
};

// `struct fi_peer_domain_context` of the public headers; see fi_peer(3).
struct fi_peer_domain_context {
  size_t size;
  struct fid_domain *domain;
};

// `struct fi_peer_eq_context` of the public headers; see fi_peer(3).
struct fi_peer_eq_context {
  size_t size;
  struct fid_eq *eq;
};

// `struct fi_peer_match_attr` of the public headers; see fi_peer(3).
struct fi_peer_match_attr {
  fi_addr_t addr;
  size_t msg_size;
  uint64_t tag;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_srx_owner {
  size_t size;
  int (*get_msg)(struct fid_peer_srx *peer_srx,
                 struct fi_peer_match_attr *peer_match_attr,
                 struct fi_peer_rx_entry **peer_rx_entry);
  int (*get_tag)(struct fid_peer_srx *peer_srx,
                 struct fi_peer_match_attr *peer_match_attr,
                 struct fi_peer_rx_entry **peer_rx_entry);
  int (*queue_msg)(struct fi_peer_rx_entry *peer_rx_entry);
  int (*queue_tag)(struct fi_peer_rx_entry *peer_rx_entry);
  void (*foreach_unspec_addr)(struct fid_peer_srx *peer_srx,
                              fi_addr_t (*get_addr)(struct fi_peer_rx_entry *peer_rx_entry));
  void (*free_entry)(struct fi_peer_rx_entry *peer_rx_entry);
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_srx_peer {
  size_t size;
  int (*start_msg)(struct fi_peer_rx_entry *peer_rx_entry);
  int (*start_tag)(struct fi_peer_rx_entry *peer_rx_entry);
  int (*discard_msg)(struct fi_peer_rx_entry *peer_rx_entry);
  int (*discard_tag)(struct fi_peer_rx_entry *peer_rx_entry);
};

// `struct fid_peer_srx` of the public headers; see fi_peer(3).
struct fid_peer_srx {
  struct fid_ep ep_fid;
  struct fi_ops_srx_owner *owner_ops;
  struct fi_ops_srx_peer *peer_ops;
};

// `struct fi_peer_rx_entry` of the public headers; see fi_peer(3).
struct fi_peer_rx_entry {
  struct fid_peer_srx *srx;
  fi_addr_t addr;
  size_t msg_size;
  uint64_t tag;
  uint64_t cq_data;
  uint64_t flags;
  void *context;
  size_t count;
  void **desc;
  void *peer_context;
  void *owner_context;
  struct iovec *iov;
};

// `struct fi_peer_srx_context` of the public headers; see fi_peer(3).
struct fi_peer_srx_context {
  size_t size;
  struct fid_peer_srx *srx;
};

// Operations table; `size` is its size in bytes as the provider knows it. See fi_peer(3).
struct fi_ops_transfer_peer {
  size_t size;
  ssize_t (*complete)(struct fid_ep *ep, struct fi_cq_tagged_entry *cq_tagged_entry, fi_addr_t addr);
  ssize_t (*comperr)(struct fid_ep *ep, struct fi_cq_err_entry *cq_err_entry);
};

// `struct fi_peer_transfer_context` of the public headers; see fi_peer(3).
struct fi_peer_transfer_context {
  size_t size;
  struct fi_info *info;
  struct fid_ep *ep;
  struct fi_ops_transfer_peer *peer_ops;
};

#endif /* FI_GEN_TYPES_H */
