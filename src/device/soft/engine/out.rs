//! Send path: cuts operations into packets as the flow's window permits, and hands packets and
//! acknowledgements to the socket in batches.

use super::*;
use crate::hmem;

impl Engine {
    pub(super) fn pump(&mut self, pi: u32, now: u64) {
        let segment = self.cfg.segment as u64;
        loop {
            if self.out.len() >= BATCH {
                self.flush(now);
            }
            let Some(p) = self.peers.get_mut(pi) else {
                return;
            };
            if p.session.state != SessionState::Open {
                if !p.pending.is_empty() {
                    self.call(pi, now);
                }
                return;
            }
            if let Some((psn, part)) = p.tx.resend(now) {
                let part = *part;
                self.build(pi, psn, part);
                continue;
            }
            let Some(&oi) = p.pending.front() else { return };
            let Some(op) = self.ops.get_mut(oi) else {
                p.pending.pop_front();
                continue;
            };
            if op.cut {
                p.pending.pop_front();
                continue;
            }
            let len = (op.total - op.next).min(segment) as u32;
            if !p.tx.may_send(len) {
                return;
            }
            let part = TxPart {
                op: oi,
                off: op.next,
                len,
            };
            if !matches!(op.kind, EngineOpKind::Ping) {
                p.delayed.sent(now);
            }
            let psn = p.tx.push(part, len, now);
            op.next += u64::from(len);
            op.unacked += 1;
            if op.next >= op.total {
                op.cut = true;
                p.pending.pop_front();
            }
            self.build(pi, psn, part);
        }
    }

    /// Builds a packet and puts it into the batch.
    pub(super) fn build(&mut self, pi: u32, psn: u32, part: TxPart) {
        let (Some(p), Some(op)) = (self.peers.get_mut(pi), self.ops.get(part.op)) else {
            return;
        };
        let mut answer = UserMem::EMPTY;
        let mut failed = false;
        let kind = match op.kind {
            EngineOpKind::Send { .. } if op.total <= self.cfg.segment as u64 => PacketKind::Send,
            EngineOpKind::Send { .. } => PacketKind::SendPart {
                op: op.number,
                total: op.total as u32,
                off: part.off as u32,
            },
            EngineOpKind::Write { key, addr, imm } => PacketKind::Write {
                op: op.number,
                key,
                addr: addr.wrapping_add(part.off),
                total: op.total as u32,
                imm,
            },
            EngineOpKind::ReadReq { id, key, addr, len } => {
                PacketKind::ReadReq { id, key, addr, len }
            }
            EngineOpKind::ReadResp { id, key, addr, .. } => {
                let at = addr.wrapping_add(part.off);
                let copies = (&mut self.lease, &mut self.bounce);
                let (found, off) = read_region(&self.mem, (key, at, part), copies);
                answer = found;
                failed = matches!(off, READ_GONE | READ_FAILED);
                PacketKind::ReadResp { id, off }
            }
            EngineOpKind::Ping => PacketKind::Ping,
        };
        let said = p.rx.as_ref().filter(|r| !r.has_refused());
        let head = PacketHead {
            ack: said.map(RxFlow::cum),
            ..p.head((self.me.qkey, self.vtag), kind, psn)
        };
        let d = self.out.add(p.to);
        d.body = answer;
        d.head_len = head.emit(&mut d.head);
        add_payload(d, op, part);
        if !d.body.is_host() {
            d.body = bounced(&d.body, &mut self.bounce);
        }
        join_short_body(d);
        if let Some(r) = p.rx.as_mut().filter(|r| !r.needs_detail()) {
            // The packet carries the acknowledgement.
            r.acked();
            p.rx_bytes = 0;
        }
        if failed {
            if let Some(op) = self.ops.get_mut(part.op) {
                op.status = Status::RemoteBadKey;
            }
        }
    }

    /// Hands the batch to the kernel.
    pub(super) fn flush(&mut self, now: u64) {
        if self.out.len() == 0 {
            return;
        }
        if self.send_unmodified {
            self.sock.send(self.out.take());
            self.end_batch();
            return;
        }
        self.flush_modified(now);
    }

    /// As [`Engine::flush`], with sealing, segmentation offload, fault injection or a tap.
    #[inline(never)]
    fn flush_modified(&mut self, now: u64) {
        // The buffer of `Seal` has space for one batch.
        let mut out = core::mem::take(&mut self.out);
        for batch in out.take().chunks_mut(BATCH) {
            if self.seal.as_mut().is_some_and(|s| !s.seal(batch)) {
                break;
            }
            #[cfg(any(test, feature = "internals"))]
            if let Some(tap) = &self.tap {
                tap.lock()
                    .unwrap_or_else(|e| e.into_inner())
                    .extend(batch.iter().map(Datagram::flatten));
            }
            if self.faults.is_some() {
                self.flush_with_faults(batch, now);
            } else if self.cfg.gso {
                self.flush_runs(batch);
            } else {
                self.sock.send(batch);
            }
        }
        self.out = out;
        self.end_batch();
    }

