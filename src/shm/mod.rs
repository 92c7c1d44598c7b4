//! Same-host transport: packets between processes of one host through shared memory.
//!
//! Each endpoint has a [`ShmEndpoint`]. The first packet to a peer with the same GID opens a ring
//! to that peer (`connection`): an anonymous file that the peer reads (`ring`, `memfd`). Reads,
//! writes and atomics of a peer's memory are records of the ring, or cross-memory copies (`rma`);
//! two processes may share the copy of a long message (`split_copy`). The adapter carries the
//! packets where a ring cannot: to a peer in another container, of another user or another library,
//! or with the transport off; the protocol above restores the order of packets that arrive by both.
//! A poll reads the active rings only. Where there are many, a ring that stays empty is parked and
//! asks its writer for a wake-up, so that idle peers cost a poll nothing. `events` reports new
//! peers, wake-ups and exits of processes.

mod connection;
mod cpu;
mod events;
#[cfg(any(test, feature = "internals"))]
pub mod hostile;
pub mod kind;
mod memfd;
mod ring;
mod rma;
mod rx_rings;
mod split_copy;
#[cfg(test)]
mod tests;
mod tx_rings;

use crate::core::params;
use crate::device::QpAddr;
use crate::transport::PeerId;
use crate::types::*;
use events::{EventQueue, EventThread};
use ring::asymmetric_fence;
pub(crate) use ring::{Record, RecordHeader, RECORD_MAX};
pub(crate) use rma::{
    AdapterRetry, KeyHashes, LocalBuffer, MrTable, RmaDenied, HEAD as ACCESS_HEAD, MANY,
};
pub use rx_rings::{PeerRecord, RxRings};
pub use split_copy::SplitCopy;
use std::sync::Arc;
pub use tx_rings::{RecordHead, TxRings};

/// Registers the process with membarrier(2) before the first message needs the registration: it
/// takes milliseconds once the process has several threads.
pub fn prepare() {
    if params::efa().enable_shm_transfer {
        crate::device::membarrier::register_global();
    }
}

/// Reads new peers, wake-ups and exits of processes from the sockets, in place of the events
/// thread, which may have no processor. Returns whether there was an event. Thread safe.
pub fn poll_events() -> bool {
    EventThread::poll_events()
}

/// Forgets the answers of peers that were signalled until now; polls find them. Thread safe.
pub(crate) fn clear_answers() {
    EventThread::clear_answers();
}

/// See the module text. Not thread safe by itself: the owner serialises the calls.
pub struct ShmEndpoint {
    pub rx: RxRings,
    pub tx: TxRings,
}

/// Ends the copies by devices first: peers that are closed at the same time wait for them.
impl Drop for ShmEndpoint {
    fn drop(&mut self) {
        self.tx.end_device_copies();
    }
}

impl ShmEndpoint {
    /// Publishes where this process runs, and tells whether a peer's ran last on the same
    /// processor. `None` when no peer's processor is known.
    pub fn publish_and_compare_cpu(&mut self) -> Option<bool> {
        let own = cpu::here();
        self.tx.publish_cpu(own);
        self.rx.shares_processor(own)
    }

    /// Opens the endpoint of the queue pair at `own`; `adapter_fd` joins the wait set of the
    /// endpoint. `None` with `FI_EFA_ENABLE_SHM_TRANSFER=0` or where the system denies something
    /// that shm needs.
    pub fn open(own: QpAddr, adapter_fd: i32, table: Option<Arc<MrTable>>) -> Option<ShmEndpoint> {
        if !params::efa().enable_shm_transfer {
            return None;
        }
        let open = || {
            if !asymmetric_fence() {
                return Err(FI_ENOSYS);
            }
            let thread = EventThread::get()?;
            let shared = Arc::new(EventQueue::new(table.clone())?);
            shared.wait.add(adapter_fd);
            thread.listen(&shared, connection::listen(&own)?);
            let tx = TxRings::new(own, Arc::clone(&shared), thread);
            let rx = RxRings::new(shared, thread);
            Ok::<ShmEndpoint, crate::core::Errno>(ShmEndpoint { rx, tx })
        };
        open()
            .map_err(|e| {
                crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "shm is not used by this endpoint: {}",
                    crate::core::errno::text(e)
                )
            })
            .ok()
    }

    /// Descriptor that becomes readable after [`RxRings::arm`] when a ring or the adapter has an
    /// event.
    pub fn fd(&self) -> i32 {
        self.rx.fd()
    }

    /// Makes the descriptor readable, which ends a wait for it.
    pub fn signal(&self) {
        self.rx.signal();
    }

    /// Records peers that have accepted our rings, drops the rings to peers that are gone, and
    /// returns those peers once their last packets are read. A peer may be returned twice.
    pub fn gone(&mut self) -> Vec<QpAddr> {
        for (conn, remote_table) in core::mem::take(&mut self.rx.accepted) {
            self.tx.accepted(conn, remote_table);
        }
        for conn in core::mem::take(&mut self.rx.disconnected) {
            let Some(to) = self.tx.disconnect(conn) else {
                continue;
            };
            // The ring from the same peer may still hold its last records.
            if !self.rx.read_to_end(&to) {
                self.rx.gone_peers.push(to);
            }
        }
        // A peer is listed twice when the rings to it and from it have both ended.
        self.rx.gone_peers.dedup();
        core::mem::take(&mut self.rx.gone_peers)
    }

    /// Whether there is a ring to or from a peer.
    pub fn knows_peer(&self, peer: PeerId) -> bool {
        self.tx.has_ring(peer) || self.rx.has_ring(peer)
    }

    /// Whether [`ShmEndpoint::gone`] has anything to process.
    #[inline]
    pub fn lost(&self) -> bool {
        let i = &self.rx;
        !(i.disconnected.is_empty() && i.gone_peers.is_empty() && i.accepted.is_empty())
    }
}
