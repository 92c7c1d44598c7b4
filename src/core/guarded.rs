//! The library's own threads: a panic in one of them ends neither the thread nor the program.

use crate::types::*;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::Duration;

/// Runs a thread's body until it returns; after a panic, which is logged, it begins again.
pub fn run(name: &str, mut body: impl FnMut()) {
    while catch_unwind(AssertUnwindSafe(&mut body)).is_err() {
        crate::warn_limited!(
            FI_LOG_CORE,
            "thread {name}: internal error (a panic was caught): please report it"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_body_that_panics_is_run_again() {
        let mut n = 0;
        super::run("test", || {
            n += 1;
            assert!(n > 2, "on purpose");
        });
        assert_eq!(n, 3);
    }
}
