//! Packets of an adapter, read in place: eager messages are copied from the adapter's buffers into
//! their receives.

use super::sink::Reporter;
use super::{ordinary, received};
use crate::device::any::PolledPacket;
use crate::proto::{Endpoint, RecvQueue};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::transport::{Completion, Flow, Sink, Status};
use crate::types::FI_ADDR_NOTAVAIL;

/// Takes packets and ends of requests of one endpoint.
pub(super) struct PacketSink<'a, F> {
    pub out: Reporter<'a, F>,
    pub proto: &'a mut Endpoint,
    pub rq: &'a mut RecvQueue,
    /// Vector for source addresses, if the endpoint has FI_SOURCE.
    pub av: Option<&'a Av>,
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
