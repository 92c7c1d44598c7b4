//! Device memory of other processes of this host: opened once, and copied from and to
//! asynchronously.
//!
//! A [`SharedMemory`] caches open allocations, because opening takes long. The least recently used
//! is closed when there are too many, and all of a peer's when the peer is gone. A [`PendingCopy`]
//! is a copy under way. Its memory is in use until the copy is over, so that its drop waits.

use super::interface::{self, IpcHandle};
use super::running::RunningCopies;
use super::{MemKind, UserMem};
use crate::core::Result;
use crate::types::*;
use std::collections::VecDeque;

/// Most open allocations.
const OPEN_MAX: usize = 64;
/// Most allocations that are known not to open, and how often each is refused.
const REFUSED_MAX: usize = 16;
const REFUSALS: u32 = 1024;

/// An allocation of another process.
struct OpenAllocation {
    owner: u32,
    kind: MemKind,
    /// The handle, with offset 0.
    handle: IpcHandle,
    base: usize,
    len: usize,
    used: u64,
    /// Copies under way; and whether the owner is gone, so that the last of them closes it.
    busy: usize,
    gone: bool,
}

impl Drop for OpenAllocation {
    fn drop(&mut self) {
        interface::of(self.kind).close_shared(self.base);
    }
}

/// Open allocations of other processes.
#[derive(Default)]
pub(crate) struct SharedMemory {
    open: Vec<OpenAllocation>,
    /// Allocations that could not be opened, by owner and id, and how often each is refused without
    /// another attempt.
    refused: VecDeque<(u32, u64, u32)>,
    clock: u64,
}

/// Copies under way from or to one allocation, for one operation.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    owner: u32,
    kind: MemKind,
    base: usize,
    running: RunningCopies,
    /// The allocation counts it.
    counted: bool,
}

impl SharedMemory {
    /// Index of an allocation of `owner` in `open`; opens the allocation if necessary.
    fn find(
        &mut self,
        owner: u32,
        kind: MemKind,
        h: &IpcHandle,
        near: Option<usize>,
    ) -> Result<usize> {
        self.clock += 1;
        let handle = IpcHandle { offset: 0, ..*h };
        let same = |o: &OpenAllocation| {
            (o.owner, o.kind, o.handle, o.gone) == (owner, kind, handle, false)
        };
        if let Some(at) = self.open.iter().position(same) {
            return Ok(at);
        }
        let same = |r: &&mut (u32, u64, u32)| (r.0, r.1) == (owner, h.id);
        if let Some((_, _, left)) = self.refused.iter_mut().find(same) {
            if *left > 0 {
                *left -= 1;
                return Err(FI_EOPNOTSUPP);
            }
        }
        self.refused.retain(|r| (r.0, r.1) != (owner, h.id));
        let opened = interface::of(kind).open_shared(&handle, near);
        if opened.is_err() {
            self.refused.truncate(REFUSED_MAX - 1);
            self.refused.push_front((owner, h.id, REFUSALS));
        }
        let (base, len) = opened?;
        if self.open.len() >= OPEN_MAX {
            let idle = self.open.iter().enumerate().filter(|(_, o)| o.busy == 0);
            let Some((oldest, _)) = idle.min_by_key(|(_, o)| o.used) else {
                interface::of(kind).close_shared(base);
                return Err(FI_EAGAIN);
            };
            self.open.swap_remove(oldest);
        }
        let (used, busy) = (self.clock, 0);
        self.open.push(OpenAllocation {
            owner,
            kind,
            handle,
            base,
            len,
            used,
            busy,
            gone: false,
        });
        Ok(self.open.len() - 1)
    }

    /// Whether memory that `owner` shares, as much as `local` has, can be copied from and to
    /// `local`: opens it.
    pub(crate) fn ensure_open(
        &mut self,
        owner: u32,
        shared: (MemKind, &IpcHandle),
        local: &UserMem,
    ) -> bool {
        self.locate(owner, shared, local).is_ok()
    }

