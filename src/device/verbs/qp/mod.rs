//! A queue pair of an EFA adapter.
//!
//! A work request has a slot: the record of its operation, and memory for one packet. Sends copy
//! into that memory, and so do short reads and writes of memory that is not registered. One
//! doorbell (`ring`) announces several requests. Packet receives are always posted, and reposted
//! when their packets have been copied out. A request that ends with "receiver not ready" is sent
//! again after a back-off.
//!
//! An adapter reports the failure of a peer only to queue pairs that send to the peer. While the
//! owner awaits an answer, [`Event::Silent`] therefore asks it from time to time to send something.
//!
//! `open` opens a queue pair, `post` posts requests, `complete` handles completions; this file has
//! the interface to the provider.

mod complete;
mod open;
mod post;
mod slots;
mod timer;

use super::external::{ExternalCounter, ExternalQueue};
use super::mem::{FoundRegion, OWN_KEYS};
use super::pool::Pool;
use super::rings::{self, InlineData, QueueRings, WqeOp};
use super::sys::*;
use super::OpenAdapter;
use crate::core::hash::ByWords;
use crate::core::Result;
use crate::device::wait::WaitSet;
use crate::device::HeldPeers;
use crate::device::{Data, Event, Events, QpAddr, QueueMemory, QueuePair, RawQp, Taken};
use crate::hmem::{Piece, UserMem};
use crate::transport::{Completion, Payload, PeerId, Status, Verdict};
use crate::types::*;
pub(super) use complete::sender;
use core::ffi::c_int;
use core::ptr::null_mut;
pub(super) use post::grow;
use slots::RemoteQps;
pub(super) use slots::{PostedRecv, TxExtra, TxSlot};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use timer::set_timer;

/// Marks receives in `wr_id`; the rest of it is the slot.
pub(super) const RECV: u64 = 1 << 63;
/// Completions taken in one call of the library, and at most in one `poll_all`.
const BATCH: usize = 16;
const MOST: usize = 128;
/// Receives posted together.
const REFILL: usize = 16;
/// Back-off after "receiver not ready": initial value, doubled with each retry, and maximum.
const BACK_OFF: Duration = Duration::from_micros(50);
const BACK_OFF_MAX: Duration = Duration::from_millis(10);
/// How long a closing queue pair waits for its posted requests.
const LINGER: Duration = Duration::from_secs(1);
/// Poll interval of waiting programs, for a completion queue without notifications.
const TICK: Duration = Duration::from_millis(1);
/// Interval of [`Event::Silent`] for a peer that owes an answer; and the number of polls after
/// which the clock is read.
const SILENCE_INTERVAL: Duration = Duration::from_secs(1);
const CLOCK_POLLS: u32 = 512;

/// Peers, by address handle and queue pair number.
pub(super) type Senders = HashMap<(u16, u16), QpAddr, ByWords>;

/// What a queue pair is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Packets of the library, in its own memory.
    Packets,
    /// Work requests of the application, on its own memory.
    Direct,
    /// As [`Mode::Direct`], unreliably.
    Datagram,
}

