//! `fid_av`: address vectors (fi_av(3)).

use super::entry::{entry, FromC, OutParam, OutParams, SizedOut, TextOut};
use super::handles::AnyObject;
use super::object::*;
use crate::core::log::explained;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::cell::Cell;
use core::ffi::{c_char, c_int, c_void};
use core::marker::PhantomData;
use core::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

entry! {
    pub(crate) fn av_open<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_av_attr as &mut fi_av_attr,
        out: *mut *mut fid_av as OutParam<*mut fid_av>,
        context: *mut c_void,
    ) -> c_int = "fi_av_open" {
        if attr.flags & (FI_EVENT | FI_SYMMETRIC | FI_AV_USER_ID) != 0 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: flags [ {} ]: wanted none",
                crate::core::tostr::av_flags(attr.flags)
            );
            return Err(FI_ENOSYS);
        }
        if attr.flags & !FI_READ != 0 {
            return Err(FI_EBADFLAGS);
        }
        // SAFETY: the name is NULL or a string.
        let name = unsafe { super::info::string(attr.name) };
        let reader = attr.flags & FI_READ != 0;
        if reader && name.is_none() {
            crate::warn_log!(FI_LOG_AV, "fi_av_open: flags FI_READ: wanted with a name");
            return Err(FI_EINVAL);
        }
        if !(0..=8).contains(&attr.rx_ctx_bits) {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: rx_ctx_bits: wanted {}, at most 8",
                attr.rx_ctx_bits
            );
            return Err(FI_EINVAL);
        }
        let type_ = match attr.r#type {
            FI_AV_UNSPEC => FI_AV_TABLE,
            FI_AV_TABLE | FI_AV_MAP => attr.r#type,
            t => {
                crate::warn_log!(
                    FI_LOG_AV,
                    "fi_av_open: type {t}: wanted FI_AV_TABLE or FI_AV_MAP"
                );
                return Err(FI_EINVAL);
            }
        };
        attr.r#type = type_;
        // Another process's entries are read at this place: the value of an entry is its index.
        let mut map: Box<[fi_addr_t]> = Box::default();
        let id = domain.open_av(&AvAttr {
            type_,
            count: attr.count,
            rx_ctx_bits: attr.rx_ctx_bits as u32,
            name: name.as_deref(),
            reader,
        })?;
        if name.is_some() {
            map = (0..attr.count.clamp(1024, 1 << 20) as u64).collect();
            attr.map_addr = map.as_mut_ptr().cast();
        }
        let f = fid_av {
            fid: new_fid(FI_CLASS_AV, context, Tables::<D>::AV_FI_OPS),
            ops: table(Tables::<D>::AV_OPS),
        };
        let b = AvBody {
            domain: Arc::clone(domain),
            id,
            _map: map,
        };
        out.put(hand_out(f, b));
        Ok(())
    }
}

/// Body of a `fid_av`.
pub(crate) struct AvBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    /// What `map_addr` of a named vector points to.
    _map: Box<[fi_addr_t]>,
}

close! {
    fn av_close<D: Domain>(b: AvBody<D> as fid_av) {
        b.domain.close_av(b.id)
    }
}

