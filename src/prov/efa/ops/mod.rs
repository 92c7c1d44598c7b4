//! Operations: what all requests are checked for, and how they start; a module for each kind starts
//! it.
//!
//! A request is borrowed from the caller for the length of the call. One that must wait, for a
//! fence, a trigger or a counter, is kept as [`deferred::Work`] and comes here again. What is under
//! way has a record, [`UserOp`], unless the fast path carried it.

pub(crate) mod atomic;
pub(crate) mod collective;
pub(crate) mod deferred;
pub(crate) mod direct;
pub(crate) mod recv;
pub(crate) mod rma;
mod send;
mod user_op;

pub(crate) use send::{send, send_now};
pub(crate) use user_op::{drop_ops, short_op, OpKind, UserOp, SRX_OWNER};

use crate::core::{memory, Result};
use crate::proto::COLLECTIVE_TAG;
use crate::prov::efa::domain::State;
use crate::types::*;
use deferred::Work;

/// Flags that `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg`, `fi_readmsg` and `fi_atomicmsg` may
/// carry.
pub(crate) const TX_FLAGS: u64 = FI_COMPLETION
    | FI_MORE
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_REMOTE_CQ_DATA
    | FI_FENCE
    | FI_EFA_WR_HIGH_PPS;
pub(crate) const RX_FLAGS: u64 =
    FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD;

#[inline]
pub(crate) fn known(flags: Option<u64>, all: u64, call: &str) -> Result<()> {
    match flags.unwrap_or(0) & !all {
        0 => Ok(()),
        bad => unknown(bad, call),
    }
}

#[cold]
fn unknown(bad: u64, call: &str) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "{call}: flags {bad:#x} ({}) are not supported",
        crate::core::tostr::op_flags(bad)
    );
    Err(FI_EBADFLAGS)
}

/// Splits the state into an enabled endpoint and a port for it.
macro_rules! live_port {
    ($s:expr, $id:expr, $inject:expr => $ep:ident, $proto:ident, $port:ident) => {
        live_port!($s, $id, $inject => $ep, $proto, _, $port);
    };
    ($s:expr, $id:expr, $inject:expr =>
        $ep:ident, $proto:ident, $rendezvous:pat, $port:ident) => {
        let $ep = $s.eps.get_mut($id).ok_or(FI_EBADF)?;
        let Some(Live {
            qp,
            proto: $proto,
            events: _,
            waiting: _,
            shm_ep,
            shm,
            rendezvous: $rendezvous,
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
            $inject
        );
    };
}
pub(crate) use live_port;

#[inline]
pub(crate) fn inject_fits(len: usize, limit: usize) -> Result<()> {
    too_long("inject (tx_attr->inject_size)", len, limit)
}

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
        Some(t) if t & COLLECTIVE_TAG != 0 && caps & FI_COLLECTIVE != 0 => taken(t),
        _ => Ok(()),
    }
}

#[cold]
fn taken(tag: u64) -> Result<()> {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "tag {tag:#x}: wanted one without the highest bit, which FI_COLLECTIVE takes \
         (ep_attr->mem_tag_format)"
    );
    Err(FI_EINVAL)
}

/// Whether a request has to wait behind a fence, or is one that earlier operations hold up.
#[inline]
pub(crate) fn fenced(s: &mut State, id: u32, peer: fi_addr_t, flags: Option<u64>) -> Result<bool> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    if !ep.fenced.is_empty() {
        return Ok(true);
    }
    if flags.unwrap_or(0) & FI_FENCE == 0 {
        return Ok(false);
    }
    let av = ep.av.and_then(|a| s.avs.get(a)).ok_or(FI_ENOAV)?;
    let peer = av.peer(peer, &mut s.peers)?;
    Ok(crate::prov::efa::ops::deferred::under_way(s, id, peer))
}

/// Starts an operation by `now`. The operation is parked as `work` behind a fence, and while its
/// peer, on this host, has not answered the first call.
#[inline]
pub(crate) fn start(
    s: &mut State,
    id: u32,
    (to, flags): (fi_addr_t, Option<u64>),
    work: impl Fn() -> Work,
    now: impl Fn(&mut State) -> Result<()>,
) -> Result<()> {
    if fenced(s, id, to, flags)? {
        return park(s, id, work());
    }
    match again(s, id, now) {
        Err(FI_EAGAIN) => park_while_calling(s, id, to, work),
        r => r,
    }
}

/// Starts an operation; one to a peer that is not in a vector shared by name is tried again when
/// the vector has news.
#[inline]
fn again(s: &mut State, id: u32, f: impl Fn(&mut State) -> Result<()>) -> Result<()> {
    if memory::short() {
        return Err(FI_EAGAIN);
    }
    match f(s) {
        Err(FI_EINVAL) if news(s, id) => f(s),
        r => r,
    }?;
    notify_sleeper(s, id);
    Ok(())
}

/// Something was posted. Whoever sleeps until this endpoint has news may have to move it along.
#[inline]
pub(crate) fn notify_sleeper(s: &mut State, id: u32) {
    let live = s.eps.get_mut(id).and_then(|e| e.live.as_mut());
    if let Some(l) = live {
        l.notify_sleeper();
    }
}

#[cold]
fn news(s: &mut State, id: u32) -> bool {
    let av = s.eps.get(id).and_then(|e| e.av);
    let Some(av) = av.and_then(|a| s.avs.get_mut(a)) else {
        return false;
    };
    let before = av.len();
    av.read_only() && av.refresh(&mut s.peers).is_ok() && av.len() > before
}

/// Operations that wait for an answer of a peer on this host to its first call, at most.
const PARKED_MAX: usize = 256;

/// Keeps an operation that found no room because its peer, on this host, has just been called: it
/// starts when the peer has answered.
#[cold]
fn park_while_calling(
    s: &mut State,
    id: u32,
    to: fi_addr_t,
    work: impl FnOnce() -> Work,
) -> Result<()> {
    let ep = s.eps.get(id).ok_or(FI_EBADF)?;
    let av = ep.av.and_then(|a| s.avs.get(a)).ok_or(FI_ENOAV)?;
    let peer = av.peer(to, &mut s.peers)?;
    let shm_ep = ep.live.as_ref().and_then(|l| l.shm_ep.as_ref());
    let calling = shm_ep.is_some_and(|h| h.tx.is_calling(peer));
    if !calling || ep.fenced.len() >= PARKED_MAX {
        return Err(FI_EAGAIN);
    }
    park(s, id, work())
}

pub(crate) fn park(s: &mut State, id: u32, work: Work) -> Result<()> {
    let ep = s.eps.get_mut(id).ok_or(FI_EBADF)?;
    if !ep.enabled() {
        return Err(FI_EOPBADSTATE);
    }
    ep.fenced.push_back(work);
    Ok(())
}
