//! The state of a domain that the data path uses, and the reports of operations that end.

use super::bursts::Bursts;
use super::conn::{Conn, RegionKeys};
use super::ep::{TcpEp, TcpSrx};
use super::peers::{TcpAv, TcpPeers, UNKNOWN_PEER};
use super::recvq::{RecvPlace, SavedMsg, TcpRecv, TcpRecvQueue};
use crate::core::slab::Slab;
use crate::core::{params, Errno, Result};
use crate::device::mem_table::MemTable;
use crate::device::poller::{Poller, Ready};
use crate::proto::PeerId;
use crate::prov::contract::{Entry, ErrEntry};
use crate::prov::reports::cntr::Cntr;
use crate::prov::reports::completion::{ended_entry, CntrKind};
use crate::prov::reports::cq::Cq;
use crate::prov::reports::endpoint::{push_cancelled, remote_write_entry};
use crate::prov::reports::PolledObject;
use crate::transport::{Completion, Report};
use crate::types::*;
use std::time::Instant;

/// See the module text.
pub(crate) struct TcpState {
    pub poller: Poller,
    pub eps: Slab<TcpEp>,
    pub cqs: Slab<Cq>,
    pub cntrs: Slab<Cntr>,
    pub avs: Slab<TcpAv>,
    pub srxs: Slab<TcpSrx>,
    /// Receive queues of endpoints and shared receive contexts.
    pub rxqs: Slab<TcpRecvQueue>,
    /// Posted receives, and those that messages come into.
    pub recvs: Slab<TcpRecv>,
    /// Messages without a receive.
    pub saved: Slab<SavedMsg>,
    pub conns: Slab<Conn>,
    pub peers: TcpPeers,
    /// Registered memory.
    pub mem: MemTable,
    /// Counters bound to memory regions: key, counter, kinds of access (fi_mr_bind(3)).
    pub mr_cntrs: Vec<(u64, u32, u64)>,
    /// Connections that have a deadline: they are being made.
    pub making: Vec<u32>,
    /// Endpoints whose listener is not looked at until then: no connection could be taken in.
    pub paused_listeners: Vec<(u32, Instant)>,
    /// Receive buffer of all connections, for bytes that do not go straight to their place.
    pub buf: Vec<u8>,
    pub ready: Vec<Ready>,
    /// The connection that received last.
    pub last_active: u32,
    /// Calls since it has last had bytes.
    pub misses: u32,
    /// Receives got messages that had come before them, since all sockets were polled.
    pub delivered: bool,
    /// Messages left in their sockets for want of memory, and when they are tried again.
    pub starved: Vec<u32>,
    pub retake_at: u64,
    /// Bytes of messages without a receive that each receive queue keeps (FI_TCP_SAVED_TOTAL).
    pub saved_total: usize,
    /// Connections that wait for room in their sockets.
    pub full: u32,
    /// Calls of `progress` so far.
    pub turns: u32,
    /// Whose read made progress last, and when it became another's.
    pub reader: Option<PolledObject>,
    pub progressed_at: u64,
    pub bursts: Bursts,
}

/// No connection.
pub(crate) const NO_CONN: u32 = u32::MAX;
/// Bytes of the shared receive buffer: what comes this way is copied once more.
const BUFFER: usize = 16 << 10;

/// An operation of the transmit side in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxOp {
    pub ep: u32,
    /// What is reported of it.
    pub done: Completion,
    /// It ends when the peer has acknowledged it.
    pub confirmed: bool,
    /// An inject call, which has no completion: its failure is counted and logged.
    pub silent: bool,
}

/// The fields of a receive's completion that come from its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MsgInfo {
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub len: u64,
}

/// The reason of a failure: positive `FI_E*`, and a text.
pub(crate) type FailReason = (Errno, String);

impl TcpState {
    /// Wakes callers that are blocked on the queues and counters of an endpoint: how long they may
    /// sleep has changed.
    #[cold]
    pub(crate) fn wake_sleepers(&mut self, ep: u32) {
        let Some(e) = self.eps.get(ep) else { return };
        let all = (&mut self.cqs, &mut self.cntrs);
        crate::prov::reports::wake_sleepers(all, [e.tx, e.rx], &e.cntrs);
    }

    pub(crate) fn new(poller: Poller, mem: MemTable, saved_total: usize) -> TcpState {
        TcpState {
            poller,
            misses: 0,
            delivered: false,
            starved: Vec::new(),
            retake_at: 0,
            saved_total,
            eps: Slab::default(),
            cqs: Slab::default(),
            cntrs: Slab::default(),
            avs: Slab::default(),
            srxs: Slab::default(),
            rxqs: Slab::default(),
            recvs: Slab::with_capacity(256),
            saved: Slab::default(),
            conns: Slab::default(),
            peers: TcpPeers::default(),
            mem,
            mr_cntrs: Vec::new(),
            making: Vec::new(),
            paused_listeners: Vec::new(),
            buf: vec![0; BUFFER],
            ready: Vec::with_capacity(crate::device::poller::READY_MAX),
            last_active: NO_CONN,
            full: 0,
            turns: 0,
            reader: None,
            progressed_at: 0,
            bursts: Bursts::new(params::tcp().nodelay),
        }
    }

    /// Reports an operation of the transmit side that has succeeded.
    #[inline]
    pub(crate) fn tx_done(&mut self, op: &TxOp) {
        if let Some(ep) = self.eps.get(op.ep) {
            let done = &op.done;
            ep.cntrs
                .count(&mut self.cntrs, CntrKind::of(done.flags), done.len);
            if done.report == Report::Entry {
                if let Some(cq) = ep.tx.and_then(|b| self.cqs.get_mut(b.cq)) {
                    cq.push(ended_entry(done));
                }
            }
        }
    }

