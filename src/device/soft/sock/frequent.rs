//! The peer that most datagrams come from, and when a socket of its own pays.
//!
//! A socket costs some 20 microseconds to open and connect, and saves half a microsecond for each
//! datagram. Each receive that finds something counts for the sender of its first datagram, and
//! four times against another: a sender of four fifths is the most frequent one. Beside a ring of
//! neighbours or many clients nothing is connected.

use std::net::SocketAddr;

/// Receives from one peer after which a socket is connected to it. In tests the adapter's thread,
/// which ends what they count, runs more often than they do.
const CONNECT_AT: u32 = if cfg!(test) { 16 } else { 256 };
/// What a receive from another peer takes away.
const OTHER: u32 = 4;
/// Times that a peer is passed over, as frequent as it may be, after a socket could not be had.
const PASSED_OVER: u32 = 1000;

/// The peer that most of the last datagrams came from.
pub(super) struct FrequentPeer {
    at: SocketAddr,
    count: u32,
    passed_over: u32,
}

impl FrequentPeer {
    /// Without a peer; `own` is no peer's address.
    pub(super) fn new(own: SocketAddr) -> FrequentPeer {
        FrequentPeer {
            at: own,
            count: 0,
            passed_over: 0,
        }
    }

    /// A receive, one of `of` that might have, found a datagram from `from`.
    #[inline]
    pub(super) fn heard(&mut self, from: SocketAddr, of: u32) {
        if self.at == from {
            self.count = (self.count + 1).min(CONNECT_AT);
        } else if self.count >= OTHER * of {
            self.count -= OTHER * of;
        } else {
            (self.at, self.count) = (from, 1);
        }
    }

    /// Begins to count again.
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// A socket cannot be had now.
    pub(super) fn pass_over(&mut self) {
        self.forget();
        self.passed_over = PASSED_OVER;
    }

    /// The peer whose share and number of datagrams pay for a socket.
    #[inline(always)]
    pub(super) fn settled(&mut self) -> Option<SocketAddr> {
        if self.count < CONNECT_AT {
            return None;
        }
        if self.passed_over > 0 {
            self.passed_over -= 1;
            self.forget();
            return None;
        }
        Some(self.at)
    }

    /// Whether `peer` is still the most frequent one.
    pub(super) fn is(&self, peer: Option<&SocketAddr>) -> bool {
        peer == Some(&self.at)
    }
}
