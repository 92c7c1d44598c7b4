//! Messages without a receive, as a receive queue (`recvq`) keeps them.

use super::PeerId;
use crate::wire::{Opt, Rtm, RtmKind};

/// A request without a receive.
#[derive(Debug)]
pub struct UnexpectedMessage {
    /// The provider's number of the receiving endpoint.
    pub ep: u32,
    pub from: PeerId,
    pub(super) rtm: Rtm,
    pub(super) payload: Box<[u8]>,
    /// Set for a message outside the RDM protocol whose bytes have not all arrived.
    pub coming: Option<PartialMessage>,
    /// Set for a write with data that consumes a receive, instead of a message.
    pub written: Option<WriteWithData>,
}

/// A write with data that consumes a receive (FI_RX_CQ_DATA): the bytes are already in the target
/// region, and the data goes to the receive's completion.
#[derive(Clone, Copy, Debug)]
pub struct WriteWithData {
    /// Bytes written.
    pub len: usize,
    pub data: u64,
}

/// A message outside the RDM protocol whose bytes have not all arrived; the provider tracks its
/// transfer.
#[derive(Clone, Copy, Debug)]
pub struct PartialMessage {
    /// The provider's number of the message.
    pub number: u32,
    /// Length of the whole message, bytes.
    pub len: u64,
    /// Bytes of the message that the provider holds until the message has a receive.
    pub held: usize,
}

impl UnexpectedMessage {
    /// A complete message that arrived outside the RDM protocol.
    pub fn whole(
        ep: u32,
        from: PeerId,
        tag: Option<u64>,
        cq_data: Option<u64>,
        payload: Box<[u8]>,
    ) -> UnexpectedMessage {
        let opt = Opt {
            cq_data,
            ..Opt::default()
        };
        let rtm = Rtm {
            msg_id: 0,
            tag,
            opt,
            kind: RtmKind::Eager,
            receipt: None,
            after_nack: false,
        };
        UnexpectedMessage {
            ep,
            from,
            rtm,
            payload,
            coming: None,
            written: None,
        }
    }

    /// A write with data that consumes a receive.
    pub fn write(ep: u32, from: PeerId, written: WriteWithData) -> UnexpectedMessage {
        UnexpectedMessage {
            written: Some(written),
            ..UnexpectedMessage::whole(ep, from, None, Some(written.data), Box::default())
        }
    }

    /// A message outside the RDM protocol whose bytes have not all arrived.
    pub fn in_part(
        ep: u32,
        from: PeerId,
        tag: Option<u64>,
        cq_data: Option<u64>,
        coming: PartialMessage,
    ) -> UnexpectedMessage {
        UnexpectedMessage {
            coming: Some(coming),
            ..UnexpectedMessage::whole(ep, from, tag, cq_data, Box::default())
        }
    }

    /// Length of the whole message, bytes.
    pub fn byte_len(&self) -> u64 {
        match &self.coming {
            Some(c) => c.len,
            None => super::recv::total(&self.rtm, self.payload.len()),
        }
    }

    /// The result of FI_PEEK for this message.
    pub fn peeked(&self) -> PeekResult {
        PeekResult {
            from: self.from,
            len: self.byte_len(),
            tag: self.rtm.tag.unwrap_or(0),
            cq_data: self.rtm.opt.cq_data,
        }
    }

    /// Whether all bytes have arrived and the sender awaits no answer.
    pub(super) fn is_whole(&self) -> bool {
        let more = self.coming.is_some() || self.written.is_some() || self.rtm.receipt.is_some();
        matches!(self.rtm.kind, RtmKind::Eager) && !more
    }

    /// The message, without what the protocol needs of it.
    pub(super) fn into_whole(self) -> WholeMessage {
        WholeMessage {
            from: self.from,
            tag: self.rtm.tag,
            cq_data: self.rtm.opt.cq_data,
            payload: self.payload,
        }
    }

    /// Bytes that the message takes in the queue's count.
    pub(super) fn weight(&self) -> usize {
        let held = self.coming.map_or(self.payload.len(), |c| c.held);
        held + core::mem::size_of::<UnexpectedMessage>()
    }
}

/// A message that has arrived whole.
#[derive(Debug)]
pub struct WholeMessage {
    pub from: PeerId,
    pub tag: Option<u64>,
    pub cq_data: Option<u64>,
    pub payload: Box<[u8]>,
}

/// What a peek finds.
#[derive(Clone, Copy, Debug)]
pub struct PeekResult {
    pub from: PeerId,
    pub len: u64,
    pub tag: u64,
    pub cq_data: Option<u64>,
}
