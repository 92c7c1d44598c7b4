//! Shared contexts, fi_srx_context(3) and fi_stx_context(3).
//!
//! A shared receive context is a receive queue that endpoints are bound to; its handle is that of
//! an endpoint that only receives. A shared transmit context is a name: every endpoint has a queue
//! pair of its own.

use super::entry::{entry, ControlArg, OutParam};
use super::ep::{new_ep, EpBody};
use super::handles::AnyObject;
use super::object::*;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
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
            ops: table(STX_OPS),
        };
        let b = StxBody {
            _domain: Arc::clone(domain),
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

entry! {
    fn stx_cancel(_stx: fid_t, _context: *mut c_void) -> isize = "fi_cancel" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn stx_getopt(
        _stx: fid_t,
        _level: c_int,
        _name: c_int,
        _value: *mut c_void,
        _len: *mut usize,
    ) -> c_int = "fi_getopt" {
        Result::<()>::Err(FI_ENOPROTOOPT)
    }
}

/// A shared transmit context has no operations and no options.
const STX_OPS: &fi_ops_ep = &fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(stx_cancel),
    getopt: Some(stx_getopt),
    setopt: Some(super::cm::no_setopt),
    tx_ctx: None,
    rx_ctx: None,
    rx_size_left: None,
    tx_size_left: None,
    export_xpu: None,
};

close! {
    fn stx_close<D: Domain>(_b: StxBody<D> as fid_stx) {
        Ok(())
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const STX_FI_OPS: &'static fi_ops = &ops(stx_close::<D>, no_bind, no_control);
}
