//! Timers as file descriptors (timerfd_create(2)).

use crate::core::Result;
use crate::device::wait::no_descriptor;
use core::ptr::null_mut;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A timer, not yet armed. Its descriptor becomes readable when it expires. Fails when descriptors
/// are used up.
pub(super) fn timer() -> Result<OwnedFd> {
    // SAFETY: plain numbers are passed; the descriptor is owned from here on.
    unsafe {
        let flags = libc::TFD_NONBLOCK | libc::TFD_CLOEXEC;
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, flags);
        if fd < 0 {
            return Err(no_descriptor("timerfd_create(2)"));
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Arms the timer to expire every `every`; zero disarms it.
pub(super) fn set_timer(t: &OwnedFd, every: Duration) {
    let every = libc::timespec {
        tv_sec: every.as_secs() as _,
        tv_nsec: every.subsec_nanos() as _,
    };
    let often = libc::itimerspec {
        it_interval: every,
        it_value: every,
    };
    // SAFETY: the descriptor is a timer's, the setting valid.
    unsafe { libc::timerfd_settime(t.as_raw_fd(), 0, &often, null_mut()) };
}

pub(super) fn read_timer(t: &OwnedFd) {
    let mut b = [0u8; 8];
    // SAFETY: room for the eight bytes of a timer.
    unsafe { libc::read(t.as_raw_fd(), b.as_mut_ptr().cast(), b.len()) };
}
