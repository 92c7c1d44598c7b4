//! `fid_ep`: life of an endpoint, its options and names. Data transfer is in `transfer`.

use super::cm;
use super::collective::{self, JoinArgs};
use super::default_flags::{DefaultFlags, PlainEndpoint};
use super::domain::DomainBody;
use super::entry::{entry, ControlArg, FromC, OutParam, SizedOut};
use super::handles::AnyObject;
use super::object::*;
use super::sep::Part;
use crate::core::{Info, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, OnceLock};

/// Body of a `fid_ep`: an endpoint, an alias of one, or a shared receive context.
pub(crate) struct EpBody<D: Domain> {
    pub domain: Arc<D>,
    pub who: Poster,
    /// The endpoint, if operations of calls without flags are its own: not those of an alias, or of
    /// a shared receive context, or with FI_INJECT.
    pub plain_tx: PlainEndpoint,
    /// Default flags of an alias, or with FI_INJECT.
    pub tx_flags: DefaultFlags,
    pub rx_flags: DefaultFlags,
    /// `tx_attr->inject_size`.
    pub inject_size: usize,
    pub eq: OnceLock<Arc<Eq>>,
    /// With a scalable endpoint and its contexts: which it is.
    pub part: Option<Part>,
}

impl<D: Domain> EpBody<D> {
    /// A handle of this domain.
    pub(crate) fn new(domain: &Arc<D>, who: Poster) -> EpBody<D> {
        EpBody {
            domain: Arc::clone(domain),
            who,
            plain_tx: PlainEndpoint::new(match who {
                Poster::Ep(id) => Some(id),
                Poster::Srx(_) => None,
            }),
            tx_flags: DefaultFlags::new(None),
            rx_flags: DefaultFlags::new(None),
            inject_size: 0,
            eq: OnceLock::new(),
            part: None,
        }
    }

