//! The progress thread of a domain: progress without calls of the application (FI_PROGRESS_AUTO,
//! FI_WAIT_MUTEX_COND).
//!
//! While the application polls, the thread only tests now and then whether it still does: two
//! threads that poll take each other's events, and the lock. When the application has stopped, the
//! thread makes progress and sleeps until something arrives.

use crate::core::Result;
use crate::device::host;
use crate::device::wait::{wait_readable, WaitSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Time between two tests whether the application polls, in milliseconds: up to `SOON` tests, and
/// then.
const PAUSE: i32 = 1;
const PAUSE_MAX: i32 = 4;
const SOON: u32 = 16;
/// Longest sleep, in milliseconds: the domain may be gone without a signal.
const SLEEP_MAX: i32 = 100;

/// State of the thread that calls of the application use.
pub(crate) struct ProgressThread {
    /// Wakes the thread; descriptors of what arrives are added.
    pub wake: Arc<WaitSet>,
    started: AtomicBool,
    closing: AtomicBool,
}

impl ProgressThread {
    /// Not started. `FI_EMFILE` when descriptors are used up.
    pub(crate) fn new() -> Result<ProgressThread> {
        Ok(ProgressThread {
            wake: Arc::new(WaitSet::new()?),
            started: AtomicBool::new(false),
            closing: AtomicBool::new(false),
        })
    }

    /// Whether there is a thread.
    #[inline(always)]
    pub(crate) fn started(&self) -> bool {
        self.started.load(Ordering::Relaxed)
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.wake.signal();
    }
}

/// What the thread does next.
pub(crate) enum Next {
    /// The application polls: a pause.
    Pause,
    /// A sleep until something arrives, at most so many milliseconds (negative: no limit).
    Sleep(i32),
    /// Another turn.
    Again,
}

/// A domain that a progress thread serves.
pub(crate) trait Background: Send + Sync + 'static {
    fn thread(&self) -> &ProgressThread;

    /// One turn: makes progress unless the application has polled since the last turn. Returns the
    /// wait objects whose condition is to be signalled, and what to do next.
    fn turn(&self) -> (Vec<Arc<WaitSet>>, Next);

    /// Lets a call of the application that waits for the domain's lock go first.
    fn give_way(&self);
}

/// Starts the thread of a domain, once. `FI_EAGAIN` when the system cannot create it.
pub(crate) fn start<D: Background>(domain: &Arc<D>) -> Result<()> {
    if domain.thread().started.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    let weak = Arc::downgrade(domain);
    let result = host::start(c"fi-progress", move || run(&weak));
    if result.is_err() {
        // The next call that needs the thread tries again.
        domain.thread().started.store(false, Ordering::SeqCst);
    }
    result
}

fn run<D: Background>(domain: &Weak<D>) {
    let mut pauses = 0;
    while let Some(d) = domain.upgrade() {
        let thread = d.thread();
        if thread.closing.load(Ordering::SeqCst) {
            return;
        }
        thread.wake.clear();
        let (tell, next) = d.turn();
        for w in tell {
            w.broadcast();
        }
        match next {
            Next::Pause => {
                let pause = if pauses < SOON { PAUSE } else { PAUSE_MAX };
                thread.wake.wait_signal(pause);
                pauses = pauses.saturating_add(1);
                continue;
            }
            Next::Sleep(most) if most < 0 => wait_readable(thread.wake.fd(), SLEEP_MAX),
            Next::Sleep(most) => wait_readable(thread.wake.fd(), most),
            Next::Again => {
                d.give_way();
                std::thread::yield_now();
            }
        }
        pauses = 0;
    }
}
