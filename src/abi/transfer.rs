//! What all data transfer calls share: from C arguments to a request, and into the endpoint.
//!
//! `message`, `rma` and `atomic` hold the entry points; each builds a request and hands it to
//! [`go`]. The buffers of a call are types of their own ([`Buffer`], [`Buffers`], [`InjectBytes`]):
//! only an entry point makes one, of arguments whose caller lends the memory until completion, or,
//! for an injecting call, until it returns.

use super::default_flags::inject;
use super::entry::FromC;
use super::ep::EpBody;
use super::work::counter;
use crate::core::{params, Result};
pub(crate) use crate::hmem::device_memory_expected;
use crate::hmem::{InjectBuf, MemKind, Piece, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use libc::iovec;

pub(crate) type Desc = *mut *mut c_void;

/// Whether a descriptor is of a device's memory.
#[inline(always)]
pub(crate) fn of_device(desc: *mut c_void) -> bool {
    MemKind::of_desc(desc) != MemKind::Host
}

/// Logs which buffer is missing. `FI_EINVAL`.
#[cold]
#[inline(never)]
fn no_buffer(len: usize) -> i32 {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "buf: NULL with a length of {len} bytes: wanted an address (NULL only with 0 bytes)"
    );
    FI_EINVAL
}

/// Bytes of a buffer, which is NULL or as long as it says, and lent until completion.
#[derive(Clone, Copy)]
pub(crate) struct LentBytes {
    at: *const c_void,
    len: usize,
}

/// A buffer as a call names it: bytes, and their descriptor.
///
/// A cold function takes the two apart: each is passed in registers, so that the way past the call
/// pays nothing.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    pub bytes: LentBytes,
    pub desc: *mut c_void,
}

impl Buffer {
    /// No bytes.
    pub(crate) const EMPTY: Buffer = Buffer {
        bytes: LentBytes {
            at: core::ptr::null(),
            len: 0,
        },
        desc: core::ptr::null_mut(),
    };

    /// A buffer for the conversions of other arguments.
    ///
    /// # Safety
    /// It is NULL or `len` bytes long, and lent until completion.
    #[inline(always)]
    pub(crate) unsafe fn new(at: *const c_void, len: usize, desc: *mut c_void) -> Buffer {
        let bytes = LentBytes { at, len };
        Buffer { bytes, desc }
    }

    /// Whether it is a device's memory.
    #[inline(always)]
    pub(crate) fn of_device(&self) -> bool {
        of_device(self.desc)
    }

    /// The bytes of a call with FI_INJECT.
    #[inline(always)]
    pub(crate) fn to_inject(self) -> InjectBytes {
        InjectBytes {
            buf: self.bytes.at,
            len: self.bytes.len,
        }
    }

    /// Host memory in one piece. `FI_EINVAL` for a NULL that has a length.
    #[inline(always)]
    pub(crate) fn piece(&self) -> Result<Piece> {
        let LentBytes { at, len } = self.bytes;
        // SAFETY: see the module text.
        unsafe { Piece::new(at, len) }.ok_or_else(|| no_buffer(len))
    }

    /// Memory of any kind. `FI_EINVAL` for a NULL that has a length.
    pub(crate) fn mem(&self) -> Result<UserMem> {
        let LentBytes { at, len } = self.bytes;
        let kind = MemKind::of_desc(self.desc);
        // SAFETY: see the module text.
        unsafe { UserMem::of_kinds([(at, len, kind)]) }.ok_or_else(|| no_buffer(len))
    }
}

impl FromC<(*const c_void, usize, *mut c_void)> for Buffer {
    #[inline(always)]
    unsafe fn from_c((at, len, desc): (*const c_void, usize, *mut c_void)) -> Result<Self> {
        // SAFETY: as promised by the caller.
        Ok(unsafe { Buffer::new(at, len, desc) })
    }
}

