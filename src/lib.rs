//! libfabric in Rust: a drop-in `libfabric.so.1` with the providers `efa` and `tcp`.
//!
//! `ARCHITECTURE.md` describes the modules below and which of them may call which. A call enters
//! through `abi` and runs in `prov`, which drives the protocol (`proto`, `wire`) and an adapter
//! (`device`); `types` mirrors the C headers, and all modules use `core`.
//!
//! The C interface (`abi`, `types`) is public, and so is what a Rust caller of a provider needs
//! (`core`, `hmem`, `prov::contract`). The other modules are internal; feature `internals` makes
//! them public for fuzz targets, benches and tests of layouts.

// Public items must be documented; internal modules are exempt when `internals` makes them public.
#![cfg_attr(not(feature = "internals"), warn(missing_docs))]
// With `internals`, `pub` marks what internal modules offer to each other.
#![cfg_attr(feature = "internals", warn(unreachable_pub))]

pub mod abi;
pub mod core;
pub mod hmem;
pub mod prov;
pub mod types;

#[cfg(not(feature = "internals"))]
mod device;
#[cfg(feature = "internals")]
pub mod device;
#[cfg(not(feature = "internals"))]
mod proto;
#[cfg(feature = "internals")]
pub mod proto;
#[cfg(not(feature = "internals"))]
mod shm;
#[cfg(feature = "internals")]
pub mod shm;
#[cfg(not(feature = "internals"))]
mod transport;
#[cfg(feature = "internals")]
pub mod transport;
#[cfg(not(feature = "internals"))]
mod wire;
#[cfg(feature = "internals")]
pub mod wire;
