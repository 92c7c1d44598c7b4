//! The C caller's side: entry points, symbol versions, struct layouts, handles.
//!
//! The only room that sees the caller's pointers. A call arrives at a function of an operations
//! table or an export, is checked for NULL and closed objects, turned into Rust values and passed
//! to `prov`; an error goes back as a negative errno, a panic as `-FI_EOTHER`.
//! Pointer rules, once: a `fid_*` is NULL or was handed out by us; a string is NULL or terminated;
//! a struct is NULL or laid out as its header says; a buffer is as long as the caller says and,
//! for data transfer, lent until the operation completes.

mod atomic;
mod av;
mod av_set;
mod cm;
mod cntr;
mod collective;
mod cq;
mod cq_errors;
mod default_flags;
mod domain;
mod efa_ops;
mod entry;
mod ep;
pub mod exports;
mod external;
mod fabric;
mod handles;
mod info;
mod layout;
mod logging;
mod message;
mod mr;
mod object;
mod probe;
pub mod provider_file;
mod reserve;
mod rma;
mod sep;
mod sets;
mod shared;
mod text;
mod transfer;
mod waiting;
mod work;

pub use reserve::Allocator;
