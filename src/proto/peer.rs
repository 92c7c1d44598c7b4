//! What an endpoint knows of one peer: numbers, handshake, packets that came too early.

use std::collections::HashMap;

/// Messages may arrive at most so far ahead of the one that is due.
const AHEAD_MAX: u32 = 1 << 20;

/// See the module text.
#[derive(Debug, Default)]
pub struct Peer {
    /// Number of the next message to this peer.
    pub next_msg_id: u32,
    /// Our handshake is on its way.
    pub handshake_sent: bool,
    /// Extra features of the peer, once its handshake is here.
    pub features: Option<u64>,
    /// Number of the message that is due from this peer.
    due: u32,
    early: HashMap<u32, Box<[u8]>>,
}

/// When a message's turn is.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    Now,
    /// Kept until its turn.
    Early,
    /// A number that was there before, or is beyond reason.
    Never,
}

impl Peer {
    /// Number for a message to this peer.
    pub fn take_msg_id(&mut self) -> u32 {
        let id = self.next_msg_id;
        self.next_msg_id = id.wrapping_add(1);
        id
    }

    /// Whose turn a message is; an early one is copied and kept.
    pub fn turn(&mut self, msg_id: u32, packet: &[u8]) -> Turn {
        match msg_id.wrapping_sub(self.due) {
            0 => {
                self.due = self.due.wrapping_add(1);
                Turn::Now
            }
            d if d <= AHEAD_MAX => {
                self.early.entry(msg_id).or_insert_with(|| packet.into());
                Turn::Early
            }
            _ => Turn::Never,
        }
    }

    /// The next kept message whose turn has come.
    pub fn next_early(&mut self) -> Option<Box<[u8]>> {
        if self.early.is_empty() {
            return None;
        }
        let p = self.early.remove(&self.due)?;
        self.due = self.due.wrapping_add(1);
        Some(p)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_their_turn_and_repeats_do_not() {
        let mut p = Peer {
            due: u32::MAX,
            ..Peer::default()
        };
        assert_eq!(p.turn(0, b"b"), Turn::Early);
        assert_eq!(p.turn(1, b"c"), Turn::Early);
        assert_eq!(p.next_early(), None);
        assert_eq!(p.turn(u32::MAX, b"a"), Turn::Now);
        assert_eq!(p.next_early().as_deref(), Some(&b"b"[..]));
        assert_eq!(p.next_early().as_deref(), Some(&b"c"[..]));
        assert_eq!(p.turn(1, b"c"), Turn::Never);
        assert!(p.early.is_empty());
    }
}
