//! What every provider's domain does alike: its completion queues and counters, and fi_close(3).

use super::cntr::Cntr;
use super::cq::Cq;
use super::PolledObject;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::domain_lock::{DomainGuard, DomainLock};
use crate::prov::contract::{busy_unless, Domain, OpenedQueue};
use crate::prov::progress_thread::Background;
use crate::types::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

/// The state of a domain, as far as what is here needs it.
pub(crate) trait DomainState {
    fn report_tables(&mut self) -> (&mut Slab<Cq>, &mut Slab<Cntr>);

    /// Whether no object is open. Memory regions are counted by the domain.
    fn is_empty(&self) -> bool;
}

/// A domain with completion queues and counters in its state.
pub(crate) trait ReportingDomain: Domain + Background {
    type State: DomainState;

    fn state(&self) -> &DomainLock<Self::State>;

    /// Memory regions that are open.
    fn regions(&self) -> &AtomicU32;

    /// Closes the domain; `FI_EBUSY` while it has open objects.
    fn close_unused(&self) -> Result<()> {
        {
            let s = self.state().enter_control();
            busy_unless(
                s.is_empty() && self.regions().load(Ordering::Relaxed) == 0,
                "domain",
                "endpoints, queues, counters, address vectors or memory regions",
            )?;
        }
        self.thread().end();
        self.fabric().release();
        Ok(())
    }

    /// Adds a completion queue to the domain.
    fn insert_cq(self: &Arc<Self>, mut cq: Cq) -> Result<OpenedQueue> {
        cq.wait
            .use_thread(&self.thread().wake, || self.start_progress())?;
        let (size, wait) = (cq.size, cq.wait.set.clone());
        let id = self.state().enter_control().report_tables().0.insert(cq);
        Ok(OpenedQueue { id, size, wait })
    }

    /// Adds a counter to the domain.
    fn insert_cntr(self: &Arc<Self>, mut c: Cntr) -> Result<OpenedQueue> {
        c.wait
            .use_thread(&self.thread().wake, || self.start_progress())?;
        let wait = c.wait.set.clone();
        let id = self.state().enter_control().report_tables().1.insert(c);
        Ok(OpenedQueue { id, size: 0, wait })
    }

    /// Runs `f` on a completion queue, without progress.
    fn with_cq<R>(&self, cq: u32, f: impl FnOnce(&mut Cq) -> R) -> Result<R> {
        let mut s = self.state().enter();
        s.report_tables().0.get_mut(cq).map(f).ok_or(FI_EBADF)
    }

    /// Reads a counter without progress.
    fn peek_cntr<R>(&self, cntr: u32, f: impl FnOnce(&Cntr) -> R) -> Result<R> {
        let mut s = self.state().enter();
        s.report_tables().1.get(cntr).map(f).ok_or(FI_EBADF)
    }

    /// Ends a poll that has found nothing, after the lock was released. A thread that polls in a
    /// loop holds the lock nearly always, and acquires it again before a thread that sleeps for it
    /// has woken up.
    #[inline(always)]
    fn end_empty_poll(&self) {
        self.state().give_way();
    }

    /// Ends a poll under `s`: whether a completion queue has completions now.
    fn has_completions(&self, mut s: DomainGuard<'_, Self::State>, cq: u32) -> Result<bool> {
        let queue = s.report_tables().0.get(cq);
        let found = queue.map(Cq::has_any).ok_or(FI_EBADF)?;
        drop(s);
        if !found {
            self.end_empty_poll();
        }
        Ok(found)
    }

    /// Interrupts the calls that are blocked on a completion queue (fi_cq_signal(3)).
    fn interrupt_cq(&self, cq: u32) -> Result<()> {
        // Another thread than the waiting one calls this, whatever the threading model.
        let mut s = self.state().lock_from_library();
        let (cqs, _) = s.report_tables();
        cqs.get_mut(cq).ok_or(FI_EBADF)?.interrupt()
    }
}

/// Records in an object's back-off that its reader has yielded; `ran`: how often other threads have
/// run since its last yield.
#[cold]
pub(crate) fn note_yield(s: &mut impl DomainState, polled: PolledObject, ran: u64) {
    let (cqs, cntrs) = s.report_tables();
    if let Some((backoff, _)) = polled.backoff_and_eps(cqs, cntrs) {
        backoff.note_yield(ran);
    }
}
