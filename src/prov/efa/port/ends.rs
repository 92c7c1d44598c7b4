//! How operations end: entries of completion queues, counters, and operations in several parts.

use super::*;
use crate::prov::reports::endpoint::remote_write_entry;

impl EpPort<'_> {
    pub(crate) fn count(&mut self, kind: CntrKind, len: usize, ok: bool) {
        self.count_at(self.to_cntrs.of(kind), len, ok);
    }

    pub(crate) fn count_at(&mut self, id: Option<u32>, len: usize, ok: bool) {
        if let Some(c) = id.and_then(|c| self.cntrs.get_mut(c)) {
            if ok {
                c.count(len);
            } else {
                c.add_error();
            }
        }
    }

    /// Completes a post: removes the operation's record if the post has failed, else rings the
    /// doorbell unless more requests follow (FI_MORE).
    pub(crate) fn posted(
        &mut self,
        ctx: u32,
        posted: crate::core::Result<()>,
        c: &impl Call,
    ) -> crate::core::Result<()> {
        if posted.is_err() {
            self.drop_op(ctx);
        } else if c.rings() {
            self.qp.ring_burst();
        }
        posted
    }

    /// Removes the record of an operation that was not posted, and what was registered for it.
    pub(crate) fn drop_op(&mut self, ctx: u32) {
        if let Some(op) = self.ops.remove(ctx) {
            op.withdraw(self.dev);
        }
    }

    pub(super) fn fi_addr(&self, p: PeerId) -> fi_addr_t {
        self.av.map_or(FI_ADDR_NOTAVAIL, |av| av.reverse(p))
    }

    pub(super) fn source_of(&self, p: PeerId) -> fi_addr_t {
        if self.source {
            self.fi_addr(p)
        } else {
            FI_ADDR_NOTAVAIL
        }
    }

    /// The error text for the application: operation, peer, memory, likely cause.
    pub(super) fn explain(&self, done: &Completion, peer: PeerId, f: &Failure) -> String {
        let flags = u64::from(done.flags);
        let what = match (
            flags & (FI_RECV | FI_READ | FI_WRITE),
            flags & FI_TAGGED != 0,
            flags & FI_ATOMIC != 0,
        ) {
            (FI_RECV, true, _) => "tagged receive",
            (FI_RECV, false, _) => "receive",
            (FI_READ, _, true) => "fetching atomic",
            (_, _, true) => "atomic",
            (FI_READ, _, _) => "RMA read",
            (FI_WRITE, _, _) => "RMA write",
            (_, true, _) => "tagged send",
            (_, false, _) => "send",
        };
        let addr = self.peers.addr(peer);
        let who = addr.map_or("an unknown peer".into(), |a| a.to_string());
        let cause = match Status::from_code(i32::from(f.status)) {
            Some(Status::RemoteUnresponsive) if addr.is_some_and(|a| a.ip().is_loopback()) => {
                "no answer from the peer: process gone, or on another host, which an address of \
                 loopback does not reach (FI_EFA_SOFT_IFACE)"
                    .to_string()
            }
            Some(s) if s != Status::Ok => s.text().to_string(),
            _ => crate::core::errno::text(f.errno),
        };
        if flags & (FI_RMA | FI_ATOMIC) != 0 {
            format!(
                "{what} of {} bytes, peer {who}, remote address {:#x}, key {:#x}: {cause}",
                done.len, done.remote.addr, done.remote.key
            )
        } else {
            format!("{what} of {} bytes, peer {who}: {cause}", done.len)
        }
    }

    /// Removes an operation and the keys that were registered for it.
    pub(super) fn take_op(&mut self, ctx: u32) -> Option<UserOp> {
        let op = self.ops.remove(ctx)?;
        op.withdraw(self.dev);
        Some(op)
    }

    /// Reports the end of an operation of the transmit side.
    pub(crate) fn complete(&mut self, done: &Completion, result: Result<(), Failure>) {
        match (done.report, &result) {
            (Report::Early { .. }, Ok(())) => return,
            // A context is completed once.
            (Report::Early { entry: true }, Err(f)) => {
                let text = self.explain(done, done.peer, f);
                crate::warn_limited!(
                    FI_LOG_EP_DATA,
                    "{text}, after its completion was written (FI_DELIVERY_COMPLETE waits for it)"
                );
                return;
            }
            (Report::Early { entry: false }, Err(_)) => {}
            _ => self.count(CntrKind::of(done.flags), done.len, result.is_ok()),
        }
        self.push_end(done, result);
    }

    /// The entry of an operation that has ended, if it gets one.
    fn push_end(&mut self, done: &Completion, result: Result<(), Failure>) {
        let Some(cq) = self.tx.map(|b| b.cq) else {
            return;
        };
        match result {
            Ok(()) => {
                if let Some(q) = self
                    .cqs
                    .get_mut(cq)
                    .filter(|_| done.report == Report::Entry)
                {
                    q.push(ended_entry(done));
                }
            }
            Err(f) => {
                let text = self.explain(done, done.peer, &f);
                let src = self.fi_addr(done.peer);
                if let Some(q) = self.cqs.get_mut(cq) {
                    q.push_error(ErrEntry {
                        entry: Entry {
                            src,
                            ..ended_entry(done)
                        },
                        err: f.errno,
                        prov_errno: i32::from(f.status),
                        text,
                        ..ErrEntry::default()
                    });
                }
            }
        }
    }

    /// Ends an operation of the transmit side.
    pub(crate) fn end(&mut self, op: UserOp, result: Result<(), Failure>) {
        let result =
            result.and_then(|()| copied(&op.mem, Status::LocalCopyFailed).map_err(failure));
        if let Some(coll) = op.collective {
            return self.coll_steps.push((coll, result.err()));
        }
        if op.work.is_none() {
            return self.complete(&op.done, result);
        }
        for c in op.cntrs(self.to_cntrs.of(CntrKind::of(op.done.flags))) {
            self.count_at(c, op.done.len, result.is_ok());
        }
        self.push_end(&op.done, result);
    }

    /// Connects the queue pair to a peer. `FI_EINVAL` for an unknown peer, `FI_EHOSTUNREACH` for
    /// one that the adapter cannot reach.
    #[inline]
    pub(crate) fn connect(&mut self, peer: PeerId) -> crate::core::Result<()> {
        if self.qp.connected(peer) {
            return Ok(());
        }
        let addr = self.peers.addr(peer).ok_or(FI_EINVAL)?;
        self.qp.connect(peer, addr)
    }

    /// A peer has written with immediate data.
    pub(crate) fn report_write(&mut self, peer: PeerId, data: u64, len: usize) {
        let src = self.source_of(peer);
        if let Some(q) = self.rx.and_then(|b| self.cqs.get_mut(b.cq)) {
            q.push(remote_write_entry(data, len, src));
        }
    }

    /// As [`EpPort::report_write`], but consumes receive `ctx`, whose context the completion gets.
    pub(crate) fn wrote(&mut self, ctx: u32, peer: PeerId, len: usize, data: u64) {
        let Some(op) = self.ops.remove(ctx) else {
            return;
        };
        let src = self.source_of(peer);
        if let Some(q) = self.rx.and_then(|b| self.cqs.get_mut(b.cq)) {
            q.push(Entry {
                context: op.done.context,
                ..remote_write_entry(data, len, src)
            });
        }
    }

    /// Counts a completed access of a peer to our memory: at the endpoint's counter, and at those
    /// bound to the region. RMA events are only counted, they raise no entry (fi_mr(3)).
    pub(crate) fn remote_access(&mut self, key: u64, len: usize, write: bool) {
        let counted = CntrKind::remote(write);
        self.count(counted, len, true);
        let kind = counted.flag();
        for i in 0..self.mr_cntrs.len() {
            if let Some((_, cntr, _)) = self
                .mr_cntrs
                .get(i)
                .filter(|(k, _, flags)| *k == key && flags & kind != 0)
            {
                self.count_at(Some(*cntr), len, true);
            }
        }
    }

    /// Records that a part of operation `ctx` has ended. After the last part the operation ends, or
    /// waits until its immediate data is posted.
    pub(crate) fn part_done(&mut self, ctx: u32, failed: Option<Failure>) {
        let Some(op) = self.ops.get_mut(ctx) else {
            return;
        };
        op.parts = op.parts.saturating_sub(1);
        if op.failed.is_none() {
            op.failed = failed;
        }
        if op.parts > 0 {
            return;
        }
        if op.failed.is_none() && op.late_imm.is_some() {
            self.late_imms.push(ctx);
            return;
        }
        if let Some(op) = self.take_op(ctx) {
            let result = op.failed.map_or(Ok(()), Err);
            self.end(op, result);
        }
    }

    /// Posts the immediate data of writes that needed several requests.
    pub(crate) fn post_late_imms(&mut self) {
        if self.late_imms.is_empty() {
            return;
        }
        for ctx in core::mem::take(self.late_imms) {
            if !self.post_late_imm(ctx) {
                self.late_imms.push(ctx);
            }
        }
    }

    /// Posts the immediate data of write `ctx`; `false` when the queue has no room.
    pub(super) fn post_late_imm(&mut self, ctx: u32) -> bool {
        let Some(op) = self.ops.get_mut(ctx) else {
            return true;
        };
        let Some(imm) = op.late_imm else { return true };
        let done = Completion {
            remote: op.done.remote,
            ..Completion::part(ctx, op.done.peer, 0)
        };
        if self.qp.put(done, Payload::EMPTY, Some(imm)) != Verdict::Queued {
            return false;
        }
        op.late_imm = None;
        op.parts = 1;
        true
    }

    /// Handles a message of a collective operation. Its remote CQ data, if any, is the errno of a
    /// member that has failed.
    pub(super) fn received_step(&mut self, ctx: u32, msg: Received, result: Result<(), Failure>) {
        let Some(op) = self.ops.remove(ctx) else {
            return;
        };
        self.expect(op.done.peer, false);
        let other = |errno| Some(Failure { errno, status: 0 });
        let failed = match (result, msg.cq_data) {
            (Err(f), _) => Some(f),
            (Ok(()), Some(e)) => other(e as i32),
            // The members disagree about the count.
            (Ok(()), None) if msg.len != op.mem.len() as u64 => other(FI_EINVAL),
            (Ok(()), None) => None,
        };
        self.coll_steps.extend(op.collective.map(|c| (c, failed)));
    }
}
