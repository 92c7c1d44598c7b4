//! Posting: from memory and a peer to a work request in the adapter's queue.

use super::super::rings::SendWqe;
use super::*;
use core::mem::zeroed;

/// Local memory of a request, as [`VerbsQp::local`] finds it.
pub(super) type LocalSge = Result<(ibv_sge, TxExtra)>;

impl VerbsQp {
    /// Most pieces of a message: of a packet, its header, and a device's memory behind it.
    pub(super) fn pieces(&self) -> usize {
        if self.mode == Mode::Packets {
            self.dev.adapter.attr.raw.pieces.min(2)
        } else {
            self.dev.adapter.attr.raw.pieces
        }
    }

    /// Posts receives, of packets.
    pub(super) fn refill(&mut self) {
        let Some(rx) = &self.rx else { return };
        let mtu = self.dev.adapter.attr.mtu;
        if let Some(r) = &mut self.rings {
            for slot in self.empty.drain(..) {
                r.recv(slot, &[rx.sge(slot, mtu)]);
            }
            return r.ring_recv();
        }
        while !self.empty.is_empty() {
            let n = self.empty.len().min(REFILL);
            let at = self.empty.len() - n;
            let mut sges = [ibv_sge::default(); REFILL];
            // SAFETY: a work request that is all zero is a valid value.
            let mut list: [ibv_recv_wr; REFILL] = unsafe { zeroed() };
            let slots = self.empty.get(at..).unwrap_or(&[]);
            let pairs = slots.iter().zip(list.iter_mut().zip(sges.iter_mut()));
            for (slot, (wr, sge)) in pairs {
                *sge = rx.sge(*slot, mtu);
                wr.wr_id = RECV | u64::from(*slot);
                wr.sg_list = sge;
                wr.num_sge = 1;
            }
            let first = list.as_mut_ptr();
            let mut bad = null_mut();
            // SAFETY: the list is linked within its array and lives for the call; its memory is the
            // pool's.
            let taken = unsafe {
                for i in 1..n {
                    (*first.add(i - 1)).next = first.add(i);
                }
                ((*(*self.qp).context).post_recv)(self.qp, first, &mut bad) == 0
            };
            if !taken {
                // As many are posted as the queue has room for: that is not so, and nothing is lost
                // by waiting.
                return;
            }
            self.empty.truncate(at);
        }
    }

    /// As [`VerbsQp::refill`], when it is worth while.
    #[inline]
    pub(in crate::device::verbs) fn refill_some(&mut self) {
        if self.empty.len() >= REFILL {
            self.refill();
        }
    }

    /// Number of a peer's address handle.
    pub fn handle_of(&mut self, peer: &QpAddr) -> Result<u16> {
        self.dev.handle(&peer.gid).map(|h| h.number)
    }

    /// Hands a request over; `inline` in place of its memory.
    #[inline]
    pub(super) fn submit(&mut self, slot: u16, inline: Option<&[u8]>) {
        let Some(Some(t)) = self.slots.get(usize::from(slot)) else {
            return;
        };
        let Some(to) = self.remotes.get(t.done.peer) else {
            return self.refused.push(slot);
        };
        let more = match t.extra {
            true => self.extras.get(usize::from(slot)).and_then(|e| e.more),
            false => None,
        };
        if let Some(q) = &mut self.rings {
            let inline = inline.map(Inline::of);
            return q.send(&SendWqe {
                more,
                inline: inline.as_ref(),
                ..to.request(slot, t)
            });
        }
        let x = self.ex;
        let (raddr, rkey) = (t.done.remote.addr, t.done.remote.key as u32);
        // SAFETY: `x` is the open queue pair; calls come in the order that ibv_wr_post(3) asks for.
        unsafe {
            if self.batch.is_empty() {
                ((*x).wr_start)(x);
            }
            (*x).wr_id = slot.into();
            match (t.op, t.imm) {
                (WqeOp::Send, None) => ((*x).wr_send)(x),
                (WqeOp::Send, Some(i)) => ((*x).wr_send_imm)(x, i),
                (WqeOp::Write, None) => ((*x).wr_rdma_write)(x, rkey, raddr),
                (WqeOp::Write, Some(i)) => ((*x).wr_rdma_write_imm)(x, rkey, raddr, i),
                (WqeOp::Read, _) => ((*x).wr_rdma_read)(x, rkey, raddr),
            }
            match (inline, more) {
                (Some(b), _) => {
                    ((*x).wr_set_inline_data)(x, b.as_ptr().cast_mut().cast(), b.len());
                }
                (None, None) => {
                    ((*x).wr_set_sge)(x, t.local.lkey, t.local.addr, t.local.length);
                }
                (None, Some(more)) => {
                    let both = [t.local, more];
                    ((*x).wr_set_sge_list)(x, both.len(), both.as_ptr());
                }
            }
            ((*x).wr_set_ud_addr)(x, to.handle.ah, to.qpn.into(), to.qkey);
        }
        self.batch.push(slot);
    }

