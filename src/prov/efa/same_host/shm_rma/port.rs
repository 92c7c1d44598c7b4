//! The interface of reads and writes of same-host peers to their environment: the rings to peers,
//! copies of their memory, and operation records. Endpoints (`ep_port`) and the simulator implement
//! it.

use crate::hmem::{Piece, UserMem};
use crate::proto::{Failure, PeerId};
use crate::prov::contract::{RmaReq, SendData};
use crate::prov::efa::same_host::split::SplitRings;
use crate::shm::{AdapterRetry, LocalBuffer, RmaDenied, SplitCopy};
use crate::transport::{Completion, Payload, RemoteAddr, Status, Verdict};

/// The rings to peers, and copies of their memory by the system.
pub(crate) trait RmaRings: SplitRings {
    /// Nanoseconds, by a clock that all processes of the host share.
    fn now(&self) -> u64;

    /// Whether accesses to a peer go into its ring just now.
    fn admit_rma(&mut self, peer: PeerId) -> bool;

    /// Whether a peer takes an event of every access.
    fn wants_events(&self, peer: PeerId) -> bool;

    /// Whether an access is known to be permitted, and possible from here.
    fn permits(&mut self, peer: PeerId, at: RemoteAddr, len: usize, write: bool) -> bool;

    /// Writes an access into a peer's ring, as [`Transport::put`] has it.
    ///
    /// [`Transport::put`]: crate::transport::Transport::put
    fn put(&mut self, done: Completion, data: Payload, imm: Option<u64>) -> Verdict;

    /// As [`RmaRings::put`], a read.
    fn get(&mut self, done: Completion, into: Payload) -> Verdict;

    /// Writes `local` to a peer's region, or fills it from there.
    fn cma_access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &LocalBuffer,
        at: RemoteAddr,
    ) -> Result<(), RmaDenied>;

    /// Copies pieces to or from a peer's region by one system call; returns how many were copied,
    /// from the first on.
    fn access_batch(
        &mut self,
        peer: PeerId,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize;

    /// Whether a region of a peer is device memory that this process can open, and copy to or from
    /// `local`.
    fn ensure_open(&mut self, peer: PeerId, at: RemoteAddr, write: bool, local: &UserMem) -> bool;

    /// Starts to copy `local` to a region that [`RmaRings::ensure_open`] has accepted, or to fill
    /// `local` from there; returns the copy's number. `None` while there are too many.
    fn start_device_copy(
        &mut self,
        peer: PeerId,
        at: RemoteAddr,
        write: bool,
        local: &UserMem,
    ) -> Result<Option<u32>, RmaDenied>;

    /// Whether a copy is over, and how it ended; then the number is not used any more.
    fn poll_device_copy(&mut self, n: u32) -> Option<Result<(), RmaDenied>>;

    /// Asks a peer to copy chunks of a split copy (`split`), if there is room for the record.
    fn ask_for_help(&mut self, peer: PeerId, words: [u64; 6]);

    /// Takes a chunk of a split copy; `None` when there are no more.
    fn take_chunk(&mut self, peer: PeerId, s: SplitCopy) -> Option<u32>;

    /// Counts a chunk that was taken here, and is not touched any more.
    fn mark_copied(&mut self, peer: PeerId, s: SplitCopy);

    /// Whether a chunk could not be copied by the peer, or will not.
    fn split_failed(&self, peer: PeerId, s: SplitCopy) -> bool;

    /// Whether there is room for the event of an access.
    fn fits_event(&mut self, peer: PeerId) -> bool;

    /// Sends a peer the event of an access to its memory: key, length, data of a write, whether it
    /// was a write.
    fn send_event(&mut self, peer: PeerId, what: (u64, usize, Option<u64>, bool)) -> Verdict;

    /// Has the adapter carry out what cannot be done from here.
    fn add_retry(&mut self, again: AdapterRetry);

    /// Appends accesses in rings that have ended.
    fn poll_ended(&mut self, ended: &mut Vec<(Completion, Status)>);
}

/// The endpoint that the accesses belong to.
pub(crate) trait RmaPort {
    type Rings: RmaRings;

    /// `None` where shared memory is not used.
    fn rings(&mut self) -> Option<&mut Self::Rings>;

    /// Makes the record of an operation, of one part so far.
    fn open(&mut self, r: &RmaReq<SendData>, done: Completion) -> u32;

    /// Takes back [`RmaPort::open`].
    fn discard(&mut self, ctx: u32);

    /// One more part of an operation is under way.
    fn add_part(&mut self, ctx: u32);

    /// How many parts of an operation are under way, its length, and whether one has failed.
    fn parts(&self, ctx: u32) -> Option<(u32, usize, bool)>;

    /// A part of an operation has ended; with the last one it ends.
    fn part_done(&mut self, ctx: u32, failed: Option<Failure>);

    /// An operation without a record has ended.
    fn complete(&mut self, done: &Completion, result: Result<(), Failure>);
}
