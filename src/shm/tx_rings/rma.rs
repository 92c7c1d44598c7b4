//! Reads, writes and atomics as records of a peer's ring, and their ends.

use super::*;

impl TxRings {
    /// Writes an access into a peer's ring, whose end [`TxRings::poll_done`] tells. `Unsupported`
    /// where it is better done from here, or cannot be done by the peer.
    #[inline(always)]
    pub(in crate::shm) fn post(&mut self, a: &RmaRequest, done: Completion) -> Verdict {
        let peer = done.peer;
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        if !o
            .outstanding
            .accepts_rma(a, &o.ring, o.initiator.as_deref())
        {
            return Verdict::Unsupported;
        }
        let what = RecordHeader {
            kind: a.kind,
            flags: a.flags | kind::ACCESS,
            message: a.kind == kind::CONFIRMED,
        };
        let words = [done.remote.key, done.remote.addr, a.word];
        let written = match o.ring.access(what, words, &a.data, a.into.len()) {
            Ok((wake, start)) => {
                let (l, t) = (o.initiator.as_ref(), self.thread);
                if o.outstanding.track(&mut o.ring, l, a, start, done, t) {
                    self.peers_outstanding.push(peer);
                }
                Ok(wake)
            }
            Err(why) => {
                o.outstanding
                    .count_empty_poll(&o.ring, o.initiator.as_deref());
                Err(why)
            }
        };
        match o.outcome(written, peer, &mut self.stopped) {
            Verdict::Done => Verdict::Queued,
            other => other,
        }
    }

    /// Whether accesses to a peer go into its ring just now.
    pub fn takes_rma(&mut self, peer: PeerId) -> bool {
        match self.routes.get_mut(peer as usize) {
            Some(TxRoute::Ring(o)) => o.initiator.is_some() && o.outstanding.takes_rma(&o.ring),
            _ => false,
        }
    }

    /// As a process leaves it that ends in the middle of [`Initiator::execute_pending`].
    #[cfg(test)]
    pub fn claim_for_ever(&self, peer: PeerId) {
        if let Some(TxRoute::Ring(o)) = self.routes.get(peer as usize) {
            crate::shm::rma::abandon(o.ring.file());
        }
    }

    /// Whether [`TxRings::poll_done`] may have something to say.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        !(self.peers_outstanding.is_empty() && self.lost.is_empty() && self.again.is_empty())
    }

    /// What the adapter is to do.
    pub fn take_retries(&mut self) -> Vec<AdapterRetry> {
        core::mem::take(&mut self.again)
    }

    /// An access that cannot be done through shared memory, or that the adapter has no room for
    /// now.
    pub fn add_retry(&mut self, a: AdapterRetry) {
        self.again.push(a);
    }

    /// Whether there is something for [`TxRings::take_retries`].
    pub fn has_retries(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether accesses to a peer are not known to be done.
    pub fn has_outstanding_to(&self, peer: PeerId) -> bool {
        self.peers_outstanding.contains(&peer)
            || self.lost.iter().any(|(done, _)| done.peer == peer)
            || self.again.iter().any(|a| a.done.peer == peer)
    }

    /// Tells of accesses that have ended, until `each` will not hear of one, which it is told of
    /// again then. `false` in that case, and when some are for [`TxRings::take_retries`].
    #[inline]
    pub fn poll_done(&mut self, mut each: impl FnMut(&Completion, Status) -> bool) -> bool {
        while let Some((done, status)) = self.lost.front() {
            if !each(done, *status) {
                return false;
            }
            self.lost.pop_front();
        }
        let mut at = 0;
        while let Some(peer) = self.peers_outstanding.get(at).copied() {
            let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
                self.peers_outstanding.swap_remove(at);
                continue;
            };
            let initiator = o.initiator.as_deref();
            let again = |a| self.again.push(a);
            if !o
                .outstanding
                .poll_done(&mut o.ring, initiator, again, &mut each)
            {
                return false;
            }
            if o.outstanding.is_empty() {
                self.peers_outstanding.swap_remove(at);
            } else {
                at += 1;
            }
        }
        self.again.is_empty()
    }

    /// Executes every access that can be executed from here, before the caller blocks; `false` when
    /// some are left whose end raises no event.
    pub fn settle(&mut self) -> bool {
        let mut all = self.lost.is_empty() && self.again.is_empty();
        for peer in &self.peers_outstanding {
            if let Some(TxRoute::Ring(o)) = self.routes.get_mut(*peer as usize) {
                all &= o.outstanding.settle(&o.ring, o.initiator.as_deref());
            }
        }
        all
    }
}
