//! Whether the system has memory for us.
//!
//! The shared library keeps a reserve (`abi::reserve`) from which it goes on when malloc(3) fails.
//! While half of it is in use the library takes in nothing that it would have to keep, and refuses
//! what the application can post again: it only finishes what is under way. Less may stay in use
//! for long after a shortage, by something that lives long, and is no reason to refuse anything.

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

/// So many bytes more of the reserve are in use.
pub fn taken(bytes: usize) {
    FROM_RESERVE.fetch_add(bytes, Relaxed);
}

/// So many fewer.
pub fn given(bytes: usize) {
    FROM_RESERVE.fetch_sub(bytes, Relaxed);
}