    pub(super) fn post(&mut self, slot: u16, t: TxSlot, extra: TxExtra, inline: Option<&[u8]>) {
        let at = usize::from(slot);
        if at >= self.slots.len() {
            grow(&mut self.slots, slot);
        }
        let needed = extra.is_needed();
        if needed {
            if at >= self.extras.len() {
                self.extras.resize_with(at + 1, TxExtra::default);
            }
            if let Some(to) = self.extras.get_mut(at) {
                *to = extra;
            }
        }
        if let Some(to) = self.slots.get_mut(at) {
            *to = Some(TxSlot { extra: needed, ..t });
        }
        self.submit(slot, inline);
    }

    /// Registered memory of the application, piece by piece. `FI_EINVAL` when there are too many,
    /// or one is not registered.
    pub(super) fn lent(&mut self, mem: &UserMem, write: bool) -> Result<([ibv_sge; 2], usize)> {
        let mut list = [ibv_sge::default(); 2];
        let mut n = 0;
        for p in mem.pieces() {
            let (addr, len) = (p.addr(), p.len());
            let key = self.dev.memory.lkey(&mut self.found, addr, len, write);
            let most = self.pieces();
            let at = list.get_mut(n).filter(|_| n < most);
            let (Some(lkey), Some(at)) = (key, at) else {
                return Err(unregistered(addr, len, most));
            };
            *at = ibv_sge {
                addr: addr as u64,
                length: len as u32,
                lkey,
            };
            n += 1;
        }
        Ok((list, n))
    }

    /// One piece of device memory, where it is registered with the adapter, which may use it.
    pub(super) fn registered(&mut self, mem: &UserMem) -> Option<ibv_sge> {
        if self.copies_device_memory {
            return None;
        }
        let (addr, length) = mem.single().map(|p| (p.addr(), p.len()))?;
        let lkey = self.dev.memory.lkey(&mut self.found, addr, length, false)?;
        Some(ibv_sge {
            addr: addr as u64,
            length: length as u32,
            lkey,
        })
    }

    /// Slot of our own memory that goes with a request's.
    pub(super) fn own(&self, slot: u16) -> u16 {
        if self.mode == Mode::Packets {
            slot
        } else {
            0
        }
    }

    /// A slot for a request to a peer. `FI_EINVAL` for one that is not connected, `FI_EAGAIN`.
    pub(super) fn begin(&mut self, peer: PeerId) -> Result<u16> {
        self.remotes.get(peer).ok_or(FI_EINVAL)?;
        self.free.pop().ok_or(FI_EAGAIN)
    }

    /// Local memory of a read or write: where it is registered, in the slot, or registered for this
    /// operation.
    pub(super) fn local(&mut self, slot: u16, mem: &UserMem, write: bool) -> LocalSge {
        let mut pieces = mem.pieces();
        let first = pieces.next().map_or((0, 0), |p| (p.addr(), p.len()));
        let single = pieces.next().is_none();
        let length = mem.len() as u32;
        if single && mem.is_empty() {
            let sge = self.tx.sge(self.own(slot), 0);
            return Ok((sge, TxExtra::default()));
        }
        let (memory, found) = (&self.dev.memory, &mut self.found);
        let usable = mem.is_host() || !self.copies_device_memory;
        let known = |addr: usize| {
            let key = || memory.lkey(found, addr, mem.len(), !write);
            usable.then(key).flatten()
        };
        if let Some(lkey) = Some(first.0).filter(|_| single).and_then(known) {
            let addr = first.0 as u64;
            return Ok((ibv_sge { addr, length, lkey }, TxExtra::default()));
        }
        if self.mode != Mode::Packets {
            return Err(unregistered(first.0, first.1, 1));
        }
        if mem.len() <= self.dev.adapter.attr.mtu {
            if write {
                self.tx.put_mem(slot, 0, mem);
            }
            let sge = self.tx.sge(slot, mem.len());
            let back = (!write).then_some(*mem);
            let extra = TxExtra {
                back,
                ..TxExtra::default()
            };
            return Ok((sge, extra));
        }
        if !single || !mem.is_host() {
            return Err(FI_EINVAL);
        }
        let lent = self.dev.memory.borrow(first.0, first.1, !write)?;
        let sge = ibv_sge {
            addr: first.0 as u64,
            length,
            lkey: lent.lkey(),
        };
        let extra = TxExtra {
            lent: Some(lent),
            ..TxExtra::default()
        };
        Ok((sge, extra))
    }

