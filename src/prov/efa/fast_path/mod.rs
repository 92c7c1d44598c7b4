//! The fast path: calls without flags of their own, which is what most are.
//!
//! A send writes its record into the ring of a peer on the same host, or its packet into the queue
//! of a real adapter; a receive is one entry of the receive queue; reading a completion queue
//! (`read`, and `poll` where there is more to look at) takes arriving messages straight into the
//! receives that they match: no operation and no protocol port is made. Reads and writes (`rma`)
//! are records and work requests in the same way. Whatever the fast path does not handle stays as
//! it was found, for `ops` and `progress`: [`FastPathConfig`] holds what an endpoint's settings
//! permit.

mod atomic;
mod direct;
mod long;
mod poll;
mod read;
mod rma;

use crate::prov::contract::{FastRecv, FastSend};
pub(crate) use atomic::atomic;
pub(crate) use poll::{poll, Polled};
pub(crate) use read::read;
use read::Readable;
pub(crate) use rma::rma;

use crate::core::Result;
use crate::proto::{PeerId, RecvEntry, ANY, COLLECTIVE_TAG};
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::{Ep, Kind, Live};
use crate::prov::efa::same_host::rendezvous::FIRST;
use crate::prov::efa::same_host::shm_rma;
use crate::prov::efa::same_host::{head_len, words_of};
use crate::prov::reports::completion::{ended_entry, reported, send_flags, CntrKind};
use crate::shm::{kind, RecordHeader};
use crate::transport::{Completion, RemoteAddr, Report, Verdict};
use crate::types::*;

/// What the fast path needs to know of an endpoint's settings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FastPathConfig {
    /// Whether sends take the fast path.
    sends: bool,
    /// Messages are the adapter's own work requests (efa-direct).
    direct: bool,
    /// The only CQ that this endpoint reports to, or `u32::MAX`.
    only_cq: u32,
    /// The CQ of received messages where messages are not the adapter's own, or `u32::MAX`.
    received_at: u32,
    /// A counter is bound to the endpoint.
    counts: bool,
    /// Longest message that goes to the adapter as one packet; `None`: not from here.
    packet: Option<usize>,
    /// Longest message, untagged and tagged, injected and not.
    most: [[usize; 2]; 2],
    /// Longest message of all, untagged and tagged: by rendezvous.
    longest: [usize; 2],
    /// The CQ that successful sends report to.
    sent_to: Option<u32>,
    /// Longest read, write and injected write through the ring; 0: none.
    rma: [usize; 3],
    /// Longest read or write of a real adapter, and injected write.
    adapter_rma: [usize; 2],
    /// Messages may have tags.
    tags: bool,
    receives: bool,
    /// Receives may name a source.
    directed: bool,
    /// Whether receives report success, and to which CQ.
    report: bool,
    received_to: Option<u32>,
    source: bool,
    av: u32,
}

impl Ep {
    /// Computes the configuration anew, after a setting has changed.
    pub(super) fn configure_fast_path(&mut self) {
        let reports =
            |b: Option<crate::prov::reports::Bound>, flags| crate::prov::reports::reports(b, flags);
        let native = self.live.as_ref().and_then(|l| l.qp.native_ref());
        let live = self.live.as_ref();
        let plain = live.is_some_and(|l| self.kind.uses_shm(&l.qp));
        let packets = native.is_some_and(|q| plain && q.sends_packets());
        let o = &self.opts;
        let most = |inject: usize, max: usize| [inject.min(max), FIRST.min(max)];
        let rma = |on: bool, max: usize| match on && plain && self.homogeneous {
            true => shm_rma::SHORT.min(o.max_rma_size).min(max),
            false => 0,
        };
        let adapter_rma = match self.caps & FI_RMA {
            0 => [0; 2],
            _ => [self.max_rdma.min(o.max_rma_size), o.inject_rma_size],
        };
        let direct = native.is_some_and(|q| q.shortens());
        let [tx, rx] = [self.tx, self.rx].map(|b| b.map(|b| b.cq));
        self.fast = FastPathConfig {
            adapter_rma,
            direct,
            only_cq: tx
                .or(rx)
                .filter(|q| direct && rx.is_none_or(|r| r == *q))
                .unwrap_or(u32::MAX),
            received_at: rx.filter(|_| plain && !direct).unwrap_or(u32::MAX),
            counts: self.cntrs.any(&CntrKind::ALL),
            rma: [
                rma(self.rdma_read, usize::MAX),
                rma(self.rdma_write, usize::MAX),
                rma(self.rdma_write, o.inject_rma_size),
            ],
            sends: plain && !self.confirms(),
            packet: live.filter(|_| packets).map(|l| l.proto.eager_most()),
            most: [
                most(o.inject_msg_size, o.max_msg_size),
                most(o.inject_tagged_size, o.max_tagged_size),
            ],
            longest: [o.max_msg_size, o.max_tagged_size],
            sent_to: self
                .tx
                .filter(|_| reports(self.tx, self.tx_flags))
                .map(|b| b.cq),
            tags: self.kind == Kind::Rdm,
            receives: plain && self.srx.is_none() && self.rx_flags & FI_MULTI_RECV == 0,
            directed: self.caps & FI_DIRECTED_RECV != 0,
            report: reports(self.rx, self.rx_flags),
            received_to: self.rx.map(|b| b.cq),
            source: self.caps & FI_SOURCE != 0,
            av: self.av.unwrap_or(u32::MAX),
        };
    }
}

