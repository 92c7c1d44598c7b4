//! Cross-memory copies from and to a peer's memory (`rma::cma`), and split copies.

use super::*;

/// Half of the numbers of split copies, which begin anew after 2^16.
const SPLIT_HALF: u16 = 1 << 15;

impl TxRings {
    /// The initiator of the ring to a peer whose memory can be accessed from here.
    #[inline]
    fn initiator(&self, peer: PeerId) -> Option<&Initiator> {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(o)) => o.initiator.as_deref(),
            _ => None,
        }
    }

    /// Whether the peer's memory can be reached from here.
    #[inline]
    pub fn reaches_memory(&self, peer: PeerId) -> bool {
        self.initiator(peer).is_some()
    }

    /// Writes `local` to a peer's region, or fills it from there. Returns whether the peer asks for
    /// an event of the access.
    pub fn cma_access(
        &mut self,
        peer: PeerId,
        write: bool,
        local: &LocalBuffer,
        RemoteAddr { addr, key }: RemoteAddr,
    ) -> core::result::Result<bool, RmaDenied> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Err(RmaDenied::Unsupported);
        };
        let v = o
            .initiator
            .as_ref()
            .ok_or(RmaDenied::Unsupported)?
            .mr_table();
        let tag = o.tags.of(key);
        v.access((o.ring.file(), COPY_KEY), write, local, tag, addr)?;
        Ok(v.events())
    }

    /// As [`TxRings::cma_access`], up to `MANY` pieces by one system call. Returns how many pieces
    /// were copied, counted from the first.
    pub fn access_batch(
        &mut self,
        peer: PeerId,
        write: bool,
        key: u64,
        parts: impl Iterator<Item = (Piece, u64)>,
    ) -> usize {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return 0;
        };
        let mark = (&**o.ring.file(), COPY_KEY);
        let tag = o.tags.of(key);
        let all = |l: &Arc<Initiator>| l.mr_table().access_batch(mark, write, tag, parts);
        o.initiator.as_ref().map_or(0, all)
    }

    /// Writes `local` to a peer's memory, or fills it from there, at an address that the peer has
    /// sent. Returns `false` when the copy failed.
    pub fn cma_copy(&self, peer: PeerId, write: bool, local: &LocalBuffer, at: u64) -> bool {
        self.initiator(peer)
            .is_some_and(|l| l.mr_table().cma_copy(write, local, at))
    }

    /// Fills up to `MANY` pieces of memory from addresses that the peer has sent, by one system
    /// call. Returns how many pieces were filled, counted from the first.
    pub fn cma_read_batch(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        self.initiator(peer)
            .map_or(0, |l| l.mr_table().cma_read_batch(parts))
    }

    /// Opens a split copy of `chunks` chunks; `None` when too many are open already, or the peer
    /// has not looked at the requests of tens of thousands before it.
    pub fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return None;
        };
        let word = o.split_words.trailing_ones() as u8;
        if word >= split_copy::WORDS {
            return None;
        }
        let round = o.split_round.wrapping_add(1);
        if round % SPLIT_HALF == 0 {
            // A record that the peer has not taken may name a copy of the half that begins anew.
            if !o.ring.is_taken(o.half_began) {
                return None;
            }
            o.half_began = o.ring.at();
        }
        o.split_words |= 1 << word;
        o.split_round = round;
        let share = SplitCopy {
            word,
            round: o.split_round,
            chunks,
        };
        share.open(o.ring.file());
        Some(share)
    }

    fn shared(&self, peer: PeerId) -> Option<&RingSegment> {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(o)) => Some(o.ring.file()),
            _ => None,
        }
    }

    /// Copies up to `most` chunks of a split copy of ours while there are any. Returns how many, or
    /// `None` when `copy` failed.
    pub fn copy_split(
        &self,
        peer: PeerId,
        s: SplitCopy,
        most: u32,
        copy: impl FnMut(u32) -> bool,
    ) -> Option<u32> {
        self.shared(peer)
            .map_or(Some(0), |ring| s.work(ring, most, copy))
    }

    /// Takes a chunk of a split copy of ours; `None` when there are no more.
    pub fn take_chunk(&self, peer: PeerId, s: SplitCopy) -> Option<u32> {
        self.shared(peer).and_then(|ring| s.take(ring))
    }

    /// Counts a chunk that we took, and touch no more.
    pub fn mark_copied(&self, peer: PeerId, s: SplitCopy) {
        if let Some(ring) = self.shared(peer) {
            s.mark_copied(ring);
        }
    }

    /// Whether a chunk of a split copy could not be copied, or will not: the peer is gone.
    pub fn split_failed(&self, peer: PeerId, s: SplitCopy) -> bool {
        match self.routes.get(peer as usize) {
            Some(TxRoute::Ring(o)) => s.failed(o.ring.file()) || self.thread.peer_exited(o.conn),
            _ => true,
        }
    }

    /// Whether all chunks of a split copy are copied.
    pub fn split_done(&self, peer: PeerId, s: SplitCopy) -> bool {
        self.shared(peer).is_some_and(|ring| s.over(ring))
    }

    /// As [`TxRings::split_done`]; closes the split copy if all its chunks are copied.
    pub fn end_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let over = self.split_done(peer, s);
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize).filter(|_| over) {
            o.split_words &= !(1 << s.word);
        }
        over
    }

    /// Ends a split copy before all its chunks are copied: the peer takes no more of them. Returns
    /// whether it writes nothing any more; `false` while it copies one: the caller asks again.
    pub fn stop_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return true;
        };
        let ended = SplitCopy::stop(s.word, o.ring.file()) || self.thread.peer_exited(o.conn);
        if ended {
            o.split_words &= !(1 << s.word);
        }
        ended
    }

    /// Whether a read or write of a peer's region is known to be permitted, and possible from here.
    pub fn permits(
        &mut self,
        peer: PeerId,
        RemoteAddr { addr, key }: RemoteAddr,
        len: usize,
        write: bool,
    ) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return false;
        };
        let tag = o.tags.of(key);
        let l = o.initiator.as_ref();
        l.is_some_and(|l| l.mr_table().permits(tag, addr, len, write))
    }

    /// Whether a peer asks for an event of every access.
    pub fn wants_events(&self, peer: PeerId) -> bool {
        self.initiator(peer).is_some_and(|l| l.mr_table().events())
    }
}
