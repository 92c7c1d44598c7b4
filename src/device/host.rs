//! What the library asks of the system for itself: the clock, random numbers, threads that take no signals.

/// Nanoseconds of a clock that all processes of a host share, but for those in a time namespace of their own.
pub fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one is written into a variable of that kind.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    // A second's head start keeps differences to "long ago" positive.
    (t.tv_sec as u64 + 1) * 1_000_000_000 + t.tv_nsec as u64
}

/// 64 unguessable bits from the system. `FI_ENOSYS` where it has none: the clock is no secret.
pub fn secret() -> crate::core::Result<u64> {
    let mut v = 0u64;
    for _ in 0..16 {
        // SAFETY: at most eight bytes are written into a variable of eight bytes.
        if unsafe { libc::getrandom((&raw mut v).cast(), 8, 0) } == 8 {
            return Ok(v);
        }
    }
    crate::warn_log!(
        crate::types::FI_LOG_CORE,
        "getrandom(2) gives no random numbers: no secret can be made"
    );
    Err(crate::types::FI_ENOSYS)
}

/// A random number from the system, for what need not be secret; the clock where the system has none.
pub fn random() -> u64 {
    let mut v = 0u64;
    // SAFETY: at most eight bytes are written into a variable of eight bytes.
    let n = unsafe { libc::getrandom((&raw mut v).cast(), 8, 0) };
    if n == 8 {
        v
    } else {
        now() ^ u64::from(std::process::id()) << 32
    }
}

/// Signals are the application's: none is delivered to this thread.
pub fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used; no handler is touched.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
    }
}
