//! Provider `tcp` (fi_tcp(7)): endpoints that reach each other by TCP connections, in the wire
//! format of the C library's provider of this name. Reliable datagrams (FI_EP_RDM), and connected
//! endpoints (FI_EP_MSG), which `msg` and `passive` add.
//!
//! Safe code, as `prov/efa`: `domain` implements the contract's traits over one [`state::TcpState`]
//! behind one lock. An operation (`ops`) finds its peer's connection, which is made when it is
//! first needed (`conn`), and leaves by its socket; `progress` takes in what arrives, which matches
//! receives (`recvq`) or goes to registered memory.

mod bursts;
mod conn;
mod domain;
mod ep;
#[cfg(any(test, feature = "internals"))]
pub mod hostile;
mod info;
mod msg;
mod ops;
mod passive;
mod peers;
mod progress;
mod recvq;
mod state;
mod wire;

use crate::core::registry::Query;
use crate::core::{Info, Result};
use crate::types::*;

/// The provider (fi_tcp(7)).
pub(crate) struct Tcp;

impl super::contract::Provider for Tcp {
    type Domain = domain::TcpDomain;

    fn name(&self) -> &'static str {
        "tcp"
    }

    fn version(&self) -> u32 {
        crate::core::PROV_VERSION
    }

    fn define_params(&self) {
        crate::core::params::tcp();
    }

    fn check_fabric(&self, name: &str) -> Result<()> {
        let had = info::fabrics();
        if had.iter().any(|f| f == name) {
            return Ok(());
        }
        crate::warn_log!(
            FI_LOG_FABRIC,
            "fi_fabric: name: wanted {name}, had {}",
            had.join(", ")
        );
        Err(FI_ENODATA)
    }

    fn getinfo(&self, q: &Query) -> Result<Vec<Info>> {
        info::getinfo(q)
    }
}
