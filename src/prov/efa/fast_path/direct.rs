//! The fast path over a real adapter whose queues are mapped (`device/verbs/short.rs`): a call is a
//! work request in its slot, a completion goes from the adapter's queue to the reader's buffer.
//! Fabric `efa-direct`, and reads and writes of `efa`.

use super::poll::{Polled, ShmPoller};
use super::{posted, sent_completion, FastPathConfig, Readable};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::{NativeCqe, NativeQp, PolledEntry};
use crate::device::Device;
use crate::hmem::Piece;
use crate::proto::{PeerId, ANY};
use crate::prov::contract::{Entry, FastRma, FastSend};
use crate::prov::efa::av::Av;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{Ep, Live};
use crate::prov::efa::peers::Peers;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, reported, rma_flags, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::transport::{Completion, RemoteAddr, Report};
use crate::types::*;
use crate::wire::extra;

/// As [`super::send`], as a work request of the adapter; `most` bytes.
#[inline(always)]
pub(crate) fn send(s: &mut State, id: u32, p: &FastSend, most: usize) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    if p.tag.is_some() || p.data.len() > most || !ep.fenced.is_empty() {
        return None;
    }
    let peer = s.avs.get(ep.fast.av)?.known(p.to)?;
    let q = ep.live.as_mut()?.qp.native()?;
    let report = reported(p.context.is_some() && ep.fast.sent_to.is_some());
    let done = sent_completion(p.context.unwrap_or(0), p, peer, report);
    posted(q.send_short(done, p.data, p.cq_data.map(|d| d as u32)))
}

/// As [`super::recv`], into the adapter's queue.
#[inline(always)]
pub(crate) fn recv(
    q: &mut NativeQp,
    fast: &FastPathConfig,
    into: Piece,
    context: usize,
) -> Option<Result<()>> {
    let done = Completion {
        context,
        len: into.len(),
        flags: (FI_RECV | FI_MSG) as u32,
        peer: ANY,
        report: reported(fast.report),
        remote: RemoteAddr::default(),
    };
    posted(q.recv_short(done, into))
}

/// As [`super::rma`], as a work request of the adapter.
#[inline(always)]
pub(crate) fn rma(s: &mut State, id: u32, p: &FastRma, peer: PeerId) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    let Live { qp, proto, .. } = ep.live.as_mut()?;
    let q = qp.native()?;
    let [lent, injected] = fast.adapter_rma;
    let most = if p.context.is_some() { lent } else { injected };
    if p.mem.len() > most {
        return None;
    }
    if !fast.direct {
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
    let key = u32::try_from(p.key).ok()?.into();
    let done = Completion {
        context: p.context.unwrap_or(0),
        len: p.mem.len(),
        flags: rma_flags(p.write),
        peer,
        report: reported(p.context.is_some() && fast.sent_to.is_some()),
        remote: RemoteAddr { addr: p.addr, key },
    };
    let how = (p.write, p.context.is_none());
    posted(q.rdma_short(done, p.mem, how, p.cq_data.map(|d| d as u32)))
}

/// The completion of a receive, from an unknown peer.
#[inline(always)]
fn received(d: &Completion, at: usize, c: &NativeCqe) -> Entry {
    let imm = c.imm();
    Entry {
        context: d.context,
        flags: u64::from(d.flags) | imm.map_or(0, |_| FI_REMOTE_CQ_DATA),
        len: c.bytes() as usize,
        buf: at,
        data: imm.unwrap_or(0).into(),
        tag: 0,
        src: FI_ADDR_NOTAVAIL,
    }
}

/// The sender of a message, as an address of the application's vector.
#[inline(never)]
fn source(q: &NativeQp, c: NativeCqe, av: Option<&Av>, peers: &mut Peers) -> fi_addr_t {
    let found = av.and_then(|av| peers.found(&q.source(&c)).map(|p| av.reverse(p)));
    found.unwrap_or(FI_ADDR_NOTAVAIL)
}

