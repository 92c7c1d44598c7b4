//! Arbitrary datagrams: a head that the software adapter's parser accepts is emitted and parsed
//! again, with the same result.
#![no_main]
use fabric::device::soft::packet::{PacketHead, HEAD_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some((head, rest)) = PacketHead::parse(bytes) {
        assert!(rest.len() < bytes.len());
        let mut buf = [0u8; HEAD_MAX];
        let n = head.emit(&mut buf);
        assert_eq!(PacketHead::parse(&buf[..n]).map(|p| p.0), Some(head));
    }
});
