//! Endpoint options (fi_endpoint(3), fi_efa(7)): `fi_getopt` and `fi_setopt`.

use super::{Ep, Kind};
use crate::core::Result;
use crate::device::AdapterAttr;
use crate::prov::contract::OptionValue;
use crate::types::*;

/// Bytes that must be left in a multi-receive buffer for it to stay posted, unless set.
pub const MIN_MULTI_RECV: usize = 64;

/// What can be set, with the adapter's answers as defaults.
#[derive(Clone, Debug)]
pub struct Options {
    pub min_multi_recv: usize,
    pub max_msg_size: usize,
    pub max_tagged_size: usize,
    pub max_rma_size: usize,
    pub inject_msg_size: usize,
    pub inject_tagged_size: usize,
    pub inject_rma_size: usize,
    pub max_atomic_size: usize,
    pub device_rdma: bool,
    /// Most of the injected sizes, and of that of writes.
    limit: usize,
    rma_limit: usize,
    atomic_limit: usize,
    rnr_retry: usize,
    rnr_limit: bool,
    p2p: i32,
    pub shared_memory: bool,
    cuda_api: bool,
    homogeneous: bool,
    unsolicited: bool,
}

impl Options {
    /// Options of an endpoint whose injected messages are at most `inject` bytes long.
    pub fn new(inject: usize, atomic: usize) -> Options {
        Options {
            min_multi_recv: MIN_MULTI_RECV,
            max_msg_size: usize::MAX,
            max_tagged_size: usize::MAX,
            max_rma_size: usize::MAX,
            inject_msg_size: inject,
            inject_tagged_size: inject,
            inject_rma_size: inject,
            max_atomic_size: atomic,
            device_rdma: true,
            limit: inject,
            rma_limit: inject,
            atomic_limit: atomic,
            rnr_retry: 7,
            rnr_limit: true,
            p2p: FI_HMEM_P2P_DISABLED,
            shared_memory: true,
            cuda_api: true,
            homogeneous: false,
            unsolicited: true,
        }
    }
}

impl Options {
    /// What bounds endpoints without protocol: a packet, the adapter's reads and writes, and what
    /// fits into the work request of one.
    pub fn of_kind(mut self, kind: Kind, d: &AdapterAttr) -> Options {
        self.rnr_limit = d.raw.rnr_limit;
        if kind != Kind::Rdm {
            self.max_msg_size = d.mtu;
            self.max_rma_size = d.max_rdma;
            let wide = d.raw.wide.is_some() && d.caps.rdma_write && self.limit > d.raw.inline;
            self.rma_limit = if wide { self.limit } else { 0 };
            self.inject_rma_size = self.rma_limit;
        }
        self
    }

    /// Most bytes of an injected message.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// FI_OPT_EFA_RNR_RETRY.
    pub fn rnr_retry(&self) -> u8 {
        self.rnr_retry as u8
    }
}

fn refuse(name: i32, v: OptionValue, accepted: &str, e: i32) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "fi_setopt: option {name}: value {v:?}, accepted {accepted}"
    );
    Err(e)
}

/// What type an option has, by number; `None` for an unknown one.
pub fn kind(name: i32) -> Option<OptionValue> {
    match name {
        FI_OPT_MIN_MULTI_RECV
        | FI_OPT_CM_DATA_SIZE
        | FI_OPT_MAX_MSG_SIZE
        | FI_OPT_MAX_TAGGED_SIZE
        | FI_OPT_MAX_RMA_SIZE
        | FI_OPT_MAX_ATOMIC_SIZE
        | FI_OPT_INJECT_MSG_SIZE
        | FI_OPT_INJECT_TAGGED_SIZE
        | FI_OPT_INJECT_RMA_SIZE
        | FI_OPT_INJECT_ATOMIC_SIZE
        | FI_OPT_EFA_RNR_RETRY => Some(OptionValue::Size(0)),
        FI_OPT_FI_HMEM_P2P => Some(OptionValue::Int(0)),
        FI_OPT_CUDA_API_PERMITTED
        | FI_OPT_SHARED_MEMORY_PERMITTED
        | FI_OPT_EFA_EMULATED_READ
        | FI_OPT_EFA_EMULATED_WRITE
        | FI_OPT_EFA_EMULATED_ATOMICS
        | FI_OPT_EFA_USE_DEVICE_RDMA
        | FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES
        | FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES
        | FI_OPT_EFA_HOMOGENEOUS_PEERS
        | FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV => Some(OptionValue::Bool(false)),
        _ => None,
    }
}

