//! The short way of requests without flags, with the queues at hand: an application's own message
//! from one piece of registered memory, or a packet of the library in its slot. A request is a few
//! words in its slot until its completion is taken, straight from the adapter's queue; a packet
//! that has come is looked at in its place.

use super::cqe::{Cqe, CqeKind};
use super::pool::Pool;
use super::qp::{sender, Mode, VerbsQp};
use super::rings::{self, Inline, SendWqe};
use super::sys::*;
use crate::core::Result;
use crate::device::request::{PolledCqe, Redelivery, TxDone, TxRequest};
use crate::device::QpAddr;
use crate::hmem::{copy_bytes, Piece};
use crate::types::FI_EAGAIN;

/// A request that may have to be sent again, beside what its [`TxRequest`] says.
#[derive(Clone, Copy, Default)]
pub(super) struct RetryState {
    op: u8,
    imm: Option<u32>,
    local: ibv_sge,
}

/// A peer, as the adapter's requests name it.
#[derive(Clone, Copy, Default)]
pub(super) struct RemoteQp {
    ah: u16,
    qpn: u16,
    qkey: u32,
    known: bool,
}

impl RemoteQp {
    /// The request in `slot`, to this peer.
    #[inline]
    fn request(&self, slot: u16, a: &RetryState, s: &TxRequest) -> SendWqe<'static> {
        SendWqe {
            op: a.op,
            slot,
            to_qpn: self.qpn,
            qkey: self.qkey,
            ah: self.ah,
            imm: a.imm,
            local: a.local,
            more: None,
            inline: None,
            remote: (s.raddr, s.key),
        }
    }
}

/// What [`VerbsQp::poll_entry`] finds.
pub enum PolledEntry {
    Nothing,
    /// The general poll has to handle it.
    Deferred,
    /// A request has ended.
    Sent(TxDone),
    /// A message has come into a receive at this address, with what the adapter says of it.
    Came(TxDone, usize, Cqe),
}

/// As many slots have memory as requests were under way at once: for one that has none there will
/// be, and this request goes the long way.
#[cold]
fn lengthen(
    slots: &mut Vec<Option<TxRequest>>,
    free: &mut Vec<u16>,
    slot: u16,
) -> Option<Result<()>> {
    free.push(slot);
    slots.resize((usize::from(slot) + 1).next_power_of_two().max(64), None);
    None
}

/// The request in `slot` is over, with its address; `None` when there is none of this kind.
#[inline(always)]
fn over(
    slots: &mut [Option<TxRequest>],
    free: &mut Vec<u16>,
    slot: u16,
) -> Option<(TxDone, usize)> {
    let at = slots.get_mut(usize::from(slot))?;
    let s = at.as_ref()?;
    let done = TxDone {
        context: s.context,
        len: s.data.len(),
        flags: s.flags,
        report: s.report,
    };
    let addr = s.data.addr();
    *at = None;
    free.push(slot);
    Some((done, addr))
}

/// A piece of registered memory.
#[inline(always)]
fn piece(p: &Piece, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr: p.addr() as u64,
        length: p.len() as u32,
        lkey,
    }
}

impl VerbsQp {
    /// Whether requests can go this way.
    #[inline]
    pub fn shortens(&self) -> bool {
        self.rings.is_some() && self.mode == Mode::Direct
    }

    /// Sends a message; `None`, and nothing done, when it has to go another way. `addr` tells the
    /// address of the peer, once. Errors: `FI_EAGAIN`.
    #[inline(always)]
    pub fn send_short(
        &mut self,
        s: TxRequest,
        imm: Option<u32>,
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let way = self.way_to(s.peer, addr)?;
        let (addr, len) = (s.data.addr(), s.data.len());
        if len <= self.inline {
            return self.inlined(s, way, rings::SEND, imm);
        }
        let lkey = self.dev.memory.lkey(&mut self.found, addr, len, false)?;
        let local = piece(&s.data, lkey);
        self.submit_short(s, way, (rings::SEND, imm), None, |_, _| local)
    }

    /// Sends or writes bytes that go with the work request.
    #[inline(always)]
    fn inlined(
        &mut self,
        s: TxRequest,
        way: RemoteQp,
        op: u8,
        imm: Option<u32>,
    ) -> Option<Result<()>> {
        let (from, len) = (s.data.addr() as *const u8, s.data.len());
        if len > Inline::MOST {
            return None;
        }
        let mut bytes = Inline::default();
        // SAFETY: the piece is readable (see `Piece::new`), and there is room for it.
        unsafe { bytes.fill(len, |to| copy_bytes(from, to, len)) };
        let local = ibv_sge::default();
        self.submit_short(s, way, (op, imm), Some(&bytes), |_, _| local)
    }

