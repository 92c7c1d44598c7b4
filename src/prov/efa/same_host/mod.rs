//! Messages to peers on the same host that fit into one record of shared memory: no protocol.
//!
//! A ring keeps records in order and loses none, so that a message needs no number, no handshake
//! and no acknowledgement: its tag and data go in front of its bytes, and it is sent when it is
//! written. It finds its receive like any other. Longer messages go by `rendezvous`, and those
//! whose delivery the protocol has to confirm as packets, whose packets travel through the same
//! ring and keep the order.
//!
//! Reads and writes of a peer's memory are copied from here where the system allows it; the peer's
//! events of them, and data that goes with a write, follow through the ring.

pub(crate) mod cost_model;
pub(crate) mod rendezvous;
pub(crate) mod shm_rma;

use crate::core::slab::Slab;
use crate::device::QpAddr;
use crate::hmem::{PendingCopy, SharedMemory};
use crate::proto::{Failure, PeerId, Place, Port, Received, RecvQueue, Unexpected, Written};
use crate::prov::contract::{RmaReq, SendBuffer, SendData};
use crate::prov::efa::endpoint::failure;
use crate::prov::efa::ops::direct;
use crate::prov::efa::ops::rma::rma_op;
use crate::prov::efa::port::EpPort;
use crate::shm::kind::{self, TAGGED, WITH_DATA};
use crate::shm::{
    LocalBuffer, Record, RecordHead, RecordHeader, RmaDenied, TxRings, ACCESS_HEAD, RECORD_MAX,
};
use crate::transport::{Completion, Verdict};
use crate::types::*;
use rendezvous::{ArrivedRecord, Rendezvous, RendezvousPort};
use shm_rma::{ShmRma, Wait};
use std::collections::VecDeque;

/// Longest injected message in one record, with two words in front of it.
pub(crate) const INJECTED_RECORD: usize = RECORD_MAX - 16;
/// Flag of an access: it was a write.
const WROTE: u8 = 4;
/// Flag of an RTS: the rest follows without a CTS.
pub(crate) const EAGER: u8 = 8;
/// Flag of an RTS: its memory is a device's, which the receiver may open.
pub(crate) const SHARED_MEMORY: u8 = 16;

/// What is under way with peers on the same host.
#[derive(Default)]
pub(crate) struct ShmState {
    /// Packets and reads of the protocol that were done at once; it hears of them with the next
    /// progress.
    pub packets: VecDeque<u32>,
    pub reads: VecDeque<u32>,
    /// Copies of device memory that peers share, and what of it is open.
    pub copies: Slab<PendingCopy>,
    pub shared: SharedMemory,
    /// Accesses to memory through rings.
    pub rma: ShmRma,
    /// The last reads and writes were system calls of ours that took long: the endpoint is to be
    /// polled, for a peer may wait for us.
    pub poll_due: bool,
}

impl ShmState {
    /// Whether there is nothing to tell.
    pub(crate) fn all_reported(&self) -> bool {
        self.load() == 0
    }

    /// Adds a read or write to the batch that is copied from here, if the peer permits that, and
    /// need not be told; whether it does.
    #[inline(never)]
    pub(crate) fn add_to_batch(&mut self, rings: &mut TxRings, write: bool, w: Wait) -> bool {
        let done = &w.done;
        let permits = rings.permits(done.peer, done.remote, done.len, write);
        if !permits || rings.wants_events(done.peer) {
            return false;
        }
        self.rma.gather();
        self.poll_due |= self.rma.join(rings, write, w);
        true
    }

    /// 0 when there is nothing to tell or to do.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.packets.len() | self.reads.len() | self.rma.load()
    }
}

/// The head of a message whose delivery the receiver confirms.
pub(crate) fn confirmed_head(cq_data: Option<u64>) -> RecordHead<'static> {
    let what = RecordHeader {
        kind: kind::CONFIRMED,
        flags: if cq_data.is_some() { WITH_DATA } else { 0 },
        message: true,
    };
    RecordHead::words(what, [cq_data.unwrap_or(0), 0], 1)
}

/// The words in front of a message, tag before data, and the flags that say which they are.
#[inline]
pub(crate) fn words_of(tag: Option<u64>, cq_data: Option<u64>) -> ([u64; 2], u8) {
    match (tag, cq_data) {
        (None, None) => ([0, 0], 0),
        (Some(t), None) => ([t, 0], TAGGED),
        (None, Some(d)) => ([d, 0], WITH_DATA),
        (Some(t), Some(d)) => ([t, d], TAGGED | WITH_DATA),
    }
}

/// Bytes of those words.
#[inline]
pub(crate) fn head_len(flags: u8) -> usize {
    let has = |flag| usize::from(flags & flag != 0);
    8 * (has(TAGGED) + has(WITH_DATA))
}

/// What is in front of a message that has arrived.
pub(crate) struct MessageHead {
    pub bytes: usize,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
}

/// Reads the head of a message; `None` when the record is too short.
#[inline]
pub(crate) fn head_of(record: &impl ArrivedRecord) -> Option<MessageHead> {
    let bytes = head_len(record.flags());
    let has = |flag| record.flags() & flag != 0;
    (record.bytes() >= bytes).then(|| MessageHead {
        bytes,
        tag: has(TAGGED).then(|| record.word(0)),
        cq_data: has(WITH_DATA).then(|| record.word(bytes - 8)),
    })
}

/// A message that has been received.
pub(crate) struct ReceivedMessage {
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub len: u64,
    pub place: Place,
}

