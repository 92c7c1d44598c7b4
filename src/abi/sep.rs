//! Scalable endpoints (fi_scalable_ep(3)): several transmit and receive contexts under one address.
//!
//! Each pair of contexts of one index is an endpoint of its own; their addresses follow one
//! another, so that the address of the first, which is the scalable endpoint's, gives the others
//! (fi_rx_addr(3)). An endpoint goes live when both its contexts are enabled; one whose
//! other context was never opened, with the whole.

use super::entry::{entry, ControlArg, OutParam};
use super::ep::{bind_queue, new_ep, EpBody};
use super::handles::AnyObject;
use super::object::*;
use crate::core::sync::{Mutex, MutexGuard, Unpoisoned};
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::sync::Arc;

/// What the contexts of a scalable endpoint share.
pub(crate) struct Sep {
    /// Endpoints, by index.
    eps: Vec<u32>,
    state: Mutex<Vec<Context>>,
}

/// The two contexts of an index.
#[derive(Clone, Copy, Default)]
struct Context {
    open: [bool; 2],
    enabled: [bool; 2],
    live: bool,
}

/// Which context of a scalable endpoint a handle is.
#[derive(Clone)]
pub(crate) struct Part {
    sep: Arc<Sep>,
    index: usize,
    /// 0: transmit, 1: receive.
    side: usize,
}

impl Sep {
    fn lock(&self) -> MutexGuard<'_, Vec<Context>> {
        self.state.lock().unpoisoned()
    }
}

entry! {
    pub(crate) fn scalable_ep<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        info: *mut fi_info as Info,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        context: *mut c_void,
    ) -> c_int = "fi_scalable_ep" {
        let eps = domain.open_contexts(&info)?;
        let first = eps.first().copied().ok_or(FI_EINVAL)?;
        let state = Mutex::new(vec![Context::default(); eps.len()]);
        let mut b = EpBody::new(domain, Poster::Ep(first));
        b.part = Some(Part {
            sep: Arc::new(Sep { eps, state }),
            index: 0,
            side: 0,
        });
        out.put(hand_out(new_ep::<D>(FI_CLASS_SEP, context, Tables::<D>::SEP_FI_OPS), b));
        Ok(())
    }
}

fn open_context<D: Domain>(
    b: &EpBody<D>,
    index: c_int,
    side: usize,
    context: *mut c_void,
) -> Result<*mut fid_ep> {
    let sep = &b.part.as_ref().ok_or(FI_ENOSYS)?.sep;
    let index = usize::try_from(index).map_err(|_| FI_EINVAL)?;
    let id = *sep.eps.get(index).ok_or(FI_EINVAL)?;
    match sep.lock().get_mut(index).and_then(|c| c.open.get_mut(side)) {
        Some(open) if !*open => *open = true,
        _ => return Err(FI_EBUSY),
    }
    let class = [FI_CLASS_TX_CTX, FI_CLASS_RX_CTX][side.min(1)];
    let mut body = EpBody::new(&b.domain, Poster::Ep(id));
    body.part = Some(Part {
        sep: Arc::clone(sep),
        index,
        side,
    });
    let f = new_ep::<D>(class, context, Tables::<D>::CONTEXT_FI_OPS);
    Ok(hand_out(f, body))
}

entry! {
    pub(crate) fn tx_ctx<D: Domain>(
        sep: *mut fid_ep as &EpBody<D>,
        index: c_int,
        _attr: *mut fi_tx_attr,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        context: *mut c_void,
    ) -> c_int = "fi_tx_context" {
        open_context(sep, index, 0, context).map(|ep| out.put(ep))
    }
}

entry! {
    pub(crate) fn rx_ctx<D: Domain>(
        sep: *mut fid_ep as &EpBody<D>,
        index: c_int,
        _attr: *mut fi_rx_attr,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        context: *mut c_void,
    ) -> c_int = "fi_rx_context" {
        open_context(sep, index, 1, context).map(|ep| out.put(ep))
    }
}