impl Ep {
    /// Whether reads and writes are, or will be, the adapter's.
    fn uses_rdma(&self) -> bool {
        self.opts.device_rdma && crate::core::params::efa_bool("use_device_rdma", true)
    }

    /// OptionValue of an option; `FI_ENOPROTOOPT` for an unknown one.
    pub fn getopt(&self, name: i32) -> Result<OptionValue> {
        let o = &self.opts;
        Ok(match name {
            FI_OPT_MIN_MULTI_RECV => OptionValue::Size(o.min_multi_recv),
            FI_OPT_CM_DATA_SIZE => OptionValue::Size(0),
            FI_OPT_MAX_ATOMIC_SIZE => OptionValue::Size(o.max_atomic_size),
            FI_OPT_INJECT_ATOMIC_SIZE => OptionValue::Size(o.inject_rma_size),
            FI_OPT_MAX_MSG_SIZE => OptionValue::Size(o.max_msg_size),
            FI_OPT_MAX_TAGGED_SIZE => OptionValue::Size(o.max_tagged_size),
            FI_OPT_MAX_RMA_SIZE => OptionValue::Size(o.max_rma_size),
            FI_OPT_INJECT_MSG_SIZE => OptionValue::Size(o.inject_msg_size),
            FI_OPT_INJECT_TAGGED_SIZE => OptionValue::Size(o.inject_tagged_size),
            FI_OPT_INJECT_RMA_SIZE => OptionValue::Size(o.inject_rma_size),
            FI_OPT_EFA_RNR_RETRY => OptionValue::Size(o.rnr_retry),
            FI_OPT_FI_HMEM_P2P => OptionValue::Int(o.p2p),
            FI_OPT_CUDA_API_PERMITTED => OptionValue::Bool(o.cuda_api),
            FI_OPT_SHARED_MEMORY_PERMITTED => OptionValue::Bool(o.shared_memory),
            FI_OPT_EFA_EMULATED_READ => OptionValue::Bool(!(self.uses_rdma() && self.rdma_read)),
            FI_OPT_EFA_EMULATED_WRITE => OptionValue::Bool(!(self.uses_rdma() && self.rdma_write)),
            FI_OPT_EFA_USE_DEVICE_RDMA => OptionValue::Bool(self.uses_rdma()),
            FI_OPT_EFA_EMULATED_ATOMICS => OptionValue::Bool(true),
            FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES
            | FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES => OptionValue::Bool(false),
            FI_OPT_EFA_HOMOGENEOUS_PEERS => OptionValue::Bool(o.homogeneous),
            FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV => OptionValue::Bool(o.unsolicited),
            _ => return Err(FI_ENOPROTOOPT),
        })
    }

    /// Sets an option. `FI_ENOPROTOOPT` for an unknown one, `FI_EINVAL` for a value out of range,
    /// `FI_EOPNOTSUPP` for one this adapter cannot grant, `FI_EOPBADSTATE` where it is too late.
    pub fn setopt(&mut self, name: i32, v: OptionValue) -> Result<()> {
        let set = self.set(name, v);
        self.configure_fast_path();
        set
    }

