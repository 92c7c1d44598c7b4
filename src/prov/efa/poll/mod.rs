//! Polling for what needs nothing but a look: arriving messages go straight into their receives,
//! completions straight to whoever reads the queue.
//!
//! `read` serves a queue that one endpoint alone reports to, [`poll`] any; `native` polls an
//! adapter whose completions are the application's own, `fetch` copies long messages of peers on
//! the same host. What takes more is left where it was found, for
//! [`progress`](super::progress::progress).

mod fetch;
mod native;
mod read;

pub(crate) use read::read;

use crate::core::slab::Slab;
use crate::device::request::{PolledCqe, Redelivery};
use crate::proto::{PeerId, RecvEntry, RecvQueue, COLLECTIVE_TAG};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::domain::State;
use crate::prov::efa::same_host::head_of;
use crate::prov::efa::same_host::shm_rma::{self, TargetMemory};
use crate::prov::reports::completion::{ended_entry, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::shm::kind;
use crate::shm::{PollResult, Record, RecordUse, ShmEndpoint};
use crate::transport::{Report, Status};
use crate::types::*;

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

/// Copies a message from a ring into the receive that matches it. Its completion, and whether that
/// is reported; `None` when the general path has to handle it.
#[inline(always)]
pub(super) fn message(
    record: &Record,
    from: PeerId,
    rq: &mut RecvQueue,
    av: Option<&Av>,
) -> Option<(Entry, bool)> {
    let head = (record.kind == kind::MESSAGE)
        .then(|| head_of(record))
        .flatten();
    let head = head.filter(|h| ordinary(h.tag))?;
    let len = record.len - head.bytes;
    let r = rq.take_short(from, head.tag, len)?;
    record.copy_piece(head.bytes, r.into);
    let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
    Some((received(&r, len, (head.tag, head.cq_data), src), r.report))
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

/// Where the completions of a poll go.
pub(super) struct ShmPoller<'a, F> {
    /// The queue that is being read, which is empty, and the others.
    cq: u32,
    cqs: &'a mut Slab<Cq>,
    /// So many at most, and so many so far; those that were kept for later.
    count: usize,
    n: usize,
    kept: usize,
    /// Of those no more than so many.
    ahead: usize,
    each: F,
}

impl<F: FnMut(usize, &Entry)> ShmPoller<'_, F> {
    /// Hands a completion to the caller, or keeps it in the queue it is for; whether another is
    /// welcome.
    #[inline(always)]
    pub(crate) fn give(&mut self, to: Option<u32>, e: Entry) -> bool {
        if to == Some(self.cq) {
            if self.n < self.count {
                (self.each)(self.n, &e);
                self.n += 1;
                return self.n < self.count || self.ahead > 0;
            }
            self.kept += 1;
        }
        if let Some(q) = to.and_then(|q| self.cqs.get_mut(q)) {
            q.push(e);
        }
        self.kept < self.ahead
    }

    /// What the poll has found; `all`: nothing is left to do.
    pub(crate) fn polled(&self, all: bool) -> Polled {
        match all {
            true => Polled::All(self.n),
            false => Polled::More(self.n),
        }
    }
}

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
    let State {
        eps,
        rxqs,
        avs,
        cntrs,
        cqs,
        peers,
        triggers,
        colls,
        dev,
        table,
        mr_cntrs,
        ..
    } = s;
    let Some(ep) = eps.get_mut(id) else {
        return Polled::All(0);
    };
    let mut out = ShmPoller {
        cq,
        cqs,
        count,
        n: 0,
        kept: 0,
        ahead: AHEAD,
        each,
    };
    let waits = ep.waits(triggers, colls);
    if ep.config.completes_in_place && !waits {
        // It costs less to read one than to keep one.
        out.ahead = if count > 0 { 0 } else { AHEAD };
        return native::poll((ep, avs, peers, cntrs), out);
    }
    let config = &ep.config;
    let (Some(live), Some(rq)) = (&mut ep.live, rxqs.get_mut(ep.rxq)) else {
        return Polled::All(0);
    };
    if waits || !live.idle() {
        return Polled::More(0);
    }
    let armed = live.skip_adapter_poll();
    let looks = config.polls_packets && !armed;
    if !(looks || armed) {
        return Polled::More(0);
    }
    let av = avs.get(config.av).filter(|_| config.source);
    let mut count = |kind, len| {
        ep.cntrs.count(cntrs, kind, len);
    };
    let all = match (live.qp.native(), &mut live.shm_ep) {
        (Some(q), _) if looks => {
            live.skipped_polls = 0;
            let proto = &mut live.proto;
            let (all, some) = q.poll_packets(|seen| {
                let (to, report, entry) = match seen {
                    PolledCqe::Sent(done) => {
                        count(CntrKind::of(done.flags), done.len);
                        let report = done.report == Report::Entry;
                        (ep.tx.map(|b| b.cq), report, ended_entry(done))
                    }
                    PolledCqe::Packet(from, bytes) => {
                        let head = proto.eager_in(from, bytes);
                        let Some((e, at)) = head.filter(|(e, _)| ordinary(e.tag)) else {
                            return Redelivery::Deferred;
                        };
                        let data = bytes.get(at..).unwrap_or(&[]);
                        let Some(r) = rq.take_short(from, e.tag, data.len()) else {
                            return Redelivery::Deferred;
                        };
                        proto.eager_taken(from);
                        r.into.store(data);
                        count(CntrKind::Recv, data.len());
                        let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
                        let entry = received(&r, data.len(), (e.tag, e.cq_data), src);
                        (config.rx_cq, r.report, entry)
                    }
                };
                if !report || out.give(to, entry) {
                    Redelivery::Over
                } else {
                    Redelivery::Last
                }
            });
            live.empty_polls = if some { 0 } else { live.empty_polls + 1 };
            let idle = |h: &mut ShmEndpoint| !h.tx.has_outstanding() && h.rx.poll_idle();
            all && live.shm_ep.as_mut().is_none_or(idle)
        }
        (_, None) => return Polled::All(0),
        (_, Some(shm_ep)) => {
            if shm_ep.tx.has_outstanding() {
                let to = ep.tx.map(|b| b.cq);
                let all = shm_ep.tx.poll_done(|done, status| {
                    let special = status != Status::Ok || done.op().is_some();
                    if special || out.kept >= out.ahead {
                        return false;
                    }
                    if done.report == Report::Early {
                        return true;
                    }
                    count(CntrKind::of(done.flags), done.len);
                    if done.report == Report::Entry {
                        out.give(to, ended_entry(done));
                    }
                    true
                });
                if !all {
                    return match out.kept < out.ahead {
                        true => Polled::More(out.n),
                        false => Polled::All(out.n),
                    };
                }
            }
            let rendezvous = &mut live.rendezvous;
            let scratch = &mut live.shm.rma.scratch;
            let ShmEndpoint { rx, tx } = shm_ep;
            let memory = TargetMemory {
                dev,
                table: table.as_deref(),
            };
            // Accesses to our memory that a counter counts, or that take receives, are for
            // `progress`.
            let remote = [CntrKind::RemoteWrite, CntrKind::RemoteRead];
            let counted =
                || ep.cntrs.any(&remote) || !mr_cntrs.is_empty() || ep.writes_take_receives;
            let (to, sent_to) = (config.rx_cq, ep.tx.map(|b| b.cq));
            let mut ended = |to, e: Entry, (reports, counts): (bool, bool)| {
                if counts {
                    count(CntrKind::of(e.flags as u32), e.len);
                }
                !reports || out.give(to, e)
            };
            let seen = rx.poll_records(|from, record| {
                if record.kind == kind::RTS {
                    let long = (&mut *rendezvous, &mut *tx);
                    let more = fetch::gather(record, from, (&mut *rq, av), long, |e, reports| {
                        ended(to, e, (reports, true))
                    });
                    return more.map_or(RecordUse::Deferred, RecordUse::after);
                }
                if record.kind == kind::FIN {
                    let Some(done) = rendezvous.ended(from, record) else {
                        return RecordUse::Deferred;
                    };
                    let reports = done.report == Report::Entry;
                    return RecordUse::after(ended(sent_to, ended_entry(&done), (reports, true)));
                }
                if rendezvous.gathers() {
                    let long = (&mut *rendezvous, &mut *tx);
                    fetch::bring(av, long, |e, reports| ended(to, e, (reports, true)));
                }
                if shm_rma::is(record) && !counted() {
                    let did = shm_rma::serve(memory, record, scratch);
                    let Some((data, d)) = did.and_then(|d| Some((d.data?, d))) else {
                        return RecordUse::Taken;
                    };
                    let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
                    let told = shm_rma::told(data, d.len, src);
                    return RecordUse::after(ended(to, told, (true, false)));
                }
                match message(record, from, rq, av) {
                    Some((entry, reports)) => RecordUse::after(ended(to, entry, (reports, true))),
                    None => RecordUse::Deferred,
                }
            });
            if rendezvous.gathers() {
                fetch::bring(av, (rendezvous, tx), |e, reports| {
                    ended(to, e, (reports, true))
                });
            }
            seen == PollResult::All && rendezvous.load() == 0
        }
    };
    out.polled(all)
}