    /// Sends a packet: `head`, of which `len` bytes count, and the piece behind it. Answers as
    /// [`VerbsQp::send_short`].
    #[inline]
    pub fn send_packet<const N: usize>(
        &mut self,
        s: TxRequest,
        (head, len): (&[u8; N], usize),
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let way = self.way_to(s.peer, addr)?;
        let bytes = len + s.data.len();
        if bytes > self.tx.room() {
            return None;
        }
        self.submit_short(s, way, (rings::SEND, None), None, |tx, slot| {
            tx.put(slot, 0, head);
            tx.put_piece(slot, len, s.data);
            tx.sge(slot, bytes)
        })
    }

    /// Reads or writes a peer's memory. `copied`: the piece is the caller's again when this
    /// returns. Answers as [`VerbsQp::send_short`].
    #[inline(always)]
    pub fn rdma_short(
        &mut self,
        s: TxRequest,
        (write, copied): (bool, bool),
        imm: Option<u32>,
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let way = self.way_to(s.peer, addr)?;
        let op = if write { rings::WRITE } else { rings::READ };
        let (addr, len) = (s.data.addr(), s.data.len());
        let lkey = match copied {
            true => None,
            false => self.dev.memory.lkey(&mut self.found, addr, len, !write),
        };
        let Some(lkey) = lkey else {
            return match write {
                true if self.wide && len <= self.inline => self.write_along(s, way, imm),
                true => self.write_copied(s, way, imm),
                false => None,
            };
        };
        let local = piece(&s.data, lkey);
        self.submit_short(s, way, (op, imm), None, |_, _| local)
    }

    #[inline(never)]
    fn write_along(&mut self, s: TxRequest, way: RemoteQp, imm: Option<u32>) -> Option<Result<()>> {
        self.inlined(s, way, rings::WRITE, imm)
    }

    /// Writes what fits into the slot of a packet.
    #[inline(never)]
    fn write_copied(
        &mut self,
        s: TxRequest,
        way: RemoteQp,
        imm: Option<u32>,
    ) -> Option<Result<()>> {
        if self.rx.is_none() || s.data.len() > self.tx.room() {
            return None;
        }
        self.submit_short(s, way, (rings::WRITE, imm), None, |tx, slot| {
            tx.put_piece(slot, 0, s.data);
            tx.sge(slot, s.data.len())
        })
    }

    /// Hands a request over: `inline` goes with it, or what `place` says, which may put it into the
    /// packet of its slot.
    #[inline(always)]
    fn submit_short(
        &mut self,
        s: TxRequest,
        way: RemoteQp,
        (op, imm): (u8, Option<u32>),
        inline: Option<&Inline>,
        place: impl FnOnce(&mut Pool, u16) -> ibv_sge,
    ) -> Option<Result<()>> {
        let rings = self.rings.as_mut()?;
        let Some(slot) = self.free.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        let Some(to) = self.shorts.get_mut(usize::from(slot)) else {
            return lengthen(&mut self.shorts, &mut self.free, slot);
        };
        *to = Some(s);
        let local = place(&mut self.tx, slot);
        let a = RetryState { op, imm, local };
        if let Some(to) = self.kept.get_mut(usize::from(slot)) {
            *to = a;
        }
        rings.send_now(&SendWqe {
            inline,
            ..way.request(slot, &a, &s)
        });
        Some(Ok(()))
    }

    /// Its peer was not ready for it.
    #[cold]
    pub(super) fn send_short_again(&mut self, slot: u16) {
        let at = usize::from(slot);
        let short = self.shorts.get(at).copied().flatten();
        let way = short.and_then(|s| self.ways.get(s.peer as usize));
        let (Some(way), Some(s), Some(a)) = (way, short, self.kept.get(at)) else {
            return;
        };
        if let Some(rings) = &mut self.rings {
            rings.send(&way.request(slot, a, &s));
        }
    }

    /// Whether packets can go this way.
    #[inline]
    pub fn sends_packets(&self) -> bool {
        self.rings.is_some() && self.rx.is_some()
    }

    /// Takes completions, as far as `each` can deal with them. `false` when there is something that
    /// takes a poll. The second: whether there was anything.
    #[inline(always)]
    fn completions(
        &mut self,
        mut each: impl FnMut(&mut Self, &Cqe) -> Option<Redelivery>,
    ) -> (bool, bool) {
        if !self.calm() {
            return (false, false);
        }
        let mut some = false;
        loop {
            let Some(rings) = self.rings.as_mut() else {
                return (false, some);
            };
            let Some(c) = rings.next() else {
                return (true, some);
            };
            some = true;
            match each(self, &c) {
                Some(Redelivery::Over) => {}
                Some(Redelivery::Last) => return (true, true),
                Some(Redelivery::Deferred) | None => {
                    self.pending.push(c.wc(super::qp::RECV));
                    return (false, true);
                }
            }
        }
    }

    /// The request of a completion of a send is over, if it went this way.
    #[inline(always)]
    fn sent(
        &mut self,
        slot: u16,
        each: impl FnOnce(&TxRequest) -> Redelivery,
    ) -> Option<Redelivery> {
        let at = self.shorts.get_mut(usize::from(slot))?;
        let kept = each(at.as_ref()?);
        *at = None;
        self.free.push(slot);
        Some(kept)
    }

