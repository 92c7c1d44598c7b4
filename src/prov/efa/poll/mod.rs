//! The fast path of polling: arriving messages go straight into their receives, completions
//! straight to the reader of the queue.
//!
//! `read` serves a queue that one endpoint alone reports to, [`poll`] any. Each transport is polled
//! into a [`Sink`](crate::transport::Sink) of its own: `records` for rings, `packets` for adapters
//! below the protocol, `requests` for adapters whose completions are the application's own. `sink`
//! has what they share, counting and reporting. Everything off the fast path stays in its ring or
//! queue, for [`progress`](super::progress::progress).

mod packets;
mod read;
mod records;
mod requests;
mod sink;

pub(crate) use read::read;

use crate::proto::{RecvEntry, COLLECTIVE_TAG};
use crate::prov::contract::Entry;
use crate::prov::efa::domain::State;
use crate::prov::efa::same_host::shm_rma::TargetMemory;
use crate::types::*;
use requests::RequestSink;
use sink::Reporter;

/// The completion of a plain receive.
#[inline(always)]
pub(crate) fn received(
    r: &RecvEntry,
    len: usize,
    (tag, cq_data): (Option<u64>, Option<u64>),
    src: fi_addr_t,
) -> Entry {
    let kind = if r.tagged { FI_TAGGED } else { FI_MSG };
    Entry {
        context: r.context,
        flags: FI_RECV | kind | cq_data.map_or(0, |_| FI_REMOTE_CQ_DATA),
        len,
        buf: r.into.addr(),
        data: cq_data.unwrap_or(0),
        tag: tag.unwrap_or(0),
        src,
    }
}

/// Whether a message with this tag, or without one, belongs to the application.
pub(super) fn ordinary(tag: Option<u64>) -> bool {
    tag.is_none_or(|t| t & COLLECTIVE_TAG == 0)
}

/// What [`poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// The number of completions; nothing is left to do.
    All(usize),
    /// The number of completions; there may be something for `progress`.
    More(usize),
}

/// Completions that a poll takes beyond those that the reader asked for, and keeps in the queue:
/// most readers ask for one, and the fixed cost of a poll is then paid once.
const AHEAD: usize = 16;

/// Polls an endpoint for messages that go straight into their receives. Up to `count` completions
/// for queue `cq`, which must be empty, go to `each`; those for another queue go into that queue.
/// The adapter of an idle endpoint is polled only if it is `in_turn`.
#[inline(always)]
pub(crate) fn poll(
    s: &mut State,
    id: u32,
    cq: u32,
    in_turn: bool,
    count: usize,
    each: impl FnMut(usize, &Entry),
) -> PollResult {
    let Some(ep) = s.eps.get_mut(id) else {
        return PollResult::All(0);
    };
    let waits = ep.waits(&s.triggers, &s.colls);
    let config = &ep.config;
    let Some(live) = &mut ep.live else {
        return PollResult::All(0);
    };
    let av = match config.source {
        true => s.avs.get(config.av),
        false => None,
    };
    let mut out = Reporter {
        cq,
        cqs: &mut s.cqs,
        each,
        count,
        given: 0,
        ahead: AHEAD,
        kept: 0,
        tx_cq: config.tx_cq,
        rx_cq: config.rx_cq,
        bound: &ep.cntrs,
        cntrs: &mut s.cntrs,
    };
    if config.completes_in_place && !waits {
        // To read a completion from the adapter later costs less than to keep it in the queue.
        out.ahead = if count > 0 { 0 } else { AHEAD };
        let peers = &mut s.peers;
        return requests::poll(live, RequestSink { out, av, peers });
    }
    let Some(rq) = s.rxqs.get_mut(ep.rxq) else {
        return PollResult::All(0);
    };
    if waits || !live.idle() {
        return PollResult::More(0);
    }
    let idle_adapter = live.skip_adapter_poll(id, in_turn, &mut s.domain_use);
    if !(config.polls_packets || idle_adapter) {
        return PollResult::More(0);
    }
    if !idle_adapter {
        return packets::poll(live, out, rq, av);
    }
    let memory = TargetMemory {
        dev: &s.dev,
        table: s.table.as_deref(),
    };
    let plain_target = s.mr_cntrs.is_empty() && !ep.writes_take_receives;
    records::poll(live, out, (rq, av), (memory, plain_target))
}
