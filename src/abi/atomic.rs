//! Entry points of atomics, fi_atomic(3).

use super::ep::ep;
use super::object::{guard_int, guard_op, Tables};
use super::transfer::*;
use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};
use crate::core::Result;
use crate::hmem::{arith, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};

/// Bytes of `count` elements.
fn bytes(count: usize, dt: fi_datatype) -> Result<usize> {
    let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
    count.checked_mul(size).ok_or(FI_EINVAL)
}

/// Pieces in elements as a call names them: list, descriptors, how many.
pub(crate) type IocList = (*const fi_ioc, Desc, usize);

/// Several pieces of application memory, in elements.
///
/// # Safety
/// The list is NULL or has as many elements as it says, the descriptors too; their memory as
/// `UserMem::new` wants it.
pub(crate) unsafe fn pieces((iov, desc, count): IocList, dt: fi_datatype) -> Result<UserMem> {
    if count == 0 {
        return Ok(UserMem::EMPTY);
    }
    if iov.is_null() || count > crate::hmem::MAX_SEGS {
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "iov_count: wanted {count}, at most {} (iov_limit)",
            crate::hmem::MAX_SEGS
        );
        return Err(FI_EINVAL);
    }
    let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
    // SAFETY: as promised by the caller.
    unsafe {
        let v = core::slice::from_raw_parts(iov, count).iter().enumerate();
        UserMem::of_kinds(v.map(|(i, v)| {
            let len = v.count.saturating_mul(size);
            (v.addr.cast_const(), len, kind_of(desc, i))
        }))
        .ok_or(FI_EINVAL)
    }
}

/// What an atomic does, and to whom: peer, address, key, datatype, operation.
#[derive(Clone, Copy)]
struct AtomicCallee(fi_addr_t, u64, u64, fi_datatype, fi_op);

/// A request for as many elements as there are bytes of data, or of results when it only reads.
fn req<'a>(
    data: SendData<'a>,
    fetch: Fetch,
    w: AtomicCallee,
    context: *mut c_void,
) -> Result<AtomicReq<SendData<'a>>> {
    let AtomicCallee(peer, addr, key, datatype, op) = w;
    let len = match fetch {
        Fetch::Former(m) if op == FI_ATOMIC_READ => m.len(),
        _ => data.len(),
    };
    let remote = RmaIov {
        addr,
        len: len as u64,
        key,
    };
    Ok(AtomicReq {
        data,
        fetch,
        peer,
        to: Iovs::new(&[remote]).ok_or(FI_EINVAL)?,
        datatype,
        op,
        common: plain(context),
    })
}

/// The request of a `*atomicmsg` call, given to `f`.
///
/// # Safety
/// The message is valid; its buffers are lent until completion.
pub(crate) unsafe fn atomic_request<T>(
    m: &fi_msg_atomic,
    fetch: Fetch,
    flags: u64,
    f: impl FnOnce(AtomicReq<SendData>) -> Result<T>,
) -> Result<T> {
    // SAFETY: as promised by the caller.
    let (mem, remote) = unsafe {
        // The operand of a read is ignored (fi_atomic(3)), and may be NULL.
        let mem = match m.op {
            FI_ATOMIC_READ => UserMem::EMPTY,
            _ => pieces((m.msg_iov, m.desc, m.iov_count), m.datatype)?,
        };
        if m.rma_iov.is_null() {
            return Err(FI_EINVAL);
        }
        (
            mem,
            core::slice::from_raw_parts(m.rma_iov, m.rma_iov_count.min(16)),
        )
    };
    let mut list = [RmaIov::default(); MAX_IOV];
    for (to, v) in list.iter_mut().zip(remote) {
        *to = RmaIov {
            addr: v.addr,
            len: bytes(v.count, m.datatype)? as u64,
            key: v.key,
        };
    }
    let to = list
        .get(..remote.len())
        .and_then(Iovs::new)
        .ok_or(FI_EINVAL)?;
    with_data(mem, flags, |data| {
        f(AtomicReq {
            data,
            fetch,
            peer: m.addr,
            to,
            datatype: m.datatype,
            op: m.op,
            common: flagged(m.context, flags),
        })
    })
}

/// Where a fetching atomic's results go.
///
/// # Safety
/// As [`pieces`].
pub(crate) unsafe fn former(list: IocList, dt: fi_datatype) -> Result<Fetch> {
    // SAFETY: as promised by the caller.
    Ok(Fetch::Former(unsafe { pieces(list, dt)? }))
}

/// Where a comparing atomic's results go, and what it compares with.
///
/// # Safety
/// As [`pieces`].
pub(crate) unsafe fn compare(result: IocList, with: IocList, dt: fi_datatype) -> Result<Fetch> {
    // SAFETY: as promised by the caller.
    unsafe { Ok(Fetch::Compare(pieces(result, dt)?, pieces(with, dt)?)) }
}

/// The buffers of an atomic on one piece, and how it ends: operands, values to compare with, where
/// the former values go.
struct Operands {
    data: Buffer,
    compare: Option<Buffer>,
    result: Option<Buffer>,
    /// `None`: an injecting call.
    context: Option<*mut c_void>,
}

