//! Endpoint options (fi_endpoint(3), fi_efa(7)): `fi_getopt` and `fi_setopt`.

use crate::core::Result;
use crate::device::any::Dev;
use crate::device::{AdapterAttr, PacketQp, QueuePair};
use crate::hmem::{self, MemKind};
use crate::prov::contract::OptionValue;
use crate::prov::efa::endpoint::{EndpointKind, Ep};
use crate::prov::efa::info::raw_max;
use crate::types::*;
use std::borrow::Cow;

/// Bytes that must be left in a multi-receive buffer for it to stay posted, unless set.
pub(crate) const MIN_MULTI_RECV: usize = 64;

/// Value of FI_OPT_EFA_RNR_RETRY, and of a queue pair, for unlimited retries.
const RNR_RETRY_FOR_EVER: usize = 7;

/// Its default for packets of the protocol, as the C library's: after these the library backs off,
/// so that a receiver that does not poll does not keep the adapter busy.
const RNR_RETRY_OF_PACKETS: usize = 3;

/// How an endpoint moves device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceMemory {
    /// Not at all: the endpoint lacks FI_HMEM.
    None,
    /// By the adapter's own work requests (efa-direct).
    Direct,
    /// By the adapter where it is registered, else by copies.
    PeerToPeer,
    /// By copies.
    Copied,
}

/// The values of the options; defaults depend on the adapter.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub min_multi_recv: usize,
    pub max_msg_size: usize,
    pub max_tagged_size: usize,
    pub max_rma_size: usize,
    pub inject_msg_size: usize,
    pub inject_tagged_size: usize,
    pub inject_rma_size: usize,
    pub inject_atomic_size: usize,
    pub max_atomic_size: usize,
    pub device_rdma: bool,
    /// Upper bounds: of messages, of reads and writes, of injected messages, of injected writes, of
    /// atomics.
    msg_limit: usize,
    rma_limit: usize,
    inject_limit: usize,
    inject_rma_limit: usize,
    atomic_limit: usize,
    /// Operations that the application may have under way (tx_attr->size).
    pub sends: usize,
    /// Its traffic class is FI_TC_LOW_LATENCY.
    pub low_latency: bool,
    rnr_retry: usize,
    rnr_limit: bool,
    /// The application manages its receives (FI_RM_DISABLED): without one its peer's send fails.
    rnr_reported: bool,
    /// The adapter is hardware.
    hardware: bool,
    p2p: i32,
    device_memory: DeviceMemory,
    shared_memory: bool,
    cuda_api: bool,
    homogeneous: bool,
    unsolicited: bool,
    /// Each aligned 128 bytes of a message, of a write, arrive in order.
    ordered_sends: bool,
    ordered_writes: bool,
    /// Fabric efa-direct, or FI_EP_DGRAM.
    no_protocol: bool,
    /// The adapter reads remote memory.
    rdma_read: bool,
    /// The endpoint has FI_RMA.
    pub(crate) rma: bool,
    /// A peer's write with data may take a receive of the application's (FI_RX_CQ_DATA).
    pub(crate) rx_cq_data: bool,
}

impl Options {
    /// Options of an endpoint whose injected messages are at most `inject` bytes long.
    pub(crate) fn new(inject: usize, atomic: usize) -> Options {
        Options {
            min_multi_recv: MIN_MULTI_RECV,
            max_msg_size: usize::MAX,
            max_tagged_size: usize::MAX,
            max_rma_size: usize::MAX,
            inject_msg_size: inject,
            inject_tagged_size: inject,
            inject_rma_size: inject,
            inject_atomic_size: inject,
            max_atomic_size: atomic,
            device_rdma: true,
            msg_limit: usize::MAX,
            rma_limit: usize::MAX,
            inject_limit: inject,
            inject_rma_limit: inject,
            atomic_limit: atomic,
            sends: 0,
            low_latency: false,
            rnr_retry: RNR_RETRY_FOR_EVER,
            rnr_limit: true,
            rnr_reported: false,
            hardware: false,
            p2p: FI_HMEM_P2P_DISABLED,
            device_memory: DeviceMemory::None,
            shared_memory: true,
            cuda_api: true,
            homogeneous: false,
            unsolicited: true,
            ordered_sends: false,
            ordered_writes: false,
            no_protocol: false,
            rdma_read: true,
            rma: true,
            rx_cq_data: false,
        }
    }
}

