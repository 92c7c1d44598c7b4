//! Operations: the checks that all requests share, and how requests wait. One module for each kind
//! of operation starts it.
//!
//! A request is borrowed from the caller for the length of the call. A request that must wait, for
//! a fence, a trigger or a counter, is kept as [`deferred::DeferredWork`] and started later. An
//! operation under way has a record, [`UserOp`], unless it took the fast path.

pub(crate) mod atomic;
pub(crate) mod collective;
pub(crate) mod deferred;
pub(crate) mod deferred_list;
pub(crate) mod direct;
pub(crate) mod recv;
pub(crate) mod rma;
mod send;
pub(crate) mod triggers;
mod user_op;

pub(crate) use send::{send, send_now};
pub(crate) use user_op::{drop_ops, short_op, OpKind, UserOp, SRX_OWNER};

use crate::core::Result;
use crate::proto::COLLECTIVE_TAG;
use crate::prov::contract::Call;
use crate::prov::efa::domain::State;
use crate::prov::reports::flags::SEND_FLAGS;
use crate::transport::PeerId;
use crate::types::*;
use deferred::DeferredWork;

/// Flags that `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg`, `fi_readmsg` and `fi_atomicmsg` may
/// carry.
pub(crate) const TX_FLAGS: u64 = SEND_FLAGS | FI_EFA_WR_HIGH_PPS;
/// Completion levels that wait until the message is in the receiver's memory: one that was matched
/// is.
pub(crate) const DELIVERED: u64 = FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE;

/// Splits the state into an enabled endpoint and a port for it.
macro_rules! live_port {
    ($s:expr, $id:expr, $inject:expr => $ep:ident, $proto:ident, $port:ident) => {
        live_port!($s, $id, $inject => $ep, $proto, _, _, $port);
    };
    ($s:expr, $id:expr, $inject:expr =>
        $ep:ident, $proto:ident, $rendezvous:pat, $rma:pat, $port:ident) => {
        let $ep = $s.eps.get_mut($id).ok_or(FI_EBADF)?;
        let Some(LiveEndpoint {
            qp,
            proto: $proto,
            events: _,
            late_imms,
            shm_ep,
            shm,
            rendezvous: $rendezvous,
            rma: $rma,
            ..
        }) = &mut $ep.live
        else {
            return Err(FI_EOPBADSTATE);
        };
        #[allow(unused_mut)]
        let mut $port = ep_port!(
            $s,
            $id,
            $ep,
            qp,
            shm_ep.as_mut().map(|h| &mut h.tx),
            shm,
            late_imms,
            $inject
        );
    };
}
pub(crate) use live_port;

#[inline]
pub(crate) fn too_long(what: &str, len: usize, limit: usize) -> Result<()> {
    if len <= limit {
        return Ok(());
    }
    exceeds(what, len, limit)
}

#[cold]
fn exceeds(what: &str, len: usize, limit: usize) -> Result<()> {
    crate::warn_log!(FI_LOG_EP_DATA, "{what} of {len} bytes: at most {limit}");
    Err(FI_EMSGSIZE)
}

/// Refuses tags that collective operations use, at endpoints that have those (mem_tag_format).
#[inline]
pub(crate) fn tag_fits(caps: u64, tag: Option<u64>) -> Result<()> {
    match tag {
        Some(t) if t & COLLECTIVE_TAG != 0 && caps & FI_COLLECTIVE != 0 => log_reserved_tag(t),
        _ => Ok(()),
    }
}

#[cold]
fn log_reserved_tag(tag: u64) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "tag {tag:#x}: wanted one without the highest bit, which FI_COLLECTIVE takes \
         (ep_attr->mem_tag_format)"
    );
    Err(FI_EINVAL)
}

/// Whether a call asks for a fence.
#[inline(always)]
pub(crate) fn fences(call: &impl Call) -> bool {
    call.flags().is_some_and(|f| f & FI_FENCE != 0)
}

/// Defers an operation that has to wait behind a fence, or behind deferred operations to its peer.
/// Returns whether it was deferred. `FI_EAGAIN` when too many are.
pub(crate) fn wait(
    s: &mut State,
    id: u32,
    (to, call): (fi_addr_t, &impl Call),
    work: impl FnOnce() -> DeferredWork,
) -> Result<bool> {
    let some = !s.eps.get(id).ok_or(FI_EBADF)?.deferred.is_empty();
    if !some && !fences(call) {
        return Ok(false);
    }
    let peer = resolve(s, id, to)?;
    let behind = some && s.eps.get(id).is_some_and(|e| e.deferred.names(peer));
    let waits = behind || fences(call) && deferred::under_way(s, id, peer);
    if waits {
        park(s, id, work())?;
    }
    Ok(waits)
}

/// The peer of an address. If the address is missing from a vector that is shared by name, new
/// entries of the vector are read first. `FI_ENOAV` without a vector, `FI_EINVAL` for an unknown
/// address.
#[cold]
pub(crate) fn resolve(s: &mut State, id: u32, to: fi_addr_t) -> Result<PeerId> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    let av = ep.av.ok_or(FI_ENOAV)?;
    let known = |s: &mut State| s.avs.get(av).ok_or(FI_ENOAV)?.peer(to, &mut s.peers);
    match known(s) {
        Err(FI_EINVAL) if refresh(s, av) => known(s),
        r => r,
    }
}

/// Reads the addresses that another process has inserted into a vector. Returns whether there were
/// any.
fn refresh(s: &mut State, av: u32) -> bool {
    let Some(v) = s.avs.get_mut(av).filter(|v| v.read_only()) else {
        return false;
    };
    let before = v.len();
    let found = v.refresh(&mut s.peers).is_ok() && v.len() > before;
    crate::prov::efa::peers::readdress(s);
    found
}

/// Defers an operation until its peer on this host replies to the ring request. `FI_EAGAIN` when
/// too many operations to that peer are deferred.
pub(crate) fn wait_for_route(s: &mut State, id: u32, work: DeferredWork) -> Result<()> {
    park(s, id, work)?;
    // That there is no answer is not an event, but found by progress.
    crate::prov::efa::progress::signal(s, id);
    Ok(())
}

/// Wakes a caller that is blocked on this endpoint: the operation just posted may need its
/// progress.
#[inline]
pub(crate) fn notify_sleeper(s: &mut State, id: u32) {
    let live = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
    if let Some(l) = live {
        l.notify_sleeper();
    }
}

/// Most deferred operations to one peer that calls may add to.
const PARKED_MAX: usize = 1024;

fn park(s: &mut State, id: u32, work: DeferredWork) -> Result<()> {
    let work = work.called(s, id);
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if ep.deferred.count(work.peer()) >= PARKED_MAX {
        return Err(FI_EAGAIN);
    }
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    ep.deferred.push(work);
    Ok(())
}