    fn set(&mut self, name: i32, v: OptionValue) -> Result<()> {
        let enabled = self.enabled();
        let o = &mut self.opts;
        let early = || if enabled { Err(FI_EOPBADSTATE) } else { Ok(()) };
        match (name, v) {
            (FI_OPT_MIN_MULTI_RECV, OptionValue::Size(n)) => o.min_multi_recv = n,
            (FI_OPT_MAX_MSG_SIZE, OptionValue::Size(n)) => o.max_msg_size = n,
            (FI_OPT_MAX_TAGGED_SIZE, OptionValue::Size(n)) => o.max_tagged_size = n,
            (FI_OPT_MAX_RMA_SIZE, OptionValue::Size(n)) => o.max_rma_size = n,
            (FI_OPT_MAX_ATOMIC_SIZE, OptionValue::Size(n)) => {
                let most = o.atomic_limit;
                if n > most {
                    return refuse(name, v, &format!("at most {most}"), FI_EINVAL);
                }
                o.max_atomic_size = n;
            }
            (
                FI_OPT_INJECT_MSG_SIZE
                | FI_OPT_INJECT_TAGGED_SIZE
                | FI_OPT_INJECT_RMA_SIZE
                | FI_OPT_INJECT_ATOMIC_SIZE,
                OptionValue::Size(n),
            ) => {
                let most = match name {
                    FI_OPT_INJECT_RMA_SIZE => o.rma_limit,
                    _ => o.limit,
                };
                if n > most {
                    return refuse(name, v, &format!("at most {most}"), FI_EINVAL);
                }
                match name {
                    FI_OPT_INJECT_MSG_SIZE => o.inject_msg_size = n,
                    FI_OPT_INJECT_TAGGED_SIZE => o.inject_tagged_size = n,
                    _ => o.inject_rma_size = n,
                }
            }
            (FI_OPT_EFA_RNR_RETRY, OptionValue::Size(n)) => {
                early()?;
                if n > 7 {
                    return refuse(name, v, "0 to 7", FI_EINVAL);
                }
                if !o.rnr_limit {
                    return refuse(name, v, "none: the adapter tries for ever", FI_ENOSYS);
                }
                o.rnr_retry = n;
            }
            (FI_OPT_FI_HMEM_P2P, OptionValue::Int(n)) => match n {
                FI_HMEM_P2P_ENABLED | FI_HMEM_P2P_PREFERRED | FI_HMEM_P2P_DISABLED => o.p2p = n,
                FI_HMEM_P2P_REQUIRED => {
                    return refuse(
                        name,
                        v,
                        "not required: no device memory here",
                        FI_EOPNOTSUPP,
                    )
                }
                _ => return refuse(name, v, "0 to 3", FI_EINVAL),
            },
            (FI_OPT_CUDA_API_PERMITTED, OptionValue::Bool(b)) => o.cuda_api = b,
            (FI_OPT_SHARED_MEMORY_PERMITTED, OptionValue::Bool(b)) => {
                early()?;
                o.shared_memory = b;
            }
            (
                FI_OPT_EFA_SENDRECV_IN_ORDER_ALIGNED_128_BYTES
                | FI_OPT_EFA_WRITE_IN_ORDER_ALIGNED_128_BYTES,
                OptionValue::Bool(b),
            ) => {
                early()?;
                if b {
                    return refuse(
                        name,
                        v,
                        "false: datagrams arrive in any order",
                        FI_EOPNOTSUPP,
                    );
                }
            }
            (FI_OPT_EFA_USE_DEVICE_RDMA, OptionValue::Bool(b)) => {
                early()?;
                o.device_rdma = b;
            }
            // Peers say what they can; nothing is taken for granted of them.
            (FI_OPT_EFA_HOMOGENEOUS_PEERS, OptionValue::Bool(b)) => o.homogeneous = b,
            // Whether the adapter takes a receive for a write with data: the application's are
            // never taken.
            (FI_OPT_EFA_USE_UNSOLICITED_WRITE_RECV, OptionValue::Bool(b)) => o.unsolicited = b,
            (
                FI_OPT_EFA_EMULATED_READ | FI_OPT_EFA_EMULATED_WRITE | FI_OPT_EFA_EMULATED_ATOMICS,
                _,
            ) => return refuse(name, v, "nothing: read only", FI_EINVAL),
            _ => return Err(FI_ENOPROTOOPT),
        }
        Ok(())
    }
}