/// Whether there is nothing to do beside taking completions.
#[inline(always)]
fn calm(ep: &Ep) -> bool {
    match &ep.live {
        Some(Live { qp, waiting, .. }) => {
            waiting.is_empty() && qp.native_ref().is_some_and(NativeQp::calm)
        }
        None => false,
    }
}

/// The next entry of the adapter's completion queue.
enum Next {
    Nothing,
    /// The general poll has to handle it.
    Left,
    /// A completion that is not reported.
    Silent,
    /// One that went to `give`.
    Given,
}

#[inline(always)]
fn next<const NAMED: bool>(
    (ep, avs, peers, cntrs): (&mut Ep, &Slab<Av>, &mut Peers, &mut Slab<Cntr>),
    give: impl FnOnce(&Entry),
) -> Next {
    let fast = &ep.fast;
    let Some(qp) = ep.live.as_mut().and_then(|l| l.qp.native()) else {
        return Next::Left;
    };
    let (d, entry) = match qp.poll_entry() {
        PolledEntry::Nothing => return Next::Nothing,
        PolledEntry::Deferred => return Next::Left,
        PolledEntry::Sent(d) => (d, ended_entry(&d)),
        PolledEntry::Came(d, at, c) => {
            let mut e = received(&d, at, &c);
            if NAMED && fast.source {
                e.src = source(qp, c, avs.get(fast.av), peers);
            }
            (d, e)
        }
    };
    if fast.counts {
        ep.cntrs.count(cntrs, CntrKind::of(d.flags), entry.len);
    }
    if d.report != Report::Entry {
        return Next::Silent;
    }
    give(&entry);
    Next::Given
}

/// As [`super::poll`], from the adapter's queue.
#[inline(always)]
pub(super) fn poll<F: FnMut(usize, &Entry)>(
    (ep, avs, peers, cntrs): (&mut Ep, &Slab<Av>, &mut Peers, &mut Slab<Cntr>),
    mut out: ShmPoller<F>,
) -> Polled {
    let sent = ep.tx.map(|b| b.cq);
    let received = ep.fast.received_to;
    if !calm(ep) {
        return out.polled(false);
    }
    loop {
        let mut more = true;
        let give = |e: &Entry| {
            let to = if e.flags & FI_RECV != 0 {
                received
            } else {
                sent
            };
            more = out.give(to, *e);
        };
        match next::<true>((ep, avs, peers, cntrs), give) {
            Next::Nothing => return out.polled(true),
            Next::Left => return out.polled(false),
            Next::Silent => {}
            Next::Given if more => {}
            Next::Given => return out.polled(true),
        }
    }
}

/// As [`super::read`], of an endpoint that reports everything to queue `q`.
#[inline(always)]
pub(super) fn read<const NAMED: bool>(
    s: Readable,
    q: &mut Cq,
    count: usize,
    each: impl Fn(usize, &Entry) + Copy,
) -> Option<Result<usize>> {
    let Readable {
        ep,
        avs,
        peers,
        cntrs,
        ..
    } = s;
    if !calm(ep) {
        return None;
    }
    let n = match next::<NAMED>((ep, avs, peers, cntrs), |e| each(0, e)) {
        Next::Nothing => return q.missed(),
        Next::Left => return None,
        Next::Silent => 0,
        Next::Given => 1,
    };
    q.patience.found();
    Some(match n < count {
        true => read_more::<NAMED>((ep, avs, peers, cntrs), n, count, each),
        false => Ok(n),
    })
}

/// The rest of [`read`], which has found something.
#[inline(never)]
fn read_more<const NAMED: bool>(
    (ep, avs, peers, cntrs): (&mut Ep, &Slab<Av>, &mut Peers, &mut Slab<Cntr>),
    mut n: usize,
    count: usize,
    each: impl Fn(usize, &Entry),
) -> Result<usize> {
    while n < count {
        match next::<NAMED>((ep, avs, peers, cntrs), |e| each(n, e)) {
            Next::Nothing | Next::Left => break,
            Next::Silent => {}
            Next::Given => n += 1,
        }
    }
    match n {
        0 => Err(FI_EAGAIN),
        n => Ok(n),
    }
}
