//! The short way of short messages between processes of one host, which is what most calls are.
//!
//! A send writes its record into the peer's ring, a receive is one entry of the receive queue, and reading a completion
//! queue takes records out of rings straight into the receives they match and the completions straight into the
//! reader's buffer: no operation is made, no port, no completion is kept. Whatever is not plain is left as it was found,
//! for `ops` and `progress` to deal with: [`Lane`] remembers what an endpoint's settings permit.

use super::access::{self, Memory};
use super::near::{
    ended_entry, head_len, head_of, send_flags, sent_entry, words_of, Head, MESSAGE,
};
use super::port::cntr_index;
use super::stream::FIRST;
use super::{Ep, Kind, Live};
use crate::core::slab::Slab;
use crate::core::Result;
use crate::device::any::Qp;
use crate::device::verbs::short::{Kept, Next, Seen as Verbs, Short};
use crate::device::{Device, QpAddr, Status};
use crate::hmem::Piece;
use crate::proto::{PeerId, Short as PlainRecv, ANY, COLLECTIVE_TAG};
use crate::prov::efa::cq::{Cq, Entry};
use crate::prov::efa::domain::State;
use crate::shm::{Hub, Note, Seen, Sent, Verdict, What};
use crate::types::*;
use crate::wire::{extra, Eager};

/// What the short way needs to know of an endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lane {
    /// Whether sends go this way.
    sends: bool,
    /// Messages are the adapter's own work requests.
    direct: bool,
    /// Messages that are one packet go to the adapter from here: so many bytes at most.
    packet: Option<usize>,
    /// Longest message, untagged and tagged, injected and not.
    most: [[usize; 2]; 2],
    /// Sends report success, and where.
    sent_to: Option<u32>,
    /// Longest read and write, injected write; 0: not this way.
    rma: [usize; 3],
    /// Messages may have tags.
    tags: bool,
    receives: bool,
    /// Receives may name a source.
    directed: bool,
    /// Receives report success, and where.
    report: bool,
    received_to: Option<u32>,
    source: bool,
    av: u32,
}

