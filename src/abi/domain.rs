//! `fid_domain`, `fid_mr` and `fid_av`.

use super::fabric::FabricBody;
use super::object::*;
use super::{ep, queues};
use crate::core::{Info, Result};
use crate::hmem::UserMem;
use crate::prov::efa::addr;
use crate::prov::efa::av::Av;
use crate::prov::efa::domain::{Domain, Mr};
use crate::prov::efa::eq::Eq;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;
use std::sync::Arc;

/// Body of a `fid_domain`.
pub struct DomainBody {
    pub domain: Arc<Domain>,
    eq: Option<Arc<Eq>>,
}

/// Opens a domain.
///
/// # Safety
/// `out` is a place for a pointer.
pub unsafe fn open(
    fabric: &FabricBody,
    info: Info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> Result<()> {
    let domain = Domain::open(Arc::clone(fabric), info)?;
    let f = fid_domain {
        fid: new_fid(FI_CLASS_DOMAIN, context, &DOMAIN_FI_OPS),
        ops: table(&DOMAIN_OPS),
        mr: table(&MR_OPS),
    };
    // SAFETY: as promised by the caller.
    unsafe { *out = hand_out(f, DomainBody { domain, eq: None }) };
    Ok(())
}

/// The domain behind a handle.
///
/// # Safety
/// `d` is NULL or a domain of ours.
pub unsafe fn of<'a>(d: *mut fid_domain) -> Result<&'a Arc<Domain>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_domain, DomainBody>(d) }.map(|b| &b.domain)
}

unsafe extern "C" fn domain_close(f: *mut fid) -> c_int {
    guard_int("fi_close", || {
        // SAFETY: only domains have this table.
        unsafe {
            body::<fid_domain, DomainBody>(f.cast())?.domain.close()?;
            take::<fid_domain, DomainBody>(f.cast())?;
        }
        Ok(())
    })
}

unsafe extern "C" fn domain_bind(f: *mut fid, b: *mut fid, flags: u64) -> c_int {
    guard_int("fi_domain_bind", || {
        // SAFETY: only domains have this table; `b` is NULL or an open object.
        unsafe {
            let d = body::<fid_domain, DomainBody>(f.cast())?;
            if b.is_null() || (*b).fclass != FI_CLASS_EQ {
                return Err(FI_EINVAL);
            }
            if flags & !FI_REG_MR != 0 {
                return Err(FI_EBADFLAGS);
            }
            if d.eq.is_some() {
                return Err(FI_EINVAL);
            }
            d.eq = Some(super::fabric::eq_of(b.cast())?);
        }
        Ok(())
    })
}

/// Feature strings that `FI_EFA_FEATURE_OPS` answers for.
unsafe extern "C" fn feature(name: *const c_char) -> bool {
    // SAFETY: the name is NULL or a string.
    unsafe { super::info::string(name) }.as_deref() == Some("mixed_hmem_iov")
}

static FEATURE_OPS: fi_efa_feature_ops = fi_efa_feature_ops {
    query: Some(feature),
};

