//! Copies by a device between memory of this process and a peer's device memory that is open here.
//!
//! While copies of a region are under way, its key stands in one of the ring's words for them
//! (`DEVICE_KEYS`), which the owner's fi_close of the region waits for.

use super::*;
use crate::shm::rma::{KeyHash, DEVICE_KEYS, DEVICE_KEYS_COUNT};

/// A copy under way.
pub(super) struct DeviceCopy {
    copy: PendingCopy,
    mark: RegionMark,
}

/// Where a region is marked: the ring, its connection and peer, and which word it is.
struct RegionMark {
    ring: Arc<RingSegment>,
    conn: u64,
    peer: PeerId,
    word: usize,
}

/// Which regions of a peer are marked, and for how many copies.
#[derive(Default)]
pub(super) struct DeviceMarks([Option<(KeyHash, usize)>; DEVICE_KEYS_COUNT]);

impl DeviceMarks {
    /// Marks a region for one more copy; returns which word has the mark, or `None` when all have
    /// marks of other regions.
    fn add(&mut self, ring: &RingSegment, tag: KeyHash) -> Option<usize> {
        let same = |m: &Option<(KeyHash, usize)>| m.is_some_and(|(t, _)| t == tag);
        let all = &mut self.0;
        let at = all.iter().position(same);
        let at = at.or_else(|| all.iter().position(Option::is_none))?;
        let m = all.get_mut(at)?;
        match m {
            Some((_, n)) => *n += 1,
            None => {
                *m = Some((tag, 1));
                tag.mark(ring.word(DEVICE_KEYS + 8 * at));
            }
        }
        Some(at)
    }

    /// Takes back one copy's mark.
    fn remove(&mut self, ring: &RingSegment, at: usize) {
        let Some(m) = self.0.get_mut(at) else { return };
        match m {
            Some((_, n)) if *n > 1 => *n -= 1,
            _ => {
                *m = None;
                KeyHash::unmark(ring.word(DEVICE_KEYS + 8 * at));
            }
        }
    }
}

impl TxRings {
    /// Whether a region of a peer is device memory that this process can open, and copy to or from
    /// `local`.
    pub fn ensure_open(
        &mut self,
        peer: PeerId,
        RemoteAddr { addr, key }: RemoteAddr,
        write: bool,
        local: &UserMem,
    ) -> bool {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return false;
        };
        let Some(l) = o.initiator.as_ref().filter(|l| l.mr_table().devices()) else {
            return false;
        };
        let tag = o.tags.of(key);
        let used = RegionUse::new((o.ring.file(), COPY_KEY), tag);
        let at = (addr, local.len() as u64);
        let found = l.mr_table().find_device((key, tag), at, write);
        used.is_some()
            && found.is_ok_and(|(kind, h)| self.open_memory.ensure_open(peer, (kind, &h), local))
    }

    /// Starts to copy `local` to a region of a peer that is device memory, or to fill it from
    /// there; returns the copy's number. `None` while copies of too many other regions are under
    /// way.
    pub fn start_device_copy(
        &mut self,
        peer: PeerId,
        RemoteAddr { addr, key }: RemoteAddr,
        write: bool,
        local: &UserMem,
    ) -> core::result::Result<Option<u32>, RmaDenied> {
        let Some(TxRoute::Ring(o)) = self.routes.get_mut(peer as usize) else {
            return Err(RmaDenied::Unsupported);
        };
        let l = o.initiator.as_ref().ok_or(RmaDenied::Unsupported)?;
        let tag = o.tags.of(key);
        let Some(word) = o.device_marks.add(o.ring.file(), tag) else {
            return Ok(None);
        };
        let at = (addr, local.len() as u64);
        let found = match o.ring.file().reader_gone() {
            true => Err(RmaDenied::Unsupported),
            false => l.mr_table().find_device((key, tag), at, write),
        };
        let started = found.and_then(|(kind, h)| {
            let copy = self.open_memory.start(peer, (kind, &h), local, write);
            copy.map_err(|_| RmaDenied::Unsupported)
        });
        match started {
            Ok(copy) => {
                let mark = RegionMark {
                    ring: Arc::clone(o.ring.file()),
                    conn: o.conn,
                    peer,
                    word,
                };
                let n = self.device_copies.insert(DeviceCopy { copy, mark });
                Ok(Some(n))
            }
            Err(denied) => {
                o.device_marks.remove(o.ring.file(), word);
                Err(denied)
            }
        }
    }

    /// Whether a copy is over, and how it ended; then the number is not used any more.
    pub fn poll_device_copy(&mut self, n: u32) -> Option<core::result::Result<(), RmaDenied>> {
        let c = self.device_copies.get_mut(n)?;
        let over = self.open_memory.poll(&mut c.copy);
        if over == Ok(false) {
            return None;
        }
        let c = self.device_copies.remove(n)?;
        self.unmark(&c.mark);
        Some(over.map(|_| ()).map_err(|_| RmaDenied::Unsupported))
    }

    /// Waits for all copies, when the endpoint is closed.
    pub(in crate::shm) fn end_device_copies(&mut self) {
        for n in self.device_copies.select(|_| true) {
            if let Some(c) = self.device_copies.remove(n) {
                let _ = self.open_memory.wait(c.copy);
                self.unmark(&c.mark);
            }
        }
    }

    /// Takes back the mark of a copy that is over.
    fn unmark(&mut self, m: &RegionMark) {
        match self.routes.get_mut(m.peer as usize) {
            Some(TxRoute::Ring(o)) if o.conn == m.conn => o.device_marks.remove(&m.ring, m.word),
            // The connection has ended, and nothing counts the copies of the region any more.
            _ => KeyHash::unmark(m.ring.word(DEVICE_KEYS + 8 * m.word)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_region_is_marked_while_copies_of_it_are_under_way() {
        let ring = RingSegment::create().unwrap();
        let words = || {
            let all = (0..DEVICE_KEYS_COUNT).map(|i| ring.word(DEVICE_KEYS + 8 * i));
            all.filter(|w| w.load(Relaxed) != 0).count()
        };
        let mut marks = DeviceMarks::default();
        let tag = |i: usize| KeyHash::of(i as u64);
        assert_eq!((marks.add(&ring, tag(0)), words()), (Some(0), 1));
        assert_eq!((marks.add(&ring, tag(0)), words()), (Some(0), 1));
        for i in 1..DEVICE_KEYS_COUNT {
            assert_eq!(marks.add(&ring, tag(i)), Some(i));
        }
        assert_eq!(marks.add(&ring, tag(DEVICE_KEYS_COUNT)), None);
        marks.remove(&ring, 0);
        assert_eq!(words(), DEVICE_KEYS_COUNT);
        marks.remove(&ring, 0);
        assert_eq!(words(), DEVICE_KEYS_COUNT - 1);
        assert_eq!(marks.add(&ring, tag(DEVICE_KEYS_COUNT)), Some(0));
    }
}
