//! Operations that start later: behind a fence (FI_FENCE), when a counter reaches a value
//! (FI_TRIGGER, fi_trigger(3)), or as deferred work (FI_QUEUE_WORK).
//!
//! Such an operation is kept as [`DeferredWork`], which owns what a request borrows, and becomes a
//! request again when it is started. If it finds no room then, every progress call tries again.

use crate::core::{Errno, Result};
use crate::proto::PeerId;
use crate::prov::contract::*;
use crate::prov::efa::domain::State;
use crate::prov::efa::endpoint::Ep;
use crate::prov::efa::ops;
use crate::prov::efa::ops::triggers::PendingTrigger;
use crate::prov::efa::ops::user_op::end_cntrs;
use crate::prov::efa::ops::OpKind;
use crate::prov::efa::ops::{atomic, recv, resolve, rma};
use crate::prov::efa::select::{answered, ROUTE_PENDING};
use crate::prov::reports::completion::{atomic_flags, rma_flags, send_flags, CntrKind};
use crate::types::*;

/// See the module text.
pub(crate) struct DeferredWork {
    op: DeferredOp,
    /// The peer that its address stood for when the call was made. An address that stands for
    /// another one by now, or none, is not used.
    peer: Option<PeerId>,
    /// A write or read that this peer's ring has refused: it goes to this peer, by the adapter.
    by_adapter: Option<PeerId>,
}

impl DeferredWork {
    /// An operation for later.
    pub(crate) fn new(op: impl Into<DeferredOp>) -> DeferredWork {
        DeferredWork {
            op: op.into(),
            peer: None,
            by_adapter: None,
        }
    }

    /// `r`, by the adapter to this peer, whatever address it names.
    pub(crate) fn by_adapter(r: &RmaReq<SendData>, peer: PeerId) -> DeferredWork {
        DeferredWork {
            op: DeferredOp::from(r),
            peer: None,
            by_adapter: Some(peer),
        }
    }

    /// As the call has been made now: it goes to the peer that its address stands for.
    pub(super) fn called(mut self, s: &mut State, ep: u32) -> DeferredWork {
        self.peer = self.to().and_then(|to| resolve(s, ep, to).ok());
        self
    }

    /// The peer that it goes to, if there is one.
    pub(crate) fn peer(&self) -> Option<PeerId> {
        self.by_adapter.or(self.peer)
    }

    /// The address that it goes to.
    fn to(&self) -> Option<fi_addr_t> {
        match &self.op.kind {
            DeferredKind::Msg(r) => Some(r.to),
            DeferredKind::Rma(r) => Some(r.peer),
            DeferredKind::Atomic(r) => Some(r.peer),
            DeferredKind::Recv(_) | DeferredKind::Cntr { .. } => None,
        }
    }

    /// Whether it waits for earlier operations (FI_FENCE).
    pub(crate) fn is_fenced(&self) -> bool {
        self.fence().is_some()
    }

    /// The address whose earlier operations the fence waits for; `None` without FI_FENCE.
    fn fence(&self) -> Option<fi_addr_t> {
        let fenced = self.op.common.flags.unwrap_or(0) & FI_FENCE != 0;
        self.to().filter(|_| fenced)
    }

    /// Starts it. `FI_EAGAIN` and `ROUTE_PENDING`: it has to wait longer.
    fn start(&self, s: &mut State, ep: u32) -> Result<()> {
        if let Some(to) = self.to().filter(|_| self.by_adapter.is_none()) {
            if self.peer.is_some_and(|p| resolve(s, ep, to) != Ok(p)) {
                return Err(FI_ECANCELED);
            }
            answered(s, ep, to)?;
        }
        let data = |kept| match self.op.copy.as_deref() {
            Some(copy) => SendData::Inject(copy.into()),
            None => kept,
        };
        match &self.op.kind {
            DeferredKind::Msg(r) => {
                let data = data(r.data);
                ops::send_now(s, ep, &MsgReq { data, ..*r })
            }
            DeferredKind::Recv(r) => recv::recv_any(s, Poster::Ep(ep), r),
            DeferredKind::Rma(r) => {
                let data = data(r.data);
                let r = RmaReq { data, ..*r };
                match self.by_adapter {
                    Some(peer) => rma::retry_by_adapter(s, ep, peer, &r),
                    None => rma::rma_now(s, ep, &r),
                }
            }
            DeferredKind::Atomic(r) => {
                let data = data(r.data);
                atomic::atomic_now(s, ep, &AtomicReq { data, ..*r })
            }
            DeferredKind::Cntr { cntr, value, set } => {
                let c = s.cntrs.get_mut(*cntr).ok_or(FI_EBADF)?;
                c.change(false, *set, *value)
            }
        }
    }

