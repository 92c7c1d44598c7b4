//! Which receive takes which message (fi_msg(3), fi_tagged(3)).
//!
//! Posted receives and unexpected messages are each kept by exact (source, tag), by tag with any
//! source, and, for receives with ignored tag bits, in one list. A sequence number per entry
//! decides between the lists, so that the oldest candidate wins wherever it stands. An exact
//! search costs a hash look-up, however many entries wait; entries taken through one list are
//! dropped from the others when they come to their front.

use super::PeerId;
use crate::core::slab::Slab;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Any source.
pub const ANY: PeerId = PeerId::MAX;

/// A multiplicative hash: keys are a peer and a tag, not an attacker's strings, and the maps are
/// bounded by what the application posted and what memory for unexpected messages allows.
#[derive(Default)]
pub struct TagHasher(u64);

impl Hasher for TagHasher {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u32(&mut self, v: u32) {
        self.write_u64(u64::from(v));
    }

    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type Lists = HashMap<(PeerId, u64), VecDeque<u64>, BuildHasherDefault<TagHasher>>;

/// A receive that waits for its message.
#[derive(Debug, Clone)]
pub struct Posted<R> {
    pub src: PeerId,
    pub tag: u64,
    pub ignore: u64,
    pub what: R,
}

/// A message that waits for its receive.
#[derive(Debug)]
struct Waiting<U> {
    src: PeerId,
    tag: u64,
    what: U,
}

/// An entry together with when it came; lists refer to it by `seq` and slot.
#[derive(Debug)]
struct Stamped<T> {
    seq: u32,
    value: T,
}

fn pack(seq: u32, slot: u32) -> u64 {
    u64::from(seq) << 32 | u64::from(slot)
}

fn slot_of(id: u64) -> u32 {
    id as u32
}

fn seq_of(id: u64) -> u32 {
    (id >> 32) as u32
}

/// First entry of a list that still exists; dead ones before it are dropped.
fn front<T>(list: Option<&mut VecDeque<u64>>, live: &Slab<Stamped<T>>) -> Option<u64> {
    let list = list?;
    while let Some(id) = list.front().copied() {
        if live.get(slot_of(id)).is_some_and(|e| e.seq == seq_of(id)) {
            return Some(id);
        }
        list.pop_front();
    }
    None
}

/// Posted receives and unexpected messages of one kind (tagged or not) of one endpoint.
/// `R` is what a receive carries, `U` what a message carries.
#[derive(Debug)]
pub struct Matcher<R, U> {
    posted: Slab<Stamped<Posted<R>>>,
    exact: Lists,
    masked: VecDeque<u64>,
    messages: Slab<Stamped<Waiting<U>>>,
    by_source: Lists,
    by_tag: Lists,
    in_order: VecDeque<u64>,
    seq: u32,
}

impl<R, U> Default for Matcher<R, U> {
    fn default() -> Self {
        Matcher {
            posted: Slab::default(),
            exact: Lists::default(),
            masked: VecDeque::new(),
            messages: Slab::default(),
            by_source: Lists::default(),
            by_tag: Lists::default(),
            in_order: VecDeque::new(),
            seq: 0,
        }
    }
}

impl<R, U> Matcher<R, U> {
    fn stamp(&mut self) -> u32 {
        self.seq = self.seq.wrapping_add(1);
        self.seq
    }

    /// Posts a receive that found no message.
    pub fn post(&mut self, p: Posted<R>) {
        let (seq, key, masked) = (self.stamp(), (p.src, p.tag), p.ignore != 0);
        let slot = self.posted.insert(Stamped { seq, value: p });
        if masked {
            self.masked.push_back(pack(seq, slot));
        } else {
            self.exact
                .entry(key)
                .or_default()
                .push_back(pack(seq, slot));
        }
    }

