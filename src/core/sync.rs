//! The locks of the library: those of the standard library. Every room imports them from here.
//!
//! With the feature `tsan`, for the thread sanitizer alone, the locks spin: the precompiled
//! standard library is not instrumented, so the sanitizer would not see that one thread waits for
//! another.

use std::sync::LockResult;

#[cfg(not(feature = "tsan"))]
pub use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

#[cfg(feature = "tsan")]
pub use spinning::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// Takes a lock whose holder has panicked as any other.
pub trait Unpoisoned<Guard> {
    /// The guard, also of a poisoned lock: a panic ends in an error of the call (`abi::entry`) or
    /// begins the thread's body again ([`guarded`](super::guarded)), and later calls go on.
    fn unpoisoned(self) -> Guard;
}

impl<Guard> Unpoisoned<Guard> for LockResult<Guard> {
    #[inline(always)]
    fn unpoisoned(self) -> Guard {
        self.unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(feature = "tsan")]
mod spinning {
    use spin::Yield;
    use std::sync::LockResult;

    /// As `std::sync::Mutex`, never poisoned.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(spin::mutex::SpinMutex<T, Yield>);
    pub type MutexGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

    impl<T> Mutex<T> {
        pub const fn new(value: T) -> Self {
            Mutex(spin::mutex::SpinMutex::new(value))
        }

        pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
            Ok(self.0.lock())
        }

        pub fn try_lock(&self) -> std::sync::TryLockResult<MutexGuard<'_, T>> {
            let busy = std::sync::TryLockError::WouldBlock;
            self.0.try_lock().ok_or(busy)
        }

        pub fn get_mut(&mut self) -> LockResult<&mut T> {
            Ok(self.0.get_mut())
        }
    }

    /// As `std::sync::RwLock`, never poisoned.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(spin::rwlock::RwLock<T, Yield>);
    pub type RwLockReadGuard<'a, T> = spin::rwlock::RwLockReadGuard<'a, T>;

    impl<T> RwLock<T> {
        pub const fn new(value: T) -> Self {
            RwLock(spin::rwlock::RwLock::new(value))
        }

        pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
            Ok(self.0.read())
        }

        pub fn write(&self) -> LockResult<spin::rwlock::RwLockWriteGuard<'_, T, Yield>> {
            Ok(self.0.write())
        }
    }
}