impl Options {
    /// Applies the limits of endpoints without protocol: a packet, the adapter's longest read or
    /// write, and the inline bytes of a work request for a write.
    pub(crate) fn of_kind(mut self, kind: EndpointKind, d: &AdapterAttr) -> Options {
        self.rnr_limit = d.raw.rnr_limit;
        self.rdma_read = d.caps.rdma_read;
        self.hardware = d.is_hardware();
        self.device_rdma = self.rdma_read;
        if kind == EndpointKind::Rdm && self.rnr_limit {
            self.rnr_retry = RNR_RETRY_OF_PACKETS;
        }
        if kind != EndpointKind::Rdm {
            self.no_protocol = true;
            self.p2p = FI_HMEM_P2P_REQUIRED;
            let longest = raw_max(d);
            (self.max_msg_size, self.msg_limit) = (longest, longest);
            (self.max_rma_size, self.rma_limit) = (d.max_rdma, d.max_rdma);
            let wide =
                d.raw.wide.is_some() && d.caps.rdma_write && self.inject_limit > d.raw.inline;
            self.inject_rma_limit = if wide { self.inject_limit } else { 0 };
            self.inject_rma_size = self.inject_rma_limit;
        }
        self
    }

    /// How an endpoint that may use device memory (FI_HMEM) moves it.
    pub(crate) fn with_device_memory(mut self, kind: EndpointKind) -> Options {
        use DeviceMemory::{Copied, Direct, PeerToPeer};
        hmem::expect_device_memory();
        (self.device_memory, self.p2p) = match kind {
            EndpointKind::Direct => (Direct, FI_HMEM_P2P_REQUIRED),
            _ if self.hardware && hmem::peer_to_peer() => (PeerToPeer, FI_HMEM_P2P_PREFERRED),
            _ => (Copied, FI_HMEM_P2P_DISABLED),
        };
        self
    }

    /// Whether device memory is copied: an adapter cannot reach it, or shall not.
    pub(crate) fn copies_device_memory(&self) -> bool {
        let unwanted = self.p2p == FI_HMEM_P2P_DISABLED;
        self.device_memory == DeviceMemory::Copied
            || self.device_memory == DeviceMemory::PeerToPeer && unwanted
    }

    /// Whether messages may go through shared memory, where CUDA copies device memory, and copies
    /// keep no order.
    pub(crate) fn uses_shm(&self) -> bool {
        self.shared_memory && self.cuda_api && !self.ordered_writes
    }

    /// Most bytes of an injected message.
    pub(crate) fn inject_limit(&self) -> usize {
        self.inject_limit
    }

    /// FI_OPT_EFA_RNR_RETRY.
    pub(crate) fn rnr_retry(&self) -> u8 {
        self.rnr_retry as u8
    }

    /// What its queue pair has to offer.
    pub(crate) fn packet_qp(&self, completions: usize) -> PacketQp {
        PacketQp {
            rnr_retry: self.rnr_retry(),
            rnr_reported: self.rnr_reported,
            sends: self.sends,
            completions,
            low_latency: self.low_latency,
        }
    }

    /// Applies `domain_attr->resource_mgmt`.
    pub(crate) fn with_resource_mgmt(mut self, wanted: fi_resource_mgmt) -> Options {
        self.rnr_reported = wanted == FI_RM_DISABLED;
        self
    }
}

/// Why a value is refused: what would have been accepted, and the errno.
struct Refusal {
    accepted: Cow<'static, str>,
    errno: i32,
}

fn refuse(accepted: impl Into<Cow<'static, str>>, errno: i32) -> std::result::Result<(), Refusal> {
    Err(Refusal {
        accepted: accepted.into(),
        errno,
    })
}

type Get<T> = fn(&Ep) -> T;
type Set<T> = fn(&mut Options, T) -> std::result::Result<(), Refusal>;

