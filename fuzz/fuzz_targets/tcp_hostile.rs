//! A peer of provider tcp that sends whatever it likes on its connection.
#![no_main]
use fabric::prov::tcp_hostile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| tcp_hostile::run(script));
