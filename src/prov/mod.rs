//! Providers. There is one: `efa`.
pub mod efa;
