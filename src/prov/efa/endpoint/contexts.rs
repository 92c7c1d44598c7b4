//! The contexts of a scalable endpoint (fi_scalable_ep(3)): endpoints at consecutive addresses.

use crate::core::{Info, Result};
use crate::device::{Device, QueuePair};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::Ep;
use crate::types::*;

/// The contexts of a scalable endpoint: as many endpoints as `info` asks for transmit or receive
/// contexts, at consecutive addresses.
pub(crate) fn open_contexts(s: &mut State, info: &Info) -> Result<Vec<u32>> {
    let count = info
        .ep
        .as_ref()
        .map_or(1, |e| e.tx_ctx_cnt.max(e.rx_ctx_cnt).max(1));
    if count > MAX_CONTEXTS {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_scalable_ep: tx_ctx_cnt, rx_ctx_cnt: wanted {count}, at most {MAX_CONTEXTS}"
        );
        return Err(FI_EINVAL);
    }
    let first = Ep::new(info, false, s.dev.attr())?;
    let qps = s.dev.open_group(first.qpn, count)?;
    let mut list = Vec::with_capacity(count);
    for qp in qps {
        let mut ep = Ep::new(info, false, s.dev.attr())?;
        ep.qpn = qp.addr().qpn;
        ep.context = Some(qp);
        ep.is_context = true;
        list.push(s.eps.insert(ep));
    }
    Ok(list)
}

/// Closes a transmit (`side` 0) or receive context: unbinds its completion queue, whatever the
/// endpoint still does.
pub(crate) fn close_context(s: &mut State, id: u32, side: usize) {
    let Some(ep) = s.eps.get_mut(id) else { return };
    let bound = if side == 0 {
        ep.tx.take()
    } else {
        ep.rx.take()
    };
    ep.configure_data_path();
    let fd = ep.wait_fd();
    let (Some(b), Some(fd)) = (bound, fd) else {
        return;
    };
    if !ep.uses_cq(b.cq) {
        if let Some(c) = s.cqs.get_mut(b.cq) {
            c.wait.detach(id, fd);
        }
    }
}

/// Most contexts of a scalable endpoint.
pub(crate) const MAX_CONTEXTS: usize = 16;
