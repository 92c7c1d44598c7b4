//! `fid_cq` and `fid_cntr`: formats, waiting, errors.

use super::domain as dom;
use super::fabric::wait_obj;
use super::object::*;
use super::sets::{wait_set, Member, WaitBody};
use crate::core::{version, Result};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

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
    errors: Mutex<ErrorTexts>,
}

/// Error texts lent to the application. Several threads may read errors of one queue: a text stays
/// where it is until as many others have followed.
#[derive(Default)]
struct ErrorTexts(VecDeque<(i32, Vec<u8>)>);

/// Error texts that are valid at once.
const TEXTS_LENT: usize = 64;

impl ErrorTexts {
    /// Lends a text, terminated, for this provider error.
    fn lend(&mut self, prov_errno: i32, text: String) -> &[u8] {
        if self.0.len() >= TEXTS_LENT {
            self.0.pop_front();
        }
        let mut bytes = text.into_bytes();
        bytes.retain(|b| *b != 0);
        bytes.push(0);
        self.0.push_back((prov_errno, bytes));
        self.0.back().map_or(&[0], |(_, t)| t)
    }

    /// The text at this address, if it is lent.
    fn at(&self, p: *const u8) -> Option<&[u8]> {
        let lent = self.0.iter().find(|(_, t)| core::ptr::eq(t.as_ptr(), p));
        lent.map(|(_, t)| t.as_slice())
    }

    /// The latest text, if it is of this provider error.
    fn latest(&self, prov_errno: i32) -> Option<&[u8]> {
        let last = self.0.back().filter(|(e, _)| *e == prov_errno);
        last.map(|(_, t)| t.as_slice())
    }
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

    fn out(&self, buf: *mut c_void, src: *mut fi_addr_t) -> CqReadBuffer {
        let (buf, step) = (buf.cast(), self.step);
        CqReadBuffer { buf, step, src }
    }
}

/// Largest buffer for error data that an application is believed to offer, bytes.
const ERR_DATA_MAX: usize = 1 << 16;

/// Gives out the mutex and condition of FI_WAIT_MUTEX_COND, or the descriptor.
///
/// # Safety
/// `arg` is what FI_GETWAIT wants for this kind of wait object.
unsafe fn get_wait(w: Option<&Arc<WaitSet>>, obj: fi_wait_obj, arg: *mut c_void) -> Result<()> {
    let w = w.ok_or(FI_ENODATA)?;
    // SAFETY: as promised by the caller.
    unsafe {
        if obj == FI_WAIT_MUTEX_COND {
            let (mutex, cond) = w.mutex_cond();
            *arg.cast::<fi_mutex_cond>() = fi_mutex_cond { mutex, cond };
        } else {
            *arg.cast::<c_int>() = w.fd();
        }
    }
    Ok(())
}

const WAITS: [fi_wait_obj; 6] = [
    FI_WAIT_NONE,
    FI_WAIT_UNSPEC,
    FI_WAIT_SET,
    FI_WAIT_FD,
    FI_WAIT_MUTEX_COND,
    FI_WAIT_YIELD,
];

/// The wait set an object opened with FI_WAIT_SET belongs to.
///
/// # Safety
/// `set` is NULL or a wait set of ours.
unsafe fn wait_member<D: Domain>(
    obj: fi_wait_obj,
    set: *mut fid_wait,
) -> Result<Option<Arc<WaitBody<D>>>> {
    if obj != FI_WAIT_SET {
        return Ok(None);
    }
    // SAFETY: as promised by the caller.
    unsafe { wait_set::<D>(set) }.map(|set| Some(Arc::clone(set)))
}

/// Has a wait set watch a queue or counter; with the descriptor that it is known by.
fn watch<D: Domain>(
    set: Option<Arc<WaitBody<D>>>,
    q: &OpenedQueue,
    member: Member<D>,
) -> Option<(Arc<WaitBody<D>>, i32)> {
    let watched = set.zip(q.wait.as_ref().map(|w| w.fd()));
    if let Some((set, fd)) = &watched {
        set.add(*fd, member);
    }
    watched
}

