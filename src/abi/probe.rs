//! Provider files are tried out in a child process before they are loaded: a file that crashes
//! while it is initialised would end the application.
//!
//! The child loads and initialises one file after the other, and reports each by a byte in a pipe.
//! Where the bytes end early, the next file has ended the child. The child is a copy of the calling
//! thread alone, so that an initialisation may also hang there that would not hang here: after
//! [`CHILD_TIME_MAX`] the remaining files are loaded untested.

use super::external::initialise;
use core::ffi::c_int;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one child may take.
const CHILD_TIME_MAX: Duration = Duration::from_secs(5);

/// Signals by which a crash ends a process.
const CRASHES: [c_int; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGABRT,
    libc::SIGTRAP,
];

/// The files that end a process which loads them.
pub(super) fn crashing(files: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = files;
    while let Some(good) = initialised(left) {
        let Some((bad, rest)) = left.get(good..).and_then(<[PathBuf]>::split_first) else {
            break;
        };
        found.push(bad.clone());
        left = rest;
    }
    found
}

/// Number of files that a child initialised before it ended; `None` when it did not end, or could
/// not be started.
fn initialised(files: &[PathBuf]) -> Option<usize> {
    if files.is_empty() {
        return None;
    }
    let mut ends = [-1; 2];
    // SAFETY: there is a place for both descriptors, which are new and ours.
    let (mut from_child, mut to_parent) = unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return None;
        }
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    };
    // SAFETY: the child calls what is allowed after a fork, and the files' own code.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return None,
        0 => {
            be_silent();
            for f in files {
                let _ = initialise(f);
                let _ = to_parent.write_all(&[1]);
            }
            // SAFETY: ends the child without the application's exit handlers.
            unsafe { libc::_exit(0) }
        }
        _ => drop(to_parent),
    }
    let until = Instant::now() + CHILD_TIME_MAX;
    let (mut good, mut ended) = (0, false);
    while readable(&from_child, until) {
        match from_child.read(&mut [0]) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => {
                ended = true;
                break;
            }
            Ok(_) => good += 1,
        }
    }
    // SAFETY: plain numbers are passed; the child is ours, and not waited for yet. A child that has
    // ended is not disturbed.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, core::ptr::null_mut(), 0) < 0 && interrupted() {}
    }
    ended.then_some(good)
}

/// In the child: neither the application's signal handlers, nor core files, nor output.
fn be_silent() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain numbers, a terminated name and a structure are passed.
    unsafe {
        for signal in CRASHES {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        libc::dup2(nowhere, 1);
        libc::dup2(nowhere, 2);
    }
}

/// Waits until the pipe has a byte or its end; `false` when it takes too long.
fn readable(pipe: &File, until: Instant) -> bool {
    let mut p = libc::pollfd {
        fd: pipe.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        let left = until.saturating_duration_since(Instant::now()).as_millis();
        // SAFETY: `p` is one entry.
        let ready = unsafe { libc::poll(&mut p, 1, left as c_int) };
        if ready >= 0 || !interrupted() {
            return ready > 0;
        }
    }
}

/// Whether the last system call was interrupted by a signal of the application's.
fn interrupted() -> bool {
    std::io::Error::last_os_error().kind() == ErrorKind::Interrupted
}
