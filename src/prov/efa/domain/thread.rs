//! The progress thread of a domain, for progress without calls of the application
//! (FI_PROGRESS_AUTO, FI_WAIT_MUTEX_COND).

use super::{arm_eps, EfaDomain};
use crate::core::Result;
use crate::device::host;
use crate::device::wait::wait_readable;
use crate::prov::efa::progress::progress;
use crate::prov::reports;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

impl EfaDomain {
    /// Starts the progress thread (FI_PROGRESS_AUTO, FI_WAIT_MUTEX_COND) unless it runs already.
    /// The thread sleeps while nothing arrives.
    pub(crate) fn progress_thread(self: &Arc<Self>) -> Result<()> {
        if self.thread.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let me = Arc::downgrade(self);
        host::start(c"fi-progress", move || run_progress(&me))
    }

    /// Adds the descriptor of a new endpoint to those that wake the progress thread.
    pub(crate) fn watch(&self, fd: i32) {
        self.wake.add(fd);
        self.wake.signal();
    }

    /// Removes the descriptor of a closed endpoint.
    pub(crate) fn unwatch(&self, fd: i32) {
        self.wake.remove(fd);
    }
}

fn run_progress(domain: &Weak<EfaDomain>) {
    loop {
        let Some(d) = domain.upgrade() else { return };
        if d.closing.load(Ordering::SeqCst) {
            return;
        }
        d.wake.clear();
        let (tell, quiet) = {
            let mut s = d.state.lock_from_library();
            let s = &mut *s;
            let all = s.eps.select(|_| true);
            for id in &all {
                progress(s, *id);
            }
            let tell = reports::take_news(&mut s.cqs, &mut s.cntrs);
            (tell, arm_eps(&mut s.eps, &all))
        };
        for w in tell {
            w.broadcast();
        }
        if quiet {
            // The time-out (ms) is needed: the domain may be dropped without a signal.
            wait_readable(d.wake.fd(), 100);
        }
    }
}
