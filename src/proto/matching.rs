//! Which receive takes which message (fi_msg(3), fi_tagged(3)).
//!
//! Posted receives and unexpected messages are kept in lists by (source, tag), once per mask of
//! ignored tag bits in use; [`ANY`] counts as a source of its own. A search costs one or two hash
//! look-ups per mask in use, however many entries wait. Each entry has a sequence number, which
//! selects the oldest of the lists' candidates. An entry that was removed through one list stays in
//! the others until it reaches their front, or until a list holds more removed entries than there
//! are live ones. Empty lists are kept for a while, because creating a list costs more than finding
//! it.
//!
//! Messages mostly arrive in the order of their receives. Receives therefore wait in a FIFO and are
//! entered into lists only when a message matches none of its oldest [`FEW`] receives.

mod lists;

use super::PeerId;
use crate::core::fifo::Fifo;
use crate::core::slab::Slab;
pub use lists::Id;
use lists::{alive, forget_burst, Index, List, Stamped};

/// Any source.
pub const ANY: PeerId = PeerId::MAX;
/// Receives that are looked at one by one before lists are made.
const FEW: usize = 8;
/// Most masks that have lists; receives and messages of further masks are searched one by one.
const MASKS_MAX: usize = 24;

/// A receive that waits for its message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Posted<R> {
    pub src: PeerId,
    pub tag: u64,
    pub ignore: u64,
    pub what: R,
}

impl<R> Posted<R> {
    /// Whether the receive matches a message of this source and tag.
    #[inline(always)]
    fn takes(&self, src: PeerId, tag: u64) -> bool {
        (self.src == ANY || self.src == src) && (self.tag ^ tag) & !self.ignore == 0
    }
}

/// A message that waits for its receive.
#[derive(Debug)]
struct Waiting<U> {
    src: PeerId,
    tag: u64,
    what: U,
}

/// The slot of a receive that is in no list.
const FRESH: u32 = u32::MAX;

/// Posted receives and unexpected messages of one kind (tagged or not) of one endpoint.
/// `R` is what a receive carries, `U` what a message carries.
#[derive(Debug)]
pub struct Matcher<R, U> {
    /// Receives that are in lists.
    listed: Slab<Stamped<Posted<R>>>,
    /// Receives in no list, in order; all are younger than those of `listed`.
    fresh: Fifo<Stamped<Posted<R>>>,
    /// Lists of receives by mask; the first has mask 0.
    receives: Vec<Index>,
    /// Receives of masks that have no lists, in order.
    rare: List,
    messages: Slab<Stamped<Waiting<U>>>,
    by_mask: Vec<Index>,
    in_order: List,
    seq: u32,
    /// Slot of the listed receive that was cancelled last.
    cancelled: u32,
}

impl<R: Copy + Default, U> Default for Matcher<R, U> {
    fn default() -> Self {
        Matcher {
            listed: Slab::default(),
            fresh: Fifo::with_capacity(FEW),
            receives: vec![Index::new(0)],
            rare: List::default(),
            messages: Slab::default(),
            by_mask: vec![Index::new(0)],
            in_order: List::default(),
            seq: 0,
            cancelled: 0,
        }
    }
}

