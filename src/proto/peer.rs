//! The state of one peer at an endpoint: numbers, handshake, packets that came too early.
//!
//! As in the C library, an address that is removed and inserted again is a new peer to its sender,
//! whose messages are numbered from 0 and carry the sender's address until a handshake comes
//! ([`Peer::renew`]). The receiver need not have done the same: the adapter delivers each packet
//! once, so that a number before the one that is due, in a request with an address, is the
//! beginning of a new numbering ([`Peer::restart`]).

use crate::core::memory;
use crate::wire::{carries_raw_addr, extra};
use std::collections::HashMap;

/// How far ahead of the due message number a message may arrive.
const AHEAD_MAX: u32 = 1 << 20;
/// Bytes counted for the table entry of a kept packet, in addition to the packet, and of a skipped
/// number.
const OVERHEAD: usize = 128;

pub(super) type Packet = Box<[u8]>;

/// Where the further packets of a message of several requests go.
#[derive(Debug)]
pub(crate) enum Parts {
    /// Its receive is not known yet; bytes of the message that have not come.
    Waiting { packets: Vec<Packet>, missing: u64 },
    /// To this receive operation.
    Rx(u32),
}

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    /// Number of the next message to this peer.
    pub next_msg_id: u32,
    /// Our handshake is on its way.
    pub handshake_sent: bool,
    /// Extra features of the peer, once its handshake is here.
    pub features: Option<u64>,
    /// Messages of several requests that have begun to arrive.
    pub parts: HashMap<u32, Parts>,
    /// Messages of old numberings whose numbers were taken while they waited.
    set_aside: u32,
    /// Number of the message that is due from this peer.
    due: u32,
    early: HashMap<u32, Vec<Packet>>,
    /// Bytes of `early`, with [`OVERHEAD`] for each entry.
    early_bytes: usize,
    /// Bytes of packets to this peer that wait for room in the adapter's queue.
    pub deferred: usize,
    /// Reads and writes of this peer that are being served.
    pub serving: usize,
    /// An answer to this peer was dropped because `deferred` exceeded the budget.
    pub overcharged: bool,
    /// The peer has exceeded its budget: all its further packets are dropped.
    pub banned: bool,
}

/// Where a message stands in the order of its peer's messages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReorderOutcome {
    Now,
    /// Kept until its turn.
    Early,
    /// A further packet of a message that has begun.
    Part,
    /// Ahead of the due message, and the budget for early packets of one peer is used up, or
    /// memory is.
    Excess,
    /// A duplicate, or a number that is more than [`AHEAD_MAX`] ahead.
    Never,
}

impl Peer {
    /// The peer's address was inserted again: messages to it are numbered anew, and carry our
    /// address until it sends another handshake.
    pub(crate) fn renew(&mut self) {
        if self.next_msg_id == 0 {
            return;
        }
        self.next_msg_id = 0;
        self.features = self.features.map(|f| f | extra::CONSTANT_HEADER);
    }

    /// The peer numbers its messages anew, as message `msg_id` shows, which came with its address
    /// and is not due. What came early without an address is of the old numbering. Returns `false`
    /// where the number is none of a new numbering's first ones.
    pub(crate) fn restart(&mut self, msg_id: u32) -> bool {
        if msg_id > AHEAD_MAX {
            return false;
        }
        self.due = 0;
        self.handshake_sent = false;
        for (id, packets) in core::mem::take(&mut self.early) {
            if !packets.is_empty() && packets.iter().all(|p| carries_raw_addr(p)) {
                self.early.insert(id, packets);
            } else {
                self.release_early(&packets);
            }
        }
        true
    }

    /// Whether a packet with this number continues a message that has begun. One with an address
    /// begins another where the message that waits with its number is whole.
    fn continues(&self, msg_id: u32, packet: &[u8]) -> bool {
        self.parts.get(&msg_id).is_some_and(|p| match p {
            Parts::Waiting { missing: 0, .. } => !carries_raw_addr(packet),
            _ => true,
        })
    }

    /// Begins to keep further packets of a message, of which `missing` bytes have not come. One of
    /// an old numbering that waits with the same number gets another, far from the new ones, which
    /// is returned.
    pub(crate) fn await_parts(&mut self, msg_id: u32, missing: u64) -> Option<u32> {
        let packets = Vec::new();
        let new = Parts::Waiting { packets, missing };
        let old = self.parts.insert(msg_id, new);
        let old = old.filter(|p| matches!(p, Parts::Waiting { .. }))?;
        self.set_aside = self.set_aside.wrapping_add(1);
        let far = u32::MAX - self.set_aside;
        self.parts.insert(far, old);
        Some(far)
    }

    /// Number for a message to this peer.
    pub(crate) fn take_msg_id(&mut self) -> u32 {
        let id = self.next_msg_id;
        self.next_msg_id = id.wrapping_add(1);
        id
    }

    /// Classifies a message and advances the due number if the message is due. A copy of an early
    /// packet is kept, up to `most` bytes in all. `several`: further requests may have the same
    /// number.
    pub(crate) fn turn(
        &mut self,
        msg_id: u32,
        several: bool,
        packet: &[u8],
        most: usize,
    ) -> ReorderOutcome {
        match msg_id.wrapping_sub(self.due) {
            0 => {
                self.due = self.due.wrapping_add(1);
                ReorderOutcome::Now
            }
            d if d <= AHEAD_MAX => {
                let bytes = packet.len() + OVERHEAD;
                if self.early_bytes + bytes > most {
                    return ReorderOutcome::Excess;
                }
                if memory::is_used_up() {
                    memory::explain("a peer whose messages come out of turn is given up");
                    return ReorderOutcome::Excess;
                }
                let kept = self.early.entry(msg_id).or_default();
                if kept.is_empty() || several {
                    kept.push(packet.into());
                    self.early_bytes += bytes;
                }
                ReorderOutcome::Early
            }
            _ if several && self.continues(msg_id, packet) => ReorderOutcome::Part,
            _ => ReorderOutcome::Never,
        }
    }

