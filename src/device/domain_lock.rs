//! The lock of a domain's state, asymmetric for FI_THREAD_DOMAIN.
//!
//! With FI_THREAD_DOMAIN the application serialises its data transfers in a domain; only its
//! control calls and the library's own threads (the progress thread) run beside them. A data call
//! therefore sets the flag `inside` and tests the flag `wanted`, without atomic read-modify-write
//! instructions. A control call or a library thread acquires the lock, sets `wanted`, executes a
//! barrier on all processors (membarrier(2)), and waits until `inside` is clear. It pays the whole
//! cost; a library thread enters only when the application has been idle.
//!
//! With the other threading models, or where membarrier is forbidden, both sides use a lock.

use super::futex_lock::FutexLock;
use super::membarrier;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{compiler_fence, AtomicBool, Ordering::*};

/// See the module text.
pub struct DomainLock<T> {
    /// The application is inside, or is about to test `wanted`.
    inside: AtomicBool,
    /// A control call or a thread of the library is inside, or waits to enter.
    wanted: AtomicBool,
    single: bool,
    lock: FutexLock,
    value: UnsafeCell<T>,
}

// SAFETY: only a guard gives access to `value`, and there is one guard at a time: see `enter`.
unsafe impl<T: Send> Sync for DomainLock<T> {}

/// Access to the value of a [`DomainLock`].
pub struct DomainGuard<'a, T> {
    owner: &'a DomainLock<T>,
    /// The guard holds `lock`; otherwise it has set `inside`.
    locked: bool,
}

impl<T> DomainLock<T> {
    /// A lock around `value`; `single` when the application serialises its data
    /// transfers (FI_THREAD_DOMAIN).
    pub fn new(value: T, single: bool) -> DomainLock<T> {
        let single = single && membarrier::register_private();
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
        // The processor may load `wanted` before its store to `inside` is visible: the other side's
        // membarrier makes up for that.
        compiler_fence(SeqCst);
        if self.wanted.load(Acquire) {
            return self.blocked();
        }
        compiler_fence(SeqCst);
        DomainGuard {
            owner: self,
            locked: false,
        }
    }

    /// Enters for a control call of the application, such as fi_mr_reg, fi_av_insert or fi_close.
    /// FI_THREAD_DOMAIN serialises data transfers; control calls of other threads are permitted
    /// beside them and beside each other (fi_domain(3)), so that the flag does not suffice.
    pub fn enter_control(&self) -> DomainGuard<'_, T> {
        self.lock_from_library()
    }

    #[inline]
    fn locked(&self) -> DomainGuard<'_, T> {
        if self.single {
            // The caller broke FI_THREAD_DOMAIN: fall back to the lock.
            return self.lock_from_library();
        }
        self.lock.acquire();
        DomainGuard {
            owner: self,
            locked: true,
        }
    }

    #[cold]
    fn blocked(&self) -> DomainGuard<'_, T> {
        self.inside.store(false, Release);
        self.lock_from_library()
    }

    /// For a thread that has just left, and that polls: returns once a thread that waited has been
    /// inside.
    #[inline(always)]
    pub fn give_way(&self) {
        self.lock.give_way();
    }

    /// Enters for a thread of the library.
    pub fn lock_from_library(&self) -> DomainGuard<'_, T> {
        self.lock.acquire();
        if self.single {
            self.wanted.store(true, SeqCst);
            membarrier::own();
            while self.inside.load(Acquire) {
                std::thread::yield_now();
            }
        }
        DomainGuard {
            owner: self,
            locked: true,
        }
    }
}

impl<T> DomainGuard<'_, T> {
    /// Whether another thread waits for this guard. For guards of the library's threads.
    pub fn is_wanted(&self) -> bool {
        self.owner.lock.is_wanted()
    }
}

impl<T> Drop for DomainGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.locked {
            return self.owner.inside.store(false, Release);
        }
        if self.owner.single {
            self.owner.wanted.store(false, Release);
        }
        self.owner.lock.release();
    }
}

impl<T> Deref for DomainGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: one guard exists at a time. The lock excludes other holders of the lock. A guard
        // of the flag saw `wanted` clear after it set `inside`; a guard of the lock saw `inside`
        // clear after it set `wanted` and a barrier ran on all processors. Both cannot be true at
        // once.
        unsafe { &*self.owner.value.get() }
    }
}

impl<T> DerefMut for DomainGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.owner.value.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_domain_lock_excludes_data_calls_control_calls_and_the_library() {
        for single in [false, true] {
            let g = Arc::new(DomainLock::new((0u64, 0u64), single));
            let stop = Arc::new(AtomicBool::new(false));
            let beside = [DomainLock::lock_from_library, DomainLock::enter_control].map(|enter| {
                let (aside, until) = (Arc::clone(&g), Arc::clone(&stop));
                std::thread::spawn(move || {
                    let mut n = 0;
                    while !until.load(Relaxed) {
                        let mut v = enter(&aside);
                        assert_eq!(v.0, v.1);
                        v.0 += 1;
                        v.1 += 1;
                        n += 1;
                    }
                    n
                })
            });
            for _ in 0..300_000u64 {
                let mut v = g.enter();
                v.0 += 1;
                v.1 += 1;
                assert_eq!(v.0, v.1);
            }
            stop.store(true, Relaxed);
            let n: u64 = beside.map(|t| t.join().unwrap()).iter().sum();
            let v = g.enter();
            assert_eq!((v.0, v.1), (300_000 + n, 300_000 + n));
        }
    }
}
