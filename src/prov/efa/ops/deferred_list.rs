//! Deferred operations of an endpoint, by peer.
//!
//! Those of one peer start in the order of the calls: the first that has to wait holds up the
//! others. A run ([`DeferredList::begin`]) tries the first of each peer. Runs are not nested: an
//! operation that starts may make progress, and would start the next one within it.

use super::deferred::DeferredWork;
use crate::proto::PeerId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// See the module text. A peer whose last operation is being started is still listed.
#[derive(Default)]
pub(crate) struct DeferredList {
    /// By peer; `None`: of no peer.
    of: BTreeMap<Option<PeerId>, VecDeque<DeferredWork>>,
    len: usize,
    runs: bool,
}

impl DeferredList {
    /// Number of operations.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there are operations of this peer.
    pub(crate) fn names(&self, peer: PeerId) -> bool {
        self.of.contains_key(&Some(peer))
    }

    /// Number of operations of a peer.
    pub(super) fn count(&self, peer: Option<PeerId>) -> usize {
        self.of.get(&peer).map_or(0, VecDeque::len)
    }

    /// All operations.
    pub(super) fn iter(&self) -> impl Iterator<Item = &DeferredWork> {
        self.of.values().flatten()
    }

    /// The first operation of each peer.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = &DeferredWork> {
        self.of.values().filter_map(VecDeque::front)
    }

    /// Adds an operation behind those of its peer.
    pub(super) fn push(&mut self, w: DeferredWork) {
        self.len += 1;
        self.of.entry(w.peer()).or_default().push_back(w);
    }

    /// Adds an operation in front of those of its peer.
    pub(super) fn push_front(&mut self, w: DeferredWork) {
        self.len += 1;
        self.of.entry(w.peer()).or_default().push_front(w);
    }

    /// Begins a run; `false` while there is one.
    pub(super) fn begin(&mut self) -> bool {
        !core::mem::replace(&mut self.runs, true)
    }

    /// Ends a run.
    pub(super) fn end(&mut self) {
        self.runs = false;
    }

    /// The peer behind `last` (`None`: the first).
    pub(super) fn next_peer(&self, last: Option<Option<PeerId>>) -> Option<Option<PeerId>> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut behind = self.of.range((from, Bound::Unbounded));
        behind.next().map(|(peer, _)| *peer)
    }

    /// Takes the first operation of a peer; without one, the peer is not listed any more.
    pub(super) fn take(&mut self, peer: Option<PeerId>) -> Option<DeferredWork> {
        let first = self.of.get_mut(&peer).and_then(VecDeque::pop_front);
        match first {
            Some(_) => self.len -= 1,
            None => drop(self.of.remove(&peer)),
        }
        first
    }
}
