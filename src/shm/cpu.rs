//! Where the process of each ring's writer ran last, so that a process that waits for a record can
//! check whether its peer may be waiting for the same processor.
//!
//! A writer publishes its processor while it waits itself: for a process that never waits no other
//! has to yield. The word is in a line of its own, which changes only when the process has moved.

use crate::core::process::generation;
use crate::device::host::{processor, secret};
use std::sync::OnceLock;

/// Bits of the word that hold the number of the processor plus one; 0 is unknown. The bits above
/// tell processes apart: a ring to oneself has its writer wherever its reader is.
const CPU_BITS: u32 = 16;

/// The word for this process on its processor of now; 0 where the system does not tell.
pub(super) fn here() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    let process = *PROCESS.get_or_init(|| secret().unwrap_or(0));
    let process = process.wrapping_add(generation()) << CPU_BITS;
    match processor().and_then(|c| c.checked_add(1)) {
        Some(cpu) => process | u64::from(cpu),
        None => 0,
    }
}

/// Whether the process of word `writer` is another than that of `own`, and ran on its processor.
/// `None` when one is unknown.
pub(super) fn shared(writer: u64, own: u64) -> Option<bool> {
    let cpu = |w: u64| w & ((1 << CPU_BITS) - 1);
    if cpu(writer) == 0 || cpu(own) == 0 {
        return None;
    }
    Some(writer >> CPU_BITS != own >> CPU_BITS && cpu(writer) == cpu(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_on_this_processor_is_another_process() {
        let (own, other) = (7 << 16 | 3, 8 << 16 | 3);
        assert_eq!(shared(other, own), Some(true));
        assert_eq!(shared(other + 1, own), Some(false));
        assert_eq!(shared(own, own), Some(false));
        assert_eq!((shared(0, own), shared(other, 0)), (None, None));
        assert_eq!(here() >> 16, here() >> 16);
    }
}
