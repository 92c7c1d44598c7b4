//! A peer of provider tcp that sends arbitrary bytes on its connection.
#![no_main]
use fabric::prov::tcp_hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| tcp_hostile::run(script));
