//! Senders that the adapter cannot name.
//!
//! A completion of an EFA adapter tells host and queue pair number of a sender, and the host only
//! where there is an address handle. The key, which tells apart queue pairs that had the same
//! number one after another, is in the packet: requests carry the sender's whole address until they
//! know that it is known, other packets its connection id, which is the key.

use crate::device::{Device, QpAddr, QueuePair};
use crate::proto::PeerId;
use crate::prov::efa::addr;
use crate::prov::efa::port::EpPort;

/// The peer that a packet is from, made known to the adapter. `None` when the packet does not say,
/// or the peer cannot be reached: it is dropped, for nobody could answer it.
pub(crate) fn learn_peer(port: &mut EpPort, from: QpAddr, packet: &[u8]) -> Option<PeerId> {
    let says = crate::wire::sender(packet)?;
    let who = match (says.raw_addr, says.connid) {
        (Some(raw), _) => addr::from_raw(&raw)?,
        (None, Some(qkey)) if from.gid != [0; 16] => QpAddr { qkey, ..from },
        _ => return None,
    };
    // A packet may not speak for another queue pair than the one it came from.
    let same_host = from.gid == [0; 16] || who.gid == from.gid;
    if !same_host || who.qpn != from.qpn {
        return None;
    }
    if who == from {
        return Some(port.peers.of(&who));
    }
    port.dev.reach(&who).ok()?;
    let peer = port.peers.of(&who);
    port.qp.connect(peer, &who).ok()?;
    Some(peer)
}
