//! The short way of requests without flags, with the queues at hand: an application's own message from one piece of registered
//! memory, or a packet of the library in its slot. A request is a few words in its slot until its completion is taken,
//! straight from the adapter's queue; a packet that has come is looked at in its place.

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
    /// Flags of its completion entry.
    pub flags: u64,
    /// Address and key of a read or write, 0 otherwise.
    pub remote: (u64, u32),
    /// How often the peer was not ready for it.
    pub tries: u8,
}

/// How one has ended, well.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub short: Short,
    /// Of a receive.
    pub taken: Option<Taken>,
}

/// A request that may have to be sent again, beside what its [`Short`] says.
#[derive(Clone, Copy, Default)]
pub(super) struct Again {
    op: u8,
    imm: Option<u32>,
    local: ibv_sge,
}

/// A peer, as the adapter's requests name it.
#[derive(Clone, Copy, Default)]
pub(super) struct Way {
    ah: u16,
    qpn: u16,
    qkey: u32,
    known: bool,
}

impl Way {
    /// The request in `slot`, to this peer.
    #[inline]
    fn request(&self, slot: u16, a: &Again, remote: (u64, u32)) -> SendWqe<'static> {
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
            remote,
        }
    }
}

/// What [`VerbsQp::look`] finds.
pub enum Seen<'a> {
    /// A packet was sent.
    Sent(Short),
    /// One has come from this peer of the owner's.
    Packet(u32, &'a [u8]),
}

/// What its caller did with it, or [`VerbsQp::glance`]'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is over.
    Over,
    /// It is over, and no more is wanted.
    Last,
    /// It takes a poll.
    Left,
}

impl VerbsQp {
    /// Whether requests can go this way.
    #[inline]
    pub fn shortens(&self) -> bool {
        self.rings.is_some() && self.rx.is_none() && !self.shorts.is_empty()
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
        let way = self.way_to(s.peer, addr)?;
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
        let local = ibv_sge {
            addr: addr as u64,
            length: len as u32,
            lkey,
        };
        let op = rings::SEND;
        rings.send(&SendWqe {
            inline,
            ..way.request(slot, &Again { op, imm, local }, s.remote)
        });
        rings.ring();
        Some(Ok(()))
    }

    /// Sends a packet: `head`, of which `len` bytes count, and the piece behind it. Answers as [`VerbsQp::send_short`].
    #[inline]
    pub fn send_packet<const N: usize>(
        &mut self,
        s: Short,
        (head, len): (&[u8; N], usize),
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let way = self.way_to(s.peer, addr)?;
        let bytes = len + s.data.len();
        if bytes > self.tx.room() || self.rings.is_none() {
            return None;
        }
        let Some(slot) = self.free.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        self.tx.put(slot, 0, head);
        self.tx.put_piece(slot, len, s.data);
        let a = Again {
            op: rings::SEND,
            imm: None,
            local: self.tx.sge(slot, bytes),
        };
        self.submit_short(slot, s, way, a);
        Some(Ok(()))
    }

    /// Reads or writes a peer's memory. `copied`: the piece is the caller's again when this returns. Answers as
    /// [`VerbsQp::send_short`].
    #[inline]
    pub fn rdma_short(
        &mut self,
        s: Short,
        (write, copied): (bool, bool),
        imm: Option<u32>,
        addr: impl FnOnce() -> Option<QpAddr>,
    ) -> Option<Result<()>> {
        let way = self.way_to(s.peer, addr)?;
        let (addr, len) = (s.data.addr(), s.data.len());
        let lkey = match copied {
            true => None,
            false => self.dev.memory.lkey(&mut self.found, addr, len, !write),
        };
        let room = self.rx.is_some() && write && len <= self.tx.room();
        if lkey.is_none() && !room || self.rings.is_none() {
            return None;
        }
        let Some(slot) = self.free.pop() else {
            return Some(Err(FI_EAGAIN));
        };
        let local = match lkey {
            Some(lkey) => ibv_sge {
                addr: addr as u64,
                length: len as u32,
                lkey,
            },
            None => {
                self.tx.put_piece(slot, 0, s.data);
                self.tx.sge(slot, len)
            }
        };
        let op = if write { rings::WRITE } else { rings::READ };
        self.submit_short(slot, s, way, Again { op, imm, local });
        Some(Ok(()))
    }

