//! Contexts: the primary one of each GPU, which is active while somebody retains it, and which a
//! thread has as its current one or not.

use crate::config;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Most GPUs.
pub const MOST: usize = 16;

static RETAINED: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A context's handle: the GPU's number and one.
pub fn handle(gpu: usize) -> usize {
    gpu + 1
}

/// The GPU of a handle.
pub fn gpu_of(handle: usize) -> Option<usize> {
    let gpu = handle.checked_sub(1)?;
    (gpu < config::get().gpus.min(MOST)).then_some(gpu)
}

/// The GPU whose context the thread has.
pub fn current() -> Option<usize> {
    CURRENT.with_borrow(|c| c.last().copied())
}

/// Makes a context the thread's, or none.
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
