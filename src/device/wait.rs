//! Blocking waits: for one descriptor to become readable, or for a set of descriptors.
//!
//! A [`WaitSet`] is an epoll descriptor that an application may hand to poll(2) or epoll(7)
//! (FI_WAIT_FD), with one event descriptor of its own for signals from inside the library.

use super::local::errno;
use crate::core::Result;
use crate::types::*;
use core::cell::UnsafeCell;

/// Logs which descriptor a failed system call has not returned, and returns the call's errno.
#[cold]
pub fn no_descriptor(what: &str) -> i32 {
    let e = errno();
    crate::warn_log!(
        FI_LOG_CORE,
        "{what}: {}. EMFILE, ENFILE: no file descriptor is left (ulimit -n)",
        crate::core::errno::text(e)
    );
    e
}

/// epoll_ctl(2): from now on `events` of `fd` come with `name`. Adding twice is harmless. Fails,
/// with a log line, when the system watches no more descriptors.
pub fn watch(epoll: i32, operation: i32, fd: i32, events: i32, name: u64) -> Result<()> {
    let mut e = libc::epoll_event {
        events: events as u32,
        u64: name,
    };
    // SAFETY: `e` outlives the call.
    if unsafe { libc::epoll_ctl(epoll, operation, fd, &mut e) } == 0 {
        return Ok(());
    }
    match (operation, errno()) {
        (libc::EPOLL_CTL_ADD, libc::EEXIST) | (libc::EPOLL_CTL_DEL, _) => Ok(()),
        (_, e) => {
            crate::warn_limited!(
                FI_LOG_CORE,
                "descriptor {fd} cannot be watched: epoll_ctl(2): {}. ENOSPC: raise \
                 fs.epoll.max_user_watches",
                crate::core::errno::text(e)
            );
            Err(e)
        }
    }
}

/// See the module text.
pub struct WaitSet {
    epoll: i32,
    event: i32,
    pair: Box<Pair>,
}

/// Mutex and condition variable of FI_WAIT_MUTEX_COND.
struct Pair {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
}

// SAFETY: both are only handed to pthread functions, which are made for sharing.
unsafe impl Sync for Pair {}
// SAFETY: as above; nothing refers to the creating thread.
unsafe impl Send for Pair {}

impl WaitSet {
    /// A set with only its own event descriptor. `FI_EMFILE` when descriptors are used up, or
    /// another errno of epoll_create1(2), eventfd(2) or epoll_ctl(2).
    pub fn new() -> Result<WaitSet> {
        // SAFETY: no pointers are passed.
        let (epoll, event) = unsafe {
            (
                libc::epoll_create1(libc::EPOLL_CLOEXEC),
                libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC),
            )
        };
        let pair = Pair {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        };
        let w = WaitSet {
            epoll,
            event,
            pair: Box::new(pair),
        };
        if epoll < 0 || event < 0 {
            return Err(no_descriptor("a wait object: epoll_create1(2), eventfd(2)"));
        }
        // Signals would be lost without it.
        watch(
            epoll,
            libc::EPOLL_CTL_ADD,
            event,
            libc::EPOLLIN,
            event as u64,
        )?;
        Ok(w)
    }

    /// Waits until the set is readable, at most `timeout_ms` (negative: without limit). Returns
    /// whether the set is readable.
    pub fn wait(&self, timeout_ms: i32) -> bool {
        poll_fd(self.epoll, libc::POLLIN, timeout_ms)
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> i32 {
        self.epoll
    }

    /// Adds a descriptor; adding twice is harmless.
    pub fn add(&self, fd: i32) {
        // Without it callers still look from time to time.
        let _ = watch(
            self.epoll,
            libc::EPOLL_CTL_ADD,
            fd,
            libc::EPOLLIN,
            fd as u64,
        );
    }

    /// Removes a descriptor.
    pub fn remove(&self, fd: i32) {
        let _ = watch(self.epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Makes the set readable.
    pub fn signal(&self) {
        let one = 1u64;
        // SAFETY: writes eight bytes from a variable of eight bytes.
        unsafe { libc::write(self.event, (&raw const one).cast(), 8) };
    }

    /// The mutex and the condition of FI_WAIT_MUTEX_COND, valid as long as the set.
    pub fn mutex_cond(&self) -> (*mut libc::pthread_mutex_t, *mut libc::pthread_cond_t) {
        (self.pair.mutex.get(), self.pair.cond.get())
    }

    /// Wakes all threads that wait on the condition variable.
    pub fn broadcast(&self) {
        let (mutex, cond) = self.mutex_cond();
        // SAFETY: both are initialised and live as long as `self`.
        unsafe {
            libc::pthread_mutex_lock(mutex);
            libc::pthread_cond_broadcast(cond);
            libc::pthread_mutex_unlock(mutex);
        }
    }

    /// Waits for [`WaitSet::signal`], at most `timeout_ms`.
    pub fn wait_signal(&self, timeout_ms: i32) {
        poll_fd(self.event, libc::POLLIN, timeout_ms);
    }

    /// Waits for [`WaitSet::signal`], or until `fd` is readable, at most `timeout_ms`.
    pub fn wait_signal_or(&self, fd: i32, timeout_ms: i32) {
        let _ = poll_any([self.event, fd], libc::POLLIN, timeout_ms);
    }

    /// Clears the signal of [`WaitSet::signal`].
    pub fn clear(&self) {
        let mut n = 0u64;
        // SAFETY: reads eight bytes into a variable of eight bytes.
        unsafe { libc::read(self.event, (&raw mut n).cast(), 8) };
    }
}

/// Waits until `fd` is readable, at most `timeout_ms` (negative: without limit).
pub fn wait_readable(fd: i32, timeout_ms: i32) {
    poll_fd(fd, libc::POLLIN, timeout_ms);
}

/// As [`wait_readable`], for calls of the application that block. `FI_EINTR` when a signal handler
/// has run meanwhile: it may have asked the application to stop waiting.
pub fn wait_interruptibly(fd: i32, timeout_ms: i32) -> Result<()> {
    match poll_any([fd], libc::POLLIN, timeout_ms) {
        Err(FI_EINTR) => Err(FI_EINTR),
        _ => Ok(()),
    }
}

/// As [`wait_readable`], for any events of poll(2). Returns whether one occurred.
pub fn poll_fd(fd: i32, events: i16, timeout_ms: i32) -> bool {
    poll_any([fd], events, timeout_ms).unwrap_or(false)
}

/// As [`poll_fd`], for several descriptors; with the errno of poll(2).
fn poll_any<const N: usize>(fds: [i32; N], events: i16, timeout_ms: i32) -> Result<bool> {
    let mut p = fds.map(|fd| libc::pollfd {
        fd,
        events,
        revents: 0,
    });
    // SAFETY: `N` entries are passed, which outlive the call.
    match unsafe { libc::poll(p.as_mut_ptr(), N as libc::nfds_t, timeout_ms) } {
        ready @ 0.. => Ok(ready > 0),
        _ => Err(errno()),
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        for fd in [self.epoll, self.event] {
            if fd >= 0 {
                // SAFETY: the descriptor is ours and closed once.
                unsafe { libc::close(fd) };
            }
        }
    }
}
