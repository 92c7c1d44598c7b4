//! Records of rings: messages go into their receives, reads, writes and atomics are executed, long
//! messages of peers on this host are fetched (`rendezvous`: an RTS, one copy, a FIN).

use super::sink::Reporter;
use super::{ordinary, received, PollResult};
use crate::proto::{PeerId, RecvQueue};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::endpoint::LiveEndpoint;
use crate::prov::efa::same_host::rendezvous::{announced, Rendezvous};
use crate::prov::efa::same_host::shm_rma::{self, Scratch, TargetMemory};
use crate::prov::efa::same_host::{head_of, POLL_BUDGET};
use crate::prov::reports::completion::CntrKind;
use crate::prov::reports::endpoint::remote_write_entry;
use crate::shm::{kind, PeerRecord, Record, ShmEndpoint, TxRings};
use crate::transport::{Completion, Flow, Poll, PollStatus, Sink, Status};
use crate::types::FI_ADDR_NOTAVAIL;

/// Most records taken from one ring before the next ring is polled.
const BURST: usize = 64;

/// Copies a message from a ring into the receive that matches it. Its completion, and whether that
/// is reported; `None` when the general path has to handle it.
#[inline(always)]
pub(super) fn message(
    PeerRecord { from, record }: &PeerRecord,
    rq: &mut RecvQueue,
    av: Option<&Av>,
) -> Option<(Entry, bool)> {
    let head = (record.kind == kind::MESSAGE)
        .then(|| head_of(*record))
        .flatten();
    let head = head.filter(|h| ordinary(h.tag))?;
    let len = record.len - head.bytes;
    let r = rq.take_entry(*from, head.tag, len)?;
    record.copy_piece(head.bytes, r.into);
    let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(*from));
    Some((received(&r, len, (head.tag, head.cq_data), src), r.report))
}

/// Takes records for one endpoint.
struct RecordSink<'a, F> {
    out: Reporter<'a, F>,
    rq: &'a mut RecvQueue,
    /// Vector for source addresses, if the endpoint has FI_SOURCE.
    av: Option<&'a Av>,
    rendezvous: &'a mut Rendezvous,
    tx: &'a mut TxRings,
    /// Our memory that peers read and write, and buffers for operands of atomics.
    memory: TargetMemory<'a>,
    scratch: &'a mut Scratch,
    /// Whether writes with data take no receives, and regions have no counters.
    plain_target: bool,
    /// Bytes of long messages that were fetched.
    fetched: usize,
}

/// As [`super::poll`], of the rings.
#[inline(always)]
pub(super) fn poll<F: FnMut(usize, &Entry)>(
    live: &mut LiveEndpoint,
    mut out: Reporter<F>,
    (rq, av): (&mut RecvQueue, Option<&Av>),
    (memory, plain_target): (TargetMemory, bool),
) -> PollResult {
    let Some(ShmEndpoint { rx, tx }) = &mut live.shm_ep else {
        return PollResult::All(0);
    };
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
        memory,
        scratch: &mut live.shm.scratch,
        plain_target,
        fetched: 0,
    };
    let status = rx.poll(BURST, &mut sink);
    if sink.rendezvous.gathers() {
        sink.fetch();
    }
    let all = status != PollStatus::Deferred && sink.rendezvous.load() == 0;
    sink.out.polled(all)
}

impl<F: FnMut(usize, &Entry)> RecordSink<'_, F> {
    /// Adds a long message to the batch that is fetched by one system call.
    #[inline(never)]
    fn gather(&mut self, from: PeerId, record: &Record) -> Flow {
        let Some(m) = announced(record).filter(|m| ordinary(m.head.tag)) else {
            return Flow::Deferred;
        };
        let mut flow = Flow::Taken;
        if !self.rendezvous.gathers_more(from, m.len) {
            flow = self.fetch();
        }
        if !self.rendezvous.gather(self.tx, from, &m, self.rq) {
            return Flow::Deferred;
        }
        // A full batch is fetched now: none must be left when the reader has enough.
        if !self.rendezvous.gathers_more(from, m.len) {
            flow = self.fetch();
        }
        flow
    }

    /// Fetches the batch of long messages.
    #[inline(never)]
    fn fetch(&mut self) -> Flow {
        let mut flow = Flow::Taken;
        let (out, av) = (&mut self.out, self.av);
        self.fetched += self.rendezvous.fetch_batch(self.tx, |from, r, len, words| {
            let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
            flow = out.received(received(r, len, words, src), r.report);
        });
        match self.fetched < POLL_BUDGET {
            true => flow,
            false => Flow::Enough,
        }
    }

    /// Whether accesses to our memory are counted, or take receives.
    fn counts_accesses(&self) -> bool {
        let remote = [CntrKind::RemoteWrite, CntrKind::RemoteRead];
        !self.plain_target || self.out.bound.any(&remote)
    }
}

impl<'r, F: FnMut(usize, &Entry)> Sink<PeerRecord<'r>> for RecordSink<'_, F> {
    fn completed(&mut self, _: &Completion, _: Status) -> Flow {
        Flow::Deferred
    }

    #[inline(always)]
    fn message(&mut self, m: PeerRecord) -> Flow {
        let PeerRecord { from, record } = m;
        if record.kind == kind::RTS {
            return self.gather(from, record);
        }
        if record.kind == kind::FIN {
            let done = self.rendezvous.ended(from, record);
            return done.map_or(Flow::Deferred, |d| self.out.sent(&d));
        }
        if self.rendezvous.gathers() {
            self.fetch();
        }
        if shm_rma::is(record) && !self.counts_accesses() {
            let did = shm_rma::serve(self.memory, record, self.scratch);
            let Some((data, d)) = did.and_then(|d| Some((d.data?, d))) else {
                return Flow::Taken;
            };
            let src = self.av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
            return self.out.written(remote_write_entry(data, d.len, src));
        }
        match message(&m, self.rq, self.av) {
            Some((entry, reports)) => self.out.received(entry, reports),
            None => Flow::Deferred,
        }
    }
}
