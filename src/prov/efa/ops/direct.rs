//! Endpoints without the wire protocol: fabric `efa-direct`, and datagrams (FI_EP_DGRAM). One call
//! is one work request.
//!
//! A real adapter gets the application's own buffers: a receive is posted to its queue, a message
//! is sent from where it lies. Messages of the software adapter wait in the endpoint's receive
//! queue, or their receives do, as with messages through shared memory; a message without a receive
//! waits there for it, but a datagram is dropped. Of a datagram's buffer the first 40 bytes are
//! left alone (FI_MSG_PREFIX), where an adapter writes a header.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::NativeQp;
use crate::device::{AmHeader, QpAddr, QueuePair, Taken};
use crate::hmem::{Piece, UserMem};
use crate::proto::{Failure, PeerId, Port, Received, RecvQueue, Unexpected, Written, ANY};
use crate::prov::contract::{MsgReq, SendBuffer, SendData};
use crate::prov::efa::endpoint::Kind;
use crate::prov::efa::info::DGRAM_PREFIX;
use crate::prov::efa::ops::UserOp;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host;
use crate::transport::{Completion, Payload, Status, Transport};
use crate::types::*;

/// Bytes in front of a buffer that are not sent.
pub(crate) fn unsent(kind: Kind) -> usize {
    if kind == Kind::Dgram {
        DGRAM_PREFIX
    } else {
        0
    }
}

/// Posts a send whose operation is `ctx` to a peer that is connected. `FI_EINVAL` for a buffer
/// without room for the prefix, or not in registered memory, `FI_EMSGSIZE` for one that is longer
/// than a packet, `FI_EAGAIN` when the queue is full.
pub(crate) fn send(
    port: &mut EpPort,
    kind: Kind,
    ctx: u32,
    peer: PeerId,
    r: &MsgReq<SendData>,
) -> Result<()> {
    let skip = unsent(kind);
    let done = Completion::part(ctx, peer, r.data.len());
    let head = AmHeader::imm(r.cq_data);
    let sent = match &r.data {
        SendData::Inject(b) => {
            let sent = b.bytes().get(skip..).ok_or(FI_EINVAL)?;
            port.qp.am_short(done, head, sent.into())
        }
        SendData::User(m) if m.len() < skip => return Err(FI_EINVAL),
        SendData::User(m) => {
            let sent = m.part(skip, usize::MAX);
            port.qp.am_zcopy(done, head, Payload::User(&sent))
        }
    };
    sent.result()
}

/// Posts a receive whose operation is `ctx` to a real adapter. Errors as [`send`].
pub(crate) fn recv(q: &mut NativeQp, ops: &Slab<UserOp>, ctx: u32) -> Result<()> {
    let mem = ops.get(ctx).map_or(UserMem::EMPTY, |op| op.mem);
    q.post_recv(Completion::part(ctx, ANY, mem.len()), mem)
}

/// The software adapter has brought a message.
pub(crate) fn arrived(
    port: &mut EpPort,
    kind: Kind,
    rq: &mut RecvQueue,
    from: PeerId,
    (data, cq_data): (&[u8], Option<u64>),
) {
    let skip = unsent(kind);
    let len = (skip + data.len()) as u64;
    let Some(place) = rq.place(from, None, len, |r| port.adopt(r)) else {
        if kind == Kind::Direct {
            let u = Unexpected::whole(port.id, from, None, cq_data, data.into());
            rq.keep(u);
        }
        return;
    };
    port.store(place.ctx, skip as u64, data);
    let done = same_host::ReceivedMessage {
        from,
        tag: None,
        cq_data,
        len,
        place,
    };
    same_host::finish(done, Ok(()), rq, port);
}

/// Takes in a write with data of a peer; where that is agreed (FI_RX_CQ_DATA), by using up a
/// receive.
pub(crate) fn written(port: &mut EpPort, rq: &mut RecvQueue, from: PeerId, w: Written) {
    if !port.writes_take_receives {
        return port.report_write(from, w.data, w.len);
    }
    match rq.place(from, None, 0, |r| port.adopt(r)) {
        Some(place) => port.wrote(place.ctx, from, w.len, w.data),
        None => rq.keep(Unexpected::write(port.id, from, w)),
    }
}

fn ended(
    port: &mut EpPort,
    ctx: u32,
    from: PeerId,
    len: u64,
    cq_data: Option<u64>,
    result: core::result::Result<(), Failure>,
) {
    let room = port.ops.get(ctx).map_or(0, |o: &UserOp| o.mem.len() as u64);
    let msg = Received {
        from,
        len,
        tag: 0,
        cq_data,
        base: 0,
        room,
        stays: false,
    };
    port.received(ctx, msg, result);
}

/// The peer of a completion, which does not name its key unless the adapter has sent to it or met
/// it.
pub(crate) fn sender(port: &mut EpPort, from: QpAddr) -> PeerId {
    let Some(p) = port.peers.found(&from) else {
        return ANY;
    };
    if let Some(a) = port.peers.addr(p).copied().filter(|a| *a != from) {
        let _ = port.qp.connect(p, &a);
    }
    p
}

/// A receive at a real adapter is over. One without an operation, into this piece, becomes an
/// operation that ends at once.
pub(crate) fn taken(port: &mut EpPort, done: &Completion, into: Piece, t: &Taken) {
    let from = sender(port, t.from);
    let imm = t.imm.map(u64::from);
    let ctx = done
        .op()
        .unwrap_or_else(|| port.ops.insert(UserOp::new(port.id, into.into(), *done)));
    if t.write {
        return port.wrote(ctx, from, t.len as usize, imm.unwrap_or(0));
    }
    let failed = (t.status != Status::Ok).then(|| crate::prov::efa::endpoint::failure(t.status));
    ended(
        port,
        ctx,
        from,
        t.len.into(),
        imm,
        failed.map_or(Ok(()), Err),
    );
}
