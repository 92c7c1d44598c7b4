//! A queue pair of an EFA adapter.
//!
//! A work request has a slot: what it was for, and memory for one packet, which sends copy into,
//! and short reads and writes of memory that is not registered. Several go to the adapter together,
//! with `ring`. Receives are always posted, and posted again when their packets have been taken
//! out. Whatever a peer was not ready for is sent again after a while.
//!
//! An adapter tells of a peer's end only who sends to it: of peers from whom an answer is awaited
//! the owner is reminded now and then, to send them something.
//!
//! `open` makes one, `post` hands requests over, `complete` takes what has ended; here is what the
//! provider sees of it.

mod complete;
mod open;
mod post;
mod slots;
mod timer;

use super::external::{ExternalCounter, ExternalQueue};
use super::mem::{FoundRegion, OWN_KEYS};
use super::pool::Pool;
use super::rings::{self, Inline, Rings, WqeOp};
use super::sys::*;
use super::Opened;
use crate::core::hash::ByWords;
use crate::core::Result;
use crate::device::wait::WaitSet;
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
use timer::tick;

/// Marks receives in `wr_id`; the rest of it is the slot.
pub(super) const RECV: u64 = 1 << 63;
/// Completions taken at once, and at most in one poll.
const BATCH: usize = 16;
const MOST: usize = 128;
/// Receives are posted so many at a time.
const REFILL: usize = 16;
/// How long a peer that was not ready is left alone: at first, doubled with each try, and at most.
const BACK_OFF: Duration = Duration::from_micros(50);
const BACK_OFF_MAX: Duration = Duration::from_millis(10);
/// How long a closing queue pair waits for what it has posted.
const LINGER: Duration = Duration::from_secs(1);
/// Without notifications, waiting programs look so often.
const TICK: Duration = Duration::from_millis(1);
/// Of peers from whom something is awaited the owner is reminded so often; the clock is looked at
/// with every so-manieth poll.
const REMIND: Duration = Duration::from_secs(1);
const LOOKS: u32 = 512;

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
    pub(super) dev: Arc<Opened>,
    pub(super) mode: Mode,
    /// Bytes that can go with a work request; with a write, too, where requests are wide.
    pub(super) inline: usize,
    pub(super) wide: bool,
    addr: QpAddr,
    qp: *mut ibv_qp,
    ex: *mut ibv_qp_ex,
    cq: *mut ibv_cq,
    channel: *mut ibv_comp_channel,
    /// What waiting programs wait on: the channel, and a timer for reminders, or in place of a
    /// channel.
    wait: WaitSet,
    timer: OwnedFd,
    /// From whom something is awaited, how often, and when the owner was last reminded.
    expected: HashMap<QpAddr, u32>,
    reminded: Instant,
    looks: u32,
    pub(super) tx: Pool,
    /// Packets' receives; the application brings its own.
    pub(super) rx: Option<Pool>,
    /// Its receives, by slot: as many as there were at once.
    pub(super) recvs: Vec<Option<PostedRecv>>,
    /// Requests under way, by slot: as many as there were at once; what few of them have; and how
    /// many slots there are.
    pub(super) slots: Vec<Option<TxSlot>>,
    pub(super) extras: Vec<TxExtra>,
    sends: usize,
    pub(super) free: Vec<u16>,
    /// The queues themselves, where they can be had.
    pub(super) rings: Option<Rings>,
    /// Whom requests can go to.
    pub(super) remotes: RemoteQps,
    /// What the owner calls those who send to us: by address handle and queue pair number.
    pub(super) names: HashMap<(u16, u16), u32, ByWords>,
    /// Between `wr_start` and `wr_complete`: slots that were handed over.
    batch: Vec<u16>,
    /// Those the library did not take.
    pub(super) refused: Vec<u16>,
    /// Those to be sent again, and when.
    pub(super) again: Vec<(Instant, u16)>,
    /// Receives to be posted, or that can be.
    pub(super) empty: Vec<u16>,
    /// Completions just taken, and those that `arm` came across.
    list: [ibv_wc; BATCH],
    pub(super) pending: Vec<ibv_wc>,
    /// Device memory is copied, even where it is registered.
    copies_device_memory: bool,
    /// Where the application's memory was last found to be registered.
    pub(super) found: FoundRegion,
    pub(super) senders: Senders,
    /// Queues of the application's, of sends and of receives, which stand in for ours; and whether
    /// the process sees one of them.
    external: [Option<Arc<ExternalQueue>>; 2],
    read: bool,
    /// What counts its operations.
    _counters: Vec<Arc<ExternalCounter>>,
}

// SAFETY: libibverbs takes calls from any thread; the owner serialises them.
unsafe impl Send for VerbsQp {}

impl VerbsQp {
    /// Hands a batch over to the library.
    #[inline(never)]
    fn complete_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let x = self.ex;
        // SAFETY: a batch was started.
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
        // Its number may be another's by now.
        if let Some(n) = number.filter(|n| self.names.get(n) == Some(&peer)) {
            self.names.remove(&n);
            self.senders.remove(&n);
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
            self.looks += 1;
            if seen == 0 && self.looks >= LOOKS {
                self.looks = 0;
                self.remind(into);
            }
        }
    }

    fn expect(&mut self, peer: &QpAddr, on: bool) {
        if on {
            if self.expected.is_empty() {
                self.reminded = Instant::now();
            }
            *self.expected.entry(*peer).or_default() += 1;
        } else if let Some(n) = self.expected.get_mut(peer) {
            *n -= 1;
            if *n == 0 {
                self.expected.remove(peer);
            }
        }
    }

    fn hold(&mut self, _: Option<fn(&[u8]) -> bool>) {}

    fn report_remote(&mut self) {}

    fn wait_fd(&self) -> i32 {
        self.wait.fd()
    }

    fn arm(&mut self) -> bool {
        self.hear();
        self.refill();
        // Who waits polls seldom: the next one looks at the clock.
        self.looks = LOOKS;
        if !self.channel.is_null() {
            match &mut self.rings {
                Some(r) => r.arm(),
                // SAFETY: the queue is open.
                None => unsafe {
                    ((*(*self.cq).context).req_notify_cq)(self.cq, 0);
                },
            }
            let awaits = !self.expected.is_empty();
            tick(&self.timer, if awaits { REMIND } else { Duration::ZERO });
        }
        // What came before the queue was armed makes no event.
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
            self.hear();
            (lib.ibv_destroy_cq)(self.cq);
            if !self.channel.is_null() {
                (lib.ibv_destroy_comp_channel)(self.channel);
            }
        }
    }
}
