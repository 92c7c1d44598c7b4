//! Provider-neutral and safe: errors, log, parameters, information structures and their matching,
//! the registry of providers, text for every enumeration.
//!
//! Nothing here touches a C pointer. `abi` turns what the caller hands in into these types and
//! these types into what the caller gets back; providers and devices use them from below.

pub mod alter;
pub mod budget;
pub(crate) mod burst;
pub mod check;
pub mod describe;
pub mod errno;
pub mod fifo;
pub mod guarded;
pub mod hash;
pub mod info;
pub mod iovs;
pub mod layering;
pub mod log;
pub mod memory;
pub mod numbered;
pub mod opened;
pub mod params;
pub mod process;
pub mod registry;
pub mod rng;
#[cfg(any(test, feature = "internals"))]
pub mod script;
pub mod slab;
pub(crate) mod sockaddr;
pub mod sync;
pub mod tostr;
pub mod trusted_env;
pub mod yielding;

pub use errno::{Errno, Result};
pub use info::Info;

/// API version of the headers, as fi_version(3) answers it: that of the C library whose headers
/// the layouts are read from.
pub const API_VERSION: u32 = version(2, 6);
/// Newest API version that an application may ask for: the release of [`LIBRARY_VERSION`] adds no
/// layout to the headers.
pub const API_NEWEST: u32 = version(2, 7);
/// Library version in `libfabric.pc` and in fi_tostr(3)'s FI_TYPE_VERSION: the libfabric release
/// whose API and ABI this library implements.
pub const LIBRARY_VERSION: &str = "2.7.0";
/// Behind that version in FI_TYPE_VERSION: the release of this library.
pub const OWN_RELEASE: &str = concat!(" (libfabric-rs ", env!("CARGO_PKG_VERSION"), ")");
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
