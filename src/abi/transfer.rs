//! What all data transfer calls share: from C arguments to a request, and into the endpoint.
//!
//! `message`, `rma` and `atomic` hold the entry points; each builds a request and hands it to
//! [`go`].

use super::ep::{ep, EpBody};
use crate::core::Result;
pub(crate) use crate::hmem::device_memory_expected;
use crate::hmem::{InjectBuf, MemKind, Piece, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;
use libc::iovec;

pub(crate) type Desc = *mut *mut c_void;

/// A buffer as a call names it: address, bytes, descriptor.
pub(crate) type Buffer = (*const c_void, usize, *mut c_void);

/// Whether a descriptor is of a device's memory.
#[inline(always)]
pub(crate) fn of_device(desc: *mut c_void) -> bool {
    MemKind::of_desc(desc) != MemKind::Host
}

/// Says which buffer is missing. `FI_EINVAL`.
#[cold]
#[inline(never)]
fn no_buffer(len: usize) -> i32 {
    crate::warn_log!(
        FI_LOG_EP_DATA,
        "buf: NULL with a length of {len} bytes: wanted an address (NULL only with 0 bytes)"
    );
    FI_EINVAL
}

/// One piece of host memory. `FI_EINVAL` for a NULL that has a length.
///
/// # Safety
/// As `Piece::new`.
#[inline(always)]
pub(crate) unsafe fn piece(buf: *const c_void, len: usize) -> Result<Piece> {
    // SAFETY: as promised by the caller.
    unsafe { Piece::new(buf, len) }.ok_or_else(|| no_buffer(len))
}

/// A buffer of any kind. `FI_EINVAL` for a NULL that has a length.
///
/// # Safety
/// As `UserMem::new`.
pub(crate) unsafe fn user((buf, len, desc): Buffer) -> Result<UserMem> {
    // SAFETY: as promised by the caller.
    unsafe { UserMem::of_kinds([(buf, len, MemKind::of_desc(desc))]) }.ok_or_else(|| no_buffer(len))
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

/// Several pieces of application memory; `desc` is NULL or has a descriptor for each.
///
/// # Safety
/// `iov` is NULL or has `count` elements, `desc` too; their memory as `UserMem::new` wants it.
pub(crate) unsafe fn many(iov: *const iovec, desc: Desc, count: usize) -> Result<UserMem> {
    if count == 0 {
        return Ok(UserMem::EMPTY);
    }
    if iov.is_null() {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "msg_iov: NULL with iov_count {count}: wanted an array (NULL only with a count of 0)"
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
    // SAFETY: as promised by the caller.
    unsafe {
        let iov = core::slice::from_raw_parts(iov, count);
        let v = iov.iter().enumerate();
        UserMem::of_kinds(v.map(|(i, v)| (v.iov_base.cast_const(), v.iov_len, kind_of(desc, i))))
            .ok_or_else(|| {
                let missing = iov.iter().find(|v| v.iov_base.is_null() && v.iov_len > 0);
                no_buffer(missing.map_or(0, |v| v.iov_len))
            })
    }
}

/// Bytes to copy before the call returns. `FI_EINVAL` for a NULL that has a length.
///
/// # Safety
/// `buf` is NULL or has `len` bytes that can be read, and do not change, until the call returns.
#[inline(always)]
pub(crate) unsafe fn inject_buf<'a>(buf: *const c_void, len: usize) -> Result<InjectBuf<'a>> {
    // SAFETY: as promised by the caller.
    unsafe { InjectBuf::new(buf, len) }.ok_or_else(|| no_buffer(len))
}

/// A copy of what a call injects, which has no descriptor to say whose memory it is. `FI_EIO` when
/// its device could not copy it.
///
/// # Safety
/// `buf` is NULL or has `len` readable bytes, of any kind.
#[cold]
pub(crate) unsafe fn inject_any(buf: *const c_void, len: usize) -> Result<Vec<u8>> {
    let kind = crate::hmem::owner(buf as usize).unwrap_or_default();
    // SAFETY: as promised by the caller.
    copied(&unsafe { UserMem::of_kinds([(buf, len, kind)]) }.ok_or_else(|| no_buffer(len))?)
}

/// A copy of memory. `FI_EIO` when its device could not copy it.
fn copied(mem: &UserMem) -> Result<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(mem.len()).map_err(|_| FI_ENOMEM)?;
    copy.resize(mem.len(), 0);
    match mem.load(0, &mut copy) == mem.len() {
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
    Common {
        flags: Some(flags),
        ..plain(context)
    }
}

/// A request that an endpoint carries out.
pub(crate) trait Request {
    /// Carries it out.
    fn start<D: Domain>(&self, d: &D, by: Poster) -> Result<()>;
    /// What every request has.
    fn common(&mut self) -> &mut Common;
    /// To be kept until later.
    fn defer(&self) -> DeferredOp;
    /// Default flags of an alias for this kind of request.
    fn alias<D: Domain>(b: &EpBody<D>) -> Option<u64> {
        b.tx_flags
    }
}

fn own(by: Poster) -> Result<u32> {
    match by {
        Poster::Ep(id) => Ok(id),
        // A shared receive context receives, and nothing else.
        Poster::Srx(_) => Err(FI_EOPNOTSUPP),
    }
}

macro_rules! request {
    ($t:ty, $start:ident) => {
        impl Request for $t {
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
request!(MsgReq<SendData<'_>>, send);
request!(RmaReq<SendData<'_>>, rma);
request!(AtomicReq<SendData<'_>>, atomic);

impl Request for RecvReq {
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
        b.rx_flags
    }
}

/// Hands a request to its endpoint.
///
/// # Safety
/// `e` is NULL or an endpoint of ours; the request's memory is lent until completion. With
/// FI_TRIGGER the context is a `struct fi_triggered_context`.
#[inline]
pub(crate) unsafe fn go<D: Domain, R: Request>(e: *mut fid_ep, mut r: R) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep::<D>(e)? };
    let c = r.common();
    c.alias = R::alias(b);
    if c.flags.or(c.alias).is_some_and(|f| f & FI_TRIGGER != 0) {
        // SAFETY: as promised by the caller.
        return unsafe { triggered(b, r) };
    }
    r.start(&*b.domain, b.who)?;
    Ok(())
}

/// Queues a request until the counter in its context has come far enough (fi_trigger(3)).
///
/// # Safety
/// The context is a `struct fi_triggered_context`.
#[cold]
unsafe fn triggered<D: Domain, R: Request>(b: &EpBody<D>, mut r: R) -> Result<()> {
    let c = r.common();
    c.flags = c.flags.map(|f| f & !FI_TRIGGER);
    c.alias = c.alias.map(|f| f & !FI_TRIGGER);
    let at = c.context as *const fi_triggered_context;
    // SAFETY: as promised by the caller.
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
    // SAFETY: the application names an open counter.
    let cntr = unsafe { super::queues::cntr::<D>(threshold.cntr)?.id };
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

/// Runs `f` with the data of a `*msg` call: a copy if its FI_INJECT asks for one.
pub(crate) fn with_data<T>(
    mem: UserMem,
    flags: u64,
    f: impl FnOnce(SendData) -> Result<T>,
) -> Result<T> {
    if flags & FI_INJECT == 0 {
        return f(SendData::User(mem));
    }
    f(SendData::Inject(copied(&mem)?.as_slice().into()))
}