/// # Safety
/// `q` is NULL or a completion queue of ours.
#[inline]
pub(crate) unsafe fn cq<'a, D: Domain>(q: *mut fid_cq) -> Result<&'a CqBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_cq, CqBody<D>>(q) }
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
                "fi_cq_open: format {f}: wanted FI_CQ_FORMAT_CONTEXT to _TAGGED"
            );
            Err(FI_EINVAL)
        }
    }
}

pub(crate) unsafe extern "C" fn cq_open<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_cq_open", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        let (domain, attr) = unsafe { (dom::of::<D>(d)?, attr.as_mut()) };
        let attr = attr.ok_or(FI_EINVAL)?;
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
        // SAFETY: with FI_WAIT_SET the attributes name an open wait set.
        let set = unsafe { wait_member(attr.wait_obj, attr.wait_set)? };
        let q = domain.open_cq(attr.size, attr.wait_obj)?;
        attr.size = q.size;
        attr.format = format;
        let watched = watch(set, &q, Member::Cq(Arc::clone(domain), q.id));
        let mut b = CqBody::new(domain, q, format);
        b.wait_obj = attr.wait_obj;
        b.threshold = attr.wait_cond == FI_CQ_COND_THRESHOLD;
        b.set = watched;
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = hand_out(cq_fid::<D>(context, Tables::<D>::CQ_OPS), b) };
        Ok(())
    })
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

unsafe extern "C" fn cq_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only completion queues have this table.
        unsafe {
            let b = cq::<D>(f.cast())?;
            b.domain.close_cq(b.id)?;
            if let Some((set, fd)) = &b.set {
                set.remove(*fd);
            }
            take::<fid_cq, CqBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn cq_control<D: Domain>(f: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only completion queues have this table; `arg` is what the command wants.
        unsafe {
            let b = cq::<D>(f.cast())?;
            let arg = if arg.is_null() {
                return Err(FI_EINVAL);
            } else {
                arg
            };
            match command {
                FI_GETWAIT => get_wait(b.wait.as_ref(), b.wait_obj, arg)?,
                FI_GETWAITOBJ => *arg.cast::<fi_wait_obj>() = b.wait_obj,
                _ => return Err(FI_ENOSYS),
            }
        }
        Ok(())
    })
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

/// Where a caller wants completions.
#[derive(Clone, Copy)]
struct CqReadBuffer {
    buf: *mut u8,
    /// Bytes of an entry.
    step: usize,
    src: *mut fi_addr_t,
}

impl CqReadBuffer {
    /// Writes the `i`th entry: as much of `e` as the format has.
    ///
    /// # Safety
    /// There is room for it.
    #[inline(always)]
    unsafe fn put(&self, i: usize, e: &Entry) {
        // SAFETY: as promised by the caller; what is copied is no longer than an entry (see above).
        unsafe {
            let (from, to) = ((&raw const *e).cast::<u8>(), self.buf.add(i * self.step));
            let part = |at, len| core::ptr::copy_nonoverlapping(from.add(at), to.add(at), len);
            part(0, 8);
            if self.step >= size_of::<fi_cq_msg_entry>() {
                part(8, 16);
            }
            if self.step >= size_of::<fi_cq_data_entry>() {
                part(24, 16);
            }
            if self.step >= size_of::<fi_cq_tagged_entry>() {
                part(40, 8);
            }
            if !self.src.is_null() {
                *self.src.add(i) = e.src;
            }
        }
    }
}

unsafe extern "C" fn cq_read<D: Domain>(q: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: as promised by our caller.
    unsafe { read::<D, false>(q, buf, count, null_mut()) }
}

