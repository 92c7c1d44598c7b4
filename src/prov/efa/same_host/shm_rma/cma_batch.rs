//! Reads and writes by cross-memory attach: short ones in batches, for one system call costs as
//! much as the copy of several KiB; long ones by several calls, so that no poll takes long.
//!
//! The first access of a batch is copied at once, or by the target if it is short. While the
//! application posts others without polling in between they are collected: until there are as many
//! as one call takes, or until the application polls ([`super::ShmRma::collect`]), which it has to
//! for their completions. A long access is copied up to [`POLL_BUDGET`] bytes at a time, alone or
//! with its target (`split`); after the last of them the target gets the event, if it takes events.

use super::port::RmaRings;
use super::split::{split_on, SplitPhase, SplitStep};
use super::RING_RMA_MAX;
use crate::hmem::{Piece, UserMem};
use crate::proto::PeerId;
use crate::prov::efa::same_host::cost_model::{CopyMethod, CostModel};
use crate::prov::efa::same_host::{DEVICE_BUDGET, POLL_BUDGET};
use crate::shm::{LocalBuffer, RmaDenied, MANY};
use crate::transport::{Completion, RemoteAddr, Status, Verdict};
use std::collections::VecDeque;

/// An access of a batch.
pub(crate) struct BatchedAccess {
    pub mem: Piece,
    pub done: Completion,
}

/// An access that the system refused, or to a region that is not published: the adapter decides.
pub(crate) struct RefusedAccess {
    pub write: bool,
    pub mem: UserMem,
    pub done: Completion,
    pub cq_data: Option<u64>,
}

impl RefusedAccess {
    /// Ends the access with an error, or leaves it to the adapter.
    pub(super) fn denied(
        self,
        why: RmaDenied,
        ended: &mut Vec<(Completion, Status)>,
        refused: &mut Vec<RefusedAccess>,
    ) {
        match why {
            RmaDenied::Status(s) => ended.push((self.done, s)),
            RmaDenied::Unsupported => refused.push(self),
        }
    }
}

/// A long access.
pub(super) struct LongCopy {
    pub write: bool,
    pub mem: UserMem,
    pub done: Completion,
    pub cq_data: Option<u64>,
    /// The target takes an event of the access.
    pub wants_event: bool,
    pub copied: usize,
    /// Nanoseconds that it took so far.
    pub ns: u64,
    /// Its target copies parts of it, too; when that began.
    pub split: Option<SplitPhase>,
    pub began: u64,
}

impl LongCopy {
    /// An access of which nothing has been copied.
    pub(super) fn new(write: bool, mem: UserMem, done: Completion) -> LongCopy {
        LongCopy {
            write,
            mem,
            done,
            cq_data: None,
            wants_event: false,
            copied: 0,
            ns: 0,
            split: None,
            began: 0,
        }
    }

    /// It is copied by both sides.
    pub(super) fn split(self) -> LongCopy {
        LongCopy {
            split: Some(SplitPhase::Wanted),
            ..self
        }
    }

    /// Its target gets these data, or takes events.
    pub(super) fn with_event(self, cq_data: Option<u64>, wants_events: bool) -> LongCopy {
        LongCopy {
            cq_data,
            wants_event: cq_data.is_some() || wants_events,
            ..self
        }
    }
}

/// The accesses that are copied here.
#[derive(Default)]
pub(crate) struct CmaBatch {
    /// The batch: accesses of one peer and key, all reads or all writes.
    to: PeerId,
    write: bool,
    key: u64,
    waiting: Vec<BatchedAccess>,
    bytes: usize,
    /// The application has posted an access since its last poll: later accesses wait. Bytes that
    /// were copied since that poll.
    gathers: bool,
    copied: usize,
    long: VecDeque<LongCopy>,
    refused: Vec<RefusedAccess>,
}

impl CmaBatch {
    /// 0 when there is nothing to do for a poll.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.waiting.len() | self.long.len() | self.refused.len() | usize::from(self.gathers)
    }

    /// Takes the accesses that the adapter has to carry out.
    pub(crate) fn take_refused(&mut self) -> Vec<RefusedAccess> {
        core::mem::take(&mut self.refused)
    }

    /// Whether accesses to this peer wait.
    pub(crate) fn has_outstanding_to(&self, peer: PeerId) -> bool {
        let refused = self.refused.iter().any(|r| r.done.peer == peer);
        let long = self.long.iter().any(|l| l.done.peer == peer);
        refused || long || self.to == peer && !self.waiting.is_empty()
    }

    /// Has later accesses wait for the next poll.
    pub(crate) fn gather(&mut self) {
        self.gathers = true;
    }

    /// Whether later accesses wait for the next poll.
    #[inline(always)]
    pub(crate) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Whether one more fits into the batch.
    fn takes(&self, to: PeerId, (key, write): (u64, bool), len: usize) -> bool {
        let room = self.waiting.len() < MANY && self.bytes + len <= POLL_BUDGET;
        self.waiting.is_empty() || room && (self.to, self.key, self.write) == (to, key, write)
    }
}