    /// Reports an operation of the transmit side that has failed.
    pub(crate) fn tx_failed(&mut self, op: &TxOp, why: &FailReason) {
        if let Some(ep) = self.eps.get(op.ep) {
            let kind = CntrKind::of(op.done.flags);
            ep.cntrs.count_error(&mut self.cntrs, kind);
            let binding = ep.tx.filter(|_| !op.silent);
            if let Some(cq) = binding.and_then(|b| self.cqs.get_mut(b.cq)) {
                cq.push_error(ErrEntry {
                    entry: Entry {
                        len: 0,
                        ..ended_entry(&op.done)
                    },
                    err: why.0,
                    prov_errno: why.0,
                    text: why.1.clone(),
                    ..ErrEntry::default()
                });
            }
        }
    }

    /// The peer of an address, at an endpoint. `FI_ENOAV` without an address vector, `FI_EINVAL`
    /// for an unknown address.
    #[inline]
    pub(crate) fn peer_of(&self, ep: &TcpEp, addr: fi_addr_t) -> Result<PeerId> {
        let av = ep.av.and_then(|a| self.avs.get(a)).ok_or(FI_ENOAV)?;
        av.peer(addr)
    }

    /// The application's name for a peer, at an endpoint.
    pub(crate) fn source(&self, ep: &TcpEp, from: PeerId) -> fi_addr_t {
        if from == UNKNOWN_PEER || ep.caps & FI_SOURCE == 0 {
            return FI_ADDR_NOTAVAIL;
        }
        let av = ep.av.and_then(|a| self.avs.get(a));
        av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(from))
    }

    /// Reports a message to endpoint `id` that is in its place, or has failed on the way there.
    #[inline]
    pub(crate) fn recv_done(
        &mut self,
        id: u32,
        p: &RecvPlace,
        m: &MsgInfo,
        why: Option<FailReason>,
    ) {
        let Some(r) = self.recvs.get_mut(p.recv) else {
            return;
        };
        r.live = r.live.saturating_sub(1);
        let last = r.multi.is_none() || r.closed && r.live == 0;
        let mut flags = r.flags;
        if last && r.multi.is_some() {
            flags |= FI_MULTI_RECV;
        }
        let (context, report) = (r.context, r.report);
        if last {
            self.recvs.free(p.recv);
        }
        let over = m.len.saturating_sub(p.mem.len() as u64);
        let why = why.or_else(|| {
            (over > 0).then(|| {
                let text = format!(
                    "the message has {} bytes, the receive buffer {}",
                    m.len,
                    p.mem.len()
                );
                (FI_ETRUNC, text)
            })
        });
        let Some(ep) = self.eps.get(id) else { return };
        let entry = Entry {
            context,
            flags: flags
                | if m.cq_data.is_some() {
                    FI_REMOTE_CQ_DATA
                } else {
                    0
                },
            len: (m.len - over) as usize,
            buf: p.at,
            data: m.cq_data.unwrap_or(0),
            tag: m.tag.unwrap_or(0),
            src: self.source(ep, m.from),
        };
        let cq = ep.rx.and_then(|b| self.cqs.get_mut(b.cq));
        match why {
            None => {
                ep.cntrs.count(&mut self.cntrs, CntrKind::Recv, entry.len);
                // The release of a multi-receive buffer is always reported.
                if let Some(cq) = cq.filter(|_| report || flags & FI_MULTI_RECV != 0) {
                    cq.push(entry);
                }
            }
            Some((err, text)) => {
                ep.cntrs.count_error(&mut self.cntrs, CntrKind::Recv);
                if let Some(cq) = cq {
                    cq.push_error(ErrEntry {
                        entry,
                        olen: over as usize,
                        err,
                        prov_errno: err,
                        text,
                    });
                }
            }
        }
    }

    /// Reports a posted receive, which is in no queue any more, as cancelled.
    pub(crate) fn recv_cancelled(&mut self, ep: u32, r: &TcpRecv, text: &str) {
        let Some(ep) = self.eps.get(ep) else { return };
        let multi = if r.multi.is_some() { FI_MULTI_RECV } else { 0 };
        let entry = Entry {
            context: r.context,
            flags: r.flags | multi,
            src: FI_ADDR_NOTAVAIL,
            ..Entry::default()
        };
        let cq = ep.rx.and_then(|b| self.cqs.get_mut(b.cq));
        ep.cntrs.count_error(&mut self.cntrs, CntrKind::Recv);
        push_cancelled(cq, entry, text);
    }

    /// Reports that a peer has read (or written) registered memory.
    pub(crate) fn remote_done(&mut self, id: u32, write: bool, m: &MsgInfo, keys: &RegionKeys) {
        let kind = CntrKind::remote(write);
        for (key, cntr, kinds) in &self.mr_cntrs {
            if keys.contains(&Some(*key)) && kinds & kind.flag() != 0 {
                if let Some(c) = self.cntrs.get_mut(*cntr) {
                    c.count(m.len as usize);
                }
            }
        }
        let Some(ep) = self.eps.get(id) else { return };
        ep.cntrs.count(&mut self.cntrs, kind, m.len as usize);
        let Some(data) = m.cq_data else { return };
        let entry = remote_write_entry(data, m.len as usize, self.source(ep, m.from));
        if let Some(cq) = ep.rx.and_then(|b| self.cqs.get_mut(b.cq)) {
            cq.push(entry);
        }
    }
}
