//! Packets of an adapter, read in place: eager messages are copied from the adapter's buffers into
//! their receives.

use super::sink::Reporter;
use super::{ordinary, received, PollResult};
use crate::device::any::PolledPacket;
use crate::proto::{Endpoint, RecvQueue};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::shm::ShmEndpoint;
use crate::transport::{Completion, Flow, Poll, PollStatus, Sink, Status};
use crate::types::FI_ADDR_NOTAVAIL;

/// Takes packets and ends of requests of one endpoint.
struct PacketSink<'a, F> {
    out: Reporter<'a, F>,
    proto: &'a mut Endpoint,
    rq: &'a mut RecvQueue,
    /// Vector for source addresses, if the endpoint has FI_SOURCE.
    av: Option<&'a Av>,
}

/// As [`super::poll`], of the adapter; with the rings only whether they have something.
#[inline(always)]
pub(super) fn poll<F: FnMut(usize, &Entry)>(
    live: &mut LiveEndpoint,
    out: Reporter<F>,
    rq: &mut RecvQueue,
    av: Option<&Av>,
) -> PollResult {
    live.skipped_polls = 0;
    let mut sink = PacketSink {
        out,
        proto: &mut live.proto,
        rq,
        av,
    };
    let status = live.qp.poll(usize::MAX, &mut sink);
    live.empty_polls = match status {
        PollStatus::Empty => live.empty_polls + 1,
        _ => 0,
    };
    let idle = |h: &mut ShmEndpoint| !h.tx.has_outstanding() && h.rx.poll_idle();
    let all = status != PollStatus::Deferred && live.shm_ep.as_mut().is_none_or(idle);
    sink.out.polled(all)
}

impl<'p, F: FnMut(usize, &Entry)> Sink<PolledPacket<'p>> for PacketSink<'_, F> {
    #[inline(always)]
    fn completed(&mut self, done: &Completion, _: Status) -> Flow {
        self.out.sent(done)
    }

    #[inline(always)]
    fn message(&mut self, p: PolledPacket) -> Flow {
        let head = self.proto.parse_due_eager(p.from, p.bytes);
        let Some((e, at)) = head.filter(|(e, _)| ordinary(e.tag)) else {
            return Flow::Deferred;
        };
        let data = p.bytes.get(at..).unwrap_or(&[]);
        let Some(r) = self.rq.take_entry(p.from, e.tag, data.len()) else {
            return Flow::Deferred;
        };
        self.proto.commit_eager_rx(p.from);
        r.into.store(data);
        let src = self.av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(p.from));
        let entry = received(&r, data.len(), (e.tag, e.cq_data), src);
        self.out.received(entry, r.report)
    }
}
