//! Copies that devices make for one operation.

use super::interface;
use super::{MemKind, MAX_SEGS};
use crate::core::Result;
use crate::types::*;

/// Copies under way. Their memory is in use until all of them are over, so that the drop waits.
#[derive(Debug, Default)]
pub(super) struct RunningCopies {
    ids: [Option<(MemKind, usize)>; MAX_SEGS],
    failed: bool,
}

impl RunningCopies {
    /// Starts one more copy, of at most [`MAX_SEGS`].
    ///
    /// # Safety
    /// As [`interface::Interface::start_copy`].
    pub(super) unsafe fn start(
        &mut self,
        kind: MemKind,
        to: usize,
        from: usize,
        len: usize,
    ) -> Result<()> {
        let free = self.ids.iter_mut().find(|id| id.is_none());
        let place = free.ok_or(FI_EINVAL)?;
        // SAFETY: as the caller vouches.
        let id = unsafe { interface::of(kind).start_copy(to, from, len)? };
        *place = Some((kind, id));
        Ok(())
    }

    /// Counts a copy that was made at once, and failed.
    pub(super) fn fail(&mut self) {
        self.failed = true;
    }

    /// Tests or waits (`wait`) for the copies, and returns whether all are over. `FI_EIO`, when all
    /// are over, if one failed.
    fn test(&mut self, wait: bool) -> Result<bool> {
        for id in &mut self.ids {
            let Some((kind, copy)) = *id else { continue };
            match interface::of(kind).test_copy(copy, wait) {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(_) => self.failed = true,
            }
            *id = None;
        }
        match self.failed {
            true => Err(FI_EIO),
            false => Ok(true),
        }
    }

    /// Whether all copies are over. `FI_EIO`, when all are over, if one failed.
    pub(super) fn poll(&mut self) -> Result<bool> {
        self.test(false)
    }

    /// Waits until all copies are over. `FI_EIO` if one failed.
    pub(super) fn wait(&mut self) -> Result<()> {
        loop {
            if self.test(true)? {
                return Ok(());
            }
        }
    }
}

impl Drop for RunningCopies {
    fn drop(&mut self) {
        let _ = self.wait();
    }
}
