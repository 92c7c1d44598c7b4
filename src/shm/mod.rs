//! Same-host transport: packets between processes of one host through shared memory.
//!
//! An endpoint has a [`Hub`]. To a peer with the same GID it opens a ring when the first packet is
//! for it (`sock`): an anonymous file that the peer reads (`ring`, `segment`). Where that fails,
//! for a peer in another container, of another user or another library, or with the transport off,
//! the adapter carries the packets; the protocol above puts them in order whichever way they come.
//! A poll looks into the rings in use; one that has been empty for long asks its writer for a
//! wake-up instead, so that polling costs nothing for peers that are quiet. `thread` hears of new
//! peers, wake-ups and deaths.

mod bed;
mod claim;
mod debts;
#[cfg(any(test, feature = "fuzzing"))]
pub mod hostile;
mod inbox;
#[cfg(test)]
mod model;
mod outbox;
mod reader;
mod ring;
mod segment;
mod share;
mod sock;
mod table;
#[cfg(test)]
mod tests;
mod thread;

use crate::core::params;
use crate::device::QpAddr;
use crate::types::*;
pub use claim::{ATOMIC, HEAD as ACCESS_HEAD, MESSAGE as CONFIRMED, READ, WRITE};
pub use debts::{Access, Again, Ended, Note};
pub use inbox::{Drained, Inbox, Seen, Verdict};
pub use outbox::Outbox;
pub use reader::Record;
use ring::barrier;
pub use ring::{What, RECORD_MAX};
pub use share::Share;
use std::sync::Arc;
pub use table::{Denied, Local, Table, Tags, MANY};
use thread::{Shared, Thread};

/// The caller's number of a peer.
type PeerId = u32;

/// What came of handing a packet over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is with the peer.
    Done,
    /// Not now.
    Busy,
    /// This peer is not reached this way.
    Elsewhere,
}

/// Does what takes long once threads have been started; the first message would wait for it
/// otherwise.
pub fn prepare() {
    if params::efa_bool("enable_shm_transfer", true) {
        crate::device::membarrier::join_all();
    }
}

/// Hears of new peers, wake-ups and deaths, as this process's thread would do if it had a
/// processor. Whether there was anything. Thread safe.
pub fn attend() -> bool {
    Thread::attend()
}

/// See the module text. Not thread safe by itself: the owner serialises the calls.
pub struct Hub {
    pub inbox: Inbox,
    pub outbox: Outbox,
}

impl Hub {
    /// The hub of the queue pair at `own`, whose descriptor joins the hub's own; `None` with
    /// `FI_EFA_ENABLE_SHM_TRANSFER=0` or where the system denies something it needs.
    pub fn open(own: QpAddr, adapter_fd: i32, table: Option<Arc<Table>>) -> Option<Hub> {
        if !params::efa_bool("enable_shm_transfer", true) {
            return None;
        }
        let open = || {
            if !barrier() {
                return Err(FI_ENOSYS);
            }
            let thread = Thread::get()?;
            let shared = Arc::new(Shared::new(table.clone())?);
            shared.wait.add(adapter_fd);
            let listener = thread.listen(&shared, sock::listen(&own)?);
            let outbox = Outbox::new(own, Arc::clone(&shared), thread);
            let inbox = Inbox::new(shared, thread, listener);
            Ok::<Hub, crate::core::Errno>(Hub { inbox, outbox })
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

    /// Descriptor that becomes readable after [`Inbox::arm`] when there is something, here or at
    /// the adapter.
    pub fn fd(&self) -> i32 {
        self.inbox.fd()
    }

    /// Makes the descriptor readable: whoever waits for it has something to do.
    pub fn rouse(&self) {
        self.inbox.rouse();
    }

    /// Takes note of peers whose memory can be reached, lets go of rings to peers that are gone,
    /// and returns those peers, once their last packets are taken in. A peer may be told of twice.
    pub fn gone(&mut self) -> Vec<QpAddr> {
        for (conn, visit) in core::mem::take(&mut self.inbox.accepted) {
            self.outbox.accepted(conn, visit);
        }
        for conn in core::mem::take(&mut self.inbox.hung_up) {
            let Some(to) = self.outbox.hang_up(conn) else {
                continue;
            };
            // A ring from the same peer still has its last words.
            if !self.inbox.last_words(&to) {
                self.inbox.down.push(to);
            }
        }
        // Its ring and ours have both ended.
        self.inbox.down.dedup();
        core::mem::take(&mut self.inbox.down)
    }

    /// Whether there is a ring to or from a peer.
    pub fn knows_peer(&self, peer: PeerId) -> bool {
        self.outbox.has_ring(peer) || self.inbox.has_ring(peer)
    }

    /// Whether [`Hub::gone`] has something to say.
    #[inline]
    pub fn lost(&self) -> bool {
        let i = &self.inbox;
        !(i.hung_up.is_empty() && i.down.is_empty() && i.accepted.is_empty())
    }
}
