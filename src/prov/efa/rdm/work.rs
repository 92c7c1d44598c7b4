//! Operations that start later: behind a fence (FI_FENCE), when a counter reaches a value
//! (FI_TRIGGER, fi_trigger(3)), or as deferred work (FI_QUEUE_WORK).
//!
//! Such an operation is kept as [`Work`], which owns what a request borrows, and becomes a request
//! again when its time has come. One that finds no room then is tried again with every progress.

use super::ops::{self, AtomicReq, Common, MsgReq, RecvReq, RmaReq, SendData};
use super::OpKind;
use super::{atomics, receive, rma, Poster};
use crate::core::{Errno, Result};
use crate::hmem::UserMem;
use crate::proto::PeerId;
use crate::prov::efa::cq::{Entry, ErrEntry};
use crate::prov::efa::domain::State;
use crate::types::*;

/// A request whose data, if it was to be copied, is in [`Work::copy`] instead.
// Few of these exist, and not for long: their size does not matter.
#[allow(clippy::large_enum_variant)]
enum WorkKind {
    Msg(MsgReq<'static>),
    Recv(RecvReq),
    Rma(RmaReq<'static>),
    Atomic(AtomicReq<'static>),
    /// A change of a counter, which needs no endpoint.
    Cntr {
        cntr: u32,
        value: u64,
        set: bool,
    },
}

/// See the module text.
pub struct Work {
    kind: WorkKind,
    copy: Option<Box<[u8]>>,
    common: Common,
}

/// Data to keep: application memory as it is, other bytes as a copy.
fn keep(d: &SendData) -> (SendData<'static>, Option<Box<[u8]>>) {
    match d {
        SendData::User(m) => (SendData::User(*m), None),
        SendData::Inject(b) => (SendData::User(UserMem::EMPTY), Some((*b).into())),
    }
}

impl From<&MsgReq<'_>> for Work {
    fn from(r: &MsgReq) -> Work {
        let (data, copy) = keep(&r.data);
        Work {
            kind: WorkKind::Msg(MsgReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl From<&RecvReq> for Work {
    fn from(r: &RecvReq) -> Work {
        Work {
            kind: WorkKind::Recv(*r),
            copy: None,
            common: r.common,
        }
    }
}

impl From<&RmaReq<'_>> for Work {
    fn from(r: &RmaReq) -> Work {
        let (data, copy) = keep(&r.data);
        Work {
            kind: WorkKind::Rma(RmaReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl From<&AtomicReq<'_>> for Work {
    fn from(r: &AtomicReq) -> Work {
        let (data, copy) = keep(&r.data);
        Work {
            kind: WorkKind::Atomic(AtomicReq { data, ..*r }),
            copy,
            common: r.common,
        }
    }
}

impl Work {
    /// A change of a counter: `value` added, or put in its place.
    pub fn counter(cntr: u32, value: u64, set: bool) -> Work {
        Work {
            kind: WorkKind::Cntr { cntr, value, set },
            copy: None,
            common: Common::default(),
        }
    }

    /// The peer that its fence is about, if it has one.
    fn fence(&self) -> Option<fi_addr_t> {
        let to = match &self.kind {
            WorkKind::Msg(r) => r.to,
            WorkKind::Rma(r) => r.peer,
            WorkKind::Atomic(r) => r.peer,
            WorkKind::Recv(_) | WorkKind::Cntr { .. } => return None,
        };
        (self.common.flags.unwrap_or(0) & FI_FENCE != 0).then_some(to)
    }

    fn start(&self, s: &mut State, ep: u32) -> Result<()> {
        let data = |kept| self.copy.as_deref().map_or(kept, SendData::Inject);
        match &self.kind {
            WorkKind::Msg(r) => {
                let data = data(r.data);
                ops::send_now(s, ep, &MsgReq { data, ..*r })
            }
            WorkKind::Recv(r) => receive::recv(s, Poster::Ep(ep), r),
            WorkKind::Rma(r) => {
                let data = data(r.data);
                rma::rma_now(s, ep, &RmaReq { data, ..*r })
            }
            WorkKind::Atomic(r) => {
                let data = data(r.data);
                atomics::atomic_now(s, ep, &AtomicReq { data, ..*r })
            }
            WorkKind::Cntr { cntr, value, set } => {
                let c = s.cntrs.get_mut(*cntr).ok_or(FI_EBADF)?;
                c.change(false, *set, *value)
            }
        }
    }

    /// It could not be started: its completion says so.
    fn fail(&self, s: &mut State, ep: u32, e: Errno) {
        let text = format!(
            "a deferred operation could not be started: {}",
            crate::core::errno::text(e)
        );
        crate::warn_log!(FI_LOG_EP_DATA, "{text}");
        if let Some(c) = self.common.done.and_then(|c| s.cntrs.get_mut(c)) {
            c.add_error(1);
        }
        let bound = s.eps.get(ep).and_then(|e| match self.kind {
            WorkKind::Recv(_) => e.rx,
            _ => e.tx,
        });
        if let Some(q) = bound.and_then(|b| s.cqs.get_mut(b.cq)) {
            q.push_error(ErrEntry {
                entry: Entry {
                    context: self.common.context,
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
pub fn under_way(s: &State, ep: u32, peer: PeerId) -> bool {
    let has_outstanding = s.eps.get(ep).is_some_and(|e| e.has_outstanding(peer));
    has_outstanding
        || s.ops.iter().any(|(_, o)| {
            o.owner == ep && o.kind == OpKind::User && o.peer == peer && o.flags & FI_RECV == 0
        })
}

/// Starts what waits behind fences, as far as they are open.
pub fn run_fenced(s: &mut State, id: u32) {
    while let Some(w) = s.eps.get_mut(id).and_then(|e| e.fenced.pop_front()) {
        let av = s.eps.get(id).and_then(|e| e.av).and_then(|a| s.avs.get(a));
        let closed = w.fence().and_then(|to| av?.peer(to, &mut s.peers).ok());
        let hold = closed.is_some_and(|p| under_way(s, id, p));
        let result = if hold { Err(FI_EAGAIN) } else { w.start(s, id) };
        match result {
            Ok(()) => {}
            Err(FI_EAGAIN) => {
                if let Some(e) = s.eps.get_mut(id) {
                    e.fenced.push_front(w);
                }
                return;
            }
            Err(e) => w.fail(s, id, e),
        }
    }
}

/// An operation that a counter starts.
pub struct Trigger {
    pub cntr: u32,
    pub threshold: u64,
    pub ep: u32,
    pub work: Work,
    /// The application's name for it, for FI_CANCEL_WORK; 0 for a triggered operation.
    pub name: usize,
}

/// Starts what the counters have reached. Called after anything that may have changed one.
pub fn fire(s: &mut State) {
    while let Some(at) = s
        .triggers
        .iter()
        .position(|t| s.cntrs.get(t.cntr).is_none_or(|c| c.value() >= t.threshold))
    {
        let t = s.triggers.remove(at);
        match t.work.start(s, t.ep) {
            Ok(()) => ops::notify_sleeper(s, t.ep),
            Err(FI_EAGAIN) => {
                if let Some(e) = s.eps.get_mut(t.ep) {
                    e.fenced.push_back(t.work);
                }
            }
            Err(e) => t.work.fail(s, t.ep, e),
        }
    }
}

/// Queues an operation for a counter, or starts it when the counter is there already.
pub fn trigger(s: &mut State, t: Trigger) -> Result<()> {
    s.cntrs.get(t.cntr).ok_or(FI_EINVAL)?;
    s.triggers.push(t);
    fire(s);
    Ok(())
}

/// FI_CANCEL_WORK: takes back deferred work that has not started. `FI_ENOENT` when there is none.
pub fn cancel(s: &mut State, name: usize) -> Result<()> {
    let before = s.triggers.len();
    s.triggers.retain(|t| t.name != name);
    if s.triggers.len() == before {
        Err(FI_ENOENT)
    } else {
        Ok(())
    }
}

/// FI_FLUSH_WORK: takes all deferred work of the domain back.
pub fn flush(s: &mut State) {
    s.triggers.retain(|t| t.name == 0);
}
