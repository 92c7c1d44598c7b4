//! A queue pair as a [`Transport`]: a message, read or write is a work request in its slot.
//!
//! The fast path writes a request without a `TxExtra` into the mapped send queue (`rings`) and
//! rings the doorbell at once. All other requests go through `qp::post`, and wait for
//! [`QueuePair::ring`](crate::device::QueuePair).

use super::pool::Pool;
use super::qp::{grow, Mode, PostedRecv, TxSlot, VerbsQp};
use super::rings::{InlineData, SendWqe, WqeOp};
use super::sys::*;
use crate::device::{post_and_ring, AmHeader};
use crate::hmem::{copy_bytes, InjectBuf, Piece};
use crate::transport::{Completion, Payload, PeerId, Transport, TransportCaps, Verdict};

/// Scatter-gather entry of a piece of registered memory.
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
            if let Some(lkey) = self.lkey_in_place(&p, false) {
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
            if let Some(lkey) = self.lkey_in_place(&p, false) {
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
            if let Some(lkey) = self.lkey_in_place(&p, true) {
                let local = piece(&p, lkey);
                return self.submit_now(done, (WqeOp::Read, None), None, |_, _| local);
            }
        }
        self.get_any(done, into)
    }
}

impl VerbsQp {
    /// Whether [`OwnRequests`](super::poll::OwnRequests) can poll the mapped completion queue.
    #[inline]
    pub fn completes_in_place(&self) -> bool {
        self.rings.is_some() && self.mode == Mode::Direct
    }

    /// The local key of a piece, if requests go to the mapped send queue.
    #[inline(always)]
    fn lkey_in_place(&mut self, p: &Piece, write: bool) -> Option<u32> {
        self.rings.as_ref()?;
        let (addr, len) = (p.addr(), p.len());
        self.dev.memory.lkey(&mut self.found, addr, len, write)
    }

    /// Writes a message of one piece to the mapped send queue and rings the doorbell.
    /// `Unsupported`, and nothing done, when it takes another way.
    #[inline(always)]
    pub(super) fn send_in_place(
        &mut self,
        done: impl Fn() -> Completion,
        imm: Option<u64>,
        p: Piece,
        inject: bool,
    ) -> Verdict {
        if self.mode == Mode::Packets {
            return Verdict::Unsupported;
        }
        let what = (WqeOp::Send, imm.map(|i| i as u32));
        if p.len() <= self.inline {
            return self.submit_inline(done(), p, what);
        }
        if inject {
            return Verdict::Unsupported;
        }
        let (addr, len) = (p.addr(), p.len());
        match self.dev.memory.lkey(&mut self.found, addr, len, false) {
            Some(lkey) => self.submit_now(done(), what, None, |_, _| piece(&p, lkey)),
            None => Verdict::Unsupported,
        }
    }

    /// As [`QueuePair::send_piece`](crate::device::QueuePair), any other way.
    #[cold]
    #[inline(never)]
    pub(super) fn send_otherwise(
        &mut self,
        done: Completion,
        imm: Option<u64>,
        p: Piece,
        inject: bool,
    ) -> Verdict {
        post_and_ring(self, done, imm, p, inject)
    }

    /// Sends a packet: copies the header, and the piece behind it.
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

    /// Sends inline data.
    #[inline(always)]
    fn send_inline(&mut self, done: Completion, data: Piece, imm: Option<u64>) -> Verdict {
        let what = (WqeOp::Send, imm.map(|i| i as u32));
        match self.rings.is_some() && data.len() <= self.inline {
            true => self.submit_inline(done, data, what),
            false => self.post_inline(done, data, what),
        }
    }

    /// Sends or writes inline data of at most [`InlineData::MOST`] bytes.
    #[inline(always)]
    fn submit_inline(
        &mut self,
        done: Completion,
        data: Piece,
        what: (WqeOp, Option<u32>),
    ) -> Verdict {
        let (from, len) = (data.addr() as *const u8, data.len());
        let mut bytes = InlineData::default();
        // SAFETY: the piece is readable (see `Piece::new`), and there is room for it.
        unsafe { bytes.fill(len, |to| copy_bytes(from, to, len)) };
        let local = ibv_sge::default();
        self.submit_now(done, what, Some(&bytes), |_, _| local)
    }

    /// Writes a request to the send queue and rings the doorbell. The data is `inline`, or the
    /// memory that `place` returns; `place` may copy data into the slot's packet.
    #[inline(always)]
    fn submit_now(
        &mut self,
        done: Completion,
        (op, imm): (WqeOp, Option<u32>),
        inline: Option<&InlineData>,
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

    /// Posts a receive of the application by the fast path. `Unsupported`, and nothing done, when
    /// it takes [`VerbsQp::post_recv`].
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
}
