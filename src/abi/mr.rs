//! `fid_mr`: registered memory (fi_mr(3)).

use super::entry::{entry, ControlArg, FromC, OutParam};
use super::handles::AnyObject;
use super::object::*;
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

const ACCESS: u64 =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_COLLECTIVE;

/// What is registered: one piece of memory, lent until the region is closed.
#[derive(Clone, Copy)]
struct RegMem {
    at: *const c_void,
    len: usize,
}

impl FromC<(*const c_void, usize)> for RegMem {
    unsafe fn from_c((at, len): (*const c_void, usize)) -> Result<Self> {
        Ok(RegMem { at, len })
    }
}

/// `FI_EINVAL` for a list that has not one piece.
impl FromC<(*const iovec, usize)> for RegMem {
    unsafe fn from_c((iov, count): (*const iovec, usize)) -> Result<Self> {
        if iov.is_null() || count == 0 {
            return Err(FI_EINVAL);
        }
        if count > 1 {
            crate::warn_log!(
                FI_LOG_MR,
                "fi_mr_reg: iov_count: wanted {count}, at most 1 (mr_iov_limit)"
            );
            return Err(FI_EINVAL);
        }
        // SAFETY: `iov` is not NULL, and the caller lends its one element for the call.
        let v = unsafe { &*iov };
        let (at, len) = (v.iov_base.cast_const(), v.iov_len);
        Ok(RegMem { at, len })
    }
}

/// How it is registered.
struct Registration {
    mem: RegMem,
    /// The dma-buf that the memory is of.
    from: Option<DmaBuf>,
    kind: MemKind,
    access: u64,
    offset: u64,
    wanted: u64,
    flags: u64,
    context: *mut c_void,
}

/// Registers memory in the domain that `d` is.
fn register<D: Domain>(d: &AnyObject<D>, r: Registration) -> Result<*mut fid_mr> {
    let AnyObject::Domain(b) = d else {
        return Err(FI_EINVAL);
    };
    let Registration {
        mem: RegMem { at, len },
        from,
        kind,
        access,
        offset,
        wanted,
        flags,
        context,
    } = r;
    if access & !ACCESS != 0 {
        crate::info_log!(
            FI_LOG_MR,
            "fi_mr_reg: access {access:#x}: only bits of [ {} ] have a meaning, others are ignored",
            crate::core::tostr::mr_access(ACCESS)
        );
    }
    let access = access & ACCESS;
    if flags & !(FI_RMA_EVENT | FI_RMA_PMEM | FI_HMEM_DEVICE_ONLY | FI_HMEM_HOST_ALLOC) != 0 {
        crate::warn_log!(FI_LOG_MR, "fi_mr_reg: flags {flags:#x} are not supported");
        return Err(FI_EBADFLAGS);
    }
    if offset != 0 {
        crate::warn_log!(FI_LOG_MR, "fi_mr_reg: offset: wanted {offset:#x}, had 0");
        return Err(FI_EINVAL);
    }
    if (at as usize).checked_add(len).is_none() {
        crate::warn_log!(
            FI_LOG_MR,
            "fi_mr_reg: buf {at:?}, len {len:#x}: wanted a range that ends below 2^64"
        );
        return Err(FI_EINVAL);
    }
    own_kind(at as usize, kind)?;
    // SAFETY: the memory is lent until the region is closed. Of a region that begins at NULL, the
    // application permits its peers what it maps.
    let mem = unsafe {
        if at.is_null() && kind == MemKind::Host {
            UserMem::from_null(len)
        } else {
            UserMem::of_kinds([(at, len, kind)]).ok_or(FI_EINVAL)?
        }
    };
    let mr = b.domain.reg_mr(mem, from, access, wanted)?;
    let f = fid_mr {
        fid: new_fid(FI_CLASS_MR, context, Tables::<D>::MR_FI_OPS),
        mem_desc: null_mut(),
        key: mr.key,
    };
    let domain = Arc::clone(&b.domain);
    let p = hand_out(f, MrBody { domain, mr });
    // A descriptor is never NULL, so that clients can tell a registered buffer by it.
    let desc = match kind {
        MemKind::Host => p.cast(),
        device => device.desc(),
    };
    // SAFETY: `p` was just made.
    unsafe { (*p).mem_desc = desc };
    Ok(p)
}

