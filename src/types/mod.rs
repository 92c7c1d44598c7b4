//! `#[repr(C)]` mirrors of the public headers, one file per header, no behaviour.
//!
//! Layouts, constants and enumerators equal those of libfabric 2.7; `abi-tests` compares them with
//! the recorded facts. Names keep their C spelling so that a reader of the man pages finds them.
//! `make headers` turns these types into `include/rdma/gen/types.h`. Enumerations are plain
//! integers here because a C caller may put any value into them.
#![allow(non_camel_case_types, non_upper_case_globals, missing_docs)]
#![allow(clippy::type_complexity)] // function pointers are what they are in C

mod atomic;
mod cm;
mod collective;
mod domain;
mod endpoint;
mod eq;
mod errno;
mod ext;
mod ext_efa;
mod fabric;
mod log;
mod peer;
mod profile;
mod prov;
mod rma;
mod tagged;
mod trigger;
mod xpu;

pub use atomic::*;
pub use cm::*;
pub use collective::*;
pub use domain::*;
pub use endpoint::*;
pub use eq::*;
pub use errno::*;
pub use ext::*;
pub use ext_efa::*;
pub use fabric::*;
pub use log::*;
pub use peer::*;
pub use profile::*;
pub use prov::*;
pub use rma::*;
pub use tagged::*;
pub use trigger::*;
pub use xpu::*;
