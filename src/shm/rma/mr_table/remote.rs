//! The initiator's side: a peer's table, and copies to and from the peer's memory that it permits.

use super::*;
use crate::shm::rma::cma::{self, LocalBuffer};
use std::os::fd::OwnedFd;

/// Why a copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RmaDenied {
    /// The status that an adapter would report.
    Status(Status),
    /// Not possible through shared memory.
    Unsupported,
}

/// The initiator's side: a peer's table, and the process it is of.
pub(crate) struct RemoteMrTable {
    pid: i32,
    /// The connection that the table came by has ended: the process may have closed its endpoint,
    /// or be another program, or another process with this number.
    pub(super) ended: Arc<AtomicBool>,
    table: MemfdMap,
}

impl RemoteMrTable {
    /// The table of process `pid`, if the system lets us into the peer's memory. `ended` is set
    /// when the connection with the peer has ended; `probe` is the address and the value of a word
    /// of the peer's memory ([`MrTable::offer`]).
    pub(crate) fn new(
        (pid, ended): (i32, &Arc<AtomicBool>),
        table: OwnedFd,
        probe: (u64, u64),
    ) -> Option<RemoteMrTable> {
        let table = MemfdMap::open_to_read(table, FILE..=FILE).ok()?;
        let mut word = [0u8; 8];
        let at = core::ptr::from_mut(&mut word).cast_const().cast();
        // SAFETY: the word lives to the end of this function.
        let local = unsafe { UserMem::new([(at, 8)]) }?;
        let reads = cma::copy(pid, false, &LocalBuffer::Mem(&local), 0, probe.0) == 8;
        (pid > 0 && reads && u64::from_ne_bytes(word) == probe.1).then(|| RemoteMrTable {
            pid,
            ended: Arc::clone(ended),
            table,
        })
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether the peer asks for events of accesses.
    pub(crate) fn events(&self) -> bool {
        self.table.word(EVENTS).load(Relaxed) != 0
    }

    /// Whether the peer has had a region of device memory.
    pub(crate) fn devices(&self) -> bool {
        self.table.word(DEVICES).load(Relaxed) != 0
    }

    /// Whether a key permits reading or writing `len` bytes there, by the table as it is now.
    pub(crate) fn permits(&self, hash: KeyHash, addr: u64, len: usize, write: bool) -> bool {
        find(&self.table, hash, addr, len as u64, write).is_ok()
    }

    /// How the device memory is opened that a key and an address name.
    pub(crate) fn find_device(
        &self,
        (key, hash): (u64, KeyHash),
        at: (u64, u64),
        write: bool,
    ) -> core::result::Result<(MemKind, IpcHandle), RmaDenied> {
        let find = || entry(&self.table, (hash, DEVICE), at, write);
        let (slot, off) = find()?;
        let shared = device_slots::read(&self.table, (HANDLES, slot), key);
        fence(Acquire);
        // The region may have been withdrawn, and its slot be another's.
        let (kind, mut handle) = shared
            .filter(|_| find() == Ok((slot, off)))
            .ok_or(RmaDenied::Unsupported)?;
        handle.offset = handle.offset.wrapping_add(off);
        Ok((kind, handle))
    }

    /// Writes `local` to, or reads it from, memory at an address that the peer has sent. `false`
    /// when not all of it was copied.
    pub(crate) fn cma_copy(&self, write: bool, local: &LocalBuffer, at: u64) -> bool {
        !self.has_ended() && cma::copy_all(self.pid, write, local, at).is_ok() && !self.has_ended()
    }

    /// Fills up to [`cma::MANY`] pieces from memory at addresses that the peer has sent, by one
    /// system call. Returns how many were filled, counted from the first.
    pub(crate) fn cma_read_batch(&self, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        match self.has_ended() {
            true => 0,
            false => cma::copy_batch(self.pid, false, parts),
        }
    }

    /// Writes `local` to, or reads it from, a region of the peer. `mark` is the word of the ring
    /// that shows the peer that the region is in use.
    pub(crate) fn access(
        &self,
        mark: (&RingSegment, usize),
        write: bool,
        local: &LocalBuffer,
        hash: KeyHash,
        addr: u64,
    ) -> core::result::Result<(), RmaDenied> {
        let _used = RegionUse::new(mark, hash).ok_or(RmaDenied::Unsupported)?;
        if self.has_ended() {
            return Err(RmaDenied::Status(Status::RemoteUnresponsive));
        }
        let at = find(&self.table, hash, addr, local.byte_len() as u64, write)?;
        cma::copy_all(self.pid, write, local, at).map_err(|none| {
            match none && cma::process_gone() {
                true => RmaDenied::Status(Status::RemoteUnresponsive),
                // The system has copied nothing, or not all: the adapter starts again, or reports
                // the error.
                false => RmaDenied::Unsupported,
            }
        })
    }

    /// As [`RemoteMrTable::access`], up to [`cma::MANY`] pieces by one system call. Returns how
    /// many were copied, counted from the first.
    pub(crate) fn access_batch(
        &self,
        mark: (&RingSegment, usize),
        write: bool,
        hash: KeyHash,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let used = RegionUse::new(mark, hash);
        if used.is_none() || self.has_ended() {
            return 0;
        }
        let found = parts.map_while(|(piece, addr)| {
            let at = find(&self.table, hash, addr, piece.len() as u64, write);
            Some((piece, at.ok()?))
        });
        cma::copy_batch(self.pid, write, found)
    }
}

/// Keeps a region of the peer from being closed while this value lives.
pub(crate) struct RegionUse<'a>(&'a AtomicU64);

impl RegionUse<'_> {
    /// `None` when the reader of the ring is gone: it no longer reads the word `at`.
    #[inline]
    pub(crate) fn new((ring, at): (&RingSegment, usize), hash: KeyHash) -> Option<RegionUse<'_>> {
        hash.mark(ring.word(at));
        let used = RegionUse(ring.word(at));
        (!ring.reader_gone()).then_some(used)
    }
}

impl Drop for RegionUse<'_> {
    fn drop(&mut self) {
        KeyHash::unmark(self.0);
    }
}
