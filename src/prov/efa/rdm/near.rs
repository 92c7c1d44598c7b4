//! Messages to peers on the same host that fit into one record of shared memory: no protocol.
//!
//! A ring keeps records in order and loses none, so that a message needs no number, no handshake and no
//! acknowledgement: its tag and data go in front of its bytes, and it is sent when it is written. It finds its receive
//! like any other. Longer messages, and those whose delivery is to be confirmed, go by the protocol, whose packets
//! travel through the same ring and keep the order.
//!
//! Reads and writes of a peer's memory are done from here, where the system allows it; what the peer wants to know of
//! them, and data that goes with a write, follow through the ring.

use super::ops::rma_op;
use super::port::EpPort;
use super::{failure, Data, MsgReq, RmaReq};
use crate::hmem::UserMem;
use crate::proto::{Failure, PeerId, Port, Received, RecvQueue, Unexpected};
use crate::prov::efa::cq::Entry;
use crate::shm::{Denied, Local, Record, Sent, What, RECORD_MAX};
use crate::types::*;
use std::collections::VecDeque;

/// Kinds of records: a packet of the protocol, a whole message, and what a peer did to our memory (key, length, and
/// the data of a write).
pub const PACKET: u8 = 1;
const MESSAGE: u8 = 2;
const ACCESS: u8 = 3;
/// Flags of a message: which words are in front of it, tag before data. An access may have data, too.
const TAGGED: u8 = 1;
const WITH_DATA: u8 = 2;
/// Flag of an access: it was a write.
const WROTE: u8 = 4;

/// Packets and reads of the protocol that were done at once; it hears of them with the next progress.
#[derive(Default)]
pub struct Ended {
    pub packets: VecDeque<u32>,
    pub reads: VecDeque<u32>,
}

impl Ended {
    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty() && self.reads.is_empty()
    }
}

/// Sends a message this way, if it can go this way. When it has gone, its completion is written.
#[inline]
pub fn send(port: &mut EpPort, peer: PeerId, r: &MsgReq, report: bool) -> Sent {
    let Some(near) = &mut port.near else {
        return Sent::Elsewhere;
    };
    let len = r.data.len();
    let Some(addr) = port.peers.addr(peer).filter(|_| len + 16 <= RECORD_MAX) else {
        return Sent::Elsewhere;
    };
    let mut head = [0u8; 16];
    let (words, flags) = match (r.tag, r.cq_data) {
        (None, None) => (0, 0),
        (Some(t), None) => (t.into(), TAGGED),
        (None, Some(d)) => (d.into(), WITH_DATA),
        (Some(t), Some(d)) => (u128::from(t) | u128::from(d) << 64, TAGGED | WITH_DATA),
    };
    head.copy_from_slice(&words.to_ne_bytes());
    let head = head.get(..8 * flags.count_ones() as usize).unwrap_or(&[]);
    let what = What {
        kind: MESSAGE,
        flags,
        message: true,
    };
    let sent = match &r.data {
        Data::User(m) => near.send(peer, addr, what, head, m, &[]),
        Data::Inject(b) => near.send(peer, addr, what, head, &UserMem::EMPTY, b),
    };
    if sent == Sent::Done {
        port.done_at_once(r, report, len);
    }
    sent
}

impl EpPort<'_> {
    /// A send is over as soon as it was posted.
    #[inline]
    fn done_at_once(&mut self, r: &MsgReq, report: bool, len: usize) {
        self.count(0, len, true);
        self.count_at(r.common.done, len, true);
        if !report {
            return;
        }
        if let Some(q) = self.tx.and_then(|b| self.cqs.get_mut(b.cq)) {
            q.push(Entry {
                context: r.common.context,
                flags: FI_SEND | if r.tag.is_some() { FI_TAGGED } else { FI_MSG },
                len,
                src: FI_ADDR_NOTAVAIL,
                ..Entry::default()
            });
        }
    }
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
        _ => {}
    }
}

#[inline]
fn message(from: PeerId, record: &Record, rq: &mut RecvQueue, port: &mut EpPort) {
    let head = 8 * (record.flags & (TAGGED | WITH_DATA)).count_ones() as usize;
    if record.len < head {
        return;
    }
    let tagged = record.flags & TAGGED != 0;
    let tag = tagged.then(|| record.word(0));
    let cq_data = (record.flags & WITH_DATA != 0).then(|| record.word(head - 8));
    let len = (record.len - head) as u64;
    let Some(place) = rq.place(from, tag, len) else {
        let mut payload = Vec::new();
        record.copy(head, &mut payload);
        return rq.keep(Unexpected::whole(
            port.id,
            from,
            tag,
            cq_data,
            payload.into(),
        ));
    };
    if let Some(op) = port.ops.get(place.ctx) {
        let room = op.mem.part(place.base as usize, place.room as usize);
        record.copy_mem(head, &room);
    }
    let msg = Received {
        from,
        len,
        tag: tag.unwrap_or(0),
        cq_data,
        base: place.base,
        room: place.room,
        stays: rq.ended(&place),
    };
    let result = if len > place.room {
        Err(Failure {
            errno: FI_ETRUNC,
            status: 0,
        })
    } else {
        Ok(())
    };
    port.received(place.ctx, msg, result);
}
