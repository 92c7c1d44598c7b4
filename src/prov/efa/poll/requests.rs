//! An adapter whose completions are those of the application's own requests (fabric `efa-direct`):
//! they go from the adapter's queue to the reader's buffer.

use super::read::ReadContext;
use super::sink::Reporter;
use super::PollResult;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::{FilledRecv, OwnRequests};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::endpoint::{DataPathConfig, LiveEndpoint};
use crate::prov::efa::peers::Peers;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, BoundCntrs, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::transport::{Completion, Flow, Poll, PollStatus, Report, Sink, Status};
use crate::types::*;

/// The completion of a receive, from an unknown peer.
#[inline(always)]
fn filled(r: &FilledRecv) -> Entry {
    let imm = r.imm();
    Entry {
        context: r.done.context,
        flags: u64::from(r.done.flags) | imm.map_or(0, |_| FI_REMOTE_CQ_DATA),
        len: r.byte_len(),
        buf: r.addr,
        data: imm.unwrap_or(0).into(),
        tag: 0,
        src: FI_ADDR_NOTAVAIL,
    }
}

/// The sender of a message, as an address of the application's vector.
#[inline(never)]
fn source(r: &FilledRecv, av: Option<&Av>, peers: &mut Peers) -> fi_addr_t {
    let found = av.and_then(|av| peers.learn_source(&r.source()).map(|p| av.reverse(p)));
    found.unwrap_or(FI_ADDR_NOTAVAIL)
}

/// Reports completions for [`super::poll`].
pub(super) struct RequestSink<'a, F> {
    pub out: Reporter<'a, F>,
    /// Vector for source addresses, if the endpoint has FI_SOURCE.
    pub av: Option<&'a Av>,
    pub peers: &'a mut Peers,
}

impl<'r, F: FnMut(usize, &Entry)> Sink<FilledRecv<'r>> for RequestSink<'_, F> {
    #[inline(always)]
    fn completed(&mut self, done: &Completion, _: Status) -> Flow {
        self.out.sent(done)
    }

    #[inline(always)]
    fn message(&mut self, r: FilledRecv) -> Flow {
        let mut e = filled(&r);
        if self.av.is_some() {
            e.src = source(&r, self.av, self.peers);
        }
        self.out.received(e, r.done.report == Report::Entry)
    }
}

/// As [`super::poll`], of the adapter's queue.
#[inline(always)]
pub(super) fn poll<F>(live: &mut LiveEndpoint, mut sink: RequestSink<F>) -> PollResult
where
    F: FnMut(usize, &Entry),
{
    let Some(q) = live.own_requests() else {
        return sink.out.polled(false);
    };
    let status = { q }.poll(usize::MAX, &mut sink);
    sink.out.polled(status != PollStatus::Deferred)
}

/// Hands completions to the reader of the only queue they go to.
struct ReaderSink<'a, const NAMED: bool, F> {
    config: &'a DataPathConfig,
    bound: &'a BoundCntrs,
    cntrs: &'a mut Slab<Cntr>,
    avs: &'a Slab<Av>,
    peers: &'a mut Peers,
    count: usize,
    given: usize,
    each: F,
}

impl<const NAMED: bool, F: Fn(usize, &Entry)> ReaderSink<'_, NAMED, F> {
    #[inline(always)]
    fn give(&mut self, done: &Completion, e: &Entry) -> Flow {
        if self.config.counts {
            self.bound
                .count(self.cntrs, CntrKind::of(done.flags), e.len);
        }
        if done.report != Report::Entry {
            return Flow::Taken;
        }
        (self.each)(self.given, e);
        self.given += 1;
        Flow::after(self.given < self.count)
    }
}

impl<'r, const NAMED: bool, F> Sink<FilledRecv<'r>> for ReaderSink<'_, NAMED, F>
where
    F: Fn(usize, &Entry),
{
    #[inline(always)]
    fn completed(&mut self, done: &Completion, _: Status) -> Flow {
        self.give(done, &ended_entry(done))
    }

    #[inline(always)]
    fn message(&mut self, r: FilledRecv) -> Flow {
        let mut e = filled(&r);
        if NAMED && self.config.source {
            e.src = source(&r, self.avs.get(self.config.av), self.peers);
        }
        self.give(r.done, &e)
    }
}

/// As [`super::read()`], of an endpoint that reports everything to queue `q`.
#[inline(always)]
pub(super) fn read<const NAMED: bool>(
    s: ReadContext,
    q: &mut Cq,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Option<Result<usize>> {
    let mut requests = s.ep.live.as_mut()?.own_requests()?;
    let mut sink = ReaderSink::<NAMED, _> {
        config: &s.ep.config,
        bound: &s.ep.cntrs,
        cntrs: s.cntrs,
        avs: s.avs,
        peers: s.peers,
        count,
        given: 0,
        each,
    };
    // Most readers ask for one.
    match requests.poll(1, &mut sink) {
        PollStatus::Empty => return q.note_empty_poll(),
        PollStatus::Deferred => return None,
        PollStatus::Taken => {}
    }
    q.backoff.note_found();
    if sink.given < count {
        read_more(requests, &mut sink);
    }
    Some(match sink.given {
        0 => Err(FI_EAGAIN),
        n => Ok(n),
    })
}

/// The rest of [`read`], which has found something.
#[inline(never)]
fn read_more<S>(mut requests: OwnRequests, sink: &mut S)
where
    S: for<'a> Sink<FilledRecv<'a>>,
{
    requests.poll(usize::MAX, sink);
}