/// How an option is read and set, by the type of its value.
enum OptionAccess {
    Size(Get<usize>, Set<usize>),
    Int(Get<i32>, Set<i32>),
    Bool(Get<bool>, Set<bool>),
    /// The order of arriving bytes, of sends or else of writes, which the adapter may keep.
    Order(Get<bool>, fn(&mut Options) -> &mut bool, bool),
}

/// One option. What is set `BeforeEnable` is fixed by fi_enable(3).
struct Row {
    number: i32,
    name: &'static str,
    when: OptionTime,
    access: OptionAccess,
}

#[derive(PartialEq)]
enum OptionTime {
    AnyTime,
    BeforeEnable,
}

use OptionAccess::{Bool, Int, Order, Size};
use OptionTime::{AnyTime, BeforeEnable};

fn read_only<T>(_: &mut Options, _: T) -> std::result::Result<(), Refusal> {
    refuse("nothing: read only", FI_EINVAL)
}

/// Stores a value that is not bounded.
macro_rules! store {
    ($field:ident) => {
        |o, v| {
            o.$field = v;
            Ok(())
        }
    };
    ($field:ident at most $limit:ident) => {
        |o, v| {
            if v > o.$limit {
                return refuse(format!("at most {}", o.$limit), FI_EINVAL);
            }
            o.$field = v;
            Ok(())
        }
    };
}

fn set_rnr_retry(o: &mut Options, n: usize) -> std::result::Result<(), Refusal> {
    if n > RNR_RETRY_FOR_EVER {
        return refuse("0 to 7", FI_EINVAL);
    }
    if !o.rnr_limit {
        return refuse("none: the adapter tries for ever", FI_ENOSYS);
    }
    o.rnr_retry = n;
    Ok(())
}

fn set_p2p(o: &mut Options, n: i32) -> std::result::Result<(), Refusal> {
    use DeviceMemory::{Direct, None, PeerToPeer};
    match (n, o.device_memory) {
        (FI_HMEM_P2P_DISABLED, Direct) => {
            refuse("not disabled: efa-direct copies nothing", FI_EOPNOTSUPP)
        }
        (FI_HMEM_P2P_DISABLED, None) if o.no_protocol => {
            refuse("not disabled: nothing is copied", FI_EOPNOTSUPP)
        }
        (FI_HMEM_P2P_REQUIRED, None) if o.no_protocol => Ok(()),
        (FI_HMEM_P2P_REQUIRED, Direct | PeerToPeer)
        | (FI_HMEM_P2P_ENABLED | FI_HMEM_P2P_PREFERRED | FI_HMEM_P2P_DISABLED, _) => {
            // Without the wire protocol it is required, whatever else would do.
            if !o.no_protocol {
                o.p2p = n;
            }
            Ok(())
        }
        (FI_HMEM_P2P_REQUIRED, _) => refuse("not required: device memory is copied", FI_EOPNOTSUPP),
        _ => refuse("0 to 3", FI_EINVAL),
    }
}

fn set_device_rdma(o: &mut Options, on: bool) -> std::result::Result<(), Refusal> {
    let user = crate::core::params::efa().use_device_rdma;
    match (on, o.no_protocol) {
        _ if user.is_some_and(|user| user != on) => refuse(
            "what FI_EFA_USE_DEVICE_RDMA says, which the user has set",
            FI_EINVAL,
        ),
        (true, false) if !o.rdma_read => {
            refuse("false: the adapter reads no remote memory", FI_EOPNOTSUPP)
        }
        (false, true) if o.rma => refuse(
            "true: without the wire protocol there is no other way",
            FI_EOPNOTSUPP,
        ),
        (_, true) => Ok(()),
        (_, false) => {
            o.device_rdma = on;
            Ok(())
        }
    }
}

fn set_shared_memory(o: &mut Options, permitted: bool) -> std::result::Result<(), Refusal> {
    if permitted && !o.no_protocol && !crate::core::params::efa().enable_shm_transfer {
        return refuse("false, as FI_EFA_ENABLE_SHM_TRANSFER says", FI_EINVAL);
    }
    o.shared_memory = permitted;
    Ok(())
}

