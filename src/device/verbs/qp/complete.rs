//! Completions: turns ended requests and arrived packets into events for the owner, sends requests
//! again after "receiver not ready", and names peers that owe an answer.

use super::timer::read_timer;
use super::*;
use crate::transport::Report;
use std::collections::HashSet;

impl VerbsQp {
    /// Polls the completion queue for up to `BATCH` completions.
    #[inline]
    pub(super) fn take(&mut self) -> usize {
        let into = &mut self.list;
        if let Some(r) = &mut self.rings {
            return r.poll(into, RECV);
        }
        self.complete_batch();
        let into = &mut self.list;
        // SAFETY: the queue is open; there is room for as many.
        let n =
            unsafe { ((*(*self.cq).context).poll_cq)(self.cq, BATCH as c_int, into.as_mut_ptr()) };
        usize::try_from(n).unwrap_or(0)
    }

    /// Whether polling completions is all there is to do, so that the fast path may run.
    #[inline(always)]
    pub fn fast_path_allowed(&self) -> bool {
        let some = self.pending.len() | self.refused.len() | self.again.len();
        some | self.expected.len() == 0 && !self.read
    }

    /// Polls the external completion queues.
    #[cold]
    pub(super) fn read_external(&mut self, into: &mut Events) {
        let mut found = Vec::new();
        for q in self.external.iter().flatten() {
            q.take(self.addr.qpn, self.rings.is_some(), &mut |wc| {
                found.push(*wc);
            });
        }
        for wc in &found {
            self.completed(wc, into);
        }
    }