entry! {
    fn av_bind<D: Domain>(
        _av: *mut fid as &AvBody<D>,
        with: *mut fid as AnyObject<D>,
        _flags: u64,
    ) -> c_int = "fi_av_bind" {
        // An event queue reports asynchronous insertion; ours is never asynchronous.
        match with {
            AnyObject::Eq(_) => Result::<()>::Err(FI_ENOSYS),
            _ => Err(FI_EINVAL),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const AV_FI_OPS: &'static fi_ops = &ops(av_close::<D>, av_bind::<D>, no_control);
}

const INSERT_FLAGS: u64 = FI_MORE | FI_SYNC_ERR;

/// An address as the application passes it: its beginning says how long it is.
///
/// # Safety
/// The address is readable as far as it says.
unsafe fn raw_addr<'a, D: Domain>(p: *const u8) -> Result<&'a [u8]> {
    // SAFETY: as promised by the caller.
    unsafe {
        let len = D::addr_len(p.cast::<[u8; 2]>().read_unaligned())?;
        Ok(core::slice::from_raw_parts(p, len))
    }
}

/// One address that a call brings.
pub(crate) struct RawAddr<'a, D> {
    pub raw: &'a [u8],
    of: PhantomData<D>,
}

/// `FI_EINVAL` for NULL.
impl<D: Domain> FromC<*const c_void> for RawAddr<'_, D> {
    unsafe fn from_c(p: *const c_void) -> Result<Self> {
        if p.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: the caller brings a whole address.
        let raw = unsafe { raw_addr::<D>(p.cast())? };
        let of = PhantomData;
        Ok(RawAddr { raw, of })
    }
}

/// Addresses of one length that a call brings, and where their values go.
struct RawAddrs<D> {
    at: *const u8,
    values: OutParams<fi_addr_t>,
    of: PhantomData<D>,
}

impl<D: Domain> RawAddrs<D> {
    /// The `i`th; all are as long as it.
    fn get(&self, i: usize) -> Result<&[u8]> {
        // SAFETY: the caller brings as many whole addresses as it says, and `i` is below that.
        unsafe {
            let len = raw_addr::<D>(self.at)?.len();
            raw_addr::<D>(self.at.add(i * len))
        }
    }
}

/// `FI_EINVAL` for NULL with a count.
impl<D: Domain> FromC<(*const c_void, usize, *mut fi_addr_t)> for RawAddrs<D> {
    unsafe fn from_c((at, count, values): (*const c_void, usize, *mut fi_addr_t)) -> Result<Self> {
        if at.is_null() && count > 0 {
            return Err(FI_EINVAL);
        }
        Ok(RawAddrs {
            at: at.cast(),
            // SAFETY: the caller has NULL, or as many places as addresses.
            values: unsafe { FromC::from_c((values, count))? },
            of: PhantomData,
        })
    }
}

/// The flags of an insertion, and where its error codes go, if they are asked for.
struct InsertFlags {
    flags: u64,
    context: *mut c_void,
}

impl FromC<(u64, *mut c_void)> for InsertFlags {
    unsafe fn from_c((flags, context): (u64, *mut c_void)) -> Result<Self> {
        if flags & !INSERT_FLAGS != 0 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_insert: flags {flags:#x}: wanted FI_MORE or FI_SYNC_ERR"
            );
            // Not FI_EBADFLAGS where the flag exists: the caller can do without.
            return match flags & FI_AV_USER_ID {
                0 => Err(FI_EBADFLAGS),
                _ => Err(FI_ENOSYS),
            };
        }
        if flags & FI_SYNC_ERR != 0 && context.is_null() {
            return Err(FI_EINVAL);
        }
        Ok(InsertFlags { flags, context })
    }
}

impl InsertFlags {
    fn put_error(&self, i: usize, e: c_int) {
        if self.flags & FI_SYNC_ERR != 0 {
            // SAFETY: with FI_SYNC_ERR the context has an int for each address.
            unsafe { self.context.cast::<c_int>().add(i).write(e) }
        }
    }
}

/// Inserts the addresses that `raw` produces, one for each place of a value, and fills in values
/// and error codes; how many were inserted.
fn insert_all<D: Domain>(
    av: &AvBody<D>,
    values: &OutParams<fi_addr_t>,
    flags: &InsertFlags,
    raw: impl Fn(&D, usize) -> Result<Vec<u8>>,
) -> Result<usize> {
    let v = av.domain.av_info(av.id)?;
    if v.read_only {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: the vector was opened with FI_READ"
        );
        return Err(FI_EINVAL);
    }
    if values.is_null() && v.type_ == FI_AV_MAP && values.count() > 0 {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: fi_addr is NULL: FI_AV_MAP needs it"
        );
        return Err(FI_EINVAL);
    }
    let mut good = 0;
    for i in 0..values.count() {
        // Only lines about this address count.
        explained();
        let r = raw(&*av.domain, i).and_then(|a| av.domain.insert_addr(av.id, &a));
        if let Some(e) = r.err().filter(|_| !explained()) {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_insert: address {i}: {}",
                crate::core::errno::text(e)
            );
        }
        values.put(i, r.unwrap_or(FI_ADDR_NOTAVAIL));
        flags.put_error(i, r.err().unwrap_or(0));
        good += usize::from(r.is_ok());
    }
    Ok(good)
}

