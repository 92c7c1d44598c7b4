//! `fid_av`: address vectors (fi_av(3)).

use super::domain::of;
use super::object::*;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

pub(crate) unsafe extern "C" fn av_open<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_av_open", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours; the attributes are valid or NULL.
        let (domain, attr) = unsafe { (of::<D>(d)?, attr.as_mut()) };
        let attr = attr.ok_or(FI_EINVAL)?;
        if attr.flags & (FI_EVENT | FI_SYMMETRIC) != 0 {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: flags [ {} ]: wanted none",
                crate::core::tostr::av_flags(attr.flags)
            );
            return Err(FI_ENOSYS);
        }
        if attr.flags & !(FI_EVENT | FI_READ | FI_SYMMETRIC | FI_AV_USER_ID) != 0 {
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
        // SAFETY: `out` is a place for a pointer.
        unsafe {
            *out = hand_out(
                f,
                AvBody {
                    domain: Arc::clone(domain),
                    id,
                    _map: map,
                },
            )
        };
        Ok(())
    })
}

/// Body of a `fid_av`.
pub(crate) struct AvBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    /// What `map_addr` of a named vector points to.
    _map: Box<[fi_addr_t]>,
}

/// # Safety
/// `v` is NULL or an address vector of ours.
unsafe fn av<'a, D: Domain>(v: *mut fid_av) -> Result<&'a AvBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_av, AvBody<D>>(v) }
}

unsafe extern "C" fn av_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only address vectors have this table.
        unsafe {
            let b = av::<D>(f.cast())?;
            b.domain.close_av(b.id)?;
            take::<fid_av, AvBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn av_bind<D: Domain>(f: *mut fid, b: *mut fid, _: u64) -> c_int {
    guard_int("fi_av_bind", || {
        // SAFETY: only address vectors have this table; `b` is NULL or an open object.
        unsafe {
            av::<D>(f.cast())?;
            if b.is_null() || (*b).fclass != FI_CLASS_EQ {
                return Err(FI_EINVAL);
            }
        }
        // An event queue reports asynchronous insertion; ours is never asynchronous.
        Err(FI_ENOSYS)
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const AV_FI_OPS: &'static fi_ops = &ops(av_close::<D>, av_bind::<D>, no_control);
}

const INSERT_FLAGS: u64 = FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID;

/// Inserts `count` addresses that `raw` produces, filling `fi_addr` and error codes.
///
/// # Safety
/// `fi_addr` is NULL or has `count` places; with FI_SYNC_ERR `context` has `count` ints.
unsafe fn insert_all<D: Domain>(
    v: *mut fid_av,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
    raw: impl Fn(&D, usize) -> Result<Vec<u8>>,
) -> Result<isize> {
    // SAFETY: `v` is NULL or an address vector of ours.
    let b = unsafe { av::<D>(v)? };
    if flags & !INSERT_FLAGS != 0 {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: flags {flags:#x}: wanted FI_MORE or FI_SYNC_ERR"
        );
        return Err(FI_EBADFLAGS);
    }
    let errors = if flags & FI_SYNC_ERR != 0 {
        context.cast::<c_int>()
    } else {
        null_mut()
    };
    if flags & FI_SYNC_ERR != 0 && errors.is_null() {
        return Err(FI_EINVAL);
    }
    let v = b.domain.av_info(b.id)?;
    if v.read_only {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: the vector was opened with FI_READ"
        );
        return Err(FI_EINVAL);
    }
    if fi_addr.is_null() && v.type_ == FI_AV_MAP && count > 0 {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: fi_addr is NULL: FI_AV_MAP needs it"
        );
        return Err(FI_EINVAL);
    }
    let mut good = 0;
    for i in 0..count {
        let r = raw(&*b.domain, i).and_then(|a| b.domain.insert_addr(b.id, &a));
        if let Err(e) = r {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_insert: address {i}: {}",
                crate::core::errno::text(e)
            );
        }
        // SAFETY: as promised by the caller.
        unsafe {
            if !fi_addr.is_null() {
                *fi_addr.add(i) = r.unwrap_or(FI_ADDR_NOTAVAIL);
            }
            if !errors.is_null() {
                *errors.add(i) = r.err().unwrap_or(0);
            }
        }
        good += isize::from(r.is_ok());
    }
    Ok(good)
}