unsafe extern "C" fn cq_readfrom<D: Domain>(
    q: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
) -> isize {
    // SAFETY: as promised by our caller.
    unsafe { read::<D, true>(q, buf, count, src) }
}

/// fi_cq_read(3), or `NAMED`, fi_cq_readfrom(3), which finds out who has sent.
///
/// # Safety
/// `q` is NULL or a completion queue of ours; the buffers have room for `count` entries.
#[inline(always)]
unsafe fn read<D: Domain, const NAMED: bool>(
    q: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
) -> isize {
    guard("fi_cq_read", || {
        if buf.is_null() && count > 0 {
            return Err(FI_EINVAL);
        }
        // SAFETY: `q` is ours.
        let b = unsafe { cq::<D>(q)? };
        let out = b.out(buf, src);
        // SAFETY: the buffers have room for `count` entries, and the index is below that.
        let put = move |i: usize, e: &Entry| unsafe { out.put(i, e) };
        let n = b.domain.read_cq::<NAMED>(b.id, count, put)?;
        Ok(n as isize)
    })
}

unsafe extern "C" fn cq_sread<D: Domain>(
    q: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: as promised by our caller.
    unsafe { cq_sreadfrom::<D>(q, buf, count, null_mut(), cond, timeout) }
}

unsafe extern "C" fn cq_sreadfrom<D: Domain>(
    q: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    src: *mut fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    guard("fi_cq_sread", || {
        if buf.is_null() && count > 0 {
            return Err(FI_EINVAL);
        }
        // SAFETY: `q` is ours.
        let b = unsafe { cq::<D>(q)? };
        // With FI_CQ_COND_THRESHOLD the condition is the number itself (fi_cq(3)).
        let threshold = if b.threshold { cond as usize } else { 1 };
        let out = b.out(buf, src);
        // SAFETY: as in `cq_readfrom`.
        let put = move |i: usize, e: &Entry| unsafe { out.put(i, e) };
        let n = b.domain.sread_cq(b.id, count, threshold, timeout, put)?;
        Ok(n as isize)
    })
}

/// Length of `struct fi_cq_err_entry` as an application of this API version knows it.
fn err_entry_size(api: u32) -> usize {
    if api < version(1, 5) {
        72
    } else if api < version(1, 20) {
        80
    } else {
        size_of::<fi_cq_err_entry>()
    }
}

unsafe extern "C" fn cq_readerr<D: Domain>(
    q: *mut fid_cq,
    out: *mut fi_cq_err_entry,
    _flags: u64,
) -> isize {
    guard("fi_cq_readerr", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `q` is ours; `out` is an entry of the application's API version.
        unsafe {
            let b = cq::<D>(q)?;
            let ErrEntry {
                entry,
                olen,
                err,
                prov_errno,
                text,
            } = b.domain.read_cq_error(b.id)?;
            let api = b.domain.fabric().api;
            let len = err_entry_size(api);
            // A buffer offered by the application (since 1.5) is filled; else ours is lent.
            // Programs that expect no data with an error leave these members uninitialised: what
            // can happen without anything being wrong carries none, and sizes beyond reason are no
            // offer.
            let plain = matches!(err, FI_ENOMSG | FI_ECANCELED | FI_ETRUNC);
            let offered =
                api >= version(1, 5) && (1..=ERR_DATA_MAX).contains(&(*out).err_data_size);
            let (theirs, room) = if offered && !plain {
                ((*out).err_data, (*out).err_data_size)
            } else {
                (null_mut(), 0)
            };
            let mut errors = b.errors.lock().unwrap_or_else(|e| e.into_inner());
            let text = errors.lend(prov_errno, text);
            let mut size = text.len();
            let data = if plain {
                size = 0;
                null_mut()
            } else if theirs.is_null() || room == 0 {
                text.as_ptr().cast_mut().cast()
            } else {
                size = size.min(room);
                core::ptr::copy_nonoverlapping(text.as_ptr(), theirs.cast(), size);
                theirs
            };
            let full = fi_cq_err_entry {
                op_context: entry.context as *mut c_void,
                flags: entry.flags,
                len: entry.len,
                buf: entry.buf as *mut c_void,
                data: entry.data,
                tag: entry.tag,
                olen,
                err,
                prov_errno,
                err_data: data,
                err_data_size: size,
                src_addr: entry.src,
            };
            core::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), out.cast::<u8>(), len);
        }
        Ok(1)
    })
}

