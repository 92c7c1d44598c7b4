//! Device memory: an interface for each kind, behind one contract.
//!
//! An interface whose library is not there copies nothing and says so.

use super::desc::{MemKind, DEVICE_KINDS, KINDS};
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

    /// Whether an address is in device memory of this kind.
    fn owns(&self, at: usize) -> bool;
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
    fn owns(&self, _: usize) -> bool {
        false
    }
}

static INSTALLED: [OnceLock<Box<dyn Interface>>; KINDS] = [const { OnceLock::new() }; KINDS];

/// Makes an interface known. The first of a kind stays.
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

/// Looks for the interfaces of this machine, once: no context is made, and nothing is allocated on
/// a device.
pub(crate) fn detect() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(super::cuda::detect);
}

/// Whether this machine has an interface of this kind.
pub(crate) fn present(kind: MemKind) -> bool {
    kind == MemKind::Host
        || INSTALLED
            .get(kind as usize)
            .is_some_and(|i| i.get().is_some())
}

/// Whether this machine has device memory.
pub(crate) fn any() -> bool {
    detect();
    INSTALLED.iter().any(|i| i.get().is_some())
}

/// The kind of device memory that an address is in, if it is.
pub(crate) fn owner(at: usize) -> Option<MemKind> {
    let known = INSTALLED.iter().skip(1).zip(DEVICE_KINDS);
    let mut known = known.filter_map(|(i, kind)| Some((i.get()?, kind)));
    known.find(|(i, _)| i.owns(at)).map(|(_, kind)| kind)
}
