//! A queue pair as a [`Transport`]: a message, read or write is a work request in its slot.
//!
//! Where the adapter's queues are at hand (`rings`), a request without anything unusual is written
//! straight into them, and its completion is taken straight out; a packet that has come is looked
//! at in its place. Whatever takes more goes through `qp::post`. What is submitted through
//! `rings` by the calls here goes out at once, the rest with [`QueuePair::ring`](crate::device::QueuePair).

use super::cqe::{Cqe, CqeKind};
use super::pool::Pool;
use super::qp::{grow, sender, Mode, PostedRecv, TxSlot, VerbsQp};
use super::rings::{Inline, SendWqe, WqeOp};
use super::sys::*;
use crate::device::request::{PolledCqe, Redelivery};
use crate::device::{AmHeader, QpAddr};
use crate::hmem::{copy_bytes, InjectBuf, Piece};
use crate::transport::{Completion, Payload, PeerId, Transport, TransportCaps, Verdict};

/// What [`VerbsQp::poll_entry`] finds.
pub enum PolledEntry {
    Nothing,
    /// The general poll has to handle it.
    Deferred,
    /// A request has ended.
    Sent(Completion),
    /// A message has come into a receive at this address, with what the adapter says of it.
    Came(Completion, usize, Cqe),
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

impl Transport for VerbsQp {
    type Header<'a> = AmHeader<'a>;

    fn caps(&self, _: PeerId) -> TransportCaps {
        let a = &self.dev.adapter.attr;
        let packets = self.mode == Mode::Packets;
        TransportCaps {
            am_short: if packets { a.mtu } else { self.inline },
            am_bcopy: if packets { a.mtu } else { 0 },
            am_zcopy: a.mtu,
            put: if a.caps.rdma_write { a.max_rdma } else { 0 },
            get: if a.caps.rdma_read { a.max_rdma } else { 0 },
            atomic: false,
        }
    }

    #[inline(always)]
    fn am_short(&mut self, done: Completion, head: AmHeader, data: InjectBuf) -> Verdict {
        match self.mode {
            Mode::Packets => self.send_packet(done, head, data.piece()),
            _ => self.send_inline(done, data.piece(), head.imm),
        }
    }

    fn am_bcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        match (self.mode, data) {
            (Mode::Packets, _) => Verdict::posted(self.post_packet(done, head, data, false)),
            (_, Payload::Inject(b)) => self.send_inline(done, b.piece(), head.imm),
            _ => Verdict::Unsupported,
        }
    }

    #[inline(always)]
    fn am_zcopy(&mut self, done: Completion, head: AmHeader, data: Payload) -> Verdict {
        if let Payload::Piece(p) = data {
            if self.mode == Mode::Packets {
                return self.send_packet(done, head, p);
            }
            if p.len() <= self.inline {
                return self.send_inline(done, p, head.imm);
            }
            let (addr, len) = (p.addr(), p.len());
            let lkey = self.dev.memory.lkey(&mut self.found, addr, len, false);
            if let Some(lkey) = lkey.filter(|_| self.rings.is_some()) {
                let local = piece(&p, lkey);
                let what = (WqeOp::Send, head.imm.map(|i| i as u32));
                return self.submit_now(done, what, None, |_, _| local);
            }
        }
        self.am_zcopy_any(done, head, data)
    }

    #[inline(always)]
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict {
        if let Payload::Piece(p) = data {
            let (addr, len) = (p.addr(), p.len());
            let lkey = self.dev.memory.lkey(&mut self.found, addr, len, false);
            if let Some(lkey) = lkey.filter(|_| self.rings.is_some()) {
                let local = piece(&p, lkey);
                let what = (WqeOp::Write, imm.map(|i| i as u32));
                return self.submit_now(done, what, None, |_, _| local);
            }
        }
        self.put_any(done, data, imm.map(|i| i as u32))
    }

    #[inline(always)]
    fn get(&mut self, done: Completion, into: Payload) -> Verdict {
        if let Payload::Piece(p) = into {
            let (addr, len) = (p.addr(), p.len());
            let lkey = self.dev.memory.lkey(&mut self.found, addr, len, true);
            if let Some(lkey) = lkey.filter(|_| self.rings.is_some()) {
                let local = piece(&p, lkey);
                return self.submit_now(done, (WqeOp::Read, None), None, |_, _| local);
            }
        }
        self.get_any(done, into)
    }
}

impl VerbsQp {
    /// Whether completions of an application's own requests can be taken one by one.
    #[inline]
    pub fn completes_in_place(&self) -> bool {
        self.rings.is_some() && self.mode == Mode::Direct
    }

    /// Sends a packet: the header, and the piece behind it, copied.
    #[inline(always)]
    fn send_packet(&mut self, done: Completion, head: AmHeader, data: Piece) -> Verdict {
        let (bytes, len) = (head.padded_bytes(), head.byte_len());
        if self.rings.is_none() || len + data.len() > self.tx.room() {
            return Verdict::posted(self.post_packet(done, head, Payload::Piece(data), false));
        }
        self.submit_now(done, (WqeOp::Send, None), None, |tx, slot| {
            tx.put(slot, 0, bytes);
            tx.put_piece(slot, len, data);
            tx.sge(slot, len + data.len())
        })
    }

    /// Sends bytes that go with the work request.
    #[inline(always)]
    fn send_inline(&mut self, done: Completion, data: Piece, imm: Option<u64>) -> Verdict {
        let what = (WqeOp::Send, imm.map(|i| i as u32));
        match self.rings.is_some() && data.len() <= self.inline.min(Inline::MOST) {
            true => self.submit_inline(done, data, what),
            false => self.post_inline(done, data, what),
        }
    }

