//! The receiving half of a flow: which packets have arrived, and the contents of acknowledgements.

use super::{dist, WINDOW};
use crate::device::soft::packet::{MAX_ERRS, MAX_WORDS};
use crate::transport::Status;
use std::collections::HashMap;

/// Partly received writes that are counted at once per peer; a correct peer has at most a window of
/// them.
const PARTIAL_MAX: usize = WINDOW as usize;

/// Bytes received so far of a write that raises an event.
#[derive(Debug, Default)]
struct PartialWrite {
    got: u32,
    refused: bool,
}

/// Remembers which numbers have arrived, so that each packet takes effect once, in whatever order.
#[derive(Debug)]
pub(crate) struct RxFlow {
    next: u32,
    bits: [u64; MAX_WORDS],
    /// Packets received since the last acknowledgement, duplicates included.
    pub unacked: u32,
    /// Polls since the last packet arrived.
    pub idle_polls: u32,
    refused: Vec<(u32, Status)>,
    not_ready: Vec<u32>,
    partial: HashMap<u32, PartialWrite>,
}

impl RxFlow {
    /// A flow whose first packet is `una`.
    pub(crate) fn new(una: u32) -> Self {
        RxFlow {
            next: una,
            bits: [0; MAX_WORDS],
            unacked: 0,
            idle_polls: 0,
            refused: Vec::new(),
            not_ready: Vec::new(),
            partial: HashMap::new(),
        }
    }

    fn slot(psn: u32) -> (usize, u64) {
        let at = psn % WINDOW;
        ((at / 64) as usize, 1 << (at % 64))
    }

    fn seen(&self, psn: u32) -> bool {
        let (w, b) = Self::slot(psn);
        self.bits.get(w).is_some_and(|x| x & b != 0)
    }

    /// Whether this number is within the window and has not arrived yet.
    pub(crate) fn fresh(&self, psn: u32) -> bool {
        let d = dist(psn, self.next);
        (0..WINDOW as i32).contains(&d) && !self.seen(psn)
    }

    /// Records that a packet has arrived.
    pub(crate) fn take(&mut self, psn: u32) {
        let (w, b) = Self::slot(psn);
        if let Some(x) = self.bits.get_mut(w) {
            *x |= b;
        }
        while self.seen(self.next) {
            let (w, b) = Self::slot(self.next);
            if let Some(x) = self.bits.get_mut(w) {
                *x &= !b;
            }
            self.next = self.next.wrapping_add(1);
        }
        self.mark_unacked();
    }

    /// Records that an acknowledgement is due, for new packets and for duplicates.
    pub(crate) fn mark_unacked(&mut self) {
        self.unacked += 1;
        self.idle_polls = 0;
    }

    /// Refuses a packet with a status. `false` when too many refusals are pending: the packet then
    /// counts as lost, and the sender retransmits it.
    pub(crate) fn refuse(&mut self, psn: u32, status: Status) -> bool {
        if self.refused.len() >= MAX_ERRS {
            return false;
        }
        self.refused.push((psn, status));
        self.take(psn);
        true
    }

    /// Records that there is no buffer for this packet now (RNR).
    pub(crate) fn not_ready(&mut self, psn: u32) {
        if self.not_ready.len() < MAX_ERRS {
            self.not_ready.push(psn);
        }
        self.mark_unacked();
    }

    /// Drops the refusals below `una`: the sender has received them.
    pub(crate) fn forget_refusals(&mut self, una: u32) {
        self.refused.retain(|(psn, _)| dist(*psn, una) >= 0);
    }

    /// Lowest missing number.
    pub(crate) fn cum(&self) -> u32 {
        self.next
    }

    /// Whether an acknowledgement has to name refused packets.
    pub(crate) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Whether the cumulative number alone does not describe what has arrived.
    pub(crate) fn needs_detail(&self) -> bool {
        !self.refused.is_empty() || !self.not_ready.is_empty() || self.bits.iter().any(|w| *w != 0)
    }

    /// Which numbers from `cum()` on have arrived, 64 a word.
    pub(crate) fn words(&self, out: &mut [u64; MAX_WORDS]) -> usize {
        let mut used = 0;
        if self.bits.iter().all(|w| *w == 0) {
            return 0;
        }
        for (i, word) in out.iter_mut().enumerate() {
            *word = 0;
            for b in 0..64u32 {
                let psn = self.next.wrapping_add(i as u32 * 64 + b);
                if self.seen(psn) {
                    *word |= 1 << b;
                    used = i + 1;
                }
            }
        }
        used
    }

    /// Refused and not-ready packets to name in an acknowledgement; the latter are named once.
    pub(crate) fn errors(&mut self) -> Vec<(u32, Status)> {
        let mut v = self.refused.clone();
        let room = MAX_ERRS - v.len();
        let n = self.not_ready.len().min(room);
        v.extend(
            self.not_ready
                .drain(..n)
                .map(|p| (p, Status::RemoteNotReady)),
        );
        v
    }

    /// Records that the pending acknowledgement is sent.
    pub(crate) fn acked(&mut self) {
        self.unacked = 0;
        self.idle_polls = 0;
    }

    /// Whether parts of write `op` can be counted: at most [`PARTIAL_MAX`] writes are, at once.
    pub(crate) fn can_count(&mut self, op: u32, len: u32, total: u32) -> bool {
        if len >= total || self.partial.contains_key(&op) {
            return true;
        }
        if self.partial.len() >= PARTIAL_MAX {
            self.partial.retain(|_, p| !p.refused);
        }
        self.partial.len() < PARTIAL_MAX
    }

    /// A part of write `op` was refused: the write never counts as complete.
    pub(crate) fn refused_part(&mut self, op: u32) {
        if self.can_count(op, 0, 1) {
            self.partial.entry(op).or_default().refused = true;
        }
    }

    /// Counts `len` bytes of write `op` with immediate; `true` when all `total` are here.
    pub(crate) fn write_part(&mut self, op: u32, len: u32, total: u32) -> bool {
        if len >= total {
            return true;
        }
        let p = self.partial.entry(op).or_default();
        p.got = p.got.saturating_add(len);
        if p.got >= total && !p.refused {
            self.partial.remove(&op);
            return true;
        }
        false
    }
}