    /// Takes completions of packets; `name` finds the owner's number of a peer, which is asked for
    /// once. Answers as `completions`.
    #[inline]
    pub fn poll_packets(
        &mut self,
        mut name: impl FnMut(&QpAddr) -> Option<u32>,
        mut each: impl FnMut(PolledCqe) -> Redelivery,
    ) -> (bool, bool) {
        let seen = self.completions(|q, c| match c.sent() {
            _ if !c.well() => None,
            true => q.sent(c.slot(), |s| each(PolledCqe::Sent(s))),
            false => q.packet(c, &mut name, &mut each),
        });
        self.refill_some();
        seen
    }

    /// `None`: it takes a poll.
    #[inline]
    fn packet(
        &mut self,
        c: &Cqe,
        name: &mut impl FnMut(&QpAddr) -> Option<u32>,
        each: &mut impl FnMut(PolledCqe) -> Redelivery,
    ) -> Option<Redelivery> {
        let from = c.from();
        let peer = match self.names.get(&from) {
            Some(p) => *p,
            None => {
                let who = sender(&self.senders, &self.dev, from);
                let p = Some(who).filter(|w| w.qkey != 0).and_then(|w| name(&w))?;
                self.names.insert(from, p);
                p
            }
        };
        let bytes = self.rx.as_ref()?.bytes(c.slot(), c.bytes() as usize);
        let kept = each(PolledCqe::Packet(peer, bytes));
        if kept != Redelivery::Deferred {
            self.empty.push(c.slot());
        }
        Some(kept)
    }

    /// Whether a request of this kind to a peer of the owner's is not over.
    pub fn busy_with(&self, peer: u32) -> bool {
        self.shorts.iter().flatten().any(|s| s.peer == peer)
    }

    /// The way to a peer of the owner's, whose address `addr` tells once.
    #[inline(always)]
    fn way_to(&mut self, peer: u32, addr: impl FnOnce() -> Option<QpAddr>) -> Option<RemoteQp> {
        let at = peer as usize;
        if !self.ways.get(at).is_some_and(|w| w.known) {
            self.way(at, addr()?)?;
        }
        self.ways.get(at).copied()
    }

    #[cold]
    fn way(&mut self, at: usize, addr: QpAddr) -> Option<()> {
        let h = self.route(&addr).ok()?;
        if self.ways.len() <= at {
            self.ways.resize(at + 1, RemoteQp::default());
        }
        let w = self.ways.get_mut(at)?;
        *w = RemoteQp {
            ah: h.number,
            qpn: addr.qpn,
            qkey: addr.qkey,
            known: true,
        };
        if self.who.len() <= at {
            self.who.resize(at + 1, QpAddr::default());
        }
        if let Some(to) = self.who.get_mut(at) {
            *to = addr;
        }
        Some(())
    }

    /// Posts a receive. Answers as [`VerbsQp::send_short`].
    #[inline(always)]
    pub fn recv_short(&mut self, s: TxRequest) -> Option<Result<()>> {
        let (addr, len) = (s.data.addr(), s.data.len());
        if len == 0 {
            return None;
        }
        let lkey = self.dev.memory.lkey(&mut self.found, addr, len, true)?;
        let rings = self.rings.as_mut()?;
        let Some(slot) = self.empty.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        let Some(to) = self.short_recvs.get_mut(usize::from(slot)) else {
            return lengthen(&mut self.short_recvs, &mut self.empty, slot);
        };
        *to = Some(s);
        rings.recv(slot, &[piece(&s.data, lkey)]);
        rings.ring_recv();
        Some(Ok(()))
    }

    /// Takes the next completion of a request of the application's own. The queue pair must be
    /// `calm`.
    #[inline(always)]
    pub fn poll_entry(&mut self) -> PolledEntry {
        let Some(c) = self.rings.as_mut().and_then(|r| r.glance()) else {
            return PolledEntry::Nothing;
        };
        match c.plain() {
            CqeKind::Sent => match over(&mut self.shorts, &mut self.free, c.slot()) {
                Some((done, _)) => PolledEntry::Sent(done),
                None => self.leave(c),
            },
            CqeKind::Came => match over(&mut self.short_recvs, &mut self.empty, c.slot()) {
                Some((done, at)) => PolledEntry::Came(done, at, c),
                None => self.leave(c),
            },
            CqeKind::Not => self.leave(c),
        }
    }

    /// A completion is for a poll.
    #[cold]
    fn leave(&mut self, c: Cqe) -> PolledEntry {
        let c = self.rings.as_ref().map_or(c, |r| r.whole(c));
        self.pending.push(c.wc(super::qp::RECV));
        PolledEntry::Deferred
    }

    /// Who has sent what came; a key of 0 is not known.
    pub fn source(&self, c: &Cqe) -> QpAddr {
        sender(&self.senders, &self.dev, c.from())
    }
}
