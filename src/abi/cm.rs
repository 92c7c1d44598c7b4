//! Connections (fi_cm(3)): `fid_pep`, requests to connect, and what endpoints do with them.
//!
//! A request reaches the application as FI_CONNREQ, with an `fi_info` whose `handle` is the
//! request; fi_endpoint(3) takes it from there, or fi_reject(3).

use super::av::RawAddr;
use super::entry::{entry, ControlArg, FromC, OutParam, SizedOut};
use super::ep::{give_name, EpBody, ADDR_MAX};
use super::fabric::FabricBody;
use super::handles::AnyObject;
use super::info;
use super::layout::{self, Layout};
use super::object::*;
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_pep`.
pub(crate) struct PepBody<D: Domain> {
    passive: D::Passive,
    eq: OnceLock<Arc<Eq>>,
    /// Its `fid` and the layout of its infos, once it listens.
    listens: OnceLock<(usize, &'static Layout)>,
    fabric: Arc<Fabric>,
}

/// Body of a request's `fid`.
struct RequestBody<D: Domain>(D::Request);

entry! {
    pub(crate) fn passive_ep<D: Domain>(
        fabric: *mut fid_fabric as &FabricBody,
        info: *mut fi_info as Info,
        out: *mut *mut fid_pep as OutParam<*mut fid_pep>,
        context: *mut c_void,
    ) -> c_int = "fi_passive_ep" {
        let passive = D::open_passive(&info)?;
        fabric.hold();
        let b = PepBody::<D> {
            passive,
            eq: OnceLock::new(),
            listens: OnceLock::new(),
            fabric: Arc::clone(fabric),
        };
        let f = fid_pep {
            fid: new_fid(FI_CLASS_PEP, context, Tables::<D>::PEP_FI_OPS),
            ops: table(Tables::<D>::PEP_OPS),
            cm: table(Tables::<D>::PEP_CM_OPS),
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

close! {
    fn pep_close<D: Domain>(b: PepBody<D> as fid_pep) {
        D::stop_listening(&b.passive);
        if let (Some(eq), Some((fid, format))) = (b.eq.get(), b.listens.get()) {
            for e in eq.forget(*fid) {
                drop_request::<D>(&e, format);
            }
        }
        b.fabric.release();
        Ok(())
    }
}

/// Drops the request of an FI_CONNREQ that the application has not read, and its info.
fn drop_request<D: Domain>(e: &EqEvent, format: &Layout) {
    let info = e
        .bytes
        .get(size_of::<usize>()..)
        .and_then(|b| b.first_chunk());
    let info = info.map_or(0, |b| usize::from_ne_bytes(*b)) as *mut fi_info;
    // SAFETY: the info was written for this event in this format, its handle is the request, and
    // the application has seen neither.
    unsafe {
        if let Some(i) = info::read(info, format) {
            drop(RequestHandle::<D>::from_c(i.handle as fid_t).and_then(RequestHandle::take));
        }
        info::free_list(info, format);
    }
}

entry! {
    fn pep_bind<D: Domain>(
        b: *mut fid as &PepBody<D>,
        with: *mut fid as AnyObject<D>,
        _flags: u64,
    ) -> c_int = "fi_pep_bind" {
        let AnyObject::Eq(q) = with else {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_pep_bind: class {}: wanted an event queue",
                with.class()
            );
            return Err(FI_EINVAL);
        };
        b.eq.set(Arc::clone(&q.eq)).map_err(|_| FI_EINVAL)
    }
}

entry! {
    fn pep_control<D: Domain>(
        b: *mut fid as &PepBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        match command {
            // SAFETY: the argument of FI_BACKLOG is an int.
            FI_BACKLOG => D::set_backlog(&b.passive, *unsafe { arg.get::<c_int>()? }),
            _ => Err(FI_ENOSYS),
        }
    }
}

entry! {
    fn pep_getopt<D: Domain>(
        _pep: fid_t,
        level: c_int,
        name: c_int,
        (value: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_getopt" {
        if level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE {
            return Err(FI_ENOPROTOOPT);
        }
        out.give_whole(&D::connection_data_size().to_ne_bytes())
    }
}

entry! {
    fn pep_getname<D: Domain>(
        b: fid_t as &PepBody<D>,
        (addr: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_getname" {
        give_name(&D::passive_name(&b.passive)?, &out)
    }
}

entry! {
    fn pep_setname<D: Domain>(
        b: fid_t as &PepBody<D>,
        (addr: *mut c_void, len: usize) as addr: &[u8],
    ) -> c_int = "fi_setname" {
        if addr.len() > ADDR_MAX {
            return Err(FI_EINVAL);
        }
        D::set_passive_name(&b.passive, addr)
    }
}

/// The passive endpoint that shall listen, and the `fid` that its requests name.
struct ListeningPep<'a, D: Domain> {
    pep: &'a PepBody<D>,
    fid: usize,
}

impl<D: Domain> FromC<*mut fid_pep> for ListeningPep<'_, D> {
    unsafe fn from_c(p: *mut fid_pep) -> Result<Self> {
        // SAFETY: as promised by the caller.
        let pep = unsafe { FromC::from_c(p)? };
        let fid = p as usize;
        Ok(ListeningPep { pep, fid })
    }
}

entry! {
    fn listen<D: Domain>(p: *mut fid_pep as ListeningPep<D>) -> c_int = "fi_listen" {
        let Some(eq) = p.pep.eq.get().map(Arc::clone) else {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_listen: wanted an event queue (fi_pep_bind)"
            );
            return Err(FI_ENOEQ);
        };
        let (pep, format) = (p.fid, layout::callers());
        let _ = p.pep.listens.set((pep, format));
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
        D::listen(&p.pep.passive, Box::new(on_request))
    }
}

/// The handle of a request to connect.
struct RequestHandle<D: Domain>(fid_t, PhantomData<D>);

impl<D: Domain> RequestHandle<D> {
    /// Takes the request from its handle. `FI_EINVAL` if another thread has taken it.
    fn take(self) -> Result<D::Request> {
        // SAFETY: as promised to `from_c`.
        Ok(unsafe { take::<fid, RequestBody<D>>(self.0)? }.0)
    }
}

/// `FI_EINVAL` for one that was taken or rejected, or for another handle.
impl<D: Domain> FromC<fid_t> for RequestHandle<D> {
    unsafe fn from_c(handle: fid_t) -> Result<Self> {
        // SAFETY: the handle is NULL, or that of an info that FI_CONNREQ came with.
        unsafe {
            let class = handle.as_ref().map(|f| f.fclass);
            let request = class == Some(FI_CLASS_CONNREQ)
                && body_of_type::<fid, RequestBody<D>>(handle).is_ok();
            if !request {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "info->handle: wanted a request of FI_CONNREQ that was neither taken nor \
                     rejected"
                );
                return Err(FI_EINVAL);
            }
            Ok(RequestHandle(handle, PhantomData))
        }
    }
}

entry! {
    fn reject<D: Domain>(
        _pep: *mut fid_pep,
        handle: fid_t as RequestHandle<D>,
        (data: *const c_void, len: usize) as data: ConnData<D>,
    ) -> c_int = "fi_reject" {
        D::reject(handle.take()?, data.0)
    }
}

close! {
    fn request_close<D: Domain>(_b: RequestBody<D> as fid) {
        Ok(())
    }
}

/// Data for the peer of a connection.
struct ConnData<'a, D>(&'a [u8], PhantomData<D>);

/// `FI_EINVAL` for more than FI_OPT_CM_DATA_SIZE.
impl<D: Domain> FromC<(*const c_void, usize)> for ConnData<'_, D> {
    unsafe fn from_c((data, len): (*const c_void, usize)) -> Result<Self> {
        let most = D::connection_data_size();
        if len > most {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "paramlen {len}: at most {most} (FI_OPT_CM_DATA_SIZE)"
            );
            return Err(FI_EINVAL);
        }
        // SAFETY: as promised by the caller.
        let data: Option<&[u8]> = unsafe { FromC::from_c((data, len))? };
        Ok(ConnData(data.unwrap_or(&[]), PhantomData))
    }
}

/// Opens an endpoint: for the request, or at the address of the passive endpoint, that the info's
/// handle names.
pub(crate) fn open_ep<D: Domain>(domain: &Arc<D>, i: &Info) -> Result<u32> {
    let connected = i.ep.as_ref().is_some_and(|e| e.type_ == FI_EP_MSG);
    let handle = i.handle as *mut fid;
    if handle.is_null() || !connected {
        return domain.open_ep(i);
    }
    // SAFETY: the handle of an info is NULL or an object of ours, perhaps closed a little while
    // ago.
    unsafe {
        match FromC::from_c(handle) {
            Ok(AnyObject::<D>::Passive(p)) => domain.open_ep_of_passive(i, &p.passive),
            _ => domain.open_requested_ep(i, RequestHandle::<D>::from_c(handle)?.take()?),
        }
    }
}

entry! {
    pub(crate) fn connect<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        addr: *const c_void as RawAddr<D>,
        (data: *const c_void, len: usize) as data: ConnData<D>,
    ) -> c_int = "fi_connect" {
        b.domain.connect(b.id()?, addr.raw, data.0)
    }
}

entry! {
    pub(crate) fn accept<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        (data: *const c_void, len: usize) as data: ConnData<D>,
    ) -> c_int = "fi_accept" {
        b.domain.accept(b.id()?, data.0)
    }
}

entry! {
    pub(crate) fn shutdown<D: Domain>(b: *mut fid_ep as &EpBody<D>, _flags: u64) -> c_int
        = "fi_shutdown"
    {
        b.domain.shutdown(b.id()?)
    }
}

entry! {
    pub(crate) fn getpeer<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        (addr: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_getpeer" {
        give_name(&b.domain.peer_name(b.id()?)?, &out)
    }
}

// ---- what only one of both does ----------------------------------------------------------------

entry! {
    pub(crate) fn no_listen(_pep: *mut fid_pep) -> c_int = "fi_listen" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    pub(crate) fn no_reject(
        _pep: *mut fid_pep,
        _handle: fid_t,
        _data: *const c_void,
        _len: usize,
    ) -> c_int = "fi_reject" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    pub(crate) fn no_setopt(
        _ep: fid_t,
        _level: c_int,
        _name: c_int,
        _value: *const c_void,
        _len: usize,
    ) -> c_int = "fi_setopt" {
        Result::<()>::Err(FI_ENOPROTOOPT)
    }
}

entry! {
    fn no_connect(
        _ep: *mut fid_ep,
        _addr: *const c_void,
        _data: *const c_void,
        _len: usize,
    ) -> c_int = "fi_connect" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_accept(_ep: *mut fid_ep, _data: *const c_void, _len: usize) -> c_int = "fi_accept" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_shutdown(_ep: *mut fid_ep, _flags: u64) -> c_int = "fi_shutdown" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_getpeer(_ep: *mut fid_ep, _addr: *mut c_void, _len: *mut usize) -> c_int
        = "fi_getpeer"
    {
        Result::<()>::Err(FI_ENOSYS)
    }
}

impl<D: Domain> Tables<D> {
    const PEP_FI_OPS: &'static fi_ops = &ops(pep_close::<D>, pep_bind::<D>, pep_control::<D>);
    const REQUEST_FI_OPS: &'static fi_ops = &ops(request_close::<D>, no_bind, no_control);
    const PEP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: None,
        getopt: Some(pep_getopt::<D>),
        setopt: Some(no_setopt),
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