impl Ep {
    /// Looks at the settings again, one of which has changed.
    pub(super) fn choose_lane(&mut self) {
        let reports = |b: Option<super::Bound>, flags| super::ops::reports(b, flags);
        let soft = match &self.live {
            Some(l) => matches!(&l.qp, Qp::Soft(_)),
            None => false,
        };
        let plain = self.enabled()
            && match self.kind {
                Kind::Rdm => true,
                Kind::Direct => soft,
                Kind::Dgram => false,
            };
        let o = &self.opts;
        let most = |inject: usize, max: usize| [inject.min(max), FIRST.min(max)];
        let rma = |on: bool, max: usize| match on && plain && self.sure {
            true => access::SHORT.min(o.max_rma_size).min(max),
            false => 0,
        };
        self.lane = Lane {
            rma: [
                rma(self.rdma_read, usize::MAX),
                rma(self.rdma_write, usize::MAX),
                rma(self.rdma_write, o.inject_rma_size),
            ],
            sends: plain && !self.confirms(),
            direct: match &self.live {
                Some(l) => matches!(&l.qp, Qp::Verbs(q) if q.shortens()),
                None => false,
            },
            packet: match &self.live {
                Some(l) => match &l.qp {
                    Qp::Verbs(q) if plain && q.sends_packets() => Some(l.proto.eager_most()),
                    _ => None,
                },
                None => None,
            },
            most: [
                most(o.inject_msg_size, o.max_msg_size),
                most(o.inject_tagged_size, o.max_tagged_size),
            ],
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

/// A send without flags of its own.
#[derive(Clone, Copy, Debug)]
pub struct Plain {
    pub data: Piece,
    pub to: fi_addr_t,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    /// `None`: an injecting call, which reports no success.
    pub context: Option<usize>,
}

/// Sends a message; `None`, and nothing done, when it has to go another way. Errors: `FI_EAGAIN`.
#[inline(always)]
pub fn send(s: &mut State, id: u32, p: &Plain) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let lane = &ep.lane;
    let [msg, tagged] = lane.most;
    let [injected, lent] = if p.tag.is_some() { tagged } else { msg };
    let most = if p.context.is_some() { lent } else { injected };
    if lane.direct {
        return send_direct(s, id, p, most);
    }
    let special = p.tag.is_some_and(|t| t & COLLECTIVE_TAG != 0 || !lane.tags);
    if !lane.sends || special || p.data.len() > most || !ep.fenced.is_empty() {
        return None;
    }
    let peer = s.avs.get(lane.av)?.known(p.to)?;
    let live = ep.live.as_mut()?;
    let near = match (&mut live.hub, lane.packet) {
        (Some(h), None) => &mut h.outbox,
        (Some(h), Some(_)) if !h.outbox.leaves(peer) => &mut h.outbox,
        (_, Some(most)) if p.data.len() <= most => return send_packet(s, id, p, peer),
        _ => return None,
    };
    let (words, flags) = words_of(p.tag, p.cq_data);
    let what = What {
        kind: MESSAGE,
        flags,
        message: true,
    };
    match near.send_short(peer, what, (words, head_len(flags) / 8), p.data) {
        Sent::Elsewhere => return None,
        Sent::Busy => return Some(Err(FI_EAGAIN)),
        Sent::Done => {}
    }
    if let Some(c) = ep.cntrs[0].and_then(|c| s.cntrs.get_mut(c)) {
        c.count(p.data.len());
    }
    if let (Some(context), Some(q)) = (p.context, lane.sent_to) {
        if let Some(q) = s.cqs.get_mut(q) {
            q.push(sent_entry(context, p.tag.is_some(), p.data.len()));
        }
    }
    Some(Ok(()))
}

/// As [`send`], a message of one packet, by the adapter.
#[inline]
fn send_packet(s: &mut State, id: u32, p: &Plain, peer: PeerId) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let Live { qp, proto, .. } = ep.live.as_mut()?;
    let Qp::Verbs(q) = qp else { return None };
    let (head, len) = proto.eager_head(peer, p.tag, p.cq_data)?;
    let short = Short {
        context: p.context.unwrap_or(0),
        data: p.data,
        peer,
        report: p.context.is_some() && ep.lane.sent_to.is_some(),
        flags: send_flags(p.tag.is_some()),
        remote: (0, 0),
        tries: 0,
    };
    let peers = &s.peers;
    let sent = q.send_packet(short, (&head, len), || peers.addr(peer).copied())?;
    if sent.is_ok() {
        proto.eager_sent(peer);
    }
    Some(sent)
}

/// As [`send`], as a work request of the adapter.
#[inline]
fn send_direct(s: &mut State, id: u32, p: &Plain, most: usize) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    if p.tag.is_some() || p.data.len() > most || !ep.fenced.is_empty() {
        return None;
    }
    let peer = s.avs.get(ep.lane.av)?.known(p.to)?;
    let Qp::Verbs(q) = &mut ep.live.as_mut()?.qp else {
        return None;
    };
    let short = Short {
        context: p.context.unwrap_or(0),
        data: p.data,
        peer,
        report: p.context.is_some() && ep.lane.sent_to.is_some(),
        flags: FI_SEND | FI_MSG,
        remote: (0, 0),
        tries: 0,
    };
    let peers = &s.peers;
    q.send_short(short, p.cq_data.map(|d| d as u32), || {
        peers.addr(peer).copied()
    })
}

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
                super::progress(s, id);
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

/// Posts a receive without flags of its own; `None`, and nothing done, when it takes more than that.
#[inline(always)]
pub fn recv(
    s: &mut State,
    id: u32,
    into: Piece,
    src: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: usize,
) -> Option<Result<()>> {
    let ep = s.eps.get_mut(id)?;
    let lane = &ep.lane;
    if lane.direct {
        let Qp::Verbs(q) = &mut ep.live.as_mut()?.qp else {
            return None;
        };
        let short = Short {
            context,
            data: into,
            peer: ANY,
            report: lane.report,
            flags: FI_RECV | FI_MSG,
            remote: (0, 0),
            tries: 0,
        };
        return match tag {
            None => q.recv_short(short),
            Some(_) => None,
        };
    }
    if !lane.receives || tag.is_some_and(|(t, _)| t & COLLECTIVE_TAG != 0 || !lane.tags) {
        return None;
    }
    let from = if src == FI_ADDR_UNSPEC || !lane.directed {
        ANY
    } else {
        s.avs.get(lane.av)?.known(src)?
    };
    let what = PlainRecv {
        context,
        into,
        report: lane.report,
        tagged: tag.is_some(),
    };
    let q = s.rxqs.get_mut(ep.rxq)?;
    q.post_short(from, tag, what).map(Ok)
}

