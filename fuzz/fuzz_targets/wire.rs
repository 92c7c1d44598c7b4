//! Arbitrary bytes: a header or handshake that parses is emitted and parsed again, with the same
//! result.
#![no_main]
use fabric::wire::{Handshake, Repr, HEADER_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((repr, payload)) = Repr::parse(bytes) {
        assert!(payload.len() <= bytes.len());
        let mut buf = [0u8; HEADER_MAX];
        let n = repr.emit(None, &mut buf);
        if n > 0 {
            assert_eq!(Repr::parse(&buf[..n]).map(|p| p.0), Some(repr));
        }
    }
    if let Some(h) = Handshake::parse(bytes) {
        let mut buf = [0u8; 64];
        let n = h.emit(&mut buf);
        assert_eq!(Handshake::parse(&buf[..n]), Some(h));
    }
});
