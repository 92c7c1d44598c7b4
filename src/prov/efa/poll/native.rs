//! Polling an adapter whose queues are mapped, and whose completions are those of the application's
//! own requests (fabric `efa-direct`): a completion goes from the adapter's queue to the reader's
//! buffer.

use super::read::Readable;
use super::{Polled, ShmPoller};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::{NativeCqe, NativeQp, PolledEntry};
use crate::prov::contract::Entry;
use crate::prov::efa::av::Av;
use crate::prov::efa::endpoint::{Ep, Live};
use crate::prov::efa::peers::Peers;
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::transport::{Completion, Report};
use crate::types::*;

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
    let config = &ep.config;
    let Some(qp) = ep.live.as_mut().and_then(|l| l.qp.native()) else {
        return Next::Left;
    };
    let (d, entry) = match qp.poll_entry() {
        PolledEntry::Nothing => return Next::Nothing,
        PolledEntry::Deferred => return Next::Left,
        PolledEntry::Sent(d) => (d, ended_entry(&d)),
        PolledEntry::Came(d, at, c) => {
            let mut e = received(&d, at, &c);
            if NAMED && config.source {
                e.src = source(qp, c, avs.get(config.av), peers);
            }
            (d, e)
        }
    };
    if config.counts {
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
    let received = ep.config.rx_cq;
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
