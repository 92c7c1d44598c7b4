//! `fid_cq` and `fid_cntr`: formats, waiting, errors.

use super::entry::{entry, ControlArg, FromC, OutParam, TextOut};
use super::fabric::wait_obj;
use super::object::*;
use super::sets::{Member, WaitBody};
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
}

/// Largest buffer for error data that an application is believed to offer, bytes.
const ERR_DATA_MAX: usize = 1 << 16;

/// fi_control(3) of a queue or counter: its wait object.
fn control(
    w: Option<&Arc<WaitSet>>,
    obj: fi_wait_obj,
    command: c_int,
    arg: &ControlArg,
) -> Result<()> {
    // SAFETY: each command takes the address of what is put there: with FI_WAIT_MUTEX_COND the
    // mutex and condition, else the descriptor.
    unsafe {
        match command {
            FI_GETWAIT => {
                let w = w.ok_or(FI_ENODATA)?;
                if obj == FI_WAIT_MUTEX_COND {
                    let (mutex, cond) = w.mutex_cond();
                    arg.place()?.put(fi_mutex_cond { mutex, cond });
                } else {
                    arg.place::<c_int>()?.put(w.fd());
                }
            }
            FI_GETWAITOBJ => arg.place::<fi_wait_obj>()?.put(obj),
            _ => return Err(FI_ENOSYS),
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
fn wait_member<D: Domain>(
    obj: fi_wait_obj,
    set: *mut fid_wait,
) -> Result<Option<Arc<WaitBody<D>>>> {
    if obj != FI_WAIT_SET {
        return Ok(None);
    }
    // SAFETY: with FI_WAIT_SET the attributes of an open call name a wait set, or NULL.
    let set: &Arc<WaitBody<D>> = unsafe { FromC::from_c(set)? };
    Ok(Some(Arc::clone(set)))
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
        let watched = watch(set, &q, Member::Cq(Arc::clone(domain), q.id));
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

/// Where a caller wants completions: room for as many as it says, and NULL or as many addresses.
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

/// fi_cq_read(3), or `NAMED`, fi_cq_readfrom(3), which finds out who has sent.
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

/// An error entry that a caller wants filled, as long as its API version has it.
struct ErrEntryOut(*mut fi_cq_err_entry);

impl FromC<*mut fi_cq_err_entry> for ErrEntryOut {
    unsafe fn from_c(p: *mut fi_cq_err_entry) -> Result<Self> {
        match p.is_null() {
            true => Err(FI_EINVAL),
            false => Ok(ErrEntryOut(p)),
        }
    }
}

impl ErrEntryOut {
    /// The buffer that the application offers for error data, since 1.5. Programs that expect none
    /// leave these members uninitialised: sizes beyond reason are no offer.
    fn offered(&self, api: u32) -> Option<(*mut c_void, usize)> {
        if api < version(1, 5) {
            return None;
        }
        // SAFETY: an entry of this version has both members.
        let (data, size) = unsafe { ((*self.0).err_data, (*self.0).err_data_size) };
        ((1..=ERR_DATA_MAX).contains(&size) && !data.is_null()).then_some((data, size))
    }

    /// Fills it with `e`, and with data that is copied to the buffer offered, or lent.
    fn fill(&self, e: &ErrEntry, api: u32, text: Option<&[u8]>) {
        let (data, size) = match (text, self.offered(api)) {
            (None, _) => (null_mut(), 0),
            (Some(text), None) => (text.as_ptr().cast_mut().cast(), text.len()),
            (Some(text), Some((theirs, room))) => {
                let size = text.len().min(room);
                // SAFETY: the application offers `room` bytes.
                unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), theirs.cast(), size) };
                (theirs, size)
            }
        };
        let full = fi_cq_err_entry {
            op_context: e.entry.context as *mut c_void,
            flags: e.entry.flags,
            len: e.entry.len,
            buf: e.entry.buf as *mut c_void,
            data: e.entry.data,
            tag: e.entry.tag,
            olen: e.olen,
            err: e.err,
            prov_errno: e.prov_errno,
            err_data: data,
            err_data_size: size,
            src_addr: e.entry.src,
        };
        // SAFETY: the application's entry is as long as its API version has it.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (&raw const full).cast::<u8>(),
                self.0.cast::<u8>(),
                err_entry_size(api),
            );
        }
    }
}

entry! {
    fn cq_readerr<D: Domain>(
        q: *mut fid_cq as &CqBody<D>,
        out: *mut fi_cq_err_entry as ErrEntryOut,
        _flags: u64,
    ) -> isize = "fi_cq_readerr" {
        let mut e = q.domain.read_cq_error(q.id)?;
        let api = q.domain.fabric().api;
        // What can happen without anything being wrong carries no data.
        let text = core::mem::take(&mut e.text);
        let mut errors = q.errors.lock().unwrap_or_else(|e| e.into_inner());
        let text = errors.lend(e.prov_errno, text);
        let expected = matches!(e.err, FI_ENOMSG | FI_ECANCELED | FI_ETRUNC);
        out.fill(&e, api, (!expected).then_some(text));
        Ok(1)
    }
}

