//! Connections (fi_cm(3)): `fid_pep`, requests to connect, and what endpoints do with them.
//!
//! A request reaches the application as FI_CONNREQ, with an `fi_info` whose `handle` is the
//! request; fi_endpoint(3) takes it from there, or fi_reject(3).

use super::ep::{ep, give_name, ADDR_MAX};
use super::fabric::{eq_of, FabricBody};
use super::info;
use super::layout;
use super::object::*;
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_pep`.
pub(crate) struct PepBody<D: Domain> {
    passive: D::Passive,
    eq: OnceLock<Arc<Eq>>,
    fabric: Arc<Fabric>,
}

/// Body of a request's `fid`.
struct RequestBody<D: Domain>(D::Request);

/// # Safety
/// `p` is NULL or a passive endpoint of ours.
unsafe fn pep<'a, D: Domain>(p: *mut c_void) -> Result<&'a PepBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_pep, PepBody<D>>(p.cast()) }
}

pub(crate) unsafe extern "C" fn passive_ep<D: Domain>(
    f: *mut fid_fabric,
    i: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_passive_ep", || {
        if out.is_null() || i.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `f` is a fabric of ours, `i` an info of ours.
        let (fabric, i) = unsafe {
            (
                body::<fid_fabric, FabricBody>(f)?,
                info::read(i, layout::callers()).ok_or(FI_EINVAL)?,
            )
        };
        let passive = D::open_passive(&i)?;
        fabric.hold();
        let b = PepBody::<D> {
            passive,
            eq: OnceLock::new(),
            fabric: Arc::clone(fabric),
        };
        let f = fid_pep {
            fid: new_fid(FI_CLASS_PEP, context, Tables::<D>::PEP_FI_OPS),
            ops: table(Tables::<D>::PEP_OPS),
            cm: table(Tables::<D>::PEP_CM_OPS),
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

unsafe extern "C" fn pep_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only passive endpoints have this table.
        let b = unsafe { take::<fid_pep, PepBody<D>>(f.cast())? };
        b.fabric.release();
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn pep_bind<D: Domain>(f: *mut fid, with: *mut fid, _: u64) -> c_int {
    guard_int("fi_pep_bind", || {
        // SAFETY: only passive endpoints have this table; `with` is NULL or an open object.
        unsafe {
            let b = pep::<D>(f.cast())?;
            let with = with.as_mut().ok_or(FI_EINVAL)?;
            if with.fclass != FI_CLASS_EQ {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_pep_bind: class {}: wanted an event queue",
                    with.fclass
                );
                return Err(FI_EINVAL);
            }
            let eq = eq_of((with as *mut fid).cast())?;
            b.eq.set(eq).map_err(|_| FI_EINVAL)
        }
    })
}

unsafe extern "C" fn pep_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only passive endpoints have this table; the argument of FI_BACKLOG is an int.
        unsafe {
            let b = pep::<D>(f.cast())?;
            match command {
                FI_BACKLOG => {
                    let n = arg.cast::<c_int>().as_ref().ok_or(FI_EINVAL)?;
                    D::set_backlog(&b.passive, *n)
                }
                _ => Err(FI_ENOSYS),
            }
        }
    })
}

unsafe extern "C" fn pep_getopt<D: Domain>(
    _: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        if level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE {
            return Err(FI_ENOPROTOOPT);
        }
        // SAFETY: `len` is NULL or says how long `value` is.
        unsafe {
            let len = len.as_mut().ok_or(FI_EINVAL)?;
            let room = core::mem::replace(len, size_of::<usize>());
            if value.is_null() || room < size_of::<usize>() {
                return Err(FI_ETOOSMALL);
            }
            let n = D::connection_data_size();
            value.cast::<usize>().write_unaligned(n);
        }
        Ok(())
    })
}

unsafe extern "C" fn pep_setopt(_: fid_t, _: c_int, _: c_int, _: *const c_void, _: usize) -> c_int {
    -FI_ENOPROTOOPT
}

unsafe extern "C" fn pep_getname<D: Domain>(f: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: only passive endpoints have this table; `len` says how long `addr` is.
        unsafe {
            let raw = D::passive_name(&pep::<D>(f.cast())?.passive)?;
            give_name(&raw, addr, len)
        }
    })
}

unsafe extern "C" fn pep_setname<D: Domain>(f: fid_t, addr: *mut c_void, len: usize) -> c_int {
    guard_int("fi_setname", || {
        if addr.is_null() || len > ADDR_MAX {
            return Err(FI_EINVAL);
        }
        // SAFETY: only passive endpoints have this table; `addr` has `len` bytes.
        unsafe {
            let raw = core::slice::from_raw_parts(addr.cast::<u8>(), len);
            D::set_passive_name(&pep::<D>(f.cast())?.passive, raw)
        }
    })
}

unsafe extern "C" fn listen<D: Domain>(p: *mut fid_pep) -> c_int {
    guard_int("fi_listen", || {
        // SAFETY: only passive endpoints have this table.
        let b = unsafe { pep::<D>(p.cast())? };
        let Some(eq) = b.eq.get().map(Arc::clone) else {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_listen: wanted an event queue (fi_pep_bind)"
            );
            return Err(FI_ENOEQ);
        };
        let pep = p as usize;
        let format = layout::callers();
        let on_request = move |r: ConnRequest<D::Request>| {
            let f = new_fid(FI_CLASS_CONNREQ, null_mut(), Tables::<D>::REQUEST_FI_OPS);
            let handle: *mut fid = hand_out(f, RequestBody::<D>(r.request));
            let i = Info {
                handle: handle as usize,
                ..r.info
            };
            let i = info::write(&i, format);
            eq.push_cm(FI_CONNREQ, pep, i as usize, &r.data);
        };
        D::listen(&b.passive, Box::new(on_request))
    })
}

unsafe extern "C" fn reject<D: Domain>(
    _: *mut fid_pep,
    handle: fid_t,
    data: *const c_void,
    len: usize,
) -> c_int {
    guard_int("fi_reject", || {
        // SAFETY: the handle is NULL or that of an info that FI_CONNREQ came with; `data` has
        // `len` bytes.
        unsafe {
            let data = user_data::<D>("fi_reject", data, len)?;
            let r = request::<D>(handle).ok_or(FI_EINVAL)?;
            D::reject(take::<fid, RequestBody<D>>(r)?.0, data)
        }
    })
}

unsafe extern "C" fn request_close<D: Domain>(f: *mut fid) -> c_int {
    // SAFETY: only requests have this table.
    let close = || unsafe { take::<fid, RequestBody<D>>(f).map(|_| ()) };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

/// Whether a handle is one of a class of this provider; it is closed otherwise, or somebody else's.
///
/// # Safety
/// `f` is NULL or an object of ours, open or closed a little while ago.
unsafe fn is(f: *mut fid, class: usize, ops: &'static fi_ops) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { f.as_ref() }.is_some_and(|f| f.fclass == class && core::ptr::eq(f.ops, ops))
}

/// The request that a handle is.
///
/// # Safety
/// As [`is`].
unsafe fn request<D: Domain>(handle: *mut fid) -> Option<*mut fid> {
    // SAFETY: as promised by the caller.
    let good = unsafe { is(handle, FI_CLASS_CONNREQ, Tables::<D>::REQUEST_FI_OPS) };
    if !good {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "info->handle: wanted a request of FI_CONNREQ that was neither taken nor rejected"
        );
    }
    good.then_some(handle)
}

/// Data for the peer of a connection.
///
/// # Safety
/// `data` is NULL or has `len` bytes.
unsafe fn user_data<'a, D: Domain>(
    call: &str,
    data: *const c_void,
    len: usize,
) -> Result<&'a [u8]> {
    let most = D::connection_data_size();
    if len > most {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "{call}: paramlen {len}: at most {most} (FI_OPT_CM_DATA_SIZE)"
        );
        return Err(FI_EINVAL);
    }
    if data.is_null() || len == 0 {
        return Ok(&[]);
    }
    // SAFETY: as promised by the caller.
    Ok(unsafe { core::slice::from_raw_parts(data.cast(), len) })
}

/// Opens an endpoint: for the request, or at the address of the passive endpoint, that the info's
/// handle names.
///
/// # Safety
/// `i.handle` is 0 or an object of ours, where the endpoint is a connected one.
pub(crate) unsafe fn open_ep<D: Domain>(domain: &Arc<D>, i: &Info) -> Result<u32> {
    let connected = i.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_MSG);
    let handle = i.handle as *mut fid;
    if handle.is_null() || !connected {
        return domain.open_ep(i);
    }
    // SAFETY: as promised by the caller.
    unsafe {
        if is(handle, FI_CLASS_PEP, Tables::<D>::PEP_FI_OPS) {
            return domain.open_ep_of_passive(i, &pep::<D>(handle.cast())?.passive);
        }
        let r = request::<D>(handle).ok_or(FI_EINVAL)?;
        domain.open_requested_ep(i, take::<fid, RequestBody<D>>(r)?.0)
    }
}

pub(crate) unsafe extern "C" fn connect<D: Domain>(
    e: *mut fid_ep,
    addr: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    guard_int("fi_connect", || {
        // SAFETY: only endpoints have this table; the address has the length that its beginning
        // says, `data` has `len` bytes.
        unsafe {
            let b = ep::<D>(e)?;
            let data = user_data::<D>("fi_connect", data, len)?;
            if addr.is_null() {
                return Err(FI_EINVAL);
            }
            let head = addr.cast::<[u8; 2]>().read();
            let to = core::slice::from_raw_parts(addr.cast::<u8>(), D::addr_len(head)?);
            b.domain.connect(b.id()?, to, data)
        }
    })
}

pub(crate) unsafe extern "C" fn accept<D: Domain>(
    e: *mut fid_ep,
    data: *const c_void,
    len: usize,
) -> c_int {
    guard_int("fi_accept", || {
        // SAFETY: only endpoints have this table; `data` has `len` bytes.
        unsafe {
            let b = ep::<D>(e)?;
            let data = user_data::<D>("fi_accept", data, len)?;
            b.domain.accept(b.id()?, data)
        }
    })
}

pub(crate) unsafe extern "C" fn shutdown<D: Domain>(e: *mut fid_ep, _: u64) -> c_int {
    guard_int("fi_shutdown", || {
        // SAFETY: only endpoints have this table.
        let b = unsafe { ep::<D>(e)? };
        b.domain.shutdown(b.id()?)
    })
}

pub(crate) unsafe extern "C" fn getpeer<D: Domain>(
    e: *mut fid_ep,
    addr: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_getpeer", || {
        // SAFETY: only endpoints have this table; `len` says how long `addr` is.
        unsafe {
            let b = ep::<D>(e)?;
            let raw = b.domain.peer_name(b.id()?)?;
            give_name(&raw, addr, len)
        }
    })
}

// ---- what only one of both does ----------------------------------------------------------------

pub(crate) unsafe extern "C" fn no_listen(_: *mut fid_pep) -> c_int {
    -FI_ENOSYS
}
pub(crate) unsafe extern "C" fn no_reject(
    _: *mut fid_pep,
    _: fid_t,
    _: *const c_void,
    _: usize,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn no_connect(
    _: *mut fid_ep,
    _: *const c_void,
    _: *const c_void,
    _: usize,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn no_accept(_: *mut fid_ep, _: *const c_void, _: usize) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn no_shutdown(_: *mut fid_ep, _: u64) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn no_getpeer(_: *mut fid_ep, _: *mut c_void, _: *mut usize) -> c_int {
    -FI_ENOSYS
}

impl<D: Domain> Tables<D> {
    const PEP_FI_OPS: &'static fi_ops = &ops(pep_close::<D>, pep_bind::<D>, pep_control::<D>);
    const REQUEST_FI_OPS: &'static fi_ops = &ops(request_close::<D>, no_bind, no_control);
    const PEP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: None,
        getopt: Some(pep_getopt::<D>),
        setopt: Some(pep_setopt),
        tx_ctx: None,
        rx_ctx: None,
        rx_size_left: None,
        tx_size_left: None,
        export_xpu: None,
    };
    const PEP_CM_OPS: &'static fi_ops_cm = &fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: Some(pep_setname::<D>),
        getname: Some(pep_getname::<D>),
        getpeer: Some(no_getpeer),
        connect: Some(no_connect),
        listen: Some(listen::<D>),
        accept: Some(no_accept),
        reject: Some(reject::<D>),
        shutdown: Some(no_shutdown),
        join: None,
    };
}