/// What copying needs, and the list of accesses that have ended.
pub(super) struct CmaContext<'a, R> {
    pub rings: &'a mut R,
    pub costs: &'a mut CostModel,
    /// Long accesses are under way in rings: they wait while this endpoint copies.
    pub others_wait: bool,
    pub ended: &'a mut Vec<(Completion, Status)>,
}

impl<R> CmaContext<'_, R> {
    /// Excludes the time of a copy from the cost of accesses that waited for it.
    fn count_copy(&mut self, span: (u64, u64)) {
        if self.others_wait {
            self.costs.count_other(span);
        }
    }

    /// Records that `n` accesses of `bytes` in all were copied between two times.
    pub(super) fn measured_copy(&mut self, n: usize, bytes: usize, span: (u64, u64)) {
        self.costs.measured_copy(CopyMethod::Cma, n, bytes, span);
        self.count_copy(span);
    }
}

impl CmaBatch {
    /// Adds an access that the target permits. Returns whether so much was copied that the caller
    /// should poll.
    pub(super) fn join<R: RmaRings>(
        &mut self,
        mut c: CmaContext<R>,
        write: bool,
        w: BatchedAccess,
    ) -> bool {
        let (to, key, len) = (w.done.peer, w.done.remote.key, w.mem.len());
        if len > POLL_BUDGET {
            self.queue(LongCopy::new(write, w.mem.into(), w.done));
            if !self.gathers {
                self.copy_long(&mut c);
            }
            self.gathers = true;
            return self.copied >= POLL_BUDGET;
        }
        if !self.takes(to, (key, write), len) {
            self.carry(&mut c);
        }
        (self.to, self.key, self.write) = (to, key, write);
        self.bytes += len;
        self.waiting.push(w);
        // The first access is copied now, and so is a batch without room for another of this
        // length.
        if !self.gathers || !self.takes(to, (key, write), len) {
            self.carry(&mut c);
        }
        self.gathers = true;
        self.copied >= POLL_BUDGET
    }

    /// Begins a long access whose memory may be in pieces, and whose target may deny it or may take
    /// an event. An error, and nothing done, when the target denies it.
    pub(super) fn begin<R: RmaRings>(
        &mut self,
        mut c: CmaContext<R>,
        mut l: LongCopy,
    ) -> Result<(), RmaDenied> {
        let span = copy_part(c.rings, &mut l, POLL_BUDGET)?;
        c.count_copy(span);
        self.copied += l.copied;
        self.long.push_back(l);
        Ok(())
    }

    /// Queues a long access; its first part is copied by the next poll.
    pub(super) fn queue(&mut self, l: LongCopy) {
        self.long.push_back(l);
    }

    /// Whether a long access of this peer's memory is under way.
    pub(super) fn copies_for(&self, peer: PeerId) -> bool {
        self.long.iter().any(|l| l.done.peer == peer)
    }

    /// Copies the batch, and of long accesses as much as one poll may, when the application polls.
    pub(super) fn poll<R: RmaRings>(&mut self, mut c: CmaContext<R>) {
        self.carry(&mut c);
        self.copied = 0;
        self.copy_long(&mut c);
        (self.gathers, self.copied) = (false, 0);
    }

    /// Copies the batch.
    fn carry<R: RmaRings>(&mut self, c: &mut CmaContext<R>) {
        let n = self.waiting.len();
        if n == 0 {
            return;
        }
        let (to, key, write) = (self.to, self.key, self.write);
        let began = c.rings.now();
        let bytes = core::mem::take(&mut self.bytes);
        self.copied += bytes;
        let parts = self.waiting.iter().map(|w| (w.mem, w.done.remote.addr));
        let done = c.rings.access_batch(to, write, key, parts);
        if done == n && bytes > n * RING_RMA_MAX {
            c.measured_copy(n, bytes, (began, c.rings.now()));
        }
        for (i, BatchedAccess { mem, done: ends }) in self.waiting.drain(..).enumerate() {
            let local = LocalBuffer::Piece(mem);
            let went = match i < done {
                true => Ok(()),
                false => c.rings.cma_access(to, write, &local, ends.remote),
            };
            let Err(denied) = went else {
                c.ended.push((ends, Status::Ok));
                continue;
            };
            let a = RefusedAccess {
                write,
                mem: mem.into(),
                done: ends,
                cq_data: None,
            };
            a.denied(denied, c.ended, &mut self.refused);
        }
    }