/// See the module text.
pub struct VerbsQp {
    pub(super) dev: Arc<OpenAdapter>,
    pub(super) mode: Mode,
    /// The application's requests fail when the receiver has no buffer (see
    /// [`PacketQp`](crate::device::PacketQp)).
    pub(in crate::device::verbs) reports_rnr: bool,
    /// Most inline data of a message, bytes, at most [`InlineData::MOST`]; of a write, too, where
    /// requests are wide.
    pub(super) inline: usize,
    pub(super) wide: bool,
    addr: QpAddr,
    qp: *mut ibv_qp,
    ex: *mut ibv_qp_ex,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// What waiting programs wait on: the channel and a timer. The timer drives [`Event::Silent`],
    /// or polls where there is no channel.
    wait: WaitSet,
    timer: OwnedFd,
    /// Peers that owe answers, with the number of answers; when [`Event::Silent`] was last
    /// reported; and polls since the clock was last read.
    expected: HashMap<QpAddr, u32>,
    silence_reported: Instant,
    polls_since_clock: u32,
    pub(super) tx: Pool,
    /// Buffers of packet receives; `None` where receives are the application's.
    pub(super) rx: Option<Pool>,
    /// Receives of the application, by slot; grows to the most that were posted at once.
    pub(super) recvs: Vec<Option<PostedRecv>>,
    /// Requests under way, by slot, with the additional state that few of them need; both grow to
    /// the most that were under way at once. `sends` is the number of slots.
    pub(super) slots: Vec<Option<TxSlot>>,
    pub(super) extras: Vec<TxExtra>,
    sends: usize,
    pub(super) free: Vec<u16>,
    /// The mapped queues, where libefa maps them.
    pub(super) rings: Option<QueueRings>,
    /// Connected peers.
    pub(super) remotes: RemoteQps,
    /// The owner's numbers of senders, by address handle and queue pair number.
    pub(super) names: HashMap<(u16, u16), u32, ByWords>,
    /// Slots posted since `wr_start`, until `wr_complete`. libibverbs holds the send queue's lock
    /// in between, and takes it when it finds completions: no completion queue that this queue
    /// pair uses is polled before the batch ends.
    batch: Vec<u16>,
    /// Slots that the library refused.
    pub(super) refused: Vec<u16>,
    /// Slots to be sent again, and when.
    pub(super) again: Vec<(Instant, u16)>,
    /// Free receive slots; packet receives are reposted from here.
    pub(super) empty: Vec<u16>,
    /// Completions just taken; and those that `arm` or the fast path left to `poll_all`.
    list: [ibv_wc; BATCH],
    pub(super) pending: Vec<ibv_wc>,
    /// Device memory is copied, even where it is registered.
    copies_device_memory: bool,
    /// The last look-up of registered application memory.
    pub(super) found: FoundRegion,
    pub(super) senders: Senders,
    /// External completion queues of sends and of receives, in place of `cq`; and whether the
    /// process has to poll one of them.
    external: [Option<Arc<ExternalQueue>>; 2],
    read: bool,
    /// Attached counters, which have to outlive the queue pair.
    _counters: Vec<Arc<ExternalCounter>>,
}

// SAFETY: libibverbs takes calls from any thread; the owner serialises them.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// Ends a batch of requests (`wr_complete`), which posts them.
    #[inline(never)]
    pub(super) fn complete_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let x = self.ex;
        // SAFETY: the queue pair is open, and `batch` has entries only after `wr_start`.
        let e = unsafe { ((*x).wr_complete)(x) };
        if e != 0 {
            self.refused.append(&mut self.batch);
        }
        self.batch.clear();
    }
}

impl QueuePair for VerbsQp {
    fn addr(&self) -> QpAddr {
        self.addr
    }

    fn idle(&self) -> bool {
        self.free.len() == self.sends
    }

    fn room(&self) -> bool {
        !self.free.is_empty()
    }

    fn room_for(&self, _: PeerId, count: usize) -> bool {
        self.free.len() >= count
    }

    fn copy_device_memory(&mut self, on: bool) {
        self.copies_device_memory = on;
    }

    #[inline(always)]
    fn takes(&mut self, data: &Payload, key: u64) -> bool {
        let fits = match data {
            Payload::Inject(_) | Payload::Piece(_) => true,
            Payload::User(m) => self.takes_user(m),
        };
        key < OWN_KEYS && fits
    }

    fn connect(&mut self, peer: PeerId, at: &QpAddr) -> Result<()> {
        let h = self.dev.handle(&at.gid)?;
        self.disconnect(peer);
        self.remotes.set(peer, at, h);
        self.senders.insert((h.number, at.qpn), *at);
        self.names.insert((h.number, at.qpn), peer);
        Ok(())
    }

    #[inline]
    fn connected(&self, peer: PeerId) -> bool {
        self.remotes.get(peer).is_some()
    }

    fn busy_with(&self, peer: PeerId) -> bool {
        let mut all = self.slots.iter().flatten();
        all.any(|t| t.done.peer == peer && t.done.reports_itself())
    }

