//! Messages to peers on the same host that fit into one record of shared memory: no protocol.
//!
//! A ring keeps records in order and loses none, so that a message needs no number, no handshake and no
//! acknowledgement: its tag and data go in front of its bytes, and it is sent when it is written. It finds its receive
//! like any other. Longer messages go in pieces (`stream`), and those whose delivery is to be confirmed by the
//! protocol, whose packets travel through the same ring and keep the order.
//!
//! Reads and writes of a peer's memory are done from here, where the system allows it; what the peer wants to know of
//! them, and data that goes with a write, follow through the ring.

use super::ops::rma_op;
use super::port::EpPort;
use super::stream::{self, Streams};
use super::{failure, Data, MsgReq, RmaReq};
use crate::core::Result;
use crate::hmem::UserMem;
use crate::proto::{Failure, PeerId, Place, Port, Received, RecvQueue, Unexpected, COLLECTIVE_TAG};
use crate::prov::efa::cq::Entry;
use crate::prov::efa::domain::State;
use crate::shm::{Denied, Local, Record, Sent, What, RECORD_MAX};
use crate::types::*;
use std::collections::VecDeque;

/// Kinds of records: a packet of the protocol, a whole message, and what a peer did to our memory (key, length, and
/// the data of a write).
pub const PACKET: u8 = 1;
const MESSAGE: u8 = 2;
const ACCESS: u8 = 3;
/// The beginning of a long message, what follows it, what its receiver has asked for, and that question.
pub const LONG: u8 = 4;
pub const LEAD: u8 = 5;
pub const PIECE: u8 = 6;
pub const GO: u8 = 7;
/// Flags of a message: which words are in front of it, tag before data. An access may have data, too.
const TAGGED: u8 = 1;
const WITH_DATA: u8 = 2;
/// Flag of an access: it was a write.
const WROTE: u8 = 4;
/// Flag of a long message: its rest comes without being asked for.
pub const WITHOUT_ASKING: u8 = 8;

/// What is under way with peers on the same host.
#[derive(Default)]
pub struct Nearby {
    /// Packets and reads of the protocol that were done at once; it hears of them with the next progress.
    pub packets: VecDeque<u32>,
    pub reads: VecDeque<u32>,
    /// Long messages.
    pub streams: Streams,
}

impl Nearby {
    /// Whether there is nothing to tell.
    pub fn quiet(&self) -> bool {
        self.packets.is_empty() && self.reads.is_empty() && !self.streams.more()
    }
}

/// Sends a message this way, if it can go this way. When it has gone, its completion is written.
pub fn send(port: &mut EpPort, peer: PeerId, r: &MsgReq, report: bool) -> Sent {
    let (Some(near), Some(addr)) = (&mut port.near, port.peers.addr(peer)) else {
        return Sent::Elsewhere;
    };
    let sent = put(r, |what, head, body, bytes| {
        near.send(peer, addr, what, head, body, bytes)
    });
    if sent == Sent::Done {
        let len = r.data.len();
        port.count(0, len, true);
        port.count_at(r.common.done, len, true);
        if let Some(q) = port
            .tx
            .filter(|_| report)
            .and_then(|b| port.cqs.get_mut(b.cq))
        {
            q.push(sent_entry(r));
        }
    }
    sent
}

/// What most messages on one host are: short, without flags of their own, nothing in their way, to a peer whose ring is
/// open. Those need neither a port nor the checks that others need. `None` for others, which nothing has been
/// done about.
#[inline]
pub fn quick(s: &mut State, id: u32, r: &MsgReq) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let c = &r.common;
    let (limit, special) = match r.tag {
        None => (ep.opts.inject_msg_size, false),
        Some(t) => (ep.opts.inject_tagged_size, t & COLLECTIVE_TAG != 0),
    };
    let own = c.flags.is_some() || c.alias.is_some() || c.done.is_some();
    if own || special || r.data.len() > limit || !ep.fenced.is_empty() || ep.confirms() {
        return None;
    }
    let near = &mut ep.live.as_mut()?.hub.as_mut()?.outbox;
    let peer = s.avs.get(ep.av?)?.known(r.to)?;
    let sent = put(r, |what, head, body, bytes| {
        near.send_known(peer, what, head, body, bytes)
    });
    match sent {
        Sent::Elsewhere => return None,
        Sent::Busy => return Some(Err(FI_EAGAIN)),
        Sent::Done => {}
    }
    if let Some(c) = ep.cntrs[0].and_then(|c| s.cntrs.get_mut(c)) {
        c.count(r.data.len());
    }
    if c.reports(&r.data, ep.tx, ep.tx_flags) {
        if let Some(q) = ep.tx.and_then(|b| s.cqs.get_mut(b.cq)) {
            q.push(sent_entry(r));
        }
    }
    Some(Ok(()))
}

/// Makes the record of a message and writes it with `write`.
#[inline]
fn put(r: &MsgReq, write: impl FnOnce(What, &[u8], &UserMem, &[u8]) -> Sent) -> Sent {
    let most = match r.data {
        Data::User(_) => stream::FIRST,
        Data::Inject(_) => RECORD_MAX - 16,
    };
    if r.data.len() > most {
        return Sent::Elsewhere;
    }
    let (words, flags) = words(r);
    let head = words.to_ne_bytes();
    let head = head.get(..head_len(flags)).unwrap_or(&[]);
    let what = What {
        kind: MESSAGE,
        flags,
        message: true,
    };
    match &r.data {
        Data::User(m) => write(what, head, m, &[]),
        Data::Inject(b) => write(what, head, &UserMem::EMPTY, b),
    }
}

