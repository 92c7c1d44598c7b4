//! What the emulated adapters are and can do.

use clap::Args;

/// Options of `efa-sim run`.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Adapters in the machine, at most 16.
    #[arg(long, default_value_t = 1)]
    pub adapters: u32,
    /// PCI device id: efa0 and efa1 are older generations; efa3 is known to rdma-core from version
    /// 53 on.
    #[arg(long, default_value = "efa2", value_parser = hex)]
    pub device_id: u32,
    /// PCI addresses of the adapters, instead of 0000:00:06.0, 0000:01:06.0, ...
    #[arg(long, value_delimiter = ',')]
    pub pci: Vec<String>,
    /// Largest message, bytes.
    #[arg(long, default_value_t = 8928)]
    pub mtu: u32,
    /// Largest read or write, bytes.
    #[arg(long, default_value_t = 1 << 30)]
    pub rdma_size: u32,
    /// The adapter reads no remote memory.
    #[arg(long)]
    pub no_rdma_read: bool,
    /// The adapter writes no remote memory.
    #[arg(long)]
    pub no_rdma_write: bool,
    /// The number of receiver-not-ready retries cannot be set.
    #[arg(long)]
    pub no_rnr_retry: bool,
    /// Completions do not name senders without an address handle.
    #[arg(long)]
    pub no_sgid: bool,
    /// A write with immediate data always takes a receive.
    #[arg(long)]
    pub no_unsolicited: bool,
    /// Completion queues cannot notify.
    #[arg(long)]
    pub no_notify: bool,
    /// Completion queues lie in memory of the adapter's choice.
    #[arg(long)]
    pub no_external: bool,
    /// The adapter has no completion counters.
    #[arg(long)]
    pub no_counters: bool,
    /// Aligned 128 bytes reach memory in order.
    #[arg(long)]
    pub in_order: bool,
    /// The service levels of queue pairs.
    #[arg(long, value_delimiter = ',', default_value = "0,8")]
    pub service_levels: Vec<u8>,
    /// Most entries of a send queue.
    #[arg(long, default_value_t = 4096)]
    pub send_queue: u32,
    /// Most descriptors of a receive queue.
    #[arg(long, default_value_t = 32768)]
    pub recv_queue: u32,
    /// Bytes that fit into a request itself.
    #[arg(long, default_value_t = 32)]
    pub inline: u32,
    /// Most work requests between two doorbells; 0: any number.
    #[arg(long, default_value_t = 0)]
    pub max_batch: u32,
    /// Rings in a completion queue; libfabric requires 1 of all devices but efa0.
    #[arg(long, default_value_t = 1)]
    pub sub_cqs: u32,
    /// Most memory registrations.
    #[arg(long, default_value_t = 262_144)]
    pub max_mr: u32,
    /// How far packets may overtake each other, in packets; 0: not at all.
    #[arg(long, default_value_t = 0)]
    pub reorder: usize,
    /// Seed of the random choices.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Percentage of packets whose first try finds a receiver that is not ready.
    #[arg(long, default_value_t = 0)]
    pub rnr: u32,
    /// Number of packets after which no peer answers.
    #[arg(long)]
    pub dead_after: Option<u64>,
    /// Number of packets after which the link is down and no peer can be reached.
    #[arg(long)]
    pub link_down_after: Option<u64>,
    /// Percentage of reads and writes that fail with a wrong key.
    #[arg(long, default_value_t = 0)]
    pub bad_keys: u32,
    /// The kernel has no ioctl commands, only write().
    #[arg(long)]
    pub old_kernel: bool,
    /// Log every command on standard error.
    #[arg(long, short)]
    pub verbose: bool,
}

fn hex(s: &str) -> Result<u32, String> {
    let s = s.strip_prefix("0x").unwrap_or(s);
    u32::from_str_radix(s, 16).map_err(|e| e.to_string())
}

impl Config {
    /// Device capabilities as the kernel states them.
    pub fn caps(&self) -> u32 {
        let bits = [
            (!self.no_rdma_read, 0),
            (!self.no_rnr_retry, 1),
            (!self.no_notify, 2),
            (!self.no_sgid, 3),
            (self.in_order, 4),
            (!self.no_rdma_write, 5),
            (!self.no_unsolicited && !self.no_rdma_write, 6),
            (!self.no_external, 7),
            (!self.no_counters, 8),
        ];
        bits.iter().map(|(on, bit)| u32::from(*on) << bit).sum()
    }

    /// PCI address of an adapter.
    pub fn pci_of(&self, n: u32) -> String {
        let other = || format!("0000:{n:02x}:06.0");
        self.pci.get(n as usize).cloned().unwrap_or_else(other)
    }

    /// GID of an adapter: link local, distinct per adapter.
    pub fn gid_of(&self, n: u32) -> [u8; 16] {
        let mut g = [0; 16];
        (g[0], g[1]) = (0xfe, 0x80);
        g[8..].copy_from_slice(&[0x02, 0xef, 0xa5, 0xff, 0xfe, 0, 0, n as u8 + 1]);
        g
    }

    /// Name of an adapter.
    pub fn name_of(&self, n: u32) -> String {
        format!("rdmap{n}s6")
    }

    /// Bytes of device memory for the largest send queue.
    pub fn llq_size(&self) -> u32 {
        let entry = if self.inline > 32 { 128 } else { 64 };
        self.send_queue * entry
    }
}
