//! Posting: sends, writes and reads become operations of their peers.

use super::*;
use crate::device::soft::packet::DATA_HEAD;

impl Engine {
    /// Whether so many operations to a peer can be posted, one after another.
    pub(crate) fn room(&self, to: &QpAddr, count: usize) -> bool {
        let peer = self.by_addr.get(to).and_then(|pi| self.peers.get(*pi));
        let used = peer.map_or(0, |p| p.user_ops) + count - 1;
        self.free().saturating_sub(count - 1) * SHARE > used
    }

    /// Operations of the application that there is space for.
    fn free(&self) -> usize {
        let taken = self.user_ops + self.reads.len();
        self.cfg.depth.saturating_sub(taken)
    }

    /// The peer of a new operation. `FI_EAGAIN` when the queue is full or the peer has its share
    /// ([`SHARE`]) of it: a peer that acknowledges nothing must not block the others.
    fn room_for(&mut self, to: &QpAddr, name: PeerId, now: u64) -> Result<u32> {
        let free = self.free();
        if free == 0 {
            return Err(FI_EAGAIN);
        }
        let pi = self.peer(to, now);
        match self.peers.get_mut(pi) {
            Some(p) if p.user_ops < SHARE * free => {
                p.name = Some(name);
                Ok(pi)
            }
            _ => Err(FI_EAGAIN),
        }
    }

    /// Posts a send; see `Transport::am_zcopy`.
    pub(crate) fn send(
        &mut self,
        done: Completion,
        to: &QpAddr,
        head: &[u8],
        payload: Payload,
        now: u64,
    ) -> Result<()> {
        let total = head.len() + payload.byte_len();
        if total > self.cfg.message || head.len() > HEAD_MAX - DATA_HEAD {
            return Err(FI_EMSGSIZE);
        }
        let pi = self.room_for(to, done.peer, now)?;
        let mut copy = self.buffer();
        copy.extend_from_slice(head);
        let user = take_in(payload, &mut copy);
        let kind = EngineOpKind::Send {
            head_len: head.len(),
        };
        self.add(pi, Self::op(Some(done), kind, copy, user, total as u64));
        Ok(())
    }

    pub(super) fn op(
        done: Option<Completion>,
        kind: EngineOpKind,
        copy: Vec<u8>,
        user: UserMem,
        total: u64,
    ) -> EngineOp {
        EngineOp {
            peer: u32::MAX,
            number: 0,
            done,
            kind,
            copy,
            user,
            total,
            next: 0,
            unacked: 0,
            cut: false,
            status: Status::Ok,
        }
    }

    /// Posts an RDMA write; see `Transport::put`.
    pub(crate) fn write(
        &mut self,
        done: Completion,
        to: &QpAddr,
        local: Payload,
        imm: Option<u32>,
        now: u64,
    ) -> Result<()> {
        let pi = self.room_for(to, done.peer, now)?;
        let mut copy = self.buffer();
        let user = take_in(local, &mut copy);
        let total = (copy.len() + user.len()) as u64;
        let kind = EngineOpKind::Write {
            key: done.remote.key,
            addr: done.remote.addr,
            imm,
        };
        self.add(pi, Self::op(Some(done), kind, copy, user, total));
        Ok(())
    }

    /// Posts an RDMA read; see `Transport::get`.
    pub(crate) fn read(
        &mut self,
        done: Completion,
        to: &QpAddr,
        local: UserMem,
        now: u64,
    ) -> Result<()> {
        let pi = self.room_for(to, done.peer, now)?;
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let slot = self.reads.insert(PendingRead {
            done,
            peer: pi,
            generation,
            local,
            got: 0,
        });
        let id = u64::from(slot) | u64::from(generation) << 32;
        let kind = EngineOpKind::ReadReq {
            id,
            key: done.remote.key,
            addr: done.remote.addr,
            len: local.len() as u32,
        };
        let copy = self.buffer();
        self.add(pi, Self::op(None, kind, copy, UserMem::EMPTY, 0));
        self.expect(to, true, now);
        Ok(())
    }

    /// Slot of the read `id`, if the read is still under way and `peer` is its target.
    pub(super) fn read_slot(&self, id: u64, peer: u32) -> Option<u32> {
        let (slot, generation) = (id as u32, (id >> 32) as u32);
        let r = self.reads.get(slot)?;
        (r.generation == generation && r.peer == peer).then_some(slot)
    }

    /// Ends the reads that report to `to`; responses to them that arrive later are dropped.
    pub(crate) fn cancel_reads(&mut self, to: Report) {
        for slot in self.reads.select(|r| r.done.report == to) {
            let done = self.reads.get(slot).map(|r| r.done).unwrap_or_default();
            self.end_read(slot);
            let status = Status::LocalBadKey;
            self.backlog.push_back(Event::Done { done, status });
        }
    }

    /// The owner no longer has a number for this peer.
    pub(crate) fn forget(&mut self, a: &QpAddr) {
        let known = self.by_addr.get(a).copied();
        if let Some(p) = known.and_then(|pi| self.peers.get_mut(pi)) {
            p.name = None;
        }
    }

    /// The layer above waits (`on`) or no longer waits for an answer of this peer.
    pub(crate) fn expect(&mut self, a: &QpAddr, on: bool, now: u64) {
        let pi = match on {
            true => self.peer(a, now),
            // The peer's entry, with this count, ended with its session.
            false => match self.by_addr.get(a) {
                Some(pi) => *pi,
                None => return,
            },
        };
        if let Some(p) = self.peers.get_mut(pi) {
            if on {
                if p.expect == 0 {
                    p.last_rx_at = now;
                }
                p.expect += 1;
            } else {
                p.expect = p.expect.saturating_sub(1);
            }
        }
        self.activate(pi);
    }
}