    /// Index in `open` of the allocation that a handle names, and the address there. An error when
    /// the memory cannot be opened, or does not contain as many bytes as `local`.
    fn locate(
        &mut self,
        owner: u32,
        (kind, h): (MemKind, &IpcHandle),
        local: &UserMem,
    ) -> Result<(usize, usize)> {
        let near = local.pieces().find(|p| p.kind() == kind);
        let at = self.find(owner, kind, h, near.map(|p| p.addr()))?;
        let o = self.open.get_mut(at).ok_or(FI_EINVAL)?;
        o.used = self.clock;
        let off = usize::try_from(h.offset).map_err(|_| FI_EINVAL)?;
        if off > o.len || local.len() > o.len - off {
            return Err(FI_EINVAL);
        }
        Ok((at, o.base + off))
    }

    /// Starts to copy all of `local` to memory that `owner` shares (`write`), or to fill it from
    /// there. Errors as [`SharedMemory::locate`].
    pub(crate) fn start(
        &mut self,
        owner: u32,
        (kind, h): (MemKind, &IpcHandle),
        local: &UserMem,
        write: bool,
    ) -> Result<PendingCopy> {
        let (at, mut theirs) = self.locate(owner, (kind, h), local)?;
        let o = self.open.get_mut(at).ok_or(FI_EINVAL)?;
        let mut c = PendingCopy {
            owner,
            kind,
            base: o.base,
            running: RunningCopies::default(),
            counted: true,
        };
        for p in local.pieces() {
            if p.kind() != MemKind::Host && p.kind() != kind {
                return Err(FI_EOPNOTSUPP);
            }
            let (to, from) = match write {
                true => (theirs, p.addr()),
                false => (p.addr(), theirs),
            };
            // SAFETY: the memory is lent for the operation that keeps the result until it is over;
            // the allocation is open as long as it is busy.
            unsafe { c.running.start(kind, to, from, p.len())? };
            theirs += p.len();
        }
        o.busy += 1;
        Ok(c)
    }

    /// Tests whether a copy is over, and releases its allocation if so. `FI_EIO` when the copy
    /// failed.
    pub(crate) fn poll(&mut self, c: &mut PendingCopy) -> Result<bool> {
        let over = c.running.poll();
        if over != Ok(false) {
            self.end(c);
        }
        over
    }

    /// Waits until a copy is over. `FI_EIO` when it failed.
    pub(crate) fn wait(&mut self, mut c: PendingCopy) -> Result<()> {
        let over = c.running.wait();
        self.end(&mut c);
        over
    }

    /// Releases the allocation of a copy that is over, once.
    fn end(&mut self, c: &mut PendingCopy) {
        let of = |o: &OpenAllocation| (o.owner, o.kind, o.base) == (c.owner, c.kind, c.base);
        let at = self.open.iter().position(|o| of(o) && o.busy > 0);
        let Some(at) = at.filter(|_| core::mem::take(&mut c.counted)) else {
            return;
        };
        if let Some(o) = self.open.get_mut(at) {
            o.busy -= 1;
            if o.gone && o.busy == 0 {
                self.open.swap_remove(at);
            }
        }
    }

    /// Closes the allocations of a process that is gone, except those with copies under way.
    pub(crate) fn forget(&mut self, owner: u32) {
        self.open.retain(|o| o.owner != owner || o.busy > 0);
        let theirs = self.open.iter_mut().filter(|o| o.owner == owner);
        theirs.for_each(|o| o.gone = true);
        self.refused.retain(|r| r.0 != owner);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    #[test]
    fn an_allocation_stays_open_until_its_last_copy_has_ended_once() {
        let far = fake::alloc(&[7; 16]);
        let handle = fake::handle(&far);
        let shared = (fake::KIND, &handle);
        let mut all = SharedMemory::default();
        let near = fake::alloc(&[0; 16]);
        let mut first = all.start(1, shared, &near, false).unwrap();
        let second = all.start(1, shared, &near, true).unwrap();
        // Another owner of the same memory, as is another endpoint of the same process.
        let third = all.start(2, shared, &near, false).unwrap();
        assert_eq!((all.open.len(), fake::bytes(&near)), (2, vec![7; 16]));
        assert_eq!(all.poll(&mut first), Ok(true));
        assert_eq!(all.wait(first), Ok(()));
        assert_eq!((all.open[0].busy, all.open[1].busy), (1, 1));
        all.forget(1);
        assert_eq!((all.open.len(), all.open[0].gone), (2, true));
        assert_eq!(all.wait(second), Ok(()));
        assert_eq!((all.open.len(), all.open[0].owner), (1, 2));
        assert_eq!(all.wait(third), Ok(()));
        all.forget(2);
        assert!(all.open.is_empty());
    }
}
