//! Entry points of atomics, fi_atomic(3).

mod args;

use super::entry::{entry, OutParam};
use super::ep::EpBody;
use super::object::Tables;
use super::transfer::*;
use crate::core::iovs::RmaIov;
use crate::core::Result;
use crate::hmem::{arith, Piece, UserMem};
use crate::prov::contract::*;
use crate::types::*;
use args::{bytes, compare, former, InjectOperands, Operands, RemoteOp};
pub(crate) use args::{AtomicMsgArgs, ElementBuffers};
use core::ffi::{c_int, c_void};
use core::mem::size_of;
use core::ptr::null_mut;
use std::sync::Arc;

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
