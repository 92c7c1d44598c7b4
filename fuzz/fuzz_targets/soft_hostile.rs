//! A connected peer that sends any datagrams, against the software adapter's engine and real
//! memory.
#![no_main]
use fabric::device::soft::hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| hostile::run(script));
