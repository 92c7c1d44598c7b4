//! Reliability between two queue pairs, as two state machines without sockets and clocks.
//!
//! [`TxFlow`] numbers packets, keeps them until they are acknowledged and decides what to send
//! again; `cubic` (RFC 9438) limits how much is under way. [`RxFlow`] records which numbers have
//! arrived and reports them in acknowledgements. Time is an argument, in nanoseconds. Numbers wrap;
//! comparisons are by signed distance.

mod cubic;
mod rx;
#[cfg(test)]
mod tests;
mod tx;

use super::packet::MAX_WORDS;
pub(crate) use rx::RxFlow;
pub(crate) use tx::TxFlow;

/// Packets under way at most, and numbers a receiver remembers above the lowest missing one.
pub(crate) const WINDOW: u32 = (MAX_WORDS * 64) as u32;
const MS: u64 = 1_000_000;

/// Signed distance from `b` to `a`.
#[inline]
pub(crate) fn dist(a: u32, b: u32) -> i32 {
    a.wrapping_sub(b) as i32
}