impl FromC<(*mut c_void, usize, *mut c_void)> for Buffer {
    #[inline(always)]
    unsafe fn from_c((at, len, desc): (*mut c_void, usize, *mut c_void)) -> Result<Self> {
        // SAFETY: as promised by the caller.
        Ok(unsafe { Buffer::new(at, len, desc) })
    }
}

/// Bytes of an injecting call: they are read before it returns.
#[derive(Clone, Copy)]
pub(crate) struct InjectBytes {
    buf: *const c_void,
    len: usize,
}

impl InjectBytes {
    /// As [`Buffer::new`], for the call only.
    ///
    /// # Safety
    /// It is NULL or `len` bytes long, which do not change until the call returns.
    #[inline(always)]
    pub(crate) unsafe fn new(buf: *const c_void, len: usize) -> InjectBytes {
        InjectBytes { buf, len }
    }

    /// Host memory. `FI_EINVAL` for a NULL that has a length.
    #[inline(always)]
    pub(crate) fn host(&self) -> Result<InjectBuf<'_>> {
        // SAFETY: see the module text.
        unsafe { InjectBuf::new(self.buf, self.len) }.ok_or_else(|| no_buffer(self.len))
    }

    /// A copy: an injecting call has no descriptor to say whose memory it is. `FI_EIO` when its
    /// device could not copy it.
    #[cold]
    pub(crate) fn copy(&self) -> Result<Vec<u8>> {
        let kind = crate::hmem::owner(self.buf as usize).unwrap_or_default();
        // SAFETY: see the module text.
        let mem = unsafe { UserMem::of_kinds([(self.buf, self.len, kind)]) };
        copied(&mem.ok_or_else(|| no_buffer(self.len))?)
    }
}

impl FromC<(*const c_void, usize)> for InjectBytes {
    #[inline(always)]
    unsafe fn from_c((buf, len): (*const c_void, usize)) -> Result<Self> {
        Ok(InjectBytes { buf, len })
    }
}

/// The kind of element `i` of a list.
///
/// # Safety
/// `desc` is NULL or has that element.
#[inline]
pub(crate) unsafe fn kind_of(desc: Desc, i: usize) -> MemKind {
    if desc.is_null() {
        return MemKind::Host;
    }
    // SAFETY: as promised by the caller.
    MemKind::of_desc(unsafe { *desc.add(i) })
}

/// Several buffers: a list, and NULL or as many descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    iov: *const iovec,
    desc: Desc,
    count: usize,
}

impl Buffers {
    /// The only buffer, if it is host memory; no bytes if there is none.
    #[inline(always)]
    pub(crate) fn one_of_host(&self) -> Option<Buffer> {
        if self.count == 0 {
            return Some(Buffer::EMPTY);
        }
        if self.count > 1 || self.iov.is_null() {
            return None;
        }
        // SAFETY: see the module text; each list has one element.
        let (kind, iov) = unsafe { (kind_of(self.desc, 0), *self.iov) };
        // SAFETY: as above, the element's memory is lent until completion.
        let buffer = unsafe { Buffer::new(iov.iov_base, iov.iov_len, core::ptr::null_mut()) };
        (kind == MemKind::Host).then_some(buffer)
    }

    /// The memory. `FI_EINVAL` for a list that is missing or longer than `iov_limit`.
    pub(crate) fn mem(&self) -> Result<UserMem> {
        let (iov, count) = (self.iov, self.count);
        if count == 0 {
            return Ok(UserMem::EMPTY);
        }
        if iov.is_null() {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "msg_iov: NULL with iov_count {count}: wanted an array (NULL only with a count of \
                 0)"
            );
            return Err(FI_EINVAL);
        }
        if count > crate::hmem::MAX_SEGS {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "iov_count: wanted {count}, at most {} (iov_limit)",
                crate::hmem::MAX_SEGS
            );
            return Err(FI_EINVAL);
        }
        // SAFETY: see the module text; the list has `count` elements.
        unsafe {
            let iov = core::slice::from_raw_parts(iov, count);
            let v = (0..).zip(iov);
            UserMem::of_kinds(
                v.map(|(i, v)| (v.iov_base.cast_const(), v.iov_len, kind_of(self.desc, i))),
            )
            .ok_or_else(|| {
                let missing = iov.iter().find(|v| v.iov_base.is_null() && v.iov_len > 0);
                no_buffer(missing.map_or(0, |v| v.iov_len))
            })
        }
    }
}

