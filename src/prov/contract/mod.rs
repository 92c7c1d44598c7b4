//! The contract between `abi`, the C caller's side, and a provider.
//!
//! `abi` is written once, over these traits, and compiled for each provider: a handle's operations
//! table is the provider's own, so that several providers cost the data path nothing. A provider
//! implements [`Provider`] and gives its domain the traits of the modules here; its objects are
//! numbers of that domain. A provider without a feature keeps the default methods, which say
//! `FI_ENOSYS` or `FI_EOPNOTSUPP`.
//!
//! Errors are positive `FI_E*`, as the man page of each call names them. Every method may be called
//! from any thread, within what `domain_attr->threading` permits.

mod addresses;
mod collectives;
mod completion;
mod connections;
mod deferred;
mod endpoints;
mod eq;
mod extensions;
mod fabric;
mod memory;
mod queues;
mod request;
mod transfers;

pub use addresses::{Addresses, AvAttr, AvInfo};
pub use collectives::Collectives;
pub use completion::{Entry, ErrEntry};
pub use connections::{ConnRequest, Connections, EventTarget, OnRequest};
pub use deferred::{DeferredKind, DeferredOp, Trigger};
pub use endpoints::{Endpoints, OptionValue};
pub use eq::{deadline, remaining, shorter, Eq, EqEvent};
pub use extensions::{Extension, Extensions};
pub use fabric::{busy_unless, Fabric};
pub use memory::{MemoryRegions, Mr};
pub use queues::{CompletionQueues, Counters, OpenedQueue};
pub use request::*;
pub use transfers::{AtomicCall, Transfers};

pub use crate::device::any::{CounterPlaces, QueuePlace};
pub use crate::device::wait::WaitSet;
pub use crate::device::{DmaBuf, QueueMemory};

use crate::core::registry::Query;
use crate::core::{Info, Result};
use std::sync::Arc;

/// A provider (fi_provider(3)).
pub trait Provider: Send + Sync + 'static {
    /// What its fabrics open.
    type Domain: Domain;

    /// Name, as in `fabric_attr->prov_name`.
    fn name(&self) -> &'static str;
    /// Version, `FI_VERSION(major, minor)`: of two providers with one name the higher one is used.
    fn version(&self) -> u32;
    /// Makes its parameters known to fi_getparams(3).
    fn define_params(&self);
    /// fi_getinfo(3): candidates that satisfy the query, best first.
    fn getinfo(&self, q: &Query) -> Result<Vec<Info>>;
    /// Whether it has a fabric of this name; `FI_ENODATA`, with a line in the log, when not.
    fn check_fabric(&self, name: &str) -> Result<()>;
}

/// Takes each provider of the library ([`super::visit`]).
pub trait ProviderVisitor {
    /// Called once for each provider.
    fn visit<P: Provider>(&mut self, p: P);
}

/// A domain (fi_domain(3)) with everything that can be opened in it.
pub trait Domain:
    Addresses
    + Collectives
    + CompletionQueues
    + Connections
    + Counters
    + Endpoints
    + Extensions
    + MemoryRegions
    + Transfers
    + Send
    + Sync
    + Sized
    + 'static
{
    /// Opens a domain as `info` describes it; the fabric counts it ([`Fabric::hold`]).
    fn open(fabric: Arc<Fabric>, info: Info) -> Result<Arc<Self>>;
    /// Closes it; `FI_EBUSY` while objects are open.
    fn close(&self) -> Result<()>;
    /// The fabric it was opened in.
    fn fabric(&self) -> &Fabric;
    /// Starts automatic progress: its endpoints make progress without calls from now on.
    fn start_progress(self: &Arc<Self>) -> Result<()>;
}
