//! Device memory: an interface for each kind, behind one contract.
//!
//! An interface whose library is not there copies nothing and says so.

use super::desc::{MemKind, KINDS};
use crate::core::Result;
use crate::types::*;
use std::sync::OnceLock;

/// What every kind of device memory can do. Thread safe; no call creates a context.
pub trait Interface: Send + Sync {
    /// Copies `len` bytes of host memory at `from` to device memory at `to`, and waits.
    ///
    /// # Safety
    /// `from` has `len` readable bytes.
    unsafe fn copy_in(&self, to: usize, from: *const u8, len: usize) -> Result<()>;

    /// Copies `len` bytes of device memory at `from` to host memory at `to`, and waits.
    ///
    /// # Safety
    /// `to` has `len` writable bytes.
    unsafe fn copy_out(&self, to: *mut u8, from: usize, len: usize) -> Result<()>;
}

/// An interface without its library.
struct Absent;

impl Interface for Absent {
    unsafe fn copy_in(&self, _: usize, _: *const u8, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }
    unsafe fn copy_out(&self, _: *mut u8, _: usize, _: usize) -> Result<()> {
        Err(FI_ENOSYS)
    }
}

static INSTALLED: [OnceLock<Box<dyn Interface>>; KINDS] = [const { OnceLock::new() }; KINDS];

/// Makes an interface known. The first of a kind stays.
#[cfg(test)]
pub(crate) fn install(kind: MemKind, i: Box<dyn Interface>) {
    if let Some(place) = INSTALLED.get(kind as usize) {
        let _ = place.set(i);
    }
}

/// The interface of this kind.
pub(crate) fn of(kind: MemKind) -> &'static dyn Interface {
    let known = INSTALLED.get(kind as usize).and_then(OnceLock::get);
    known.map_or(&Absent, |i| &**i)
}
