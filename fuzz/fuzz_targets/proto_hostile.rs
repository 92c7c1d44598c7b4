//! A connected peer that sends any packets, against the protocol and the model of its memory.
#![no_main]
use fabric::proto::hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| hostile::run(script));
