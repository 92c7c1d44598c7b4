//! Plain reads and writes: a record in the ring of a peer on the same host, or a work request of a real adapter.

use super::poll::{poll, Polled};
use crate::core::Result;
use crate::device::any::Qp;
use crate::device::verbs::short::Short;
use crate::device::Device;
use crate::hmem::Piece;
use crate::proto::PeerId;
use crate::prov::efa::domain::State;
use crate::prov::efa::rdm::{access, progress, Live};
use crate::shm::{Note, Sent};
use crate::types::*;
use crate::wire::extra;

/// A read or write without flags of its own.
#[derive(Clone, Copy, Debug)]
pub struct PlainRma {
    pub mem: Piece,
    pub peer: fi_addr_t,
    pub addr: u64,
    pub key: u64,
    pub write: bool,
    pub cq_data: Option<u64>,
    /// `None`: an injecting call, which reports no success.
    pub context: Option<usize>,
}

/// So many injected writes in a row may be posted before a look at what has come in.
const UNPOLLED: u32 = 64;

/// Reads or writes a peer's memory; `None`, and nothing done, when it has to go another way. Errors: `FI_EAGAIN`.
#[inline(always)]
pub fn rma(s: &mut State, id: u32, p: &PlainRma) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let lane = &ep.lane;
    let [read, write, injected] = lane.rma;
    let most = match (p.write, p.context) {
        (false, _) => read,
        (true, Some(_)) => write,
        (true, None) => injected,
    };
    let len = p.mem.len();
    if len == 0 || !ep.fenced.is_empty() {
        return None;
    }
    let peer = s.avs.get(lane.av)?.known(p.peer)?;
    let live = ep.live.as_mut()?;
    if lane.direct || lane.packet.is_some() {
        let near = live.hub.as_ref().is_some_and(|h| !h.outbox.leaves(peer));
        return match near {
            false => rma_direct(s, id, p, peer),
            true => None,
        };
    }
    if len > most {
        return None;
    }
    let near = &mut live.hub.as_mut()?.outbox;
    let note = Note {
        context: p.context.unwrap_or(0),
        len,
        flags: FI_RMA | if p.write { FI_WRITE } else { FI_READ },
        op: None,
        report: p.context.is_some() && lane.sent_to.is_some(),
        told: false,
    };
    let mut a = access::of(p.write, (p.key, p.addr), p.mem, p.cq_data);
    a.silent = p.context.is_none();
    match near.post(peer, &a, note) {
        Sent::Elsewhere => return None,
        Sent::Busy => return Some(Err(FI_EAGAIN)),
        Sent::Done => {}
    }
    if a.silent {
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

/// As [`rma`], as a work request of the adapter.
#[inline]
fn rma_direct(s: &mut State, id: u32, p: &PlainRma, peer: PeerId) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let lane = &ep.lane;
    let Live { qp, proto, .. } = ep.live.as_mut()?;
    let Qp::Verbs(q) = qp else { return None };
    let most = match p.context {
        Some(_) => ep.max_rdma.min(ep.opts.max_rma_size),
        None => ep.opts.inject_rma_size,
    };
    if p.mem.len() > most || ep.caps & FI_RMA == 0 {
        return None;
    }
    if !lane.direct {
        let unsolicited = s.dev.attr().caps.unsolicited;
        let theirs = proto.features_of(peer)?;
        let able = match p.write {
            true => ep.rdma_write && theirs & extra::RDMA_WRITE != 0,
            false => ep.rdma_read && theirs & extra::RDMA_READ != 0,
        };
        let alike = (theirs & extra::UNSOLICITED_WRITE_RECV != 0) == unsolicited;
        if !able || p.cq_data.is_some() && !alike {
            return None;
        }
    }
    let short = Short {
        context: p.context.unwrap_or(0),
        data: p.mem,
        peer,
        report: p.context.is_some() && lane.sent_to.is_some(),
        flags: FI_RMA | if p.write { FI_WRITE } else { FI_READ },
        remote: (p.addr, u32::try_from(p.key).ok()?),
        tries: 0,
    };
    let peers = &s.peers;
    let how = (p.write, p.context.is_none());
    q.rdma_short(short, how, p.cq_data.map(|d| d as u32), || {
        peers.addr(peer).copied()
    })
}