/// The completion of a plain receive.
#[inline(always)]
fn received(
    r: &PlainRecv,
    len: usize,
    (tag, cq_data): (Option<u64>, Option<u64>),
    src: fi_addr_t,
) -> Entry {
    let kind = if r.tagged { FI_TAGGED } else { FI_MSG };
    Entry {
        context: r.context,
        flags: FI_RECV | kind | cq_data.map_or(0, |_| FI_REMOTE_CQ_DATA),
        len,
        buf: r.into.addr(),
        data: cq_data.unwrap_or(0),
        tag: tag.unwrap_or(0),
        src,
    }
}

/// What [`poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// So many completions, and nothing is left to do.
    All(usize),
    /// So many, and there may be something for `progress`.
    More(usize),
}

/// Where the completions of a poll go.
struct Reader<'a, F> {
    /// The queue that is being read, which is empty, and the others.
    cq: u32,
    cqs: &'a mut Slab<Cq>,
    /// So many at most, and so many so far.
    count: usize,
    n: usize,
    each: F,
}

impl<F: FnMut(usize, &Entry)> Reader<'_, F> {
    /// Hands a completion to the caller, or keeps it in the queue it is for; whether there is room for another.
    #[inline(always)]
    fn give(&mut self, to: Option<u32>, e: Entry) -> bool {
        if to != Some(self.cq) {
            if let Some(q) = to.and_then(|q| self.cqs.get_mut(q)) {
                q.push(e);
            }
            return true;
        }
        (self.each)(self.n, &e);
        self.n += 1;
        self.n < self.count
    }
}