    /// The flags, length and tag of its completion.
    fn described(&self) -> (u64, usize, u64) {
        let tag = |tag: Option<u64>| tag.unwrap_or(0);
        match &self.op.kind {
            DeferredKind::Msg(r) => {
                let flags = send_flags(r.tag.is_some());
                (flags.into(), r.data.len(), tag(r.tag))
            }
            DeferredKind::Recv(r) => {
                let kind = if r.tag.is_some() { FI_TAGGED } else { FI_MSG };
                (FI_RECV | kind, 0, tag(r.tag.map(|(tag, _)| tag)))
            }
            DeferredKind::Rma(r) => (rma_flags(r.write).into(), r.data.len(), 0),
            DeferredKind::Atomic(r) => {
                let changes = matches!(r.fetch, Fetch::No);
                (atomic_flags(changes).into(), r.data.len(), 0)
            }
            DeferredKind::Cntr { .. } => (0, 0, 0),
        }
    }

    /// Reports an operation that could not be started.
    fn fail(&self, s: &mut State, ep: u32, e: Errno) {
        let text = format!(
            "a deferred operation could not be started: {}",
            crate::core::errno::text(e)
        );
        crate::warn_log!(FI_LOG_EP_DATA, "{text}");
        self.report(s, ep, e, text);
    }

    /// Reports an operation that has not been started.
    fn report(&self, s: &mut State, ep: u32, e: Errno, text: String) {
        let (flags, len, tag) = self.described();
        let Some(by) = s.eps.get(ep).filter(|_| flags != 0) else {
            return;
        };
        let common = &self.op.common;
        let entry = common.flags.unwrap_or(0) & FI_COMPLETION != 0;
        let bound = by.cntrs.of(CntrKind::of(flags as u32));
        for c in end_cntrs(common.work, entry, bound).into_iter().flatten() {
            if let Some(c) = s.cntrs.get_mut(c) {
                c.add_error();
            }
        }
        let queue = match self.op.kind {
            DeferredKind::Recv(_) => by.rx,
            _ => by.tx,
        };
        if let Some(q) = queue.and_then(|b| s.cqs.get_mut(b.cq)) {
            q.push_error(ErrEntry {
                entry: Entry {
                    context: common.context,
                    flags,
                    len,
                    tag,
                    src: FI_ADDR_NOTAVAIL,
                    ..Entry::default()
                },
                err: e,
                text,
                ..ErrEntry::default()
            });
        }
    }
}

/// Whether operations of this endpoint to this peer have not ended.
pub(crate) fn under_way(s: &State, ep: u32, peer: PeerId) -> bool {
    let has_outstanding = s.eps.get(ep).is_some_and(|e| e.has_outstanding(peer));
    has_outstanding
        || s.ops.iter().any(|(_, o)| {
            let sends = u64::from(o.done.flags) & FI_RECV == 0;
            o.owner == ep && o.kind == OpKind::User && o.done.peer == peer && sends
        })
}

/// Starts deferred operations: of each peer in order, up to the first whose fence is closed, whose
/// peer has not answered or that finds no room.
pub(crate) fn run(s: &mut State, id: u32) {
    let begins = |e: &mut Ep| e.deferred.begin();
    if !s.eps.get_mut(id).is_some_and(begins) {
        return;
    }
    let mut last = None;
    while let Some(peer) = s.eps.get(id).and_then(|e| e.deferred.next_peer(last)) {
        run_of(s, id, peer);
        last = Some(peer);
    }
    if let Some(e) = s.eps.get_mut(id) {
        e.deferred.end();
    }
}

