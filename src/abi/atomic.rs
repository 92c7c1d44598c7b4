//! Entry points of atomics, fi_atomic(3).

use super::entry::{entry, FromC, OutParam};
use super::ep::EpBody;
use super::object::Tables;
use super::transfer::*;
use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};
use crate::core::Result;
use crate::hmem::{arith, Piece, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

/// Bytes of `count` elements.
fn bytes(count: usize, dt: fi_datatype) -> Result<usize> {
    let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
    count.checked_mul(size).ok_or(FI_EINVAL)
}

/// Several buffers in elements: a list, and NULL or as many descriptors.
#[derive(Clone, Copy)]
pub(crate) struct ElementBuffers {
    list: *const fi_ioc,
    desc: Desc,
    count: usize,
}

impl ElementBuffers {
    /// The memory, as elements of this type. `FI_EINVAL` for a list that is missing or longer than
    /// `iov_limit`.
    pub(crate) fn mem(&self, dt: fi_datatype) -> Result<UserMem> {
        let ElementBuffers { list, desc, count } = *self;
        if count == 0 {
            return Ok(UserMem::EMPTY);
        }
        if list.is_null() || count > crate::hmem::MAX_SEGS {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "iov_count: wanted {count}, at most {} (iov_limit)",
                crate::hmem::MAX_SEGS
            );
            return Err(FI_EINVAL);
        }
        let size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
        // SAFETY: the list has `count` elements, whose memory is lent until completion.
        unsafe {
            let v = (0..).zip(core::slice::from_raw_parts(list, count));
            UserMem::of_kinds(v.map(|(i, v)| {
                let len = v.count.saturating_mul(size);
                (v.addr.cast_const(), len, kind_of(desc, i))
            }))
            .ok_or(FI_EINVAL)
        }
    }
}

impl FromC<(*const fi_ioc, Desc, usize)> for ElementBuffers {
    unsafe fn from_c((list, desc, count): (*const fi_ioc, Desc, usize)) -> Result<Self> {
        Ok(ElementBuffers { list, desc, count })
    }
}

impl FromC<(*mut fi_ioc, Desc, usize)> for ElementBuffers {
    unsafe fn from_c((list, desc, count): (*mut fi_ioc, Desc, usize)) -> Result<Self> {
        let list = list.cast_const();
        Ok(ElementBuffers { list, desc, count })
    }
}

/// The remote side of an atomic, and what it does there.
#[derive(Clone, Copy)]
struct RemoteOp {
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: fi_datatype,
    op: fi_op,
}

impl RemoteOp {
    /// A request for as many elements as there are bytes of data, or of results when it only
    /// reads.
    fn request(
        self,
        data: SendData<'_>,
        fetch: Fetch,
        context: *mut c_void,
    ) -> Result<AtomicReq<SendData<'_>>> {
        let len = match fetch {
            Fetch::Former(m) if self.op == FI_ATOMIC_READ => m.len(),
            _ => data.len(),
        };
        let remote = RmaIov {
            addr: self.addr,
            len: len as u64,
            key: self.key,
        };
        let to = Iovs::new(&[remote]).ok_or(FI_EINVAL)?;
        Ok(self.with(data, fetch, to, plain(context)))
    }

    #[inline(always)]
    fn with<B, M, T, C>(self, data: B, fetch: Fetch<M>, to: T, common: C) -> AtomicReq<B, M, T, C> {
        AtomicReq {
            data,
            fetch,
            peer: self.peer,
            to,
            datatype: self.datatype,
            op: self.op,
            common,
        }
    }
}

/// What a `*atomicmsg` call passes.
pub(crate) struct AtomicMsgArgs<'a> {
    operands: ElementBuffers,
    remote: &'a [fi_rma_ioc],
    addr: fi_addr_t,
    pub datatype: fi_datatype,
    op: fi_op,
    context: *mut c_void,
}

/// `FI_EINVAL` without remote pieces.
impl FromC<*const fi_msg_atomic> for AtomicMsgArgs<'_> {
    unsafe fn from_c(m: *const fi_msg_atomic) -> Result<Self> {
        // SAFETY: the message is NULL or valid, with its lists; their memory is lent until
        // completion.
        unsafe {
            let m = m.as_ref().ok_or(FI_EINVAL)?;
            if m.rma_iov.is_null() {
                return Err(FI_EINVAL);
            }
            Ok(AtomicMsgArgs {
                operands: FromC::from_c((m.msg_iov, m.desc, m.iov_count))?,
                remote: core::slice::from_raw_parts(m.rma_iov, m.rma_iov_count.min(16)),
                addr: m.addr,
                datatype: m.datatype,
                op: m.op,
                context: m.context,
            })
        }
    }
}

