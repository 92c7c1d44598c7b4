//! Settings of an engine, and the sizes of packets and messages.

use crate::device::soft::keys::Keys;
use crate::device::soft::packet::DATA_HEAD;
use crate::device::soft::seal;
use std::sync::Arc;

/// Settings shared by the queue pairs of an adapter.
#[derive(Clone, Debug)]
pub(crate) struct EngineConfig {
    /// Payload bytes per packet.
    pub segment: usize,
    /// Largest message, bytes; it takes several packets if it is larger than `segment`.
    pub message: usize,
    /// Operations under way at most.
    pub depth: usize,
    /// Nanoseconds without a packet after which a peer that has to answer counts as unresponsive.
    pub timeout: u64,
    /// Whether runs of packets are sent by UDP segmentation offload (udp(7), UDP_SEGMENT).
    pub gso: bool,
    /// Text of `FI_EFA_SOFT_FAULT`.
    pub fault: Option<String>,
    /// Keys that seal packets; `None`: packets are not sealed.
    pub keys: Option<Arc<Keys>>,
}

/// Upper bound of [`message_for`] for every segment: a peer whose link is another may send as much.
pub(super) const MESSAGE_MAX: usize = 66_000;

/// Largest message where packets carry `segment` bytes: half of 64 KiB and its headers, so that the
/// receiver copies one half while the sender copies the other.
pub(crate) fn message_for(segment: usize) -> usize {
    const HALF: usize = 33_000;
    segment * HALF.div_ceil(segment).max(1)
}

/// Payload bytes that fit into a packet on an interface of this MTU.
pub(crate) fn segment_for(link_mtu: usize, v6: bool, sealed: bool) -> usize {
    let below = if v6 { 48 } else { 28 };
    let around = if sealed { seal::OVERHEAD } else { 0 };
    link_mtu
        .saturating_sub(below + around + DATA_HEAD)
        .clamp(512, 61_440)
}