fn set_unsolicited(o: &mut Options, on: bool) -> std::result::Result<(), Refusal> {
    if o.no_protocol && !on && !o.rx_cq_data {
        return refuse(
            "true, or mode FI_RX_CQ_DATA: writes with data need a receive otherwise",
            FI_EOPNOTSUPP,
        );
    }
    o.unsolicited = on;
    Ok(())
}

/// FI_OPT_CUDA_API_PERMITTED: without CUDA calls only the adapter can access device memory, also
/// that of an endpoint without FI_HMEM whose domain has it.
fn set_cuda_api(o: &mut Options, permitted: bool) -> std::result::Result<(), Refusal> {
    let copied = match o.device_memory {
        DeviceMemory::None if o.no_protocol => return Ok(()),
        DeviceMemory::None if !hmem::present(MemKind::Cuda) => {
            return refuse("nothing: this machine has no CUDA", FI_EINVAL)
        }
        DeviceMemory::None => !(o.hardware && hmem::peer_to_peer()),
        DeviceMemory::Copied => true,
        DeviceMemory::Direct | DeviceMemory::PeerToPeer => false,
    };
    if copied && !permitted {
        return refuse(
            "true: no adapter reads or writes device memory here, CUDA copies it",
            FI_EOPNOTSUPP,
        );
    }
    o.cuda_api = permitted;
    Ok(())
}

macro_rules! table {
    ($($name:ident, $when:ident, $access:expr;)+) => {
        &[$(Row { number: $name, name: stringify!($name), when: $when, access: $access },)+]
    };
}

/// Every option of level FI_OPT_ENDPOINT: the type and value read, and what setting it does.
const TABLE: &[Row] = table! {
    FI_OPT_MIN_MULTI_RECV, AnyTime, Size(|e| e.opts.min_multi_recv, store!(min_multi_recv));
    FI_OPT_CM_DATA_SIZE, AnyTime, Size(|_| 0, read_only);
    FI_OPT_MAX_MSG_SIZE, AnyTime,
        Size(|e| e.opts.max_msg_size, store!(max_msg_size at most msg_limit));
    FI_OPT_MAX_TAGGED_SIZE, AnyTime, Size(|e| e.opts.max_tagged_size, store!(max_tagged_size));
    FI_OPT_MAX_RMA_SIZE, AnyTime,
        Size(|e| e.opts.max_rma_size, store!(max_rma_size at most rma_limit));
    FI_OPT_MAX_ATOMIC_SIZE, AnyTime,
        Size(|e| e.opts.max_atomic_size, store!(max_atomic_size at most atomic_limit));
    FI_OPT_INJECT_MSG_SIZE, AnyTime,
        Size(|e| e.opts.inject_msg_size, store!(inject_msg_size at most inject_limit));
    FI_OPT_INJECT_TAGGED_SIZE, AnyTime,
        Size(|e| e.opts.inject_tagged_size, store!(inject_tagged_size at most inject_limit));
    FI_OPT_INJECT_RMA_SIZE, AnyTime,
        Size(|e| e.opts.inject_rma_size, store!(inject_rma_size at most inject_rma_limit));
    FI_OPT_INJECT_ATOMIC_SIZE, AnyTime,
        Size(|e| e.opts.inject_atomic_size, store!(inject_atomic_size at most inject_limit));
    FI_OPT_EFA_RNR_RETRY, BeforeEnable, Size(|e| e.opts.rnr_retry, set_rnr_retry);
    FI_OPT_FI_HMEM_P2P, AnyTime, Int(|e| e.opts.p2p, set_p2p);
    FI_OPT_CUDA_API_PERMITTED, BeforeEnable, Bool(|e| e.opts.cuda_api, set_cuda_api);
    FI_OPT_SHARED_MEMORY_PERMITTED, BeforeEnable,
        Bool(|e| e.opts.shared_memory, set_shared_memory);
    FI_OPT_EFA_USE_DEVICE_RDMA, BeforeEnable, Bool(|e| e.uses_rdma(), set_device_rdma);
    FI_OPT_EFA_EMULATED_READ, AnyTime, Bool(|e| !(e.uses_rdma() && e.rdma_read), read_only);
    FI_OPT_EFA_EMULATED_WRITE, AnyTime, Bool(|e| !(e.uses_rdma() && e.rdma_write), read_only);
    FI_OPT_EFA_EMULATED_ATOMICS, AnyTime, Bool(|_| true, read_only);
    FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES, BeforeEnable,
        Order(|e| e.opts.ordered_sends, |o| &mut o.ordered_sends, true);
    FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES, BeforeEnable,
        Order(|e| e.opts.ordered_writes, |o| &mut o.ordered_writes, false);
    // Stored, not used: peers announce their features in the handshake, and none are assumed.
    FI_OPT_EFA_HOMOGENEOUS_PEERS, AnyTime, Bool(|e| e.opts.homogeneous, store!(homogeneous));
    // Stored, not used: a write with data never takes a receive of the application's.
    FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV, AnyTime,
        Bool(|e| e.opts.unsolicited, set_unsolicited);
};

