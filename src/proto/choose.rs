//! Which subprotocol a message takes: by size, by what both sides can do, by parameters.
//!
//! The order is that of fi_efa(7): eager if the message fits into one packet; else, from `min_read`
//! on and where both adapters support RDMA read, long-read (or runting read if `runt` is set, which
//! sends the first bytes ahead); else medium up to `max_medium`; else long-CTS.

use crate::core::params;
use crate::wire::extra;

/// A subprotocol of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subprotocol {
    Eager,
    Medium,
    LongCts,
    LongRead,
    RuntRead,
}

/// Parameters of the selection.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Largest medium message, bytes (`FI_EFA_INTER_MAX_MEDIUM_MESSAGE_SIZE`).
    pub max_medium: u64,
    /// Smallest message that is read by its receiver, bytes (`FI_EFA_INTER_MIN_READ_MESSAGE_SIZE`).
    pub min_read: u64,
    /// Smallest emulated write that is read by its target, bytes
    /// (`FI_EFA_INTER_MIN_READ_WRITE_SIZE`).
    pub min_read_write: u64,
    /// Largest single read, bytes (`FI_EFA_INTER_READ_SEGMENT_SIZE`).
    pub read_segment: u64,
    /// Bytes sent ahead of a read (`FI_EFA_RUNT_SIZE`); 0 for none, as for host memory.
    pub runt: u64,
}

impl Policy {
    /// The documented defaults for host memory.
    #[cfg(any(test, feature = "internals"))]
    pub const DEFAULT: Policy = Policy::of(&params::EfaParams::DEFAULT);

    const fn of(p: &params::EfaParams) -> Policy {
        Policy {
            max_medium: p.inter_max_medium_message_size as u64,
            min_read: p.inter_min_read_message_size as u64,
            min_read_write: p.inter_min_read_write_size as u64,
            read_segment: p.inter_read_segment_size as u64,
            runt: p.runt_size as u64,
        }
    }

    /// The policy of the environment variables, for an adapter that reads up to `max_read` bytes at
    /// once; 0: it reads nothing.
    pub fn from_params(max_read: usize) -> Policy {
        let p = Policy::of(params::efa());
        let most = match max_read {
            0 => u64::MAX,
            n => n as u64,
        };
        Policy {
            read_segment: p.read_segment.clamp(1, most),
            ..p
        }
    }

    /// Selects the subprotocol of a message of `len` bytes when one packet holds `eager` of them.
    /// `ours` and `theirs` are bits of [`extra`]; `theirs` is `None` before the peer's handshake.
    pub fn message(&self, len: u64, eager: u64, ours: u64, theirs: Option<u64>) -> Subprotocol {
        let reads = ours & theirs.unwrap_or(0) & extra::RDMA_READ != 0;
        if len <= eager {
            Subprotocol::Eager
        } else if reads && len >= self.min_read {
            if self.runt > 0 && self.runt < len {
                Subprotocol::RuntRead
            } else {
                Subprotocol::LongRead
            }
        } else if len <= self.max_medium {
            Subprotocol::Medium
        } else {
            Subprotocol::LongCts
        }
    }
}

/// How often one endpoint used each subprotocol.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub eager: u64,
    pub medium: u64,
    pub long_cts: u64,
    pub long_read: u64,
    pub runt_read: u64,
    /// Messages and writes that the receiver could not read and that were sent again by long-CTS.
    pub read_nack: u64,
    pub emulated_write: u64,
    pub emulated_read: u64,
    pub atomic: u64,
}

impl Counts {
    pub(super) fn add(&mut self, w: Subprotocol) {
        let n = match w {
            Subprotocol::Eager => &mut self.eager,
            Subprotocol::Medium => &mut self.medium,
            Subprotocol::LongCts => &mut self.long_cts,
            Subprotocol::LongRead => &mut self.long_read,
            Subprotocol::RuntRead => &mut self.runt_read,
        };
        *n += 1;
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "eager {}, medium {}, long-CTS {}, long-read {}, runting read {}, read nack {}, \
             emulated write {}, emulated read {}, atomic {}",
            self.eager,
            self.medium,
            self.long_cts,
            self.long_read,
            self.runt_read,
            self.read_nack,
            self.emulated_write,
            self.emulated_read,
            self.atomic
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_features_choose_the_subprotocol() {
        let p = Policy::DEFAULT;
        let both = Some(extra::RDMA_READ);
        let ask = |len, theirs| p.message(len, 8000, extra::RDMA_READ, theirs);
        assert_eq!(ask(8000, both), Subprotocol::Eager);
        assert_eq!(ask(8001, both), Subprotocol::Medium);
        assert_eq!(ask(65_537, both), Subprotocol::LongCts);
        assert_eq!(ask(1 << 20, both), Subprotocol::LongRead);
        assert_eq!(ask(1 << 20, None), Subprotocol::LongCts);
        assert_eq!(ask(1 << 20, Some(0)), Subprotocol::LongCts);
        let runt = Policy { runt: 4096, ..p };
        assert_eq!(
            runt.message(1 << 20, 8000, extra::RDMA_READ, both),
            Subprotocol::RuntRead
        );
    }
}
