//! The turns of the domain's progress thread (`prov::progress_thread`), and what wakes it.

use super::{arm_eps, EfaDomain, State};
use crate::core::yielding::YieldBackoff;
use crate::device::wait::WaitSet;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::progress::progress;
use crate::prov::progress_thread::{Background, Next, ProgressThread};
use crate::prov::reports;
use std::sync::Arc;

/// The polls of the application, as the progress thread sees them.
#[derive(Default)]
pub(crate) struct Polls {
    /// The application has polled since the thread looked.
    some: bool,
    /// [`trace`] when the thread looked.
    trace: u64,
    /// Wakes the thread, which sleeps until something arrives.
    asleep: Option<Arc<WaitSet>>,
}

impl Polls {
    /// The application polls in vain, or has taken the event for which the thread sleeps.
    pub(crate) fn note(&mut self) {
        self.some = true;
        if let Some(w) = self.asleep.take() {
            w.signal();
        }
    }
}

/// A number that most polls change.
fn trace(s: &State) -> u64 {
    let live = s.eps.iter().filter_map(|(_, e)| e.live.as_ref());
    let cqs = s.cqs.iter().map(|(_, q)| &q.backoff);
    let backoffs = cqs.chain(s.cntrs.iter().map(|(_, c)| &c.backoff));
    live.map(LiveEndpoint::poll_counts).sum::<u64>()
        + backoffs.map(YieldBackoff::polls).sum::<u64>()
}

impl EfaDomain {
    /// Adds the descriptor of a new endpoint to those that wake the progress thread.
    pub(crate) fn watch(&self, fd: i32) {
        self.thread.wake.add(fd);
        self.thread.wake.signal();
    }

    /// Removes the descriptor of a closed endpoint.
    pub(crate) fn unwatch(&self, fd: i32) {
        self.thread.wake.remove(fd);
    }
}

impl Background for EfaDomain {
    fn thread(&self) -> &ProgressThread {
        &self.thread
    }

    fn turn(&self) -> (Vec<Arc<WaitSet>>, Next) {
        let mut guard = self.state.lock_from_library();
        let s = &mut *guard;
        let (before, now) = (core::mem::take(&mut s.polls), trace(s));
        s.polls.trace = now;
        let next = match before.some || before.trace != now {
            true => Next::Pause,
            false => {
                let all = s.eps.select(|_| true);
                for id in &all {
                    progress(s, *id);
                }
                let quiet = arm_eps(&mut s.eps, &all);
                s.polls = Polls {
                    some: false,
                    trace: trace(s),
                    asleep: quiet.then(|| Arc::clone(&self.thread.wake)),
                };
                if quiet {
                    Next::Sleep(-1)
                } else {
                    Next::Again
                }
            }
        };
        (reports::take_news(&mut s.cqs, &mut s.cntrs), next)
    }

    fn give_way(&self) {
        self.state.give_way();
    }
}
