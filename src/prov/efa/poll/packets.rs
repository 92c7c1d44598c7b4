//! Packets of an adapter, read where they arrived: eager messages go from there into their
//! receives.

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
    /// Who has sent it is looked up here, if that is wanted.
    pub av: Option<&'a Av>,
}

impl<'p, F: FnMut(usize, &Entry)> Sink<PolledPacket<'p>> for PacketSink<'_, F> {
    #[inline(always)]
    fn completed(&mut self, done: &Completion, _: Status) -> Flow {
        self.out.sent(done)
    }

    #[inline(always)]
    fn message(&mut self, p: PolledPacket) -> Flow {
        let head = self.proto.eager_in(p.from, p.bytes);
        let Some((e, at)) = head.filter(|(e, _)| ordinary(e.tag)) else {
            return Flow::Deferred;
        };
        let data = p.bytes.get(at..).unwrap_or(&[]);
        let Some(r) = self.rq.take_short(p.from, e.tag, data.len()) else {
            return Flow::Deferred;
        };
        self.proto.eager_taken(p.from);
        r.into.store(data);
        let src = self.av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(p.from));
        let entry = received(&r, data.len(), (e.tag, e.cq_data), src);
        self.out.received(entry, r.report)
    }
}
