//! Reading an empty completion queue that one endpoint alone reports to: the next completion comes
//! straight from a ring or from the adapter's queue, with nothing in between.

use super::records::message;
use super::requests;
use crate::core::slab::Slab;
use crate::core::Result;
use crate::proto::RecvQueue;
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{DomainUse, Ep};
use crate::prov::efa::peers::Peers;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::CntrKind;
use crate::prov::reports::cq::Cq;
use crate::shm::{PeerRecord, ShmEndpoint};
use crate::transport::{Completion, Flow, PollStatus, Sink, Status};

/// Messages of a poll, at most as many as the reader asks for, within these bounds.
const TAKEN: usize = 16;
const MOST: usize = 64;

/// An endpoint and what belongs to its completions.
pub(super) struct ReadContext<'a> {
    pub ep: &'a mut Ep,
    pub rxqs: &'a mut Slab<RecvQueue>,
    pub avs: &'a Slab<Av>,
    pub peers: &'a mut Peers,
    pub cntrs: &'a mut Slab<Cntr>,
    pub domain_use: &'a mut DomainUse,
    pub id: u32,
}

/// Reads queue `cq`, which is empty: up to `count` completions go to `each`, with source addresses
/// if `NAMED`. `FI_EAGAIN` when there are none; `None` when the caller has to poll.
#[inline(always)]
pub(crate) fn read<const NAMED: bool>(
    s: &mut State,
    cq: u32,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Option<Result<usize>> {
    let q = s.cqs.get_mut(cq)?;
    let &[id] = q.wait.eps.as_slice() else {
        return None;
    };
    let ep = s.eps.get_mut(id).filter(|_| count > 0)?;
    if ep.waits(&s.triggers, &s.colls) {
        return None;
    }
    let (only_cq, ring_cq) = (ep.config.only_cq, ep.config.ring_cq);
    let all = ReadContext {
        ep,
        rxqs: &mut s.rxqs,
        avs: &s.avs,
        peers: &mut s.peers,
        cntrs: &mut s.cntrs,
        domain_use: &mut s.domain_use,
        id,
    };
    if ring_cq == cq {
        return rings(all, q, count, each);
    }
    match only_cq == cq {
        true => requests::read::<NAMED>(all, q, count, each),
        false => None,
    }
}

/// As [`read`], of messages from peers on the same host. Takes more messages than asked for and
/// keeps their completions in the queue, because most readers ask for one.
#[inline(always)]
fn rings(
    s: ReadContext,
    q: &mut Cq,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Option<Result<usize>> {
    let (config, live) = (&s.ep.config, s.ep.live.as_mut()?);
    let readable = |h: &ShmEndpoint| !h.tx.has_outstanding();
    if !live.shm_ep.as_ref().is_some_and(readable) || !live.idle() {
        return None;
    }
    if !live.skip_adapter_poll(s.id, true, s.domain_use) {
        return None;
    }
    let shm_ep = live.shm_ep.as_mut()?;
    let rq = s.rxqs.get_mut(s.ep.rxq)?;
    let av = match config.source {
        true => s.avs.get(config.av),
        false => None,
    };
    let cntr = s.ep.cntrs.of(CntrKind::Recv);
    let mut sink = MessageSink {
        rq,
        av,
        cntr: cntr.and_then(|c| s.cntrs.get_mut(c)),
        q,
        count,
        given: 0,
        each,
    };
    let status = shm_ep.rx.poll_messages(count.clamp(TAKEN, MOST), &mut sink);
    let MessageSink { q, given, .. } = sink;
    q.moved();
    match (status, given) {
        (PollStatus::Empty, _) => q.note_empty_poll(),
        (_, 0) => None,
        (_, n) => {
            q.backoff.note_found();
            Some(Ok(n))
        }
    }
}

/// Takes messages into their receives; their completions go to the reader, or into its queue.
struct MessageSink<'a, F> {
    rq: &'a mut RecvQueue,
    av: Option<&'a Av>,
    cntr: Option<&'a mut Cntr>,
    q: &'a mut Cq,
    count: usize,
    given: usize,
    each: F,
}

impl<'r, F: Fn(usize, &Entry)> Sink<PeerRecord<'r>> for MessageSink<'_, F> {
    fn completed(&mut self, _: &Completion, _: Status) -> Flow {
        Flow::Deferred
    }

    #[inline(always)]
    fn message(&mut self, m: PeerRecord) -> Flow {
        let Some((entry, report)) = message(&m, self.rq, self.av) else {
            return Flow::Deferred;
        };
        if let Some(c) = &mut self.cntr {
            c.count(entry.len);
        }
        match report {
            true if self.given < self.count => {
                (self.each)(self.given, &entry);
                self.given += 1;
            }
            true => self.q.push(entry),
            false => {}
        }
        Flow::Taken
    }
}