unsafe extern "C" fn domain_ops_open(
    f: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    guard_int("fi_open_ops", || {
        if name.is_null() || ops.is_null() {
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        // SAFETY: only domains have this table; the name is a string, `ops` a place.
        unsafe {
            body::<fid_domain, DomainBody>(f.cast())?;
            if super::info::string(name).as_deref() != Some("efa feature ops") {
                *ops = null_mut();
                return Err(FI_ENOSYS);
            }
            *ops = table(&FEATURE_OPS).cast();
        }
        Ok(())
    })
}

static DOMAIN_FI_OPS: fi_ops = fi_ops {
    ops_open: Some(domain_ops_open),
    ..ops(domain_close, domain_bind, no_control)
};

unsafe extern "C" fn av_open(
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
        let (domain, attr) = unsafe { (of(d)?, attr.as_mut()) };
        let attr = attr.ok_or(FI_EINVAL)?;
        if attr.flags & (FI_EVENT | FI_READ | FI_SYMMETRIC) != 0 {
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
        if !attr.name.is_null() {
            crate::warn_log!(
                FI_LOG_AV,
                "fi_av_open: name: shared address vectors are not supported"
            );
            return Err(FI_ENOSYS);
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
        let id = domain.lock().avs.insert(Av::new(type_, attr.count));
        let f = fid_av {
            fid: new_fid(FI_CLASS_AV, context, &AV_FI_OPS),
            ops: table(&AV_OPS),
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe {
            *out = hand_out(
                f,
                AvBody {
                    domain: Arc::clone(domain),
                    id,
                },
            )
        };
        Ok(())
    })
}

unsafe extern "C" fn poll_open(
    _: *mut fid_domain,
    _: *mut fi_poll_attr,
    _: *mut *mut fid_poll,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn stx_ctx(
    _: *mut fid_domain,
    _: *mut fi_tx_attr,
    _: *mut *mut fid_stx,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn srx_ctx(
    _: *mut fid_domain,
    _: *mut fi_rx_attr,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn scalable_ep(
    _: *mut fid_domain,
    _: *mut fi_info,
    _: *mut *mut fid_ep,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}
unsafe extern "C" fn query_atomic(
    _: *mut fid_domain,
    _: fi_datatype,
    _: fi_op,
    _: *mut fi_atomic_attr,
    _: u64,
) -> c_int {
    -FI_EOPNOTSUPP
}
unsafe extern "C" fn query_collective(
    _: *mut fid_domain,
    _: fi_collective_op,
    _: *mut fi_collective_attr,
    _: u64,
) -> c_int {
    -FI_EOPNOTSUPP
}
unsafe extern "C" fn xpu_ctx(
    _: *mut fid_domain,
    _: *mut fi_xpu_attr,
    _: *mut *mut fid_xpu_ctx,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

static DOMAIN_OPS: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(av_open),
    cq_open: Some(queues::cq_open),
    endpoint: Some(ep::endpoint),
    scalable_ep: Some(scalable_ep),
    cntr_open: Some(queues::cntr_open),
    poll_open: Some(poll_open),
    stx_ctx: Some(stx_ctx),
    srx_ctx: Some(srx_ctx),
    query_atomic: Some(query_atomic),
    query_collective: Some(query_collective),
    endpoint2: Some(ep::endpoint2),
    xpu_ctx: Some(xpu_ctx),
};

// ---- memory regions --------------------------------------------------------------------------

/// Body of a `fid_mr`.
struct MrBody {
    domain: Arc<Domain>,
    mr: Mr,
}

const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;

/// # Safety
/// `d` is a domain, `iov` points to `count` valid pieces of memory, `out` is NULL or a place.
#[allow(clippy::too_many_arguments)]
unsafe fn register(
    d: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<()> {
    if d.is_null() || out.is_null() || iov.is_null() || count == 0 {
        return Err(FI_EINVAL);
    }
    // SAFETY: `d` is an open object.
    if unsafe { (*d).fclass } != FI_CLASS_DOMAIN {
        return Err(FI_EINVAL);
    }
    // SAFETY: its class says that it is a domain.
    let domain = unsafe { of(d.cast())? };
    if count > 1 {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_mr_reg: iov_count: wanted {count}, at most 1 (mr_iov_limit)"
        );
        return Err(FI_EINVAL);
    }
    if access & !ACCESS != 0 {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_mr_reg: access {:#x}: wanted bits of [ {} ]",
            access,
            crate::core::tostr::mr_access(ACCESS)
        );
        return Err(FI_EINVAL);
    }
    if flags & !(FI_RMA_EVENT | FI_RMA_PMEM | FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC) != 0 {
        crate::warn_log!(FI_LOG_MR, "fi_mr_reg: flags {flags:#x} are not supported");
        return Err(FI_EBADFLAGS);
    }
    if offset != 0 {
        crate::warn_log!(FI_LOG_MR, "fi_mr_reg: offset: wanted {offset:#x}, had 0");
        return Err(FI_EINVAL);
    }
    // SAFETY: `iov` has one element; the memory is the application's until it closes the region.
    let mem = unsafe {
        let v = &*iov;
        UserMem::new([(v.iov_base.cast_const(), v.iov_len)]).ok_or(FI_EINVAL)?
    };
    let mr = domain.reg_mr(mem, access)?;
    let key = mr.key;
    let f = fid_mr {
        fid: new_fid(FI_CLASS_MR, context, &MR_FI_OPS),
        mem_desc: null_mut(),
        key,
    };
    let p = hand_out(
        f,
        MrBody {
            domain: Arc::clone(domain),
            mr,
        },
    );
    // SAFETY: `p` was just made; `out` is a place for a pointer. A descriptor is never NULL, so
    // that clients can tell a registered buffer by it.
    unsafe {
        (*p).mem_desc = p.cast();
        *out = p;
    }
    Ok(())
}

unsafe extern "C" fn mr_reg(
    d: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: as promised by our caller.
    guard_int("fi_mr_reg", || unsafe {
        register(d, &iov, 1, access, offset, flags, out, context)
    })
}

unsafe extern "C" fn mr_regv(
    d: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    _requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: as promised by our caller.
    guard_int("fi_mr_regv", || unsafe {
        register(d, iov, count, access, offset, flags, out, context)
    })
}

unsafe extern "C" fn mr_regattr(
    d: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    guard_int("fi_mr_regattr", || {
        // SAFETY: the attributes are NULL or valid.
        let a = unsafe { attr.as_ref() }.ok_or(FI_EINVAL)?;
        if a.iface != FI_HMEM_SYSTEM {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_regattr: iface: wanted {}, had FI_HMEM_SYSTEM",
                crate::core::tostr::hmem_iface(a.iface)
            );
            return Err(FI_ENOSYS);
        }
        if flags & FI_MR_DMABUF != 0 {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_regattr: FI_MR_DMABUF is not supported by the software adapter"
            );
            return Err(FI_EOPNOTSUPP);
        }
        // SAFETY: as promised by our caller; the union holds host memory.
        unsafe {
            register(
                d,
                a.src.mr_iov,
                a.iov_count,
                a.access,
                a.offset,
                flags,
                out,
                a.context,
            )
        }
    })
}

static MR_OPS: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(mr_reg),
    regv: Some(mr_regv),
    regattr: Some(mr_regattr),
};

unsafe extern "C" fn mr_close(f: *mut fid) -> c_int {
    guard_int("fi_close", || {
        // SAFETY: only regions have this table.
        let b = unsafe { take::<fid_mr, MrBody>(f.cast())? };
        b.domain.close_mr(&b.mr)
    })
}

unsafe extern "C" fn mr_bind(f: *mut fid, b: *mut fid, _flags: u64) -> c_int {
    guard_int("fi_mr_bind", || {
        // SAFETY: only regions have this table; `b` is NULL or an open object.
        unsafe {
            body::<fid_mr, MrBody>(f.cast())?;
            if b.is_null() {
                return Err(FI_EINVAL);
            }
            match (*b).fclass {
                // Regions belong to the domain here: binding to an endpoint asks for nothing more.
                FI_CLASS_EP => Ok(()),
                FI_CLASS_CNTR => Err(FI_ENOSYS),
                _ => Err(FI_EINVAL),
            }
        }
    })
}

unsafe extern "C" fn mr_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only regions have this table; arguments are of the type the command wants.
        unsafe {
            let b = body::<fid_mr, MrBody>(f.cast())?;
            match command {
                FI_ENABLE | FI_REFRESH => Ok(()),
                FI_GET_RAW_MR => {
                    let a = arg.cast::<fi_mr_raw_attr>().as_mut().ok_or(FI_EINVAL)?;
                    let size = a.key_size.as_mut().ok_or(FI_EINVAL)?;
                    let room = core::mem::replace(size, 8);
                    if room < 8 {
                        return Err(FI_ETOOSMALL);
                    }
                    if a.raw_key.is_null() {
                        return Err(FI_EINVAL);
                    }
                    a.raw_key.cast::<u64>().write_unaligned(b.mr.key);
                    if !a.base_addr.is_null() {
                        *a.base_addr = 0;
                    }
                    Ok(())
                }
                _ => Err(FI_ENOSYS),
            }
        }
    })
}

