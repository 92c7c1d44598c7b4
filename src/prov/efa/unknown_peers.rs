//! Senders that the adapter cannot name.
//!
//! A completion of an EFA adapter has the sender's queue pair number, and its GID only where an
//! address handle exists. The packet has the qkey, which distinguishes queue pairs that had the
//! same number one after another: requests carry the sender's whole address until the receiver's
//! handshake has arrived; other packets carry the connection id, which is the qkey, or nothing. The
//! latter answer what the adapter has sent, to a peer that it is connected to; but a peer of this
//! host that has not got our ring's answer yet replies by the adapter to what came by a ring.

use crate::device::{Device, QpAddr, QueuePair};
use crate::proto::PeerId;
use crate::prov::efa::addr;
use crate::prov::efa::port::EpPort;

/// Identifies the sender of a packet and connects the adapter to it. `None` when the packet does
/// not name its sender, or the adapter cannot reach the sender: the caller drops the packet,
/// because no reply could be sent.
pub(crate) fn learn_peer(port: &mut EpPort, from: QpAddr, packet: &[u8]) -> Option<PeerId> {
    let stated = crate::wire::sender(packet)?;
    let sender = match (stated.raw_addr, stated.connid) {
        (Some(raw), _) => addr::from_raw(&raw)?,
        (None, Some(qkey)) if from.gid != [0; 16] => QpAddr { qkey, ..from },
        (None, None) => port.rings.as_ref()?.peer_at(&from.gid, from.qpn)?.1,
        _ => return None,
    };
    // A packet must not name another queue pair than the one that sent it.
    let same_host = from.gid == [0; 16] || sender.gid == from.gid;
    if !same_host || sender.qpn != from.qpn {
        return None;
    }
    if sender == from {
        return Some(port.peers.learn(&sender));
    }
    port.dev.reach(&sender).ok()?;
    let peer = port.peers.learn(&sender);
    port.qp.connect(peer, &sender).ok()?;
    Some(peer)
}
