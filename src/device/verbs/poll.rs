//! The fast path of polling ([`Poll`]) for a queue pair whose completion queue is mapped (`rings`).
//!
//! A [`VerbsQp`] delivers packets in the buffers in which they arrived; [`OwnRequests`] is a queue
//! pair whose receives are the application's own. Failures, peers' writes, requests with a
//! `TxExtra` and messages of unknown senders are deferred to
//! [`QueuePair::poll_all`].

use super::cqe::{Cqe, CqeKind};
use super::qp::{sender, Senders, TxSlot, VerbsQp, RECV};
use super::OpenAdapter;
use crate::device::{QpAddr, QueuePair};
use crate::transport::{Completion, Flow, PeerId, Poll, PollStatus, Sink, Status};

/// A packet, and its sender.
pub struct PolledPacket<'a> {
    pub from: PeerId,
    pub bytes: &'a [u8],
}

/// A receive of the application's that a message has completed.
pub struct FilledRecv<'a> {
    pub done: &'a Completion,
    /// Address of the receive's memory.
    pub addr: usize,
    cqe: &'a Cqe,
    senders: &'a Senders,
    dev: &'a OpenAdapter,
}

impl FilledRecv<'_> {
    /// Bytes received.
    #[inline(always)]
    pub fn byte_len(&self) -> usize {
        self.cqe.bytes() as usize
    }

    /// Immediate data of the message.
    #[inline(always)]
    pub fn imm(&self) -> Option<u32> {
        self.cqe.imm()
    }

    /// Address of the sender; a qkey of 0 means that the sender is unknown.
    pub fn source(&self) -> QpAddr {
        sender(self.senders, self.dev, self.cqe.from())
    }
}

/// A queue pair without packets, whose completions are those of the application's own requests. Its
/// sink must not defer: a completion that was offered is gone.
pub struct OwnRequests<'a>(pub &'a mut VerbsQp);

/// Whether the completion is all that remains to be done for a request.
#[inline(always)]
fn reports_itself(t: &TxSlot) -> bool {
    t.done.reports_itself() && !t.extra
}

impl VerbsQp {
    /// Whether [`Poll`] can deliver packets in their receive buffers.
    #[inline]
    pub fn polls_packets(&self) -> bool {
        self.rings.is_some() && self.rx.is_some()
    }

    /// Offers a successful completion to the sink.
    #[inline(always)]
    fn offer<S>(&mut self, c: &Cqe, sink: &mut S) -> Flow
    where
        S: for<'a> Sink<PolledPacket<'a>>,
    {
        if c.sent() {
            let slot = self.slots.get_mut(usize::from(c.slot()));
            let Some(slot) = slot else {
                return Flow::Deferred;
            };
            let Some(t) = slot.as_ref().filter(|t| reports_itself(t)) else {
                return Flow::Deferred;
            };
            let flow = sink.completed(&t.done, Status::Ok);
            if flow != Flow::Deferred {
                *slot = None;
                self.free.push(c.slot());
            }
            return flow;
        }
        let (Some(from), Some(rx)) = (self.names.get(&c.from()), &self.rx) else {
            return Flow::Deferred;
        };
        let bytes = rx.bytes(c.slot(), c.bytes() as usize);
        let flow = sink.message(PolledPacket { from: *from, bytes });
        if flow != Flow::Deferred {
            self.empty.push(c.slot());
        }
        flow
    }
}

impl Poll for VerbsQp {
    type Message<'a> = PolledPacket<'a>;

    #[inline]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PolledPacket<'a>>,
    {
        if !self.fast_path_allowed() {
            return PollStatus::Deferred;
        }
        let mut found = PollStatus::Empty;
        for _ in 0..budget {
            let Some(c) = self.rings.as_mut().and_then(|r| r.next()) else {
                break;
            };
            found = PollStatus::Taken;
            let flow = match c.on_fast_path() {
                true => self.offer(&c, sink),
                false => Flow::Deferred,
            };
            match flow {
                Flow::Taken => {}
                Flow::Enough => break,
                Flow::Deferred => {
                    self.pending.push(c.wc(RECV));
                    found = PollStatus::Deferred;
                    break;
                }
            }
        }
        self.refill_some();
        found
    }
}

impl OwnRequests<'_> {
    /// Offers a completion to the sink.
    #[inline(always)]
    fn offer<S>(&mut self, c: &Cqe, sink: &mut S) -> Flow
    where
        S: for<'a> Sink<FilledRecv<'a>>,
    {
        let qp = &mut *self.0;
        match c.kind() {
            CqeKind::Sent => {
                let Some(slot) = qp.slots.get_mut(usize::from(c.slot())) else {
                    return Flow::Deferred;
                };
                let Some(t) = slot.as_ref().filter(|t| reports_itself(t)) else {
                    return Flow::Deferred;
                };
                let flow = sink.completed(&t.done, Status::Ok);
                *slot = None;
                qp.free.push(c.slot());
                flow
            }
            CqeKind::Received => {
                let Some(slot) = qp.recvs.get_mut(usize::from(c.slot())) else {
                    return Flow::Deferred;
                };
                let Some(r) = slot.as_ref().filter(|r| r.done.reports_itself()) else {
                    return Flow::Deferred;
                };
                let flow = sink.message(FilledRecv {
                    done: &r.done,
                    addr: r.into.addr(),
                    cqe: c,
                    senders: &qp.senders,
                    dev: &qp.dev,
                });
                *slot = None;
                qp.empty.push(c.slot());
                flow
            }
            CqeKind::Other => Flow::Deferred,
        }
    }

    /// Keeps the last completion for `poll_all`.
    #[cold]
    fn keep(&mut self, c: Cqe) -> PollStatus {
        let qp = &mut *self.0;
        let c = qp.rings.as_ref().map_or(c, |r| r.whole(c));
        qp.pending.push(c.wc(RECV));
        PollStatus::Deferred
    }
}

impl Poll for OwnRequests<'_> {
    type Message<'a> = FilledRecv<'a>;

    #[inline(always)]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<FilledRecv<'a>>,
    {
        if !self.0.fast_path_allowed() {
            return PollStatus::Deferred;
        }
        let mut found = PollStatus::Empty;
        for _ in 0..budget {
            let Some(c) = self.0.rings.as_mut().and_then(|r| r.poll_cqe()) else {
                // The requests posted with FI_MORE have not been announced to the adapter yet.
                self.0.ring();
                return found;
            };
            found = PollStatus::Taken;
            match self.offer(&c, sink) {
                Flow::Taken => {}
                Flow::Enough => return found,
                Flow::Deferred => return self.keep(c),
            }
        }
        found
    }
}
