//! The end of operations and sessions, and the timers: retransmission, peer time-outs, probes.

use super::*;

impl Engine {
    /// Ends the operations whose last packets are in `acked`.
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

    /// Ends an operation; its completion becomes an event.
    pub(super) fn finish(&mut self, oi: u32, list: &mut Vec<Event>) {
        let Some(mut op) = self.ops.remove(oi) else {
            return;
        };
        let p = self.peers.get_mut(op.peer);
        if let Some(p) = p {
            match op.kind {
                EngineOpKind::ReadResp { key, counted, .. } => {
                    p.serving = p.serving.saturating_sub(1);
                    // The application may change the memory once the access is counted.
                    if counted && op.status == Status::Ok {
                        list.push(Event::Remote {
                            key,
                            len: op.total as u32,
                            write: false,
                        });
                    }
                }
                _ if op.done.is_some() => p.user_ops = p.user_ops.saturating_sub(1),
                _ => {}
            }
        }
        if let Some(done) = op.done {
            self.user_ops -= 1;
            list.push(Event::Done {
                done,
                status: op.status,
            });
        }
        op.copy.clear();
        if self.spare.len() < SPARE_MAX && op.copy.capacity() <= SPARE_BYTES {
            self.spare.push(op.copy);
        }
    }

    /// The peer refused a packet: its operation ends with that status.
    pub(super) fn handle_refusal(&mut self, part: TxPart, status: Status, list: &mut Vec<Event>) {
        let Some(op) = self.ops.get_mut(part.op) else {
            return;
        };
        op.status = status;
        if let EngineOpKind::ReadReq { id, .. } = op.kind {
            // A refusal may come late, when the slot is another read's.
            let peer = op.peer;
            let slot = self.read_slot(id, peer);
            let read = slot.and_then(|slot| Some((slot, self.reads.get(slot)?.done)));
            if let Some((slot, done)) = read {
                self.end_read(slot);
                list.push(Event::Done { done, status });
            }
        }
        if let Some(op) = self.ops.get_mut(part.op) {
            // The rest of a refused operation is not sent.
            op.cut = true;
            op.next = op.total;
            let peer = op.peer;
            // Once the operation has ended, its index is another's, perhaps for another peer.
            if let Some(p) = self.peers.get_mut(peer) {
                p.pending.retain(|i| *i != part.op);
            }
        }
    }

    pub(super) fn fail_peer(&mut self, pi: u32, status: Status, list: &mut Vec<Event>, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let mut dead: Vec<u32> = p.tx.drain().map(|part| part.op).collect();
        dead.extend(p.pending.drain(..));
        p.tx = Self::new_flow();
        p.expect = 0;
        p.last_rx_at = now;
        let addr = p.addr;
        dead.sort_unstable();
        dead.dedup();
        for oi in dead {
            if let Some(op) = self.ops.get_mut(oi) {
                // A response to a read that was sent in full counts as done: the reader may have
                // received the data before it ended.
                let answered = matches!(op.kind, EngineOpKind::ReadResp { .. }) && op.cut;
                if op.status == Status::Ok && !answered {
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
                    done: r.done,
                    status,
                });
            }
        }
        list.push(Event::PeerDown { peer: addr, status });
    }

    /// Runs the timers, at most once per millisecond: retransmission, peer time-outs, probes, and
    /// datagrams held back by fault injection.
    pub(crate) fn service(&mut self, list: &mut Vec<Event>, now: u64) {
        if now < self.last_service + MS {
            return;
        }
        let pause = now.saturating_sub(self.last_service);
        self.last_service = now;
        self.release_held(now);
        self.service_sessions(now);
        let timeout = self.cfg.timeout;
        if pause > timeout / 4 && !self.active.is_empty() {
            self.discount_pause(pause, now);
        }
        let mut i = 0;
        while let Some(pi) = self.active.get(i).copied() {
            let Some(p) = self.peers.get_mut(pi) else {
                self.active.swap_remove(i);
                continue;
            };
            let probe = p.tx.tick(now);
            let end = match p.session.state {
                SessionState::HelloSent { .. } if self.sessions.is_closed(&p.addr) => {
                    Some(Status::RemoteBadQpn)
                }
                SessionState::HelloSent { since, .. } if now.saturating_sub(since) > timeout => {
                    Some(Status::RemoteUnresponsive)
                }
                _ if p.tx.silence(now) > timeout => Some(Status::RemoteUnresponsive),
                _ if p.tx.stuck(now) > STUCK_TIMEOUTS * timeout => {
                    crate::warn_log!(
                        FI_LOG_EP_DATA,
                        "{}: a packet does not arrive although others do; packets here have up to \
                         {} bytes of data: most likely a link on the way has a smaller MTU",
                        p.to,
                        self.cfg.segment
                    );
                    Some(Status::RemoteUnresponsive)
                }
                _ => None,
            };
            if let Some(status) = end {
                // Also removes the peer from `active`.
                self.end_session(pi, status, list, now);
                continue;
            }
            i += 1;
            let quiet = now.saturating_sub(p.last_rx_at) > timeout / 4;
            if probe {
                self.probe(pi, now);
            } else if p.expect > 0 && quiet && p.tx.idle() && p.pending.is_empty() {
                self.ping(pi);
            }
        }
        if now > self.last_probe + PROBE_INTERVAL {
            self.last_probe = now;
            // A peer that vanished without BYE does not answer the probe, and its entry is removed.
            let gone = |p: &EnginePeer| {
                !p.active && now.saturating_sub(p.last_rx_at) > PROBE_TIMEOUTS * timeout
            };
            for pi in self.peers.select(gone) {
                self.ping(pi);
            }
        }
    }

    /// This process has not run for so long (a debugger, a suspended job): what the peers sent
    /// meanwhile waits in the socket, and the pause does not count as a time without packets.
    fn discount_pause(&mut self, pause: u64, now: u64) {
        for pi in &self.active {
            let Some(p) = self.peers.get_mut(*pi) else {
                continue;
            };
            p.tx.discount_pause(pause, now);
            p.last_rx_at = now.min(p.last_rx_at.saturating_add(pause));
            if let SessionState::HelloSent { since, .. } = &mut p.session.state {
                *since = now.min(since.saturating_add(pause));
            }
        }
    }

    /// Sends a probe: a PING, or the oldest packet under way if the window has no number left.
    fn probe(&mut self, pi: u32, now: u64) {
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let (psn, part) = if p.tx.has_number() {
            let copy = self.spare.pop().unwrap_or_default();
            let op = Self::op(None, EngineOpKind::Ping, copy, UserMem::EMPTY, 0);
            let (cut, unacked) = (true, 1);
            let op = self.ops.insert(EngineOp {
                peer: pi,
                cut,
                unacked,
                ..op
            });
            let (off, len) = (0, 0);
            let part = TxPart { op, off, len };
            (p.tx.push(part, 0, now), part)
        } else {
            let Some((psn, part)) = p.tx.resend_oldest(now) else {
                return;
            };
            (psn, *part)
        };
        self.build(pi, psn, part);
    }

    /// Queues a PING, which the peer has to acknowledge.
    fn ping(&mut self, pi: u32) {
        let copy = self.buffer();
        let op = Self::op(None, EngineOpKind::Ping, copy, UserMem::EMPTY, 0);
        self.add(pi, op);
    }
}
