//! Where the completions of a poll go: to the reader of a queue, or into the queue they are for.

use super::PollResult;
use crate::core::slab::Slab;
use crate::prov::contract::Entry;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, BoundCntrs, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::transport::{Completion, Flow, Report, Sink, Status};

/// Counts and reports what a poll of one endpoint finds.
pub(super) struct Reporter<'a, F> {
    /// The queue that is being read, which is empty, and the others.
    pub cq: u32,
    pub cqs: &'a mut Slab<Cq>,
    /// Takes completions of the queue that is being read.
    pub each: F,
    /// Completions for the reader: at most, and so far.
    pub count: usize,
    pub given: usize,
    /// Further completions that go into the queue that is being read: at most, and so far.
    pub ahead: usize,
    pub kept: usize,
    /// The endpoint's queues and counters.
    pub tx_cq: Option<u32>,
    pub rx_cq: Option<u32>,
    pub bound: &'a BoundCntrs,
    pub cntrs: &'a mut Slab<Cntr>,
}

impl<F: FnMut(usize, &Entry)> Reporter<'_, F> {
    /// Whether nothing more is wanted.
    #[inline(always)]
    pub(super) fn full(&self) -> bool {
        self.kept >= self.ahead
    }

    /// What the poll has found; `all`: nothing is left to do.
    pub(super) fn polled(&self, all: bool) -> PollResult {
        match all {
            true => PollResult::All(self.given),
            false => PollResult::More(self.given),
        }
    }

    #[inline(always)]
    fn give(&mut self, to: Option<u32>, e: Entry) -> Flow {
        if to == Some(self.cq) {
            if self.given < self.count {
                (self.each)(self.given, &e);
                self.given += 1;
                return Flow::after(self.given < self.count || self.ahead > 0);
            }
            self.kept += 1;
        }
        if let Some(q) = to.and_then(|q| self.cqs.get_mut(q)) {
            q.push(e);
        }
        Flow::after(!self.full())
    }

    /// An operation of the endpoint's own has ended well.
    #[inline(always)]
    pub(super) fn sent(&mut self, done: &Completion) -> Flow {
        let kind = CntrKind::of(done.flags);
        self.bound.count(self.cntrs, kind, done.len);
        match done.report {
            Report::Entry => self.give(self.tx_cq, ended_entry(done)),
            _ => Flow::Taken,
        }
    }

    /// A message is in its receive, which reports it or not.
    #[inline(always)]
    pub(super) fn received(&mut self, e: Entry, reports: bool) -> Flow {
        self.bound.count(self.cntrs, CntrKind::Recv, e.len);
        match reports {
            true => self.give(self.rx_cq, e),
            false => Flow::Taken,
        }
    }

    /// A peer's write has brought data.
    pub(super) fn written(&mut self, e: Entry) -> Flow {
        self.give(self.rx_cq, e)
    }
}

/// Takes the completions of requests in rings.
impl<F: FnMut(usize, &Entry)> Sink<()> for Reporter<'_, F> {
    #[inline]
    fn completed(&mut self, done: &Completion, status: Status) -> Flow {
        match done.report {
            _ if status != Status::Ok => Flow::Deferred,
            Report::Op(_) => Flow::Deferred,
            Report::Early { .. } => Flow::Taken,
            _ => self.sent(done),
        }
    }

    fn message(&mut self, (): ()) -> Flow {
        Flow::Deferred
    }
}
