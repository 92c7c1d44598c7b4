//! Provider `efa`: fabric, domain, address vectors, completion queues, counters, endpoints.
//!
//! Safe code for libfabric's objects, without its structs: `abi` owns the `fid`s and calls this
//! room with numbers and Rust values. All objects of a domain that the data path touches are in one
//! [`domain::State`] behind one lock: an operation takes the lock once, and polling a queue makes
//! progress on every endpoint bound to that queue. Event queues belong to the fabric and have locks
//! of their own.

mod adapter_events;
mod addr;
pub(crate) mod av;
mod av_shared;
mod budget;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod info;
mod node;
pub(crate) mod ops;
mod peers;
pub(crate) mod poll;
mod port;
mod progress;
pub(crate) mod same_host;
pub(crate) mod select;
#[cfg(test)]
mod tests;
mod unknown_peers;

use crate::core::registry::Query;
use crate::core::{Info, Result};
use crate::types::*;

/// The provider (fi_efa(7)).
pub(crate) struct Efa;

impl super::contract::Provider for Efa {
    type Domain = domain::EfaDomain;

    fn name(&self) -> &'static str {
        "efa"
    }

    fn version(&self) -> u32 {
        crate::core::PROV_VERSION
    }

    fn define_params(&self) {
        crate::core::params::efa();
    }

    fn check_fabric(&self, name: &str) -> Result<()> {
        if name == info::FABRIC || name == info::DIRECT {
            return Ok(());
        }
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: name: wanted {name}, had {}, {}",
            info::DIRECT,
            info::FABRIC
        );
        Err(FI_ENODATA)
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        info::getinfo(q)
    }
}
