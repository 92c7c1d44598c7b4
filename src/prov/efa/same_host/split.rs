//! Split copies (`shm::SplitCopy`), as long messages and accesses use them.

use crate::hmem::Piece;
use crate::proto::PeerId;
use crate::shm::{SplitCopy, TxRings};

/// The split copies that an endpoint has opened. Its rings and the simulators' implement it.
pub(crate) trait SplitRings {
    /// Opens a split copy of `chunks` chunks with a peer; `None` when too many are open.
    fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy>;

    /// Whether all chunks are copied; the copy is closed then.
    fn end_split(&mut self, peer: PeerId, s: SplitCopy) -> bool;

    /// Ends a copy early: no more chunks are taken. Returns whether the peer writes nothing more;
    /// `false` while it copies a chunk: the caller asks again.
    fn stop_split(&mut self, peer: PeerId, s: SplitCopy) -> bool;
}

impl SplitRings for TxRings {
    fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy> {
        TxRings::open_split(self, peer, chunks)
    }

    fn end_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        TxRings::end_split(self, peer, s)
    }

    fn stop_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        TxRings::stop_split(self, peer, s)
    }
}

/// Chunk `c`, of `len` bytes, of a piece of our memory, and its address in the peer's memory, which
/// begins at `at`.
pub(crate) fn chunk((piece, at): (Piece, u64), (c, len): (u32, usize)) -> (Piece, u64) {
    let off = c as usize * len;
    (piece.part(off, len), at.wrapping_add(off as u64))
}
