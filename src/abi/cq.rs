//! `fid_cq`: completion queues (fi_cq(3)), their formats, reading and waiting. Errors: `cq_errors`.

use super::cq_errors::{cq_readerr, cq_strerror, ErrorTexts};
use super::entry::{entry, ControlArg, FromC, OutParam};
use super::object::*;
use super::sets::{Member, WaitBody};
use super::waiting::{control, wait_member, wait_obj, watch, WAITS};
use crate::core::sync::Mutex;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

/// Body of a `fid_cq`.
pub(crate) struct CqBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    /// Bytes of an entry of its format.
    step: usize,
    wait: Option<Arc<WaitSet>>,
    wait_obj: fi_wait_obj,
    threshold: bool,
    set: Option<(Arc<WaitBody<D>>, i32)>,
    /// Texts of the last errors read; `err_data` points into one of them.
    pub errors: Mutex<ErrorTexts>,
}

impl<D: Domain> CqBody<D> {
    fn new(domain: &Arc<D>, q: OpenedQueue, format: fi_cq_format) -> CqBody<D> {
        CqBody {
            domain: Arc::clone(domain),
            id: q.id,
            step: entry_size(format),
            wait: q.wait,
            wait_obj: FI_WAIT_NONE,
            threshold: false,
            set: None,
            errors: Mutex::default(),
        }
    }
}

/// The format that attributes ask for. `FI_EINVAL` for an unknown one, `FI_EBADFLAGS` for flags.
pub(crate) fn cq_format(attr: &fi_cq_attr) -> Result<fi_cq_format> {
    if attr.flags & !FI_AFFINITY != 0 {
        crate::warn_log!(
            FI_LOG_CQ,
            "fi_cq_open: flags {:#x}: wanted none",
            attr.flags
        );
        return Err(FI_EBADFLAGS);
    }
    match attr.format {
        FI_CQ_FORMAT_UNSPEC => Ok(FI_CQ_FORMAT_CONTEXT),
        f @ FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED => Ok(f),
        f => {
            crate::warn_log!(
                FI_LOG_CQ,
                "fi_cq_open: format {}: wanted FI_CQ_FORMAT_CONTEXT to FI_CQ_FORMAT_TAGGED",
                f.cast_signed()
            );
            Err(FI_EINVAL)
        }
    }
}

entry! {
    pub(crate) fn cq_open<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_cq_attr as &mut fi_cq_attr,
        out: *mut *mut fid_cq as OutParam<*mut fid_cq>,
        context: *mut c_void,
    ) -> c_int = "fi_cq_open" {
        let format = cq_format(attr)?;
        wait_obj("fi_cq_open", attr.wait_obj, &WAITS)?;
        if attr.wait_cond > FI_CQ_COND_THRESHOLD {
            return Err(FI_EINVAL);
        }
        if attr.size > 1 << 30 {
            crate::warn_log!(
                FI_LOG_CQ,
                "fi_cq_open: size: wanted {}, at most {}",
                attr.size,
                1 << 30
            );
            return Err(FI_EINVAL);
        }
        let set = wait_member(attr.wait_obj, attr.wait_set)?;
        let q = domain.open_cq(attr.size, attr.wait_obj)?;
        attr.size = q.size;
        attr.format = format;
        let watched = watch(set, q.fd(), Member::Cq(Arc::clone(domain), q.id));
        let mut b = CqBody::new(domain, q, format);
        b.wait_obj = attr.wait_obj;
        b.threshold = attr.wait_cond == FI_CQ_COND_THRESHOLD;
        b.set = watched;
        out.put(hand_out(cq_fid::<D>(context, Tables::<D>::CQ_OPS), b));
        Ok(())
    }
}

fn cq_fid<D: Domain>(context: *mut c_void, ops: &'static fi_ops_cq) -> fid_cq {
    fid_cq {
        fid: new_fid(FI_CLASS_CQ, context, Tables::<D>::CQ_FI_OPS),
        ops: table(ops),
    }
}

