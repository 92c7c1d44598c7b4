//! The short way of an application that sees the adapter's own work requests: one piece of registered memory, no flags, the
//! queues at hand. A request is a few words in its slot until its completion is taken, straight from the adapter's queue.

use super::qp::VerbsQp;
use super::rings::{self, SendWqe};
use super::sys::*;
use crate::core::Result;
use crate::device::{QpAddr, Taken};
use crate::hmem::{copy_bytes, Piece};
use crate::types::FI_EAGAIN;

/// A request of this kind.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    pub context: usize,
    pub data: Piece,
    /// The owner's number of the peer of a send.
    pub peer: u32,
    /// Success is worth a completion entry.
    pub report: bool,
}

/// How one has ended, well.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub short: Short,
    /// Of a receive.
    pub taken: Option<Taken>,
}

/// A peer, as the adapter's requests name it.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    ah: u16,
    qpn: u16,
    qkey: u32,
    known: bool,
}

/// What [`VerbsQp::glance`]'s caller wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Another,
    Enough,
}

impl VerbsQp {
    /// Whether requests can go this way.
    #[inline]
    pub fn shortens(&self) -> bool {
        self.rings.is_some() && !self.shorts.is_empty()
    }

    /// Sends a message; `None`, and nothing done, when it has to go another way. `addr` tells the address of the peer, once.
    /// Errors: `FI_EAGAIN`.
    #[inline]
    pub fn send_short(
        &mut self,
        s: Short,
        imm: Option<u32>,
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let at = s.peer as usize;
        let way = match self.ways.get(at) {
            Some(w) if w.known => *w,
            _ => self.way(at, addr()?)?,
        };
        let (addr, len) = (s.data.addr(), s.data.len());
        let mut room = [0u8; 32];
        let inline = if len <= room.len().min(self.dev.adapter.attr.raw.inline) {
            // SAFETY: the piece is readable (see `Piece::new`), and the room as long.
            unsafe { copy_bytes(addr as *const u8, room.as_mut_ptr(), len) };
            room.get(..len)
        } else {
            None
        };
        let lkey = match inline {
            Some(_) => 0,
            None => self.dev.memory.lkey(&mut self.found, addr, len, false)?,
        };
        let rings = self.rings.as_mut()?;
        let Some(slot) = self.free.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        if let Some(to) = self.shorts.get_mut(usize::from(slot)) {
            *to = Some(s);
        }
        rings.send(&SendWqe {
            op: rings::SEND,
            slot,
            to_qpn: way.qpn,
            qkey: way.qkey,
            ah: way.ah,
            imm,
            local: ibv_sge {
                addr: addr as u64,
                length: len as u32,
                lkey,
            },
            more: None,
            inline,
            remote: (0, 0),
        });
        rings.ring();
        Some(Ok(()))
    }

    #[cold]
    fn way(&mut self, at: usize, addr: QpAddr) -> Option<Way> {
        let h = self.route(&addr).ok()?;
        if self.ways.len() <= at {
            self.ways.resize(at + 1, Way::default());
        }
        let w = self.ways.get_mut(at)?;
        *w = Way {
            ah: h.number,
            qpn: addr.qpn,
            qkey: addr.qkey,
            known: true,
        };
        Some(*w)
    }

    /// Posts a receive. Answers as [`VerbsQp::send_short`].
    #[inline]
    pub fn recv_short(&mut self, s: Short) -> Option<Result<()>> {
        let (addr, len) = (s.data.addr(), s.data.len());
        if len == 0 {
            return None;
        }
        let lkey = self.dev.memory.lkey(&mut self.found, addr, len, true)?;
        let rings = self.rings.as_mut()?;
        let Some(slot) = self.empty.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        if let Some(to) = self.short_recvs.get_mut(usize::from(slot)) {
            *to = Some(s);
        }
        let sge = ibv_sge {
            addr: addr as u64,
            length: len as u32,
            lkey,
        };
        rings.recv(slot, &[sge]);
        rings.ring_recv();
        Some(Ok(()))
    }

    /// Takes completions of such requests that have ended well; `false` when there is something that takes a poll.
    #[inline]
    pub fn glance(&mut self, mut each: impl FnMut(Done) -> Next) -> bool {
        if !(self.pending.is_empty() && self.refused.is_empty() && self.again.is_empty()) {
            return false;
        }
        let mut one = [ibv_wc::default()];
        loop {
            let Some(rings) = self.rings.as_mut() else {
                return false;
            };
            if rings.poll(&mut one, super::qp::RECV) == 0 {
                return true;
            }
            let [wc] = one;
            let Some(done) = self.well(&wc) else {
                self.pending.push(wc);
                return false;
            };
            if each(done) == Next::Enough {
                return true;
            }
        }
    }

    /// The request of a completion, if it is one of these and has ended well.
    #[inline]
    fn well(&mut self, wc: &ibv_wc) -> Option<Done> {
        if wc.status != 0 || wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            return None;
        }
        let slot = wc.wr_id as u16;
        if wc.wr_id & super::qp::RECV == 0 {
            let short = self.shorts.get_mut(usize::from(slot))?.take()?;
            self.free.push(slot);
            return Some(Done { short, taken: None });
        }
        let short = self.short_recvs.get_mut(usize::from(slot))?.take()?;
        self.empty.push(slot);
        let taken = Some(self.taken_by(wc));
        Some(Done { short, taken })
    }
}
