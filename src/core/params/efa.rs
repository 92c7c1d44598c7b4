//! Every `FI_EFA_*` parameter, with what it does here, and its value.
//!
//! [`efa`] reads the values from the environment once, before the first object is opened. All
//! parameters of the C provider are defined, so that a job's environment keeps its meaning; the
//! help text of a parameter without effect gives the reason ([`NO_EFFECT`]). The table is in
//! `core`, below the provider, because adapters and transports read it.

use super::table::{param_kind, param_table, BOOL, INT, SIZE};
use super::Def;
use crate::core::budget;
use crate::types::FI_LOG_CORE;
use std::sync::OnceLock;

/// FI_EFA_UNEXPECTED_SIZE where memory is plentiful, bytes.
const UNEXPECTED_SIZE: usize = 64 << 20;

param_table! {
    EfaParams of Some("efa");
    soft: text = None, "Software adapter: auto (when no EFA is found), on, off. Default auto.";
    soft_iface: text = None,
        "Network interface, or local IP address, that the software adapter is bound to. Default: \
         loopback.";
    soft_key_file: text = None,
        "Path of a file with one or two keys of 64 hexadecimal digits: packets of the software \
         adapter off loopback are encrypted and authenticated by them. require: nothing is opened \
         off loopback until a path is given. Default: none, in clear.";
    soft_timeout_ms: size = 5000,
        "Milliseconds after which a peer that does not answer is given up, with error completions \
         for what it owed.";
    soft_mr_mode: text = None,
        "basic: keys of the adapter's, virtual addresses, as a real adapter has them. scalable: \
         keys of the application's choice, offsets (mr_mode 0). Default basic.";
    soft_fault: text = None,
        "For tests: loss=P,dup=P,reorder=P,delay=US,seed=N makes the software adapter lose, \
         double and reorder datagrams, in percent.";
    unexpected_size: limit = None,
        "Bytes of unexpected messages an endpoint keeps before their senders are told to wait; \
         while receives are posted, four times as much before those wait that sent most, 16 \
         times before all do. Default 67108864 (64 MiB), or an eighth of the memory that the \
         process may have if that is less; then all wait from a quarter of that memory on.";
    iface: text = None, "Comma list of adapters to use, or all. Default all.";
    tx_queue_size: int = 0,
        "Depth of the adapter's send queue, at least 2048 here; 0 asks the adapter.";
    enable_shm_transfer: flag = true, "Reach peers on the same host through shared memory.";
    shm_attach: flag = true,
        "Read and write the memory of peers on the same host directly, where the system permits \
         it (process_vm_readv(2)).";
    mr_cache_enable: flag = true,
        "Keep registrations of buffers that the application did not register, until it gives them \
         back, where userfaultfd(2) tells of that.";
    mr_max_cached_count: limit = None,
        "Most registrations that are kept. Default a quarter of the adapter's, at most 1024.";
    mr_max_cached_size: limit = None, "Most bytes of kept registrations. No limit by default.";
    inter_max_medium_message_size: int = 65_536,
        "Largest message sent by the medium protocol, bytes.";
    inter_min_read_message_size: int = 1 << 20, "Smallest message that its receiver reads, bytes.";
    inter_min_read_write_size: int = 65_536,
        "Smallest emulated write that its target reads, bytes.";
    inter_read_segment_size: int = 1 << 30, "Largest single read of a message, bytes.";
    runt_size: int = 0, "Bytes of a message sent ahead of its read.";
    fork_safe: flag = false,
        "Keep registered memory usable after fork(2) on kernels before 5.12 (ibv_fork_init(3)). \
         The software adapter pins nothing.";
    use_huge_page: choice = None,
        "Huge pages for packets of a real adapter, where the system has some free. Default: on, \
         unless FI_EFA_FORK_SAFE is on and the kernel does not copy pinned pages at fork(2); \
         both together are refused there.";
    use_device_rdma: choice = None,
        "Use the adapter's RDMA; else reads and writes are emulated with messages. Default: on; a \
         value that is set wins over FI_OPT_EFA_USE_DEVICE_RDMA.";
    use_data_path_direct: flag = true,
        "Drive the adapter's queues in place, without calls of rdma-core, where it gives them out \
         (version 59 and later).";
}

