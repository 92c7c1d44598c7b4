//! `fid_ep`: life of an endpoint, its options and names. Data transfer is in `transfer`.

use super::av::{give_address, AvBody};
use super::domain as dom;
use super::info;
use super::layout::V1_10;
use super::object::*;
use super::queues::{CntrBody, CqBody};
use super::sep::Part;
use super::shared::StxBody;
use super::{atomic, collective, message, rma};
use crate::core::Result;
use crate::prov::efa::domain::Domain;
use crate::prov::efa::eq::Eq;
use crate::prov::efa::rdm::{self, option_kind, OptionValue, Poster};
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_ep`: an endpoint, an alias of one, or a shared receive context.
pub struct EpBody {
    pub domain: Arc<Domain>,
    pub who: Poster,
    /// Default flags of an alias; `None` for the endpoint itself.
    pub tx_flags: Option<u64>,
    pub rx_flags: Option<u64>,
    pub eq: OnceLock<Arc<Eq>>,
    /// Descriptor the progress thread watches.
    watched: OnceLock<i32>,
    /// With a scalable endpoint and its contexts: which it is.
    pub part: Option<Part>,
}

/// # Safety
/// `e` is NULL or an endpoint of ours.
#[inline]
pub unsafe fn ep<'a>(e: *mut fid_ep) -> Result<&'a EpBody> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_ep, EpBody>(e) }
}

impl EpBody {
    /// A handle of this domain.
    pub fn new(domain: &Arc<Domain>, who: Poster) -> EpBody {
        EpBody {
            domain: Arc::clone(domain),
            who,
            tx_flags: None,
            rx_flags: None,
            eq: OnceLock::new(),
            watched: OnceLock::new(),
            part: None,
        }
    }

    /// The endpoint's number; `FI_EOPNOTSUPP` for a shared receive context.
    pub fn id(&self) -> Result<u32> {
        match self.who {
            Poster::Ep(id) => Ok(id),
            Poster::Srx(_) => Err(FI_EOPNOTSUPP),
        }
    }
}

/// The C side of an endpoint of this class.
pub fn new_ep(class: usize, context: *mut c_void, fi_ops: &'static fi_ops) -> fid_ep {
    fid_ep {
        fid: new_fid(class, context, fi_ops),
        ops: table(&EP_OPS),
        cm: table(&CM_OPS),
        msg: table(&message::MSG_OPS),
        rma: table(&rma::RMA_OPS),
        tagged: table(&message::TAGGED_OPS),
        atomic: table(&atomic::ATOMIC_OPS),
        collective: table(&collective::OPS),
    }
}

pub unsafe extern "C" fn endpoint(
    d: *mut fid_domain,
    i: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_endpoint", || {
        if out.is_null() || i.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours, `i` an info of ours.
        let (domain, i) = unsafe { (dom::of(d)?, info::read(i, &V1_10).ok_or(FI_EINVAL)?) };
        let id = domain.open_ep(&i)?;
        let f = new_ep(FI_CLASS_EP, context, &EP_FI_OPS);
        let b = EpBody::new(domain, Poster::Ep(id));
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

pub unsafe extern "C" fn endpoint2(
    d: *mut fid_domain,
    i: *mut fi_info,
    out: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return if flags & FI_PEER_TRANSFER != 0 {
            -FI_ENOSYS
        } else {
            -FI_EBADFLAGS
        };
    }
    // SAFETY: as promised by our caller.
    unsafe { endpoint(d, i, out, context) }
}

unsafe extern "C" fn ep_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only endpoints have this table; it is taken when nothing speaks against closing
        // it.
        let (b, (closed, fd)) = unsafe {
            let b = ep(f.cast())?;
            let closed = rdm::close(&mut b.domain.lock(), b.id()?)?;
            (take::<fid_ep, EpBody>(f.cast())?, closed)
        };
        if let Some(fd) = b.watched.get().copied().or(fd) {
            b.domain.unwatch(fd);
        }
        // Outside the lock: what was sent last is waited for here.
        drop(closed);
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn ep_bind(f: *mut fid, with: *mut fid, flags: u64) -> c_int {
    guard_int("fi_ep_bind", || {
        if with.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: only endpoints have this table; `with` is an open object of its class.
        unsafe {
            let b = ep(f.cast())?;
            let same = |d: &Arc<Domain>| {
                if Arc::ptr_eq(d, &b.domain) {
                    return Ok(());
                }
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_ep_bind: the object belongs to another domain"
                );
                Err(FI_EINVAL)
            };
            match (*with).fclass {
                FI_CLASS_EQ => {
                    let eq = super::fabric::eq_of(with.cast())?;
                    b.eq.set(eq).map_err(|_| FI_EINVAL)
                }
                FI_CLASS_AV => {
                    let v = body::<fid_av, AvBody>(with.cast())?;
                    same(&v.domain)?;
                    b.domain
                        .lock()
                        .eps
                        .get_mut(b.id()?)
                        .ok_or(FI_EBADF)?
                        .bind_av(v.id)
                }
                FI_CLASS_CQ | FI_CLASS_CNTR => bind_queue(b, with, flags),
                FI_CLASS_SRX_CTX => {
                    let x = body::<fid_ep, EpBody>(with.cast())?;
                    same(&x.domain)?;
                    let Poster::Srx(srx) = x.who else {
                        return Err(FI_EINVAL);
                    };
                    let mut s = b.domain.lock();
                    s.eps.get_mut(b.id()?).ok_or(FI_EBADF)?.bind_srx(srx)
                }
                // Every endpoint sends through its own queue pair: sharing is in name only.
                FI_CLASS_STX_CTX => body::<fid_stx, StxBody>(with.cast()).map(|_| ()),
                class => {
                    crate::warn_log!(
                        FI_LOG_EP_CTRL,
                        "fi_ep_bind: class {class} cannot be bound to an endpoint"
                    );
                    Err(FI_EINVAL)
                }
            }
        }
    })
}

/// Binds a completion queue or a counter to an endpoint or to a context of one.
///
/// # Safety
/// `with` is NULL or an open object of its class.
pub unsafe fn bind_queue(b: &EpBody, with: *mut fid, flags: u64) -> Result<()> {
    let (mut cq, mut cntr) = (None, None);
    // SAFETY: as promised by the caller.
    let domain = unsafe {
        match with.as_ref().ok_or(FI_EINVAL)?.fclass {
            FI_CLASS_CQ => {
                let q = body::<fid_cq, CqBody>(with.cast())?;
                cq = Some(q.id);
                &q.domain
            }
            FI_CLASS_CNTR => {
                let c = body::<fid_cntr, CntrBody>(with.cast())?;
                cntr = Some(c.id);
                &c.domain
            }
            class => {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_ep_bind: class {class} cannot be bound to a context"
                );
                return Err(FI_EINVAL);
            }
        }
    };
    if !Arc::ptr_eq(domain, &b.domain) {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_ep_bind: the object belongs to another domain"
        );
        return Err(FI_EINVAL);
    }
    let mut s = b.domain.lock();
    let e = s.eps.get_mut(b.id()?).ok_or(FI_EBADF)?;
    match (cq, cntr) {
        (Some(id), _) => e.bind_cq(id, flags),
        (_, Some(id)) => e.bind_cntr(id, flags),
        _ => Err(FI_EINVAL),
    }
}

unsafe extern "C" fn ep_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only endpoints have this table.
        let b = unsafe { ep(f.cast())? };
        match command {
            FI_ENABLE => {
                let fd = rdm::enable(&mut b.domain.lock(), b.id()?)?;
                let _ = b.watched.set(fd);
                b.domain.watch(fd);
                Ok(())
            }
            // SAFETY: the argument of this command is a `struct fi_alias`.
            FI_ALIAS => unsafe { alias(b, arg.cast()) },
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                let mut s = b.domain.lock();
                let e = s.eps.get_mut(b.id()?).ok_or(FI_EBADF)?;
                // SAFETY: the argument of these commands is a place for flags.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(FI_EINVAL)?;
                if command == FI_GETOPSFLAG {
                    *flags = e.op_flags(*flags & FI_RECV != 0);
                    Ok(())
                } else {
                    e.set_op_flags(*flags)
                }
            }
            _ => Err(FI_ENOSYS),
        }
    })
}

static EP_FI_OPS: fi_ops = ops(ep_close, ep_bind, ep_control);

// ---- aliases ---------------------------------------------------------------------------------

/// fi_ep_alias(3): another handle of the same endpoint, with its own default flags for one
/// direction.
///
/// # Safety
/// `arg` is NULL or a valid `struct fi_alias`.
unsafe fn alias(b: &EpBody, arg: *mut fi_alias) -> Result<()> {
    // SAFETY: as promised by the caller.
    let a = unsafe { arg.as_ref() }.ok_or(FI_EINVAL)?;
    if a.fid.is_null() {
        return Err(FI_EINVAL);
    }
    let (tx, rx) = (a.flags & FI_TRANSMIT != 0, a.flags & FI_RECV != 0);
    if tx && rx {
        crate::warn_log!(
            FI_LOG_EP_CTRL,
            "fi_ep_alias: flags: wanted FI_TRANSMIT or FI_RECV, not both"
        );
        return Err(FI_EINVAL);
    }
    let flags = a.flags & !(FI_TRANSMIT | FI_RECV);
    let id = b.id()?;
    b.domain.lock().eps.get_mut(id).ok_or(FI_EBADF)?.aliases += 1;
    let mut copy = EpBody::new(&b.domain, b.who);
    copy.tx_flags = if rx { b.tx_flags } else { Some(flags) };
    copy.rx_flags = if rx { Some(flags) } else { b.rx_flags };
    let f = new_ep(FI_CLASS_EP, core::ptr::null_mut(), &ALIAS_FI_OPS);
    // SAFETY: the place for the handle was checked above.
    unsafe { *a.fid = hand_out(f, copy).cast() };
    Ok(())
}

unsafe extern "C" fn alias_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only aliases have this table.
        let b = unsafe { take::<fid_ep, EpBody>(f.cast())? };
        let id = b.id()?;
        if let Some(e) = b.domain.lock().eps.get_mut(id) {
            e.aliases -= 1;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn alias_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    // What an alias is bound to is what its endpoint is bound to.
    -FI_EINVAL
}

unsafe extern "C" fn alias_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command == FI_ENABLE {
        return -FI_EOPBADSTATE;
    }
    // SAFETY: as promised by our caller.
    unsafe { ep_control(f, command, arg) }
}

static ALIAS_FI_OPS: fi_ops = ops(alias_close, alias_bind, alias_control);

unsafe extern "C" fn cancel(f: fid_t, context: *mut c_void) -> isize {
    guard("fi_cancel", || {
        // SAFETY: only endpoints have this table.
        let b = unsafe { ep(f.cast())? };
        rdm::cancel(&mut b.domain.lock(), b.who, context as usize)?;
        Ok(0)
    })
}

unsafe extern "C" fn getopt(
    f: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: only endpoints have this table; `len` says how long `value` is.
        unsafe {
            let b = ep(f.cast())?;
            if level != FI_OPT_ENDPOINT {
                return Err(FI_ENOPROTOOPT);
            }
            if value.is_null() || len.is_null() {
                return Err(FI_EINVAL);
            }
            let v = b
                .domain
                .lock()
                .eps
                .get(b.id()?)
                .ok_or(FI_EBADF)?
                .getopt(name)?;
            let put = |bytes: &[u8]| {
                let room = core::mem::replace(&mut *len, bytes.len());
                if room < bytes.len() {
                    return Err(FI_ETOOSMALL);
                }
                core::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), bytes.len());
                Ok(())
            };
            match v {
                OptionValue::Size(n) => put(&n.to_ne_bytes()),
                OptionValue::Int(n) => put(&n.to_ne_bytes()),
                OptionValue::Bool(n) => put(&[u8::from(n)]),
            }
        }
    })
}

unsafe extern "C" fn setopt(
    f: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: only endpoints have this table; `value` has `len` bytes.
        unsafe {
            let b = ep(f.cast())?;
            if level != FI_OPT_ENDPOINT {
                return Err(FI_ENOPROTOOPT);
            }
            let Some(kind) = option_kind(name) else {
                crate::warn_log!(FI_LOG_EP_CTRL, "fi_setopt: unknown option {name}");
                return Err(FI_ENOPROTOOPT);
            };
            let want = match kind {
                OptionValue::Size(_) => size_of::<usize>(),
                OptionValue::Int(_) => size_of::<c_int>(),
                OptionValue::Bool(_) => 1,
            };
            if value.is_null() || len != want {
                crate::warn_log!(
                    FI_LOG_EP_CTRL,
                    "fi_setopt: option {name}: length {len}, wanted {want}"
                );
                return Err(FI_EINVAL);
            }
            let v = match kind {
                OptionValue::Size(_) => OptionValue::Size(value.cast::<usize>().read_unaligned()),
                OptionValue::Int(_) => OptionValue::Int(value.cast::<c_int>().read_unaligned()),
                OptionValue::Bool(_) => OptionValue::Bool(value.cast::<u8>().read() != 0),
            };
            let mut s = b.domain.lock();
            s.eps.get_mut(b.id()?).ok_or(FI_EBADF)?.setopt(name, v)
        }
    })
}

unsafe extern "C" fn size_left(_: *mut fid_ep) -> isize {
    -(FI_ENOSYS as isize)
}

static EP_OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(super::sep::tx_ctx),
    rx_ctx: Some(super::sep::rx_ctx),
    rx_size_left: Some(size_left),
    tx_size_left: Some(size_left),
    export_xpu: None,
};

unsafe extern "C" fn getname(f: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: only endpoints have this table; `len` says how long `addr` is.
        unsafe {
            let b = ep(f.cast())?;
            let len = len.as_mut().ok_or(FI_EINVAL)?;
            let raw = rdm::name(&b.domain.lock(), b.id()?)?;
            if give_address(&raw, addr, len) {
                Ok(())
            } else {
                Err(FI_ETOOSMALL)
            }
        }
    })
}

unsafe extern "C" fn setname(f: fid_t, addr: *mut c_void, len: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: only endpoints have this table; `addr` has `len` bytes.
        unsafe {
            let b = ep(f.cast())?;
            if addr.is_null() || len < crate::prov::efa::addr::LEN {
                return Err(FI_EINVAL);
            }
            let raw = addr
                .cast::<[u8; crate::prov::efa::addr::LEN]>()
                .read_unaligned();
            rdm::set_name(&mut b.domain.lock(), b.id()?, &raw)
        }
    })
}

unsafe extern "C" fn getpeer(_: *mut fid_ep, _: *mut c_void, _: *mut usize) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn connect(
    _: *mut fid_ep,
    _: *const c_void,
    _: *const c_void,
    _: usize,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn listen(_: *mut fid_pep) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn accept(_: *mut fid_ep, _: *const c_void, _: usize) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn reject(_: *mut fid_pep, _: fid_t, _: *const c_void, _: usize) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn shutdown(_: *mut fid_ep, _: u64) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn join(
    e: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_join", || {
        // SAFETY: only endpoints have this table; the rest is as promised by our caller.
        unsafe { collective::join(ep(e)?, addr, flags, out, context) }
    })
}

/// The table of endpoint operations, for a shared transmit context.
pub fn ep_ops() -> *mut fi_ops_ep {
    table(&EP_OPS)
}

static CM_OPS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: Some(listen),
    accept: Some(accept),
    reject: Some(reject),
    shutdown: Some(shutdown),
    join: Some(join),
};
