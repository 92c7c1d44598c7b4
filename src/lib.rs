//! libfabric in Rust: a drop-in `libfabric.so.1` with provider `efa`.
//!
//! `ARCHITECTURE.md` is the map of the rooms below and of who may call whom.
//! A call comes in through `abi`, runs in `prov`, which drives the protocol (`proto`, `wire`) and
//! an adapter (`device`); `types` mirrors the C headers and `core` serves everyone.

pub mod abi;
pub mod core;
pub mod device;
pub mod hmem;
pub mod proto;
pub mod prov;
pub mod shm;
pub mod types;
pub mod wire;
