//! Operations that wait for counters (fi_trigger(3)): triggered operations and deferred work.
//!
//! They start in the order of their thresholds, those of one threshold in the order of their calls.
//! Asking which is next costs a step for each counter that something waits for.

use super::deferred::DeferredWork;
use crate::core::slab::Slab;
use crate::prov::reports::cntr::Cntr;
use std::collections::BTreeMap;

/// An operation that a counter starts.
pub(crate) struct PendingTrigger {
    pub ep: u32,
    pub work: DeferredWork,
    /// The application's name for it, for FI_CANCEL_WORK; 0 for a triggered operation.
    pub name: usize,
}

/// Where an operation stands: its counter, its threshold, and the number of its call.
type Place = (u32, u64, u64);

/// See the module text.
#[derive(Default)]
pub(crate) struct Triggers {
    waiting: BTreeMap<Place, PendingTrigger>,
    calls: u64,
}

impl Triggers {
    /// Number of operations that wait.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn push(&mut self, cntr: u32, threshold: u64, t: PendingTrigger) {
        self.calls += 1;
        self.waiting.insert((cntr, threshold, self.calls), t);
    }

    /// Takes the next operation whose counter has reached its threshold.
    pub(super) fn take_due(&mut self, cntrs: &Slab<Cntr>) -> Option<PendingTrigger> {
        let mut from = (0, 0, 0);
        loop {
            let (at, _) = self.waiting.range(from..).next()?;
            let (cntr, threshold, _) = *at;
            if cntrs.get(cntr).is_some_and(|c| c.value() >= threshold) {
                let at = *at;
                return self.waiting.remove(&at);
            }
            from = (cntr.checked_add(1)?, 0, 0);
        }
    }

    /// Whether something waits for this counter.
    pub(super) fn wait_for(&self, cntr: u32) -> bool {
        let next = self.waiting.range((cntr, 0, 0)..).next();
        next.is_some_and(|(at, _)| at.0 == cntr)
    }

    pub(super) fn any(&self, is: impl Fn(&PendingTrigger) -> bool) -> bool {
        self.waiting.values().any(is)
    }

    /// Drops all of which `is` holds; whether there was one.
    pub(crate) fn take_back(&mut self, is: impl Fn(&PendingTrigger) -> bool) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, t| !is(t));
        self.waiting.len() < before
    }
}
