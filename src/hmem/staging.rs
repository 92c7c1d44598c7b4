//! Device memory copied by way of host memory, for what reaches host memory only, as the system
//! does (cross-memory attach).
//!
//! The host memory has two halves, registered with the device's library: the device copies one
//! while the caller uses the other. All copies of the process share it, one at a time.

use super::bounce::BounceBuffers;
use super::running::RunningCopies;
use super::{MemKind, Piece, UserMem};
use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, MutexGuard};
use core::ffi::c_void;
use std::alloc::{alloc, Layout};

/// Bytes of a half.
const HALF: usize = 256 << 10;
/// Longest copy that waits: starting one, and asking for its end, costs as much.
const SHORT: usize = 4 << 10;

/// The two halves.
struct Stage {
    halves: [Piece; 2],
    _registered: BounceBuffers,
}

static STAGE: PerProcess<Mutex<Option<Stage>>> = PerProcess::new();

impl Stage {
    /// Memory that stays until the process ends; `None` when there is none.
    fn new() -> Option<Stage> {
        let layout = Layout::from_size_align(2 * HALF, 4096).ok()?;
        // SAFETY: the layout is not empty.
        let at = unsafe { alloc(layout) };
        if at.is_null() {
            return None;
        }
        let half = |off: usize| {
            let start = (at as usize + off) as *const c_void;
            // SAFETY: the memory was allocated above, and is never freed.
            unsafe { Piece::new(start, HALF) }
        };
        Some(Stage {
            halves: [half(0)?, half(HALF)?],
            _registered: BounceBuffers::new(at as usize, 2 * HALF),
        })
    }
}

/// The host memory, for one copy at a time; `None` inside where there is no memory.
fn stage() -> MutexGuard<'static, Option<Stage>> {
    let mut stage = STAGE.lock();
    if stage.is_none() {
        *stage = Stage::new();
    }
    stage
}

/// Starts to copy `mem` to `half`, or from there (`fill`).
fn start(mem: &UserMem, half: Piece, fill: bool) -> RunningCopies {
    let mut c = RunningCopies::default();
    let mut off = 0;
    for p in mem.pieces() {
        let here = half.part(off, p.len());
        off += p.len();
        let (to, from) = match fill {
            true => (p.addr(), here.addr()),
            false => (here.addr(), p.addr()),
        };
        if p.kind() != MemKind::Host && p.len() > SHORT {
            // SAFETY: the application lends its memory for the operation, which waits for this
            // copy; the half is ours for as long.
            if unsafe { c.start(p.kind(), to, from, p.len()) }.is_ok() {
                continue;
            }
        }
        let at = here.addr() as *mut u8;
        // SAFETY: as above.
        let n = unsafe {
            match fill {
                true => p.copy_in(at, here.len()),
                false => p.copy_out(at, here.len()),
            }
        };
        if n != p.len() {
            c.fail();
        }
    }
    c
}

/// Copies memory of any kind to host memory of ours, in parts, and passes each part to `each` with
/// its offset. `false` when a copy failed, or `each` returned `false`.
pub(crate) fn read_staged(mem: &UserMem, mut each: impl FnMut(Piece, usize) -> bool) -> bool {
    let stage = stage();
    let Some([mut here, mut other]) = stage.as_ref().map(|s| s.halves) else {
        return false;
    };
    let mut next = start(&mem.part(0, HALF), here, false);
    let mut off = 0;
    while off < mem.len() {
        let now = here.part(0, mem.len() - off);
        let copied = next.wait().is_ok();
        if off + now.len() < mem.len() {
            next = start(&mem.part(off + now.len(), HALF), other, false);
        }
        if !copied || !each(now, off) {
            return false;
        }
        off += now.len();
        core::mem::swap(&mut here, &mut other);
    }
    true
}

/// Has `each` fill host memory of ours, in parts and with the offset of each, and copies the parts
/// to memory of any kind. As [`read_staged`].
pub(crate) fn write_staged(mem: &UserMem, mut each: impl FnMut(Piece, usize) -> bool) -> bool {
    let stage = stage();
    let Some(halves) = stage.as_ref().map(|s| s.halves) else {
        return false;
    };
    let mut last: [Option<RunningCopies>; 2] = [None, None];
    let mut off = 0;
    while off < mem.len() {
        for (half, copy) in halves.iter().zip(&mut last) {
            let now = half.part(0, mem.len() - off);
            if now.is_empty() {
                break;
            }
            let free = copy.take().is_none_or(|mut c| c.wait().is_ok());
            if !free || !each(now, off) {
                return false;
            }
            *copy = Some(start(&mem.part(off, now.len()), now, true));
            off += now.len();
        }
    }
    let mut all = last.into_iter().flatten();
    all.all(|mut c| c.wait().is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    /// Bytes of a pattern.
    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 31 % 251) as u8).collect()
    }

    #[test]
    fn staging_copies_every_byte_in_both_directions() {
        for len in [1, SHORT, HALF, HALF + 1, 3 * HALF + 7] {
            let all = pattern(len);
            let far = fake::host(&all[..len / 3]).join(&fake::alloc(&all[len / 3..]));
            let far = far.unwrap();
            let mut seen = vec![0; len];
            let out = read_staged(&far, |p, off| {
                p.load(&mut seen[off..off + p.len()]) == p.len()
            });
            assert!(out && seen == all, "{len}");
            let to = fake::alloc(&vec![0; len]);
            assert!(write_staged(&to, |p, off| {
                p.store(&all[off..off + p.len()]) == p.len()
            }));
            assert_eq!(fake::bytes(&to), all);
        }
    }

    #[test]
    fn a_failed_copy_or_part_ends_it() {
        let far = fake::alloc(&pattern(2 * HALF));
        let mut parts = 0;
        let mut second = |_: Piece, _| {
            parts += 1;
            parts < 2
        };
        assert!(!read_staged(&far, &mut second));
        parts = 0;
        assert!(!write_staged(&far, |_, _| {
            parts += 1;
            parts < 2
        }));
        // SAFETY: the memory is never accessed.
        let lost = unsafe { UserMem::of_kinds([((1usize << 40) as *const c_void, 8, fake::KIND)]) };
        assert!(!read_staged(&lost.unwrap(), |_, _| true));
        assert!(!write_staged(&lost.unwrap(), |_, _| true));
        crate::hmem::take_failure(&lost.unwrap());
    }
}