/// The handle of a queue in memory of the application's, which the process can read, or not.
pub(crate) fn external_cq<D: Domain>(
    (domain, q): (&Arc<D>, OpenedQueue),
    format: fi_cq_format,
    read: bool,
    context: *mut c_void,
) -> *mut fid_cq {
    let ops = match read {
        true => Tables::<D>::CQ_OPS,
        false => Tables::<D>::UNREAD_CQ_OPS,
    };
    let f = cq_fid::<D>(context, ops);
    hand_out(f, CqBody::new(domain, q, format))
}

close! {
    fn cq_close<D: Domain>(b: CqBody<D> as fid_cq) {
        b.domain.close_cq(b.id)?;
        if let Some((set, fd)) = &b.set {
            set.remove(*fd);
        }
        Ok(())
    }
}

entry! {
    fn cq_control<D: Domain>(
        q: *mut fid as &CqBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        control(q.wait.as_ref(), q.wait_obj, command, &arg)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CQ_FI_OPS: &'static fi_ops = &ops(cq_close::<D>, no_bind, cq_control::<D>);
}

/// Bytes of an entry of a format.
fn entry_size(format: fi_cq_format) -> usize {
    match format {
        FI_CQ_FORMAT_MSG => size_of::<fi_cq_msg_entry>(),
        FI_CQ_FORMAT_DATA => size_of::<fi_cq_data_entry>(),
        FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
        _ => size_of::<fi_cq_entry>(),
    }
}

/// The formats are prefixes of one another, and of what a queue keeps.
const _: () = {
    use core::mem::offset_of;
    type Tagged = fi_cq_tagged_entry;
    assert!(offset_of!(Entry, context) == offset_of!(Tagged, op_context));
    assert!(offset_of!(Entry, flags) == offset_of!(Tagged, flags));
    assert!(offset_of!(Entry, len) == offset_of!(Tagged, len));
    assert!(offset_of!(Entry, buf) == offset_of!(Tagged, buf));
    assert!(offset_of!(Entry, data) == offset_of!(Tagged, data));
    assert!(offset_of!(Entry, tag) == offset_of!(Tagged, tag));
};

/// Where completions are written: room for the caller's count, and NULL or as many addresses.
#[derive(Clone, Copy)]
struct CqBuffer {
    buf: *mut u8,
    count: usize,
    src: *mut fi_addr_t,
}

impl CqBuffer {
    /// Writes the `i`th entry, which is below the count: as much of `e` as `step` bytes of a
    /// format have.
    #[inline(always)]
    fn put(&self, step: usize, i: usize, e: &Entry) {
        debug_assert!(i < self.count);
        // SAFETY: the caller has room for `count` entries of the queue's format; what is copied is
        // no longer than such an entry (see above).
        unsafe {
            let (from, to) = ((&raw const *e).cast::<u8>(), self.buf.add(i * step));
            let part = |at, len| core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len);
            part(0, 8);
            if step >= size_of::<fi_cq_msg_entry>() {
                part(8, 16);
            }
            if step >= size_of::<fi_cq_data_entry>() {
                part(24, 16);
            }
            if step >= size_of::<fi_cq_tagged_entry>() {
                part(40, 8);
            }
            if !self.src.is_null() {
                *self.src.add(i) = e.src;
            }
        }
    }
}

impl FromC<(*mut c_void, usize)> for CqBuffer {
    #[inline(always)]
    unsafe fn from_c((buf, count): (*mut c_void, usize)) -> Result<Self> {
        // SAFETY: as promised by the caller.
        unsafe { FromC::from_c((buf, count, null_mut())) }
    }
}

/// `FI_EINVAL` for NULL with a count.
impl FromC<(*mut c_void, usize, *mut fi_addr_t)> for CqBuffer {
    #[inline(always)]
    unsafe fn from_c((buf, count, src): (*mut c_void, usize, *mut fi_addr_t)) -> Result<Self> {
        if buf.is_null() && count > 0 {
            return Err(FI_EINVAL);
        }
        let buf = buf.cast();
        Ok(CqBuffer { buf, count, src })
    }
}

