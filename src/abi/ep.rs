//! `fid_ep`: life of an endpoint, its options and names. Data transfer is in `transfer`.

use super::av::{give_address, AvBody};
use super::cm;
use super::collective;
use super::domain as dom;
use super::info;
use super::layout;
use super::object::*;
use super::queues::{CntrBody, CqBody};
use super::sep::Part;
use super::shared::StxBody;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_ep`: an endpoint, an alias of one, or a shared receive context.
pub(crate) struct EpBody<D: Domain> {
    pub domain: Arc<D>,
    pub who: Poster,
    /// Default flags of an alias; `None` for the endpoint itself.
    pub tx_flags: Option<u64>,
    pub rx_flags: Option<u64>,
    pub eq: OnceLock<Arc<Eq>>,
    /// With a scalable endpoint and its contexts: which it is.
    pub part: Option<Part>,
}

/// # Safety
/// `e` is NULL or an endpoint of ours.
#[inline]
pub(crate) unsafe fn ep<'a, D: Domain>(e: *mut fid_ep) -> Result<&'a EpBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_ep, EpBody<D>>(e) }
}

impl<D: Domain> EpBody<D> {
    /// The endpoint, if operations of calls without flags are its own: not those of an alias, or of
    /// a shared receive context, which has none.
    #[inline(always)]
    pub(crate) fn plain_tx(&self) -> Option<u32> {
        match (self.who, self.tx_flags) {
            (Poster::Ep(id), None) => Some(id),
            _ => None,
        }
    }

    /// A handle of this domain.
    pub(crate) fn new(domain: &Arc<D>, who: Poster) -> EpBody<D> {
        EpBody {
            domain: Arc::clone(domain),
            who,
            tx_flags: None,
            rx_flags: None,
            eq: OnceLock::new(),
            part: None,
        }
    }

    /// The endpoint's number; `FI_EOPNOTSUPP` for a shared receive context.
    pub(crate) fn id(&self) -> Result<u32> {
        match self.who {
            Poster::Ep(id) => Ok(id),
            Poster::Srx(_) => Err(FI_EOPNOTSUPP),
        }
    }
}

/// The C side of an endpoint of this class.
pub(crate) fn new_ep<D: Domain>(
    class: usize,
    context: *mut c_void,
    fi_ops: &'static fi_ops,
) -> fid_ep {
    fid_ep {
        fid: new_fid(class, context, fi_ops),
        ops: table(Tables::<D>::EP_OPS),
        cm: table(Tables::<D>::CM_OPS),
        msg: table(Tables::<D>::MSG_OPS),
        rma: table(Tables::<D>::RMA_OPS),
        tagged: table(Tables::<D>::TAGGED_OPS),
        atomic: table(Tables::<D>::ATOMIC_OPS),
        collective: table(Tables::<D>::COLLECTIVE_OPS),
    }
}

pub(crate) unsafe extern "C" fn endpoint<D: Domain>(
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
        let (domain, i) = unsafe {
            (
                dom::of::<D>(d)?,
                info::read(i, layout::callers()).ok_or(FI_EINVAL)?,
            )
        };
        // SAFETY: the handle of an info is NULL or an open object of this fabric.
        let id = unsafe { cm::open_ep(domain, &i)? };
        let f = new_ep::<D>(FI_CLASS_EP, context, Tables::<D>::EP_FI_OPS);
        let b = EpBody::new(domain, Poster::Ep(id));
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn endpoint2<D: Domain>(
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
    unsafe { endpoint::<D>(d, i, out, context) }
}

unsafe extern "C" fn ep_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only endpoints have this table; it is taken when nothing speaks against closing
        // it.
        unsafe {
            let b = ep::<D>(f.cast())?;
            b.domain.close_ep(b.id()?)?;
            take::<fid_ep, EpBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn ep_bind<D: Domain>(f: *mut fid, with: *mut fid, flags: u64) -> c_int {
    guard_int("fi_ep_bind", || {
        if with.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: only endpoints have this table; `with` is an open object of its class.
        unsafe {
            let b = ep::<D>(f.cast())?;
            let same = |d: &Arc<D>| {
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
                    if let Poster::Ep(id) = b.who {
                        let to = EventTarget {
                            eq: Arc::clone(&eq),
                            fid: f as usize,
                            context: (*f).context as usize,
                        };
                        b.domain.bind_eq(id, to)?;
                    }
                    b.eq.set(eq).map_err(|_| FI_EINVAL)
                }
                FI_CLASS_AV => {
                    let v = body::<fid_av, AvBody<D>>(with.cast())?;
                    same(&v.domain)?;
                    b.domain.bind_av(b.id()?, v.id)
                }
                FI_CLASS_CQ | FI_CLASS_CNTR => bind_queue(b, with, flags),
                FI_CLASS_SRX_CTX => {
                    let x = body::<fid_ep, EpBody<D>>(with.cast())?;
                    same(&x.domain)?;
                    let Poster::Srx(srx) = x.who else {
                        return Err(FI_EINVAL);
                    };
                    b.domain.bind_srx(b.id()?, srx)
                }
                // Every endpoint sends through its own queue pair: sharing is in name only.
                FI_CLASS_STX_CTX => body::<fid_stx, StxBody<D>>(with.cast()).map(|_| ()),
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
pub(crate) unsafe fn bind_queue<D: Domain>(
    b: &EpBody<D>,
    with: *mut fid,
    flags: u64,
) -> Result<()> {
    let (mut cq, mut cntr) = (None, None);
    // SAFETY: as promised by the caller.
    let domain = unsafe {
        match with.as_ref().ok_or(FI_EINVAL)?.fclass {
            FI_CLASS_CQ => {
                let q = body::<fid_cq, CqBody<D>>(with.cast())?;
                cq = Some(q.id);
                &q.domain
            }
            FI_CLASS_CNTR => {
                let c = body::<fid_cntr, CntrBody<D>>(with.cast())?;
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
    match (cq, cntr) {
        (Some(id), _) => b.domain.bind_cq(b.id()?, id, flags),
        (_, Some(id)) => b.domain.bind_cntr(b.id()?, id, flags),
        _ => Err(FI_EINVAL),
    }
}

unsafe extern "C" fn ep_control<D: Domain>(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only endpoints have this table.
        let b = unsafe { ep::<D>(f.cast())? };
        match command {
            FI_ENABLE => b.domain.enable_ep(b.id()?),
            // SAFETY: the argument of this command is a `struct fi_alias`.
            FI_ALIAS => unsafe { alias(b, arg.cast()) },
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the argument of these commands is a place for flags.
                let flags = unsafe { arg.cast::<u64>().as_mut() }.ok_or(FI_EINVAL)?;
                if command == FI_SETOPSFLAG {
                    return b.domain.set_op_flags(b.id()?, *flags);
                }
                *flags = b.domain.op_flags(b.id()?, *flags & FI_RECV != 0)?;
                Ok(())
            }
            _ => Err(FI_ENOSYS),
        }
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const EP_FI_OPS: &'static fi_ops =
        &ops(ep_close::<D>, ep_bind::<D>, ep_control::<D>);
}

// ---- aliases ---------------------------------------------------------------------------------

/// fi_ep_alias(3): another handle of the same endpoint, with its own default flags for one
/// direction.
///
/// # Safety
/// `arg` is NULL or a valid `struct fi_alias`.
unsafe fn alias<D: Domain>(b: &EpBody<D>, arg: *mut fi_alias) -> Result<()> {
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
    b.domain.alias_ep(b.id()?, true)?;
    let mut copy = EpBody::new(&b.domain, b.who);
    copy.tx_flags = if rx { b.tx_flags } else { Some(flags) };
    copy.rx_flags = if rx { Some(flags) } else { b.rx_flags };
    let f = new_ep::<D>(
        FI_CLASS_EP,
        core::ptr::null_mut(),
        Tables::<D>::ALIAS_FI_OPS,
    );
    // SAFETY: the place for the handle was checked above.
    unsafe { *a.fid = hand_out(f, copy).cast() };
    Ok(())
}

unsafe extern "C" fn alias_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only aliases have this table.
        let b = unsafe { take::<fid_ep, EpBody<D>>(f.cast())? };
        b.domain.alias_ep(b.id()?, false)
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn alias_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    // What an alias is bound to is what its endpoint is bound to.
    -FI_EINVAL
}

unsafe extern "C" fn alias_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    if command == FI_ENABLE {
        return -FI_EOPBADSTATE;
    }
    // SAFETY: as promised by our caller.
    unsafe { ep_control::<D>(f, command, arg) }
}

impl<D: Domain> Tables<D> {
    pub(crate) const ALIAS_FI_OPS: &'static fi_ops =
        &ops(alias_close::<D>, alias_bind, alias_control::<D>);
}

unsafe extern "C" fn cancel<D: Domain>(f: fid_t, context: *mut c_void) -> isize {
    guard("fi_cancel", || {
        // SAFETY: only endpoints have this table.
        let b = unsafe { ep::<D>(f.cast())? };
        b.domain.cancel(b.who, context as usize)?;
        Ok(0)
    })
}

unsafe extern "C" fn getopt<D: Domain>(
    f: fid_t,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_getopt", || {
        // SAFETY: only endpoints have this table; `len` says how long `value` is.
        unsafe {
            let b = ep::<D>(f.cast())?;
            if level != FI_OPT_ENDPOINT {
                return Err(FI_ENOPROTOOPT);
            }
            if value.is_null() || len.is_null() {
                return Err(FI_EINVAL);
            }
            let v = b.domain.get_option(b.id()?, name)?;
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

unsafe extern "C" fn setopt<D: Domain>(
    f: fid_t,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard_int("fi_setopt", || {
        // SAFETY: only endpoints have this table; `value` has `len` bytes.
        unsafe {
            let b = ep::<D>(f.cast())?;
            if level != FI_OPT_ENDPOINT {
                return Err(FI_ENOPROTOOPT);
            }
            let Some((option, kind)) = D::option_kind(name) else {
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
                    "fi_setopt: {option}: length {len}, accepted {want}"
                );
                return Err(FI_EINVAL);
            }
            let v = match kind {
                OptionValue::Size(_) => OptionValue::Size(value.cast::<usize>().read_unaligned()),
                OptionValue::Int(_) => OptionValue::Int(value.cast::<c_int>().read_unaligned()),
                OptionValue::Bool(_) => OptionValue::Bool(value.cast::<u8>().read() != 0),
            };
            b.domain.set_option(b.id()?, name, v)
        }
    })
}

unsafe extern "C" fn size_left(_: *mut fid_ep) -> isize {
    -(FI_ENOSYS as isize)
}

impl<D: Domain> Tables<D> {
    pub(crate) const EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
        size: size_of::<fi_ops_ep>(),
        cancel: Some(cancel::<D>),
        getopt: Some(getopt::<D>),
        setopt: Some(setopt::<D>),
        tx_ctx: Some(super::sep::tx_ctx::<D>),
        rx_ctx: Some(super::sep::rx_ctx::<D>),
        rx_size_left: Some(size_left),
        tx_size_left: Some(size_left),
        export_xpu: None,
    };
}

unsafe extern "C" fn getname<D: Domain>(f: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    guard_int("fi_getname", || {
        // SAFETY: only endpoints have this table; `len` says how long `addr` is.
        unsafe {
            let b = ep::<D>(f.cast())?;
            let raw = b.domain.name(b.id()?)?;
            give_name(&raw, addr, len)
        }
    })
}

/// Hands out an address (fi_getname(3)). `FI_ETOOSMALL`, with the length, where it does not fit.
///
/// # Safety
/// `len` is NULL or says how long `addr` is.
pub(crate) unsafe fn give_name(raw: &[u8], addr: *mut c_void, len: *mut usize) -> Result<()> {
    // SAFETY: as promised by the caller.
    let fits = unsafe { give_address(raw, addr, len.as_mut().ok_or(FI_EINVAL)?) };
    fits.then_some(()).ok_or(FI_ETOOSMALL)
}

/// Bytes that no address exceeds (fi_cm(3)).
pub(crate) const ADDR_MAX: usize = 256;

unsafe extern "C" fn setname<D: Domain>(f: fid_t, addr: *mut c_void, len: usize) -> c_int {
    guard_int("fi_setname", || {
        // SAFETY: only endpoints have this table; `addr` has `len` bytes.
        unsafe {
            let b = ep::<D>(f.cast())?;
            if addr.is_null() || len > ADDR_MAX {
                return Err(FI_EINVAL);
            }
            let raw = core::slice::from_raw_parts(addr.cast::<u8>(), len);
            b.domain.set_name(b.id()?, raw)
        }
    })
}

unsafe extern "C" fn join<D: Domain>(
    e: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_join", || {
        // SAFETY: only endpoints have this table; the rest is as promised by our caller.
        unsafe { collective::join(ep::<D>(e)?, addr, flags, out, context) }
    })
}

/// The table of endpoint operations, for a shared transmit context.
pub(crate) fn ep_ops<D: Domain>() -> *mut fi_ops_ep {
    table(Tables::<D>::EP_OPS)
}

impl<D: Domain> Tables<D> {
    pub(crate) const CM_OPS: &'static fi_ops_cm = &fi_ops_cm {
        size: size_of::<fi_ops_cm>(),
        setname: Some(setname::<D>),
        getname: Some(getname::<D>),
        getpeer: Some(cm::getpeer::<D>),
        connect: Some(cm::connect::<D>),
        listen: Some(cm::no_listen),
        accept: Some(cm::accept::<D>),
        reject: Some(cm::no_reject),
        shutdown: Some(cm::shutdown::<D>),
        join: Some(join::<D>),
    };
}