    fn disconnect(&mut self, peer: PeerId) {
        let number = self.remotes.get(peer).map(|r| (r.handle.number, r.qpn));
        self.remotes.remove(peer);
        // Another peer may have the same address handle and queue pair number by now.
        if let Some(n) = number.filter(|n| self.names.get(n) == Some(&peer)) {
            self.names.remove(&n);
            self.senders.remove(&n);
        }
    }

    #[inline(always)]
    fn send_piece(
        &mut self,
        done: impl Fn() -> Completion,
        imm: Option<u64>,
        p: Piece,
        inject: bool,
    ) -> Verdict {
        match self.send_in_place(&done, imm, p, inject) {
            Verdict::Unsupported => self.send_otherwise(done(), imm, p, inject),
            other => other,
        }
    }

    #[inline(always)]
    fn ring(&mut self) {
        match &mut self.rings {
            Some(r) if r.rung() => {}
            Some(r) => r.ring(),
            None => self.complete_batch(),
        }
    }

    fn poll_all(&mut self, into: &mut Events) {
        into.arena.clear();
        if !self.refused.is_empty() || !self.pending.is_empty() {
            for slot in core::mem::take(&mut self.refused) {
                self.ended(slot, Status::LocalQpError, into);
            }
            for wc in core::mem::take(&mut self.pending) {
                self.completed(&wc, into);
            }
        }
        if self.read {
            self.read_external(into);
        }
        let mut seen = 0;
        while seen < MOST {
            let n = self.take();
            for i in 0..n {
                if let Some(wc) = self.list.get(i).copied() {
                    self.completed(&wc, into);
                }
            }
            seen += n;
            if n < BATCH {
                break;
            }
        }
        self.refill_some();
        if !self.again.is_empty() {
            self.send_again();
        }
        if !self.expected.is_empty() {
            self.polls_since_clock += 1;
            if seen == 0 && self.polls_since_clock >= CLOCK_POLLS {
                self.polls_since_clock = 0;
                self.report_silent(into);
            }
        }
    }

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        if on {
            if self.expected.is_empty() {
                self.silence_reported = Instant::now();
            }
            *self.expected.entry(*peer).or_default() += 1;
        } else if let Some(n) = self.expected.get_mut(peer) {
            *n -= 1;
            if *n == 0 {
                self.expected.remove(peer);
            }
        }
    }

    fn hold(&mut self, _: fn(&[u8]) -> bool, _: HeldPeers) {}

    fn report_remote(&mut self) {}

    fn wait_fd(&self) -> i32 {
        self.wait.fd()
    }

    fn arm(&mut self) -> bool {
        self.drain_events();
        self.refill();
        // A program that waits polls seldom: the next poll reads the clock.
        self.polls_since_clock = CLOCK_POLLS;
        if !self.channel.is_null() {
            match &mut self.rings {
                Some(r) => r.arm(),
                // SAFETY: the queue is open.
                None => unsafe {
                    ((*(*self.cq).context).req_notify_cq)(self.cq, 0);
                },
            }
            let awaits = !self.expected.is_empty();
            set_timer(
                &self.timer,
                if awaits {
                    SILENCE_INTERVAL
                } else {
                    Duration::ZERO
                },
            );
        }
        // A completion from before the queue was armed raises no event.
        let n = self.take();
        self.pending.extend(self.list.iter().take(n));
        self.pending.is_empty() && self.again.is_empty() && self.refused.is_empty()
    }
}

impl Drop for VerbsQp {
    fn drop(&mut self) {
        let lib = self.dev.adapter.lib;
        let [sent, _] = &self.external;
        if !self.qp.is_null() && sent.as_ref().is_none_or(|q| q.seen()) {
            self.ring();
            let until = Instant::now() + LINGER;
            let mut events = Events::default();
            while !self.idle() && Instant::now() < until {
                self.poll_all(&mut events);
                events.list.clear();
                std::thread::yield_now();
            }
        }
        // SAFETY: each was made once and is destroyed once, in the order of their use.
        unsafe {
            if !self.qp.is_null() {
                (lib.ibv_destroy_qp)(self.qp);
            }
            for q in self.external.iter().flatten() {
                q.forget(self.addr.qpn, self.rings.is_some());
            }
            self.drain_events();
            (lib.ibv_destroy_cq)(self.cq);
            if !self.channel.is_null() {
                (lib.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}
