//! Plain reads and writes: a record in the ring of a peer on the same host, or a work request of a
//! real adapter.

use super::direct;
use super::poll::{poll, Polled};
use crate::core::Result;
use crate::prov::contract::FastRma;
use crate::prov::efa::domain::State;
use crate::prov::efa::progress::progress;
use crate::prov::efa::same_host::shm_rma::{self, ShmRma, Wait};
use crate::prov::reports::completion::{reported, rma_flags};
use crate::shm::TxRings;
use crate::transport::{Completion, RemoteAddr, Verdict};
use crate::types::*;

/// So many injected writes in a row may be posted before a look at what has come in.
const UNPOLLED: u32 = 64;

/// Reads or writes a peer's memory; `None`, and nothing done, when it has to go another way.
/// Errors: `FI_EAGAIN`.
#[inline(always)]
pub(crate) fn rma(s: &mut State, id: u32, p: &FastRma) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    if p.mem.is_empty() || !ep.fenced.is_empty() {
        return None;
    }
    let peer = s.avs.get(fast.av)?.known(p.peer)?;
    if fast.direct {
        return direct::rma(s, id, p, peer);
    }
    let [read, write, injected] = fast.rma;
    let most = match (p.write, p.context) {
        (false, _) => read,
        (true, Some(_)) => write,
        (true, None) => injected,
    };
    let len = p.mem.len();
    let live = ep.live.as_mut()?;
    if fast.packet.is_some() {
        let rings = live
            .shm_ep
            .as_ref()
            .is_some_and(|h| !h.tx.uses_adapter(peer));
        return match rings {
            false => direct::rma(s, id, p, peer),
            true => None,
        };
    }
    if len > most {
        return None;
    }
    let rings = &mut live.shm_ep.as_mut()?.tx;
    let done = Completion {
        context: p.context.unwrap_or(0),
        len,
        flags: rma_flags(p.write),
        peer,
        report: reported(p.context.is_some() && fast.sent_to.is_some()),
        remote: RemoteAddr {
            addr: p.addr,
            key: p.key,
        },
    };
    let rma = &mut live.shm.rma;
    let [reads, writes] = shm_rma::TOGETHER;
    let long = len >= if p.write { writes } else { reads };
    if long && (rings.has_outstanding() || rma.gathers()) {
        if let Some(due) = cma_batched(rings, rma, p, done) {
            live.notify_sleeper();
            if due {
                progress(s, id);
            }
            return Some(Ok(()));
        }
    }
    let mut a = shm_rma::of(p.write, p.mem, p.cq_data);
    a.unsignaled = p.context.is_none();
    match rings.post(&a, done) {
        Verdict::Unsupported => return None,
        Verdict::NoResources => return Some(Err(FI_EAGAIN)),
        Verdict::Done | Verdict::Queued => {}
    }
    live.notify_sleeper();
    if a.unsignaled {
        // Two that only write would fill each other's rings.
        live.unpolled += 1;
        if live.unpolled >= UNPOLLED {
            live.unpolled = 0;
            if let Polled::More(_) = poll(s, id, u32::MAX, usize::MAX, |_, _| {}) {
                progress(s, id);
            }
        }
    }
    Some(Ok(()))
}

/// One that is not the only one and long enough for two copies by the ring to be dearer than one
/// from here together with others. Whether it is time to look at what has come; `None`, and nothing
/// done, when it has to go another way.
#[inline(never)]
fn cma_batched(
    rings: &mut TxRings,
    rma: &mut ShmRma,
    p: &FastRma,
    done: Completion,
) -> Option<bool> {
    let peer = done.peer;
    let plain = p.cq_data.is_none() && p.context.is_some();
    if !plain || !rings.permits(peer, done.remote, done.len, p.write) || rings.wants_events(peer) {
        return None;
    }
    rma.gather();
    Some(rma.join(rings, p.write, Wait { mem: p.mem, done }))
}
