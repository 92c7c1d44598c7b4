//! Messages of several packets: their bytes are brought together before the message is an event.
//!
//! Packets mostly come in order and several at once, next to each other in the arena. [`PacketRun`]
//! is the message whose packets are just coming: its bytes are moved together where they lie. What
//! a poll leaves of a message goes into an [`IncompleteMessage`], as do packets that are not the
//! next one. A run ends, too, when another message becomes an event whose bytes lie in the arena:
//! packets that come later are moved to where those bytes are.

use super::*;
use crate::core::memory;
use crate::device::host::zeroed;

/// Messages per peer of which some packets have arrived; further ones get "receiver not ready". A
/// correct peer has more only if packets of as many messages were lost.
pub(super) const PARTIAL_MAX: usize = 64;
/// Messages of all peers of which some packets have arrived, beyond which a peer gets no second
/// one.
pub(super) const INCOMPLETE_MAX: usize = 1024;

/// A message whose first packets have arrived in this poll, up to `got` bytes, in the arena from
/// `at` on.
#[derive(Debug)]
pub(super) struct PacketRun {
    peer: u32,
    op: u32,
    total: u32,
    at: usize,
    got: usize,
}

/// A message some of whose packets came in earlier polls.
#[derive(Debug)]
pub(super) struct IncompleteMessage {
    bytes: Vec<u8>,
    got: usize,
}

/// Those of a peer, by operation.
pub(super) type IncompleteMessages = HashMap<u32, IncompleteMessage, ByWords>;

/// A packet of a message, and where its bytes lie in the arena.
pub(super) struct MessagePart {
    pub op: u32,
    pub total: u32,
    pub off: u32,
    pub at: usize,
    pub len: usize,
}

impl MessagePart {
    /// Whether the packet can be one of a message of up to `most` bytes.
    pub(super) fn valid(&self, most: usize) -> bool {
        let end = self.off as usize + self.len;
        self.len > 0 && end <= self.total as usize && self.total as usize <= most
    }
}

impl Engine {
    /// Prepares for a packet of a message, so that taking it cannot fail. `false`: there is no
    /// memory, or it is of one message too many; its sender has to send it again.
    pub(super) fn prepare_part(
        &mut self,
        pi: u32,
        p: &MessagePart,
        room: bool,
        arena: &[u8],
    ) -> bool {
        if self.continues(pi, p) {
            return true;
        }
        let own = |r: &PacketRun| (r.peer, r.op) == (pi, p.op);
        if p.off == 0 || self.run.as_ref().is_some_and(own) {
            self.end_run(arena);
        }
        let Some(peer) = self.peers.get_mut(pi) else {
            return false;
        };
        if peer.parts.contains_key(&p.op) {
            return true;
        }
        let of_peer = peer.parts.len();
        let full = of_peer >= PARTIAL_MAX
            || of_peer > 0 && self.incomplete >= INCOMPLETE_MAX
            || memory::short();
        // Twice: for this message, and for a run that ends.
        if !room || full || peer.parts.try_reserve(2).is_err() {
            return false;
        }
        if self.spare_message.is_empty() {
            let Some(spare) = zeroed(MESSAGE_MAX) else {
                return false;
            };
            self.spare_message = spare;
        }
        if p.off != 0 {
            let Some(bytes) = zeroed(p.total as usize) else {
                return false;
            };
            peer.parts.insert(p.op, IncompleteMessage { bytes, got: 0 });
            self.incomplete += 1;
        }
        true
    }

    /// Whether a packet is the next one of the message that is just coming.
    fn continues(&self, pi: u32, p: &MessagePart) -> bool {
        let next =
            |r: &PacketRun| (r.peer, r.op, r.total, r.got) == (pi, p.op, p.total, p.off as usize);
        self.run.as_ref().is_some_and(next)
    }

    /// Takes a packet that was prepared for. Returns the message once it is complete.
    pub(super) fn take_part(&mut self, pi: u32, p: &MessagePart, arena: &mut [u8]) -> Option<Data> {
        if self.continues(pi, p) {
            let run = self.run.as_mut()?;
            let to = run.at + run.got;
            if to != p.at {
                arena.copy_within(p.at..p.at + p.len, to);
            }
            run.got += p.len;
            if run.got < run.total as usize {
                return None;
            }
            let end = run.at + run.got;
            let data = Data::Arena(run.at as u32, end as u32);
            self.run = None;
            return Some(data);
        }
        let known = self.peers.get(pi)?.parts.contains_key(&p.op);
        if p.off == 0 && !known {
            let (at, got) = (p.at, p.len);
            let (peer, op, total) = (pi, p.op, p.total);
            self.run = Some(PacketRun {
                peer,
                op,
                total,
                at,
                got,
            });
            return None;
        }
        let bytes = arena.get(p.at..p.at + p.len)?;
        self.store(pi, p.op, p.off as usize, bytes)
    }

    /// Ends the run: what it has goes into an incomplete message, in memory that was reserved.
    pub(super) fn end_run(&mut self, arena: &[u8]) {
        let Some(r) = self.run.take() else { return };
        let (Some(p), Some(got)) = (self.peers.get_mut(r.peer), arena.get(r.at..r.at + r.got))
        else {
            return;
        };
        let mut bytes = core::mem::take(&mut self.spare_message);
        bytes.truncate(r.total as usize);
        p.parts.insert(r.op, IncompleteMessage { bytes, got: 0 });
        self.incomplete += 1;
        self.store(r.peer, r.op, 0, got);
    }

    /// Drops the run of a peer whose session ends: another peer may get its place.
    pub(super) fn drop_run(&mut self, pi: u32) {
        self.run.take_if(|r| r.peer == pi);
    }

    fn store(&mut self, pi: u32, op: u32, off: usize, from: &[u8]) -> Option<Data> {
        let peer = self.peers.get_mut(pi)?;
        let m = peer.parts.get_mut(&op)?;
        // The total of a hostile peer may differ from packet to packet.
        m.bytes
            .get_mut(off..off + from.len())?
            .copy_from_slice(from);
        m.got += from.len();
        if m.got < m.bytes.len() {
            return None;
        }
        let whole = peer.parts.remove(&op)?;
        self.incomplete -= 1;
        Some(Data::Own(whole.bytes))
    }
}
