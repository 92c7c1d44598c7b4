//! Completion queues, counters, and the completions that both report. Providers keep these in their
//! domains' tables.

pub(crate) mod cntr;
pub(crate) mod completion;
pub(crate) mod cq;

/// A queue an endpoint reports to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CqBinding {
    pub cq: u32,
    /// Only operations that ask for it report success (FI_SELECTIVE_COMPLETION).
    pub selective: bool,
}

impl CqBinding {
    /// Stands for the queues of all endpoints of a shared receive context.
    pub(crate) fn everything() -> CqBinding {
        CqBinding {
            cq: u32::MAX,
            selective: false,
        }
    }
}

/// Whether a successful operation with these flags has an entry in a queue that is bound so.
#[inline]
pub(crate) fn reports(bound: Option<CqBinding>, flags: u64) -> bool {
    bound.is_some_and(|b| !b.selective || flags & crate::types::FI_COMPLETION != 0)
}
