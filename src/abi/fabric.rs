//! `fid_fabric` and `fid_eq`.

use super::info;
use super::layout;
use super::object::*;
use crate::core::info::FabricAttr;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use std::sync::{Arc, Mutex};

/// Body of a `fid_fabric`.
pub(crate) type FabricBody = Arc<Fabric>;

/// Body of a `fid_eq`.
pub(crate) struct EqBody {
    pub eq: Arc<Eq>,
    fabric: Arc<Fabric>,
    /// More about the error that was read last, for callers that bring no room for it.
    err_data: Mutex<Vec<u8>>,
}

/// Opens a fabric of a provider, and returns its handle.
pub(crate) fn open<P: Provider>(
    p: &P,
    attr: &FabricAttr,
    context: usize,
) -> Result<*mut fid_fabric> {
    let name = attr.name.as_deref().ok_or(FI_EINVAL)?;
    p.check_fabric(name)?;
    let fabric = Fabric::new(name, attr.api_version);
    let f = fid_fabric {
        fid: new_fid(
            FI_CLASS_FABRIC,
            context as *mut c_void,
            Tables::<P::Domain>::FABRIC_FI_OPS,
        ),
        ops: table(Tables::<P::Domain>::FABRIC_OPS),
        api_version: attr.api_version,
    };
    Ok(hand_out::<_, FabricBody>(f, fabric))
}

unsafe extern "C" fn fabric_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only fabrics have this table.
        unsafe {
            body::<fid_fabric, FabricBody>(f.cast())?.may_close()?;
            take::<fid_fabric, FabricBody>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn fabric_ops_open<D: Domain>(
    f: *mut fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    // SAFETY: only fabrics have this table; the name is a string, `ops` a place.
    guard_int("fi_open_ops", || unsafe {
        let fabric = body::<fid_fabric, FabricBody>(f.cast())?;
        super::domain::open_ops::<D>(name, flags, ops, |name| D::fabric_extension(fabric, name))
    })
}

impl<D: Domain> Tables<D> {
    const FABRIC_FI_OPS: &'static fi_ops = &fi_ops {
        ops_open: Some(fabric_ops_open::<D>),
        ..ops(fabric_close, no_bind, no_control)
    };
}

unsafe extern "C" fn domain<D: Domain>(
    f: *mut fid_fabric,
    i: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_domain", || {
        if out.is_null() || i.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `f` is a fabric of ours, `i` an info of ours, `out` a place for a pointer.
        unsafe {
            let fabric = body::<fid_fabric, FabricBody>(f)?;
            let i = info::read(i, layout::callers()).ok_or(FI_EINVAL)?;
            super::domain::open::<D>(fabric, i, out, context)
        }
    })
}

unsafe extern "C" fn domain2<D: Domain>(
    f: *mut fid_fabric,
    i: *mut fi_info,
    out: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags & FI_PEER != 0 {
        return -FI_ENOSYS;
    }
    if flags != 0 {
        return -FI_EBADFLAGS;
    }
    // SAFETY: as promised by our caller.
    unsafe { domain::<D>(f, i, out, context) }
}

unsafe extern "C" fn eq_open(
    f: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    out: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_eq_open", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `f` is a fabric of ours; the attributes are NULL or valid.
        let (fabric, attr) = unsafe { (body::<fid_fabric, FabricBody>(f)?, attr.as_ref()) };
        let (flags, wait) = attr.map_or((0, FI_WAIT_NONE), |a| (a.flags, a.wait_obj));
        if flags & !(FI_WRITE | FI_AFFINITY) != 0 {
            crate::warn_log!(FI_LOG_EQ, "fi_eq_open: flags {flags:#x}: wanted FI_WRITE");
            return Err(FI_EBADFLAGS);
        }
        wait_obj(
            "fi_eq_open",
            wait,
            &[FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_FD, FI_WAIT_YIELD],
        )?;
        let eq = Arc::new(Eq::new(flags, wait)?);
        fabric.hold();
        let b = EqBody {
            eq,
            fabric: Arc::clone(fabric),
            err_data: Mutex::default(),
        };
        let f = fid_eq {
            fid: new_fid(FI_CLASS_EQ, context, &EQ_FI_OPS),
            ops: table(&EQ_OPS),
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(f, b) };
        Ok(())
    })
}

