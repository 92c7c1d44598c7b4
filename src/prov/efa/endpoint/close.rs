//! Closing an endpoint (fi_close(3)), with its posted operations.

use crate::core::Result;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::Ep;
use crate::prov::efa::ops::{collective, drop_ops, recv, SRX_OWNER};
use crate::types::*;

/// Drops the posted operations and the unexpected messages of a closing endpoint.
fn forget_ops(s: &mut State, id: u32, ep: &mut Ep) {
    drop_ops(s, id);
    match ep.srx {
        None => {
            s.rxqs.remove(ep.rxq);
        }
        Some(_) => {
            if let Some(q) = s.rxqs.get_mut(ep.rxq) {
                q.forget(id);
            }
            if let Some(l) = &ep.live {
                ep.cut_off.extend(l.proto.places());
                ep.cut_off.extend(l.rendezvous.places());
            }
        }
    }
    if let Some(l) = &ep.live {
        crate::info_log!(FI_LOG_EP_CTRL, "endpoint closed: {}", l.proto.counts());
    }
}

/// Ends the receives of a shared receive context, which stays open, whose message was coming in by
/// this closed endpoint. A multi-receive buffer stays posted for other messages unless it was full.
/// Nothing may write to them any more: the queue pair is gone.
pub(crate) fn cancel_shared(s: &mut State, ep: &Ep) {
    for place in &ep.cut_off {
        let stays = s.rxqs.get_mut(ep.rxq).is_some_and(|q| q.ended(place));
        if stays {
            continue;
        }
        let shared = ep.srx.map(|x| SRX_OWNER | x);
        if s.ops.get(place.ctx).map(|op| op.owner) != shared {
            continue;
        }
        if let Some(op) = s.ops.remove(place.ctx) {
            let text = "the endpoint by which its message came was closed";
            recv::report_cancelled((&mut s.cqs, &mut s.cntrs), ep, &op, text);
        }
    }
}

/// Closes an endpoint. `FI_EBUSY` while it has aliases. Posted operations end without completion,
/// as fi_close(3) allows; requests that the adapter has accepted are still sent. Also returns the
/// descriptor that `enable` returned. When the caller has dropped `live`, [`cancel_shared`] is due.
pub(crate) fn close(s: &mut State, id: u32) -> Result<(Ep, Option<i32>)> {
    if s.eps.get(id).ok_or(FI_EBADF)?.aliases > 0 {
        crate::warn_log!(FI_LOG_EP_CTRL, "fi_close: this endpoint still has aliases");
        return Err(FI_EBUSY);
    }
    let mut ep = s.eps.remove(id).ok_or(FI_EBADF)?;
    s.domain_use.endpoints(s.eps.len());
    let fd = ep.wait_fd();
    if let Some(fd) = fd {
        for b in [ep.tx, ep.rx].into_iter().flatten() {
            if let Some(c) = s.cqs.get_mut(b.cq) {
                c.wait.detach(id, fd);
            }
        }
        let cntrs = ep.cntrs.each().map(|(_, c)| c);
        for c in cntrs.chain(ep.counted.iter().copied()) {
            if let Some(c) = s.cntrs.get_mut(c) {
                c.wait.detach(id, fd);
            }
        }
        if let Some(a) = ep.av.and_then(|a| s.avs.get_mut(a)) {
            a.users -= 1;
        }
        forget_ops(s, id, &mut ep);
    }
    s.triggers.take_back(|t| t.ep == id);
    ep.leftover = Some(collective::drop_ep(s, id));
    Ok((ep, fd))
}