impl Operands {
    fn of(data: Buffer, context: Option<*mut c_void>) -> Operands {
        Operands {
            data,
            compare: None,
            result: None,
            context,
        }
    }
}

/// Starts an atomic on one buffer, without flags of its own.
///
/// # Safety
/// `e` is NULL or an endpoint of ours; the buffers are lent until completion, or for the call.
#[inline]
unsafe fn start<D: Domain>(e: *mut fid_ep, w: AtomicCallee, len: usize, o: Operands) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep::<D>(e)? };
    let AtomicCallee(peer, addr, key, datatype, op) = w;
    let device = |m: Option<Buffer>| m.is_some_and(|m| of_device(m.2));
    let injected = o.context.is_none() && device_memory_expected();
    let host = !(injected || of_device(o.data.2) || device(o.compare) || device(o.result));
    let (Some(id), true) = (b.plain_tx(), host) else {
        // SAFETY: as promised by the caller.
        return unsafe { start_any::<D>(e, w, o) };
    };
    // SAFETY: as promised by the caller.
    unsafe {
        let of = |m: Buffer| piece(m.0, m.1);
        let fetch = match (o.compare, o.result) {
            (Some(with), Some(result)) => Fetch::Compare(of(result)?, of(with)?),
            (_, Some(result)) => Fetch::Former(of(result)?),
            _ => Fetch::No,
        };
        let len = len as u64;
        let to = RmaIov { addr, len, key };
        let common = PlainCall {
            context: o.context.unwrap_or(null_mut()) as usize,
        };
        match o.context {
            Some(_) => {
                let data = of(o.data)?;
                let r = AtomicReq {
                    data,
                    fetch,
                    peer,
                    to,
                    datatype,
                    op,
                    common,
                };
                b.domain.atomic(id, &r)
            }
            None => {
                let data = inject_buf(o.data.0, o.data.1)?;
                let r = AtomicReq {
                    data,
                    fetch,
                    peer,
                    to,
                    datatype,
                    op,
                    common,
                };
                b.domain.atomic(id, &r)
            }
        }
    }
}

/// As [`start`], of an alias, or on memory that is, or may be, a device's.
///
/// # Safety
/// As [`start`].
#[cold]
unsafe fn start_any<D: Domain>(e: *mut fid_ep, w: AtomicCallee, o: Operands) -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe {
        let fetch = match (o.compare, o.result) {
            (Some(with), Some(result)) => Fetch::Compare(user(result)?, user(with)?),
            (_, Some(result)) => Fetch::Former(user(result)?),
            _ => Fetch::No,
        };
        let copy;
        let data = match o.context {
            Some(_) => SendData::User(user(o.data)?),
            None if device_memory_expected() => {
                copy = inject_any(o.data.0, o.data.1)?;
                SendData::Inject(copy.as_slice().into())
            }
            None => SendData::Inject(inject_buf(o.data.0, o.data.1)?),
        };
        go::<D, _>(e, req(data, fetch, w, o.context.unwrap_or(null_mut()))?)
    }
}

unsafe extern "C" fn write<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_atomic", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let len = bytes(count, dt)?;
        start::<D>(e, w, len, Operands::of((buf, len, desc), Some(context)))
    })
}
unsafe extern "C" fn writev<D: Domain>(
    e: *mut fid_ep,
    iov: *const fi_ioc,
    desc: Desc,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_atomicv", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let data = SendData::User(pieces((iov, desc, count), dt)?);
        go::<D, _>(e, req(data, Fetch::No, w, context)?)
    })
}
unsafe extern "C" fn writemsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_atomic,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_atomicmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        atomic_request(m, Fetch::No, flags, |r| go::<D, _>(e, r))
    })
}
unsafe extern "C" fn inject<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_inject_atomic", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let len = bytes(count, dt)?;
        start::<D>(e, w, len, Operands::of((buf, len, null_mut()), None))
    })
}
unsafe extern "C" fn readwrite<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_fetch_atomic", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let len = bytes(count, dt)?;
        // A read needs no operands.
        let data = match op {
            FI_ATOMIC_READ => (null(), 0, null_mut()),
            _ => (buf, len, desc),
        };
        let o = Operands {
            result: Some((result.cast_const(), len, result_desc)),
            ..Operands::of(data, Some(context))
        };
        start::<D>(e, w, len, o)
    })
}
unsafe extern "C" fn readwritev<D: Domain>(
    e: *mut fid_ep,
    iov: *const fi_ioc,
    desc: Desc,
    count: usize,
    resultv: *mut fi_ioc,
    result_desc: Desc,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_fetch_atomicv", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let mem = if op == FI_ATOMIC_READ {
            UserMem::EMPTY
        } else {
            pieces((iov, desc, count), dt)?
        };
        let fetch = former((resultv, result_desc, result_count), dt)?;
        go::<D, _>(e, req(SendData::User(mem), fetch, w, context)?)
    })
}
unsafe extern "C" fn readwritemsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_fetch_atomicmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let fetch = former((resultv, result_desc, result_count), m.datatype)?;
        atomic_request(m, fetch, flags, |r| go::<D, _>(e, r))
    })
}
unsafe extern "C" fn compwrite<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    with: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_compare_atomic", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let len = bytes(count, dt)?;
        let o = Operands {
            compare: Some((with, len, compare_desc)),
            result: Some((result.cast_const(), len, result_desc)),
            ..Operands::of((buf, len, desc), Some(context))
        };
        start::<D>(e, w, len, o)
    })
}
unsafe extern "C" fn compwritev<D: Domain>(
    e: *mut fid_ep,
    iov: *const fi_ioc,
    desc: Desc,
    count: usize,
    comparev: *const fi_ioc,
    compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: Desc,
    result_count: usize,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    dt: fi_datatype,
    op: fi_op,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_compare_atomicv", || unsafe {
        let w = AtomicCallee(peer, addr, key, dt, op);
        let data = SendData::User(pieces((iov, desc, count), dt)?);
        let fetch = compare(
            (resultv, result_desc, result_count),
            (comparev, compare_desc, compare_count),
            dt,
        )?;
        go::<D, _>(e, req(data, fetch, w, context)?)
    })
}
unsafe extern "C" fn compwritemsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    compare_desc: Desc,
    compare_count: usize,
    resultv: *mut fi_ioc,
    result_desc: Desc,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_compare_atomicmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let fetch = compare(
            (resultv, result_desc, result_count),
            (comparev, compare_desc, compare_count),
            m.datatype,
        )?;
        atomic_request(m, fetch, flags, |r| go::<D, _>(e, r))
    })
}