    /// Copies as much of the long accesses as one poll may, the oldest first.
    fn copy_long<R: RmaRings>(&mut self, c: &mut CmaContext<R>) {
        let mut at = 0;
        while let Some(l) = self.long.get_mut(at) {
            let most = POLL_BUDGET.saturating_sub(self.copied);
            if l.copied < l.mem.len() {
                let (copied, step) = copy_next(c, l, most);
                self.copied += copied;
                match step {
                    SplitStep::More => return,
                    SplitStep::Waits => {
                        at += 1;
                        continue;
                    }
                    SplitStep::Alone => {
                        l.split = None;
                        continue;
                    }
                    SplitStep::Ended(Ok(())) => {}
                    SplitStep::Ended(Err(denied)) => {
                        let Some(l) = self.long.remove(at) else { break };
                        let a = RefusedAccess {
                            write: l.write,
                            mem: l.mem,
                            done: l.done,
                            cq_data: l.cq_data,
                        };
                        a.denied(denied, c.ended, &mut self.refused);
                        continue;
                    }
                }
            }
            if l.wants_event && !send_event(c.rings, &l.done, (l.mem.len(), l.cq_data, l.write)) {
                at += 1;
                continue;
            }
            if let Some(l) = self.long.remove(at) {
                c.ended.push((l.done, Status::Ok));
            }
        }
    }
}

/// Copies the next bytes of a long access, alone or with its target. Returns how many.
fn copy_next<R: RmaRings>(
    c: &mut CmaContext<R>,
    l: &mut LongCopy,
    most: usize,
) -> (usize, SplitStep) {
    if let Some(phase) = l.split {
        let (copied, step) = split_on(l, phase, c.rings, most);
        if let SplitStep::Ended(Ok(())) = step {
            l.copied = l.mem.len();
            let (costs, span) = (&mut *c.costs, (l.began, c.rings.now()));
            costs.measured_arrival(CopyMethod::CmaBoth, 1, l.copied, span);
        }
        return (copied, step);
    }
    if most == 0 {
        return (0, SplitStep::More);
    }
    let before = l.copied;
    let step = match copy_part(c.rings, l, most) {
        Err(denied) => SplitStep::Ended(Err(denied)),
        Ok(span) => {
            c.count_copy(span);
            if l.copied < l.mem.len() {
                SplitStep::Waits
            } else {
                // Device memory takes another time.
                if l.mem.is_host() {
                    let costs = &mut *c.costs;
                    costs.measured_copy(CopyMethod::Cma, 1, l.copied, (0, l.ns));
                }
                SplitStep::Ended(Ok(()))
            }
        }
    };
    (l.copied - before, step)
}

/// Copies the next bytes of a long access here. Returns when that began and ended.
fn copy_part<R: RmaRings>(
    rings: &mut R,
    l: &mut LongCopy,
    most: usize,
) -> Result<(u64, u64), RmaDenied> {
    let most = match l.mem.is_host() {
        true => most,
        false => most.max(DEVICE_BUDGET),
    };
    let part = l.mem.part(l.copied, most);
    let at = RemoteAddr {
        addr: l.done.remote.addr.wrapping_add(l.copied as u64),
        ..l.done.remote
    };
    let began = rings.now();
    rings.cma_access(l.done.peer, l.write, &LocalBuffer::Mem(&part), at)?;
    let now = rings.now();
    l.copied += part.len();
    l.ns += now.saturating_sub(began);
    Ok((began, now))
}

/// Sends the target the event of an access: length, data, and whether it was a write; `false` when
/// there is no room now.
pub(super) fn send_event<R: RmaRings>(
    rings: &mut R,
    done: &Completion,
    (len, cq_data, write): (usize, Option<u64>, bool),
) -> bool {
    let what = (done.remote.key, len, cq_data, write);
    rings.send_event(done.peer, what) != Verdict::NoResources
}
