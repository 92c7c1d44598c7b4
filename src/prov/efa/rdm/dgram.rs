//! Datagram endpoints (FI_EP_DGRAM): one packet a message, no protocol, no order.
//!
//! The first 40 bytes of every application buffer are left alone (FI_MSG_PREFIX), as an adapter
//! writes its routing header there. A datagram for which no receive is posted is dropped.

use super::port::EpPort;
use super::{MsgReq, UserOp};
use crate::core::Result;
use crate::device::{Payload, QueuePair};
use crate::proto::{Failure, PeerId, Port, Received};
use crate::prov::efa::info::DGRAM_PREFIX;
use crate::types::*;
use std::collections::VecDeque;

/// Kind of work request of a datagram.
pub const WR: u64 = 4 << 32;

/// Posts a send whose operation is `ctx`. `FI_EINVAL` for a buffer without room for the prefix,
/// `FI_EMSGSIZE` for one that is longer than a packet, `FI_EAGAIN` when the queue is full.
pub fn send(port: &mut EpPort, ctx: u32, peer: PeerId, r: &MsgReq) -> Result<()> {
    if r.tag.is_some() {
        return Err(FI_EOPNOTSUPP);
    }
    let to = *port.peers.addr(peer).ok_or(FI_EINVAL)?;
    let payload = match r.data {
        super::Data::Inject(b) => Payload::Copy(b.get(DGRAM_PREFIX..).ok_or(FI_EINVAL)?),
        super::Data::User(m) if m.len() < DGRAM_PREFIX => return Err(FI_EINVAL),
        super::Data::User(m) => Payload::User(m.part(DGRAM_PREFIX, usize::MAX)),
    };
    // Data for the receiver travels in front; nothing stands for "none".
    let mut head = [0u8; 9];
    let mut used = 1;
    if let (Some(d), [mark, rest @ ..]) = (r.cq_data, &mut head) {
        *mark = 1;
        rest.copy_from_slice(&d.to_le_bytes());
        used = 9;
    }
    port.qp.post_send(
        WR | u64::from(ctx),
        &to,
        head.get(..used).unwrap_or(&[]),
        payload,
    )
}

/// A send is done.
pub fn sent(port: &mut EpPort, ctx: u32, failed: Option<Failure>) {
    port.sent(ctx, failed.map_or(Ok(()), Err));
}

/// A datagram has arrived.
pub fn arrived(port: &mut EpPort, posted: &mut VecDeque<u32>, from: PeerId, bytes: &[u8]) {
    let (cq_data, data) = match bytes.split_first() {
        Some((0, rest)) => (None, rest),
        Some((1, rest)) => match rest.split_first_chunk::<8>() {
            Some((d, rest)) => (Some(u64::from_le_bytes(*d)), rest),
            None => return,
        },
        _ => return,
    };
    let Some(ctx) = posted.pop_front() else {
        return;
    };
    port.store(ctx, DGRAM_PREFIX as u64, data);
    let len = (DGRAM_PREFIX + data.len()) as u64;
    let room = port.ops.get(ctx).map_or(0, |o: &UserOp| o.mem.len() as u64);
    let result = if len > room {
        Err(Failure {
            errno: FI_ETRUNC,
            status: 0,
        })
    } else {
        Ok(())
    };
    port.received(
        ctx,
        Received {
            from,
            len,
            tag: 0,
            cq_data,
            base: 0,
            room,
            stays: false,
        },
        result,
    );
}
