//! A peer that writes arbitrary bytes into the shared-memory rings, also while they are in use.
#![no_main]
use fabric::shm::hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| hostile::run(script));