    /// The oldest receive that takes a message of this source and tag.
    pub fn match_message(&mut self, src: PeerId, tag: u64) -> Option<Posted<R>> {
        let a = front(self.exact.get_mut(&(src, tag)), &self.posted);
        let b = front(self.exact.get_mut(&(ANY, tag)), &self.posted);
        while front(Some(&mut self.masked), &self.posted).is_none() && !self.masked.is_empty() {}
        let c = self.masked.iter().copied().find(|id| {
            self.posted.get(slot_of(*id)).is_some_and(|e| {
                let p = &e.value;
                e.seq == seq_of(*id)
                    && (p.src == ANY || p.src == src)
                    && (p.tag ^ tag) & !p.ignore == 0
            })
        });
        let best = [a, b, c]
            .into_iter()
            .flatten()
            .min_by_key(|id| seq_of(*id).wrapping_sub(self.seq.wrapping_add(1)))?;
        if Some(best) == c {
            self.masked.retain(|id| *id != best);
        }
        self.tidy(best == a.unwrap_or(0), (src, tag));
        self.tidy(best == b.unwrap_or(0), (ANY, tag));
        self.posted.remove(slot_of(best)).map(|e| e.value)
    }

    /// Takes the front of an exact list off, and the list away when it is empty.
    fn tidy(&mut self, taken: bool, key: (PeerId, u64)) {
        if !taken {
            return;
        }
        if let Some(l) = self.exact.get_mut(&key) {
            l.pop_front();
            if l.is_empty() && self.exact.len() > 64 {
                self.exact.remove(&key);
            }
        }
    }

    /// Takes a posted receive back, the first that `pick` accepts.
    pub fn cancel(&mut self, mut pick: impl FnMut(&R) -> bool) -> Option<Posted<R>> {
        let slot = self
            .posted
            .iter()
            .filter(|(_, e)| pick(&e.value.what))
            .min_by_key(|(_, e)| e.seq.wrapping_sub(self.seq.wrapping_add(1)))?;
        let slot = slot.0;
        self.posted.remove(slot).map(|e| e.value)
    }

    /// Keeps a message for which no receive is posted.
    pub fn keep(&mut self, src: PeerId, tag: u64, what: U) {
        let seq = self.stamp();
        let slot = self.messages.insert(Stamped {
            seq,
            value: Waiting { src, tag, what },
        });
        let id = pack(seq, slot);
        self.by_source.entry((src, tag)).or_default().push_back(id);
        self.by_tag.entry((ANY, tag)).or_default().push_back(id);
        self.in_order.push_back(id);
    }

    fn find(&mut self, src: PeerId, tag: u64, ignore: u64) -> Option<u64> {
        if ignore == 0 {
            let list = if src == ANY {
                self.by_tag.get_mut(&(ANY, tag))
            } else {
                self.by_source.get_mut(&(src, tag))
            };
            return front(list, &self.messages);
        }
        front(Some(&mut self.in_order), &self.messages)?;
        self.in_order.iter().copied().find(|id| {
            self.messages.get(slot_of(*id)).is_some_and(|e| {
                let m = &e.value;
                e.seq == seq_of(*id) && (src == ANY || m.src == src) && (m.tag ^ tag) & !ignore == 0
            })
        })
    }

    /// The oldest message for a receive of this source and tag, taken out.
    pub fn match_receive(&mut self, src: PeerId, tag: u64, ignore: u64) -> Option<U> {
        let id = self.find(src, tag, ignore)?;
        let m = self.messages.remove(slot_of(id))?.value;
        for (map, key) in [
            (&mut self.by_source, (m.src, m.tag)),
            (&mut self.by_tag, (ANY, m.tag)),
        ] {
            if let Some(l) = map.get_mut(&key) {
                if l.front() == Some(&id) {
                    l.pop_front();
                }
                if l.is_empty() && map.len() > 64 {
                    map.remove(&key);
                }
            }
        }
        front(Some(&mut self.in_order), &self.messages);
        Some(m.what)
    }

    /// Posted receives.
    pub fn posted(&self) -> usize {
        self.posted.len()
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

    /// The plain meaning: two lists searched from the front.
    #[derive(Default)]
    struct Plain {
        posted: Vec<(PeerId, u64, u64, u32)>,
        messages: Vec<(PeerId, u64, u32)>,
    }

    fn fits(src: PeerId, tag: u64, ignore: u64, m: (PeerId, u64)) -> bool {
        (src == ANY || src == m.0) && (tag ^ m.1) & !ignore == 0
    }

    #[test]
    fn agrees_with_two_plain_lists() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut fast: Matcher<u32, u32> = Matcher::default();
            let mut plain = Plain::default();
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
                        assert_eq!(
                            fast.match_receive(src, tag, ignore),
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
                        assert_eq!(
                            fast.match_message(src, tag).map(|p| p.what),
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