fn run_of(s: &mut State, id: u32, peer: Option<PeerId>) {
    while let Some(w) = s.eps.get_mut(id).and_then(|e| e.deferred.take(peer)) {
        let result = match fence_is_closed(s, id, &w) {
            true => Err(FI_EAGAIN),
            false => w.start(s, id),
        };
        match result {
            Ok(()) => {}
            Err(FI_EAGAIN | ROUTE_PENDING) => {
                if let Some(e) = s.eps.get_mut(id) {
                    e.deferred.push_front(w);
                }
                return;
            }
            Err(e) => w.fail(s, id, e),
        }
    }
}

/// Starts operations whose counter has reached its threshold. Called after any change of a counter.
pub(crate) fn fire(s: &mut State) {
    while let Some(t) = s.triggers.take_due(&s.cntrs) {
        if is_behind_fence(s, t.ep, &t.work) {
            if let Some(e) = s.eps.get_mut(t.ep) {
                e.deferred.push(t.work);
            }
            continue;
        }
        match t.work.start(s, t.ep) {
            Ok(()) => ops::notify_sleeper(s, t.ep),
            Err(FI_EAGAIN | ROUTE_PENDING) => {
                if let Some(e) = s.eps.get_mut(t.ep) {
                    e.deferred.push(t.work);
                }
            }
            Err(e) => t.work.fail(s, t.ep, e),
        }
    }
}

/// Whether work has to wait for earlier operations: its own fence is closed, or another that waits
/// before it.
fn is_behind_fence(s: &mut State, id: u32, w: &DeferredWork) -> bool {
    let behind = s.eps.get(id).zip(w.peer());
    behind.is_some_and(|(e, p)| e.deferred.names(p)) || fence_is_closed(s, id, w)
}

/// Whether operations that the fence of this work waits for have not ended.
fn fence_is_closed(s: &mut State, id: u32, w: &DeferredWork) -> bool {
    let av = s.eps.get(id).and_then(|e| e.av).and_then(|a| s.avs.get(a));
    let peer = w.fence().and_then(|to| av?.peer(to, &mut s.peers).ok());
    peer.is_some_and(|p| under_way(s, id, p))
}

/// Whether a counter starts work, is changed by work, or counts its end.
pub(crate) fn uses_cntr(s: &State, id: u32) -> bool {
    let counts = |work: Option<WorkEnd>| work.is_some_and(|w| w.cntr == Some(id));
    let uses = |w: &DeferredWork| {
        let changes = matches!(w.op.kind, DeferredKind::Cntr { cntr, .. } if cntr == id);
        changes || counts(w.op.common.work)
    };
    s.triggers.wait_for(id)
        || s.triggers.any(|t| uses(&t.work))
        || s.eps.iter().any(|(_, e)| e.deferred.iter().any(uses))
        || s.ops.iter().any(|(_, o)| counts(o.work))
}

/// Queues an operation for a counter, or starts it if the counter has reached the threshold.
pub(crate) fn trigger(s: &mut State, t: Trigger) -> Result<()> {
    s.cntrs.get(t.cntr).ok_or(FI_EINVAL)?;
    let pending = PendingTrigger {
        ep: t.ep,
        work: DeferredWork::new(t.op).called(s, t.ep),
        name: t.name,
    };
    s.triggers.push(t.cntr, t.threshold, pending);
    fire(s);
    Ok(())
}

/// FI_CANCEL_WORK: takes back deferred work that has not started. `FI_ENOENT` when there is none.
pub(crate) fn cancel(s: &mut State, name: usize) -> Result<()> {
    match s.triggers.take_back(|t| t.name == name) {
        true => Ok(()),
        false => Err(FI_ENOENT),
    }
}

/// fi_cancel(3) of a triggered operation that has not been started.
pub(crate) fn cancel_triggered(s: &mut State, ep: u32, context: usize) {
    let is = |t: &PendingTrigger| t.name == 0 && t.ep == ep && t.work.op.common.context == context;
    let Some(t) = s.triggers.take_first(is) else {
        return;
    };
    let text = "the operation was cancelled by fi_cancel before it was triggered";
    t.work.report(s, ep, FI_ECANCELED, text.to_string());
}

/// FI_FLUSH_WORK: takes all deferred work of the domain back.
pub(crate) fn flush(s: &mut State) {
    s.triggers.take_back(|t| t.name != 0);
}
