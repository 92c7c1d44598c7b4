//! Provider `efa`: fabric, domain, address vectors, completion queues, counters, endpoints.
//!
//! Safe code that knows libfabric's objects but not its structs: `abi` owns the `fid`s and calls
//! in here with numbers and Rust values. All objects of a domain that the data path touches live in
//! one [`domain::State`] behind one lock: an operation takes it once, and polling any queue moves
//! every endpoint bound to it. Event queues belong to the fabric and have their own.

pub mod addr;
pub mod av;
mod av_shared;
pub mod cntr;
pub mod cq;
pub mod domain;
pub mod eq;
pub mod info;
pub mod params;
pub mod rdm;

pub use crate::device::wait::WaitSet;
pub use crate::device::Status;

use crate::core::registry::{Provider, Query};
use crate::core::{Info, Result};

/// The provider as the registry sees it.
pub struct Efa;

impl Provider for Efa {
    fn name(&self) -> &str {
        "efa"
    }

    fn version(&self) -> u32 {
        crate::core::PROV_VERSION
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        info::getinfo(q)
    }
}