/// Parameters of the C provider without a meaning here, and why.
pub(crate) const NO_EFFECT: &[Def] = &[
    Def {
        name: "tx_size",
        kind: SIZE,
        help: "Send operations under way per endpoint. No effect: the depth of the send queue \
               (tx_queue_size) bounds them, and FI_EAGAIN says when it is full.",
    },
    Def {
        name: "rx_size",
        kind: SIZE,
        help: "Receive operations per endpoint. No effect: receives are not limited.",
    },
    Def {
        name: "tx_min_credits",
        kind: INT,
        help: "Smallest window of a long message in packets. No effect: windows are granted \
               whole.",
    },
    Def {
        name: "use_zcpy_rx",
        kind: BOOL,
        help: "Receive without an intermediate buffer where possible. No effect: messages on one \
               host and messages that are read come straight into their buffer; others are copied \
               once.",
    },
    Def {
        name: "shm_av_size",
        kind: INT,
        help: "Most peers reached through shared memory. No effect: there is no such limit.",
    },
    Def {
        name: "recvwin_size",
        kind: INT,
        help: "Messages per peer kept while an earlier one is missing. No effect: the window is \
               1048576.",
    },
    Def {
        name: "readcopy_pool_size",
        kind: INT,
        help: "Buffers for copying to device memory. No effect: copies need none of their own.",
    },
    Def {
        name: "cq_size",
        kind: INT,
        help: "Least size of a completion queue. No effect: queues grow as needed.",
    },
    Def {
        name: "max_memcpy_size",
        kind: SIZE,
        help: "Messages up to this size are copied rather than registered. No effect: the adapter \
               takes messages out of registered memory, and only those of one packet that are not \
               registered are copied.",
    },
    Def {
        name: "rx_copy_unexp",
        kind: BOOL,
        help: "Copy unexpected messages out of receive buffers. Always done here.",
    },
    Def {
        name: "rx_copy_ooo",
        kind: BOOL,
        help: "Copy messages that come before their turn out of receive buffers. Always done \
               here.",
    },
    Def {
        name: "max_timeout",
        kind: INT,
        help: "Longest back-off after receiver-not-ready, microseconds. No effect: 20000 on the \
               software adapter, 10000 on others.",
    },
    Def {
        name: "timeout_interval",
        kind: INT,
        help: "First back-off after receiver-not-ready, microseconds. No effect: 50.",
    },
    Def {
        name: "efa_cq_read_size",
        kind: SIZE,
        help: "Adapter completions taken per progress call. No effect: a batch of the socket.",
    },
    Def {
        name: "shm_cq_read_size",
        kind: SIZE,
        help: "Shared memory completions taken per progress call. No effect: as many as the \
               caller asks for.",
    },
    Def {
        name: "inter_max_gdrcopy_message_size",
        kind: INT,
        help: "Largest message sent by eager or long-CTS protocol because gdrcopy copies it. No \
               effect: FI_SHM_MAX_GDRCOPY_SIZE is the most that one copy takes, whatever the \
               protocol.",
    },
    Def {
        name: "use_sm2",
        kind: BOOL,
        help: "Use provider sm2 for shared memory. No effect.",
    },
    Def {
        name: "use_unsolicited_write_recv",
        kind: BOOL,
        help: "Writes with immediate data consume no receive. Always so here.",
    },
    Def {
        name: "internal_rx_refill_threshold",
        kind: SIZE,
        help: "Receive buffers that must be missing before they are posted again. No effect: \
               16.",
    },
    Def {
        name: "implicit_av_size",
        kind: SIZE,
        help: "Most peers known only by their messages. No effect: unlimited.",
    },
    Def {
        name: "track_mr",
        kind: BOOL,
        help: "Warn when a region is closed in use. No effect: closing waits for those who use \
               it.",
    },
];

impl EfaParams {
    /// Whether reads and writes may be the adapter's (FI_EFA_USE_DEVICE_RDMA).
    pub fn uses_device_rdma(&self) -> bool {
        self.use_device_rdma.unwrap_or(true)
    }

    /// FI_EFA_UNEXPECTED_SIZE, and the most that its multiples may be, for a domain that is being
    /// opened.
    pub fn unexpected_size_now(&self) -> (usize, usize) {
        let name = "FI_EFA_UNEXPECTED_SIZE";
        match self.unexpected_size {
            Some(bytes) => (bytes, usize::MAX),
            None => {
                let own = budget::share(name, UNEXPECTED_SIZE, 8);
                (own, budget::part_of_memory(4))
            }
        }
    }

    /// Milliseconds after which a silent peer is given up (FI_EFA_SOFT_TIMEOUT_MS), 50 to an hour.
    pub fn peer_timeout_ms(&self) -> u64 {
        self.soft_timeout_ms.clamp(50, 3_600_000) as u64
    }
}

/// The values, read when this is called for the first time; fi_getparams(3) lists the parameters
/// from then on.
pub fn efa() -> &'static EfaParams {
    static VALUES: OnceLock<EfaParams> = OnceLock::new();
    VALUES.get_or_init(|| {
        super::define_all(Some("efa"), NO_EFFECT);
        let mut p = EfaParams::read();
        for word in [&mut p.soft, &mut p.soft_mr_mode] {
            *word = word
                .take()
                .map(|w| w.to_lowercase())
                .filter(|w| !w.is_empty());
        }
        report_unknown("FI_EFA_SOFT", &p.soft, &SOFT_WORDS.concat());
        report_unknown(
            "FI_EFA_SOFT_MR_MODE",
            &p.soft_mr_mode,
            &["basic", "scalable"],
        );
        p
    })
}

/// Values of FI_EFA_SOFT: what leaves the choice open, what asks for the software adapter, and what
/// forbids it.
pub(crate) const SOFT_WORDS: [&[&str]; 3] = [
    &["auto"],
    &["on", "1", "yes", "true"],
    &["off", "0", "no", "false"],
];

/// Logs a value that is none of the words which a parameter takes, and counts as not set.
fn report_unknown(name: &str, value: &Option<String>, words: &[&str]) {
    if let Some(v) = value.as_deref().filter(|v| !words.contains(v)) {
        let words = words.join(", ");
        crate::warn_log!(FI_LOG_CORE, "{name}={v}: wanted one of {words}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_defined_once_and_says_what_it_does() {
        assert_eq!(efa().soft_timeout_ms, EfaParams::DEFAULT.soft_timeout_ms);
        let all = super::super::all();
        let efa: Vec<_> = all
            .iter()
            .filter(|p| p.env.starts_with("FI_EFA_"))
            .collect();
        assert_eq!(efa.len(), COUNT);
        for p in efa {
            assert!(
                p.help.len() > 20 && !p.help.contains("yet"),
                "{}: {}",
                p.env,
                p.help
            );
        }
    }

    /// As many as the C provider has, and ours.
    const COUNT: usize = 44;
}
