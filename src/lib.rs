//! libfabric in Rust: a drop-in `libfabric.so.1` with provider `efa`.
//!
//! `ARCHITECTURE.md` is the map of the rooms below and of who may call whom.
//! A call comes in through `abi`, runs in `prov`, which drives the protocol (`proto`, `wire`) and
//! an adapter (`device`); `types` mirrors the C headers and `core` serves everyone.

//!
//! Public are the C interface (`abi`, `types`) and what is needed to call a provider from Rust
//! (`core`, `hmem`, `prov::contract`). The rooms below are the library's own; feature `internals`
//! opens them to fuzz targets, benches and tests of layouts.

// Public items are documented; of the inner rooms that is asked where they are not public.
#![cfg_attr(not(feature = "internals"), warn(missing_docs))]
// With the inner rooms open, `pub` says what they offer to each other.
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