impl AtomicMsgArgs<'_> {
    /// The request, given to `f`.
    pub(crate) fn request<T>(
        &self,
        fetch: Fetch,
        flags: u64,
        f: impl FnOnce(AtomicReq<SendData>) -> Result<T>,
    ) -> Result<T> {
        // The operand of a read is ignored (fi_atomic(3)), and may be NULL.
        let mem = match self.op {
            FI_ATOMIC_READ => UserMem::EMPTY,
            _ => self.operands.mem(self.datatype)?,
        };
        let mut list = [RmaIov::default(); MAX_IOV];
        for (to, v) in list.iter_mut().zip(self.remote) {
            *to = RmaIov {
                addr: v.addr,
                len: bytes(v.count, self.datatype)? as u64,
                key: v.key,
            };
        }
        let to = list.get(..self.remote.len()).and_then(Iovs::new);
        let to = to.ok_or(FI_EINVAL)?;
        with_data(mem, flags, |data| {
            f(AtomicReq {
                data,
                fetch,
                peer: self.addr,
                to,
                datatype: self.datatype,
                op: self.op,
                common: flagged(self.context, flags),
            })
        })
    }

    /// Where the former values go.
    pub(crate) fn former(&self, result: &ElementBuffers) -> Result<Fetch> {
        former(result, self.datatype)
    }

    /// What is compared with, and where the former values go.
    pub(crate) fn compare(&self, with: &ElementBuffers, result: &ElementBuffers) -> Result<Fetch> {
        compare(with, result, self.datatype)
    }
}

fn former(result: &ElementBuffers, dt: fi_datatype) -> Result<Fetch> {
    Ok(Fetch::Former(result.mem(dt)?))
}

fn compare(with: &ElementBuffers, result: &ElementBuffers, dt: fi_datatype) -> Result<Fetch> {
    Ok(Fetch::Compare(result.mem(dt)?, with.mem(dt)?))
}

/// The buffers of an atomic with one piece each: all have as many elements.
#[derive(Clone, Copy)]
struct Operands {
    data: (*const c_void, *mut c_void),
    count: usize,
    compare: Option<(*const c_void, *mut c_void)>,
    result: Option<(*const c_void, *mut c_void)>,
}

impl FromC<(*const c_void, usize, *mut c_void)> for Operands {
    #[inline(always)]
    unsafe fn from_c((buf, count, desc): (*const c_void, usize, *mut c_void)) -> Result<Self> {
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: None,
            result: None,
        })
    }
}

type FetchArgs = (*const c_void, usize, *mut c_void, *mut c_void, *mut c_void);

impl FromC<FetchArgs> for Operands {
    #[inline(always)]
    unsafe fn from_c((buf, count, desc, result, result_desc): FetchArgs) -> Result<Self> {
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: None,
            result: Some((result.cast_const(), result_desc)),
        })
    }
}

type CompareArgs = (
    *const c_void,
    usize,
    *mut c_void,
    *const c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
);

impl FromC<CompareArgs> for Operands {
    #[inline(always)]
    unsafe fn from_c(args: CompareArgs) -> Result<Self> {
        let (buf, count, desc, with, compare_desc, result, result_desc) = args;
        Ok(Operands {
            data: (buf, desc),
            count,
            compare: Some((with, compare_desc)),
            result: Some((result.cast_const(), result_desc)),
        })
    }
}

impl Operands {
    /// As buffers of elements of this type: operands, values to compare with, former values.
    #[inline(always)]
    fn buffers(&self, dt: fi_datatype) -> Result<(Buffer, Option<Buffer>, Option<Buffer>)> {
        let len = bytes(self.count, dt)?;
        // SAFETY: each has as many elements as the caller says, and is lent until completion.
        let buffer = |(buf, desc): (_, _)| unsafe { Buffer::new(buf, len, desc) };
        Ok((
            buffer(self.data),
            self.compare.map(buffer),
            self.result.map(buffer),
        ))
    }
}

