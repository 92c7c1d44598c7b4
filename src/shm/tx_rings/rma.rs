//! Reads, writes and atomics as records of a peer's ring, and their completions.

use super::*;

impl TxRings {
    /// Writes an access into a peer's ring; a poll reports its end. `Unsupported` without a ring,
    /// and where the access is better executed from here or the peer cannot execute it.
    #[inline(always)]
    pub(in crate::shm) fn post(&mut self, a: &RmaRequest, done: Completion) -> Verdict {
        let peer = done.peer;
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Verdict::Unsupported;
        };
        if !o
            .outstanding
            .admit_request(a, &o.ring, o.initiator.as_deref())
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
        match o.outcome(written, peer, &mut self.blocked_peers) {
            Verdict::Done => Verdict::Queued,
            other => other,
        }
    }

    /// Whether accesses to a peer go into its ring at present. Counts the back-off down.
    pub fn admit_rma(&mut self, peer: PeerId) -> bool {
        match self.routes.get_mut(peer as usize) {
            Some(TxRoute::Ring(o)) => o.initiator.is_some() && o.outstanding.admit_rma(&o.ring),
            _ => false,
        }
    }

    /// Leaves the ring's lock as a process does that ends during [`Initiator::execute_pending`].
    #[cfg(test)]
    pub fn abandon_lock(&self, peer: PeerId) {
        if let Some(TxRoute::Ring(o)) = self.routes.get(peer as usize) {
            crate::shm::rma::abandon(o.ring.file());
        }
    }

    /// Whether a poll may find something.
    #[inline]
    pub fn has_outstanding(&self) -> bool {
        !(self.peers_outstanding.is_empty() && self.lost.is_empty() && self.retries.is_empty())
    }

    /// Takes the accesses that the adapter is to do.
    pub fn take_retries(&mut self) -> Vec<AdapterRetry> {
        core::mem::take(&mut self.retries)
    }

    /// Adds an access that cannot be done through shared memory, or that the adapter has no room
    /// for now.
    pub fn add_retry(&mut self, a: AdapterRetry) {
        self.retries.push(a);
    }

    /// Whether there is something for [`TxRings::take_retries`].
    pub fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// Whether accesses to a peer are not known to be done.
    pub fn has_outstanding_to(&self, peer: PeerId) -> bool {
        self.peers_outstanding.contains(&peer)
            || self.lost.iter().any(|(done, _)| done.peer == peer)
            || self.retries.iter().any(|a| a.done.peer == peer)
    }

    /// Executes every access that can be executed from here, before the caller blocks; `false` when
    /// some are left whose end raises no event.
    pub fn settle(&mut self) -> bool {
        let mut all = self.lost.is_empty() && self.retries.is_empty();
        for peer in &self.peers_outstanding {
            if let Some(TxRoute::Ring(o)) = self.routes.get_mut(*peer as usize) {
                all &= o.outstanding.settle(&o.ring, o.initiator.as_deref());
            }
        }
        all
    }
}

/// Reports the ends of accesses; messages do not arrive here. [`PollStatus::Deferred`] also while
/// accesses wait for [`TxRings::take_retries`].
impl Poll for TxRings {
    type Message<'a> = ();

    #[inline]
    fn poll<S>(&mut self, budget: usize, sink: &mut S) -> PollStatus
    where
        S: for<'a> Sink<()>,
    {
        let mut left = budget;
        while let Some((done, status)) = self.lost.front() {
            if left == 0 {
                return PollStatus::Taken;
            }
            left -= 1;
            let flow = sink.completed(done, *status);
            if flow == Flow::Deferred {
                return PollStatus::Deferred;
            }
            self.lost.pop_front();
            if flow == Flow::Enough {
                return PollStatus::Taken;
            }
        }
        let mut at = 0;
        while let Some(peer) = self.peers_outstanding.get(at).copied() {
            let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
                self.peers_outstanding.swap_remove(at);
                continue;
            };
            let initiator = o.initiator.as_deref();
            let again = |a| self.retries.push(a);
            let each = |done: &Completion, status| {
                left = left.saturating_sub(1);
                match sink.completed(done, status) {
                    Flow::Taken if left == 0 => Flow::Enough,
                    flow => flow,
                }
            };
            match o.outstanding.poll(&mut o.ring, initiator, again, each) {
                Flow::Taken => {}
                Flow::Enough => return PollStatus::Taken,
                Flow::Deferred => return PollStatus::Deferred,
            }
            if o.outstanding.is_empty() {
                self.peers_outstanding.swap_remove(at);
            } else {
                at += 1;
            }
        }
        match (self.retries.is_empty(), left == budget) {
            (false, _) => PollStatus::Deferred,
            (true, true) => PollStatus::Empty,
            (true, false) => PollStatus::Taken,
        }
    }
}
