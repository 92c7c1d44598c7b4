//! Device memory of other processes of this host: opened once, and copied from asynchronously.
//!
//! A [`SharedMemory`] caches open allocations, because opening takes long. The least recently used
//! is closed when there are too many, and all of a peer's when the peer is gone. A [`PendingCopy`]
//! is a copy under way. Its memory is in use until the copy is over, so that its drop waits.

use super::interface::{self, IpcHandle};
use super::{MemKind, UserMem, MAX_SEGS};
use crate::core::Result;
use crate::types::*;

/// Most open allocations.
const OPEN_MAX: usize = 64;

/// An allocation of another process.
struct OpenAllocation {
    owner: u32,
    kind: MemKind,
    /// The handle, with offset 0.
    handle: IpcHandle,
    base: usize,
    len: usize,
    used: u64,
    /// Copies under way.
    busy: usize,
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
    clock: u64,
}

/// Copies under way from one allocation, for one operation.
#[derive(Debug)]
pub(crate) struct PendingCopy {
    kind: MemKind,
    base: usize,
    ids: [Option<usize>; MAX_SEGS],
}

impl PendingCopy {
    /// Tests or waits (`wait`) for the pieces of the copy, and returns whether all are over.
    /// `FI_EIO` when a piece failed.
    fn over(&mut self, wait: bool) -> Result<bool> {
        for id in &mut self.ids {
            let Some(copy) = *id else { continue };
            match interface::of(self.kind).test_copy(copy, wait) {
                Ok(false) => return Ok(false),
                Ok(true) => *id = None,
                Err(e) => {
                    *id = None;
                    return Err(e);
                }
            }
        }
        Ok(true)
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        while self.ids.iter().any(Option::is_some) {
            let _ = self.over(true);
        }
    }
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
        let same = |o: &OpenAllocation| (o.owner, o.kind, o.handle) == (owner, kind, handle);
        if let Some(at) = self.open.iter().position(same) {
            return Ok(at);
        }
        if self.open.len() >= OPEN_MAX {
            let idle = self.open.iter().enumerate().filter(|(_, o)| o.busy == 0);
            let oldest = idle.min_by_key(|(_, o)| o.used).map(|(at, _)| at);
            self.open.swap_remove(oldest.ok_or(FI_EAGAIN)?);
        }
        let (base, len) = interface::of(kind).open_shared(&handle, near)?;
        let (used, busy) = (self.clock, 0);
        self.open.push(OpenAllocation {
            owner,
            kind,
            handle,
            base,
            len,
            used,
            busy,
        });
        Ok(self.open.len() - 1)
    }

    /// Starts to copy from memory that `owner` shares into all of `into`. An error when the memory
    /// cannot be opened, or does not contain the range.
    pub(crate) fn start(
        &mut self,
        owner: u32,
        (kind, h): (MemKind, &IpcHandle),
        into: &UserMem,
    ) -> Result<PendingCopy> {
        let near = into.pieces().find(|p| p.kind() == kind).map(|p| p.addr());
        let at = self.find(owner, kind, h, near)?;
        let o = self.open.get_mut(at).ok_or(FI_EINVAL)?;
        o.used = self.clock;
        let off = usize::try_from(h.offset).map_err(|_| FI_EINVAL)?;
        if off > o.len || into.len() > o.len - off {
            return Err(FI_EINVAL);
        }
        let mut c = PendingCopy {
            kind,
            base: o.base,
            ids: [None; MAX_SEGS],
        };
        let mut from = o.base + off;
        for (p, id) in into.pieces().zip(&mut c.ids) {
            if p.kind() != MemKind::Host && p.kind() != kind {
                return Err(FI_EOPNOTSUPP);
            }
            // SAFETY: the memory is lent for the operation that keeps the result until it is over;
            // the allocation is open as long as it is busy.
            *id = Some(unsafe { interface::of(kind).start_copy(p.addr(), from, p.len())? });
            from += p.len();
        }
        o.busy += 1;
        Ok(c)
    }

    /// Tests whether a copy is over, and releases its allocation if so. `FI_EIO` when the copy
    /// failed.
    pub(crate) fn poll(&mut self, c: &mut PendingCopy) -> Result<bool> {
        let over = c.over(false);
        if over != Ok(false) {
            self.end(c);
        }
        over
    }

    /// Releases the allocation of a copy that is over, or whose drop will wait for the rest.
    fn end(&mut self, c: &PendingCopy) {
        let of = |o: &&mut OpenAllocation| (o.kind, o.base) == (c.kind, c.base);
        if let Some(o) = self.open.iter_mut().find(of) {
            o.busy = o.busy.saturating_sub(1);
        }
    }

    /// Gives up a copy: waits until the copy is over.
    pub(crate) fn abort(&mut self, mut c: PendingCopy) {
        while !matches!(c.over(true), Ok(true)) {}
        self.end(&c);
    }

    /// Closes the allocations of a process that is gone, except those with copies under way.
    pub(crate) fn forget(&mut self, owner: u32) {
        self.open.retain(|o| o.owner != owner || o.busy > 0);
    }
}
