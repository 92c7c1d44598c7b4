//! Scalable endpoints (fi_scalable_ep(3)): several transmit and receive contexts under one address.
//!
//! Each pair of contexts of one index is an endpoint of its own; their addresses follow one
//! another, so that the address of the first, which is the scalable endpoint's, gives the others
//! (fi_rx_addr(3)). An endpoint goes live when both its contexts are enabled; one whose
//! other context was never opened, with the whole.

use super::av::AvBody;
use super::domain::of;
use super::ep::{bind_queue, ep, new_ep, EpBody};
use super::info;
use super::layout;
use super::object::*;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

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
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Context>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

pub(crate) unsafe extern "C" fn scalable_ep<D: Domain>(
    d: *mut fid_domain,
    i: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_scalable_ep", || {
        if out.is_null() || i.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours, `i` an info of ours.
        let (domain, i) = unsafe {
            (
                of::<D>(d)?,
                info::read(i, layout::callers()).ok_or(FI_EINVAL)?,
            )
        };
        let eps = domain.open_contexts(&i)?;
        let first = eps.first().copied().ok_or(FI_EINVAL)?;
        let state = Mutex::new(vec![Context::default(); eps.len()]);
        let mut b = EpBody::new(domain, Poster::Ep(first));
        b.part = Some(Part {
            sep: Arc::new(Sep { eps, state }),
            index: 0,
            side: 0,
        });
        let f = new_ep::<D>(FI_CLASS_SEP, context, Tables::<D>::SEP_FI_OPS);
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

/// # Safety
/// `e` is NULL or an endpoint of ours, `out` NULL or a place.
unsafe fn open_context<D: Domain>(
    e: *mut fid_ep,
    index: c_int,
    side: usize,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep::<D>(e)? };
    let sep = &b.part.as_ref().ok_or(FI_ENOSYS)?.sep;
    let index = usize::try_from(index).map_err(|_| FI_EINVAL)?;
    let id = *sep.eps.get(index).ok_or(FI_EINVAL)?;
    if out.is_null() {
        return Err(FI_EINVAL);
    }
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
    // SAFETY: `out` was checked.
    unsafe {
        *out = hand_out(
            new_ep::<D>(class, context, Tables::<D>::CONTEXT_FI_OPS),
            body,
        )
    };
    Ok(())
}

pub(crate) unsafe extern "C" fn tx_ctx<D: Domain>(
    e: *mut fid_ep,
    index: c_int,
    _: *mut fi_tx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as promised by our caller.
    guard_int("fi_tx_context", || unsafe {
        open_context::<D>(e, index, 0, out, context)
    })
}

pub(crate) unsafe extern "C" fn rx_ctx<D: Domain>(
    e: *mut fid_ep,
    index: c_int,
    _: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as promised by our caller.
    guard_int("fi_rx_context", || unsafe {
        open_context::<D>(e, index, 1, out, context)
    })
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

unsafe extern "C" fn sep_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only scalable endpoints have this table.
        let b = unsafe {
            let b = ep::<D>(f.cast())?;
            let sep = &b.part.as_ref().ok_or(FI_EBADF)?.sep;
            if sep.lock().iter().any(|c| c.open != [false; 2]) {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_close: this scalable endpoint still has contexts"
                );
                return Err(FI_EBUSY);
            }
            take::<fid_ep, EpBody<D>>(f.cast())?
        };
        for id in b.part.iter().flat_map(|p| &p.sep.eps) {
            b.domain.close_ep(*id)?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn sep_bind<D: Domain>(f: *mut fid, with: *mut fid, _: u64) -> c_int {
    guard_int("fi_scalable_ep_bind", || {
        // SAFETY: only scalable endpoints have this table; `with` is NULL or an open object.
        unsafe {
            let b = ep::<D>(f.cast())?;
            match with.as_ref().ok_or(FI_EINVAL)?.fclass {
                FI_CLASS_AV => {
                    let v = body::<fid_av, AvBody<D>>(with.cast())?;
                    if !Arc::ptr_eq(&v.domain, &b.domain) {
                        return Err(FI_EINVAL);
                    }
                    for id in b.part.iter().flat_map(|p| &p.sep.eps) {
                        b.domain.bind_av(*id, v.id)?;
                    }
                    Ok(())
                }
                FI_CLASS_EQ => Ok(()),
                class => {
                    crate::warn_log!(
                        FI_LOG_EP_CTRL,
                        "fi_scalable_ep_bind: class {class}: wanted an address vector; queues and \
                         counters are bound to contexts"
                    );
                    Err(FI_EINVAL)
                }
            }
        }
    })
}

unsafe extern "C" fn sep_control<D: Domain>(f: *mut fid, command: c_int, _: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only scalable endpoints have this table.
        let b = unsafe { ep::<D>(f.cast())? };
        let sep = Arc::clone(&b.part.as_ref().ok_or(FI_EBADF)?.sep);
        match command {
            // Contexts may still follow: only those whose other half was never opened go live now.
            FI_ENABLE => {
                let alone = |c: &Context| (0..2).any(|i| c.enabled[i] && !c.open[1 - i]);
                let list: Vec<usize> = (0..)
                    .zip(sep.lock().iter())
                    .filter(|(_, c)| alone(c))
                    .map(|(i, _)| i)
                    .collect();
                list.into_iter().try_for_each(|i| enable(b, &sep, i))
            }
            _ => Err(FI_ENOSYS),
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const SEP_FI_OPS: &'static fi_ops =
        &ops(sep_close::<D>, sep_bind::<D>, sep_control::<D>);
}

// ---- contexts --------------------------------------------------------------------------------

unsafe extern "C" fn context_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only contexts have this table.
        let b = unsafe { take::<fid_ep, EpBody<D>>(f.cast())? };
        let p = b.part.as_ref().ok_or(FI_EBADF)?;
        if let Some(open) = p
            .sep
            .lock()
            .get_mut(p.index)
            .and_then(|c| c.open.get_mut(p.side))
        {
            *open = false;
        }
        b.domain.close_context(b.id()?, p.side);
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn context_bind<D: Domain>(f: *mut fid, with: *mut fid, flags: u64) -> c_int {
    guard_int("fi_ep_bind", || {
        // SAFETY: only contexts have this table; `with` is NULL or an open object.
        unsafe { bind_queue(ep::<D>(f.cast())?, with, flags) }
    })
}

unsafe extern "C" fn context_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    _: *mut c_void,
) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only contexts have this table.
        let b = unsafe { ep::<D>(f.cast())? };
        let p = b.part.clone().ok_or(FI_EBADF)?;
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
        if both {
            enable(b, &p.sep, p.index)
        } else {
            Ok(())
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const CONTEXT_FI_OPS: &'static fi_ops =
        &ops(context_close::<D>, context_bind::<D>, context_control::<D>);
}