/// Looks for messages to an endpoint that need nothing but their receives. Up to `count` completions for queue `cq`,
/// which must be empty, go to `each`; those for another are kept there.
#[inline(always)]
pub fn poll(
    s: &mut State,
    id: u32,
    cq: u32,
    count: usize,
    each: impl FnMut(usize, &Entry),
) -> Polled {
    let State {
        eps,
        rxqs,
        avs,
        cntrs,
        cqs,
        peers,
        triggers,
        colls,
        dev,
        table,
        mr_cntrs,
        ..
    } = s;
    let Some(ep) = eps.get_mut(id) else {
        return Polled::All(0);
    };
    let lane = ep.lane;
    let (Some(live), Some(rq)) = (&mut ep.live, rxqs.get_mut(ep.rxq)) else {
        return Polled::All(0);
    };
    let waits = ep.holding || !ep.fenced.is_empty() || !triggers.is_empty() || !colls.idle();
    // Accesses to our memory that somebody counts are for `progress`.
    let counted = ep.cntrs[4].is_some() || ep.cntrs[5].is_some() || !mr_cntrs.is_empty();
    if waits || !live.idle() {
        return Polled::More(0);
    }
    let rests = !lane.direct && live.adapter_rests();
    let looks = lane.packet.is_some() && !rests;
    if !(lane.direct || looks || rests) {
        return Polled::More(0);
    }
    let av = avs.get(lane.av).filter(|_| lane.source);
    let mut count_at = |at: usize, len| {
        let c = ep.cntrs.get(at).copied().flatten();
        if let Some(c) = c.and_then(|c| cntrs.get_mut(c)) {
            c.count(len);
        }
    };
    let mut out = Reader {
        cq,
        cqs,
        count,
        n: 0,
        each,
    };
    let all = match (&mut live.qp, &mut live.hub) {
        (Qp::Verbs(q), _) if lane.direct => q.glance(|d| {
            let s = d.short;
            let entry = match &d.taken {
                None => ended_entry(s.context, s.flags, s.data.len()),
                Some(t) => Entry {
                    context: s.context,
                    flags: FI_RECV | FI_MSG | t.imm.map_or(0, |_| FI_REMOTE_CQ_DATA),
                    len: t.len as usize,
                    buf: s.data.addr(),
                    data: t.imm.unwrap_or(0).into(),
                    tag: 0,
                    src: av
                        .and_then(|av| peers.found(&t.from).map(|p| av.reverse(p)))
                        .unwrap_or(FI_ADDR_NOTAVAIL),
                },
            };
            let (at, to) = match d.taken {
                Some(_) => (1, lane.received_to),
                None => (cntr_index(s.flags), lane.sent_to),
            };
            count_at(at, entry.len);
            if !s.report || out.give(to, entry) {
                Next::Another
            } else {
                Next::Enough
            }
        }),
        (Qp::Verbs(q), _) if looks => {
            live.left_out = 0;
            let proto = &mut live.proto;
            let name = |a: &QpAddr| Some(peers.of(a));
            let (all, some) = q.look(name, |seen| {
                let (to, report, entry) = match seen {
                    Verbs::Sent(s) => {
                        count_at(cntr_index(s.flags), s.data.len());
                        let e = ended_entry(s.context, s.flags, s.data.len());
                        (lane.sent_to, s.report, e)
                    }
                    Verbs::Packet(from, bytes) => {
                        let plain = |e: &Eager| e.tag.is_none_or(|t| t & COLLECTIVE_TAG == 0);
                        let head = proto.eager_in(from, bytes).filter(|(e, _)| plain(e));
                        let Some((e, at)) = head else {
                            return Kept::Left;
                        };
                        let data = bytes.get(at..).unwrap_or(&[]);
                        let Some(r) = rq.take_short(from, e.tag, data.len()) else {
                            return Kept::Left;
                        };
                        proto.eager_taken(from);
                        r.into.store(data);
                        count_at(1, data.len());
                        let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
                        let entry = received(&r, data.len(), (e.tag, e.cq_data), src);
                        (lane.received_to, r.report, entry)
                    }
                };
                if !report || out.give(to, entry) {
                    Kept::Over
                } else {
                    Kept::Last
                }
            });
            live.lull = if some { 0 } else { live.lull + 1 };
            let quiet = |h: &mut Hub| !h.outbox.owes() && h.inbox.quiet();
            all && live.hub.as_mut().is_none_or(quiet)
        }
        (_, None) => return Polled::All(0),
        (_, Some(hub)) => {
            if hub.outbox.owes() {
                let to = ep.tx.map(|b| b.cq);
                let all = hub.outbox.reap(|_, e| {
                    let special = e.status != Status::Ok || e.note.op.is_some();
                    if special || out.n >= out.count {
                        return false;
                    }
                    count_at(cntr_index(e.note.flags), e.note.len);
                    if e.note.report {
                        out.give(to, ended_entry(e.note.context, e.note.flags, e.note.len));
                    }
                    true
                });
                if out.n >= out.count {
                    return Polled::All(out.n);
                }
                if !all {
                    return Polled::More(out.n);
                }
            }
            let scratch = &mut live.nearby.accesses.scratch;
            let memory = Memory {
                dev,
                table: table.as_deref(),
            };
            let seen = hub.inbox.glance(|from, record| {
                if access::is(record) && !counted {
                    let did = access::serve(memory, record, scratch);
                    let Some((data, d)) = did.and_then(|d| Some((d.data?, d))) else {
                        return Verdict::Taken;
                    };
                    let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
                    return match out.give(lane.received_to, access::told(data, d.len, src)) {
                        true => Verdict::Taken,
                        false => Verdict::Last,
                    };
                }
                let head = (record.kind == MESSAGE).then(|| head_of(record)).flatten();
                let plain = |h: &Head| h.tag.is_none_or(|t| t & COLLECTIVE_TAG == 0);
                let Some(head) = head.filter(plain) else {
                    return Verdict::Left;
                };
                let len = record.len - head.bytes;
                let Some(r) = rq.take_short(from, head.tag, len) else {
                    return Verdict::Left;
                };
                record.copy_piece(head.bytes, r.into);
                count_at(1, len);
                let src = av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from));
                let entry = received(&r, len, (head.tag, head.cq_data), src);
                if !r.report || out.give(lane.received_to, entry) {
                    Verdict::Taken
                } else {
                    Verdict::Last
                }
            });
            seen == Seen::All
        }
    };
    if all {
        Polled::All(out.n)
    } else {
        Polled::More(out.n)
    }
}