/// Starts an atomic on one piece.
#[inline(always)]
fn start<D: Domain>(
    e: &EpBody<D>,
    remote: RemoteOp,
    operands: Operands,
    context: *mut c_void,
) -> Result<()> {
    let (mut data, compare, result) = operands.buffers(remote.datatype)?;
    let len = bytes(operands.count, remote.datatype)? as u64;
    if result.is_some() && compare.is_none() && remote.op == FI_ATOMIC_READ {
        // A read needs no operands.
        data = Buffer::EMPTY;
    }
    let device = |b: &Option<Buffer>| b.is_some_and(|b| b.of_device());
    let host = !(data.of_device() || device(&compare) || device(&result));
    let (Some(id), true) = (e.plain_tx.get(), host) else {
        return start_any(e, remote, (data, compare, result), context);
    };
    let fetch = match (compare, result) {
        (Some(with), Some(result)) => Fetch::Compare(result.piece()?, with.piece()?),
        (_, Some(result)) => Fetch::Former(result.piece()?),
        _ => Fetch::No,
    };
    let to = RmaIov {
        addr: remote.addr,
        len,
        key: remote.key,
    };
    let common = PlainCall {
        context: context as usize,
    };
    e.domain
        .atomic(id, &remote.with(data.piece()?, fetch, to, common))
}

/// As [`start`], of an alias, or on a device's memory.
#[cold]
fn start_any<D: Domain>(
    e: &EpBody<D>,
    remote: RemoteOp,
    (data, compare, result): (Buffer, Option<Buffer>, Option<Buffer>),
    context: *mut c_void,
) -> Result<()> {
    let fetch = match (compare, result) {
        (Some(with), Some(result)) => Fetch::Compare(result.mem()?, with.mem()?),
        (_, Some(result)) => Fetch::Former(result.mem()?),
        _ => Fetch::No,
    };
    let data = SendData::User(data.mem()?);
    go(e, remote.request(data, fetch, context)?)
}

/// The operands of an injecting atomic.
struct InjectOperands {
    buf: *const c_void,
    count: usize,
}

impl FromC<(*const c_void, usize)> for InjectOperands {
    #[inline(always)]
    unsafe fn from_c((buf, count): (*const c_void, usize)) -> Result<Self> {
        Ok(InjectOperands { buf, count })
    }
}

/// Starts an atomic whose operands the caller may change when the call returns.
#[inline(always)]
fn inject_operands<D: Domain>(
    e: &EpBody<D>,
    remote: RemoteOp,
    operands: InjectOperands,
) -> Result<()> {
    let len = bytes(operands.count, remote.datatype)?;
    // SAFETY: there are as many elements as the caller says, until the call returns.
    let data = unsafe { InjectBytes::new(operands.buf, len) };
    let (Some(id), false) = (e.plain_tx.get(), device_memory_expected()) else {
        return inject_any(e, remote, data);
    };
    let to = RmaIov {
        addr: remote.addr,
        len: len as u64,
        key: remote.key,
    };
    let r = remote.with(data.host()?, Fetch::<Piece>::No, to, PlainCall::default());
    e.domain.atomic(id, &r)
}

/// As [`inject_operands`], of an alias, or of memory that may be a device's.
#[cold]
fn inject_any<D: Domain>(e: &EpBody<D>, remote: RemoteOp, data: InjectBytes) -> Result<()> {
    let copy;
    let data = match device_memory_expected() {
        true => {
            copy = data.copy()?;
            SendData::Inject(copy.as_slice().into())
        }
        false => SendData::Inject(data.host()?),
    };
    go(e, remote.request(data, Fetch::No, null_mut())?)
}

entry! {
    fn write<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, count: usize, desc: *mut c_void) as operands: Operands,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_atomic" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        start(e, remote, operands, context)
    }
}

entry! {
    fn writev<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const fi_ioc, desc: Desc, count: usize) as operands: ElementBuffers,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_atomicv" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        let data = SendData::User(operands.mem(datatype)?);
        go(e, remote.request(data, Fetch::No, context)?)
    }
}

entry! {
    fn writemsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_atomic as AtomicMsgArgs,
        flags: u64,
    ) -> isize = "fi_atomicmsg" {
        m.request(Fetch::No, flags, |r| go(e, r))
    }
}

entry! {
    fn inject<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, count: usize) as operands: InjectOperands,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
    ) -> isize = "fi_inject_atomic" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        inject_operands(e, remote, operands)
    }
}