unsafe extern "C" fn cq_signal<D: Domain>(q: *mut fid_cq) -> c_int {
    guard_int("fi_cq_signal", || {
        // SAFETY: `q` is ours.
        let b = unsafe { cq::<D>(q)? };
        b.domain.signal_cq(b.id)
    })
}

unsafe extern "C" fn cq_strerror<D: Domain>(
    q: *mut fid_cq,
    prov_errno: c_int,
    err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    // SAFETY: `q` is ours; `err_data` is NULL or from our fi_cq_readerr; `buf` has `len` bytes.
    unsafe {
        let Ok(b) = cq::<D>(q) else {
            return c"closed completion queue".as_ptr();
        };
        let mut errors = b.errors.lock().unwrap_or_else(|e| e.into_inner());
        // Without data the text of the error read last is meant, if it is of this kind.
        let lent = match err_data.is_null() {
            true => errors.latest(prov_errno),
            false => errors.at(err_data.cast()),
        };
        let text = match lent.map(<[u8]>::as_ptr) {
            Some(p) => p,
            None => {
                // A copy the application made is a terminated string.
                let text = match err_data.is_null() {
                    true => D::error_text(prov_errno),
                    false => super::info::string(err_data.cast()).unwrap_or_default(),
                };
                errors.lend(prov_errno, text).as_ptr()
            }
        };
        if !buf.is_null() && len > 0 {
            let text = core::ffi::CStr::from_ptr(text.cast()).to_string_lossy();
            super::text::put(buf, len, &text);
            return buf;
        }
        text.cast()
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

unsafe extern "C" fn no_read(_: *mut fid_cq, _: *mut c_void, _: usize) -> isize {
    -(FI_ENOSYS as isize)
}
unsafe extern "C" fn no_readfrom(
    _: *mut fid_cq,
    _: *mut c_void,
    _: usize,
    _: *mut fi_addr_t,
) -> isize {
    -(FI_ENOSYS as isize)
}
unsafe extern "C" fn no_readerr(_: *mut fid_cq, _: *mut fi_cq_err_entry, _: u64) -> isize {
    -(FI_ENOSYS as isize)
}
unsafe extern "C" fn no_sread(
    _: *mut fid_cq,
    _: *mut c_void,
    _: usize,
    _: *const c_void,
    _: c_int,
) -> isize {
    -(FI_ENOSYS as isize)
}
unsafe extern "C" fn no_sreadfrom(
    _: *mut fid_cq,
    _: *mut c_void,
    _: usize,
    _: *mut fi_addr_t,
    _: *const c_void,
    _: c_int,
) -> isize {
    -(FI_ENOSYS as isize)
}

impl<D: Domain> Tables<D> {
    /// Of a queue that a device reads, in memory that the process does not see.
    pub(crate) const UNREAD_CQ_OPS: &'static fi_ops_cq = &fi_ops_cq {
        read: Some(no_read),
        readfrom: Some(no_readfrom),
        readerr: Some(no_readerr),
        sread: Some(no_sread),
        sreadfrom: Some(no_sreadfrom),
        ..*Tables::<D>::CQ_OPS
    };
}

/// fi_trywait(3) on a completion queue: `FI_EAGAIN` when it must be read first.
///
/// # Safety
/// `q` is a completion queue of ours.
pub(crate) unsafe fn trywait_cq<D: Domain>(q: *mut fid_cq) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { cq::<D>(q)? };
    b.domain.arm_cq(b.id).map(|_| ())
}

