//! Memory pressure: whether the library allocates from its reserve because malloc(3) fails.
//!
//! The shared library keeps a reserve (`abi::reserve`), which serves allocations when malloc(3)
//! fails. While more than half of the reserve is in use, the library accepts nothing that it would
//! have to keep and refuses operations that the application can post again; it only completes
//! operations under way. Less use is no reason to refuse anything: long-lived allocations may keep
//! part of the reserve in use long after a shortage.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of the reserve.
pub const RESERVE: usize = 32 << 20;

static FROM_RESERVE: AtomicUsize = AtomicUsize::new(0);

/// Whether memory is short.
#[inline]
pub fn short() -> bool {
    FROM_RESERVE.load(Relaxed) > RESERVE / 2
}

/// `FI_ENOMEM` while memory is short: for calls that make something new.
pub fn check() -> super::Result<()> {
    match short() {
        false => Ok(()),
        true => Err(crate::types::FI_ENOMEM),
    }
}

/// Adds `bytes` to the use of the reserve.
pub fn taken(bytes: usize) {
    FROM_RESERVE.fetch_add(bytes, Relaxed);
}

/// Subtracts `bytes` from the use of the reserve.
pub fn given(bytes: usize) {
    FROM_RESERVE.fetch_sub(bytes, Relaxed);
}
