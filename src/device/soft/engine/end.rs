//! How operations and peers end, and what time brings about: repeats, silence, farewells.

use super::*;

impl Engine {
    /// Tells a sender that nobody of that name lives here.
    pub(super) fn reset(&mut self, to: SocketAddr, h: &Head) {
        let head = Head {
            dst_qkey: h.src_qkey,
            src_qkey: h.dst_qkey,
            flow: 0,
            psn: 0,
            una: 0,
            ack_flow: h.flow,
            ack_cum: 0,
            kind: Kind::Reset,
        };
        let mut d = Datagram {
            to,
            head: [0; HEAD_MAX],
            head_len: 0,
            body: UserMem::EMPTY,
        };
        d.head_len = head.emit(&mut d.head);
        self.out.push(d);
    }

    // ---- finishing -----------------------------------------------------------------------

    pub(super) fn finish_acked(&mut self, list: &mut Vec<Event>) {
        while let Some(part) = self.acked.pop() {
            let Some(op) = self.ops.get_mut(part.op) else {
                continue;
            };
            op.unacked = op.unacked.saturating_sub(1);
            if op.cut && op.unacked == 0 {
                self.finish(part.op, list);
            }
        }
    }

    pub(super) fn finish(&mut self, oi: u32, list: &mut Vec<Event>) {
        let Some(mut op) = self.ops.remove(oi) else {
            return;
        };
        if let Some(wr_id) = op.wr_id {
            self.user_ops -= 1;
            list.push(Event::Done {
                wr_id,
                status: op.status,
            });
        }
        op.copy.clear();
        if self.spare.len() < 64 && op.copy.capacity() <= 4096 {
            self.spare.push(op.copy);
        }
    }

    /// The peer refused a packet: its operation ends with that status.
    pub(super) fn refused(&mut self, part: Part, status: Status, list: &mut Vec<Event>) {
        let Some(op) = self.ops.get_mut(part.op) else {
            return;
        };
        op.status = status;
        if let OpKind::ReadReq { id, .. } = op.kind {
            let slot = id & ((1 << GEN_SHIFT) - 1);
            if let Some(wr_id) = self.reads.get(slot).map(|r| r.wr_id) {
                self.end_read(slot);
                list.push(Event::Done { wr_id, status });
            }
        }
        if let Some(op) = self.ops.get_mut(part.op) {
            // Nothing more of it is worth sending.
            op.cut = true;
            op.next = op.total;
        }
    }

    pub(super) fn fail_peer(&mut self, pi: u32, status: Status, list: &mut Vec<Event>, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let mut dead: Vec<u32> = p.tx.drain().map(|part| part.op).collect();
        dead.extend(p.pending.drain(..));
        p.tx = Self::new_flow(&mut self.next_flow);
        p.expect = 0;
        p.heard_at = now;
        let addr = p.addr;
        dead.sort_unstable();
        dead.dedup();
        for oi in dead {
            if let Some(op) = self.ops.get_mut(oi) {
                if op.status == Status::Ok {
                    op.status = status;
                }
            }
            self.finish(oi, list);
        }
        let reads: Vec<u32> = self
            .reads
            .iter()
            .filter(|(_, r)| r.peer == pi)
            .map(|(i, _)| i)
            .collect();
        for slot in reads {
            if let Some(r) = self.reads.remove(slot) {
                list.push(Event::Done {
                    wr_id: r.wr_id,
                    status,
                });
            }
        }
        list.push(Event::PeerDown { peer: addr, status });
    }

    /// Time: repetitions, silent peers, datagrams held back. Cheap when called too often.
    pub fn service(&mut self, list: &mut Vec<Event>, now: u64) {
        if now < self.last_service + MS {
            return;
        }
        self.last_service = now;
        self.release_held(now);
        let timeout = self.cfg.timeout;
        let mut i = 0;
        while let Some(pi) = self.active.get(i).copied() {
            i += 1;
            let Some(p) = self.peers.get_mut(pi) else {
                continue;
            };
            p.tx.tick(now);
            if p.tx.silence(now) > timeout {
                self.fail_peer(pi, Status::RemoteUnresponsive, list, now);
                continue;
            }
            let quiet = now.saturating_sub(p.heard_at) > timeout / 4;
            if p.expect > 0 && quiet && p.tx.idle() && p.pending.is_empty() {
                let to = p.addr;
                let copy = self.buffer();
                self.add(
                    &to,
                    Self::op(None, OpKind::Ping, copy, UserMem::EMPTY, 0),
                    now,
                );
            }
        }
    }
}