/// Refuses device memory that is registered as another kind: its own interface alone can copy it.
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

entry! {
    fn mr_reg<D: Domain>(
        d: *mut fid as AnyObject<D>,
        (buf: *const c_void, len: usize) as mem: RegMem,
        access: u64,
        offset: u64,
        wanted: u64,
        flags: u64,
        out: *mut *mut fid_mr as OutParam<*mut fid_mr>,
        context: *mut c_void,
    ) -> c_int = "fi_mr_reg" {
        let (from, kind) = (None, MemKind::Host);
        let r = Registration { mem, from, kind, access, offset, wanted, flags, context };
        register(&d, r).map(|mr| out.put(mr))
    }
}

entry! {
    fn mr_regv<D: Domain>(
        d: *mut fid as AnyObject<D>,
        (iov: *const iovec, count: usize) as mem: RegMem,
        access: u64,
        offset: u64,
        wanted: u64,
        flags: u64,
        out: *mut *mut fid_mr as OutParam<*mut fid_mr>,
        context: *mut c_void,
    ) -> c_int = "fi_mr_regv" {
        let (from, kind) = (None, MemKind::Host);
        let r = Registration { mem, from, kind, access, offset, wanted, flags, context };
        register(&d, r).map(|mr| out.put(mr))
    }
}

/// What fi_mr_regattr(3) passes: attributes, and the flag that says what their memory is.
struct RegAttr<'a> {
    attr: &'a fi_mr_attr,
    mem: RegMem,
    from: Option<DmaBuf>,
    kind: MemKind,
    flags: u64,
}

impl FromC<(*const fi_mr_attr, u64)> for RegAttr<'_> {
    unsafe fn from_c((attr, flags): (*const fi_mr_attr, u64)) -> Result<Self> {
        // SAFETY: the attributes are NULL or valid; with FI_MR_DMABUF their union holds a dma-buf,
        // else a list.
        unsafe {
            let attr = attr.as_ref().ok_or(FI_EINVAL)?;
            let kind = kind_of(attr.iface)?;
            let (from, mem) = if flags & FI_MR_DMABUF != 0 {
                let (from, mem) = dmabuf(attr.src.dmabuf.as_ref().ok_or(FI_EINVAL)?)?;
                (Some(from), mem)
            } else {
                (None, FromC::from_c((attr.src.mr_iov, attr.iov_count))?)
            };
            let flags = flags & !FI_MR_DMABUF;
            Ok(RegAttr {
                attr,
                mem,
                from,
                kind,
                flags,
            })
        }
    }
}

entry! {
    fn mr_regattr<D: Domain>(
        d: *mut fid as AnyObject<D>,
        (attr: *const fi_mr_attr, flags: u64) as a: RegAttr,
        out: *mut *mut fid_mr as OutParam<*mut fid_mr>,
    ) -> c_int = "fi_mr_regattr" {
        let r = Registration {
            mem: a.mem,
            from: a.from,
            kind: a.kind,
            access: a.attr.access,
            offset: a.attr.offset,
            wanted: a.attr.requested_key,
            flags: a.flags,
            context: a.attr.context,
        };
        register(&d, r).map(|mr| out.put(mr))
    }
}

