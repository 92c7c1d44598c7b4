//! Which process this is: fork(2) copies objects whose sockets, epoll sets and queues still belong
//! to the parent, and does not copy the parent's threads.

use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

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

/// A value of which each process has its own, made at first use. The child of a fork finds none: it
/// never touches that of its parent, whose locks another thread may have held at the fork.
pub struct PerProcess<T> {
    value: OnceLock<T>,
    /// That of the child of a fork: a process has only one at each depth of forks.
    child: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess {
            value: OnceLock::new(),
            child: OnceLock::new(),
        }
    }

    /// The value of this process, made by `make` if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let mut own = self;
        for _ in 1..generation() {
            own = own.child.get_or_init(|| Box::new(PerProcess::new()));
        }
        own.value.get_or_init(make)
    }

    /// As [`PerProcess::get_or_init`], for a value that cannot always be made: the next call tries
    /// again. Two threads that try at once may both make one, of which one is dropped.
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.get() {
            Some(v) => Ok(v),
            None => make().map(|v| self.get_or_init(|| v)),
        }
    }

    /// The value of this process, if there is one.
    pub fn get(&self) -> Option<&T> {
        let mut own = self;
        for _ in 1..generation() {
            own = own.child.get()?;
        }
        own.value.get()
    }
}

impl<T: Default> PerProcess<Mutex<T>> {
    /// Locks the value of this process.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let own = self.get_or_init(Mutex::default);
        own.lock().unpoisoned()
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}
