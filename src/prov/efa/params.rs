//! Every `FI_EFA_*` parameter, with what it does here.
//!
//! Parameters of the C provider are all known, so that a job's environment means the same or is
//! answered honestly; those without effect yet say so in their help text.

use crate::core::params::{define_all, Def};
use crate::types::*;
use std::sync::Once;

const fn d(name: &'static str, kind: fi_param_type, help: &'static str) -> Def {
    Def { name, kind, help }
}

const STR: fi_param_type = FI_PARAM_STRING;
const INT: fi_param_type = FI_PARAM_INT;
const BOOL: fi_param_type = FI_PARAM_BOOL;
const SIZE: fi_param_type = FI_PARAM_SIZE_T;

/// The table.
pub const TABLE: &[Def] = &[
    d("soft", STR, "Software adapter: auto (when no EFA is found), on, off. Default auto."),
    d(
        "soft_iface",
        STR,
        "Network interface, or local IP address, that the software adapter is bound to. Default: \
         loopback.",
    ),
    d(
        "soft_key_file",
        STR,
        "Path of a file with one or two keys of 64 hexadecimal digits: packets of the software \
         adapter off loopback are encrypted and authenticated by them. require: nothing is opened \
         off loopback until a path is given. Default: none, in clear.",
    ),
    d(
        "soft_timeout_ms",
        SIZE,
        "Milliseconds after which a peer that does not answer is given up, with error completions \
         for what it owed. Default 5000.",
    ),
    d(
        "soft_mr_mode",
        STR,
        "basic: keys of the adapter's, virtual addresses, as a real adapter has them. scalable: \
         keys of the application's choice, offsets (mr_mode 0). Default basic.",
    ),
    d(
        "soft_fault",
        STR,
        "For tests: loss=P,dup=P,reorder=P,delay=US,seed=N makes the software adapter lose, double \
         and reorder datagrams, in percent.",
    ),
    d(
        "unexpected_size",
        SIZE,
        "Bytes of unexpected messages an endpoint keeps before their senders are told to wait; up \
         to four times as much while receives are posted. Default 67108864.",
    ),
    d("iface", STR, "Comma list of adapters to use, or all. Default all."),
    d(
        "tx_size",
        SIZE,
        "Send operations under way per endpoint; 0 asks the adapter. No effect yet.",
    ),
    d(
        "rx_size",
        SIZE,
        "Receive operations per endpoint; 0 asks the adapter. No effect yet: receives are not \
         limited.",
    ),
    d(
        "tx_queue_size",
        INT,
        "Depth of the adapter's send queue, at least 2048 here; 0 asks the adapter. Default 0.",
    ),
    d(
        "tx_min_credits",
        INT,
        "Smallest window of a long message in packets. No effect: windows are granted whole.",
    ),
    d("enable_shm_transfer", BOOL, "Reach peers on the same host through shared memory."),
    d("use_zcpy_rx", BOOL, "Receive without an intermediate buffer where possible. No effect yet."),
    d(
        "shm_attach",
        BOOL,
        "Read and write the memory of peers on the same host directly, where the system permits it \
         (process_vm_readv(2)).",
    ),
    d(
        "shm_av_size",
        INT,
        "Most peers reached through shared memory. No effect: there is no such limit.",
    ),
    d(
        "recvwin_size",
        INT,
        "Messages per peer kept while an earlier one is missing. No effect: the window is 1048576.",
    ),
    d("readcopy_pool_size", INT, "Buffers for copying to device memory. No effect yet."),
    d("cq_size", INT, "Least size of a completion queue. No effect: queues grow as needed."),
    d(
        "mr_cache_enable",
        BOOL,
        "Keep registrations of buffers that the application did not register, until it gives them \
         back, where userfaultfd(2) tells of that. Default 1.",
    ),
    d(
        "mr_max_cached_count",
        SIZE,
        "Most registrations that are kept. Default a quarter of the adapter's, at most 1024.",
    ),
    d("mr_max_cached_size", SIZE, "Most bytes of kept registrations. No limit by default."),
    d(
        "max_memcpy_size",
        SIZE,
        "Messages up to this size are copied rather than registered. No effect yet.",
    ),
    d("rx_copy_unexp", BOOL, "Copy unexpected messages out of receive buffers. Always done here."),
    d(
        "rx_copy_ooo",
        BOOL,
        "Copy messages that come before their turn out of receive buffers. Always done here.",
    ),
    d(
        "max_timeout",
        INT,
        "Longest back-off after receiver-not-ready, microseconds. No effect: 20000.",
    ),
    d(
        "timeout_interval",
        INT,
        "First back-off after receiver-not-ready, microseconds. No effect: 100.",
    ),
    d(
        "efa_cq_read_size",
        SIZE,
        "Adapter completions taken per progress call. No effect: a batch of the socket.",
    ),
    d(
        "shm_cq_read_size",
        SIZE,
        "Shared memory completions taken per progress call. No effect yet.",
    ),
    d(
        "inter_max_medium_message_size",
        INT,
        "Largest message sent by the medium protocol, bytes. Default 65536.",
    ),
    d(
        "inter_min_read_message_size",
        INT,
        "Smallest message that its receiver reads, bytes. Default 1048576.",
    ),
    d("inter_max_gdrcopy_message_size", INT, "Largest message copied by gdrcopy. No effect yet."),
    d(
        "inter_min_read_write_size",
        INT,
        "Smallest emulated write that its target reads, bytes. Default 65536.",
    ),
    d(
        "inter_read_segment_size",
        INT,
        "Largest single read of a message, bytes. Default 1073741824.",
    ),
    d("runt_size", INT, "Bytes of a message sent ahead of its read. Default 0, none."),
    d(
        "fork_safe",
        BOOL,
        "Keep registered memory usable after fork(2) on kernels before 5.12 (ibv_fork_init(3)). \
         Default 0. The software adapter pins nothing.",
    ),
    d(
        "use_device_rdma",
        BOOL,
        "Use the adapter's RDMA; else reads and writes are emulated with messages. Default 1.",
    ),
    d("use_sm2", BOOL, "Use provider sm2 for shared memory. No effect."),
    d(
        "use_huge_page",
        BOOL,
        "Huge pages for packets of a real adapter. No effect: taken when the system has some free, \
         never missed.",
    ),
    d(
        "use_unsolicited_write_recv",
        BOOL,
        "Writes with immediate data consume no receive. Always so here.",
    ),
    d(
        "internal_rx_refill_threshold",
        SIZE,
        "Receive buffers that must be missing before they are posted again. No effect yet.",
    ),
    d(
        "use_data_path_direct",
        BOOL,
        "Drive the adapter's queues in place, without calls of rdma-core, where it gives them out \
         (version 60 and later). Default 1.",
    ),
    d("implicit_av_size", SIZE, "Most peers known only by their messages. No effect: unlimited."),
    d("track_mr", BOOL, "Warn when a region is closed in use. No effect yet."),
];

/// Defines them, once; fi_getparams(3) lists them from then on.
pub fn define() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| define_all(Some("efa"), TABLE));
}
