//! `fid_mr`: registered memory (fi_mr(3)).

use super::domain::of;
use super::object::*;
use super::queues::CntrBody;
use crate::core::Result;
use crate::hmem::{MemKind, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;
use std::sync::Arc;

/// Body of a `fid_mr`.
pub(crate) struct MrBody<D: Domain> {
    pub domain: Arc<D>,
    pub mr: Mr,
}

/// The region behind a handle.
///
/// # Safety
/// `m` is NULL or a region of ours.
pub(crate) unsafe fn region<'a, D: Domain>(m: *mut fid_mr) -> Result<&'a MrBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_mr, MrBody<D>>(m) }
}

const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;

/// What is registered, and how.
struct Registration {
    iov: *const iovec,
    count: usize,
    /// The dma-buf that the memory is of.
    from: Option<DmaBuf>,
    kind: MemKind,
    access: u64,
    offset: u64,
    wanted: u64,
    flags: u64,
    context: *mut c_void,
}

/// # Safety
/// `d` is a domain, `iov` points to `count` valid pieces of memory, `out` is NULL or a place.
unsafe fn register<D: Domain>(d: *mut fid, r: Registration, out: *mut *mut fid_mr) -> Result<()> {
    let Registration {
        iov,
        count,
        from,
        kind,
        access,
        offset,
        wanted,
        flags,
        context,
    } = r;
    if d.is_null() || out.is_null() || iov.is_null() || count == 0 {
        return Err(FI_EINVAL);
    }
    // SAFETY: `d` is an open object.
    if unsafe { (*d).fclass } != FI_CLASS_DOMAIN {
        return Err(FI_EINVAL);
    }
    // SAFETY: its class says that it is a domain.
    let domain = unsafe { of::<D>(d.cast())? };
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
        if (v.iov_base as usize).checked_add(v.iov_len).is_none() {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_reg: buf {:?}, len {:#x}: wanted a range that ends below 2^64",
                v.iov_base,
                v.iov_len
            );
            return Err(FI_EINVAL);
        }
        own_kind(v.iov_base as usize, kind)?;
        UserMem::of_kinds([(v.iov_base.cast_const(), v.iov_len, kind)]).ok_or(FI_EINVAL)?
    };
    let mr = domain.reg_mr(mem, from, access, wanted)?;
    let key = mr.key;
    let f = fid_mr {
        fid: new_fid(FI_CLASS_MR, context, Tables::<D>::MR_FI_OPS),
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
        (*p).mem_desc = match kind {
            MemKind::Host => p.cast(),
            device => device.desc(),
        };
        *out = p;
    }
    Ok(())
}

/// Refuses device memory that is registered as another kind: nobody but its own interface can
/// copy it.
fn own_kind(at: usize, kind: MemKind) -> Result<()> {
    match crate::hmem::owner(at) {
        Some(owner) if owner != kind => {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_reg: buf {at:#x} is device memory ({owner:?}): wanted fi_mr_regattr with \
                 its iface, and FI_HMEM in the hints of fi_getinfo"
            );
            Err(FI_EINVAL)
        }
        _ => Ok(()),
    }
}

unsafe extern "C" fn mr_reg<D: Domain>(
    d: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    wanted: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let iov = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: as promised by our caller.
    unsafe { mr_regv::<D>(d, &iov, 1, access, offset, wanted, flags, out, context) }
}

unsafe extern "C" fn mr_regv<D: Domain>(
    d: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    wanted: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let r = Registration {
        iov,
        count,
        from: None,
        kind: MemKind::Host,
        access,
        offset,
        wanted,
        flags,
        context,
    };
    // SAFETY: as promised by our caller.
    guard_int("fi_mr_reg", || unsafe { register::<D>(d, r, out) })
}

unsafe extern "C" fn mr_regattr<D: Domain>(
    d: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    guard_int("fi_mr_regattr", || {
        // SAFETY: the attributes are NULL or valid.
        let a = unsafe { attr.as_ref() }.ok_or(FI_EINVAL)?;
        let kind = kind_of(a.iface)?;
        let mut r = Registration {
            // SAFETY: either member is a pointer.
            iov: unsafe { a.src.mr_iov },
            count: a.iov_count,
            from: None,
            kind,
            access: a.access,
            offset: a.offset,
            wanted: a.requested_key,
            flags: flags & !FI_MR_DMABUF,
            context: a.context,
        };
        let seen;
        if flags & FI_MR_DMABUF != 0 {
            // SAFETY: with this flag the union holds a dma-buf, NULL or valid.
            let (from, mem) = unsafe { dmabuf(a.src.dmabuf.as_ref().ok_or(FI_EINVAL)?)? };
            seen = mem;
            (r.iov, r.count, r.from) = (&raw const seen, 1, Some(from));
        }
        // SAFETY: as promised by our caller.
        unsafe { register::<D>(d, r, out) }
    })
}

