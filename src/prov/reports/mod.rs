//! Where operations end: completion queues, counters, and what both are told. Providers keep these
//! in their domains' tables.

pub(crate) mod cntr;
pub(crate) mod completion;
pub(crate) mod cq;

/// A queue an endpoint reports to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub cq: u32,
    /// Only operations that ask for it report success (FI_SELECTIVE_COMPLETION).
    pub selective: bool,
}

impl Bound {
    /// Stands for the queues of all endpoints of a shared receive context.
    pub(crate) fn everything() -> Bound {
        Bound {
            cq: u32::MAX,
            selective: false,
        }
    }
}

/// Whether the success of an operation with these flags is worth an entry in a queue that is bound
/// so.
#[inline]
pub(crate) fn reports(bound: Option<Bound>, flags: u64) -> bool {
    bound.is_some_and(|b| !b.selective || flags & crate::types::FI_COMPLETION != 0)
}