    /// Sends or writes bytes that go with the work request, of which there are at most
    /// [`Inline::MOST`].
    #[inline(always)]
    fn submit_inline(
        &mut self,
        done: Completion,
        data: Piece,
        what: (WqeOp, Option<u32>),
    ) -> Verdict {
        let (from, len) = (data.addr() as *const u8, data.len());
        let mut bytes = Inline::default();
        // SAFETY: the piece is readable (see `Piece::new`), and there is room for it.
        unsafe { bytes.fill(len, |to| copy_bytes(from, to, len)) };
        let local = ibv_sge::default();
        self.submit_now(done, what, Some(&bytes), |_, _| local)
    }

    /// Hands a request over: `inline` goes with it, or what `place` says, which may put it into the
    /// packet of its slot.
    #[inline(always)]
    fn submit_now(
        &mut self,
        done: Completion,
        (op, imm): (WqeOp, Option<u32>),
        inline: Option<&Inline>,
        place: impl FnOnce(&mut Pool, u16) -> ibv_sge,
    ) -> Verdict {
        let (Some(rings), Some(to)) = (self.rings.as_mut(), self.remotes.get(done.peer)) else {
            return Verdict::Unsupported;
        };
        let Some(slot) = self.free.pop() else {
            return Verdict::NoResources;
        };
        let at = usize::from(slot);
        if at >= self.slots.len() {
            grow(&mut self.slots, slot);
        }
        let t = TxSlot {
            imm,
            ..TxSlot::new(done, op, place(&mut self.tx, slot))
        };
        if let Some(kept) = self.slots.get_mut(at) {
            *kept = Some(t);
        }
        rings.send_now(&SendWqe {
            inline,
            ..to.request(slot, &t)
        });
        Verdict::Queued
    }

    /// Whether packets can be polled for in their places.
    #[inline]
    pub fn polls_packets(&self) -> bool {
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

    /// The request of a completion of a send is over, if it reports itself.
    #[inline(always)]
    fn sent(
        &mut self,
        slot: u16,
        each: impl FnOnce(&Completion) -> Redelivery,
    ) -> Option<Redelivery> {
        let at = self.slots.get_mut(usize::from(slot))?;
        let t = at
            .as_ref()
            .filter(|t| t.done.reports_itself() && !t.extra)?;
        let kept = each(&t.done);
        *at = None;
        self.free.push(slot);
        Some(kept)
    }

    /// Takes completions of packets. Answers as `completions`.
    #[inline]
    pub fn poll_packets(&mut self, mut each: impl FnMut(PolledCqe) -> Redelivery) -> (bool, bool) {
        let seen = self.completions(|q, c| match c.sent() {
            _ if !c.well() => None,
            true => q.sent(c.slot(), |done| each(PolledCqe::Sent(done))),
            false => q.packet(c, &mut each),
        });
        self.refill_some();
        seen
    }

    /// `None`: it takes a poll.
    #[inline]
    fn packet(
        &mut self,
        c: &Cqe,
        each: &mut impl FnMut(PolledCqe) -> Redelivery,
    ) -> Option<Redelivery> {
        let peer = *self.names.get(&c.from())?;
        let bytes = self.rx.as_ref()?.bytes(c.slot(), c.bytes() as usize);
        let kept = each(PolledCqe::Packet(peer, bytes));
        if kept != Redelivery::Deferred {
            self.empty.push(c.slot());
        }
        Some(kept)
    }

    /// Posts a receive of the application. `Unsupported`, and nothing done, when
    /// [`VerbsQp::post_recv`] has to.
    #[inline(always)]
    pub fn recv(&mut self, done: Completion, into: Piece) -> Verdict {
        let (addr, len) = (into.addr(), into.len());
        if len == 0 {
            return Verdict::Unsupported;
        }
        let lkey = self.dev.memory.lkey(&mut self.found, addr, len, true);
        let (Some(lkey), Some(rings)) = (lkey, self.rings.as_mut()) else {
            return Verdict::Unsupported;
        };
        let Some(slot) = self.empty.pop() else {
            return Verdict::NoResources;
        };
        if usize::from(slot) >= self.recvs.len() {
            grow(&mut self.recvs, slot);
        }
        if let Some(to) = self.recvs.get_mut(usize::from(slot)) {
            *to = Some(PostedRecv { done, into });
        }
        rings.recv(slot, &[piece(&into, lkey)]);
        rings.ring_recv();
        Verdict::Queued
    }

    /// Takes the next completion of a request of the application's own. The queue pair must be
    /// `calm`.
    #[inline(always)]
    pub fn poll_entry(&mut self) -> PolledEntry {
        let Some(c) = self.rings.as_mut().and_then(|r| r.glance()) else {
            return PolledEntry::Nothing;
        };
        match c.plain() {
            CqeKind::Sent => {
                let at = self.slots.get_mut(usize::from(c.slot()));
                if let Some(at) = at {
                    if let Some(t) = at.as_ref().filter(|t| t.done.reports_itself() && !t.extra) {
                        let done = t.done;
                        *at = None;
                        self.free.push(c.slot());
                        return PolledEntry::Sent(done);
                    }
                }
                self.leave(c)
            }
            CqeKind::Came => {
                let at = self.recvs.get_mut(usize::from(c.slot()));
                if let Some(at) = at {
                    if let Some(r) = at.as_ref().filter(|r| r.done.reports_itself()) {
                        let (done, addr) = (r.done, r.into.addr());
                        *at = None;
                        self.empty.push(c.slot());
                        return PolledEntry::Came(done, addr, c);
                    }
                }
                self.leave(c)
            }
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
