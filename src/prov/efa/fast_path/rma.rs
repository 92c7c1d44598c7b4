//! Plain reads and writes: a record in the ring of a peer on the same host, or a work request of a
//! real adapter.

use super::direct;
use super::poll::{poll, Polled};
use crate::core::Result;
use crate::proto::PeerId;
use crate::prov::contract::FastRma;
use crate::prov::efa::domain::State;
use crate::prov::efa::progress::progress;
use crate::prov::efa::same_host::shm_rma::{self, ShmRma, Wait};
use crate::shm::{Completion, TxRings, Verdict};
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
    let note = Completion {
        context: p.context.unwrap_or(0),
        len,
        flags: FI_RMA | if p.write { FI_WRITE } else { FI_READ },
        op: None,
        report: p.context.is_some() && fast.sent_to.is_some(),
        reported_early: false,
    };
    let rma = &mut live.shm.rma;
    let [reads, writes] = shm_rma::TOGETHER;
    let long = len >= if p.write { writes } else { reads };
    if long && (rings.has_outstanding() || rma.gathers()) {
        if let Some(due) = cma_batched(rings, rma, peer, p, note) {
            live.notify_sleeper();
            if due {
                progress(s, id);
            }
            return Some(Ok(()));
        }
    }
    let mut a = shm_rma::of(p.write, (p.key, p.addr), p.mem, p.cq_data);
    a.unsignaled = p.context.is_none();
    match rings.post(peer, &a, note) {
        Verdict::Unsupported => return None,
        Verdict::NoResources => return Some(Err(FI_EAGAIN)),
        Verdict::Done => {}
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
    peer: PeerId,
    p: &FastRma,
    note: Completion,
) -> Option<bool> {
    let at = (p.key, p.addr);
    let plain = p.cq_data.is_none() && p.context.is_some();
    if !plain || !rings.permits(peer, at, note.len, p.write) || rings.wants_events(peer) {
        return None;
    }
    rma.gather();
    let wait = Wait {
        mem: p.mem,
        addr: p.addr,
        note,
    };
    Some(rma.join(rings, peer, (p.key, p.write), wait))
}