/// The kind of memory of an interface. `FI_EINVAL` for one that there is not, `FI_ENOSYS` for one
/// that this machine does not have.
fn kind_of(iface: fi_hmem_iface) -> Result<MemKind> {
    let kind = MemKind::of_iface(iface);
    if let Some(kind) = kind.filter(|k| crate::hmem::present(*k)) {
        return Ok(kind);
    }
    let interfaces = [
        (FI_HMEM_CUDA, MemKind::Cuda),
        (FI_HMEM_ROCR, MemKind::Rocr),
        (FI_HMEM_NEURON, MemKind::Neuron),
        (FI_HMEM_SYNAPSEAI, MemKind::Synapse),
    ];
    let present = interfaces.iter().filter(|(_, k)| crate::hmem::present(*k));
    let mut had: String = present
        .map(|(iface, _)| format!(", {}", crate::core::tostr::hmem_iface(*iface)))
        .collect();
    if had.is_empty() {
        had = format!("; {}", crate::hmem::why_none());
    }
    crate::warn_log!(
        FI_LOG_MR,
        "fi_mr_regattr: iface: wanted {}, had FI_HMEM_SYSTEM{had}",
        crate::core::tostr::hmem_iface(iface)
    );
    Err(match iface {
        FI_HMEM_SYSTEM..=FI_HMEM_SYNAPSEAI => FI_ENOSYS,
        _ => FI_EINVAL,
    })
}

/// A dma-buf, and where the application sees its registered bytes: from `base_addr` + `offset` on,
/// which are also the addresses that peers use. `FI_EINVAL` without a mapping or an open
/// descriptor.
fn dmabuf(b: &fi_mr_dmabuf) -> Result<(DmaBuf, RegMem)> {
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
    let mem = RegMem {
        at: at as *const c_void,
        len: b.len,
    };
    Ok((from, mem))
}

impl<D: Domain> Tables<D> {
    pub(crate) const MR_OPS: &'static fi_ops_mr = &fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Some(mr_reg::<D>),
        regv: Some(mr_regv::<D>),
        regattr: Some(mr_regattr::<D>),
    };
}

close! {
    fn mr_close<D: Domain>(b: MrBody<D> as fid_mr) {
        b.domain.close_mr(&b.mr)
    }
}

entry! {
    fn mr_bind<D: Domain>(
        m: *mut fid as &MrBody<D>,
        with: *mut fid as AnyObject<D>,
        flags: u64,
    ) -> c_int = "fi_mr_bind" {
        match with {
            // Regions belong to the domain here: binding to an endpoint asks for nothing more.
            AnyObject::Ep(e) if Arc::ptr_eq(&e.domain, &m.domain) => Ok(()),
            AnyObject::Cntr(c) if Arc::ptr_eq(&c.domain, &m.domain) => {
                m.domain.bind_mr(&m.mr, c.id, flags)
            }
            _ => {
                crate::warn_log!(
                    FI_LOG_MR,
                    "fi_mr_bind: wanted a counter or an endpoint of the region's domain"
                );
                Err(FI_EINVAL)
            }
        }
    }
}

/// FI_GET_RAW_MR (fi_mr(3)): the raw key is the key.
fn raw_attr(key: u64, a: &mut fi_mr_raw_attr) -> Result<()> {
    // SAFETY: the members are NULL or the caller's places: for a size, for as many bytes of a key,
    // for an address.
    unsafe {
        let size = a.key_size.as_mut().ok_or(FI_EINVAL)?;
        let room = core::mem::replace(size, 8);
        if room < 8 {
            return Err(FI_ETOOSMALL);
        }
        if a.raw_key.is_null() {
            return Err(FI_EINVAL);
        }
        a.raw_key.cast::<u64>().write_unaligned(key);
        if !a.base_addr.is_null() {
            *a.base_addr = 0;
        }
    }
    Ok(())
}

entry! {
    fn mr_control<D: Domain>(
        b: *mut fid as &MrBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        match command {
            FI_ENABLE | FI_REFRESH => Ok(()),
            // SAFETY: the argument of this command is a `struct fi_mr_raw_attr`.
            FI_GET_RAW_MR => raw_attr(b.mr.key, unsafe { arg.get()? }),
            _ => Err(FI_ENOSYS),
        }
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const MR_FI_OPS: &'static fi_ops =
        &ops(mr_close::<D>, mr_bind::<D>, mr_control::<D>);
}
