//! Plain atomics on a few bytes: a record in the ring of a peer on the same host.

use crate::core::Result;
use crate::hmem::Piece;
use crate::proto::AtomicKind;
use crate::prov::contract::FastAtomic;
use crate::prov::efa::domain::State;
use crate::prov::efa::ops::atomic::element_size;
use crate::prov::efa::same_host::shm_rma::{self, AtomicAccess};
use crate::prov::reports::completion::{ended_entry, reported, CntrKind};
use crate::transport::{Completion, RemoteAddr, Report, Verdict};
use crate::types::*;

/// Most bytes of remote memory.
const MOST: usize = 64;

/// Starts an atomic; `None`, and nothing done, when it has to go another way. Errors: `FI_EAGAIN`.
#[inline]
pub(crate) fn atomic(s: &mut State, id: u32, p: &FastAtomic) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    let (kind, flags) = match (p.compare, p.result) {
        (Some(_), _) => (AtomicKind::Compare, FI_READ),
        (None, Some(_)) => (AtomicKind::Fetch, FI_READ),
        (None, None) => (AtomicKind::Write { receipt: true }, FI_WRITE),
    };
    let size = element_size(p.datatype, p.op, kind).filter(|n| *n <= 8)?;
    let fits = p.len > 0 && p.len <= MOST && p.len.is_multiple_of(size);
    if !(fast.sends && fast.tags && fits && ep.fenced.is_empty()) {
        return None;
    }
    if p.len > ep.opts.max_atomic_size || p.context.is_none() && p.len > ep.opts.inject_rma_size {
        return None;
    }
    let peer = s.avs.get(fast.av)?.known(p.peer)?;
    let live = ep.live.as_mut()?;
    let rings = &mut live.shm_ep.as_mut()?.tx;
    let mut data = [0; 2 * MOST];
    let operands = match p.op {
        FI_ATOMIC_READ => 0,
        _ => p.data.load(data.get_mut(..p.len)?),
    };
    let compared = match p.compare {
        Some(c) => c.load(data.get_mut(operands..operands + p.len)?),
        None => 0,
    };
    let a = AtomicAccess {
        datatype: p.datatype,
        op: p.op,
        kind,
        len: p.len,
        data: data.get(..operands + compared)?,
        result: p.result.unwrap_or(Piece::EMPTY),
        early: p.result.is_none(),
    };
    let done = Completion {
        context: p.context.unwrap_or(0),
        len: p.len,
        flags: (FI_ATOMIC | flags) as u32,
        peer,
        report: reported(p.context.is_some() && fast.sent_to.is_some()),
        remote: RemoteAddr {
            addr: p.addr,
            key: p.key,
        },
    };
    let (sent, early) = shm_rma::atomic(rings, &a, done);
    match sent {
        Verdict::Unsupported => return None,
        Verdict::NoResources => return Some(Err(FI_EAGAIN)),
        Verdict::Done | Verdict::Queued => live.notify_sleeper(),
    }
    if early {
        ep.cntrs
            .count(&mut s.cntrs, CntrKind::of(done.flags), p.len);
        let to = fast.sent_to.filter(|_| done.report == Report::Entry);
        if let Some(q) = to.and_then(|q| s.cqs.get_mut(q)) {
            q.push(ended_entry(&done));
        }
    }
    Some(Ok(()))
}