entry! {
    fn av_insert<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        (addrs: *const c_void, count: usize, values: *mut fi_addr_t) as addrs: RawAddrs<D>,
        (flags: u64, context: *mut c_void) as flags: InsertFlags,
    ) -> c_int = "fi_av_insert" {
        insert_all(av, &addrs.values, &flags, |_, i| Ok(addrs.get(i)?.to_vec()))
    }
}

/// Where the value of one address goes.
struct OneValue(OutParams<fi_addr_t>);

impl FromC<*mut fi_addr_t> for OneValue {
    unsafe fn from_c(p: *mut fi_addr_t) -> Result<Self> {
        // SAFETY: the caller has NULL or one place.
        unsafe { FromC::from_c((p, 1)) }.map(OneValue)
    }
}

entry! {
    fn av_insertsvc<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        node: *const c_char as String,
        service: *const c_char as Option<String>,
        value: *mut fi_addr_t as OneValue,
        (flags: u64, context: *mut c_void) as flags: InsertFlags,
    ) -> c_int = "fi_av_insertsvc" {
        insert_all(av, &value.0, &flags, |d, _| d.resolve(&node, service.as_deref()))
    }
}

/// The `i`-th node after `first`: an address counts up as a number.
fn counted_node(first: &str, i: usize) -> String {
    match first.parse::<IpAddr>() {
        Ok(IpAddr::V4(a)) => Ipv4Addr::from(u32::from(a).wrapping_add(i as u32)).to_string(),
        Ok(IpAddr::V6(a)) => Ipv6Addr::from(u128::from(a).wrapping_add(i as u128)).to_string(),
        Err(_) => counted(first, i),
    }
}

/// The `i`-th name after `first`: a trailing number counts up ("node07", "node08", ...).
fn counted(first: &str, i: usize) -> String {
    let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = first.get(stem.len()..).unwrap_or("");
    let number = digits.parse::<u64>().ok();
    match number.and_then(|n| n.checked_add(i as u64)) {
        Some(n) => format!("{stem}{n:0width$}", width = digits.len()),
        None => first.to_string(),
    }
}

/// Names that count up, and where the values of their addresses go.
struct Symmetric {
    node: String,
    service: String,
    services: usize,
    values: OutParams<fi_addr_t>,
}

type SymmetricArgs = (*const c_char, usize, *const c_char, usize, *mut fi_addr_t);

/// `FI_EINVAL` without a name, and for no addresses or more than can be counted.
impl FromC<SymmetricArgs> for Symmetric {
    unsafe fn from_c((node, nodes, service, services, values): SymmetricArgs) -> Result<Self> {
        let count = nodes.checked_mul(services).filter(|c| *c > 0);
        // SAFETY: both names are NULL or strings; the caller has NULL, or a place for each address.
        unsafe {
            Ok(Symmetric {
                node: FromC::from_c(node)?,
                service: FromC::from_c(service)?,
                services,
                values: FromC::from_c((values, count.ok_or(FI_EINVAL)?))?,
            })
        }
    }
}

entry! {
    fn av_insertsym<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        (
            node: *const c_char,
            nodes: usize,
            service: *const c_char,
            services: usize,
            values: *mut fi_addr_t
        ) as names: Symmetric,
        (flags: u64, context: *mut c_void) as flags: InsertFlags,
    ) -> c_int = "fi_av_insertsym" {
        insert_all(av, &names.values, &flags, |d, i| {
            let (node, service) = (i / names.services, i % names.services);
            d.resolve(&counted_node(&names.node, node), Some(&counted(&names.service, service)))
        })
    }
}