/// The completion of a send, which is over as soon as it was posted.
fn sent_entry(r: &MsgReq) -> Entry {
    Entry {
        context: r.common.context,
        flags: FI_SEND | if r.tag.is_some() { FI_TAGGED } else { FI_MSG },
        len: r.data.len(),
        src: FI_ADDR_NOTAVAIL,
        ..Entry::default()
    }
}

/// The words in front of a message, tag before data, and the flags that say which they are.
#[inline]
pub fn words(r: &MsgReq) -> (u128, u8) {
    match (r.tag, r.cq_data) {
        (None, None) => (0, 0),
        (Some(t), None) => (t.into(), TAGGED),
        (None, Some(d)) => (d.into(), WITH_DATA),
        (Some(t), Some(d)) => (u128::from(t) | u128::from(d) << 64, TAGGED | WITH_DATA),
    }
}

/// Bytes of those words.
#[inline]
pub fn head_len(flags: u8) -> usize {
    8 * (flags & (TAGGED | WITH_DATA)).count_ones() as usize
}

/// What is in front of a message that has arrived.
pub struct Head {
    pub bytes: usize,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
}

/// Reads it; `None` when the record is too short.
#[inline]
pub fn head_of(record: &Record) -> Option<Head> {
    let bytes = head_len(record.flags);
    let has = |flag| record.flags & flag != 0;
    (record.len >= bytes).then(|| Head {
        bytes,
        tag: has(TAGGED).then(|| record.word(0)),
        cq_data: has(WITH_DATA).then(|| record.word(bytes - 8)),
    })
}

/// A message that has come.
pub struct Done {
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub len: u64,
    pub place: Place,
}

/// Ends its receive.
#[inline]
pub fn finish(
    d: Done,
    mut result: core::result::Result<(), Failure>,
    rq: &mut RecvQueue,
    port: &mut EpPort,
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

/// A read or write done from here, in the peer's memory. `Elsewhere` when it is not to be done so; `Done` also when
/// it failed and its completion says so.
pub fn rma(port: &mut EpPort, peer: PeerId, r: &RmaReq, report: bool) -> Sent {
    let (Some(near), Some(addr)) = (&mut port.near, port.peers.addr(peer)) else {
        return Sent::Elsewhere;
    };
    let local = match r.data {
        Data::User(m) => Local::Mem(m),
        Data::Inject(b) => Local::Bytes(b),
    };
    let done = near.access(peer, r.write, &local, (r.key, r.addr));
    let result = match done {
        Err(Denied::Elsewhere) => return Sent::Elsewhere,
        Err(Denied::Status(s)) => Err(failure(s)),
        Ok(events) if events || r.cq_data.is_some() => {
            let words = [r.key, r.data.len() as u64, r.cq_data.unwrap_or(0)];
            let mut head = [0; 24];
            for (to, w) in head.chunks_exact_mut(8).zip(words) {
                to.copy_from_slice(&w.to_ne_bytes());
            }
            let data = if r.cq_data.is_some() { WITH_DATA } else { 0 };
            let what = What {
                kind: ACCESS,
                flags: data | if r.write { WROTE } else { 0 },
                message: false,
            };
            // A write that cannot be told of is done again by the caller's next try.
            if near.send(peer, addr, what, &head, &UserMem::EMPTY, &[]) != Sent::Done {
                return Sent::Busy;
            }
            Ok(())
        }
        Ok(_) => Ok(()),
    };
    let op = rma_op(port.id, peer, r, report);
    port.end(op, result);
    Sent::Done
}

/// A record of a kind of this module has arrived.
#[inline]
pub fn arrived(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    match record.kind {
        MESSAGE => message(from, record, rq, port),
        ACCESS => {
            let [key, len, data] = [0, 8, 16].map(|at| record.word(at));
            let len = len as usize;
            if record.flags & WITH_DATA != 0 {
                port.report_write(from, data & 0xffff_ffff, len);
            }
            port.remote_access(key, len, record.flags & WROTE != 0);
        }
        LONG..=GO => stream::arrived(from, record, rq, port),
        _ => {}
    }
}

#[inline]
fn message(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    let Some(head) = head_of(record) else { return };
    let (tag, cq_data) = (head.tag, head.cq_data);
    let len = (record.len - head.bytes) as u64;
    let Some(place) = rq.place(from, tag, len) else {
        let mut payload = Vec::new();
        record.copy(head.bytes, &mut payload);
        let payload = payload.into();
        return rq.keep(Unexpected::whole(port.id, from, tag, cq_data, payload));
    };
    if let Some(op) = port.ops.get(place.ctx) {
        let room = op.mem.part(place.base as usize, place.room as usize);
        record.copy_mem(head.bytes, &room);
    }
    let done = Done {
        from,
        tag,
        cq_data,
        len,
        place,
    };
    finish(done, Ok(()), rq, port);
}
