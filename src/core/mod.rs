//! Provider-neutral and safe: errors, log, parameters, information structures and their matching,
//! the registry of providers, text for every enumeration.
//!
//! Nothing here touches a C pointer. `abi` turns what the caller hands in into these types and
//! these types into what the caller gets back; providers and devices use them from below.

pub mod alter;
pub mod check;
pub mod describe;
pub mod errno;
pub mod fifo;
pub mod guarded;
pub mod hash;
pub mod info;
pub mod iovs;
pub mod log;
pub mod memory;
pub mod params;
pub mod process;
pub mod registry;
pub mod rng;
#[cfg(any(test, feature = "internals"))]
pub mod script;
pub mod slab;
pub mod sync;
pub mod tostr;
pub mod yielding;

pub use errno::{Errno, Result};
pub use info::Info;

/// API version this library implements, as fi_version(3) answers it.
pub const API_VERSION: u32 = version(2, 7);
/// The library's version, as `libfabric.pc` and fi_tostr(3)'s FI_TYPE_VERSION have it: the release
/// whose API and ABI this is.
pub const LIBRARY_VERSION: &str = "2.7.0";
/// Version of provider efa; clients read it as `major * 100 + minor`.
pub const PROV_VERSION: u32 = version(207, 0);

/// `FI_VERSION(major, minor)`.
pub const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

/// Major part of a version.
pub const fn major(v: u32) -> u32 {
    v >> 16
}

/// Minor part of a version.
pub const fn minor(v: u32) -> u32 {
    v & 0xffff
}