static MR_FI_OPS: fi_ops = ops(mr_close, mr_bind, mr_control);

// ---- address vectors -------------------------------------------------------------------------

/// Body of a `fid_av`.
pub struct AvBody {
    pub domain: Arc<Domain>,
    pub id: u32,
}

/// # Safety
/// `v` is NULL or an address vector of ours.
unsafe fn av<'a>(v: *mut fid_av) -> Result<&'a mut AvBody> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_av, AvBody>(v) }
}

unsafe extern "C" fn av_close(f: *mut fid) -> c_int {
    guard_int("fi_close", || {
        // SAFETY: only address vectors have this table.
        unsafe {
            let b = av(f.cast())?;
            b.domain.close_av(b.id)?;
            take::<fid_av, AvBody>(f.cast())?;
        }
        Ok(())
    })
}

unsafe extern "C" fn av_bind(f: *mut fid, b: *mut fid, _: u64) -> c_int {
    guard_int("fi_av_bind", || {
        // SAFETY: only address vectors have this table; `b` is NULL or an open object.
        unsafe {
            av(f.cast())?;
            if b.is_null() || (*b).fclass != FI_CLASS_EQ {
                return Err(FI_EINVAL);
            }
        }
        // An event queue reports asynchronous insertion; ours is never asynchronous.
        Err(FI_ENOSYS)
    })
}

static AV_FI_OPS: fi_ops = ops(av_close, av_bind, no_control);

const INSERT_FLAGS: u64 = FI_MORE | FI_SYNC_ERR | FI_AV_USER_ID;

