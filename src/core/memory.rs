//! Memory pressure: whether the library allocates from its reserve because malloc(3) fails.
//!
//! The shared library keeps a reserve (`abi::reserve`), which serves allocations when malloc(3)
//! fails. The more of it is in use, the less the library accepts: from a quarter on no new objects,
//! which would keep their part of it; from a half on no operation that the application can post
//! again, and no message without a receive where its sender can wait; from three quarters on no
//! receive either, of which each may free the memory of a message. Operations under way are
//! completed in any case. Less use is no reason to refuse anything: long-lived allocations may keep
//! part of the reserve in use long after a shortage.

use crate::core::{Errno, Result};
use crate::types::{FI_EAGAIN, FI_ENOMEM, FI_LOG_CORE};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::OnceLock;
use std::time::Instant;

/// Bytes of the reserve.
pub const RESERVE: usize = 32 << 20;

static FROM_RESERVE: AtomicUsize = AtomicUsize::new(0);

#[inline]
fn uses_quarters(n: usize) -> bool {
    FROM_RESERVE.load(Relaxed) > RESERVE / 4 * n
}

/// Whether memory is short.
#[inline]
pub fn short() -> bool {
    uses_quarters(2)
}

/// Whether buffers that may be smaller have to be: the reserve would be used up by those of some
/// tens of endpoints.
pub fn is_scarce() -> bool {
    FROM_RESERVE.load(Relaxed) > RESERVE / 16
}

/// `FI_ENOMEM` while memory is short, for calls that make something new.
pub fn check() -> Result<()> {
    match uses_quarters(1) {
        false => Ok(()),
        true => {
            explain("nothing new is opened");
            Err(FI_ENOMEM)
        }
    }
}

/// `FI_EAGAIN` while memory is short, for operations; `FI_ENOMEM` once it has been so
/// for 30 s.
#[inline]
pub fn check_operation() -> Result<()> {
    match short() {
        false => Ok(()),
        true => Err(refuse_operation()),
    }
}

/// As [`check_operation`], for receives.
#[inline]
pub fn check_receive() -> Result<()> {
    match is_nearly_used_up() {
        false => Ok(()),
        true => Err(again()),
    }
}

/// A program that posts no receive before its send is taken, and whose messages without a receive
/// are why it is not, would try for ever.
const PATIENCE_MS: u64 = 30_000;

/// Milliseconds of [`uptime`] at which operations began to be refused, 0 for none; memory has been
/// short since. No lock: it is written where memory is freed.
static REFUSED_SINCE: AtomicU64 = AtomicU64::new(0);

/// Milliseconds since the first call, plus one.
fn uptime() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1
}

#[cold]
fn refuse_operation() -> Errno {
    let now = uptime();
    let since = REFUSED_SINCE.compare_exchange(0, now, Relaxed, Relaxed);
    if since.map_or_else(|since| now.saturating_sub(since), |_| 0) < PATIENCE_MS {
        return again();
    }
    explain("operations fail, because it has been so for half a minute");
    FI_ENOMEM
}

/// Whether even what frees memory has to wait.
#[inline]
pub fn is_nearly_used_up() -> bool {
    uses_quarters(3)
}

/// Whether hardly anything of the reserve is left: what a peer sends and cannot be left with it is
/// refused at the price of an error, because without memory the process would end.
pub fn is_used_up() -> bool {
    FROM_RESERVE.load(Relaxed) > RESERVE / 16 * 15
}

#[cold]
fn again() -> Errno {
    explain("operations have to wait");
    FI_EAGAIN
}

/// Without this line an application whose own allocations caused the shortage would wait for ever
/// without a reason.
#[cold]
pub fn explain(what: &str) {
    crate::warn_limited!(
        FI_LOG_CORE,
        "malloc(3) fails, and {} of the {} MiB that are kept for this are in use: {what}. The \
         limits are ulimit -v, ulimit -d and vm.overcommit_memory",
        FROM_RESERVE.load(Relaxed) >> 20,
        RESERVE >> 20
    );
}

/// Adds `bytes` to the use of the reserve.
pub fn add_use(bytes: usize) {
    FROM_RESERVE.fetch_add(bytes, Relaxed);
}

/// Subtracts `bytes` from the use of the reserve.
pub fn sub_use(bytes: usize) {
    FROM_RESERVE.fetch_sub(bytes, Relaxed);
    if REFUSED_SINCE.load(Relaxed) != 0 && !short() {
        REFUSED_SINCE.store(0, Relaxed);
    }
}