/// Values of addresses that a call brings.
struct Values<'a>(&'a [fi_addr_t]);

/// `FI_EINVAL` for NULL with a count.
impl FromC<(*mut fi_addr_t, usize)> for Values<'_> {
    unsafe fn from_c((at, count): (*mut fi_addr_t, usize)) -> Result<Self> {
        match (at.is_null(), count) {
            (_, 0) => Ok(Values(&[])),
            (true, _) => Err(FI_EINVAL),
            // SAFETY: the caller brings as many values as it says.
            (false, _) => Ok(Values(unsafe { core::slice::from_raw_parts(at, count) })),
        }
    }
}

entry! {
    fn av_remove<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        (values: *mut fi_addr_t, count: usize) as values: Values,
        flags: u64,
    ) -> c_int = "fi_av_remove" {
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        // Later entries first, as they were inserted. An entry that there is not (fi_av_insert(3)
        // gives FI_ADDR_NOTAVAIL for those it refused) does not keep the others.
        let mut result = Ok(());
        for a in values.0.iter().rev() {
            result = av.domain.remove_addr(av.id, *a).and(result);
        }
        result
    }
}

entry! {
    fn av_lookup<D: Domain>(
        av: *mut fid_av as &AvBody<D>,
        addr: fi_addr_t,
        (out: *mut c_void, len: *mut usize) as out: SizedOut,
    ) -> c_int = "fi_av_lookup" {
        out.give(&av.domain.lookup_addr(av.id, addr)?);
        Ok(())
    }
}

/// Room for the text of an address, and the length that is read from the caller and written back.
struct AddrText<'a> {
    out: TextOut,
    len: &'a Cell<usize>,
}

impl FromC<(*mut c_char, *mut usize)> for AddrText<'_> {
    unsafe fn from_c((buf, len): (*mut c_char, *mut usize)) -> Result<Self> {
        // SAFETY: the length is NULL or the caller's, and says how long the buffer is.
        unsafe {
            let len = len.as_mut().ok_or(FI_EINVAL)?;
            let out = FromC::from_c((buf, *len))?;
            let len = Cell::from_mut(len);
            Ok(AddrText { out, len })
        }
    }
}

entry! {
    fn av_straddr<D: Domain>(
        _av: *mut fid_av,
        addr: *const c_void as RawAddr<D>,
        (buf: *mut c_char, len: *mut usize) as text: AddrText,
    ) -> *const c_char = "fi_av_straddr" {
        let name = D::addr_text(addr.raw);
        text.len.set(name.len() + 1);
        text.out.put(&name);
        Ok(text.out.as_ptr())
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const AV_OPS: &'static fi_ops_av = &fi_ops_av {
        size: size_of::<fi_ops_av>(),
        insert: Some(av_insert::<D>),
        insertsvc: Some(av_insertsvc::<D>),
        insertsym: Some(av_insertsym::<D>),
        remove: Some(av_remove::<D>),
        lookup: Some(av_lookup::<D>),
        straddr: Some(av_straddr::<D>),
        av_set: Some(super::av_set::av_set::<D>),
        insert_auth_key: None,
        lookup_auth_key: None,
        set_user_id: None,
        lookup2: None,
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_fi_av_insertsym_count_up() {
        for (first, i, want) in [
            ("node7", 3, "node10"),
            ("127.0.0.254", 3, "127.0.1.1"),
            ("::9", 1, "::a"),
            ("fe80::ff", 1, "fe80::100"),
        ] {
            assert_eq!(super::counted_node(first, i), want);
        }
        assert_eq!(super::counted("node", 3), "node");
        assert_eq!(super::counted("5001", 2), "5003");
        assert_eq!(super::counted("node07", 0), "node07");
        assert_eq!(super::counted("node09", 1), "node10");
    }
}