unsafe extern "C" fn av_insert<D: Domain>(
    v: *mut fid_av,
    addrs: *const c_void,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard("fi_av_insert", || {
        if addrs.is_null() && count > 0 {
            return Err(FI_EINVAL);
        }
        // SAFETY: the caller passes `count` addresses of one length.
        unsafe {
            insert_all::<D>(v, count, fi_addr, flags, context, |_, i| {
                let len = D::addr_len(addrs.cast::<[u8; 2]>().read_unaligned())?;
                Ok(core::slice::from_raw_parts(addrs.cast::<u8>().add(i * len), len).to_vec())
            })
        }
    }) as c_int
}

unsafe extern "C" fn av_insertsvc<D: Domain>(
    v: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard("fi_av_insertsvc", || {
        // SAFETY: both are NULL or strings; the rest as in `insert_all`.
        unsafe {
            let n = super::info::string(node).ok_or(FI_EINVAL)?;
            let s = super::info::string(service);
            insert_all::<D>(v, 1, fi_addr, flags, context, |d, _| {
                d.resolve(&n, s.as_deref())
            })
        }
    }) as c_int
}

/// The `i`-th name after `first`: a trailing number counts up ("node7", "node8", ...).
fn counted(first: &str, i: usize) -> String {
    let stem = first.trim_end_matches(|c: char| c.is_ascii_digit());
    match first.get(stem.len()..).and_then(|n| n.parse::<u64>().ok()) {
        Some(n) => format!("{stem}{}", n + i as u64),
        None => first.to_string(),
    }
}

unsafe extern "C" fn av_insertsym<D: Domain>(
    v: *mut fid_av,
    node: *const c_char,
    nodecnt: usize,
    service: *const c_char,
    svccnt: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard("fi_av_insertsym", || {
        // SAFETY: both are NULL or strings; the rest as in `insert_all`.
        unsafe {
            let n = super::info::string(node).ok_or(FI_EINVAL)?;
            let s = super::info::string(service).ok_or(FI_EINVAL)?;
            let count = nodecnt
                .checked_mul(svccnt)
                .filter(|c| *c > 0)
                .ok_or(FI_EINVAL)?;
            insert_all::<D>(v, count, fi_addr, flags, context, |d, i| {
                d.resolve(&counted(&n, i / svccnt), Some(&counted(&s, i % svccnt)))
            })
        }
    }) as c_int
}

unsafe extern "C" fn av_remove<D: Domain>(
    v: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    guard_int("fi_av_remove", || {
        // SAFETY: `v` is NULL or ours; the caller passes `count` entries.
        unsafe {
            let b = av::<D>(v)?;
            if flags != 0 {
                return Err(FI_EBADFLAGS);
            }
            if fi_addr.is_null() && count > 0 {
                return Err(FI_EINVAL);
            }
            // Later entries first, as they were inserted.
            for i in (0..count).rev() {
                b.domain.remove_addr(b.id, *fi_addr.add(i))?;
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn av_lookup<D: Domain>(
    v: *mut fid_av,
    fi_addr: fi_addr_t,
    out: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_av_lookup", || {
        // SAFETY: `v` is NULL or ours; `len` is a place that says how long `out` is.
        unsafe {
            let b = av::<D>(v)?;
            let len = len.as_mut().ok_or(FI_EINVAL)?;
            give_address(&b.domain.lookup_addr(b.id, fi_addr)?, out, len);
        }
        Ok(())
    })
}

/// Copies as much of an address as fits and says how long it is.
///
/// # Safety
/// `out` is NULL or `len` bytes long.
pub(crate) unsafe fn give_address(raw: &[u8], out: *mut c_void, len: &mut usize) -> bool {
    let room = core::mem::replace(len, raw.len());
    let n = if out.is_null() {
        0
    } else {
        room.min(raw.len())
    };
    // SAFETY: `n` bytes fit, as promised by the caller.
    unsafe { core::ptr::copy_nonoverlapping(raw.as_ptr(), out.cast(), n) };
    n == raw.len()
}

unsafe extern "C" fn av_straddr<D: Domain>(
    _: *mut fid_av,
    a: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the address has the length that its beginning says; `len` says how long `buf` is.
    unsafe {
        if a.is_null() || len.is_null() {
            return core::ptr::null();
        }
        let Ok(n) = D::addr_len(a.cast::<[u8; 2]>().read_unaligned()) else {
            return core::ptr::null();
        };
        let text = D::addr_text(core::slice::from_raw_parts(a.cast::<u8>(), n));
        let room = core::mem::replace(&mut *len, text.len() + 1);
        super::text::put(buf, room, &text);
    }
    buf
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
    fn symmetric_names_count_up() {
        assert_eq!(super::counted("node7", 3), "node10");
        assert_eq!(super::counted("node", 3), "node");
        assert_eq!(super::counted("5001", 2), "5003");
    }
}
