//! Host memory that packets from and to device memory pass through, registered with the device's
//! library (cuMemHostRegister): the library would otherwise copy through a buffer of its own.
//!
//! Owners of such memory keep a [`BounceBuffers`]. Nothing is registered before the application
//! registers device memory ([`register`]); from then on new memory is registered when it is made.

use super::desc::MemKind;
use super::interface;
use crate::core::process::PerProcess;
use crate::core::sync::{Mutex, MutexGuard};

/// The memory of one owner: first address, bytes, and the kind whose interface has registered it.
struct BounceRange {
    at: usize,
    len: usize,
    known_to: Option<MemKind>,
}

#[derive(Default)]
struct AllBounceRanges {
    ranges: Vec<BounceRange>,
    /// The kind that is in use, and memory of it, which gives the context.
    device: Option<(MemKind, usize)>,
}

static ALL: PerProcess<Mutex<AllBounceRanges>> = PerProcess::new();

fn all() -> MutexGuard<'static, AllBounceRanges> {
    ALL.lock()
}

impl BounceRange {
    fn register(&mut self, (kind, near): (MemKind, usize)) {
        let done =
            self.known_to.is_none() && interface::of(kind).register_host(self.at, self.len, near);
        if done {
            self.known_to = Some(kind);
        }
    }
}

/// Marks memory as bounce memory until it is dropped: the owner drops this before it releases the
/// memory.
#[derive(Debug)]
pub(crate) struct BounceBuffers(usize);

impl BounceBuffers {
    /// Memory of `len` bytes at `at`.
    pub(crate) fn new(at: usize, len: usize) -> BounceBuffers {
        let mut all = all();
        let mut range = BounceRange {
            at,
            len,
            known_to: None,
        };
        if all.ranges.try_reserve(1).is_ok() {
            if let Some(device) = all.device {
                range.register(device);
            }
            all.ranges.push(range);
        }
        BounceBuffers(at)
    }
}

impl Drop for BounceBuffers {
    fn drop(&mut self) {
        let mut all = all();
        let Some(n) = all.ranges.iter().position(|r| r.at == self.0) else {
            return;
        };
        let range = all.ranges.swap_remove(n);
        if let Some(kind) = range.known_to {
            interface::of(kind).unregister_host(range.at);
        }
    }
}

/// Registers all of it with the library of a kind of device memory that is used from now on; `near`
/// is memory of this kind.
pub(super) fn register(kind: MemKind, near: usize) {
    let mut all = all();
    all.device = Some((kind, near));
    for r in &mut all.ranges {
        r.register((kind, near));
    }
}