/// `FI_ENOSYS`, with a line, for a wait object that is not in `known`.
pub(crate) fn wait_obj(call: &str, obj: fi_wait_obj, known: &[fi_wait_obj]) -> Result<()> {
    if known.contains(&obj) {
        return Ok(());
    }
    let names: Vec<String> = known
        .iter()
        .map(|w| crate::core::tostr::wait_obj(*w))
        .collect();
    crate::warn_log!(
        FI_LOG_CORE,
        "{call}: wait_obj: wanted {}, accepted {}",
        crate::core::tostr::wait_obj(obj),
        names.join(", ")
    );
    Err(FI_ENOSYS)
}

unsafe extern "C" fn trywait<D: Domain>(
    _: *mut fid_fabric,
    fids: *mut *mut fid,
    count: c_int,
) -> c_int {
    guard_int("fi_trywait", || {
        if fids.is_null() || count < 0 {
            return Err(FI_EINVAL);
        }
        for i in 0..count as usize {
            // SAFETY: the caller passes `count` pointers to open objects.
            unsafe {
                let f = *fids.add(i);
                if f.is_null() {
                    return Err(FI_EINVAL);
                }
                match (*f).fclass {
                    FI_CLASS_EQ => {
                        if !body::<fid_eq, EqBody>(f.cast())?.eq.is_empty() {
                            return Err(FI_EAGAIN);
                        }
                    }
                    FI_CLASS_CQ => super::queues::trywait_cq::<D>(f.cast())?,
                    FI_CLASS_CNTR => super::queues::trywait_cntr::<D>(f.cast())?,
                    _ => return Err(FI_EINVAL),
                }
            }
        }
        Ok(())
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const FABRIC_OPS: &'static fi_ops_fabric = &fi_ops_fabric {
        size: size_of::<fi_ops_fabric>(),
        domain: Some(domain::<D>),
        passive_ep: Some(super::cm::passive_ep::<D>),
        eq_open: Some(eq_open),
        wait_open: Some(super::sets::wait_open::<D>),
        trywait: Some(trywait::<D>),
        domain2: Some(domain2::<D>),
    };
}

// ---- event queues ----------------------------------------------------------------------------

unsafe extern "C" fn eq_close(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only event queues have this table.
        let b = unsafe { body::<fid_eq, EqBody>(f.cast())? };
        if Arc::strong_count(&b.eq) > 1 {
            crate::warn_log!(
                FI_LOG_EQ,
                "fi_close: this event queue is still bound to a domain or endpoint"
            );
            return Err(FI_EBUSY);
        }
        // SAFETY: as above.
        let b = unsafe { take::<fid_eq, EqBody>(f.cast())? };
        b.fabric.release();
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn eq_control(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only event queues have this table.
        let b = unsafe { body::<fid_eq, EqBody>(f.cast())? };
        if arg.is_null() {
            return Err(FI_EINVAL);
        }
        match command {
            // SAFETY: FI_GETWAIT's argument is a place for a descriptor.
            FI_GETWAIT => unsafe { *arg.cast::<c_int>() = b.eq.fd()? },
            // SAFETY: FI_GETWAITOBJ's argument is a place for an enum fi_wait_obj.
            FI_GETWAITOBJ => unsafe { *arg.cast::<fi_wait_obj>() = b.eq.wait_obj },
            _ => return Err(FI_ENOSYS),
        }
        Ok(())
    })
}

static EQ_FI_OPS: fi_ops = ops(eq_close, no_bind, eq_control);

/// # Safety
/// `event` is NULL or writable, `buf` NULL or `len` bytes long.
unsafe fn give(e: EqEvent, event: *mut u32, buf: *mut c_void) -> isize {
    // SAFETY: `Eq::read` has checked the length; the caller promises the rest.
    unsafe {
        if !event.is_null() {
            *event = e.event;
        }
        if !buf.is_null() {
            core::ptr::copy_nonoverlapping(e.bytes.as_ptr(), buf.cast(), e.bytes.len());
        }
    }
    e.bytes.len() as isize
}

unsafe extern "C" fn eq_read(
    q: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    flags: u64,
) -> isize {
    guard("fi_eq_read", || {
        // SAFETY: `q` is an event queue of ours; the buffers are the caller's.
        unsafe {
            let b = body::<fid_eq, EqBody>(q)?;
            let room = if buf.is_null() { 0 } else { len };
            Ok(give(b.eq.read(room, flags & FI_PEEK != 0)?, event, buf))
        }
    })
}

