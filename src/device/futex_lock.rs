//! A mutex of one word: a compare-exchange and a swap without contention, futex(2) with contention.
//!
//! Every call to a domain takes this lock once, so each instruction counts. It is not fair: the
//! thread that releases it can acquire it again before a waiting thread runs. Threads that hold it
//! for long, and calls that have polled in vain, therefore use [`FutexLock::give_way`]. There is no
//! poisoning: a panic is caught within the call, after its guard has released the lock.

use core::sync::atomic::{AtomicU32, Ordering::*};
use std::time::{Duration, Instant};

/// Values of the word: free; held; held, and other threads may wait.
const FREE: u32 = 0;
const HELD: u32 = 1;
const WANTED: u32 = 2;
/// Attempts before a thread sleeps.
const SPINS: u32 = 100;
/// Longest time to give way: the processors may have other work than the thread that waits.
const WAY: Duration = Duration::from_millis(2);

/// See the module text.
#[derive(Default)]
pub(crate) struct FutexLock {
    word: AtomicU32,
    /// Threads that sleep until it is free, and how often one of them has acquired it.
    sleepers: AtomicU32,
    served: AtomicU32,
}

impl FutexLock {
    /// Acquires the lock; waits while another thread holds it.
    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if self
            .word
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_err()
        {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.word.load(Relaxed) == FREE
                && self
                    .word
                    .compare_exchange(FREE, HELD, Acquire, Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        // Other threads may wait when this thread acquires the lock: the word stays WANTED.
        self.sleepers.fetch_add(1, Relaxed);
        while self.word.swap(WANTED, Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WANTED);
        }
        self.sleepers.fetch_sub(1, Relaxed);
        self.served.fetch_add(1, Relaxed);
    }

    /// Whether other threads sleep until the lock is free.
    pub(crate) fn is_wanted(&self) -> bool {
        self.sleepers.load(Relaxed) > 0
    }

    /// For a thread that has just released the lock: returns once a thread that slept for it has
    /// had it, at once if none sleeps.
    #[inline(always)]
    pub(crate) fn give_way(&self) {
        if self.is_wanted() {
            self.await_next_holder();
        }
    }

    #[cold]
    fn await_next_holder(&self) {
        let served = self.served.load(Relaxed);
        let since = Instant::now();
        while self.is_wanted() && self.served.load(Relaxed) == served && since.elapsed() < WAY {
            std::thread::yield_now();
        }
    }

    /// Releases the lock. Only its holder may call this.
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.word.swap(FREE, Release) == WANTED {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.futex(libc::FUTEX_WAKE, 1);
    }

    fn futex(&self, op: i32, value: u32) {
        let op = op | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as `self`; no time-out is passed.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                op,
                value,
                core::ptr::null::<libc::timespec>(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;

    struct Counted(FutexLock, UnsafeCell<u64>);
    // SAFETY: only the holder of the lock accesses the count.
    unsafe impl Sync for Counted {}

    #[test]
    fn lock_is_exclusive_and_every_thread_proceeds() {
        const THREADS: u64 = 8;
        const TIMES: u64 = 20_000;
        let c = Counted(FutexLock::default(), UnsafeCell::new(0));
        let c = &c;
        std::thread::scope(|s| {
            for t in 0..THREADS {
                s.spawn(move || {
                    for i in 0..TIMES {
                        c.0.acquire();
                        // SAFETY: this thread holds the lock.
                        unsafe { *c.1.get() += 1 };
                        // Some threads hold the lock for long, so that others sleep.
                        if (i + t) % 1000 == 0 {
                            std::thread::yield_now();
                        }
                        c.0.release();
                    }
                });
            }
        });
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *c.1.get() }, THREADS * TIMES);
    }

    #[test]
    fn a_thread_that_gives_way_lets_a_waiting_one_in_first() {
        let c = FutexLock::default();
        // No thread waits, however the lock was acquired.
        c.give_way();
        for _ in 0..100 {
            c.acquire();
            let served = c.served.load(Relaxed);
            std::thread::scope(|s| {
                s.spawn(|| {
                    c.acquire();
                    c.release();
                });
                while !c.is_wanted() {
                    std::thread::yield_now();
                }
                // A loaded machine can take longer than a turn.
                while c.served.load(Relaxed) == served {
                    c.release();
                    c.give_way();
                    c.acquire();
                }
                assert!(!c.is_wanted());
                c.release();
            });
        }
    }
}