    #[inline]
    fn submit_short(&mut self, slot: u16, s: Short, way: Way, a: Again) {
        if let Some(to) = self.shorts.get_mut(usize::from(slot)) {
            *to = Some(s);
        }
        if let Some(to) = self.kept.get_mut(usize::from(slot)) {
            *to = a;
        }
        if let Some(rings) = &mut self.rings {
            rings.send(&way.request(slot, &a, s.remote));
            rings.ring();
        }
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
            rings.send(&way.request(slot, a, s.remote));
        }
    }

    /// Whether packets can go this way.
    #[inline]
    pub fn sends_packets(&self) -> bool {
        self.rings.is_some() && self.rx.is_some()
    }

    /// Takes completions, as far as `each` can deal with them. `false` when there is something that takes a poll. The second:
    /// whether there was anything.
    #[inline(always)]
    fn completions(&mut self, mut each: impl FnMut(&mut Self, &ibv_wc) -> Kept) -> (bool, bool) {
        if !self.calm() {
            return (false, false);
        }
        let mut some = false;
        let mut one = [ibv_wc::default()];
        loop {
            let Some(rings) = self.rings.as_mut() else {
                return (false, some);
            };
            if rings.poll(&mut one, super::qp::RECV) == 0 {
                return (true, some);
            }
            some = true;
            let [wc] = one;
            match each(self, &wc) {
                Kept::Over => {}
                Kept::Last => return (true, true),
                Kept::Left => {
                    self.pending.push(wc);
                    return (false, true);
                }
            }
        }
    }

    /// The send of a completion, if it went this way.
    #[inline]
    fn sent(&mut self, slot: u16) -> Option<Short> {
        let short = self.shorts.get_mut(usize::from(slot))?.take()?;
        self.free.push(slot);
        Some(short)
    }

    /// Takes completions of packets; `name` finds the owner's number of a peer, which is asked for once. Answers as
    /// `completions`.
    #[inline]
    pub fn look(
        &mut self,
        mut name: impl FnMut(&QpAddr) -> Option<u32>,
        mut each: impl FnMut(Seen) -> Kept,
    ) -> (bool, bool) {
        let seen =
            self.completions(|q, wc| q.look_at(wc, &mut name, &mut each).unwrap_or(Kept::Left));
        self.refill_some();
        seen
    }

    /// `None`: it takes a poll.
    #[inline]
    fn look_at(
        &mut self,
        wc: &ibv_wc,
        name: &mut impl FnMut(&QpAddr) -> Option<u32>,
        each: &mut impl FnMut(Seen) -> Kept,
    ) -> Option<Kept> {
        let slot = well(wc)?;
        if wc.wr_id & super::qp::RECV == 0 {
            return self.sent(slot).map(|s| each(Seen::Sent(s)));
        }
        let from = (wc.slid, wc.src_qp as u16);
        let peer = match self.names.get(&from) {
            Some(p) => *p,
            None => {
                let who = self.sender(wc);
                let p = Some(who).filter(|w| w.qkey != 0).and_then(|w| name(&w))?;
                self.names.insert(from, p);
                p
            }
        };
        let bytes = self.rx.as_ref()?.bytes(slot, wc.byte_len as usize);
        let kept = each(Seen::Packet(peer, bytes));
        if kept != Kept::Left {
            self.empty.push(slot);
        }
        Some(kept)
    }

    /// Whether a request of this kind to a peer of the owner's is not over.
    pub fn busy_with(&self, peer: u32) -> bool {
        self.shorts.iter().flatten().any(|s| s.peer == peer)
    }

    /// The way to a peer of the owner's, whose address `addr` tells once.
    #[inline]
    fn way_to(&mut self, peer: u32, addr: impl FnOnce() -> Option<QpAddr>) -> Option<Way> {
        match self.ways.get(peer as usize) {
            Some(w) if w.known => Some(*w),
            _ => self.way(peer as usize, addr()?),
        }
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
        if self.who.len() <= at {
            self.who.resize(at + 1, QpAddr::default());
        }
        if let Some(to) = self.who.get_mut(at) {
            *to = addr;
        }
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

    /// Takes completions of an application's own requests that have ended well; `false` when there is something that takes a
    /// poll.
    #[inline]
    pub fn glance(&mut self, mut each: impl FnMut(Done) -> Kept) -> bool {
        let seen = self.completions(|q, wc| q.done(wc).map_or(Kept::Left, &mut each));
        seen.0
    }

    /// The request of a completion, if it is one of these and has ended well.
    #[inline]
    fn done(&mut self, wc: &ibv_wc) -> Option<Done> {
        let slot = well(wc)?;
        if wc.wr_id & super::qp::RECV == 0 {
            let short = self.sent(slot)?;
            return Some(Done { short, taken: None });
        }
        let short = self.short_recvs.get_mut(usize::from(slot))?.take()?;
        self.empty.push(slot);
        let taken = Some(self.taken_by(wc));
        Some(Done { short, taken })
    }
}

/// The slot of a completion of success that is no peer's write.
#[inline]
fn well(wc: &ibv_wc) -> Option<u16> {
    let well = wc.status == 0 && wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM;
    well.then_some(wc.wr_id as u16)
}