    /// Whether this message is due and no early message is kept.
    #[inline]
    pub(crate) fn is_due(&self, msg_id: u32) -> bool {
        msg_id == self.due && self.early.is_empty()
    }

    /// Advances the due number past a message that has been handled.
    #[inline]
    pub(crate) fn advance_due(&mut self) {
        self.due = self.due.wrapping_add(1);
    }

    /// Removes the kept packets of the message that is now due and advances the due number; an
    /// empty list for a skipped number.
    pub(crate) fn next_early(&mut self) -> Option<Vec<Packet>> {
        if self.early.is_empty() {
            return None;
        }
        let p = self.early.remove(&self.due)?;
        self.release_early(&p);
        self.due = self.due.wrapping_add(1);
        Some(p)
    }

    /// The packets of a message are no longer kept.
    fn release_early(&mut self, packets: &[Packet]) {
        let bytes: usize = packets.iter().map(|b| b.len() + OVERHEAD).sum();
        self.early_bytes = self.early_bytes.saturating_sub(bytes.max(OVERHEAD));
    }

    /// Bytes kept of messages that arrived before their turn.
    #[cfg(any(test, feature = "internals"))]
    pub(crate) fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// Skips message `msg_id`, which will never arrive. Returns `false` when the budget for early
    /// messages is used up, as with [`ReorderOutcome::Excess`].
    pub(crate) fn skip(&mut self, msg_id: u32, most: usize) -> bool {
        match msg_id.wrapping_sub(self.due) {
            0 => self.due = self.due.wrapping_add(1),
            d if d <= AHEAD_MAX => {
                if self.early_bytes + OVERHEAD > most {
                    return false;
                }
                if let Some(old) = self.early.insert(msg_id, Vec::new()) {
                    self.release_early(&old);
                }
                self.early_bytes += OVERHEAD;
            }
            _ => {}
        }
        true
    }

    /// Forgets what was kept for the peer's messages; `each` gets the length of every further
    /// packet of a message that waits for its receive.
    pub(crate) fn drop_kept(&mut self, mut each: impl FnMut(usize)) {
        for parts in core::mem::take(&mut self.parts).into_values() {
            if let Parts::Waiting { packets, .. } = parts {
                packets.iter().for_each(|p| each(p.len()));
            }
        }
        self.early = HashMap::new();
        self.early_bytes = 0;
        self.deferred = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_handed_out_in_order_and_repeated_ones_dropped() {
        let mut p = Peer {
            due: u32::MAX,
            ..Peer::default()
        };
        assert_eq!(p.turn(0, false, b"b", 4096), ReorderOutcome::Early);
        assert_eq!(p.turn(1, false, b"c", 4096), ReorderOutcome::Early);
        assert_eq!(p.turn(2, true, b"d1", 4096), ReorderOutcome::Early);
        assert_eq!(p.turn(2, true, b"d2", 4096), ReorderOutcome::Early);
        assert_eq!(p.next_early(), None);
        assert_eq!(p.turn(u32::MAX, false, b"a", 4096), ReorderOutcome::Now);
        let mut next = || p.next_early().map(|v| v.concat());
        assert_eq!(next().as_deref(), Some(&b"b"[..]));
        assert_eq!(next().as_deref(), Some(&b"c"[..]));
        assert_eq!(next().as_deref(), Some(&b"d1d2"[..]));
        assert_eq!(p.turn(1, false, b"c", 4096), ReorderOutcome::Never);
        assert!(p.skip(4, 4096));
        assert!(p.skip(3, 4096));
        assert_eq!(p.next_early(), Some(Vec::new()));
        assert_eq!(p.turn(5, false, b"e", 4096), ReorderOutcome::Now);
        assert!(p.early.is_empty());
    }

    #[test]
    fn a_peer_that_is_inserted_again_numbers_anew() {
        let mut to = Peer {
            features: Some(extra::RDMA_READ),
            ..Peer::default()
        };
        assert_eq!((to.take_msg_id(), to.take_msg_id()), (0, 1));
        to.renew();
        assert_eq!(to.take_msg_id(), 0);
        assert_eq!(to.features, Some(extra::RDMA_READ | extra::CONSTANT_HEADER));
    }

    #[test]
    fn a_new_numbering_begins_with_what_came_with_an_address() {
        let with_address = [crate::wire::pkt::REQ_FIRST, 4, 1, 0];
        let mut p = Peer {
            handshake_sent: true,
            due: 2,
            ..Peer::default()
        };
        // Number 2 of the old numbering never comes; 4 of the new one overtakes 0.
        assert_eq!(p.turn(3, false, b"old", 4096), ReorderOutcome::Early);
        assert_eq!(p.turn(4, false, &with_address, 4096), ReorderOutcome::Early);
        assert_eq!(p.turn(0, false, &with_address, 4096), ReorderOutcome::Never);
        assert!(p.restart(0));
        assert!(!p.handshake_sent);
        for id in 0..4 {
            assert_eq!(p.next_early(), None);
            assert_eq!(p.turn(id, false, b"new", 4096), ReorderOutcome::Now);
        }
        assert_eq!(p.next_early().unwrap().concat(), with_address);
        assert_eq!(p.early_bytes(), 0);
        assert!(!p.restart(u32::MAX), "further ahead than may come");
    }
}
