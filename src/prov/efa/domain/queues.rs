//! Completion queues of a domain (fi_cq(3)): reading, which makes progress on endpoints, and
//! waiting.

use super::{arm_eps, EfaDomain, State};
use crate::core::slab::Slab;
use crate::core::yielding::YieldBackoff;
use crate::core::{Errno, Result};
use crate::device::host;
use crate::prov::contract::*;
use crate::prov::efa::endpoint::Ep;
use crate::prov::efa::poll::{self, PollResult};
use crate::prov::efa::progress::progress;
use crate::prov::reports::blocking::{self, Armed, BlockingQueues};
use crate::prov::reports::cq::Cq;
use crate::prov::reports::domain::{note_yield, ReportingDomain};
use crate::prov::reports::wait_object::WaitObject;
use crate::prov::reports::PolledObject;
use crate::transport::Status;
use crate::types::*;
use std::sync::Arc;

impl EfaDomain {
    /// Yields the processor after empty polls: a polling caller may keep its peer from running.
    #[cold]
    pub(super) fn yield_processor(&self, polled: PolledObject) -> Errno {
        let (peer_here, yields_alone) = publish_and_compare_cpus(&mut self.lock(), polled);
        let ran = match crate::shm::poll_events() {
            true => 0,
            false => YieldBackoff::yield_to_peer(peer_here, yields_alone, host::context_switches),
        };
        let s = &mut *self.lock();
        s.polls.note();
        note_yield(s, polled, ran);
        FI_EAGAIN
    }
}

impl CompletionQueues for EfaDomain {
    fn open_cq(self: &Arc<Self>, size: usize, wait_obj: fi_wait_obj) -> Result<OpenedQueue> {
        self.insert_cq(Cq::new(size, wait_obj)?)
    }

    fn error_text(prov_errno: i32) -> String {
        let text = Status::from_code(prov_errno).map_or("unknown error", Status::text);
        text.to_string()
    }

    fn close_cq(&self, id: u32) -> Result<()> {
        let mut s = self.lock_control();
        let used = s.eps.iter().any(|(_, e)| e.uses_cq(id));
        busy_unless(!used, "completion queue", "endpoints bound to it")?;
        s.cqs.remove(id).map(|_| ()).ok_or(FI_EBADF)
    }

    #[inline(always)]
    fn read_cq<const NAMED: bool>(
        &self,
        id: u32,
        count: usize,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        let found = take_or_poll::<NAMED>(&mut self.lock(), id, count, each);
        match found {
            Ok(Some(n)) => Ok(n),
            Ok(None) => Err(self.yield_processor(PolledObject::Cq(id))),
            Err(e) => {
                self.end_empty_poll();
                Err(e)
            }
        }
    }

    fn find_completions(&self, id: u32) -> Result<bool> {
        let mut s = self.lock();
        match s.cqs.get(id).is_some_and(Cq::has_any) {
            true => progress_cq(&mut s, id),
            false => {
                fast_poll_cq(&mut s, id, 0, |_, _| {});
            }
        }
        self.has_completions(s, id)
    }

    fn read_cq_error(&self, id: u32) -> Result<ErrEntry> {
        let mut s = self.lock();
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        if !cq.error_next() {
            progress_cq(&mut s, id);
        }
        s.cqs.get_mut(id).and_then(Cq::take_error).ok_or(FI_EAGAIN)
    }

    fn arm_cq(&self, id: u32) -> Result<i32> {
        blocking::arm(self, id).map(|(_, most)| most)
    }

    fn sread_cq(
        &self,
        id: u32,
        count: usize,
        threshold: usize,
        timeout_ms: i32,
        each: impl Fn(usize, &Entry) + Copy,
    ) -> Result<usize> {
        blocking::sread(self, id, count, threshold, timeout_ms, each)
    }

    fn signal_cq(&self, id: u32) -> Result<()> {
        self.interrupt_cq(id)
    }
}

impl BlockingQueues for EfaDomain {
    fn prepare_cq(&self, id: u32) -> Result<Armed> {
        let mut s = self.lock();
        let s = &mut *s;
        progress_cq(s, id);
        let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
        let set = cq.arm()?;
        arm_with_endpoints(set, &mut cq.wait, &mut s.eps)
    }
}

/// Arms the endpoints of a wait object that is armed. `FI_EAGAIN`, and it is not armed any more,
/// when one of them has something to do; callers that sleep on it look again.
pub(super) fn arm_with_endpoints(
    set: Arc<WaitSet>,
    w: &mut WaitObject,
    eps: &mut Slab<Ep>,
) -> Result<Armed> {
    w.armed = arm_eps(eps, &w.eps);
    if w.armed {
        return Ok((set, -1));
    }
    set.signal();
    Err(FI_EAGAIN)
}

