//! The short way of requests without flags, with the queues at hand: an application's own message
//! from one piece of registered memory, or a packet of the library in its slot. A request is a few
//! words in its slot until its completion is taken, straight from the adapter's queue; a packet
//! that has come is looked at in its place.

use super::cqe::{Cqe, CqeKind};
use super::pool::Pool;
use super::qp::{grow, sender, Mode, RecvSlot, TxSlot, VerbsQp};
use super::rings::{Inline, SendWqe, WqeOp};
use super::sys::*;
use crate::device::request::{PolledCqe, Redelivery};
use crate::device::QpAddr;
use crate::hmem::{copy_bytes, Piece};
use crate::transport::{Completion, PeerId, Report, Verdict};

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

/// Whether an operation reports without anything else having to be looked at.
#[inline(always)]
fn reports_itself(done: &Completion) -> bool {
    matches!(done.report, Report::Entry | Report::Counters)
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

    /// Sends a message to a connected peer. `Unsupported`, and nothing done, when it has to go
    /// another way.
    #[inline(always)]
    pub fn send_short(&mut self, done: Completion, data: Piece, imm: Option<u32>) -> Verdict {
        let (addr, len) = (data.addr(), data.len());
        if len <= self.inline {
            return self.inlined(done, data, WqeOp::Send, imm);
        }
        match self.dev.memory.lkey(&mut self.found, addr, len, false) {
            Some(lkey) => {
                let local = piece(&data, lkey);
                self.submit_short(done, (WqeOp::Send, imm), None, |_, _| local)
            }
            None => Verdict::Unsupported,
        }
    }

    /// Sends or writes bytes that go with the work request.
    #[inline(always)]
    fn inlined(&mut self, done: Completion, data: Piece, op: WqeOp, imm: Option<u32>) -> Verdict {
        let (from, len) = (data.addr() as *const u8, data.len());
        if len > Inline::MOST {
            return Verdict::Unsupported;
        }
        let mut bytes = Inline::default();
        // SAFETY: the piece is readable (see `Piece::new`), and there is room for it.
        unsafe { bytes.fill(len, |to| copy_bytes(from, to, len)) };
        let local = ibv_sge::default();
        self.submit_short(done, (op, imm), Some(&bytes), |_, _| local)
    }

    /// Sends a packet: `head`, of which `len` bytes count, and the piece behind it. Answers as
    /// [`VerbsQp::send_short`].
    #[inline]
    pub fn send_packet<const N: usize>(
        &mut self,
        done: Completion,
        (head, len): (&[u8; N], usize),
        data: Piece,
    ) -> Verdict {
        let bytes = len + data.len();
        if bytes > self.tx.room() {
            return Verdict::Unsupported;
        }
        self.submit_short(done, (WqeOp::Send, None), None, |tx, slot| {
            tx.put(slot, 0, head);
            tx.put_piece(slot, len, data);
            tx.sge(slot, bytes)
        })
    }

    /// Reads or writes a peer's memory. `copied`: the piece is the caller's again when this
    /// returns. Answers as [`VerbsQp::send_short`].
    #[inline(always)]
    pub fn rdma_short(
        &mut self,
        done: Completion,
        data: Piece,
        (write, copied): (bool, bool),
        imm: Option<u32>,
    ) -> Verdict {
        let op = if write { WqeOp::Write } else { WqeOp::Read };
        let (addr, len) = (data.addr(), data.len());
        let lkey = match copied {
            true => None,
            false => self.dev.memory.lkey(&mut self.found, addr, len, !write),
        };
        let Some(lkey) = lkey else {
            return match write {
                true if self.wide && len <= self.inline => self.write_along(done, data, imm),
                true => self.write_copied(done, data, imm),
                false => Verdict::Unsupported,
            };
        };
        let local = piece(&data, lkey);
        self.submit_short(done, (op, imm), None, |_, _| local)
    }

    #[inline(never)]
    fn write_along(&mut self, done: Completion, data: Piece, imm: Option<u32>) -> Verdict {
        self.inlined(done, data, WqeOp::Write, imm)
    }

    /// Writes what fits into the slot of a packet.
    #[inline(never)]
    fn write_copied(&mut self, done: Completion, data: Piece, imm: Option<u32>) -> Verdict {
        if self.rx.is_none() || data.len() > self.tx.room() {
            return Verdict::Unsupported;
        }
        self.submit_short(done, (WqeOp::Write, imm), None, |tx, slot| {
            tx.put_piece(slot, 0, data);
            tx.sge(slot, data.len())
        })
    }

    /// Hands a request over: `inline` goes with it, or what `place` says, which may put it into the
    /// packet of its slot.
    #[inline(always)]
    fn submit_short(
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
            .filter(|t| reports_itself(&t.done) && !t.extra)?;
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

    /// Whether a request to a peer that [`reports_itself`] is not over.
    pub fn busy_with(&self, peer: PeerId) -> bool {
        let mut all = self.slots.iter().flatten();
        all.any(|t| t.done.peer == peer && reports_itself(&t.done))
    }

    /// Posts a receive. Answers as [`VerbsQp::send_short`].
    #[inline(always)]
    pub fn recv_short(&mut self, done: Completion, into: Piece) -> Verdict {
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
            *to = Some(RecvSlot { done, into });
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
                    if let Some(t) = at.as_ref().filter(|t| reports_itself(&t.done) && !t.extra) {
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
                    if let Some(r) = at.as_ref().filter(|r| reports_itself(&r.done)) {
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