    /// Releases what the datagrams that were sent referred to.
    fn end_batch(&mut self) {
        self.bounce.clear();
        self.lease = None;
    }

    /// Sends datagrams of one size to one receiver in runs, about equally long: the receiver works
    /// on one while the next is sent.
    fn flush_runs(&self, mut rest: &[Datagram]) {
        let size = |d: &Datagram| d.head_len + d.body.len();
        while let Some(first) = rest.first() {
            let len = size(first);
            let n = rest
                .iter()
                .take_while(|d| d.to == first.to && size(d) == len)
                .count();
            let (mut alike, mut tail) = rest.split_at(n.max(1));
            // The last packet of a message goes with the others.
            if let [last, after @ ..] = tail {
                if last.to == first.to && size(last) < len {
                    let whole = rest.split_at(n + 1);
                    (alike, tail) = (whole.0, after);
                }
            }
            let most = (65_000 / len.max(1)).clamp(1, BATCH);
            let runs = alike.len().div_ceil(most);
            for run in alike.chunks(alike.len().div_ceil(runs)) {
                if run.len() < 2 || !self.sock.send_run(run, len) {
                    self.sock.send(run);
                }
            }
            rest = tail;
        }
    }

    fn flush_with_faults(&mut self, batch: &[Datagram], now: u64) {
        let Some(f) = self.faults.as_mut() else {
            return;
        };
        for d in batch {
            match f.next_action(now) {
                FaultAction::Lose => {}
                FaultAction::Send => self.sock.send(core::slice::from_ref(d)),
                FaultAction::Double => {
                    self.sock.send(core::slice::from_ref(d));
                    self.sock.send(core::slice::from_ref(d));
                }
                FaultAction::Hold(at) => f.hold(at, (d.to, d.flatten())),
            }
        }
    }

    pub(super) fn release_held(&mut self, now: u64) {
        let Some(f) = self.faults.as_mut() else {
            return;
        };
        for (to, bytes) in f.due(now) {
            // SAFETY: `bytes` lives until the end of this iteration, after the system call.
            let m = unsafe { UserMem::new([(bytes.as_ptr().cast::<c_void>(), bytes.len())]) };
            let d = Datagram {
                to,
                head: [0; HEAD_MAX],
                head_len: 0,
                body: m.unwrap_or(UserMem::EMPTY),
            };
            self.sock.send(&[d]);
        }
    }

    // ---- acknowledging -------------------------------------------------------------------

    pub(super) fn schedule_ack(&mut self, pi: u32) {
        if let Some(p) = self.peers.get_mut(pi).filter(|p| !p.ack_pending) {
            p.ack_pending = true;
            self.ack_pending.push(pi);
        }
    }

    /// Sends the acknowledgements that are due; all of them with `force`: the application does not
    /// poll.
    pub(super) fn ack(&mut self, now: u64, force: bool) {
        let mut i = 0;
        while let Some(pi) = self.ack_pending.get(i).copied() {
            let Some(p) = self.peers.get_mut(pi) else {
                self.ack_pending.swap_remove(i);
                continue;
            };
            let done = match p.rx.as_mut() {
                None => true,
                Some(r) if r.unacked == 0 => true,
                Some(r) => {
                    r.idle_polls += 1;
                    let due = force
                        || p.ack_now
                        || r.unacked >= ACK_PACKETS
                        || p.rx_bytes >= ACK_BYTES
                        || r.needs_detail()
                        || r.idle_polls > ACK_IDLE;
                    if due {
                        if force {
                            p.delayed.not_polled(now);
                        }
                        self.push_ack(pi, false);
                    }
                    due
                }
            };
            if done {
                self.ack_pending.swap_remove(i);
                if let Some(p) = self.peers.get_mut(pi) {
                    p.ack_pending = false;
                    p.ack_now = false;
                }
            } else {
                i += 1;
            }
        }
        self.flush(now);
    }