unsafe extern "C" fn eq_sread(
    q: *mut fid_eq,
    event: *mut u32,
    buf: *mut c_void,
    len: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    guard("fi_eq_sread", || {
        // SAFETY: as in `eq_read`.
        unsafe {
            let b = body::<fid_eq, EqBody>(q)?;
            let room = if buf.is_null() { 0 } else { len };
            Ok(give(
                b.eq.sread(room, timeout, flags & FI_PEEK != 0)?,
                event,
                buf,
            ))
        }
    })
}

unsafe extern "C" fn eq_readerr(q: *mut fid_eq, buf: *mut fi_eq_err_entry, _: u64) -> isize {
    guard("fi_eq_readerr", || {
        // SAFETY: `q` is an event queue of ours; `buf` is NULL or a place for an entry. Errors have
        // the bytes of a `fi_eq_entry`.
        unsafe {
            let b = body::<fid_eq, EqBody>(q)?;
            let to = buf.as_mut().ok_or(FI_EINVAL)?;
            let e = b.eq.read_error()?;
            let head = e.bytes.as_ptr().cast::<fi_eq_entry>();
            let whole = e.bytes.len() == size_of::<fi_eq_entry>();
            let head = whole.then(|| head.read_unaligned()).ok_or(FI_EOTHER)?;
            (to.fid, to.context, to.data) = (head.fid, head.context, head.data);
            (to.err, to.prov_errno) = (e.err, e.prov_errno);
            let mut kept = b.err_data.lock().unwrap_or_else(|e| e.into_inner());
            *kept = e.err_data;
            if to.err_data.is_null() || to.err_data_size == 0 {
                // Ours, until the next read.
                to.err_data = match kept.is_empty() {
                    true => core::ptr::null_mut(),
                    false => kept.as_mut_ptr().cast(),
                };
                to.err_data_size = kept.len();
            } else {
                to.err_data_size = to.err_data_size.min(kept.len());
                core::ptr::copy_nonoverlapping(kept.as_ptr(), to.err_data.cast(), to.err_data_size);
            }
        }
        Ok(size_of::<fi_eq_err_entry>() as isize)
    })
}

unsafe extern "C" fn eq_write(
    q: *mut fid_eq,
    event: u32,
    buf: *const c_void,
    len: usize,
    _flags: u64,
) -> isize {
    guard("fi_eq_write", || {
        // SAFETY: `q` is an event queue of ours; `buf` has `len` bytes.
        unsafe {
            let b = body::<fid_eq, EqBody>(q)?;
            if !b.eq.writable {
                crate::warn_log!(
                    FI_LOG_EQ,
                    "fi_eq_write: the queue was opened without FI_WRITE"
                );
                return Err(FI_EINVAL);
            }
            if (buf.is_null() && len > 0) || len > 1 << 16 {
                return Err(FI_EINVAL);
            }
            let bytes = if len == 0 {
                &[][..]
            } else {
                core::slice::from_raw_parts(buf.cast::<u8>(), len)
            };
            b.eq.push(EqEvent {
                event,
                bytes: bytes.to_vec(),
                ..EqEvent::default()
            });
        }
        Ok(len as isize)
    })
}

unsafe extern "C" fn eq_strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: `buf` is NULL or has `len` bytes.
    unsafe {
        if !buf.is_null() {
            super::text::put(buf, len, &crate::core::errno::text(prov_errno));
            return buf;
        }
    }
    super::exports::strerror(prov_errno)
}

static EQ_OPS: fi_ops_eq = fi_ops_eq {
    size: size_of::<fi_ops_eq>(),
    read: Some(eq_read),
    readerr: Some(eq_readerr),
    write: Some(eq_write),
    sread: Some(eq_sread),
    strerror: Some(eq_strerror),
};

/// The queue behind a handle, for binding.
///
/// # Safety
/// `q` is NULL or an event queue of ours.
pub(crate) unsafe fn eq_of(q: *mut fid_eq) -> Result<Arc<Eq>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_eq, EqBody>(q) }.map(|b| Arc::clone(&b.eq))
}
