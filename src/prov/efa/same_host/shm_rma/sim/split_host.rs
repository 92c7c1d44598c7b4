//! Targets that help with split copies: they take chunks, and copy them at once or in a later poll,
//! or fail to.

use super::*;

/// A split copy: chunks taken and given back, and whether no more may be taken.
pub(super) struct SimRmaSplit {
    pub chunks: u32,
    pub taken: u32,
    pub back: u32,
    pub failed: bool,
    pub stopped: bool,
    pub open: bool,
}

impl SimRmaSplit {
    pub(super) fn new(chunks: u32) -> SimRmaSplit {
        SimRmaSplit {
            chunks,
            taken: 0,
            back: 0,
            failed: false,
            stopped: false,
            open: true,
        }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let more = !self.failed && !self.stopped && self.taken < self.chunks;
        self.taken += u32::from(more);
        more.then(|| self.taken - 1)
    }
}

/// A request for help with a split copy.
pub(super) struct SimHelp {
    pub from: PeerId,
    pub to: PeerId,
    pub words: [u64; 6],
}

/// A chunk that a target has taken and not copied yet.
pub(super) struct HeldChunk {
    pub by: PeerId,
    pub from: PeerId,
    pub key: u64,
    pub split: usize,
    pub chunk: u32,
}

impl RmaHost {
    /// Has a target copy the chunk that it holds, or fail to.
    pub(super) fn copy_held(&mut self, held: &HeldChunk) {
        let p = self.plan[held.key as usize];
        if self.dead.contains(&held.from) || self.chance(self.refuses) {
            self.splits[held.split].failed = true;
        } else {
            let off = held.chunk as usize * split::CHUNK;
            let (local, _) = self.local.get_mut(&held.key).unwrap();
            let local = local.piece().part(off, split::CHUNK);
            let addr = self.remote[&held.key].addr() + (p.offset + off) as u64;
            self.carry_out(held.key, p.write, &local.into(), addr);
            self.helped += 1;
        }
        self.splits[held.split].back += 1;
    }

    /// Has a target copy what the next request for help allows; the last chunk may take longer.
    pub(super) fn help(&mut self, me: PeerId) {
        let at = self.helps.iter().position(|h| h.to == me);
        let Some(SimHelp { from, words, .. }) = at.and_then(|at| self.helps.remove(at)) else {
            return;
        };
        let [key, addr, share, theirs, len, how] = words;
        let p = self.plan[key as usize];
        assert_eq!((len as usize, how & split::WRITE != 0), (p.len, p.write));
        assert_eq!(addr, self.remote[&key].addr() + p.offset as u64);
        if p.region != SimRegion::Permits {
            return;
        }
        let split = usize::from(SplitCopy::of(share).round);
        for _ in 0..POLL_BUDGET / split::CHUNK {
            let open = self.splits[split].open;
            let Some(chunk) = self.splits[split].take().filter(|_| open) else {
                return;
            };
            let (ours, _) = &self.local[&key];
            assert_eq!(ours.addr(), theirs, "another access's memory");
            let held = HeldChunk {
                by: me,
                from,
                key,
                split,
                chunk,
            };
            if self.chance(25) {
                self.held.push(held);
                return;
            }
            self.copy_held(&held);
        }
    }
}
