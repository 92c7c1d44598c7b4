//! System services for the library's own use: the clock, random numbers, threads that take no
//! signals.

use crate::core::process::PerProcess;
use crate::core::sync::Mutex;
use crate::core::{guarded, Result};
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of_val;
use std::alloc::{alloc_zeroed, Layout};
use std::os::fd::{AsRawFd, OwnedFd};

/// Nanoseconds of a clock that all processes of a host share, except those in another time
/// namespace.
pub fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a timespec is written into a variable of that type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    // One second is added so that the result is always well after 0, which stands for "long ago".
    (t.tv_sec as u64 + 1) * 1_000_000_000 + t.tv_nsec as u64
}

/// Zeroed memory of `len` bytes, whose pages take none of the system's until they are used; `None`
/// when there is none, and for no bytes.
pub fn zeroed(len: usize) -> Option<Vec<u8>> {
    let layout = Layout::array::<u8>(len).ok().filter(|l| l.size() > 0)?;
    // SAFETY: the layout is not empty; the memory is as long as it says, initialised, and owned
    // here alone.
    unsafe {
        let at = alloc_zeroed(layout);
        (!at.is_null()).then(|| Vec::from_raw_parts(at, len, len))
    }
}

/// The processor that the caller runs on; `None` where the system does not tell.
pub fn processor() -> Option<u16> {
    // SAFETY: takes nothing.
    let cpu = unsafe { libc::sched_getcpu() };
    u16::try_from(cpu).ok()
}

/// The effective user of this process.
pub fn user() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The same file by a descriptor other than 0 to 2. A program that has closed its standard error
/// still writes lines there, which would arrive at a peer or in shared memory.
pub fn above_standard(fd: OwnedFd) -> Result<OwnedFd> {
    match fd.as_raw_fd() < 3 {
        true => fd
            .try_clone()
            .map_err(|e| e.raw_os_error().unwrap_or(FI_EMFILE)),
        false => Ok(fd),
    }
}

/// How often this thread has had to leave its processor to another, or has waited (getrusage(2)); 0
/// where the system does not tell.
pub fn context_switches() -> u64 {
    // SAFETY: all-zero is a valid rusage, into which the call writes.
    let used = unsafe {
        let mut used: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut used);
        used
    };
    (used.ru_nvcsw + used.ru_nivcsw) as u64
}

/// Random numbers of the system that are still to be used: one call to it takes as long as all else
/// that a registration does.
#[derive(Default)]
struct Secrets {
    words: [u64; 32],
    left: usize,
}

static SECRETS: PerProcess<Mutex<Secrets>> = PerProcess::new();

/// 64 unguessable bits from the system. `FI_ENOSYS` where it gives none: unlike [`random`], the
/// clock is no substitute.
pub fn secret() -> Result<u64> {
    let mut s = SECRETS.lock();
    if s.left == 0 {
        s.left = draw(&mut s.words)?;
    }
    s.left -= 1;
    let at = s.left;
    s.words.get_mut(at).map(core::mem::take).ok_or(FI_ENOSYS)
}

fn draw(words: &mut [u64]) -> Result<usize> {
    let bytes = size_of_val(words);
    for _ in 0..16 {
        // SAFETY: at most as many bytes are written as the slice has.
        let n = unsafe { libc::getrandom(words.as_mut_ptr().cast(), bytes, 0) };
        if usize::try_from(n) == Ok(bytes) {
            return Ok(words.len());
        }
    }
    crate::warn_log!(
        FI_LOG_CORE,
        "getrandom(2) gives no random numbers: no secret can be made"
    );
    Err(FI_ENOSYS)
}

/// A random number that need not be secret: from the system, or from the clock where the system
/// gives none.
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

/// Bytes of stack of a thread, beside those that the C library takes for itself.
const STACK: usize = 256 << 10;

/// Bytes of a thread's stack that glibc takes for itself: the thread-local variables of the program
/// and its libraries, above all, which may be more than [`STACK`]. 0 where it does not say.
fn smallest_stack(attr: &libc::pthread_attr_t) -> usize {
    // SAFETY: the function is looked up by its name, and has this signature in every glibc that has
    // it (nptl/nptl-stack.c).
    unsafe {
        let p = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        if p.is_null() {
            return 0;
        }
        type MinStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
        core::mem::transmute::<*mut c_void, MinStack>(p)(attr)
    }
}

/// Starts a thread of the library: it blocks all signals, and a panic restarts `body`. `FI_EAGAIN`
/// when the system cannot create a thread.
///
/// Not std::thread: without memory for the state that std registers in each thread, the program is
/// aborted.
pub fn start(name: &'static core::ffi::CStr, body: impl FnMut() + Send + 'static) -> Result<()> {
    struct Start(&'static core::ffi::CStr, Box<dyn FnMut() + Send>);
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: `start` is the box made below, which this thread owns now.
        let Start(name, mut body) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        // SAFETY: the name ends with a zero and is shorter than 16 bytes, or is cut.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        block_signals();
        guarded::run(name.to_str().unwrap_or("efa"), &mut *body);
        core::ptr::null_mut()
    }
    let start = Box::into_raw(Box::new(Start(name, Box::new(body))));
    // SAFETY: attributes are initialised before they are used, and destroyed; the thread owns
    // `start`, which we take back when no thread was created.
    unsafe {
        let mut attr: libc::pthread_attr_t = core::mem::zeroed();
        let mut thread: libc::pthread_t = core::mem::zeroed();
        let mut r = libc::pthread_attr_init(&mut attr);
        if r == 0 {
            libc::pthread_attr_setstacksize(&mut attr, STACK + smallest_stack(&attr));
            libc::pthread_attr_setdetachstate(&mut attr, libc::PTHREAD_CREATE_DETACHED);
            r = libc::pthread_create(&mut thread, &attr, run, start.cast());
            libc::pthread_attr_destroy(&mut attr);
        }
        if r != 0 {
            drop(Box::from_raw(start));
            let e = std::io::Error::from_raw_os_error(r);
            crate::warn_log!(
                FI_LOG_CORE,
                "no thread {name:?}: {e}. The limits are ulimit -u and the cgroup's pids.max"
            );
            return Err(FI_EAGAIN);
        }
    }
    Ok(())
}

/// Blocks all signals for this thread: they are for the application's threads.
fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is used; no handler is touched.
    unsafe {
        let mut set: libc::sigset_t = core::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut());
    }
}

/// Descriptors that the process may have open (RLIMIT_NOFILE).
pub fn descriptors_max() -> usize {
    let mut most = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes one value.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut most) } != 0;
    match failed {
        true => usize::MAX,
        false => usize::try_from(most.rlim_cur).unwrap_or(usize::MAX),
    }
}
