//! Shared contexts, fi_srx_context(3) and fi_stx_context(3).
//!
//! A shared receive context is a receive queue that endpoints are bound to; its handle is that of
//! an endpoint that only receives. A shared transmit context is a name: every endpoint has a queue
//! pair of its own.

use super::entry::{entry, ControlArg, OutParam};
use super::ep::{new_ep, EpBody};
use super::handles::AnyObject;
use super::object::*;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

entry! {
    pub(crate) fn srx_ctx<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_rx_attr as Option<&fi_rx_attr>,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        context: *mut c_void,
    ) -> c_int = "fi_srx_context" {
        let (caps, flags) = (attr.map(|a| a.caps), attr.map_or(0, |a| a.op_flags));
        let id = domain.open_srx(caps, flags)?;
        let f = new_ep::<D>(FI_CLASS_SRX_CTX, context, Tables::<D>::SRX_FI_OPS);
        out.put(hand_out(f, EpBody::new(domain, Poster::Srx(id))));
        Ok(())
    }
}

close! {
    fn srx_close<D: Domain>(b: EpBody<D> as fid_ep) {
        let Poster::Srx(id) = b.who else {
            return Err(FI_EINVAL);
        };
        b.domain.close_srx(id)
    }
}

entry! {
    fn srx_control<D: Domain>(
        _srx: *mut fid as &EpBody<D>,
        command: c_int,
        _arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        // It is ready when it is open.
        match command {
            FI_ENABLE => Ok(()),
            _ => Err(FI_ENOSYS),
        }
    }
}

entry! {
    fn srx_bind<D: Domain>(
        _srx: *mut fid as &EpBody<D>,
        with: *mut fid as AnyObject<D>,
        _flags: u64,
    ) -> c_int = "fi_ep_bind" {
        // Completions go to the queues of the endpoints: these bindings ask for nothing more.
        match with {
            AnyObject::Cq(_) | AnyObject::Cntr(_) | AnyObject::Av(_) | AnyObject::Eq(_) => Ok(()),
            _ => Err(FI_EINVAL),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const SRX_FI_OPS: &'static fi_ops =
        &ops(srx_close::<D>, srx_bind::<D>, srx_control::<D>);
}

/// Body of a `fid_stx`.
pub(crate) struct StxBody<D: Domain> {
    _domain: Arc<D>,
}

entry! {
    pub(crate) fn stx_ctx<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        _attr: *mut fi_tx_attr,
        out: *mut *mut fid_stx as OutParam<*mut fid_stx>,
        context: *mut c_void,
    ) -> c_int = "fi_stx_context" {
        let f = fid_stx {
            fid: new_fid(FI_CLASS_STX_CTX, context, Tables::<D>::STX_FI_OPS),
            ops: super::ep::ep_ops::<D>(),
        };
        let b = StxBody {
            _domain: Arc::clone(domain),
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

close! {
    fn stx_close<D: Domain>(_b: StxBody<D> as fid_stx) {
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const STX_FI_OPS: &'static fi_ops = &ops(stx_close::<D>, no_bind, no_control);
}
