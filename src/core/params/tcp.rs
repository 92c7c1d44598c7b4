//! Every `FI_TCP_*` parameter, with what it does here, and its value.

use super::table::{param_kind, param_table, BOOL, INT, SIZE};
use super::Def;
use crate::core::budget;
use std::sync::OnceLock;

/// FI_TCP_SAVED_TOTAL where memory is plentiful, bytes.
const SAVED_TOTAL: usize = 256 << 20;

/// No endpoint injects more, bytes: what is longer is refused before it is copied.
pub const INJECT_MOST: usize = 16 << 20;

impl TcpParams {
    /// The largest injected message.
    pub fn inject_most(&self) -> usize {
        self.max_inject.min(INJECT_MOST)
    }

    /// FI_TCP_SAVED_TOTAL, for a domain that is being opened.
    pub fn saved_total_now(&self) -> usize {
        let default = || budget::share("FI_TCP_SAVED_TOTAL", SAVED_TOTAL, 16);
        self.saved_total.unwrap_or_else(default)
    }
}

param_table! {
    TcpParams of Some("tcp");
    iface: text = None, "Network interface, or local IP address, to use. Default: all.";
    port_low_range: int = 0, "Lowest port to listen on; 0: the system chooses.";
    port_high_range: int = 0, "Highest port to listen on; 0: the system chooses.";
    tx_size: size = 256,
        "Operations to one peer that applications should count on (tx_attr->size).";
    rx_size: size = 256, "Receives of an endpoint that applications should count on.";
    max_inject: size = 4096,
        "Largest injected message (tx_attr->inject_size), bytes; at most 16 MiB.";
    max_saved: size = 0,
        "Messages without a receive that are kept of one peer before its connection is not read \
         any more; 0: no limit.";
    max_saved_size: size = usize::MAX,
        "Largest message that is kept without a receive, and largest tagged message that is sent \
         without asking, bytes.";
    saved_total: limit = None,
        "Bytes of messages without a receive that an endpoint keeps before connections are not \
         read any more. Default 268435456 (256 MiB), or a sixteenth of the memory that the process \
         may have if that is less.";
    nodelay: flag = true,
        "Set TCP_NODELAY. Off: the system holds short messages back (Nagle's algorithm), and the \
         library gathers none.";
    disable_auto_progress: flag = false, "Start no thread for FI_PROGRESS_AUTO.";
    connect_timeout_ms: size = 10_000,
        "Milliseconds for a connection to come about, before what waits for it fails.";
}

/// Parameters of the C provider without a meaning here, and why.
const NO_EFFECT: &[Def] = &[
    Def {
        name: "max_rx_size",
        kind: SIZE,
        help: "Size of message buffers. No effect: each is as large as its message.",
    },
    Def {
        name: "staging_sbuf_size",
        kind: INT,
        help: "Bytes in which sends are gathered. No effect: several leave by one system call.",
    },
    Def {
        name: "prefetch_rbuf_size",
        kind: INT,
        help: "Bytes read ahead on each connection. No effect: all connections share a buffer.",
    },
    Def {
        name: "zerocopy_size",
        kind: SIZE,
        help: "Smallest message that the kernel sends without a copy. No effect: not used.",
    },
    Def {
        name: "trace_msg",
        kind: BOOL,
        help: "Write every header to the log. No effect: see tcpdump(8).",
    },
    Def {
        name: "io_uring",
        kind: BOOL,
        help: "Use io_uring(7). No effect: not used.",
    },
];

/// The values, read when this is called for the first time; fi_getparams(3) lists the parameters
/// from then on.
pub fn tcp() -> &'static TcpParams {
    static VALUES: OnceLock<TcpParams> = OnceLock::new();
    VALUES.get_or_init(|| {
        super::define_all(Some("tcp"), NO_EFFECT);
        TcpParams::read()
    })
}
