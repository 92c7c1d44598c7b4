//! Device memory of another process of this host: opened once, and copied from without waiting.
//!
//! A [`SharedMemory`] keeps what is open, because opening takes long; the longest unused goes when
//! there are too many, and all of a peer when it is gone. A [`PendingCopy`] is a copy under way:
//! memory is in use until it is over, so that dropping one waits.

use super::interface::{self, IpcHandle};
use super::{MemKind, UserMem, MAX_SEGS};
use crate::core::Result;
use crate::types::*;

/// Most allocations of others that are open.
const OPEN_MAX: usize = 64;

/// An allocation of another process.
struct OpenAllocation {
    owner: u32,
    kind: MemKind,
    /// Without its offset.
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

/// Allocations of other processes.
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
    /// Whether all is copied. `FI_EIO` when some of it could not be.
    fn over(&mut self, wait: bool) -> Result<bool> {
        for id in &mut self.ids {
            let Some(copy) = *id else { continue };
            match interface::of(self.kind).copy_over(copy, wait) {
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
    /// Where what `owner` shares is open here.
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

    /// Starts to copy as much as `into` holds from what `owner` shares. An error when the memory
    /// cannot be opened, or the range is not in it.
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

    /// Whether a copy is over; then it is forgotten. `FI_EIO` when it failed.
    pub(crate) fn poll(&mut self, c: &mut PendingCopy) -> Result<bool> {
        let over = c.over(false);
        if over != Ok(false) {
            self.end(c);
        }
        over
    }

    /// A copy is over, or will be waited for.
    fn end(&mut self, c: &PendingCopy) {
        let of = |o: &&mut OpenAllocation| (o.kind, o.base) == (c.kind, c.base);
        if let Some(o) = self.open.iter_mut().find(of) {
            o.busy = o.busy.saturating_sub(1);
        }
    }

    /// Ends a copy early: waits for it.
    pub(crate) fn abort(&mut self, mut c: PendingCopy) {
        while !matches!(c.over(true), Ok(true)) {}
        self.end(&c);
    }

    /// Closes what a process shared that is gone.
    pub(crate) fn forget(&mut self, owner: u32) {
        self.open.retain(|o| o.owner != owner || o.busy > 0);
    }
}
