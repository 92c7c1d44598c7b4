//! A mutex of one word: a compare-exchange and a swap without contention, futex(2) with contention.
//!
//! Every call to a domain takes this lock once, so each instruction counts. There is no poisoning:
//! a panic is caught within the call, after its guard has released the lock.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Values of the word: free; held; held, and other threads may wait.
const FREE: u32 = 0;
const HELD: u32 = 1;
const WANTED: u32 = 2;
/// Attempts before a thread sleeps.
const SPINS: u32 = 100;

/// See the module text.
#[derive(Default)]
pub(crate) struct FutexLock(AtomicU32);

impl FutexLock {
    /// Acquires the lock; waits while another thread holds it.
    #[inline(always)]
    pub(crate) fn acquire(&self) {
        if self
            .0
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
            if self.0.load(Relaxed) == FREE
                && self
                    .0
                    .compare_exchange(FREE, HELD, Acquire, Relaxed)
                    .is_ok()
            {
                return;
            }
        }
        // The thread that acquires the lock here does not know whether others wait: it leaves
        // WANTED.
        while self.0.swap(WANTED, Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WANTED);
        }
    }

    /// Releases the lock. Only its holder may call this.
    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Release) == WANTED {
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
                self.0.as_ptr(),
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
}
