//! Fast path for messages of one packet between endpoints whose handshake is complete: no operation
//! state is kept.
//!
//! The provider puts the header in front of the data and hands both to the adapter. A successful
//! completion needs no further work. The receiver copies a packet whose message is due from the
//! adapter's buffer straight into the matching receive; any other packet takes the general path.

use super::endpoint::Endpoint;
use super::PeerId;
use crate::wire::{extra, Eager, EAGER_MAX};

impl Endpoint {
    /// Longest message of the fast path, bytes.
    pub fn eager_most(&self) -> usize {
        self.cfg.mtu.saturating_sub(EAGER_MAX)
    }

    /// The header of the next message to a peer, and its length; `None` when the header needs more
    /// fields than [`Eager`] has. [`Endpoint::commit_eager_tx`] commits the message.
    #[inline(always)]
    pub fn eager_head(
        &mut self,
        to: PeerId,
        tag: Option<u64>,
        cq_data: Option<u64>,
    ) -> Option<([u8; EAGER_MAX], usize)> {
        let connid = Some(self.cfg.connid);
        let p = self.peers.known(to)?;
        if p.features? & extra::CONSTANT_HEADER != 0 {
            return None;
        }
        let e = Eager {
            msg_id: p.next_msg_id,
            tag,
            cq_data,
            connid,
        };
        Some(e.emit())
    }

    /// Commits the message of [`Endpoint::eager_head`]: uses up its number.
    #[inline(always)]
    pub fn commit_eager_tx(&mut self, to: PeerId) {
        if let Some(p) = self.peers.known(to) {
            p.take_msg_id();
        }
        self.counts.eager += 1;
    }

    /// Parses a packet that holds a whole message which is due; returns its header and where its
    /// data begins. [`Endpoint::commit_eager_rx`] commits the message.
    #[inline]
    pub fn parse_due_eager(&mut self, from: PeerId, packet: &[u8]) -> Option<(Eager, usize)> {
        let (e, at) = Eager::parse(packet)?;
        let p = self.peers.get(from);
        (p.handshake_sent && p.is_due(e.msg_id)).then_some((e, at))
    }

    /// Commits the message of [`Endpoint::parse_due_eager`]: the next one is due.
    #[inline]
    pub fn commit_eager_rx(&mut self, from: PeerId) {
        self.peers.get(from).advance_due();
    }
}
