//! Deferred work: `fi_control` of a domain with FI_QUEUE_WORK, FI_CANCEL_WORK and FI_FLUSH_WORK
//! (fi_trigger(3)).

use super::atomic::{atomic_request, compare, former, IocList};
use super::ep::ep;
use super::message::{recv_request, send_request, untagged};
use super::queues::cntr;
use super::rma::rma_request;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};

/// Carries a command out; `FI_ENOSYS` for one that is not about work.
///
/// # Safety
/// `arg` is what the command wants; what a queued operation names stays valid until its end.
pub(crate) unsafe fn control<D: Domain>(d: &D, command: c_int, arg: *mut c_void) -> Result<()> {
    match command {
        FI_QUEUE_WORK => {
            // SAFETY: as promised by the caller.
            let t = unsafe {
                let w = arg.cast::<fi_deferred_work>();
                read::<D>(w.as_ref().ok_or(FI_EINVAL)?, w as usize)?
            };
            d.trigger(t)
        }
        FI_CANCEL_WORK => d.cancel_work(arg as usize),
        FI_FLUSH_WORK => {
            d.flush_work();
            Ok(())
        }
        _ => Err(FI_ENOSYS),
    }
}

/// Where the results of a fetching atomic go.
fn result_list(f: &fi_msg_fetch) -> IocList {
    (f.msg_iov.cast_const(), f.desc, f.iov_count)
}

/// # Safety
/// The work is valid, with everything it points to.
unsafe fn read<D: Domain>(w: &fi_deferred_work, name: usize) -> Result<Trigger> {
    // SAFETY: as promised by the caller; the member of the union is the one that `op_type` names.
    unsafe {
        let cntr_id = cntr::<D>(w.triggering_cntr)?.id;
        let done = match w.completion_cntr.is_null() {
            true => None,
            false => Some(cntr::<D>(w.completion_cntr)?.id),
        };
        macro_rules! keep {
            () => {
                |mut r| {
                    r.common.completion_cntr = done;
                    Ok(DeferredOp::from(&r))
                }
            };
        }
        let (on, op) = match w.op_type {
            FI_OP_SEND => {
                let o = &*w.op.msg;
                (o.ep, send_request(&o.msg, None, o.flags, keep!())?)
            }
            FI_OP_TSEND => {
                let o = &*w.op.tagged;
                let m = untagged(&o.msg);
                (o.ep, send_request(&m, Some(o.msg.tag), o.flags, keep!())?)
            }
            FI_OP_RECV => {
                let o = &*w.op.msg;
                let mut r = recv_request(&o.msg, None, o.flags)?;
                r.common.completion_cntr = done;
                (o.ep, DeferredOp::from(&r))
            }
            FI_OP_TRECV => {
                let o = &*w.op.tagged;
                let tag = Some((o.msg.tag, o.msg.ignore));
                let mut r = recv_request(&untagged(&o.msg), tag, o.flags)?;
                r.common.completion_cntr = done;
                (o.ep, DeferredOp::from(&r))
            }
            FI_OP_READ | FI_OP_WRITE => {
                let o = &*w.op.rma;
                let write = w.op_type == FI_OP_WRITE;
                (o.ep, rma_request(&o.msg, o.flags, write, keep!())?)
            }
            FI_OP_ATOMIC => {
                let o = &*w.op.atomic;
                (o.ep, atomic_request(&o.msg, Fetch::No, o.flags, keep!())?)
            }
            FI_OP_FETCH_ATOMIC => {
                let o = &*w.op.fetch_atomic;
                let f = former(result_list(&o.fetch), o.msg.datatype)?;
                (o.ep, atomic_request(&o.msg, f, o.flags, keep!())?)
            }
            FI_OP_COMPARE_ATOMIC => {
                let o = &*w.op.compare_atomic;
                let with = (o.compare.msg_iov, o.compare.desc, o.compare.iov_count);
                let f = compare(result_list(&o.fetch), with, o.msg.datatype)?;
                (o.ep, atomic_request(&o.msg, f, o.flags, keep!())?)
            }
            FI_OP_CNTR_SET | FI_OP_CNTR_ADD => {
                let o = &*w.op.cntr;
                let set = w.op_type == FI_OP_CNTR_SET;
                let op = DeferredOp::counter(cntr::<D>(o.cntr)?.id, o.value, set);
                return Ok(Trigger {
                    cntr: cntr_id,
                    threshold: w.threshold,
                    ep: u32::MAX,
                    op,
                    name,
                });
            }
            other => {
                crate::warn_log!(FI_LOG_DOMAIN, "FI_QUEUE_WORK: op_type {other} is unknown");
                return Err(FI_EINVAL);
            }
        };
        let Poster::Ep(id) = ep::<D>(on)?.who else {
            return Err(FI_EINVAL);
        };
        Ok(Trigger {
            cntr: cntr_id,
            threshold: w.threshold,
            ep: id,
            op,
            name,
        })
    }
}
