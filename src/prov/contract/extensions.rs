//! Tables of functions that `fi_open_ops` returns for a domain: the extensions of provider efa
//! (fi_efa(7)). A provider without them keeps the defaults.

use super::Fabric;
use super::Mr;
use super::OpenedQueue;
use crate::core::Result;
use crate::device::any::{CounterPlaces, QueuePlace};
use crate::device::QueueMemory;
use crate::types::*;
use std::sync::Arc;

/// A table of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// `struct fi_efa_feature_ops`
    EfaFeatures,
    /// The same, of a fabric without any of them.
    EfaNoFeatures,
    /// `struct fi_efa_ops_domain`
    EfaDomain,
    /// `struct fi_efa_ops_gda`
    EfaGda,
}

/// Extensions of a domain: how the adapter reaches memory, peers and queues, for devices that drive
/// it by themselves.
pub trait Extensions {
    /// The extension of this name; `FI_ENOSYS` for an unknown one, `FI_EOPNOTSUPP` for one that
    /// this domain does not have.
    fn extension(&self, _name: &str) -> Result<Extension> {
        Err(FI_ENOSYS)
    }
    /// As [`Extensions::extension`], of a fabric.
    fn fabric_extension(_fabric: &Fabric, _name: &str) -> Result<Extension> {
        Err(FI_ENOSYS)
    }
    /// Whether the provider has a feature (`fi_efa_feature_ops`).
    fn has_feature(_name: &str) -> bool {
        false
    }

    /// Interconnects that reach a region: which are known, for receives, for reads, for the
    /// peers' reads.
    fn query_mr(&self, _mr: &Mr) -> Result<[u16; 4]> {
        Err(FI_ENOSYS)
    }
    /// A region's local key, at a real adapter.
    fn lkey(&self, _mr: &Mr) -> Option<u32> {
        None
    }
    /// A peer as the adapter's requests name it: address handle, queue pair number, key.
    /// `FI_EINVAL` for an unknown one, `FI_EOPNOTSUPP` without a real adapter.
    fn peer_handle(&self, _ep: u32, _addr: fi_addr_t) -> Result<(u16, u16, u32)> {
        Err(FI_EOPNOTSUPP)
    }
    /// An enabled endpoint's queues in memory. `FI_EINVAL` before it is enabled, `FI_EOPNOTSUPP`
    /// where the queues are not available.
    fn queue_memory(&self, _ep: u32) -> Result<[QueueMemory; 3]> {
        Err(FI_EOPNOTSUPP)
    }
    /// The memory of a completion queue: the application's, or that of the one endpoint which
    /// reports there.
    fn cq_memory(&self, _cq: u32) -> Result<QueueMemory> {
        Err(FI_EOPNOTSUPP)
    }
    /// A completion queue of `entries` in memory of the application. `FI_EOPNOTSUPP` where the
    /// adapter does not support that, `FI_EINVAL` for unsuitable memory.
    fn open_external_cq(
        self: &Arc<Self>,
        _entries: usize,
        _place: &QueuePlace,
    ) -> Result<OpenedQueue> {
        Err(FI_EOPNOTSUPP)
    }
    /// A counter of the adapter, whose values are at the application's addresses. Errors as
    /// [`Extensions::open_external_cq`].
    fn open_external_cntr(
        self: &Arc<Self>,
        _events: fi_cntr_events,
        _places: &CounterPlaces,
    ) -> Result<OpenedQueue> {
        Err(FI_EOPNOTSUPP)
    }
}