entry! {
    fn cq_signal<D: Domain>(q: *mut fid_cq as &CqBody<D>) -> c_int = "fi_cq_signal" {
        q.domain.signal_cq(q.id)
    }
}

/// The queue whose error is explained; `None` for one that is closed.
struct ClosedOr<'a, D: Domain>(Option<&'a CqBody<D>>);

impl<D: Domain> FromC<*mut fid_cq> for ClosedOr<'_, D> {
    unsafe fn from_c(q: *mut fid_cq) -> Result<Self> {
        // SAFETY: as promised by the caller.
        Ok(ClosedOr(unsafe { FromC::from_c(q) }.ok()))
    }
}

entry! {
    fn cq_strerror<D: Domain>(
        q: *mut fid_cq as ClosedOr<D>,
        prov_errno: c_int,
        err_data: *const c_void,
        (buf: *mut c_char, len: usize) as out: TextOut,
    ) -> *const c_char = "fi_cq_strerror" {
        let ClosedOr(Some(q)) = q else {
            return Ok(c"closed completion queue".as_ptr());
        };
        let mut errors = q.errors.lock().unwrap_or_else(|e| e.into_inner());
        // Without data the text of the error read last is meant, if it is of this kind.
        let lent = match err_data.is_null() {
            true => errors.latest(prov_errno),
            false => errors.at(err_data.cast()),
        };
        let text = match lent {
            Some(text) => text,
            None => {
                let text = match err_data.is_null() {
                    true => D::error_text(prov_errno),
                    // SAFETY: a copy of error data that the application made is a terminated
                    // string.
                    false => unsafe { super::info::string(err_data.cast()) }.unwrap_or_default(),
                };
                errors.lend(prov_errno, text)
            }
        };
        let copied = out.put(String::from_utf8_lossy(text).trim_end_matches('\0'));
        Ok(copied.unwrap_or(text.as_ptr().cast()))
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

// ---- counters --------------------------------------------------------------------------------

/// Body of a `fid_cntr`.
pub(crate) struct CntrBody<D: Domain> {
    pub domain: Arc<D>,
    pub id: u32,
    wait: Option<Arc<WaitSet>>,
    wait_obj: fi_wait_obj,
    set: Option<(Arc<WaitBody<D>>, i32)>,
}

entry! {
    pub(crate) fn cntr_open<D: Domain>(
        domain: *mut fid_domain as &Arc<D>,
        attr: *mut fi_cntr_attr as Option<&fi_cntr_attr>,
        out: *mut *mut fid_cntr as OutParam<*mut fid_cntr>,
        context: *mut c_void,
    ) -> c_int = "fi_cntr_open" {
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
        let set = wait_member(wait, attr.map_or(null_mut(), |a| a.wait_set))?;
        let c = domain.open_cntr(events, wait)?;
        let watched = watch(set, &c, Member::Cntr(Arc::clone(domain), c.id));
        let b = CntrBody {
            domain: Arc::clone(domain),
            id: c.id,
            wait: c.wait,
            wait_obj: wait,
            set: watched,
        };
        out.put(new_cntr(b, context));
        Ok(())
    }
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

close! {
    fn cntr_close<D: Domain>(b: CntrBody<D> as fid_cntr) {
        b.domain.close_cntr(b.id)?;
        if let Some((set, fd)) = &b.set {
            set.remove(*fd);
        }
        Ok(())
    }
}

entry! {
    fn cntr_control<D: Domain>(
        c: *mut fid as &CntrBody<D>,
        command: c_int,
        arg: *mut c_void as ControlArg,
    ) -> c_int = "fi_control" {
        control(c.wait.as_ref(), c.wait_obj, command, &arg)
    }
}

impl<D: Domain> Tables<D> {
    pub(crate) const CNTR_FI_OPS: &'static fi_ops =
        &ops(cntr_close::<D>, no_bind, cntr_control::<D>);
}

entry! {
    fn cntr_read<D: Domain>(c: *mut fid_cntr as &CntrBody<D>) -> u64 = "fi_cntr_read" {
        Ok(c.domain.read_cntr(c.id)?.0)
    }
}

entry! {
    fn cntr_readerr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>) -> u64 = "fi_cntr_readerr" {
        Ok(c.domain.read_cntr(c.id)?.1)
    }
}

entry! {
    fn cntr_add<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int = "fi_cntr_add" {
        c.domain.change_cntr(c.id, false, false, n)
    }
}

entry! {
    fn cntr_set<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int = "fi_cntr_set" {
        c.domain.change_cntr(c.id, false, true, n)
    }
}

entry! {
    fn cntr_adderr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int
        = "fi_cntr_adderr"
    {
        c.domain.change_cntr(c.id, true, false, n)
    }
}

entry! {
    fn cntr_seterr<D: Domain>(c: *mut fid_cntr as &CntrBody<D>, n: u64) -> c_int
        = "fi_cntr_seterr"
    {
        c.domain.change_cntr(c.id, true, true, n)
    }
}

entry! {
    fn cntr_wait<D: Domain>(
        c: *mut fid_cntr as &CntrBody<D>,
        threshold: u64,
        timeout: c_int,
    ) -> c_int = "fi_cntr_wait" {
        c.domain.wait_cntr(c.id, threshold, timeout)
    }
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