/// Takes completions that wait in the queue, or polls for new ones. `Ok(None)`: the caller should
/// yield, as [`poll_cq`] says.
#[inline(always)]
fn take_or_poll<const NAMED: bool>(
    s: &mut State,
    id: u32,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Result<Option<usize>> {
    let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
    if cq.has_any() {
        let n = cq.take_ready(count, each);
        if n > 0 {
            return Ok(Some(n));
        }
    } else if let Some(found) = poll::read::<NAMED>(s, id, count, each) {
        return found.map(Some);
    }
    poll_cq(s, id, count, each)
}

/// The slow path of `read_cq`. `Ok(None)`: nothing was found, as in many polls before; the caller
/// should yield.
#[inline(never)]
fn poll_cq(
    s: &mut State,
    id: u32,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Result<Option<usize>> {
    // Completions that are in the queue come before new ones.
    let waiting = s.cqs.get(id).ok_or(FI_EBADF)?.has_any();
    let n = fast_poll_cq(s, id, if waiting { 0 } else { count }, each);
    let cq = s.cqs.get_mut(id).ok_or(FI_EBADF)?;
    cq.moved();
    let n = if n == 0 { cq.take(count, each) } else { n };
    if n == 0 && cq.error_next() {
        return Err(FI_EAVAIL);
    }
    if n > 0 {
        cq.backoff.note_found();
        return Ok(Some(n));
    }
    cq.note_empty_poll().transpose()
}

/// Publishes this processor to the peers of the endpoints. Returns whether a peer was last on it,
/// as far as is known, and whether the reader yields although none was
/// ([`YieldBackoff::yields_alone`]).
fn publish_and_compare_cpus(s: &mut State, polled: PolledObject) -> (Option<bool>, bool) {
    let Some((backoff, eps)) = polled.backoff_and_eps(&mut s.cqs, &mut s.cntrs) else {
        return (None, false);
    };
    let mut peer_here = None;
    for ep in eps {
        let live = s.eps.get_mut(*ep).and_then(|e| e.live.as_mut());
        let shm = live.and_then(|l| l.shm_ep.as_mut());
        let known = shm.and_then(|h| h.publish_and_compare_cpu());
        peer_here = peer_here.max(known);
    }
    (peer_here, backoff.yields_alone())
}

/// As [`progress_cq`], but hands up to `count` completions of the fast path to `each`, and returns
/// their number. All others go into the queue. `count` must be 0 if the queue has completions.
#[inline(always)]
fn fast_poll_cq(
    s: &mut State,
    id: u32,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> usize {
    let mut n = 0;
    let mut turn = Turn::begin(s, PolledObject::Cq(id));
    while let Some((ep, in_turn)) = turn.next(s) {
        match poll::poll(s, ep, id, in_turn, count - n, |k, e| each(n + k, e)) {
            PollResult::All(more) => n += more,
            PollResult::More(more) => {
                n += more;
                progress(s, ep);
            }
        }
        if n > 0 && n == count {
            break;
        }
    }
    turn.end(s);
    n
}

/// A read's way through the endpoints that report to an object ([`WaitObject::next_turn`]).
pub(super) struct Turn {
    polled: PolledObject,
    /// The first endpoint's place, how many from there on are in turn, and how many were polled.
    first: usize,
    some: usize,
    i: usize,
}

impl Turn {
    #[inline(always)]
    pub(super) fn begin(s: &mut State, polled: PolledObject) -> Turn {
        let begun = polled.wait(&mut s.cqs, &mut s.cntrs);
        let (first, some) = begun.map(WaitObject::next_turn).unwrap_or_default();
        Turn {
            polled,
            first,
            some,
            i: 0,
        }
    }

    /// The next endpoint, and whether its adapter is polled even if it is idle.
    #[inline(always)]
    pub(super) fn next(&mut self, s: &mut State) -> Option<(u32, bool)> {
        let w = self.polled.wait(&mut s.cqs, &mut s.cntrs)?;
        let ep = w.in_turn(self.first, self.i)?;
        let in_turn = self.i < self.some;
        self.i += 1;
        Some((ep, in_turn))
    }

    #[inline(always)]
    pub(super) fn end(self, s: &mut State) {
        if let Some(w) = self.polled.wait(&mut s.cqs, &mut s.cntrs) {
            w.end_turn();
        }
    }
}

/// Makes progress on every endpoint that reports to a queue.
#[inline]
pub(crate) fn progress_cq(s: &mut State, id: u32) {
    let mut i = 0;
    while let Some(ep) = s.cqs.get(id).and_then(|c| c.wait.eps.get(i).copied()) {
        progress(s, ep);
        i += 1;
    }
}
