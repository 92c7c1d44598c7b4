//! What a work request of the adapter is for: its id says so when it ends.

/// The kinds, each with the number of what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrId {
    /// A packet of the protocol: its number there.
    Packet(u32),
    /// A packet whose end nobody waits for.
    Control,
    /// A read or write of the application, or a part of one: its operation.
    Rma(u32),
    /// A message of an endpoint without protocol: its operation.
    Message(u32),
    /// A read of the protocol's: its number there.
    ProtoRead(u32),
    /// A receive of an endpoint without protocol: its operation.
    Recv(u32),
}

use WrId::*;

impl WrId {
    /// As the adapter carries it.
    #[inline]
    pub(crate) fn bits(self) -> u64 {
        let (kind, n) = match self {
            Packet(n) => (1, n),
            Control => (2, 0),
            Rma(n) => (3, n),
            Message(n) => (4, n),
            ProtoRead(n) => (5, n),
            Recv(n) => (6, n),
        };
        kind << 32 | u64::from(n)
    }

    /// What an adapter brings back.
    #[inline]
    pub(crate) fn from_bits(bits: u64) -> WrId {
        let n = bits as u32;
        match bits >> 32 {
            1 => Packet(n),
            3 => Rma(n),
            4 => Message(n),
            5 => ProtoRead(n),
            6 => Recv(n),
            _ => Control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_went() {
        for id in [
            Packet(7),
            Control,
            Rma(u32::MAX),
            Message(0),
            ProtoRead(1),
            Recv(2),
        ] {
            assert_eq!(WrId::from_bits(id.bits()), id);
        }
    }
}