/// Inserts `count` addresses that `raw` produces, filling `fi_addr` and error codes.
///
/// # Safety
/// `fi_addr` is NULL or has `count` places; with FI_SYNC_ERR `context` has `count` ints.
unsafe fn insert_all(
    v: *mut fid_av,
    count: usize,
    fi_addr: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
    raw: impl Fn(usize) -> Result<[u8; addr::LEN]>,
) -> Result<isize> {
    // SAFETY: `v` is NULL or an address vector of ours.
    let b = unsafe { av(v)? };
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
    let mut s = b.domain.lock();
    let table = s.avs.get_mut(b.id).ok_or(FI_EBADF)?;
    if fi_addr.is_null() && table.type_ == FI_AV_MAP && count > 0 {
        crate::warn_log!(
            FI_LOG_AV,
            "fi_av_insert: fi_addr is NULL: FI_AV_MAP needs it"
        );
        return Err(FI_EINVAL);
    }
    let mut good = 0;
    for i in 0..count {
        let r = raw(i).and_then(|a| table.insert(&a));
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

unsafe extern "C" fn av_insert(
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
        // SAFETY: the caller passes `count` addresses of 32 bytes.
        unsafe {
            insert_all(v, count, fi_addr, flags, context, |i| {
                Ok(addrs.cast::<[u8; addr::LEN]>().add(i).read_unaligned())
            })
        }
    }) as c_int
}

/// Address of a node and service, as fi_getinfo(3) would resolve it.
fn resolve(node: Option<&str>, service: Option<&str>) -> Result<[u8; addr::LEN]> {
    let q = crate::core::registry::Query {
        api: crate::core::API_VERSION,
        node: Some(node.ok_or(FI_EINVAL)?),
        service,
        flags: 0,
        hints: None,
    };
    let list = crate::prov::efa::info::getinfo(&q)?;
    let dest = list
        .first()
        .and_then(|i| i.dest_addr.as_deref())
        .ok_or(FI_EADDRNOTAVAIL)?;
    dest.first_chunk::<{ addr::LEN }>()
        .copied()
        .ok_or(FI_EADDRNOTAVAIL)
}

unsafe extern "C" fn av_insertsvc(
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
            let (n, s) = (super::info::string(node), super::info::string(service));
            if n.is_none() {
                return Err(FI_EINVAL);
            }
            insert_all(v, 1, fi_addr, flags, context, |_| {
                resolve(n.as_deref(), s.as_deref())
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

unsafe extern "C" fn av_insertsym(
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
            insert_all(v, count, fi_addr, flags, context, |i| {
                resolve(
                    Some(&counted(&n, i / svccnt)),
                    Some(&counted(&s, i % svccnt)),
                )
            })
        }
    }) as c_int
}

unsafe extern "C" fn av_remove(
    v: *mut fid_av,
    fi_addr: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    guard_int("fi_av_remove", || {
        // SAFETY: `v` is NULL or ours; the caller passes `count` entries.
        unsafe {
            let b = av(v)?;
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

unsafe extern "C" fn av_lookup(
    v: *mut fid_av,
    fi_addr: fi_addr_t,
    out: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard_int("fi_av_lookup", || {
        // SAFETY: `v` is NULL or ours; `len` is a place that says how long `out` is.
        unsafe {
            let b = av(v)?;
            let len = len.as_mut().ok_or(FI_EINVAL)?;
            let a = b
                .domain
                .lock()
                .avs
                .get(b.id)
                .ok_or(FI_EBADF)?
                .lookup(fi_addr)?;
            give_address(&addr::to_raw(&a), out, len);
        }
        Ok(())
    })
}

/// Copies as much of an address as fits and says how long it is.
///
/// # Safety
/// `out` is NULL or `len` bytes long.
pub unsafe fn give_address(raw: &[u8], out: *mut c_void, len: &mut usize) -> bool {
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

unsafe extern "C" fn av_straddr(
    _: *mut fid_av,
    a: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    // SAFETY: the address has 32 bytes; `len` says how long `buf` is.
    unsafe {
        if a.is_null() || len.is_null() {
            return core::ptr::null();
        }
        let raw = a.cast::<[u8; addr::LEN]>().read_unaligned();
        let text = addr::from_raw(&raw).map_or(String::new(), |a| addr::to_text(&a));
        let room = core::mem::replace(&mut *len, text.len() + 1);
        super::text::put(buf, room, &text);
    }
    buf
}

unsafe extern "C" fn av_set(
    _: *mut fid_av,
    _: *mut fi_av_set_attr,
    _: *mut *mut fid_av_set,
    _: *mut c_void,
) -> c_int {
    -FI_ENOSYS
}

static AV_OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(av_insert),
    insertsvc: Some(av_insertsvc),
    insertsym: Some(av_insertsym),
    remove: Some(av_remove),
    lookup: Some(av_lookup),
    straddr: Some(av_straddr),
    av_set: Some(av_set),
    insert_auth_key: None,
    lookup_auth_key: None,
    set_user_id: None,
    lookup2: None,
};

#[cfg(test)]
mod tests {
    #[test]
    fn symmetric_names_count_up() {
        assert_eq!(super::counted("node7", 3), "node10");
        assert_eq!(super::counted("node", 3), "node");
        assert_eq!(super::counted("5001", 2), "5003");
    }
}
