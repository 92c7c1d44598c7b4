//! A lock of one word: a compare and a swap where nobody else wants it, futex(2) where somebody
//! does.
//!
//! Of a domain's calls each takes it once, so that every instruction counts. A panic is caught
//! within the call, whose guard has let go of it: there is nothing to poison.

use core::sync::atomic::{AtomicU32, Ordering::*};

/// Nobody has it; somebody has it; and others wait for it.
const FREE: u32 = 0;
const HELD: u32 = 1;
const WANTED: u32 = 2;
/// Looks before going to sleep.
const SPINS: u32 = 100;

/// See the module text.
#[derive(Default)]
pub(crate) struct FutexLock(AtomicU32);

impl FutexLock {
    /// Takes it, when nobody else has it any more.
    #[inline(always)]
    pub(crate) fn take(&self) {
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
        // Whoever gets it here does not know whether others wait, and says that they do.
        while self.0.swap(WANTED, Acquire) != FREE {
            self.futex(libc::FUTEX_WAIT, WANTED);
        }
    }

    /// Gives it back: who has taken it, once.
    #[inline(always)]
    pub(crate) fn give(&self) {
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
    // SAFETY: the count is touched by who has the latch.
    unsafe impl Sync for Counted {}

    #[test]
    fn one_at_a_time_and_everybody_in_the_end() {
        const THREADS: u64 = 8;
        const TIMES: u64 = 20_000;
        let c = Counted(FutexLock::default(), UnsafeCell::new(0));
        let c = &c;
        std::thread::scope(|s| {
            for t in 0..THREADS {
                s.spawn(move || {
                    for i in 0..TIMES {
                        c.0.take();
                        // SAFETY: we have the latch.
                        unsafe { *c.1.get() += 1 };
                        // Some hold it for long, so that others go to sleep.
                        if (i + t) % 1000 == 0 {
                            std::thread::yield_now();
                        }
                        c.0.give();
                    }
                });
            }
        });
        // SAFETY: all are gone.
        assert_eq!(unsafe { *c.1.get() }, THREADS * TIMES);
    }
}