    pub(super) fn completed(&mut self, wc: &ibv_wc, into: &mut Events) {
        let slot = wc.wr_id as u16;
        if wc.wr_id == 0 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            // An unsolicited write consumes no receive.
            match status_of(wc) {
                Status::Ok => into.list.push(self.write_imm(wc)),
                failed => crate::warn_limited!(
                    FI_LOG_EP_DATA,
                    "a peer's write with immediate data has failed: {}",
                    failed.text()
                ),
            }
            return;
        }
        if wc.wr_id & RECV != 0 {
            self.handle_receive(slot, wc, into);
            return;
        }
        self.ended(slot, status_of(wc), into);
    }

    fn sender(&self, wc: &ibv_wc) -> QpAddr {
        sender(&self.senders, &self.dev, (wc.slid, wc.src_qp as u16))
    }

    fn write_imm(&self, wc: &ibv_wc) -> Event {
        Event::WriteImm {
            from: self.sender(wc),
            imm: wc.imm_data,
            len: wc.byte_len,
        }
    }

    /// Handles the completion of the receive in a slot.
    pub(super) fn handle_receive(&mut self, slot: u16, wc: &ibv_wc, into: &mut Events) {
        self.empty.push(slot);
        if self.mode != Mode::Packets {
            return self.end_receive(slot, wc, into);
        }
        if wc.status != 0 {
            return;
        }
        if wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM {
            return into.list.push(self.write_imm(wc));
        }
        let from = self.sender(wc);
        let Some(rx) = &self.rx else { return };
        let bytes = rx.bytes(slot, wc.byte_len as usize);
        let at = into.arena.len();
        into.arena.extend_from_slice(bytes);
        let data = Data::Arena(at as u32, into.arena.len() as u32);
        into.list.push(if from.qkey != 0 {
            Event::Recv {
                from,
                peer: None,
                data,
                imm: None,
            }
        } else {
            Event::UnknownSender { from, data }
        });
    }

    /// The result of a receive of the application.
    fn taken_by(&self, wc: &ibv_wc) -> Taken {
        Taken {
            from: self.sender(wc),
            len: wc.byte_len,
            imm: (wc.wc_flags & WC_WITH_IMM != 0).then_some(wc.imm_data),
            status: status_of(wc),
            write: wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM,
        }
    }

    /// Ends a receive of the application.
    pub(super) fn end_receive(&mut self, slot: u16, wc: &ibv_wc, into: &mut Events) {
        let taken = self.taken_by(wc);
        let posted = self.recvs.get_mut(usize::from(slot));
        if let Some(r) = posted.and_then(Option::take) {
            into.list.push(Event::Taken {
                done: r.done,
                into: r.into,
                taken,
            });
        }
    }

    /// Ends a work request, unless it has to be sent again.
    pub(super) fn ended(&mut self, slot: u16, status: Status, into: &mut Events) {
        let at = self.slots.get_mut(usize::from(slot));
        let Some((at, t)) = at.and_then(|at| at.map(|t| (at, t))) else {
            return;
        };
        // Packets that no operation of the application is made of are always sent again.
        let internal = matches!(t.done.report, Report::Nowhere | Report::Answer(_));
        let again = self.mode == Mode::Packets && (internal || !self.reports_rnr);
        if status == Status::RemoteNotReady && again {
            let wait = back_off(t.tries.into());
            *at = Some(TxSlot {
                tries: t.tries.saturating_add(1),
                ..t
            });
            return self.again.push((Instant::now() + wait, slot));
        }
        *at = None;
        if t.extra {
            let extra = self.extras.get_mut(usize::from(slot));
            let extra = extra.map(core::mem::take).unwrap_or_default();
            if let (Some(mem), Status::Ok) = (&extra.back, status) {
                mem.store(0, self.tx.bytes(slot, mem.len()));
            }
        }
        self.free.push(slot);
        let done = t.done;
        into.list.push(Event::Done { done, status });
        if is_down(status) {
            let peer = self.remotes.addr(done.peer);
            into.list
                .extend(peer.map(|peer| Event::PeerDown { peer, status }));
        }
    }

    /// Sends requests again whose back-off has expired.
    pub(super) fn send_again(&mut self) {
        let now = Instant::now();
        let mut i = 0;
        while let Some((when, slot)) = self.again.get(i).copied() {
            if when > now {
                i += 1;
                continue;
            }
            self.again.swap_remove(i);
            self.submit(slot, None);
        }
        self.ring();
    }

    /// Reports [`Event::Silent`] for each peer that owes an answer, once every `SILENCE_INTERVAL`,
    /// unless a request to the peer is under way: the adapter reports its end, and further packets
    /// to a peer that does not poll would take all slots.
    pub(super) fn report_silent(&mut self, into: &mut Events) {
        if self.silence_reported.elapsed() < SILENCE_INTERVAL {
            return;
        }
        self.silence_reported = Instant::now();
        let asked = self.slots.iter().flatten().map(|t| t.done.peer);
        let asked: HashSet<QpAddr> = asked.filter_map(|p| self.remotes.addr(p)).collect();
        let silent = self.expected.keys().filter(|p| !asked.contains(p));
        into.list.extend(silent.map(|p| Event::Silent { peer: *p }));
    }

    /// Reads and acknowledges the events of the channel: ibv_destroy_cq(3) waits for all to be
    /// acknowledged.
    pub(super) fn drain_events(&mut self) {
        read_timer(&self.timer);
        if self.channel.is_null() {
            return;
        }
        let lib = self.dev.adapter.lib;
        let (mut cq, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel and its one queue are open; the descriptor does not block.
        unsafe {
            while (lib.ibv_get_cq_event)(self.channel, &mut cq, &mut context) == 0 {
                (lib.ibv_ack_cq_events)(cq, 1);
                if let Some(r) = &mut self.rings {
                    r.heard();
                }
            }
        }
    }
}

/// Address of the sender of a completion, by address handle and queue pair number. For an unknown
/// sender the qkey is 0; for an unknown address handle the GID is zero, too.
pub(in crate::device::verbs) fn sender(
    known: &Senders,
    dev: &OpenAdapter,
    from: (u16, u16),
) -> QpAddr {
    let (ah, qpn) = from;
    known.get(&from).copied().unwrap_or_else(|| QpAddr {
        gid: dev.host(ah).unwrap_or_default(),
        qpn,
        qkey: 0,
        token: 0,
    })
}

/// Whether this status means that the peer has failed.
fn is_down(status: Status) -> bool {
    use Status::{RemoteBadQpn, RemoteUnreachable, RemoteUnresponsive};
    matches!(
        status,
        RemoteBadQpn | RemoteUnreachable | RemoteUnresponsive
    )
}

/// Back-off of a request that has met "receiver not ready" `tries` times before.
fn back_off(tries: u32) -> Duration {
    (BACK_OFF * (1 << tries.min(8))).min(BACK_OFF_MAX)
}

/// Status of a completion, by the adapter's own code.
fn status_of(wc: &ibv_wc) -> Status {
    match wc.status {
        0 => Status::Ok,
        _ => Status::from_code(wc.vendor_err as i32).unwrap_or(Status::LocalQpError),
    }
}