    /// The endpoint, for a `*msg` call that starts at once.
    #[inline(always)]
    pub(crate) fn untriggered(&self, flags: u64) -> Option<u32> {
        match self.who {
            Poster::Ep(id) if flags & FI_TRIGGER == 0 => Some(id),
            _ => None,
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

/// Opens an endpoint.
fn open<D: Domain>(b: &DomainBody<D>, info: &Info, context: *mut c_void) -> Result<*mut fid_ep> {
    b.provider_fits(info)?;
    let id = cm::open_ep(&b.domain, info)?;
    let f = new_ep::<D>(FI_CLASS_EP, context, Tables::<D>::EP_FI_OPS);
    let body = EpBody::new(&b.domain, Poster::Ep(id)).with_defaults(info);
    let ep = hand_out(f, body);
    if let Some(eq) = b.eq.get() {
        let to = EventTarget {
            eq: Arc::clone(eq),
            fid: ep as usize,
            context: context as usize,
        };
        b.domain.bind_eq(id, to)?;
    }
    Ok(ep)
}

entry! {
    pub(crate) fn endpoint<D: Domain>(
        domain: *mut fid_domain as &DomainBody<D>,
        info: *mut fi_info as Info,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        context: *mut c_void,
    ) -> c_int = "fi_endpoint" {
        open(domain, &info, context).map(|ep| out.put(ep))
    }
}

entry! {
    pub(crate) fn endpoint2<D: Domain>(
        domain: *mut fid_domain as &DomainBody<D>,
        info: *mut fi_info as Info,
        out: *mut *mut fid_ep as OutParam<*mut fid_ep>,
        flags: u64,
        context: *mut c_void,
    ) -> c_int = "fi_endpoint2" {
        match flags {
            0 => open(domain, &info, context).map(|ep| out.put(ep)),
            f if f & FI_PEER_TRANSFER != 0 => Err(FI_ENOSYS),
            _ => Err(FI_EBADFLAGS),
        }
    }
}

close! {
    fn ep_close<D: Domain>(b: EpBody<D> as fid_ep) {
        b.domain.close_ep(b.id()?)
    }
}

/// The endpoint that something is bound to, and the `fid` that its events name.
struct Binding<'a, D: Domain> {
    ep: &'a EpBody<D>,
    fid: &'a fid,
}

impl<D: Domain> FromC<*mut fid> for Binding<'_, D> {
    unsafe fn from_c(f: *mut fid) -> Result<Self> {
        // SAFETY: as promised by the caller; an object begins with its `fid`.
        unsafe {
            let ep = FromC::from_c(f)?;
            let fid = FromC::from_c(f)?;
            Ok(Binding { ep, fid })
        }
    }
}

/// `FI_EINVAL`, with a line in the log, for an object of another domain.
fn same_domain<D: Domain>(b: &EpBody<D>, domain: &Arc<D>) -> Result<()> {
    if Arc::ptr_eq(domain, &b.domain) {
        return Ok(());
    }
    crate::warn_log!(
        FI_LOG_EP_CTRL,
        "fi_ep_bind: the object belongs to another domain"
    );
    Err(FI_EINVAL)
}

entry! {
    fn ep_bind<D: Domain>(
        f: *mut fid as Binding<D>,
        with: *mut fid as AnyObject<D>,
        flags: u64,
    ) -> c_int = "fi_ep_bind" {
        let b = f.ep;
        match with {
            AnyObject::Eq(q) => {
                if let Poster::Ep(id) = b.who {
                    let to = EventTarget {
                        eq: Arc::clone(&q.eq),
                        fid: f.fid as *const fid as usize,
                        context: f.fid.context as usize,
                    };
                    b.domain.bind_eq(id, to)?;
                }
                b.eq.set(Arc::clone(&q.eq)).map_err(|_| FI_EINVAL)
            }
            AnyObject::Av(v) => {
                same_domain(b, &v.domain)?;
                b.domain.bind_av(b.id()?, v.id)
            }
            AnyObject::SharedRx(x) => {
                same_domain(b, &x.domain)?;
                let Poster::Srx(srx) = x.who else {
                    return Err(FI_EINVAL);
                };
                b.domain.bind_srx(b.id()?, srx)
            }
            // Every endpoint sends through its own queue pair: sharing is in name only.
            AnyObject::SharedTx => Ok(()),
            queue => bind_queue(b, &queue, flags),
        }
    }
}

/// Binds a completion queue or a counter to an endpoint or to a context of one.
pub(crate) fn bind_queue<D: Domain>(b: &EpBody<D>, with: &AnyObject<D>, flags: u64) -> Result<()> {
    match with {
        AnyObject::Cq(q) => {
            same_domain(b, &q.domain)?;
            b.domain.bind_cq(b.id()?, q.id, flags)
        }
        AnyObject::Cntr(c) => {
            same_domain(b, &c.domain)?;
            b.domain.bind_cntr(b.id()?, c.id, flags)
        }
        other => {
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_ep_bind: class {} cannot be bound here",
                other.class()
            );
            Err(FI_EINVAL)
        }
    }
}

/// fi_control(3) of an endpoint.
fn control<D: Domain>(b: &EpBody<D>, command: c_int, arg: &ControlArg) -> Result<()> {
    match command {
        FI_ENABLE => b.domain.enable_ep(b.id()?),
        FI_GET_FD => {
            let fd = b.domain.socket(b.id()?)?;
            // SAFETY: the argument of this command is a place for a descriptor.
            unsafe { arg.place::<c_int>()? }.put(fd);
            Ok(())
        }
        // SAFETY: the argument of this command is a `struct fi_alias`.
        FI_ALIAS => alias(b, unsafe { arg.get()? }),
        FI_GETOPSFLAG | FI_SETOPSFLAG => {
            // SAFETY: the argument of these commands is a place for flags.
            let flags: &mut u64 = unsafe { arg.get()? };
            if command == FI_SETOPSFLAG {
                return b.set_op_flags(*flags);
            }
            *flags = b.domain.op_flags(b.id()?, names_receives(*flags)?)?;
            Ok(())
        }
        _ => Err(FI_ENOSYS),
    }
}

