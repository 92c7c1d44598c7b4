//! The interface of rendezvous to its environment: the rings to its peers, copies of their memory,
//! its sends and receives, device memory and a clock. Endpoints (`ep_port`) and the simulator
//! implement it.

use super::RTS_WORDS;
use crate::core::Result;
use crate::hmem::{IpcHandle, MemKind, Piece, Segment, UserMem};
use crate::proto::{Failure, PeerId, Received, RecvEntryMatch};
use crate::prov::efa::same_host::split::SplitRings;
use crate::shm::{LocalBuffer, Record, RecordHeader, SplitCopy};
use crate::transport::{Completion, Verdict};

/// Most words in front of a record's memory.
pub(super) const WORDS: usize = RTS_WORDS;

/// The rings to peers, and copies of their memory by the system.
pub(crate) trait PeerRings: SplitRings {
    /// Nanoseconds, by a clock that all processes of the host share.
    fn now(&self) -> u64;

    /// Whether a ring leads to a peer.
    fn has_route(&self, peer: PeerId) -> bool;

    /// Whether a peer's memory can be copied to and from here.
    fn reaches_memory(&self, peer: PeerId) -> bool;

    /// Whether a peer's ring has room for `count` records of `len` bytes; also where there is no
    /// ring yet. A ring without room wakes the sender once it has some.
    fn check_room(&mut self, peer: PeerId, count: usize, len: usize) -> bool;

    /// Sends a record of words to a peer that has a ring; to others `Unsupported`.
    fn send_words(&mut self, peer: PeerId, what: RecordHeader, words: &[u64]) -> Verdict;

    /// Writes `local` to a peer's memory at `at`, or fills it from there. `false` when the system
    /// refuses.
    fn cma_copy(&self, peer: PeerId, write: bool, local: &LocalBuffer, at: u64) -> bool;

    /// Fills pieces of memory from a peer's by one system call; returns how many, from the first
    /// on.
    fn cma_read_batch(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize;

    /// Copies up to `most` chunks of a split copy, as long as some are free. Returns how many;
    /// `None` when `copy` has failed.
    fn copy_split(
        &self,
        peer: PeerId,
        s: SplitCopy,
        most: u32,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32>;

    /// Whether all chunks are copied.
    fn split_done(&self, peer: PeerId, s: SplitCopy) -> bool;
}

/// The endpoint that rendezvous works for.
pub(crate) trait RendezvousPort {
    type Rings: PeerRings;

    /// The endpoint's number, for messages that wait for a receive.
    fn id(&self) -> u32;

    /// `None` where shared memory is not used.
    fn rings(&mut self) -> Option<&mut Self::Rings>;

    /// Sends a record, up to [`WORDS`] words and then memory, to a peer that nothing may have been
    /// sent to yet.
    fn send(&mut self, to: PeerId, what: RecordHeader, words: &[u64], mem: &UserMem) -> Verdict;

    /// Sends a CTS to a peer that no ring leads to.
    fn send_cts(&mut self, to: PeerId, number: u32, there: u32) -> Verdict;

    /// Memory of the operation `ctx`.
    fn buffer(&self, ctx: u32) -> Option<UserMem>;

    /// Makes an operation of a plain receive.
    fn adopt(&mut self, recv: RecvEntryMatch) -> u32;

    /// A receive has ended, or a message in a multi-receive buffer.
    fn received(&mut self, ctx: u32, msg: Received, result: core::result::Result<(), Failure>);

    /// A send has ended.
    fn sent(&mut self, done: &Completion, result: core::result::Result<(), Failure>);

    /// A handle by which other processes may open this device memory.
    fn share(&mut self, mem: &Segment) -> Result<IpcHandle>;

    /// Starts to copy device memory that a peer shares. Returns the number of the copy; an error
    /// where the memory cannot be opened.
    fn start_copy(
        &mut self,
        from: PeerId,
        shared: (MemKind, &IpcHandle),
        into: &UserMem,
    ) -> Result<u32>;

    /// Polls a copy: `true`, and the copy is removed, when it is over. `FI_EIO` when it failed.
    fn poll_copy(&mut self, copy: u32) -> Result<bool>;

    /// Ends a copy: nothing is written any more when this returns.
    fn abort_copy(&mut self, copy: u32);

    /// Closes the device memory that a peer shared; the peer is gone.
    fn forget_shared(&mut self, peer: PeerId);
}

/// A record that has arrived, read in place. A hostile writer may change its bytes at any time: a
/// value that decides something is read once.
pub(crate) trait ArrivedRecord {
    /// One of `shm::kind`.
    fn kind(&self) -> u8;

    fn flags(&self) -> u8;

    /// Length, bytes.
    fn bytes(&self) -> usize;

    /// The word at byte `off`; 0 beyond the end.
    fn word(&self, off: usize) -> u64;

    /// Copies the bytes from `off` on into memory, as many as it holds.
    fn copy_mem(&self, off: usize, into: &UserMem);

    /// Appends the bytes from `off` on to `into`.
    fn append(&self, off: usize, into: &mut Vec<u8>);

    /// As [`PeerRings::copy_split`], a copy that the record's writer has opened.
    fn copy_split(&self, s: SplitCopy, most: u32, copy: impl FnMut(u32) -> bool) -> Option<u32>;
}

impl ArrivedRecord for Record<'_> {
    #[inline(always)]
    fn kind(&self) -> u8 {
        self.kind
    }

    #[inline(always)]
    fn flags(&self) -> u8 {
        self.flags
    }

    #[inline(always)]
    fn bytes(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn word(&self, off: usize) -> u64 {
        Record::word(self, off)
    }

    #[inline]
    fn copy_mem(&self, off: usize, into: &UserMem) {
        Record::copy_mem(self, off, into);
    }

    #[inline]
    fn append(&self, off: usize, into: &mut Vec<u8>) {
        Record::append(self, off, into);
    }

    fn copy_split(&self, s: SplitCopy, most: u32, copy: impl FnMut(u32) -> bool) -> Option<u32> {
        Record::copy_split(self, s, most, copy)
    }
}
