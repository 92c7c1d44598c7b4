//! Contexts: the primary context of each GPU is active while it is retained. Each thread has a
//! stack of current contexts, which may be empty.

use crate::config;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Maximum number of GPUs.
pub const MAX_GPUS: usize = 16;

static RETAINED: [AtomicU32; MAX_GPUS] = [const { AtomicU32::new(0) }; MAX_GPUS];

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A context's handle: the GPU's number plus one.
pub fn handle(gpu: usize) -> usize {
    gpu + 1
}

/// The GPU of a handle.
pub fn gpu_of(handle: usize) -> Option<usize> {
    let gpu = handle.checked_sub(1)?;
    (gpu < config::get().gpus.min(MAX_GPUS)).then_some(gpu)
}

/// The GPU of the thread's current context.
pub fn current() -> Option<usize> {
    CURRENT.with_borrow(|c| c.last().copied())
}

/// Replaces the thread's current context; `None` removes it.
pub fn set_current(gpu: Option<usize>) {
    CURRENT.with_borrow_mut(|c| {
        c.pop();
        c.extend(gpu);
    });
}

pub fn push(gpu: usize) {
    CURRENT.with_borrow_mut(|c| c.push(gpu));
}

pub fn pop() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// Retains the primary context.
pub fn retain(gpu: usize) {
    if let Some(n) = RETAINED.get(gpu) {
        n.fetch_add(1, SeqCst);
    }
}

pub fn release(gpu: usize) {
    if let Some(n) = RETAINED.get(gpu) {
        let less = |n: u32| n.checked_sub(1);
        let _ = n.fetch_update(SeqCst, SeqCst, less);
    }
}

/// Whether the primary context is active.
pub fn active(gpu: usize) -> bool {
    RETAINED.get(gpu).is_some_and(|n| n.load(SeqCst) > 0)
}