entry! {
    fn ep_control<D: Domain>(
        b: *mut fid as &EpBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        control(b, command, &arg)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const EP_FI_OPS: &'static fi_ops =
        &ops(ep_close::<D>, ep_bind::<D>, ep_control::<D>);
}

// ---- aliases ---------------------------------------------------------------------------------

/// fi_ep_alias(3): another handle of the same endpoint, with its own default flags for one
/// direction.
fn alias<D: Domain>(b: &EpBody<D>, a: &fi_alias) -> Result<()> {
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
    let [tx, rx] = match rx {
        true => [b.tx_flags.get(), Some(flags)],
        false => [Some(flags), b.rx_flags.get()],
    };
    copy.inject_size = b.inject_size;
    copy.plain_tx = PlainEndpoint::new(copy.plain_tx.get().filter(|_| tx.is_none()));
    copy.tx_flags = DefaultFlags::new(tx);
    copy.rx_flags = DefaultFlags::new(rx);
    let f = new_ep::<D>(
        FI_CLASS_EP,
        core::ptr::null_mut(),
        Tables::<D>::ALIAS_FI_OPS,
    );
    // SAFETY: the struct of FI_ALIAS names a place for the handle, which was checked above.
    unsafe { *a.fid = hand_out(f, copy).cast() };
    Ok(())
}

close! {
    fn alias_close<D: Domain>(b: EpBody<D> as fid_ep) {
        b.domain.alias_ep(b.id()?, false)
    }
}

entry! {
    fn alias_bind(_alias: *mut fid, _with: *mut fid, _flags: u64) -> c_int = "fi_ep_bind" {
        // What an alias is bound to is what its endpoint is bound to.
        Result::<()>::Err(FI_EINVAL)
    }
}

entry! {
    fn alias_control<D: Domain>(
        b: *mut fid as &EpBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        match command {
            FI_ENABLE => Err(FI_EOPBADSTATE),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: the argument of these commands is a place for flags.
                let flags: &mut u64 = unsafe { arg.get()? };
                if command == FI_SETOPSFLAG {
                    return b.set_alias_flags(*flags);
                }
                let own = match names_receives(*flags)? {
                    false => b.tx_flags.get(),
                    true => b.rx_flags.get(),
                };
                match own {
                    Some(own) => *flags = own,
                    None => return control(b, command, &arg),
                }
                Ok(())
            }
            _ => control(b, command, &arg),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const ALIAS_FI_OPS: &'static fi_ops =
        &ops(alias_close::<D>, alias_bind, alias_control::<D>);
}

entry! {
    fn cancel<D: Domain>(b: fid_t as &EpBody<D>, context: *mut c_void) -> isize = "fi_cancel" {
        b.domain.cancel(b.who, context as usize)
    }
}

entry! {
    fn getopt<D: Domain>(
        b: fid_t as &EpBody<D>,
        level: c_int,
        name: c_int,
        (value: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_getopt" {
        if level != FI_OPT_ENDPOINT {
            return Err(FI_ENOPROTOOPT);
        }
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        match b.domain.get_option(b.id()?, name)? {
            OptionValue::Size(n) => out.give_whole(&n.to_ne_bytes()),
            OptionValue::Int(n) => out.give_whole(&n.to_ne_bytes()),
            OptionValue::Bool(n) => out.give_whole(&[u8::from(n)]),
        }
    }
}

entry! {
    fn setopt<D: Domain>(
        b: fid_t as &EpBody<D>,
        level: c_int,
        name: c_int,
        (value: *const c_void, len: usize) as value: Option<&[u8]>,
    ) -> c_int = "fi_setopt" {
        if level != FI_OPT_ENDPOINT {
            return Err(FI_ENOPROTOOPT);
        }
        let Some((option, kind)) = D::option_kind(name) else {
            // Clients ask for options of <rdma/fi_endpoint.h> to find out whether there are any.
            match name {
                0..=FI_OPT_FIREWALL_ADDR => crate::info_log!(
                    FI_LOG_EP_CTRL,
                    "fi_setopt: option {name} of <rdma/fi_endpoint.h>: not of this provider"
                ),
                _ => crate::warn_log!(FI_LOG_EP_CTRL, "fi_setopt: unknown option {name}"),
            }
            return Err(FI_ENOPROTOOPT);
        };
        let value = value.unwrap_or(&[]);
        let v = match kind {
            OptionValue::Size(_) => {
                let v = value.try_into().map(usize::from_ne_bytes);
                v.map(OptionValue::Size)
            },
            OptionValue::Int(_) => value.try_into().map(c_int::from_ne_bytes).map(OptionValue::Int),
            OptionValue::Bool(_) => value.try_into().map(|[v]: [u8; 1]| OptionValue::Bool(v != 0)),
        };
        let Ok(v) = v else {
            let wanted = match kind {
                OptionValue::Size(_) => size_of::<usize>(),
                OptionValue::Int(_) => size_of::<c_int>(),
                OptionValue::Bool(_) => 1,
            };
            crate::warn_log!(
                FI_LOG_EP_CTRL,
                "fi_setopt: {option}: length {}, accepted {wanted}",
                value.len()
            );
            return Err(FI_EINVAL);
        };
        b.domain.set_option(b.id()?, name, v)
    }
}

entry! {
    fn size_left(_ep: *mut fid_ep) -> isize = "fi_tx_size_left" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

impl<D: Domain> Tables<D> {
    const EP_OPS: &'static fi_ops_ep = &fi_ops_ep {
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

entry! {
    fn getname<D: Domain>(
        b: fid_t as &EpBody<D>,
        (addr: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_getname" {
        give_name(&b.domain.name(b.id()?)?, &out)
    }
}

/// Hands out an address (fi_getname(3)): as much as fits, and how long it is. `FI_ETOOSMALL` where
/// it does not fit.
pub(crate) fn give_name(raw: &[u8], out: &SizedOut) -> Result<()> {
    out.give(raw).then_some(()).ok_or(FI_ETOOSMALL)
}

/// Bytes that no address exceeds (fi_cm(3)).
pub(crate) const ADDR_MAX: usize = 256;

entry! {
    fn setname<D: Domain>(
        b: fid_t as &EpBody<D>,
        (addr: *mut c_void, len: usize) as addr: &[u8],
    ) -> c_int = "fi_setname" {
        if addr.len() > ADDR_MAX {
            return Err(FI_EINVAL);
        }
        b.domain.set_name(b.id()?, addr)
    }
}

/// The address of fi_join(3): of a group, when FI_COLLECTIVE says so.
struct JoinAddr<'a, D: Domain>(JoinArgs<'a, D>, u64);

/// `FI_ENOSYS` without FI_COLLECTIVE: there is no multicast.
impl<D: Domain> FromC<(*const c_void, u64)> for JoinAddr<'_, D> {
    unsafe fn from_c((addr, flags): (*const c_void, u64)) -> Result<Self> {
        if flags & FI_COLLECTIVE == 0 {
            return Err(FI_ENOSYS);
        }
        // SAFETY: with this flag the address is a `struct fi_collective_addr`.
        let args = unsafe { FromC::from_c(addr.cast::<fi_collective_addr>())? };
        Ok(JoinAddr(args, flags))
    }
}

entry! {
    fn join<D: Domain>(
        b: *mut fid_ep as &EpBody<D>,
        (addr: *const c_void, flags: u64) as to: JoinAddr<D>,
        out: *mut *mut fid_mc as OutParam<*mut fid_mc>,
        context: *mut c_void,
    ) -> c_int = "fi_join" {
        collective::join(b, &to.0, to.1, out, context)
    }
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
