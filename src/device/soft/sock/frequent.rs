//! The peer that most datagrams come from, and when a socket of its own pays.
//!
//! A socket costs some 20 microseconds to open and connect, and saves half a microsecond for each
//! datagram. Each receive that finds something counts for the sender of its first datagram, and
//! four times against another: a sender of four fifths is the most frequent one. Beside a ring of
//! neighbours or many clients nothing is connected.

use std::net::SocketAddr;

/// Receives from one peer after which a socket is connected to it.
const CONNECT_AT: u32 = 256;
/// What a receive from another peer takes away.
const OTHER: u32 = 4;

/// Whom the last datagrams came from.
pub(super) struct FrequentPeer {
    at: SocketAddr,
    count: u32,
}

impl FrequentPeer {
    /// Nobody yet; `own` is no peer's address.
    pub(super) fn new(own: SocketAddr) -> FrequentPeer {
        FrequentPeer { at: own, count: 0 }
    }

    /// A receive found a datagram from `from`.
    #[inline]
    pub(super) fn heard(&mut self, from: SocketAddr) {
        if self.at == from {
            self.count = (self.count + 1).min(CONNECT_AT);
        } else if self.count >= OTHER {
            self.count -= OTHER;
        } else {
            (self.at, self.count) = (from, 1);
        }
    }

    /// Begins to count again.
    pub(super) fn forget(&mut self) {
        self.count = 0;
    }

    /// The peer whose share and number of datagrams pay for a socket.
    #[inline(always)]
    pub(super) fn settled(&self) -> Option<SocketAddr> {
        (self.count == CONNECT_AT).then_some(self.at)
    }

    /// Whether `peer` is still the most frequent one.
    pub(super) fn is(&self, peer: Option<&SocketAddr>) -> bool {
        peer == Some(&self.at)
    }
}