impl<R: Copy + Default, U> Matcher<R, U> {
    fn stamp(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    // ---- receives ------------------------------------------------------------------------

    /// Posts a receive that found no message.
    #[inline(always)]
    pub fn post(&mut self, p: Posted<R>) {
        let seq = self.stamp();
        self.fresh.push(Stamped { seq, value: p });
    }

    /// Enters all receives into lists.
    #[cold]
    fn list_fresh(&mut self) {
        while let Some(e) = self.fresh.remove(0) {
            let (seq, slot) = (e.seq, self.listed.insert(e));
            let id = Id { seq, slot };
            let Posted {
                src, tag, ignore, ..
            } = e.value;
            let at = match self.receives.iter().position(|i| i.ignore == ignore) {
                Some(at) => at,
                None if self.receives.len() < MASKS_MAX => {
                    self.receives.push(Index::new(ignore));
                    self.receives.len() - 1
                }
                None => {
                    self.rare.append(id, &self.listed);
                    continue;
                }
            };
            if let Some(i) = self.receives.get_mut(at) {
                *(if src == ANY {
                    &mut i.any
                } else {
                    &mut i.directed
                }) += 1;
                i.put((src, tag & !ignore), id, &self.listed);
            }
        }
    }

    /// The oldest receive that takes a message of this source and tag.
    #[inline]
    pub fn find_receive(&mut self, src: PeerId, tag: u64) -> Option<Id> {
        if !self.listed.is_empty() {
            if let Some(id) = self.find_listed(src, tag) {
                return Some(id);
            }
        }
        let oldest = self.fresh.iter().take(FEW);
        let found = oldest
            .filter(|e| e.value.takes(src, tag))
            .map(|e| e.seq)
            .next();
        if let Some(seq) = found {
            return Some(Id { seq, slot: FRESH });
        }
        if self.fresh.len() <= FEW {
            return None;
        }
        self.list_fresh();
        self.find_listed(src, tag)
    }

    fn find_listed(&mut self, src: PeerId, tag: u64) -> Option<Id> {
        let mut best: Option<Id> = None;
        let newest = self.seq.wrapping_add(1);
        let order = |id: Id| id.seq.wrapping_sub(newest);
        let mut consider = |c: Option<Id>| {
            if let Some(c) = c {
                if best.is_none_or(|b| order(c) < order(b)) {
                    best = Some(c);
                }
            }
        };
        for i in &mut self.receives {
            let t = tag & !i.ignore;
            if i.directed > 0 {
                consider(
                    i.lists
                        .get_mut(&(src, t))
                        .and_then(|l| l.front(&self.listed)),
                );
            }
            if i.any > 0 {
                consider(
                    i.lists
                        .get_mut(&(ANY, t))
                        .and_then(|l| l.front(&self.listed)),
                );
            }
        }
        if self.rare.front(&self.listed).is_some() {
            consider(self.rare.iter().find(|id| {
                let e = self.listed.get(id.slot);
                e.is_some_and(|e| e.seq == id.seq && e.value.takes(src, tag))
            }));
        }
        best
    }

    /// Removes the oldest receive that matches a message of this source and tag, if `pick` returns
    /// a value for it.
    #[inline(always)]
    pub fn take_if<T>(
        &mut self,
        src: PeerId,
        tag: u64,
        pick: impl FnOnce(&R) -> Option<T>,
    ) -> Option<T> {
        // The usual case: the oldest of all receives, and it is in no list.
        let first = self.fresh.get(0).filter(|_| self.listed.is_empty());
        if let Some(e) = first.map(|e| &e.value).filter(|e| e.takes(src, tag)) {
            let found = pick(&e.what)?;
            self.fresh.drop_first();
            return Some(found);
        }
        self.take_later(src, tag, pick)
    }

    #[inline(never)]
    fn take_later<T>(
        &mut self,
        src: PeerId,
        tag: u64,
        pick: impl FnOnce(&R) -> Option<T>,
    ) -> Option<T> {
        let id = self.find_receive(src, tag)?;
        let found = pick(self.receive_mut(id)?)?;
        self.take_receive(id);
        Some(found)
    }

    /// Position in `fresh` of a receive that is in no list.
    fn fresh_at(&self, id: Id) -> Option<usize> {
        self.fresh.iter().position(|e| e.seq == id.seq)
    }

    /// What a posted receive carries, to change.
    pub fn receive_mut(&mut self, id: Id) -> Option<&mut R> {
        let e = match id.slot {
            FRESH => self.fresh.get_mut(self.fresh_at(id)?)?,
            slot => self.listed.get_mut(slot).filter(|e| e.seq == id.seq)?,
        };
        Some(&mut e.value.what)
    }

    /// Takes a posted receive out.
    pub fn take_receive(&mut self, id: Id) -> Option<Posted<R>> {
        if id.slot == FRESH {
            let at = self.fresh_at(id)?;
            return self.fresh.remove(at).map(|e| e.value);
        }
        if !alive(id, &self.listed) {
            return None;
        }
        let p = self.listed.remove(id.slot)?.value;
        forget_burst(&mut self.listed);
        if let Some(i) = self.receives.iter_mut().find(|i| i.ignore == p.ignore) {
            // A receive of `rare` was not counted here, and its mask may have got lists since.
            let n = if p.src == ANY {
                &mut i.any
            } else {
                &mut i.directed
            };
            *n = n.saturating_sub(1);
            i.drop_front((p.src, p.tag & !p.ignore), id);
        }
        Some(p)
    }

    /// Takes a posted receive back, one that `pick` accepts: which of several is not specified
    /// (fi_cancel(3)).
    pub fn cancel(&mut self, mut pick: impl FnMut(&R) -> bool) -> Option<Posted<R>> {
        let fresh = self.fresh.iter().find(|e| pick(&e.value.what));
        let fresh = fresh.map(|e| Id {
            seq: e.seq,
            slot: FRESH,
        });
        let id = fresh.or_else(|| {
            // Receives are most often cancelled in the order of their slots, or in the reverse.
            let end = self.listed.end() as u32;
            let from = self.cancelled.saturating_sub(1).min(end);
            let mut slots = (from..end).chain(0..from);
            slots.find_map(|slot| {
                let e = self.listed.get(slot).filter(|e| pick(&e.value.what))?;
                Some(Id { seq: e.seq, slot })
            })
        })?;
        if id.slot != FRESH {
            self.cancelled = id.slot;
        }
        self.take_receive(id)
    }

    // ---- messages ------------------------------------------------------------------------

    /// Keeps a message for which no receive is posted.
    pub fn keep(&mut self, src: PeerId, tag: u64, what: U) {
        let seq = self.stamp();
        let slot = self.messages.insert(Stamped {
            seq,
            value: Waiting { src, tag, what },
        });
        let id = Id { seq, slot };
        for i in &mut self.by_mask {
            let t = tag & !i.ignore;
            i.put((src, t), id, &self.messages);
            i.put((ANY, t), id, &self.messages);
        }
        self.in_order.append(id, &self.messages);
    }

    /// Position of a mask's lists of unexpected messages; they are built from all messages on first
    /// use. `None` when there are too many masks.
    fn index(&mut self, ignore: u64) -> Option<usize> {
        if let Some(at) = self.by_mask.iter().position(|i| i.ignore == ignore) {
            return Some(at);
        }
        if self.by_mask.len() >= MASKS_MAX {
            return None;
        }
        let mut i = Index::new(ignore);
        for id in self.in_order.iter().filter(|id| alive(*id, &self.messages)) {
            if let Some(e) = self.messages.get(id.slot) {
                let t = e.value.tag & !ignore;
                i.lists.entry((e.value.src, t)).or_default().push(id);
                i.lists.entry((ANY, t)).or_default().push(id);
            }
        }
        self.by_mask.push(i);
        Some(self.by_mask.len() - 1)
    }

    /// The oldest message for a receive of this source and tag.
    pub fn find_message(&mut self, src: PeerId, tag: u64, ignore: u64) -> Option<Id> {
        if self.messages.is_empty() {
            return None;
        }
        if let Some(at) = self.index(ignore) {
            let i = self.by_mask.get_mut(at)?;
            return i
                .lists
                .get_mut(&(src, tag & !ignore))
                .and_then(|l| l.front(&self.messages));
        }
        self.in_order.iter().find(|id| {
            self.messages.get(id.slot).is_some_and(|e| {
                let m = &e.value;
                e.seq == id.seq && (src == ANY || m.src == src) && (m.tag ^ tag) & !ignore == 0
            })
        })
    }

    /// What a waiting message carries.
    pub fn message(&self, id: Id) -> Option<&U> {
        let e = self.messages.get(id.slot).filter(|e| e.seq == id.seq)?;
        Some(&e.value.what)
    }

    /// Takes a waiting message out.
    pub fn take_message(&mut self, id: Id) -> Option<U> {
        if !alive(id, &self.messages) {
            return None;
        }
        let m = self.messages.remove(id.slot)?.value;
        for i in &mut self.by_mask {
            let t = m.tag & !i.ignore;
            i.drop_front((m.src, t), id);
            i.drop_front((ANY, t), id);
        }
        self.in_order.front(&self.messages);
        forget_burst(&mut self.messages);
        Some(m.what)
    }

    /// Drops the unexpected messages for which `keep` returns `false`.
    pub fn retain_messages(&mut self, mut keep: impl FnMut(&U) -> bool) {
        let gone: Vec<Id> = self
            .messages
            .iter()
            .filter(|(_, e)| !keep(&e.value.what))
            .map(|(slot, e)| Id { seq: e.seq, slot })
            .collect();
        for id in gone {
            self.take_message(id);
        }
    }

    /// Calls `each` with every unexpected message.
    pub fn each_message(&mut self, mut each: impl FnMut(&mut U)) {
        for (_, e) in self.messages.iter_mut() {
            each(&mut e.value.what);
        }
    }

    /// Whether a receive names this source, or a message came from it.
    pub fn mentions(&self, src: PeerId) -> bool {
        let fresh = (0..self.fresh.len()).filter_map(|i| self.fresh.get(i));
        let listed = self.listed.iter().map(|(_, e)| e);
        listed.chain(fresh).any(|e| e.value.src == src)
            || self.messages.iter().any(|(_, e)| e.value.src == src)
    }

    /// Posted receives.
    pub fn posted(&self) -> usize {
        self.listed.len() + self.fresh.len()
    }

    /// Messages without a receive.
    pub fn waiting(&self) -> usize {
        self.messages.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::rng::Rng;

    /// Reference implementation: two lists searched from the front.
    #[derive(Default)]
    struct ReferenceMatcher {
        posted: Vec<(PeerId, u64, u64, u32)>,
        messages: Vec<(PeerId, u64, u32)>,
    }

    fn fits(src: PeerId, tag: u64, ignore: u64, m: (PeerId, u64)) -> bool {
        (src == ANY || src == m.0) && (tag ^ m.1) & !ignore == 0
    }

    #[test]
    fn agrees_with_two_plain_lists() {
        for seed in 0..crate::proto::sim::seeds(300) {
            let mut rng = Rng::new(seed);
            let mut fast: Matcher<u32, u32> = Matcher::default();
            let mut plain = ReferenceMatcher::default();
            for n in 0..400u32 {
                let src = rng.below(3) as PeerId;
                let tag = rng.below(4);
                match rng.below(5) {
                    0 | 1 => {
                        let src = if rng.below(2) == 0 { ANY } else { src };
                        let ignore = if rng.below(3) == 0 { rng.below(4) } else { 0 };
                        let want = plain
                            .messages
                            .iter()
                            .position(|m| fits(src, tag, ignore, (m.0, m.1)))
                            .map(|i| plain.messages.remove(i).2);
                        let got = fast.find_message(src, tag, ignore);
                        assert_eq!(
                            got.and_then(|id| fast.take_message(id)),
                            want,
                            "seed {seed} step {n}"
                        );
                        if want.is_none() {
                            plain.posted.push((src, tag, ignore, n));
                            fast.post(Posted {
                                src,
                                tag,
                                ignore,
                                what: n,
                            });
                        }
                    }
                    2 | 3 => {
                        let want = plain
                            .posted
                            .iter()
                            .position(|p| fits(p.0, p.1, p.2, (src, tag)))
                            .map(|i| plain.posted.remove(i).3);
                        let got = fast.find_receive(src, tag);
                        assert_eq!(
                            got.and_then(|id| fast.take_receive(id)).map(|p| p.what),
                            want,
                            "seed {seed} step {n}"
                        );
                        if want.is_none() {
                            plain.messages.push((src, tag, n));
                            fast.keep(src, tag, n);
                        }
                    }
                    _ => {
                        let victim = rng.below(400) as u32;
                        let want = plain.posted.iter().position(|p| p.3 == victim);
                        assert_eq!(fast.cancel(|w| *w == victim).is_some(), want.is_some());
                        if let Some(i) = want {
                            plain.posted.remove(i);
                        }
                    }
                }
                assert_eq!(
                    (fast.posted(), fast.waiting()),
                    (plain.posted.len(), plain.messages.len())
                );
            }
        }
    }
}