// ---- counters --------------------------------------------------------------------------------

/// Body of a `fid_cntr`.
pub(crate) struct CntrBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    wait: Option<Arc<WaitSet>>,
    wait_obj: fi_wait_obj,
    set: Option<(Arc<WaitBody<D>>, i32)>,
}

/// # Safety
/// `c` is NULL or a counter of ours.
pub(crate) unsafe fn cntr<'a, D: Domain>(c: *mut fid_cntr) -> Result<&'a CntrBody<D>> {
    // SAFETY: as promised by the caller.
    unsafe { body::<fid_cntr, CntrBody<D>>(c) }
}

pub(crate) unsafe extern "C" fn cntr_open<D: Domain>(
    d: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    guard_int("fi_cntr_open", || {
        if out.is_null() {
            return Err(FI_EINVAL);
        }
        // SAFETY: `d` is a domain of ours; the attributes are NULL or valid.
        let (domain, attr) = unsafe { (dom::of::<D>(d)?, attr.as_ref()) };
        let (events, wait, flags) = attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE, 0), |a| {
            (a.events, a.wait_obj, a.flags)
        });
        if events > FI_CNTR_EVENTS_BYTES {
            crate::warn_log!(
                FI_LOG_CNTR,
                "fi_cntr_open: events {events}: wanted FI_CNTR_EVENTS_COMP or _BYTES"
            );
            return Err(FI_EINVAL);
        }
        if flags != 0 {
            return Err(FI_EBADFLAGS);
        }
        wait_obj("fi_cntr_open", wait, &WAITS)?;
        let set = attr.map_or(null_mut(), |a| a.wait_set);
        // SAFETY: with FI_WAIT_SET the attributes name an open wait set.
        let set = unsafe { wait_member(wait, set)? };
        let c = domain.open_cntr(events, wait)?;
        let watched = watch(set, &c, Member::Cntr(Arc::clone(domain), c.id));
        let b = CntrBody {
            domain: Arc::clone(domain),
            id: c.id,
            wait: c.wait,
            wait_obj: wait,
            set: watched,
        };
        // SAFETY: `out` is a place for a pointer.
        unsafe { *out = new_cntr(b, context) };
        Ok(())
    })
}

fn new_cntr<D: Domain>(b: CntrBody<D>, context: *mut c_void) -> *mut fid_cntr {
    let f = fid_cntr {
        fid: new_fid(FI_CLASS_CNTR, context, Tables::<D>::CNTR_FI_OPS),
        ops: table(Tables::<D>::CNTR_OPS),
    };
    hand_out(f, b)
}

/// The handle of a counter of the adapter's.
pub(crate) fn external_cntr<D: Domain>(
    domain: &Arc<D>,
    c: OpenedQueue,
    context: *mut c_void,
) -> *mut fid_cntr {
    let b = CntrBody {
        domain: Arc::clone(domain),
        id: c.id,
        wait: None,
        wait_obj: FI_WAIT_NONE,
        set: None,
    };
    new_cntr(b, context)
}

unsafe extern "C" fn cntr_close<D: Domain>(f: *mut fid) -> c_int {
    let close = || {
        // SAFETY: only counters have this table.
        unsafe {
            let b = cntr::<D>(f.cast())?;
            b.domain.close_cntr(b.id)?;
            if let Some((set, fd)) = &b.set {
                set.remove(*fd);
            }
            take::<fid_cntr, CntrBody<D>>(f.cast())?;
        }
        Ok(())
    };
    // SAFETY: only objects of ours have this table.
    unsafe { guard_close(f, close) }
}

