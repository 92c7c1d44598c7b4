//! Whether this process is the one that opened an object: fork(2) copies objects whose sockets,
//! epoll sets and queues still belong to the parent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

static GENERATION: AtomicU64 = AtomicU64::new(1);

/// How many forks lie between this process and the one that loaded the library, plus one.
#[inline]
pub fn generation() -> u64 {
    GENERATION.load(Relaxed)
}

/// To be called in the child of a fork, before anything else of the library.
pub fn forked() {
    GENERATION.fetch_add(1, Relaxed);
}
