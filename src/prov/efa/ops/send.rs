//! Starting sends (fi_msg(3), fi_tagged(3)).

use super::deferred::Work;
use super::{direct, inject_fits, known, live_port, start, tag_fits, too_long, UserOp, TX_FLAGS};
use crate::core::Result;
use crate::proto::SendArgs;
use crate::prov::contract::{MsgReq, SendData};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{Kind, Live};
use crate::prov::efa::port::{ep_port, EpPort};
use crate::prov::efa::same_host::{self, shm_rma};
use crate::prov::reports::completion::{reported, send_flags};
use crate::prov::reports::reports;
use crate::transport::{Completion, RemoteAddr, Verdict};
use crate::types::*;

/// Sends a message. `FI_EAGAIN` when the send queue is full, `FI_EINVAL` for an unknown
/// destination, `FI_EMSGSIZE` when an injected message is longer than the limit.
#[inline]
pub(crate) fn send(s: &mut State, id: u32, r: &MsgReq) -> Result<()> {
    known(r.common.flags, TX_FLAGS, "fi_sendmsg")?;
    let now = |s: &mut State| send_now(s, id, r);
    start(s, id, (r.to, r.common.flags), || Work::new(r), now)
}

/// As [`send`], past any fence.
pub(crate) fn send_now(s: &mut State, id: u32, r: &MsgReq) -> Result<()> {
    let inject = r.data.injected();
    live_port!(s, id, inject => ep, proto, rendezvous, port);
    let (limit, max) = if r.tag.is_some() {
        (ep.opts.inject_tagged_size, ep.opts.max_tagged_size)
    } else {
        (ep.opts.inject_msg_size, ep.opts.max_msg_size)
    };
    if let Some(b) = inject {
        // A datagram's prefix is the application's to leave alone, and not sent.
        let unsent = direct::unsent(ep.kind);
        inject_fits(b.len().saturating_sub(unsent), limit)?;
    }
    too_long("message", r.data.len(), max)?;
    if ep.kind != Kind::Rdm && r.tag.is_some() {
        return Err(FI_EOPNOTSUPP);
    }
    tag_fits(ep.caps, r.tag)?;
    let flags = r.common.flags_or(ep.tx_flags);
    let peer = port.av.ok_or(FI_ENOAV)?.peer(r.to, port.peers)?;
    let report = !r.common.silent(&r.data) && reports(ep.tx, flags);
    let confirmed = flags & FI_DELIVERY_COMPLETE != 0;
    if confirmed && ep.kind == Kind::Direct && r.common.completion_cntr.is_none() {
        match shm_rma::confirmed(&mut port, peer, r, report) {
            Verdict::Done | Verdict::Queued => return Ok(()),
            Verdict::NoResources => return Err(FI_EAGAIN),
            Verdict::Unsupported => {}
        }
    }
    if !confirmed {
        match same_host::send(&mut port, peer, r, report) {
            Verdict::Done | Verdict::Queued => return Ok(()),
            Verdict::NoResources => return Err(FI_EAGAIN),
            Verdict::Unsupported => {}
        }
    }
    let done = Completion {
        context: r.common.context,
        len: r.data.len(),
        flags: send_flags(r.tag.is_some()),
        peer,
        report: reported(report),
        remote: RemoteAddr {
            addr: 0,
            key: r.tag.unwrap_or(0),
        },
    };
    let mut op = UserOp::new(id, r.data.lent(), done);
    op.completion_cntr = r.common.completion_cntr;
    let ctx = port.ops.insert(op);
    if let (SendData::User(mem), false) = (&r.data, confirmed) {
        let part = Completion::part(ctx, peer, mem.len());
        match rendezvous.send(&mut port, (r.tag, r.cq_data), mem, part) {
            Verdict::Done | Verdict::Queued => return Ok(()),
            Verdict::NoResources => {
                port.ops.remove(ctx);
                return Err(FI_EAGAIN);
            }
            Verdict::Unsupported => {}
        }
    }
    let args = SendArgs {
        peer,
        ctx,
        len: r.data.len() as u64,
        tag: r.tag,
        cq_data: r.cq_data,
        receipt: confirmed,
        inject: inject.is_some(),
    };
    let posted = if ep.kind != Kind::Rdm {
        direct::send(&mut port, ep.kind, ctx, peer, r)
    } else {
        proto.send(&args, &mut port)
    };
    port.posted(ctx, posted, &r.common)
}
