//! The way into a domain's state: a lock for all threads, or a gate for one.
//!
//! With FI_THREAD_DOMAIN the application promises that its threads enter a domain one after
//! another. The only ones it cannot keep out are the library's own (the progress thread). So the
//! application's way in is a flag it sets and one it looks at, without atomic instructions; whoever
//! comes from aside raises the second flag, has every processor take notice (membarrier(2)), and
//! waits for the first to fall. All the cost is on that side, which comes in when the application
//! has been quiet.
//!
//! With the other threading models, or where membarrier is forbidden, both sides take a lock.

use super::futex_lock::FutexLock;
use super::membarrier;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{compiler_fence, AtomicBool, Ordering::*};

/// See the module text.
pub struct DomainLock<T> {
    /// The application is inside, or about to look whether it may be.
    inside: AtomicBool,
    /// Somebody from aside is inside or waits to be.
    wanted: AtomicBool,
    single: bool,
    lock: FutexLock,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is reached through a guard alone, and of guards there is one at a time: see
// `enter`.
unsafe impl<T: Send> Sync for DomainLock<T> {}

/// Presence in a gate.
pub struct DomainGuard<'a, T> {
    gate: &'a DomainLock<T>,
    /// It came by the lock; the others have raised the flag.
    locked: bool,
}

impl<T> DomainLock<T> {
    /// A gate around `value`; `single` when the application's threads come one after another.
    pub fn new(value: T, single: bool) -> DomainLock<T> {
        let single = single && membarrier::join_own();
        DomainLock {
            inside: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            single,
            lock: FutexLock::default(),
            value: UnsafeCell::new(value),
        }
    }

    /// Enters for the application.
    #[inline(always)]
    pub fn enter(&self) -> DomainGuard<'_, T> {
        if !self.single || self.inside.load(Relaxed) {
            return self.locked();
        }
        self.inside.store(true, Relaxed);
        // The processor may still see `wanted` before others see `inside`: the barrier on the other
        // side makes up for it.
        compiler_fence(SeqCst);
        if self.wanted.load(Relaxed) {
            return self.blocked();
        }
        compiler_fence(SeqCst);
        DomainGuard {
            gate: self,
            locked: false,
        }
    }

    #[inline]
    fn locked(&self) -> DomainGuard<'_, T> {
        if self.single {
            // The promise is broken, two threads are here at once: better late than both inside.
            return self.lock_from_library();
        }
        self.lock.take();
        DomainGuard {
            gate: self,
            locked: true,
        }
    }

    #[cold]
    fn blocked(&self) -> DomainGuard<'_, T> {
        self.inside.store(false, Release);
        self.lock_from_library()
    }

    /// Enters for a thread that the application knows nothing of.
    pub fn lock_from_library(&self) -> DomainGuard<'_, T> {
        self.lock.take();
        if self.single {
            self.wanted.store(true, SeqCst);
            membarrier::own();
            while self.inside.load(Acquire) {
                std::thread::yield_now();
            }
        }
        DomainGuard {
            gate: self,
            locked: true,
        }
    }
}

impl<T> Drop for DomainGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.locked {
            return self.gate.inside.store(false, Release);
        }
        if self.gate.single {
            self.gate.wanted.store(false, Release);
        }
        self.gate.lock.give();
    }
}

impl<T> Deref for DomainGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: one guard exists at a time: the lock excludes those who hold it; who came by the
        // flag saw `wanted` down after raising `inside`, and who came from aside saw `inside` down
        // after raising `wanted` and a barrier on all processors, so that not both have happened.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for DomainGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.gate.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn nobody_is_inside_beside_another() {
        for single in [false, true] {
            let g = Arc::new(DomainLock::new((0u64, 0u64), single));
            let aside = Arc::clone(&g);
            let stop = Arc::new(AtomicBool::new(false));
            let until = Arc::clone(&stop);
            let t = std::thread::spawn(move || {
                let mut n = 0;
                while !until.load(Relaxed) {
                    let mut v = aside.lock_from_library();
                    assert_eq!(v.0, v.1);
                    v.0 += 1;
                    v.1 += 1;
                    n += 1;
                }
                n
            });
            for _ in 0..300_000u64 {
                let mut v = g.enter();
                v.0 += 1;
                v.1 += 1;
                assert_eq!(v.0, v.1);
            }
            stop.store(true, Relaxed);
            let n: u64 = t.join().unwrap();
            let v = g.enter();
            assert_eq!((v.0, v.1), (300_000 + n, 300_000 + n));
        }
    }
}
