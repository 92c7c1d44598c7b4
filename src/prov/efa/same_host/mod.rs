//! Messages to peers on the same host in one record of shared memory, without the wire protocol.
//!
//! A ring keeps records in order and loses none, so that a message needs no number, no handshake
//! and no acknowledgement: its tag and data precede its bytes, and the send is complete when the
//! record is written. The message is matched like any other. Longer messages use `rendezvous`.
//! A message whose delivery is to be confirmed is a record of kind CONFIRMED, or an RTS that asks
//! for it (docs/design/013).
//!
//! `shm_rma` has reads, writes and atomics. After an access that is copied here by cross-memory
//! attach, its RMA event and its immediate data follow through the ring.

pub(crate) mod cost_model;
pub(crate) mod rendezvous;
pub(crate) mod shm_rma;
mod split;

use crate::core::slab::Slab;
use crate::hmem::PendingCopy;
use crate::proto::{
    Failure, PeerId, Place, Port, Received, RecvQueue, UnexpectedMessage, WriteWithData,
};
use crate::prov::efa::ops::direct;
use crate::prov::efa::port::EpPort;
use crate::shm::kind::{self, TAGGED, WITH_DATA};
use crate::shm::{Record, RecordHead, RecordHeader, ACCESS_HEAD, RECORD_MAX};
use crate::transport::Flow;
use crate::types::*;
use rendezvous::{ArrivedRecord, Rendezvous, RendezvousPort};
use shm_rma::Scratch;
use std::collections::VecDeque;

/// Longest injected message in one record, with two words in front of it.
pub(crate) const INJECTED_RECORD: usize = RECORD_MAX - 16;
/// Flag of an access: it was a write.
const WROTE: u8 = 4;
/// Flag of an RTS: the rest follows without a CTS.
pub(crate) const EAGER: u8 = 8;
/// Flag of an RTS: its memory is a device's, which the receiver may open.
pub(crate) const SHARED_MEMORY: u8 = 16;
/// Flag of an RTS: its sender waits for a FIN, however its bytes come (FI_DELIVERY_COMPLETE).
pub(crate) const DELIVERY: u8 = 32;

/// Most bytes that one poll copies between the memory of two processes, and most that it writes
/// into rings; the last chunk may exceed it. The domain's lock is held meanwhile. A batch of
/// several messages or accesses has no more either; longer ones are copied one after another, and
/// choose how when those before them have been measured.
pub(crate) const POLL_BUDGET: usize = 256 << 10;

/// As [`POLL_BUDGET`], between device memory and host memory: a device copies faster, and one part
/// while the system copies another.
pub(crate) const DEVICE_BUDGET: usize = 1 << 20;

/// State of transfers with peers on the same host.
#[derive(Default)]
pub(crate) struct ShmState {
    /// Packets and reads of the protocol that completed at once; the next progress call reports
    /// them to the protocol.
    pub packets: VecDeque<u32>,
    pub reads: VecDeque<u32>,
    /// Copies of device memory that peers share.
    pub copies: Slab<PendingCopy>,
    /// Buffers for executing peers' accesses.
    pub scratch: Scratch,
}

impl ShmState {
    /// Whether all packets and reads were reported to the protocol.
    pub(crate) fn all_reported(&self) -> bool {
        self.load() == 0
    }

    /// 0 when all packets and reads were reported to the protocol.
    #[inline(always)]
    pub(crate) fn load(&self) -> usize {
        self.packets.len() | self.reads.len()
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

/// Bytes of the words of [`words_of`], from their flags.
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

/// Ends the receive of a message.
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

/// The event of an access to a peer's memory: key, length, data of a write, whether it was a write.
pub(crate) fn event_words(
    (key, len, cq_data, write): (u64, usize, Option<u64>, bool),
) -> (RecordHeader, [u64; 3]) {
    let data = if cq_data.is_some() { WITH_DATA } else { 0 };
    let what = RecordHeader {
        kind: kind::RMA_EVENT,
        flags: data | if write { WROTE } else { 0 },
        message: false,
    };
    (what, [key, len as u64, cq_data.unwrap_or(0)])
}

/// Handles a record of a kind of this module. `Deferred`: the next poll has to present it again.
#[inline]
pub(crate) fn handle_record(
    from: PeerId,
    record: &Record,
    rendezvous: &mut Rendezvous,
    rq: &mut RecvQueue,
    port: &mut EpPort,
) -> Flow {
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
                direct::written(port, rq, from, WriteWithData { len, data });
            }
            port.remote_access(key, len, record.flags & WROTE != 0);
        }
        kind::RTS..=kind::SPLIT_DONE => return rendezvous.handle_record(from, record, rq, port),
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
        kind::SPLIT_RMA => {
            if !rendezvous.may_copy() {
                return Flow::Deferred;
            }
            if let (Some(rings), Some(addr)) = (&mut port.rings, port.peers.addr(from)) {
                // The way to the initiator's memory comes with a ring to it. Until that is there,
                // the initiator copies alone.
                if rings.ensure_route(from, addr) {
                    rendezvous.count_copied(shm_rma::help(port.dev, rings, from, record));
                }
            }
        }
        _ if shm_rma::is(record) => shm_rma::handle_access(from, record, rq, port),
        _ => {}
    }
    Flow::Taken
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
        return rq.keep(UnexpectedMessage::whole(
            port.id, from, tag, cq_data, payload,
        ));
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

/// Bytes that tell the messages and accesses of a simulation apart.
#[cfg(test)]
fn pattern(key: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| (i ^ (i >> 8) ^ key.wrapping_mul(0x9d)) as u8)
        .collect()
}
