//! The fast path of polling ([`Poll`]) for a queue pair of the software adapter.
//!
//! One poll of the engine may find more than the reader takes: the rest waits in [`PolledEvents`],
//! and is offered before the engine is polled again. Failures, peers' accesses and messages of
//! senders that are not connected are deferred to
//! [`QueuePair::poll_all`](crate::device::QueuePair::poll_all).

use super::SoftQp;
use crate::device::verbs::poll::PolledPacket;
use crate::device::{Event, Events};
use crate::transport::{Flow, Poll, PollStatus, Sink, Status};

/// What a poll of the engine has found, up to `at` handed out.
#[derive(Default)]
pub(super) struct PolledEvents {
    events: Events,
    at: usize,
}

impl PolledEvents {
    /// Whether anything is left.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.at < self.events.list.len()
    }

    /// Moves what is left into `into`; whether there was any.
    pub(super) fn rest(&mut self, into: &mut Events) -> bool {
        into.list.clear();
        if !self.any() {
            return false;
        }
        into.list.extend(self.events.list.drain(self.at..));
        core::mem::swap(&mut into.arena, &mut self.events.arena);
        self.events.list.clear();
        self.at = 0;
        true
    }
}

impl SoftQp {
    /// Whether [`Poll`] can deliver packets where they arrived.
    #[inline]
    pub fn polls_packets(&self) -> bool {
        !self.raw
    }

    /// Polls the engine once what it has found before is handed out.
    #[inline(always)]
    fn find(&mut self) {
        if self.found.any() {
            return;
        }
        self.found.at = 0;
        self.begin_poll();
        self.shared.poll(&mut self.found.events);
    }
}

impl Poll for SoftQp {
    type Message<'a> = PolledPacket<'a>;

    #[inline]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<PolledPacket<'a>>,
    {
        // A caller may be blocked, and this poll may have taken the event for which it waits.
        if self.shared.armed() {
            return PollStatus::Deferred;
        }
        self.find();
        let mut status = PollStatus::Empty;
        let Events { list, arena } = &self.found.events;
        for e in list.iter().skip(self.found.at).take(budget) {
            let flow = match e {
                Event::Done {
                    done,
                    status: Status::Ok,
                } if done.reports_itself() => {
                    let flow = sink.completed(done, Status::Ok);
                    self.outstanding -= usize::from(flow != Flow::Deferred);
                    flow
                }
                Event::Recv {
                    peer: Some(from),
                    data,
                    ..
                } => sink.message(PolledPacket {
                    from: *from,
                    bytes: Events::bytes(arena, data),
                }),
                _ => Flow::Deferred,
            };
            if flow == Flow::Deferred {
                return PollStatus::Deferred;
            }
            status = PollStatus::Taken;
            self.found.at += 1;
            if flow == Flow::Enough {
                break;
            }
        }
        status
    }
}
