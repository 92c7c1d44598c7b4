//! Completion queues, counters, and the completions that both report. Providers keep these in their
//! domains' tables.

pub(crate) mod blocking;
pub(crate) mod cntr;
pub(crate) mod completion;
pub(crate) mod cq;
pub(crate) mod domain;
pub(crate) mod endpoint;
pub(crate) mod flags;
pub(crate) mod spin;
pub(crate) mod wait_object;

use crate::core::slab::Slab;
use crate::core::yielding::YieldBackoff;
use crate::core::Result;
use crate::device::wait::WaitSet;
use crate::prov::contract::Call;
use crate::types::*;
use cntr::Cntr;
use completion::BoundCntrs;
use cq::Cq;
use std::sync::Arc;
use wait_object::WaitObject;

/// What a program reads in a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolledObject {
    Cq(u32),
    Cntr(u32),
}

impl PolledObject {
    /// The object's wait object.
    #[inline(always)]
    pub(crate) fn wait<'a>(
        self,
        cqs: &'a mut Slab<Cq>,
        cntrs: &'a mut Slab<Cntr>,
    ) -> Option<&'a mut WaitObject> {
        match self {
            PolledObject::Cq(id) => cqs.get_mut(id).map(|c| &mut c.wait),
            PolledObject::Cntr(id) => cntrs.get_mut(id).map(|c| &mut c.wait),
        }
    }

    /// The back-off of the object's readers, and the endpoints that report to the object.
    pub(crate) fn backoff_and_eps<'a>(
        self,
        cqs: &'a mut Slab<Cq>,
        cntrs: &'a mut Slab<Cntr>,
    ) -> Option<(&'a mut YieldBackoff, &'a [u32])> {
        match self {
            PolledObject::Cq(id) => cqs
                .get_mut(id)
                .map(|c| (&mut c.backoff, c.wait.eps.as_slice())),
            PolledObject::Cntr(id) => cntrs
                .get_mut(id)
                .map(|c| (&mut c.backoff, c.wait.eps.as_slice())),
        }
    }
}

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

    /// Binds a queue to the directions of an endpoint that `flags` name (fi_ep_bind(3)): of
    /// FI_TRANSMIT and FI_RECV one or both, and FI_SELECTIVE_COMPLETION. `FI_EBADFLAGS` for others
    /// or neither, `FI_EINVAL` for a direction that is bound already.
    pub(crate) fn bind(
        cq: u32,
        flags: u64,
        tx: &mut Option<CqBinding>,
        rx: &mut Option<CqBinding>,
    ) -> Result<()> {
        let known = FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION;
        if flags & !known != 0 || flags & (FI_TRANSMIT | FI_RECV) == 0 {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: flags {flags:#x}: wanted FI_TRANSMIT or FI_RECV, and \
                 FI_SELECTIVE_COMPLETION"
            );
            return Err(FI_EBADFLAGS);
        }
        let selective = flags & FI_SELECTIVE_COMPLETION != 0;
        for (bit, side) in [(FI_TRANSMIT, tx), (FI_RECV, rx)] {
            if flags & bit != 0 {
                if side.is_some() {
                    return Err(FI_EINVAL);
                }
                *side = Some(CqBinding { cq, selective });
            }
        }
        Ok(())
    }
}

/// For the progress thread: what it is to signal because something has come since it asked last
/// (FI_WAIT_MUTEX_COND).
pub(crate) fn take_news(cqs: &mut Slab<Cq>, cntrs: &mut Slab<Cntr>) -> Vec<Arc<WaitSet>> {
    let cqs = cqs.iter_mut().map(|(_, q)| &mut q.wait);
    let cntrs = cntrs.iter_mut().map(|(_, c)| &mut c.wait);
    cqs.chain(cntrs).filter_map(WaitObject::take_news).collect()
}

/// `FI_EOPBADSTATE`, with a log line, for what is bound to an `enabled` endpoint.
pub(crate) fn must_be_new(enabled: bool, what: &str) -> Result<()> {
    if !enabled {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "fi_ep_bind: {what} must be bound before fi_enable"
    );
    Err(FI_EOPBADSTATE)
}

/// Whether a successful operation with these flags has an entry in a queue that is bound so.
#[inline]
pub(crate) fn reports(bound: Option<CqBinding>, flags: u64) -> bool {
    bound.is_some_and(|b| !b.selective || flags & FI_COMPLETION != 0)
}

/// As [`reports`], of a call with these flags in effect: deferred work has an entry only if it asks
/// for one.
#[inline]
pub(crate) fn reports_call(bound: Option<CqBinding>, flags: u64, call: &impl Call) -> bool {
    reports(bound, flags) && (!call.is_work() || flags & FI_COMPLETION != 0)
}

/// Wakes callers that are blocked on the queues and counters of an endpoint: they have to look
/// again, and to arm it again.
#[cold]
pub(crate) fn wake_sleepers(
    (cqs, cntrs): (&mut Slab<Cq>, &mut Slab<Cntr>),
    queues: [Option<CqBinding>; 2],
    bound: &BoundCntrs,
) {
    for b in queues.into_iter().flatten() {
        if let Some(q) = cqs.get_mut(b.cq) {
            q.wait.signal_if_armed();
        }
    }
    for (_, c) in bound.each() {
        if let Some(c) = cntrs.get_mut(c) {
            c.wait.signal_if_armed();
        }
    }
}
