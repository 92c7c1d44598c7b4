//! Deferred work: `fi_control` of a domain with FI_QUEUE_WORK, FI_CANCEL_WORK and FI_FLUSH_WORK
//! (fi_trigger(3)).

use super::atomic::{AtomicMsgArgs, ElementBuffers};
use super::entry::{ControlArg, FromC};
use super::handles::AnyObject;
use super::message::MsgArgs;
use super::rma::RmaMsgArgs;
use super::transfer::own;
use crate::core::{Errno, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_int;
use std::sync::Arc;

/// The command, in log lines.
const QUEUE: &str = "FI_QUEUE_WORK";

/// Carries a command out; `FI_ENOSYS` for one that is not about work.
pub(crate) fn control<D: Domain>(d: &Arc<D>, command: c_int, arg: &ControlArg) -> Result<()> {
    match command {
        FI_QUEUE_WORK => {
            // SAFETY: the argument of this command is a `struct fi_deferred_work`; what it names
            // stays valid until its end.
            let t = unsafe { read(d, arg.get()?, arg.raw() as usize)? };
            d.trigger(t)
        }
        FI_CANCEL_WORK => d.cancel_work(arg.raw() as usize),
        FI_FLUSH_WORK => {
            d.flush_work();
            Ok(())
        }
        _ => Err(FI_ENOSYS),
    }
}

/// Where the results of a fetching atomic go.
///
/// # Safety
/// The list is valid, with its memory.
unsafe fn result_list(f: &fi_msg_fetch) -> Result<ElementBuffers> {
    // SAFETY: as promised by the caller.
    unsafe { FromC::from_c((f.msg_iov, f.desc, f.iov_count)) }
}

/// A counter of this domain, for the call `what`. `FI_EINVAL` for another object.
///
/// # Safety
/// The handle is NULL or an object.
pub(crate) unsafe fn counter<D: Domain>(d: &Arc<D>, c: *mut fid_cntr, what: &str) -> Result<u32> {
    // SAFETY: as promised by the caller.
    match unsafe { FromC::from_c(c.cast::<fid>())? } {
        AnyObject::Cntr(c) if Arc::ptr_eq(&c.domain, d) => Ok(c.id),
        _ => Err(not_of_domain(what, "counter")),
    }
}

fn not_of_domain(call: &str, what: &str) -> Errno {
    crate::warn_log!(FI_LOG_DOMAIN, "{call}: wanted a {what} of this domain");
    FI_EINVAL
}

/// # Safety
/// The work is valid, with everything it points to.
unsafe fn read<D: Domain>(d: &Arc<D>, w: &fi_deferred_work, name: usize) -> Result<Trigger> {
    // SAFETY: as promised by the caller; the member of the union is the one that `op_type` names.
    unsafe {
        let on = counter(d, w.triggering_cntr, QUEUE)?;
        let cntr = match w.completion_cntr.is_null() {
            true => None,
            false => Some(counter(d, w.completion_cntr, QUEUE)?),
        };
        let (ep, op) = match w.op_type {
            FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
                let o = &*w.op.cntr;
                let set = w.op_type == FI_OP_CNTR_SET;
                let changed = counter(d, o.cntr, QUEUE)?;
                (u32::MAX, DeferredOp::counter(changed, o.value, set))
            }
            _ => {
                let (ep, op) = transfer(w, WorkEnd { cntr })?;
                match FromC::from_c(ep.cast::<fid>())? {
                    AnyObject::Ep(e) if Arc::ptr_eq(&e.domain, d) => (own(e.who)?, op),
                    _ => return Err(not_of_domain(QUEUE, "endpoint")),
                }
            }
        };
        Ok(Trigger {
            cntr: on,
            threshold: w.threshold,
            ep,
            op,
            name,
        })
    }
}

/// The transfer of a work, which ends as `end`, and its endpoint.
///
/// # Safety
/// The work is valid, with everything it points to.
unsafe fn transfer(w: &fi_deferred_work, end: WorkEnd) -> Result<(*mut fid_ep, DeferredOp)> {
    let end = Some(end);
    // SAFETY: as promised by the caller; the member of the union is the one that `op_type` names.
    unsafe {
        macro_rules! keep {
            () => {
                |mut r| {
                    r.common.work = end;
                    Ok(DeferredOp::from(&r))
                }
            };
        }
        let received = |m: MsgArgs, flags| -> Result<DeferredOp> {
            let mut r = m.receive(flags)?;
            r.common.work = end;
            Ok(DeferredOp::from(&r))
        };
        match w.op_type {
            FI_OP_SEND => {
                let o = &*w.op.msg;
                let m = MsgArgs::from_c(&raw const o.msg)?;
                Ok((o.ep, m.send(o.flags, keep!())?))
            }
            FI_OP_TSEND => {
                let o = &*w.op.tagged;
                let m = MsgArgs::from_c(&raw const o.msg)?;
                Ok((o.ep, m.send(o.flags, keep!())?))
            }
            FI_OP_RECV => {
                let o = &*w.op.msg;
                Ok((o.ep, received(FromC::from_c(&raw const o.msg)?, o.flags)?))
            }
            FI_OP_TRECV => {
                let o = &*w.op.tagged;
                Ok((o.ep, received(FromC::from_c(&raw const o.msg)?, o.flags)?))
            }
            FI_OP_READ | FI_OP_WRITE => {
                let o = &*w.op.rma;
                let m = RmaMsgArgs::from_c(&raw const o.msg)?;
                let write = w.op_type == FI_OP_WRITE;
                Ok((o.ep, m.request(o.flags, write, keep!())?))
            }
            FI_OP_ATOMIC => {
                let o = &*w.op.atomic;
                let m = AtomicMsgArgs::from_c(&raw const o.msg)?;
                Ok((o.ep, m.request(Fetch::No, o.flags, keep!())?))
            }
            FI_OP_FETCH_ATOMIC => {
                let o = &*w.op.fetch_atomic;
                let m = AtomicMsgArgs::from_c(&raw const o.msg)?;
                let fetch = m.former(&result_list(&o.fetch)?)?;
                Ok((o.ep, m.request(fetch, o.flags, keep!())?))
            }
            FI_OP_COMPARE_ATOMIC => {
                let o = &*w.op.compare_atomic;
                let m = AtomicMsgArgs::from_c(&raw const o.msg)?;
                let c = &o.compare;
                let with = FromC::from_c((c.msg_iov, c.desc, c.iov_count))?;
                let fetch = m.compare(&with, &result_list(&o.fetch)?)?;
                Ok((o.ep, m.request(fetch, o.flags, keep!())?))
            }
            other => {
                crate::warn_log!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: op_type {other} is unknown");
                Err(FI_EINVAL)
            }
        }
    }
}