/// The kind of memory of an interface. `FI_EINVAL` for one that there is not, `FI_ENOSYS` for one
/// that this machine does not have.
fn kind_of(iface: fi_hmem_iface) -> Result<MemKind> {
    let kind = MemKind::of_iface(iface);
    if let Some(kind) = kind.filter(|k| crate::hmem::present(*k)) {
        return Ok(kind);
    }
    let had = match crate::hmem::present(MemKind::Cuda) {
        true => ", FI_HMEM_CUDA",
        false => "; this machine shows no GPU (libcuda.so.1, /dev/nvidiactl)",
    };
    crate::warn_log!(
        FI_LOG_MR,
        "fi_mr_regattr: iface: wanted {} ({iface}), had FI_HMEM_SYSTEM{had}",
        crate::core::tostr::hmem_iface(iface)
    );
    Err(match kind {
        Some(_) => FI_ENOSYS,
        None => FI_EINVAL,
    })
}

/// A dma-buf, and where the application sees its registered bytes: from `base_addr` + `offset` on,
/// which are also the addresses that peers use. `FI_EINVAL` without a mapping or an open
/// descriptor.
fn dmabuf(b: &fi_mr_dmabuf) -> Result<(DmaBuf, iovec)> {
    // SAFETY: plain numbers are passed.
    if unsafe { libc::fcntl(b.fd, libc::F_GETFD) } < 0 {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_mr_regattr: dmabuf->fd: wanted {}, which is no open descriptor",
            b.fd
        );
        return Err(FI_EINVAL);
    }
    let at = (b.base_addr as usize).checked_add(usize::try_from(b.offset).unwrap_or(usize::MAX));
    let Some(at) = at.filter(|_| !b.base_addr.is_null() && b.len > 0) else {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_mr_regattr: dmabuf: base_addr {:?}, offset {:#x}, len {}: wanted where host memory \
             is mapped, and its bytes",
            b.base_addr,
            b.offset,
            b.len
        );
        return Err(FI_EINVAL);
    };
    let from = DmaBuf {
        fd: b.fd,
        offset: b.offset,
    };
    let seen = iovec {
        iov_base: at as *mut c_void,
        iov_len: b.len,
    };
    Ok((from, seen))
}

impl<D: Domain> Tables<D> {
    pub(crate) const MR_OPS: &'static fi_ops_mr = &fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(mr_reg::<D>),
        regv: Some(mr_regv::<D>),
        regattr: Some(mr_regattr::<D>),
    };
}

unsafe extern "C" fn mr_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only regions have this table.
        unsafe {
            let b = body::<fid_mr, MrBody<D>>(f.cast())?;
            b.domain.close_mr(&b.mr)?;
            take::<fid_mr, MrBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn mr_bind<D: Domain>(f: *mut fid, b: *mut fid, flags: u64) -> c_int {
    guard_int("fi_mr_bind", || {
        // SAFETY: only regions have this table; `b` is NULL or an open object.
        unsafe {
            let m = body::<fid_mr, MrBody<D>>(f.cast())?;
            if b.is_null() {
                return Err(FI_EINVAL);
            }
            match (*b).fclass {
                // Regions belong to the domain here: binding to an endpoint asks for nothing more.
                FI_CLASS_EP => Ok(()),
                FI_CLASS_CNTR => {
                    let c = body::<fid_cntr, CntrBody<D>>(b.cast())?;
                    m.domain.bind_mr(&m.mr, c.id, flags)
                }
                _ => Err(FI_EINVAL),
            }
        }
    })
}

unsafe extern "C" fn mr_control<D: Domain>(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only regions have this table; arguments are of the type the command wants.
        unsafe {
            let b = body::<fid_mr, MrBody<D>>(f.cast())?;
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

impl<D: Domain> Tables<D> {
    pub(crate) const MR_FI_OPS: &'static fi_ops =
        &ops(mr_close::<D>, mr_bind::<D>, mr_control::<D>);
}
