//! Operations that wait for counters (fi_trigger(3)): triggered operations and deferred work.
//!
//! They start in the order of their thresholds, those of one threshold in the order of their calls.
//! For deferred work the errors of a counter count, too. Asking which is next costs a step for each
//! counter that something waits for.

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

/// Where an operation stands: its counter, whether it is deferred work, its threshold, and the
/// number of its call.
type WaitPlace = (u32, bool, u64, u64);

/// See the module text.
#[derive(Default)]
pub(crate) struct Triggers {
    waiting: BTreeMap<WaitPlace, PendingTrigger>,
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
        let work = t.name != 0;
        self.waiting.insert((cntr, work, threshold, self.calls), t);
    }

    /// Takes the next operation whose counter has reached its threshold.
    pub(super) fn take_due(&mut self, cntrs: &Slab<Cntr>) -> Option<PendingTrigger> {
        let mut from = (0, false, 0, 0);
        loop {
            let at = *self.waiting.range(from..).next()?.0;
            let (cntr, work, threshold, _) = at;
            let count = |c: &Cntr| c.value().saturating_add(if work { c.errors() } else { 0 });
            if cntrs.get(cntr).is_some_and(|c| count(c) >= threshold) {
                return self.waiting.remove(&at);
            }
            from = match work {
                false => (cntr, true, 0, 0),
                true => (cntr.checked_add(1)?, false, 0, 0),
            };
        }
    }

    /// Whether something waits for this counter.
    pub(super) fn wait_for(&self, cntr: u32) -> bool {
        let next = self.waiting.range((cntr, false, 0, 0)..).next();
        next.is_some_and(|(at, _)| at.0 == cntr)
    }

    pub(crate) fn any(&self, is: impl Fn(&PendingTrigger) -> bool) -> bool {
        self.waiting.values().any(is)
    }

    /// Takes out the first of which `is` holds.
    pub(super) fn take_first(
        &mut self,
        is: impl Fn(&PendingTrigger) -> bool,
    ) -> Option<PendingTrigger> {
        let at = *self.waiting.iter().find(|(_, t)| is(t))?.0;
        self.waiting.remove(&at)
    }

    /// Drops all of which `is` holds; whether there was one.
    pub(crate) fn take_back(&mut self, is: impl Fn(&PendingTrigger) -> bool) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|_, t| !is(t));
        self.waiting.len() < before
    }
}