unsafe extern "C" fn cntr_control<D: Domain>(
    f: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    guard_int("fi_control", || {
        // SAFETY: only counters have this table; `arg` is what the command wants.
        unsafe {
            let b = cntr::<D>(f.cast())?;
            let arg = if arg.is_null() {
                return Err(FI_EINVAL);
            } else {
                arg
            };
            match command {
                FI_GETWAIT => get_wait(b.wait.as_ref(), b.wait_obj, arg)?,
                FI_GETWAITOBJ => *arg.cast::<fi_wait_obj>() = b.wait_obj,
                _ => return Err(FI_ENOSYS),
            }
        }
        Ok(())
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const CNTR_FI_OPS: &'static fi_ops =
        &ops(cntr_close::<D>, no_bind, cntr_control::<D>);
}

/// # Safety
/// `c` is NULL or a counter of ours.
unsafe fn change<D: Domain>(
    call: &str,
    c: *mut fid_cntr,
    errors: bool,
    set: bool,
    n: u64,
) -> c_int {
    guard_int(call, || {
        // SAFETY: as promised by the caller.
        let b = unsafe { cntr::<D>(c)? };
        b.domain.change_cntr(b.id, errors, set, n)
    })
}

/// The value and the errors of a counter; zeros for one that is closed.
///
/// # Safety
/// `c` is NULL or a counter of ours.
unsafe fn values<D: Domain>(c: *mut fid_cntr) -> (u64, u64) {
    let mut v = (0, 0);
    guard_int("fi_cntr_read", || {
        // SAFETY: as promised by the caller.
        let b = unsafe { cntr::<D>(c)? };
        v = b.domain.read_cntr(b.id)?;
        Ok(())
    });
    v
}

unsafe extern "C" fn cntr_read<D: Domain>(c: *mut fid_cntr) -> u64 {
    // SAFETY: as promised by our caller.
    unsafe { values::<D>(c).0 }
}
unsafe extern "C" fn cntr_readerr<D: Domain>(c: *mut fid_cntr) -> u64 {
    // SAFETY: as promised by our caller.
    unsafe { values::<D>(c).1 }
}
unsafe extern "C" fn cntr_add<D: Domain>(c: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { change::<D>("fi_cntr_add", c, false, false, n) }
}
unsafe extern "C" fn cntr_set<D: Domain>(c: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { change::<D>("fi_cntr_set", c, false, true, n) }
}
unsafe extern "C" fn cntr_adderr<D: Domain>(c: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { change::<D>("fi_cntr_adderr", c, true, false, n) }
}
unsafe extern "C" fn cntr_seterr<D: Domain>(c: *mut fid_cntr, n: u64) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { change::<D>("fi_cntr_seterr", c, true, true, n) }
}
unsafe extern "C" fn cntr_wait<D: Domain>(
    c: *mut fid_cntr,
    threshold: u64,
    timeout: c_int,
) -> c_int {
    guard_int("fi_cntr_wait", || {
        // SAFETY: as promised by our caller.
        let b = unsafe { cntr::<D>(c)? };
        b.domain.wait_cntr(b.id, threshold, timeout)
    })
}

impl<D: Domain> Tables<D> {
    pub(crate) const CNTR_OPS: &'static fi_ops_cntr = &fi_ops_cntr {
        size: size_of::<fi_ops_cntr>(),
        read: Some(cntr_read::<D>),
        readerr: Some(cntr_readerr::<D>),
        add: Some(cntr_add::<D>),
        set: Some(cntr_set::<D>),
        wait: Some(cntr_wait::<D>),
        adderr: Some(cntr_adderr::<D>),
        seterr: Some(cntr_seterr::<D>),
        export_xpu: None,
    };
}

/// fi_trywait(3) on a counter.
///
/// # Safety
/// `c` is a counter of ours.
pub(crate) unsafe fn trywait_cntr<D: Domain>(c: *mut fid_cntr) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { cntr::<D>(c)? };
    let (_, errors) = b.domain.read_cntr(b.id)?;
    b.domain.arm_cntr(b.id, u64::MAX, errors).map(|_| ())
}