/// fi_cq_read(3), or `NAMED`, fi_cq_readfrom(3), which returns the senders' addresses, too.
#[inline(always)]
fn read<D: Domain, const NAMED: bool>(q: &CqBody<D>, out: CqBuffer) -> Result<usize> {
    let step = q.step;
    let put = move |i: usize, e: &Entry| out.put(step, i, e);
    q.domain.read_cq::<NAMED>(q.id, out.count, put)
}

entry! {
    fn cq_read<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        (buf: *mut c_void, count: usize) as out: CqBuffer,
    ) -> isize = "fi_cq_read" {
        read::<D, false>(q, out)
    }
}

entry! {
    fn cq_readfrom<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        (buf: *mut c_void, count: usize, src: *mut fi_addr_t) as out: CqBuffer,
    ) -> isize = "fi_cq_readfrom" {
        read::<D, true>(q, out)
    }
}

/// fi_cq_sread(3): `cond` is a number of entries with FI_CQ_COND_THRESHOLD (fi_cq(3)).
fn sread<D: Domain>(
    q: &CqBody<D>,
    out: CqBuffer,
    cond: *const c_void,
    timeout: c_int,
) -> Result<usize> {
    let threshold = if q.threshold { cond as usize } else { 1 };
    let put = |i: usize, e: &Entry| out.put(q.step, i, e);
    q.domain.sread_cq(q.id, out.count, threshold, timeout, put)
}

entry! {
    fn cq_sread<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        (buf: *mut c_void, count: usize) as out: CqBuffer,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize = "fi_cq_sread" {
        sread(q, out, cond, timeout)
    }
}

entry! {
    fn cq_sreadfrom<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        (buf: *mut c_void, count: usize, src: *mut fi_addr_t) as out: CqBuffer,
        cond: *const c_void,
        timeout: c_int,
    ) -> isize = "fi_cq_sreadfrom" {
        sread(q, out, cond, timeout)
    }
}

entry! {
    fn cq_signal<D: Domain>(q: *mut fid_cq as &CqBody<D>) -> c_int = "fi_cq_signal" {
        q.domain.signal_cq(q.id)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CQ_OPS: &'static fi_ops_cq = &fi_ops_cq {
        size: size_of::<fi_ops_cq>(),
        read: Some(cq_read::<D>),
        readfrom: Some(cq_readfrom::<D>),
        readerr: Some(cq_readerr::<D>),
        sread: Some(cq_sread::<D>),
        sreadfrom: Some(cq_sreadfrom::<D>),
        signal: Some(cq_signal::<D>),
        strerror: Some(cq_strerror::<D>),
        export_xpu: None,
    };
}

entry! {
    fn no_read(_q: *mut fid_cq, _buf: *mut c_void, _count: usize) -> isize = "fi_cq_read" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_readfrom(
        _q: *mut fid_cq,
        _buf: *mut c_void,
        _count: usize,
        _src: *mut fi_addr_t,
    ) -> isize = "fi_cq_readfrom" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_readerr(_q: *mut fid_cq, _out: *mut fi_cq_err_entry, _flags: u64) -> isize
        = "fi_cq_readerr"
    {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_sread(
        _q: *mut fid_cq,
        _buf: *mut c_void,
        _count: usize,
        _cond: *const c_void,
        _timeout: c_int,
    ) -> isize = "fi_cq_sread" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

entry! {
    fn no_sreadfrom(
        _q: *mut fid_cq,
        _buf: *mut c_void,
        _count: usize,
        _src: *mut fi_addr_t,
        _cond: *const c_void,
        _timeout: c_int,
    ) -> isize = "fi_cq_sreadfrom" {
        Result::<()>::Err(FI_ENOSYS)
    }
}

impl<D: Domain> Tables<D> {
    /// Operations of a queue that a device reads, in memory that the process does not see.
    pub(crate) const UNREAD_CQ_OPS: &'static fi_ops_cq = &fi_ops_cq {
        read: Some(no_read),
        readfrom: Some(no_readfrom),
        readerr: Some(no_readerr),
        sread: Some(no_sread),
        sreadfrom: Some(no_sreadfrom),
        ..*Tables::<D>::CQ_OPS
    };
}
