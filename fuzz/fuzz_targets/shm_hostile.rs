//! A peer that changes what it likes in the rings of shared memory, also while they are being used.
#![no_main]
use fabric::shm::hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| hostile::run(script));