    pub(super) fn push_ack(&mut self, pi: u32, bye: bool) {
        let rcvbuf = self.sock.rcvbuf();
        let Some(p) = self.peers.get_mut(pi) else {
            return;
        };
        let base = p.head((self.me.qkey, self.vtag), PacketKind::Ping, 0);
        let r = p.rx.get_or_insert_with(|| RxFlow::new(0));
        let mut words = [0u64; MAX_WORDS];
        let n = r.words(&mut words);
        let errs = r.errors();
        let head = PacketHead {
            ack: Some(r.cum()),
            kind: PacketKind::Ack {
                bytes: (rcvbuf * 5 / 8).min(u32::MAX as usize) as u32,
                packets: (rcvbuf / 2048).clamp(16, 1024) as u16,
                words: n as u8,
                errs: errs.len() as u8,
                bye,
            },
            ..base
        };
        let d = self.out.add(p.to);
        d.body = UserMem::EMPTY;
        let mut at = head.emit(&mut d.head);
        let mut put = |bytes: &[u8]| {
            if let Some(to) = d.head.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
                at += bytes.len();
            }
        };
        for w in words.iter().take(n) {
            put(&w.to_le_bytes());
        }
        for (psn, status) in errs {
            put(&psn.to_le_bytes());
            put(&(status as u32).to_le_bytes());
        }
        d.head_len = at;
        r.acked();
        p.rx_bytes = 0;
        p.delayed.went_alone();
    }
}

/// The memory at `at` of the region of `key` that answers a part of a peer's read, and the part's
/// offset. The region may have been closed, or its device failed, after the request was accepted:
/// then there is none, and [`READ_GONE`] or [`READ_FAILED`] in place of the offset.
#[inline(always)]
fn read_region(
    mem: &Arc<MemTable>,
    (key, at, part): (u64, u64, TxPart),
    (lease, bounce): (&mut Option<MemLease>, &mut Vec<Box<[u8]>>),
) -> (UserMem, u64) {
    let regions = mem.access();
    let Ok(m) = regions.find(key, at, u64::from(part.len), FI_REMOTE_READ) else {
        return (UserMem::EMPTY, READ_GONE);
    };
    lease.get_or_insert_with(|| MemLease::new(mem, &regions));
    let copy = match m.is_host() {
        true => m,
        false => bounced(&m, bounce),
    };
    match hmem::take_failure(&m) {
        false => (copy, part.off),
        true => (UserMem::EMPTY, READ_FAILED),
    }
}

/// Adds to a datagram the payload of a part of an operation: the header of a message comes first,
/// and then what was copied at posting, or the application's memory.
#[inline(always)]
fn add_payload(d: &mut Datagram, op: &EngineOp, part: TxPart) {
    let head_len = match op.kind {
        EngineOpKind::Send { head_len } => head_len,
        _ => 0,
    };
    let (from, to) = (part.off as usize, part.off as usize + part.len as usize);
    let own = op.copy.get(from.min(head_len)..to.min(head_len));
    if let Some((own, to)) = own.and_then(|own| {
        let place = d.head_len..d.head_len + own.len();
        Some((own, d.head.get_mut(place)?))
    }) {
        to.copy_from_slice(own);
        d.head_len += own.len();
    }
    let at = from.max(head_len) - head_len;
    let len = to.max(head_len) - head_len - at;
    if !op.user.is_empty() {
        d.body = op.user.part(at, len);
    } else if let Some(b) = op.copy.get(head_len + at..).filter(|b| !b.is_empty()) {
        let n = b.len().min(len);
        // SAFETY: the buffer belongs to the operation, which outlives the batch: `flush` runs
        // before anything can finish the operation.
        let m = unsafe { UserMem::new([(b.as_ptr().cast::<c_void>(), n)]) };
        d.body = m.unwrap_or(UserMem::EMPTY);
    }
}

/// Copies a short body behind the header: one piece of memory costs the system call less than two.
#[inline(always)]
fn join_short_body(d: &mut Datagram) {
    let short = d.head_len..d.head_len + d.body.len();
    if let Some(to) = d.head.get_mut(short).filter(|to| !to.is_empty()) {
        d.head_len += d.body.load(0, to);
        d.body = UserMem::EMPTY;
    }
}

/// Copies device memory, which the kernel cannot read, into a bounce buffer that `kept` holds until
/// the batch is sent.
#[cold]
fn bounced(body: &UserMem, kept: &mut Vec<Box<[u8]>>) -> UserMem {
    let mut copy = vec![0u8; body.len()].into_boxed_slice();
    body.load(0, &mut copy);
    // SAFETY: the bytes stay where they are until the batch is sent, see `Engine::flush`.
    let m = unsafe { UserMem::new([(copy.as_ptr().cast::<c_void>(), copy.len())]) };
    kept.push(copy);
    m.unwrap_or(UserMem::EMPTY)
}
