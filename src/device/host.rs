//! What the library asks of the system for itself: the clock, random numbers, threads that take no
//! signals.

use crate::core::{guarded, Result};
use crate::types::*;
use core::ffi::c_void;

/// Nanoseconds of a clock that all processes of a host share, but for those in a time namespace of
/// their own.
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
pub fn secret() -> Result<u64> {
    let mut v = 0u64;
    for _ in 0..16 {
        // SAFETY: at most eight bytes are written into a variable of eight bytes.
        if unsafe { libc::getrandom((&raw mut v).cast(), 8, 0) } == 8 {
            return Ok(v);
        }
    }
    crate::warn_log!(
        FI_LOG_CORE,
        "getrandom(2) gives no random numbers: no secret can be made"
    );
    Err(FI_ENOSYS)
}

/// A random number from the system, for what need not be secret; the clock where the system has
/// none.
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

/// Bytes of stack of a thread.
const STACK: usize = 256 << 10;

/// Starts a thread of the library: signals are the application's, and a panic begins its `body`
/// again. `FI_EAGAIN` when the system gives no thread.
///
/// Not std::thread: what that registers in each thread ends the program when there is no memory for
/// it.
pub fn start(name: &'static core::ffi::CStr, body: impl FnMut() + Send + 'static) -> Result<()> {
    struct Start(&'static core::ffi::CStr, Box<dyn FnMut() + Send>);
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: it is the box below, which is ours now.
        let Start(name, mut body) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        // SAFETY: the name ends with a zero and is shorter than 16 bytes, or is cut.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        block_signals();
        guarded::run(name.to_str().unwrap_or("efa"), &mut *body);
        core::ptr::null_mut()
    }
    let start = Box::into_raw(Box::new(Start(name, Box::new(body))));
    // SAFETY: attributes are initialised before they are used, and given back; the thread owns
    // `start`, which we take back when there is none.
    unsafe {
        let mut attr: libc::pthread_attr_t = core::mem::zeroed();
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let mut r = libc::pthread_attr_init(&mut attr);
        if r == 0 {
            libc::pthread_attr_setstacksize(&mut attr, STACK);
            libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
            r = libc::pthread_create(&mut thread, &attr, run, start.cast());
            libc::pthread_attr_destroy(&mut attr);
        }
        if r != 0 {
            drop(Box::from_raw(start));
            return Err(FI_EAGAIN);
        }
    }
    Ok(())
}

/// Signals are the application's: none is delivered to this thread.
fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used; no handler is touched.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
    }
}