entry! {
    fn readwrite<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void
        ) as operands: Operands,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_fetch_atomic" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        start(e, remote, operands, context)
    }
}

entry! {
    fn readwritev<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const fi_ioc, desc: Desc, count: usize) as operands: ElementBuffers,
        (resultv: *mut fi_ioc, result_desc: Desc, result_count: usize) as result: ElementBuffers,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_fetch_atomicv" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        let mem = match op {
            FI_ATOMIC_READ => UserMem::EMPTY,
            _ => operands.mem(datatype)?,
        };
        let fetch = former(&result, datatype)?;
        go(e, remote.request(SendData::User(mem), fetch, context)?)
    }
}

entry! {
    fn readwritemsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_atomic as AtomicMsgArgs,
        (resultv: *mut fi_ioc, result_desc: Desc, result_count: usize) as result: ElementBuffers,
        flags: u64,
    ) -> isize = "fi_fetch_atomicmsg" {
        m.request(m.former(&result)?, flags, |r| go(e, r))
    }
}

entry! {
    fn compwrite<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            with: *const c_void,
            compare_desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void
        ) as operands: Operands,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_compare_atomic" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        start(e, remote, operands, context)
    }
}

entry! {
    fn compwritev<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const fi_ioc, desc: Desc, count: usize) as operands: ElementBuffers,
        (comparev: *const fi_ioc, compare_desc: Desc, compare_count: usize) as with: ElementBuffers,
        (resultv: *mut fi_ioc, result_desc: Desc, result_count: usize) as result: ElementBuffers,
        peer: fi_addr_t,
        addr: u64,
        key: u64,
        datatype: fi_datatype,
        op: fi_op,
        context: *mut c_void,
    ) -> isize = "fi_compare_atomicv" {
        let remote = RemoteOp { peer, addr, key, datatype, op };
        let data = SendData::User(operands.mem(datatype)?);
        let fetch = compare(&with, &result, datatype)?;
        go(e, remote.request(data, fetch, context)?)
    }
}

entry! {
    fn compwritemsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_atomic as AtomicMsgArgs,
        (comparev: *const fi_ioc, compare_desc: Desc, compare_count: usize) as with: ElementBuffers,
        (resultv: *mut fi_ioc, result_desc: Desc, result_count: usize) as result: ElementBuffers,
        flags: u64,
    ) -> isize = "fi_compare_atomicmsg" {
        m.request(m.compare(&with, &result)?, flags, |r| go(e, r))
    }
}

entry! {
    fn writevalid<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        dt: fi_datatype,
        op: fi_op,
        count: *mut usize as OutParam<usize>,
    ) -> c_int = "fi_atomicvalid" {
        e.domain.atomic_count(dt, op, AtomicCall::Write).map(|n| count.put(n))
    }
}

entry! {
    fn readwritevalid<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        dt: fi_datatype,
        op: fi_op,
        count: *mut usize as OutParam<usize>,
    ) -> c_int = "fi_fetch_atomicvalid" {
        e.domain.atomic_count(dt, op, AtomicCall::Fetch).map(|n| count.put(n))
    }
}

entry! {
    fn compwritevalid<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        dt: fi_datatype,
        op: fi_op,
        count: *mut usize as OutParam<usize>,
    ) -> c_int = "fi_compare_atomicvalid" {
        e.domain.atomic_count(dt, op, AtomicCall::Compare).map(|n| count.put(n))
    }
}

entry! {
    /// fi_query_atomic(3): `flags` are none, FI_FETCH_ATOMIC or FI_COMPARE_ATOMIC, with FI_TAGGED
    /// not supported.
    pub(crate) fn query_atomic<D: Domain>(
        d: *mut fid_domain as &Arc<D>,
        dt: fi_datatype,
        op: fi_op,
        attr: *mut fi_atomic_attr as &mut fi_atomic_attr,
        flags: u64,
    ) -> c_int = "fi_query_atomic" {
        let call = match flags {
            0 => AtomicCall::Write,
            FI_FETCH_ATOMIC => AtomicCall::Fetch,
            FI_COMPARE_ATOMIC => AtomicCall::Compare,
            _ if flags & FI_TAGGED != 0 => return Err(FI_EOPNOTSUPP),
            _ => return Err(FI_EBADFLAGS),
        };
        attr.count = d.atomic_count(dt, op, call)?;
        attr.size = arith::size_of(dt).ok_or(FI_EOPNOTSUPP)?;
        Ok(())
    }
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
