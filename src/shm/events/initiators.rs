//! Initiators with accesses that the target has not executed: the events thread executes them,
//! for an application that may never poll again.

use super::*;

/// Checks without accesses, after which an initiator is not checked any more.
const IDLE_CHECKS: u32 = 8;
/// Accesses that are executed from here under one lock.
const BATCH: usize = 64;

/// An initiator whose application may never poll again.
pub(super) struct PendingInitiator {
    initiator: Arc<Initiator>,
    /// The first pending position at the last check, and the number of checks without accesses.
    seen: Option<u64>,
    idle: u32,
}

impl EventThread {
    fn pending_initiators(&self) -> MutexGuard<'_, Vec<PendingInitiator>> {
        self.initiators.lock().unpoisoned()
    }

    /// Has the events thread execute a ring's accesses although the application does not poll.
    #[cold]
    pub(crate) fn watch_initiator(&self, initiator: &Arc<Initiator>) {
        initiator.watched.store(true, SeqCst);
        self.pending_initiators().push(PendingInitiator {
            initiator: Arc::clone(initiator),
            seen: None,
            idle: 0,
        });
        self.bell.signal();
    }

    /// Checks the accesses of all watched initiators. Returns whether any initiator is left.
    pub(super) fn check_initiators(&self) -> bool {
        let mut all = self.pending_initiators();
        all.retain_mut(PendingInitiator::check);
        !all.is_empty()
    }
}

impl PendingInitiator {
    /// Executes the accesses that the target has not touched since the last check. Returns whether
    /// another check is due.
    fn check(&mut self) -> bool {
        // Its peer is gone, or its endpoint closed.
        if Arc::strong_count(&self.initiator) == 1 {
            return false;
        }
        let pending = self.initiator.pending();
        if pending.is_none() {
            self.seen = None;
            self.idle += 1;
            if self.idle < IDLE_CHECKS {
                return true;
            }
            // An access written after this store signals the bell; an access written before is
            // visible below.
            self.initiator.watched.store(false, SeqCst);
            asymmetric_fence();
            if self.initiator.pending().is_none() {
                return false;
            }
            self.initiator.watched.store(true, SeqCst);
        }
        self.idle = 0;
        if self.seen == pending {
            while matches!(self.initiator.execute_pending(BATCH), Executed::Count(n) if n > 0) {}
            self.seen = None;
        } else {
            self.seen = pending;
        }
        true
    }
}