    /// Posts a read or write whose local memory was found, or was not; of a write `inline` may go
    /// in its place.
    pub(super) fn rdma(
        &mut self,
        slot: u16,
        (op, imm): (WqeOp, Option<u32>),
        done: Completion,
        local: LocalSge,
        inline: Option<&[u8]>,
    ) -> Result<()> {
        let (local, extra) = local.inspect_err(|_| self.free.push(slot))?;
        let t = TxSlot {
            imm,
            ..TxSlot::new(done, op, local)
        };
        self.post(slot, t, extra, inline);
        Ok(())
    }

    /// Sends a message of the application: `Payload::Copy` in the work request itself, other memory
    /// from where it lies. `FI_EAGAIN`, `FI_EMSGSIZE`, `FI_EINVAL` for memory that is not
    /// registered.
    pub fn post_message(
        &mut self,
        done: Completion,
        payload: Payload,
        imm: Option<u32>,
    ) -> Result<()> {
        let a = &self.dev.adapter.attr;
        let (inline, mem) = match payload {
            Payload::Copy(b) if b.len() > self.inline => return Err(FI_EMSGSIZE),
            Payload::Copy(b) => (Some(b), UserMem::EMPTY),
            Payload::User(m) if m.len() > a.mtu => return Err(FI_EMSGSIZE),
            Payload::User(m) if m.is_empty() => (Some(&[][..]), m),
            Payload::User(m) => (None, m),
        };
        let (sges, n) = self.lent(&mem, false)?;
        let slot = self.begin(done.peer)?;
        let extra = TxExtra {
            more: (n > 1).then_some(sges[1]),
            ..TxExtra::default()
        };
        let t = TxSlot {
            imm,
            ..TxSlot::new(done, WqeOp::Send, sges[0])
        };
        self.post(slot, t, extra, inline);
        Ok(())
    }

    /// Posts a receive of the application; [`Event::Taken`] tells of its end. Errors as
    /// [`VerbsQp::post_message`].
    pub fn post_recv(&mut self, done: Completion, mem: UserMem) -> Result<()> {
        let (mut sges, n) = self.lent(&mem, true)?;
        let slot = self.empty.pop().ok_or(FI_EAGAIN)?;
        if n == 0 {
            // An adapter wants a piece: one without a byte.
            sges[0] = self.tx.sge(0, 0);
        }
        if usize::from(slot) >= self.recvs.len() {
            grow(&mut self.recvs, slot);
        }
        if let Some(at) = self.recvs.get_mut(usize::from(slot)) {
            let into = Piece::EMPTY;
            *at = Some(RecvSlot { done, into });
        }
        if let Some(r) = &mut self.rings {
            r.recv(slot, sges.get(..n.max(1)).unwrap_or(&[]));
            r.ring_recv();
            return Ok(());
        }
        let mut wr = ibv_recv_wr {
            wr_id: RECV | u64::from(slot),
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: n.max(1) as c_int,
        };
        let mut bad = null_mut();
        // SAFETY: the request and its list live for the call; the memory is lent until the receive
        // ends.
        let e = unsafe { ((*(*self.qp).context).post_recv)(self.qp, &mut wr, &mut bad) };
        if e != 0 {
            self.empty.push(slot);
            return Err(FI_EAGAIN);
        }
        Ok(())
    }
}

/// Memory for slots up to this one and some more: as many as were used at once.
#[cold]
pub(in crate::device::verbs) fn grow<T: Clone>(slots: &mut Vec<Option<T>>, slot: u16) {
    slots.resize((usize::from(slot) + 1).next_power_of_two().max(64), None);
}

#[cold]
fn unregistered(addr: usize, len: usize, pieces: usize) -> crate::core::Errno {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "buffer of {len} bytes at {addr:#x}: wanted at most {pieces} pieces, each in memory \
         registered with \
         fi_mr_reg (FI_MR_LOCAL), for FI_RECV or FI_READ where the adapter writes to it"
    );
    FI_EINVAL
}
