//! Polling for what needs nothing but a look: arriving messages go straight into their receives,
//! completions straight to whoever reads the queue.
//!
//! `read` serves a queue that one endpoint alone reports to, [`poll`] any. Each transport is polled
//! into a [`Sink`](crate::transport::Sink) of its own: `records` for rings, `packets` for adapters
//! below the protocol, `requests` for adapters whose completions are the application's own. What
//! they have in common, counting and reporting, is in `sink`. What takes more is left where it was
//! found, for [`progress`](super::progress::progress).

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
use crate::shm::ShmEndpoint;
use crate::transport::{Poll, PollStatus};
use crate::types::*;
use packets::PacketSink;
use records::RecordSink;
use requests::RequestSink;
use sink::Reporter;

/// The completion of a plain receive.
#[inline(always)]
pub(super) fn received(
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

/// Whether a message with this tag, or none, is of the application.
pub(super) fn ordinary(tag: Option<u64>) -> bool {
    tag.is_none_or(|t| t & COLLECTIVE_TAG == 0)
}

/// What [`poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// So many completions, and nothing is left to do.
    All(usize),
    /// So many, and there may be something for `progress`.
    More(usize),
}

/// So many completions beyond what a reader has asked for are taken along and kept in its queue:
/// most readers ask for one, and what a poll costs beside its messages is paid once.
const AHEAD: usize = 16;

/// So many records are taken from one ring before the next one's turn.
const BURST: usize = 64;

/// Looks for messages to an endpoint that need nothing but their receives. Up to `count`
/// completions for queue `cq`, which must be empty, go to `each`; those for another are kept there.
#[inline(always)]
pub(crate) fn poll(
    s: &mut State,
    id: u32,
    cq: u32,
    count: usize,
    each: impl FnMut(usize, &Entry),
) -> Polled {
    let Some(ep) = s.eps.get_mut(id) else {
        return Polled::All(0);
    };
    let waits = ep.waits(&s.triggers, &s.colls);
    let config = &ep.config;
    let Some(live) = &mut ep.live else {
        return Polled::All(0);
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
        // It costs less to read one than to keep one.
        out.ahead = if count > 0 { 0 } else { AHEAD };
        let peers = &mut s.peers;
        return requests::poll(live, RequestSink { out, av, peers });
    }
    let Some(rq) = s.rxqs.get_mut(ep.rxq) else {
        return Polled::All(0);
    };
    if waits || !live.idle() {
        return Polled::More(0);
    }
    let idle_adapter = live.skip_adapter_poll();
    if !(config.polls_packets || idle_adapter) {
        return Polled::More(0);
    }
    match (live.qp.native(), &mut live.shm_ep) {
        (Some(q), shm_ep) if !idle_adapter => {
            live.skipped_polls = 0;
            let mut sink = PacketSink {
                out,
                proto: &mut live.proto,
                rq,
                av,
            };
            let status = q.poll(usize::MAX, &mut sink);
            live.empty_polls = match status {
                PollStatus::Empty => live.empty_polls + 1,
                _ => 0,
            };
            let idle = |h: &mut ShmEndpoint| !h.tx.has_outstanding() && h.rx.poll_idle();
            let all = status != PollStatus::Deferred && shm_ep.as_mut().is_none_or(idle);
            sink.out.polled(all)
        }
        (_, None) => Polled::All(0),
        (_, Some(ShmEndpoint { rx, tx })) => {
            if tx.has_outstanding() {
                let status = tx.poll(usize::MAX, &mut out);
                if status == PollStatus::Deferred || out.full() {
                    return out.polled(out.full());
                }
            }
            let mut sink = RecordSink {
                out,
                rq,
                av,
                rendezvous: &mut live.rendezvous,
                tx,
                memory: TargetMemory {
                    dev: &s.dev,
                    table: s.table.as_deref(),
                },
                scratch: &mut live.shm.scratch,
                plain_target: s.mr_cntrs.is_empty() && !ep.writes_take_receives,
                fetched: 0,
            };
            let status = rx.poll(BURST, &mut sink);
            if sink.rendezvous.gathers() {
                sink.fetch();
            }
            let all = status != PollStatus::Deferred && sink.rendezvous.load() == 0;
            sink.out.polled(all)
        }
    }
}