/// # Safety
/// `e` is NULL or an endpoint of ours, `count` NULL or a place for a number.
unsafe fn valid<D: Domain>(
    e: *mut fid_ep,
    dt: fi_datatype,
    op: fi_op,
    count: *mut usize,
    call: AtomicCall,
) -> c_int {
    guard_int("fi_atomicvalid", || {
        // SAFETY: as promised by the caller.
        unsafe {
            let b = ep::<D>(e)?;
            let n = b.domain.atomic_count(dt, op, call)?;
            *count.as_mut().ok_or(FI_EINVAL)? = n;
        }
        Ok(())
    })
}
unsafe extern "C" fn writevalid<D: Domain>(
    e: *mut fid_ep,
    dt: fi_datatype,
    op: fi_op,
    n: *mut usize,
) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { valid::<D>(e, dt, op, n, AtomicCall::Write) }
}
unsafe extern "C" fn readwritevalid<D: Domain>(
    e: *mut fid_ep,
    dt: fi_datatype,
    op: fi_op,
    n: *mut usize,
) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { valid::<D>(e, dt, op, n, AtomicCall::Fetch) }
}
unsafe extern "C" fn compwritevalid<D: Domain>(
    e: *mut fid_ep,
    dt: fi_datatype,
    op: fi_op,
    n: *mut usize,
) -> c_int {
    // SAFETY: as promised by our caller.
    unsafe { valid::<D>(e, dt, op, n, AtomicCall::Compare) }
}

/// fi_query_atomic(3): `flags` are none, FI_FETCH_ATOMIC or FI_COMPARE_ATOMIC, with FI_TAGGED not
/// supported.
pub(crate) unsafe extern "C" fn query_atomic<D: Domain>(
    d: *mut fid_domain,
    dt: fi_datatype,
    op: fi_op,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    guard_int("fi_query_atomic", || {
        let call = match flags {
            0 => AtomicCall::Write,
            FI_FETCH_ATOMIC => AtomicCall::Fetch,
            FI_COMPARE_ATOMIC => AtomicCall::Compare,
            _ if flags & FI_TAGGED != 0 => return Err(FI_EOPNOTSUPP),
            _ => return Err(FI_EBADFLAGS),
        };
        // SAFETY: `d` is a domain of ours, `attr` NULL or a place.
        unsafe {
            let domain = super::domain::of::<D>(d)?;
            let a = attr.as_mut().ok_or(FI_EINVAL)?;
            a.count = domain.atomic_count(dt, op, call)?;
            a.size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
        }
        Ok(())
    })
}

impl<D: Domain> Tables<D> {
    /// fi_atomic(3)
    pub(crate) const ATOMIC_OPS: &'static fi_ops_atomic = &fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: Some(write::<D>),
        writev: Some(writev::<D>),
        writemsg: Some(writemsg::<D>),
        inject: Some(inject::<D>),
        readwrite: Some(readwrite::<D>),
        readwritev: Some(readwritev::<D>),
        readwritemsg: Some(readwritemsg::<D>),
        compwrite: Some(compwrite::<D>),
        compwritev: Some(compwritev::<D>),
        compwritemsg: Some(compwritemsg::<D>),
        writevalid: Some(writevalid::<D>),
        readwritevalid: Some(readwritevalid::<D>),
        compwritevalid: Some(compwritevalid::<D>),
    };
}
