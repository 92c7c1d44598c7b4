//! Providers, and the contract by which `abi` reaches them.

pub mod contract;
mod efa;
mod progress_thread;
mod reports;
mod tcp;

#[cfg(feature = "internals")]
pub use tcp::hostile as tcp_hostile;

/// Every provider of the library, in the order in which fi_getinfo(3) lists what they offer. A new
/// provider is a module and a line here.
pub fn visit(v: &mut impl contract::ProviderVisitor) {
    v.visit(efa::Efa);
    v.visit(tcp::Tcp);
}