fn enable<D: Domain>(b: &EpBody<D>, sep: &Sep, index: usize) -> Result<()> {
    let mut state = sep.lock();
    let (Some(c), Some(id)) = (state.get_mut(index), sep.eps.get(index)) else {
        return Err(FI_EINVAL);
    };
    if c.live {
        return Ok(());
    }
    b.domain.enable_ep(*id)?;
    c.live = true;
    Ok(())
}

// ---- the whole -------------------------------------------------------------------------------

close! {
    fn sep_close<D: Domain>(b: EpBody<D> as fid_ep) {
        let sep = &b.part.as_ref().ok_or(FI_EBADF)?.sep;
        if sep.lock().iter().any(|c| c.open != [false; 2]) {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_close: this scalable endpoint still has contexts"
            );
            return Err(FI_EBUSY);
        }
        sep.eps.iter().try_for_each(|id| b.domain.close_ep(*id))
    }
}

entry! {
    fn sep_bind<D: Domain>(
        b: *mut fid as &EpBody<D>,
        with: *mut fid as AnyObject<D>,
        _flags: u64,
    ) -> c_int = "fi_scalable_ep_bind" {
        match with {
            AnyObject::Av(v) => {
                if !Arc::ptr_eq(&v.domain, &b.domain) {
                    return Err(FI_EINVAL);
                }
                let mut eps = b.part.iter().flat_map(|p| &p.sep.eps);
                eps.try_for_each(|id| b.domain.bind_av(*id, v.id))
            }
            AnyObject::Eq(_) => Ok(()),
            other => {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_scalable_ep_bind: class {}: wanted an address vector; queues and counters \
                     are bound to contexts",
                    other.class()
                );
                Err(FI_EINVAL)
            }
        }
    }
}

entry! {
    fn sep_control<D: Domain>(
        b: *mut fid as &EpBody<D>,
        command: c_int,
        _arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        let sep = &b.part.as_ref().ok_or(FI_EBADF)?.sep;
        match command {
            // Contexts may still follow: only those whose other half was never opened go live now.
            FI_ENABLE => {
                let alone = |c: &Context| (0..2).any(|i| c.enabled[i] && !c.open[1 - i]);
                let list: Vec<usize> = (0..)
                    .zip(sep.lock().iter())
                    .filter(|(_, c)| alone(c))
                    .map(|(i, _)| i)
                    .collect();
                list.into_iter().try_for_each(|i| enable(b, sep, i))
            }
            _ => Err(FI_ENOSYS),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const SEP_FI_OPS: &'static fi_ops =
        &ops(sep_close::<D>, sep_bind::<D>, sep_control::<D>);
}

// ---- contexts --------------------------------------------------------------------------------

close! {
    fn context_close<D: Domain>(b: EpBody<D> as fid_ep) {
        let p = b.part.as_ref().ok_or(FI_EBADF)?;
        let mut contexts = p.sep.lock();
        if let Some(open) = contexts.get_mut(p.index).and_then(|c| c.open.get_mut(p.side)) {
            *open = false;
        }
        drop(contexts);
        b.domain.close_context(b.id()?, p.side);
        Ok(())
    }
}

entry! {
    fn context_bind<D: Domain>(
        b: *mut fid as &EpBody<D>,
        with: *mut fid as AnyObject<D>,
        flags: u64,
    ) -> c_int = "fi_ep_bind" {
        bind_queue(b, &with, flags)
    }
}

entry! {
    fn context_control<D: Domain>(
        b: *mut fid as &EpBody<D>,
        command: c_int,
        _arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        let p = b.part.as_ref().ok_or(FI_EBADF)?;
        if command != FI_ENABLE {
            return Err(FI_ENOSYS);
        }
        let both = {
            let mut state = p.sep.lock();
            let c = state.get_mut(p.index).ok_or(FI_EINVAL)?;
            if let Some(on) = c.enabled.get_mut(p.side) {
                *on = true;
            }
            c.enabled == [true; 2]
        };
        match both {
            true => enable(b, &p.sep, p.index),
            false => Ok(()),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CONTEXT_FI_OPS: &'static fi_ops =
        &ops(context_close::<D>, context_bind::<D>, context_control::<D>);
}
