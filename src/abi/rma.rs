//! Entry points of remote memory access, fi_rma(3).

use super::ep::ep;
use super::object::{guard_op, Tables};
use super::transfer::*;
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;

/// The remote side of an operation: peer, address, key.
#[derive(Clone, Copy)]
struct RemoteMemory(fi_addr_t, u64, u64);

#[inline]
fn req<'a>(
    data: SendData<'a>,
    write: bool,
    remote: RemoteMemory,
    cq_data: Option<u64>,
    context: *mut c_void,
) -> RmaReq<SendData<'a>> {
    RmaReq {
        data,
        peer: remote.0,
        addr: remote.1,
        key: remote.2,
        write,
        cq_data,
        common: plain(context),
    }
}

/// A read or write, from C arguments. No context: an injecting call.
///
/// # Safety
/// `e` is NULL or an endpoint of ours; the buffer is lent until completion, or for the call.
#[inline(always)]
unsafe fn access<D: Domain>(
    e: *mut fid_ep,
    (buf, len, desc): Buffer,
    write: bool,
    remote: RemoteMemory,
    cq_data: Option<u64>,
    context: Option<*mut c_void>,
) -> Result<()> {
    let RemoteMemory(peer, addr, key) = remote;
    if of_device(desc) || context.is_none() && device_memory_expected() {
        // SAFETY: as promised by the caller.
        return unsafe {
            with_device::<D>(e, buf, len, desc, write, peer, addr, key, cq_data, context)
        };
    }
    let context = context.map(|c| PlainCall {
        context: c as usize,
    });
    // SAFETY: as promised by the caller.
    unsafe {
        let b = ep::<D>(e)?;
        match context {
            Some(common) => {
                let data = piece(buf, len)?;
                let r = RmaReq {
                    data,
                    peer,
                    addr,
                    key,
                    write,
                    cq_data,
                    common,
                };
                match b.plain_tx() {
                    Some(id) => b.domain.rma(id, &r),
                    None => go_any::<D, _>(e, r),
                }
            }
            None => {
                let (data, common) = (inject_buf(buf, len)?, PlainCall::default());
                let r = RmaReq {
                    data,
                    peer,
                    addr,
                    key,
                    write,
                    cq_data,
                    common,
                };
                match b.plain_tx() {
                    Some(id) => b.domain.rma(id, &r),
                    None => go_any::<D, _>(e, r),
                }
            }
        }
    }
}

/// As [`access`], of an alias.
///
/// # Safety
/// As [`access`].
#[cold]
#[inline(never)]
unsafe fn go_any<D: Domain, B: SendBuffer>(e: *mut fid_ep, r: RmaReq<B, PlainCall>) -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe { go::<D, _>(e, r.general()) }
}

/// As [`access`], with memory at this end that is, or may be, a device's.
///
/// # Safety
/// As [`access`].
#[cold]
#[allow(clippy::too_many_arguments)] // In registers, so that the way past it pays nothing.
unsafe fn with_device<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    write: bool,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    cq_data: Option<u64>,
    context: Option<*mut c_void>,
) -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe {
        let copy;
        let data = match context {
            Some(_) => SendData::User(user((buf, len, desc))?),
            None => {
                copy = inject_any(buf, len)?;
                SendData::Inject(copy.as_slice().into())
            }
        };
        let context = context.unwrap_or(null_mut());
        let remote = RemoteMemory(peer, addr, key);
        go::<D, _>(e, req(data, write, remote, cq_data, context))
    }
}

/// The request of a `fi_readmsg` or `fi_writemsg`, given to `f`.
///
/// # Safety
/// The message is valid; its buffers are lent until completion.
pub(crate) unsafe fn rma_request<T>(
    m: &fi_msg_rma,
    flags: u64,
    write: bool,
    f: impl FnOnce(RmaReq<SendData>) -> Result<T>,
) -> Result<T> {
    // SAFETY: as promised by the caller.
    let (mem, remote) = unsafe {
        let mem = many(m.msg_iov, m.desc, m.iov_count)?;
        if m.rma_iov_count != 1 || m.rma_iov.is_null() {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "rma_iov_count: wanted {}, had 1 (rma_iov_limit)",
                m.rma_iov_count
            );
            return Err(FI_EINVAL);
        }
        (mem, *m.rma_iov)
    };
    if !write && flags & FI_INJECT != 0 {
        return Err(FI_EBADFLAGS);
    }
    let cq_data = (write && flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
    with_data(mem, flags, |data| {
        let remote = RemoteMemory(m.addr, remote.addr, remote.key);
        f(RmaReq {
            common: flagged(m.context, flags),
            ..req(data, write, remote, cq_data, m.context)
        })
    })
}

unsafe extern "C" fn read<D: Domain>(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_read", || unsafe {
        access::<D>(
            e,
            (buf, len, desc),
            false,
            RemoteMemory(src, addr, key),
            None,
            Some(context),
        )
    })
}
unsafe extern "C" fn readv<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_readv", || unsafe {
        let data = SendData::User(many(iov, desc, count)?);
        go::<D, _>(
            e,
            req(data, false, RemoteMemory(src, addr, key), None, context),
        )
    })
}
unsafe extern "C" fn readmsg<D: Domain>(e: *mut fid_ep, m: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as promised by our caller.
    guard_op("fi_readmsg", || unsafe {
        rma_request(m.as_ref().ok_or(FI_EINVAL)?, flags, false, |r| {
            go::<D, _>(e, r)
        })
    })
}
unsafe extern "C" fn write<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_write", || unsafe {
        access::<D>(
            e,
            (buf, len, desc),
            true,
            RemoteMemory(to, addr, key),
            None,
            Some(context),
        )
    })
}
unsafe extern "C" fn writev<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_writev", || unsafe {
        let data = SendData::User(many(iov, desc, count)?);
        go::<D, _>(
            e,
            req(data, true, RemoteMemory(to, addr, key), None, context),
        )
    })
}
unsafe extern "C" fn writemsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_rma,
    flags: u64,
) -> isize {
    // SAFETY: as promised by our caller.
    guard_op("fi_writemsg", || unsafe {
        rma_request(m.as_ref().ok_or(FI_EINVAL)?, flags, true, |r| {
            go::<D, _>(e, r)
        })
    })
}
unsafe extern "C" fn inject_write<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_inject_write", || unsafe {
        access::<D>(
            e,
            (buf, len, null_mut()),
            true,
            RemoteMemory(to, addr, key),
            None,
            None,
        )
    })
}
unsafe extern "C" fn writedata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    cq_data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_writedata", || unsafe {
        let remote = RemoteMemory(to, addr, key);
        access::<D>(
            e,
            (buf, len, desc),
            true,
            remote,
            Some(cq_data),
            Some(context),
        )
    })
}
unsafe extern "C" fn inject_writedata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    cq_data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_inject_writedata", || unsafe {
        let remote = RemoteMemory(to, addr, key);
        access::<D>(e, (buf, len, null_mut()), true, remote, Some(cq_data), None)
    })
}

impl<D: Domain> Tables<D> {
    /// fi_rma(3)
    pub(crate) const RMA_OPS: &'static fi_ops_rma = &fi_ops_rma {
        size: size_of::<fi_ops_rma>(),
        read: Some(read::<D>),
        readv: Some(readv::<D>),
        readmsg: Some(readmsg::<D>),
        write: Some(write::<D>),
        writev: Some(writev::<D>),
        writemsg: Some(writemsg::<D>),
        inject: Some(inject_write::<D>),
        writedata: Some(writedata::<D>),
        injectdata: Some(inject_writedata::<D>),
    };
}