/// Ends its receive.
#[inline]
pub(crate) fn finish<P: RendezvousPort>(
    d: ReceivedMessage,
    mut result: core::result::Result<(), Failure>,
    rq: &mut RecvQueue,
    port: &mut P,
) {
    let msg = Received {
        from: d.from,
        len: d.len,
        tag: d.tag.unwrap_or(0),
        cq_data: d.cq_data,
        base: d.place.base,
        room: d.place.room,
        stays: rq.ended(&d.place),
    };
    if d.len > d.place.room && result.is_ok() {
        result = Err(Failure {
            errno: FI_ETRUNC,
            status: 0,
        });
    }
    port.received(d.place.ctx, msg, result);
}

/// Copies a read or write by cross-memory attach. `Unsupported` when another route has to carry it;
/// `Done` also when it failed and its completion says so.
pub(crate) fn rma(port: &mut EpPort, r: &RmaReq<SendData>, done: Completion) -> Verdict {
    let peer = done.peer;
    if !r.data.lent().is_host() {
        return Verdict::Unsupported;
    }
    match shm_rma::rma(port, r, done) {
        Verdict::Unsupported => {}
        sent => return sent,
    }
    let (Some(rings), Some(addr)) = (&mut port.rings, port.peers.addr(peer)) else {
        return Verdict::Unsupported;
    };
    let (local, plain) = match &r.data {
        SendData::User(m) => (LocalBuffer::Mem(m), m.one().filter(|_| r.cq_data.is_none())),
        SendData::Inject(b) => (LocalBuffer::Bytes(b.bytes()), None),
    };
    if let Some(mem) = plain.filter(|_| rings.permits(peer, done.remote, done.len, r.write)) {
        if !rings.wants_events(peer) {
            let id = port.id;
            let done = port.track(r.common.completion_cntr, || rma_op(id, r, done), done);
            let Some(rings) = &mut port.rings else {
                return Verdict::Unsupported;
            };
            port.shm.poll_due |= port.shm.rma.join(rings, r.write, Wait { mem, done });
            return Verdict::Queued;
        }
    }
    // The peer's event must have room before its memory is touched: an error return means that
    // nothing was done.
    let tells = r.cq_data.is_some() || rings.wants_events(peer);
    if tells && !rings.fits(peer, 1, TOLD_LEN) {
        return Verdict::NoResources;
    }
    let copied = rings.cma_access(peer, r.write, &local, done.remote);
    port.shm.poll_due |= copied.is_ok();
    let result = match copied {
        Err(RmaDenied::Unsupported) => return Verdict::Unsupported,
        Err(RmaDenied::Status(s)) => Err(failure(s)),
        Ok(_) if tells => {
            let what = (r.key, r.data.len(), r.cq_data, r.write);
            // There is room: this endpoint is the ring's only writer.
            tell(rings, peer, addr, what);
            Ok(())
        }
        Ok(_) => Ok(()),
    };
    port.end(rma_op(port.id, r, done), result);
    Verdict::Done
}

/// Bytes of the record of [`tell`].
const TOLD_LEN: usize = 24;

/// Sends a peer the event of an access to its memory: key, length, data of a write, whether it was
/// a write.
pub(crate) fn tell(
    rings: &mut TxRings,
    peer: PeerId,
    addr: &QpAddr,
    (key, len, cq_data, write): (u64, usize, Option<u64>, bool),
) -> Verdict {
    let words = [key, len as u64, cq_data.unwrap_or(0)];
    let data = if cq_data.is_some() { WITH_DATA } else { 0 };
    let what = RecordHeader {
        kind: kind::RMA_EVENT,
        flags: data | if write { WROTE } else { 0 },
        message: false,
    };
    rings.tell(peer, addr, what, &words)
}

/// A record of a kind of this module has arrived.
#[inline]
pub(crate) fn arrived(
    from: PeerId,
    record: &Record,
    rendezvous: &mut Rendezvous,
    rq: &mut RecvQueue,
    port: &mut EpPort,
) {
    match record.kind {
        kind::MESSAGE => {
            if let Some(head) = head_of(record) {
                message(from, record, head, rq, port);
            }
        }
        kind::RMA_EVENT => {
            let [key, len, data] = [0, 8, 16].map(|at| record.word(at));
            let (len, data) = (len as usize, data & 0xffff_ffff);
            if record.flags & WITH_DATA != 0 {
                direct::written(port, rq, from, Written { len, data });
            }
            port.remote_access(key, len, record.flags & WROTE != 0);
        }
        kind::RTS..=kind::SPLIT_DONE => rendezvous.arrived(from, record, rq, port),
        kind::CONFIRMED => {
            let data = record.flags & WITH_DATA != 0;
            let head = MessageHead {
                bytes: ACCESS_HEAD,
                tag: None,
                cq_data: data.then(|| record.words()[2]),
            };
            if record.len >= ACCESS_HEAD {
                message(from, record, head, rq, port);
            }
        }
        _ if shm_rma::is(record) => shm_rma::arrived(from, record, rq, port),
        _ => {}
    }
}

#[inline]
fn message(
    from: PeerId,
    record: &Record,
    head: MessageHead,
    rq: &mut RecvQueue,
    port: &mut EpPort,
) {
    let (tag, cq_data) = (head.tag, head.cq_data);
    let len = (record.len - head.bytes) as u64;
    let Some(place) = rq.place(from, tag, len, |s| Port::adopt(port, s)) else {
        let mut payload = Vec::new();
        record.copy(head.bytes, &mut payload);
        let payload = payload.into();
        return rq.keep(Unexpected::whole(port.id, from, tag, cq_data, payload));
    };
    if let Some(op) = port.ops.get(place.ctx) {
        let room = op.mem.part(place.base as usize, place.room as usize);
        record.copy_mem(head.bytes, &room);
    }
    let done = ReceivedMessage {
        from,
        tag,
        cq_data,
        len,
        place,
    };
    finish(done, Ok(()), rq, port);
}