/// Sends a message; `None`, and nothing done, when the general path has to carry it. Errors:
/// `FI_EAGAIN`.
#[inline(always)]
pub(crate) fn send(s: &mut State, id: u32, p: &FastSend) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    let [msg, tagged] = fast.most;
    let [injected, lent] = if p.tag.is_some() { tagged } else { msg };
    let most = if p.context.is_some() { lent } else { injected };
    if fast.direct {
        return direct::send(s, id, p, most);
    }
    let special = p.tag.is_some_and(|t| t & COLLECTIVE_TAG != 0 || !fast.tags);
    if !fast.sends || special || !ep.fenced.is_empty() {
        return None;
    }
    if p.data.len() > most {
        return long::send(s, id, p);
    }
    let peer = s.avs.get(fast.av)?.known(p.to)?;
    let live = ep.live.as_mut()?;
    let rings = match (&mut live.shm_ep, fast.packet) {
        (Some(h), None) => &mut h.tx,
        (Some(h), Some(_)) if !h.tx.uses_adapter(peer) => &mut h.tx,
        (_, Some(most)) if p.data.len() <= most => return send_packet(s, id, p, peer),
        _ => return None,
    };
    let (words, flags) = words_of(p.tag, p.cq_data);
    let what = RecordHeader {
        kind: kind::MESSAGE,
        flags,
        message: true,
    };
    match rings.send_short(peer, what, (words, head_len(flags) / 8), p.data) {
        Verdict::Unsupported => return None,
        Verdict::NoResources => return Some(Err(FI_EAGAIN)),
        Verdict::Done | Verdict::Queued => {}
    }
    ep.cntrs.count(&mut s.cntrs, CntrKind::Send, p.data.len());
    if let (Some(context), Some(q)) = (p.context, fast.sent_to) {
        if let Some(q) = s.cqs.get_mut(q) {
            q.push(ended_entry(&sent_completion(
                context,
                p,
                peer,
                Report::Entry,
            )));
        }
    }
    Some(Ok(()))
}

/// What is reported of a send.
#[inline(always)]
fn sent_completion(context: usize, p: &FastSend, peer: PeerId, report: Report) -> Completion {
    Completion {
        context,
        len: p.data.len(),
        flags: send_flags(p.tag.is_some()),
        peer,
        report,
        remote: RemoteAddr::default(),
    }
}

/// What became of a request that was handed to the adapter; `None`: it has to go another way.
#[inline(always)]
fn posted(v: Verdict) -> Option<Result<()>> {
    match v {
        Verdict::Done | Verdict::Queued => Some(Ok(())),
        Verdict::NoResources => Some(Err(FI_EAGAIN)),
        Verdict::Unsupported => None,
    }
}

/// As [`send`], a message of one packet, by the adapter.
#[inline]
fn send_packet(s: &mut State, id: u32, p: &FastSend, peer: PeerId) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let Live { qp, proto, .. } = ep.live.as_mut()?;
    let q = qp.native()?;
    let (head, len) = proto.eager_head(peer, p.tag, p.cq_data)?;
    let report = reported(p.context.is_some() && ep.fast.sent_to.is_some());
    let done = sent_completion(p.context.unwrap_or(0), p, peer, report);
    let sent = q.send_packet(done, (&head, len), p.data);
    if sent == Verdict::Queued {
        proto.eager_sent(peer);
    }
    posted(sent)
}

/// Posts a receive without flags of its own; `None`, and nothing done, when the general path has to
/// post it.
#[inline(always)]
pub(crate) fn recv(s: &mut State, id: u32, p: &FastRecv) -> Option<Result<()>> {
    let FastRecv {
        into,
        src,
        tag,
        context,
    } = *p;
    let ep = s.eps.get_mut(id)?;
    let fast = &ep.fast;
    if fast.direct {
        let q = ep.live.as_mut()?.qp.native()?;
        return match tag {
            None => direct::recv(q, fast, into, context),
            Some(_) => None,
        };
    }
    if !fast.receives || tag.is_some_and(|(t, _)| t & COLLECTIVE_TAG != 0 || !fast.tags) {
        return None;
    }
    let from = if src == FI_ADDR_UNSPEC || !fast.directed {
        ANY
    } else {
        s.avs.get(fast.av)?.known(src)?
    };
    let what = RecvEntry {
        context,
        into,
        report: fast.report,
        tagged: tag.is_some(),
    };
    let q = s.rxqs.get_mut(ep.rxq)?;
    q.post_short(from, tag, what).map(Ok)
}