impl FromC<(*const iovec, Desc, usize)> for Buffers {
    #[inline(always)]
    unsafe fn from_c((iov, desc, count): (*const iovec, Desc, usize)) -> Result<Self> {
        Ok(Buffers { iov, desc, count })
    }
}

/// A copy of memory. `FI_EIO` when its device could not copy it.
pub(super) fn copied(mem: &UserMem) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(mem.len()).map_err(|_| FI_ENOMEM)?;
    copy.resize(mem.len(), 0);
    match mem.try_load(0, &mut copy) {
        true => Ok(copy),
        false => Err(FI_EIO),
    }
}

/// The part of a request that every call has, for calls without flags of their own.
#[inline]
pub(crate) fn plain(context: *mut c_void) -> Common {
    Common {
        context: context as usize,
        ..Common::default()
    }
}

/// As [`plain`], for a `*msg` call.
pub(crate) fn flagged(context: *mut c_void, flags: u64) -> Common {
    FlaggedCall::new(context, flags).common()
}

/// A request that an endpoint carries out.
pub(crate) trait TransferRequest {
    /// Carries it out.
    fn start<D: Domain>(&self, d: &D, by: Poster) -> Result<()>;
    /// What every request has.
    fn common(&mut self) -> &mut Common;
    /// To be kept until later.
    fn defer(&self) -> DeferredOp;
    /// Default flags of an alias for this kind of request.
    fn alias<D: Domain>(b: &EpBody<D>) -> Option<u64> {
        b.tx_flags.get()
    }
    /// The option of an endpoint that bounds what such requests may inject.
    const INJECT_LIMIT: c_int;
    /// Whether its data are a copy, or read before the call returns.
    fn injected(&self) -> bool;
    /// The memory whose bytes it sends, lent until it completes.
    fn lent(&self) -> Option<UserMem>;
    /// As [`TransferRequest::start`], with these bytes in place of [`TransferRequest::lent`].
    fn start_with<D: Domain>(&self, copy: &[u8], d: &D, by: Poster) -> Result<()>;
}

/// The application's memory that a request names.
fn user_memory(data: &SendData) -> Option<UserMem> {
    match data {
        SendData::User(m) => Some(*m),
        SendData::Inject(_) => None,
    }
}

/// The endpoint of a request that a shared receive context cannot have.
pub(crate) fn own(by: Poster) -> Result<u32> {
    match by {
        Poster::Ep(id) => Ok(id),
        // A shared receive context receives, and nothing else.
        Poster::Srx(_) => Err(FI_EOPNOTSUPP),
    }
}

macro_rules! request {
    ($req:ident, $start:ident, $limit:ident, $sends:expr) => {
        impl TransferRequest for $req<SendData<'_>> {
            const INJECT_LIMIT: c_int = $limit;

            fn injected(&self) -> bool {
                matches!(self.data, SendData::Inject(_))
            }
            fn lent(&self) -> Option<UserMem> {
                let sends: fn(&Self) -> bool = $sends;
                user_memory(&self.data).filter(|_| sends(self))
            }
            fn start_with<D: Domain>(&self, copy: &[u8], d: &D, by: Poster) -> Result<()> {
                let data = SendData::Inject(copy.into());
                d.$start(own(by)?, &$req { data, ..*self })
            }
            #[inline]
            fn start<D: Domain>(&self, d: &D, by: Poster) -> Result<()> {
                d.$start(own(by)?, self)
            }
            #[inline]
            fn common(&mut self) -> &mut Common {
                &mut self.common
            }
            fn defer(&self) -> DeferredOp {
                DeferredOp::from(self)
            }
        }
    };
}
request!(MsgReq, send, FI_OPT_INJECT_MSG_SIZE, |_| true);
request!(RmaReq, rma, FI_OPT_INJECT_RMA_SIZE, |r| r.write);
request!(AtomicReq, atomic, FI_OPT_INJECT_ATOMIC_SIZE, |_| true);