fn row(number: i32) -> Option<&'static Row> {
    TABLE.iter().find(|r| r.number == number)
}

/// Name of an option and a value of its type; `None` for an unknown one.
pub(crate) fn option_kind(number: i32) -> Option<(&'static str, OptionValue)> {
    let row = row(number)?;
    let kind = match row.access {
        Size(..) => OptionValue::Size(0),
        Int(..) => OptionValue::Int(0),
        Bool(..) | Order(..) => OptionValue::Bool(false),
    };
    Some((row.name, kind))
}

impl Ep {
    /// Whether reads and writes are, or will be, the adapter's.
    pub(super) fn uses_rdma(&self) -> bool {
        self.opts.device_rdma && crate::core::params::efa().uses_device_rdma()
    }

    /// Value of an option; `FI_ENOPROTOOPT` for an unknown one.
    pub(crate) fn getopt(&self, number: i32) -> Result<OptionValue> {
        Ok(match row(number).ok_or(FI_ENOPROTOOPT)?.access {
            Size(get, _) => OptionValue::Size(get(self)),
            Int(get, _) => OptionValue::Int(get(self)),
            Bool(get, _) | Order(get, ..) => OptionValue::Bool(get(self)),
        })
    }

    /// Sets an option. `FI_ENOPROTOOPT` for an unknown one, `FI_EINVAL` for a value out of range,
    /// `FI_EOPNOTSUPP` for one this adapter cannot grant, `FI_EOPBADSTATE` where it is too late.
    pub(crate) fn setopt(&mut self, number: i32, v: OptionValue, dev: &Dev) -> Result<()> {
        let row = row(number).ok_or(FI_ENOPROTOOPT)?;
        let set = self.set(row, v, dev).map_err(|refusal| {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_setopt: {}: value {v}, accepted {}",
                row.name,
                refusal.accepted
            );
            refusal.errno
        });
        let copies = self.opts.copies_device_memory();
        if let Some(qp) = self.qp_mut() {
            qp.copy_device_memory(copies);
        }
        self.configure_data_path();
        set
    }

    fn set(&mut self, row: &Row, v: OptionValue, dev: &Dev) -> std::result::Result<(), Refusal> {
        if row.when == BeforeEnable && self.enabled() {
            return refuse("before fi_enable only", FI_EOPBADSTATE);
        }
        match (&row.access, v) {
            (Size(_, set), OptionValue::Size(n)) => set(&mut self.opts, n),
            (Int(_, set), OptionValue::Int(n)) => set(&mut self.opts, n),
            (Bool(_, set), OptionValue::Bool(b)) => set(&mut self.opts, b),
            (Order(_, option, sends), OptionValue::Bool(b)) => {
                // The wire protocol copies messages out of packets, and promises no order.
                let copied = *sends && !self.opts.no_protocol;
                if b && (copied || !dev.keeps_order(*sends)) {
                    return refuse("false: bytes arrive in any order", FI_EOPNOTSUPP);
                }
                *option(&mut self.opts) = b;
                Ok(())
            }
            _ => refuse("a value of its type", FI_EINVAL),
        }
    }
}
