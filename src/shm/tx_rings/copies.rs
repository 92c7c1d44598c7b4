//! Copies from and to a peer's memory by the system (`rma::cma`), and those that both sides share.

use super::*;

impl TxRings {
    /// Of the ring to a peer whose memory can be reached from here.
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

    /// Writes `local` to a peer's region, or fills it from there. Whether the peer wants to hear of
    /// it.
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
        v.access(o.ring.file().word(VISIT), write, local, tag, addr)?;
        Ok(v.events())
    }

    /// As [`TxRings::access`], pieces, up to `MANY`, by one call of the system: how many are there,
    /// from the first on.
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
        let mark = o.ring.file().word(VISIT);
        let tag = o.tags.of(key);
        let all = |l: &Arc<Initiator>| l.mr_table().access_batch(mark, write, tag, parts);
        o.initiator.as_ref().map_or(0, all)
    }

    /// Writes `local` to a peer's memory, or fills it from there, where the peer has said. `false`
    /// when that did not work.
    pub fn cma_copy(&self, peer: PeerId, write: bool, local: &LocalBuffer, at: u64) -> bool {
        self.initiator(peer)
            .is_some_and(|l| l.mr_table().cma_copy(write, local, at))
    }

    /// Fills pieces of memory, up to `MANY`, from where the peer has said, by one call of the
    /// system: how many are filled, from the first on.
    pub fn cma_read_batch(&self, peer: PeerId, parts: impl Iterator<Item = (Piece, u64)>) -> usize {
        self.initiator(peer)
            .map_or(0, |l| l.mr_table().cma_read_batch(parts))
    }

    /// A transfer of so many chunks that the peer may help with; `None` when there are too many
    /// already.
    pub fn open_split(&mut self, peer: PeerId, chunks: u32) -> Option<SplitCopy> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return None;
        };
        let word = o.shares.trailing_ones() as u8;
        if word >= split_copy::WORDS {
            return None;
        }
        o.shares |= 1 << word;
        o.round = o.round.wrapping_add(1);
        let share = SplitCopy {
            word,
            round: o.round,
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

    /// Copies up to `most` chunks of a transfer of ours, as long as there are some: how many;
    /// `None` when `copy` could not do one.
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

    /// Whether all are.
    pub fn split_done(&self, peer: PeerId, s: SplitCopy) -> bool {
        self.shared(peer).is_some_and(|ring| s.over(ring))
    }

    /// As [`TxRings::split_done`]; it ends then.
    pub fn end_split(&mut self, peer: PeerId, s: SplitCopy) -> bool {
        let over = self.split_done(peer, s);
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize).filter(|_| over) {
            o.shares &= !(1 << s.word);
        }
        over
    }

    /// A transfer ends before it is over: nothing is written by the peer any more when this
    /// returns.
    pub fn stop_split(&mut self, peer: PeerId, s: SplitCopy) {
        if let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) {
            o.stop(1 << s.word, self.thread);
        }
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

    /// Whether a peer wants to hear of every access.
    pub fn wants_events(&self, peer: PeerId) -> bool {
        self.initiator(peer).is_some_and(|l| l.mr_table().events())
    }
}
