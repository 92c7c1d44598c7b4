//! Posting: finds the local memory of a request, and hands the work request to the adapter.

use super::super::rings::SendWqe;
use super::*;
use crate::device::AmHeader;
use crate::hmem::InjectBuf;
use core::mem::zeroed;

/// Local memory of a request, as [`VerbsQp::local`] finds it.
pub(super) type LocalSge = Result<(ibv_sge, TxExtra)>;

impl VerbsQp {
    /// Most pieces of a message. A packet has at most two: its header, and device memory behind it.
    pub(super) fn pieces(&self) -> usize {
        if self.mode == Mode::Packets {
            self.dev.adapter.attr.raw.pieces.min(2)
        } else {
            self.dev.adapter.attr.raw.pieces
        }
    }

    /// Posts a packet receive for every free slot.
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
                // The queue has room for all slots, so this is not expected. The slots stay free,
                // and are posted with the next refill.
                return;
            }
            self.empty.truncate(at);
        }
    }

    /// As [`VerbsQp::refill`], once `REFILL` slots are free.
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

    /// Hands the request of a slot to the adapter; `inline` replaces its local memory.
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
            let inline = inline.map(InlineData::of);
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
        // Other queue pairs poll these queues, too.
        if self.external.iter().any(Option::is_some) {
            self.complete_batch();
        }
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

    /// Scatter-gather entries of the application's memory, and their number. `FI_EINVAL` when there
    /// are too many pieces, or a piece is not registered.
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

    /// Scatter-gather entry of one piece of device memory, if the adapter may access it directly.
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

    /// Whether one read or write can use this local memory.
    pub(super) fn takes_user(&mut self, mem: &UserMem) -> bool {
        let packet = mem.len() <= self.dev.adapter.attr.mtu;
        let mut reachable = || mem.is_host() || self.registered(mem).is_some();
        packet || mem.pieces().count() <= 1 && reachable()
    }

    /// The slot in `tx` for a request of `slot`: without packets there is only slot 0.
    pub(super) fn own(&self, slot: u16) -> u16 {
        if self.mode == Mode::Packets {
            slot
        } else {
            0
        }
    }

    /// Takes a slot for a request to a peer. `FI_EINVAL` when the peer is not connected,
    /// `FI_EAGAIN` without a free slot.
    pub(super) fn begin(&mut self, peer: PeerId) -> Result<u16> {
        self.remotes.get(peer).ok_or(FI_EINVAL)?;
        self.free.pop().ok_or(FI_EAGAIN)
    }

    /// Local memory of a read or write: used directly if it is registered, copied through the slot
    /// if it is short, or registered for this operation.
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

    /// Posts a packet of header and data, copied into the slot. Device memory is not copied if the
    /// adapter reaches it and `lent` is set: the caller lends it until the completion.
    /// `FI_EMSGSIZE` when the packet is too long; other errors as [`Self::begin`].
    pub(in crate::device::verbs) fn post_packet(
        &mut self,
        done: Completion,
        head: AmHeader,
        data: Payload,
        lent: bool,
    ) -> Result<()> {
        let (head, len) = (head.as_slice(), data.byte_len());
        if head.len() + len > self.dev.adapter.attr.mtu {
            return Err(FI_EMSGSIZE);
        }
        let slot = self.begin(done.peer)?;
        self.tx.put(slot, 0, head);
        let mut copied = head.len() + len;
        let mut more = None;
        match data {
            Payload::Inject(b) => self.tx.put(slot, head.len(), b.bytes()),
            Payload::Piece(p) => self.tx.put_piece(slot, head.len(), p),
            Payload::User(m) => {
                // The adapter reads device memory directly if it can.
                more = match lent && !m.is_host() {
                    true => self.registered(m),
                    false => None,
                };
                match more {
                    Some(_) => copied = head.len(),
                    None => self.tx.put_mem(slot, head.len(), m),
                }
            }
        }
        let local = self.tx.sge(slot, copied);
        let extra = TxExtra {
            more,
            ..TxExtra::default()
        };
        self.post(slot, TxSlot::new(done, WqeOp::Send, local), extra, None);
        Ok(())
    }

    /// The general path of the transport's `am_zcopy`.
    #[inline(never)]
    pub(in crate::device::verbs) fn am_zcopy_any(
        &mut self,
        done: Completion,
        head: AmHeader,
        data: Payload,
    ) -> Verdict {
        if self.mode == Mode::Packets {
            return Verdict::posted(self.post_packet(done, head, data, true));
        }
        let mem = data.lent();
        if data.byte_len() > self.dev.adapter.attr.mtu {
            return Verdict::Failed(FI_EMSGSIZE);
        }
        let what = (WqeOp::Send, head.imm.map(|i| i as u32));
        if mem.is_empty() {
            return self.post_inline(done, Piece::EMPTY, what);
        }
        let post = |q: &mut VerbsQp| {
            let (sges, n) = q.lent(&mem, false)?;
            let slot = q.begin(done.peer)?;
            let extra = TxExtra {
                more: (n > 1).then_some(sges[1]),
                ..TxExtra::default()
            };
            let imm = what.1;
            let t = TxSlot {
                imm,
                ..TxSlot::new(done, WqeOp::Send, sges[0])
            };
            q.post(slot, t, extra, None);
            Ok(())
        };
        Verdict::posted(post(self))
    }

    /// Posts a request with inline data. `FI_EMSGSIZE` when there are too many bytes.
    #[inline(never)]
    pub(in crate::device::verbs) fn post_inline(
        &mut self,
        done: Completion,
        data: Piece,
        (op, imm): (WqeOp, Option<u32>),
    ) -> Verdict {
        let mut bytes = [0; InlineData::MOST];
        let Some(to) = bytes
            .get_mut(..data.len())
            .filter(|b| b.len() <= self.inline)
        else {
            return Verdict::Failed(FI_EMSGSIZE);
        };
        data.load(to);
        let slot = match self.begin(done.peer) {
            Ok(slot) => slot,
            Err(e) => return Verdict::posted(Err(e)),
        };
        let t = TxSlot {
            imm,
            ..TxSlot::new(done, op, ibv_sge::default())
        };
        self.post(slot, t, TxExtra::default(), Some(to));
        Verdict::Queued
    }

    /// The general path of the transport's `put`: from any memory.
    #[inline(never)]
    pub(in crate::device::verbs) fn put_any(
        &mut self,
        done: Completion,
        data: Payload,
        imm: Option<u32>,
    ) -> Verdict {
        if let Payload::Inject(b) = data {
            return match self.wide {
                true => self.post_inline(done, b.piece(), (WqeOp::Write, imm)),
                false => self.rdma(done, (WqeOp::Write, imm), |q, slot| q.copied(slot, b)),
            };
        }
        let mem = data.lent();
        self.rdma(done, (WqeOp::Write, imm), |q, slot| {
            q.local(slot, &mem, true)
        })
    }

    /// The general path of the transport's `get`: into any memory.
    #[inline(never)]
    pub(in crate::device::verbs) fn get_any(&mut self, done: Completion, into: Payload) -> Verdict {
        let mem = into.lent();
        self.rdma(done, (WqeOp::Read, None), |q, slot| {
            q.local(slot, &mem, false)
        })
    }

    /// Copies the data of an injected write to memory of our own. `FI_EMSGSIZE` when it does not
    /// fit.
    fn copied(&mut self, slot: u16, b: InjectBuf) -> LocalSge {
        let bytes = b.bytes();
        if bytes.len() > self.tx.room() {
            return Err(FI_EMSGSIZE);
        }
        let own = self.own(slot);
        self.tx.put(own, 0, bytes);
        Ok((self.tx.sge(own, bytes.len()), TxExtra::default()))
    }

    /// Posts a read or write whose local memory `local` finds.
    fn rdma(
        &mut self,
        done: Completion,
        (op, imm): (WqeOp, Option<u32>),
        local: impl FnOnce(&mut VerbsQp, u16) -> LocalSge,
    ) -> Verdict {
        let post = || {
            let slot = self.begin(done.peer)?;
            let (local, extra) = local(self, slot).inspect_err(|_| self.free.push(slot))?;
            let t = TxSlot {
                imm,
                ..TxSlot::new(done, op, local)
            };
            self.post(slot, t, extra, None);
            Ok(())
        };
        Verdict::posted(post())
    }

    /// Posts a receive of the application, which ends with [`Event::Taken`]. `FI_EAGAIN` without a
    /// free slot; `FI_EINVAL` for memory that is not registered.
    pub fn post_recv(&mut self, done: Completion, mem: UserMem) -> Result<()> {
        let (mut sges, n) = self.lent(&mem, true)?;
        let slot = self.empty.pop().ok_or(FI_EAGAIN)?;
        if n == 0 {
            // The adapter requires a piece, if only an empty one.
            sges[0] = self.tx.sge(0, 0);
        }
        if usize::from(slot) >= self.recvs.len() {
            grow(&mut self.recvs, slot);
        }
        if let Some(at) = self.recvs.get_mut(usize::from(slot)) {
            let into = Piece::EMPTY;
            *at = Some(PostedRecv { done, into });
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

/// Grows a table of slots to hold `slot`, by doubling.
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
