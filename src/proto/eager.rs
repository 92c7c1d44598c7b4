//! Messages of one packet between endpoints that know each other: no operation is kept for them.
//!
//! The provider puts the header in front of the data and hands both to the adapter, which delivers
//! them or says that it could not; nothing is to be done when it did. At the other end such a
//! packet goes from the adapter's memory straight into its receive when its turn is now; otherwise
//! it is a packet like any other.

use super::endpoint::Endpoint;
use super::PeerId;
use crate::wire::{extra, Eager, EAGER_MAX};

impl Endpoint {
    /// Bytes of the longest such message.
    pub fn eager_most(&self) -> usize {
        self.cfg.mtu.saturating_sub(EAGER_MAX)
    }

    /// The header of the next message to a peer, and its length; `None` when more has to be said.
    /// [`Endpoint::eager_sent`] makes it the past.
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

    /// The message has gone.
    #[inline(always)]
    pub fn eager_sent(&mut self, to: PeerId) {
        if let Some(p) = self.peers.known(to) {
            p.take_msg_id();
        }
        self.counts.eager += 1;
    }

    /// A packet that is a whole message whose turn is now, and where its data begins.
    /// [`Endpoint::eager_taken`] makes it the past.
    #[inline]
    pub fn eager_in(&mut self, from: PeerId, packet: &[u8]) -> Option<(Eager, usize)> {
        let (e, at) = Eager::parse(packet)?;
        let p = self.peers.get(from);
        (p.handshake_sent && p.is_due(e.msg_id)).then_some((e, at))
    }

    /// The message is in its receive.
    #[inline]
    pub fn eager_taken(&mut self, from: PeerId) {
        self.peers.get(from).was_due();
    }
}