impl TransferRequest for RecvReq {
    const INJECT_LIMIT: c_int = FI_OPT_INJECT_MSG_SIZE;

    fn injected(&self) -> bool {
        false
    }
    fn lent(&self) -> Option<UserMem> {
        None
    }
    fn start_with<D: Domain>(&self, _: &[u8], d: &D, by: Poster) -> Result<()> {
        self.start(d, by)
    }
    #[inline]
    fn start<D: Domain>(&self, d: &D, by: Poster) -> Result<()> {
        d.recv(by, self)
    }
    #[inline]
    fn common(&mut self) -> &mut Common {
        &mut self.common
    }
    fn defer(&self) -> DeferredOp {
        DeferredOp::from(self)
    }
    fn alias<D: Domain>(b: &EpBody<D>) -> Option<u64> {
        b.rx_flags.get()
    }
}

/// Hands a request to its endpoint.
#[inline]
pub(crate) fn go<D: Domain, R: TransferRequest>(b: &EpBody<D>, mut r: R) -> Result<()> {
    let c = r.common();
    c.alias = R::alias(b);
    if c.flags.or(c.alias).is_some_and(|f| f & FI_TRIGGER != 0) {
        return triggered(b, r);
    }
    match c.alias {
        Some(f) if c.flags.is_none() && f & FI_INJECT != 0 => return inject(b, r, f),
        _ => {}
    }
    r.start(&*b.domain, b.who)?;
    Ok(())
}

/// Queues a request until the counter in its context has come far enough (fi_trigger(3)).
#[cold]
fn triggered<D: Domain, R: TransferRequest>(b: &EpBody<D>, mut r: R) -> Result<()> {
    let c = r.common();
    c.flags = c.flags.map(|f| f & !FI_TRIGGER);
    c.alias = c.alias.map(|f| f & !FI_TRIGGER);
    let at = c.context as *const fi_triggered_context;
    // SAFETY: with FI_TRIGGER the context is a `struct fi_triggered_context`, as the caller of the
    // entry point vouches.
    let (event, threshold) = unsafe {
        let t = at.as_ref().ok_or(FI_EINVAL)?;
        (t.event_type, t.trigger.threshold)
    };
    if event != FI_TRIGGER_THRESHOLD {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "FI_TRIGGER: event_type {event}: wanted FI_TRIGGER_THRESHOLD"
        );
        return Err(FI_ENOSYS);
    }
    // SAFETY: the application names an object.
    let cntr = unsafe { counter(&b.domain, threshold.cntr, "FI_TRIGGER")? };
    let t = Trigger {
        cntr,
        threshold: threshold.threshold as u64,
        ep: own(b.who)?,
        op: r.defer(),
        name: 0,
    };
    b.domain.trigger(t)?;
    Ok(())
}

/// Runs `f` with the data of a `*msg` call: a copy if its FI_INJECT asks for one. `FI_EMSGSIZE`
/// for more than any endpoint injects.
pub(crate) fn with_data<T>(
    mem: UserMem,
    flags: u64,
    f: impl FnOnce(SendData) -> Result<T>,
) -> Result<T> {
    if flags & FI_INJECT == 0 {
        return f(SendData::User(mem));
    }
    if mem.len() > params::INJECT_MOST {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "FI_INJECT with {} bytes: at most tx_attr->inject_size",
            mem.len()
        );
        return Err(FI_EMSGSIZE);
    }
    f(SendData::Inject(copied(&mem)?.as_slice().into()))
}
