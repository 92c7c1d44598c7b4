//! Endpoints without the wire protocol: fabric `efa-direct`, and datagrams (FI_EP_DGRAM). One call
//! is one work request.
//!
//! An EFA adapter gets the application's own buffers: receives are posted to its queue, messages
//! are sent without a copy. With the software adapter receives are posted to the endpoint's receive
//! queue, as for messages through shared memory; an unexpected message is kept there, an unexpected
//! datagram is dropped. The first 40 bytes of a datagram's buffer are not used (FI_MSG_PREFIX): an
//! adapter writes a header there.

use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::NativeQp;
use crate::device::{AmHeader, Device, QpAddr, QueuePair, Taken};
use crate::hmem::{Piece, UserMem};
use crate::proto::{
    Failure, PeerId, Port, Received, RecvQueue, UnexpectedMessage, WriteWithData, ANY,
};
use crate::prov::contract::{MsgReq, SendBuffer, SendData};
use crate::prov::efa::endpoint::EndpointKind;
use crate::prov::efa::info::DGRAM_PREFIX;
use crate::prov::efa::ops::UserOp;
use crate::prov::efa::port::EpPort;
use crate::prov::efa::same_host;
use crate::prov::reports::completion::CntrKind;
use crate::transport::{Completion, Payload, Status, Transport};
use crate::types::*;

/// Bytes at the start of a buffer that are not sent.
pub(crate) fn unsent(kind: EndpointKind) -> usize {
    if kind == EndpointKind::Dgram {
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
    kind: EndpointKind,
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

/// Handles a message that the software adapter has brought.
pub(crate) fn handle_message(
    port: &mut EpPort,
    kind: EndpointKind,
    rq: &mut RecvQueue,
    from: PeerId,
    (data, cq_data): (&[u8], Option<u64>),
) {
    let skip = unsent(kind);
    let len = (skip + data.len()) as u64;
    let Some(place) = rq.place(from, None, len, |r| port.adopt(r)) else {
        if kind == EndpointKind::Direct {
            let u = UnexpectedMessage::whole(port.id, from, None, cq_data, data.into());
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

/// Reports a peer's write with immediate data; where that is agreed (FI_RX_CQ_DATA), the write
/// consumes a receive.
pub(crate) fn written(port: &mut EpPort, rq: &mut RecvQueue, from: PeerId, w: WriteWithData) {
    if !port.writes_take_receives {
        return port.report_write(from, w.data, w.len);
    }
    match rq.place(from, None, 0, |r| port.adopt(r)) {
        Some(place) => port.wrote(place.ctx, from, w.len, w.data),
        None => rq.keep(UnexpectedMessage::write(port.id, from, w)),
    }
}

/// Counts a write with immediate data that the adapter has reported for FI_REMOTE_WRITE, where the
/// adapter has no event of its own for the access. Other writes of peers are not seen there at all.
pub(crate) fn count_write(port: &mut EpPort, len: usize) {
    if !port.dev.attr().caps.remote_events {
        port.count(CntrKind::RemoteWrite, len, true);
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

/// The peer that a completion is from. The completion lacks the sender's qkey unless the adapter
/// has a connection to it: connects the queue pair if the qkey is known otherwise.
pub(crate) fn sender(port: &mut EpPort, from: QpAddr) -> PeerId {
    let Some(p) = port.peers.learn_source(&from) else {
        return ANY;
    };
    if let Some(a) = port.peers.addr(p).copied().filter(|a| *a != from) {
        let _ = port.qp.connect(p, &a);
    }
    p
}

/// Ends a receive that was posted to an EFA adapter. A receive without an operation record, into
/// this piece, gets a record that ends at once.
pub(crate) fn end_receive(port: &mut EpPort, done: &Completion, into: Piece, t: &Taken) {
    let from = sender(port, t.from);
    let imm = t.imm.map(u64::from);
    let ctx = done
        .op()
        .unwrap_or_else(|| port.ops.insert(UserOp::new(port.id, into.into(), *done)));
    if t.write && t.status == Status::Ok {
        count_write(port, t.len as usize);
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
