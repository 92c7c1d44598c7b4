//! Data transfer entry points: from C arguments to a request, and into the endpoint.

use super::ep::ep;
use super::object::guard;
use crate::core::Result;
use crate::hmem::UserMem;
use crate::prov::efa::rdm::{self, Data, MsgReq, RecvReq, RmaReq};
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use libc::iovec;

type Desc = *mut *mut c_void;

/// One piece of application memory.
///
/// # Safety
/// As `UserMem::new`.
#[inline]
unsafe fn one(buf: *const c_void, len: usize) -> Result<UserMem> {
    // SAFETY: as promised by the caller.
    unsafe { UserMem::new([(buf, len)]) }.ok_or(FI_EINVAL)
}

/// Several pieces of application memory.
///
/// # Safety
/// `iov` is NULL or has `count` elements; their memory as `UserMem::new` wants it.
unsafe fn many(iov: *const iovec, count: usize) -> Result<UserMem> {
    if count == 0 {
        return Ok(UserMem::EMPTY);
    }
    if iov.is_null() {
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
        let v = core::slice::from_raw_parts(iov, count);
        UserMem::new(v.iter().map(|v| (v.iov_base.cast_const(), v.iov_len))).ok_or(FI_EINVAL)
    }
}

/// Bytes to copy before the call returns.
///
/// # Safety
/// `buf` is NULL or has `len` readable bytes.
#[inline]
unsafe fn inject_bytes<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len == 0 {
        return Ok(&[]);
    }
    if buf.is_null() {
        return Err(FI_EINVAL);
    }
    // SAFETY: as promised by the caller.
    Ok(unsafe { core::slice::from_raw_parts(buf.cast::<u8>(), len) })
}

/// # Safety
/// `e` is NULL or an endpoint of ours; the request's memory is lent until completion.
#[inline]
unsafe fn do_send(e: *mut fid_ep, r: &MsgReq) -> Result<isize> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep(e)? };
    rdm::send(&mut b.domain.lock(), b.id, r)?;
    Ok(0)
}

/// # Safety
/// As `do_send`.
#[inline]
unsafe fn do_recv(e: *mut fid_ep, r: &RecvReq) -> Result<isize> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep(e)? };
    rdm::recv(&mut b.domain.lock(), b.id, r)?;
    Ok(0)
}

/// # Safety
/// As `do_send`.
#[inline]
unsafe fn do_rma(e: *mut fid_ep, r: &RmaReq) -> Result<isize> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep(e)? };
    rdm::rma(&mut b.domain.lock(), b.id, r)?;
    Ok(0)
}

/// A message given by a `*msg` call, whose FI_INJECT copies it.
///
/// # Safety
/// As `do_send`.
unsafe fn send_flags(
    e: *mut fid_ep,
    mem: UserMem,
    r: MsgReq,
    flags: u64,
    data: u64,
) -> Result<isize> {
    let cq_data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(data);
    let r = MsgReq {
        flags: Some(flags),
        cq_data,
        ..r
    };
    if flags & FI_INJECT == 0 {
        // SAFETY: as promised by the caller.
        return unsafe { do_send(e, &r) };
    }
    let mut copy = vec![0u8; mem.len()];
    mem.load(0, &mut copy);
    // SAFETY: as promised by the caller.
    unsafe {
        do_send(
            e,
            &MsgReq {
                data: Data::Inject(&copy),
                ..r
            },
        )
    }
}

fn msg(data: Data<'_>, to: fi_addr_t, tag: Option<u64>, context: *mut c_void) -> MsgReq<'_> {
    MsgReq {
        data,
        to,
        tag,
        cq_data: None,
        context: context as usize,
        flags: None,
    }
}

// ---- messages --------------------------------------------------------------------------------

unsafe extern "C" fn recv(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_recv", || unsafe {
        let mem = one(buf, len)?;
        do_recv(
            e,
            &RecvReq {
                mem,
                src,
                tag: None,
                context: context as usize,
                flags: None,
            },
        )
    })
}
unsafe extern "C" fn recvv(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_recvv", || unsafe {
        let mem = many(iov, count)?;
        do_recv(
            e,
            &RecvReq {
                mem,
                src,
                tag: None,
                context: context as usize,
                flags: None,
            },
        )
    })
}
unsafe extern "C" fn recvmsg(e: *mut fid_ep, m: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard("fi_recvmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let mem = many(m.msg_iov, m.iov_count)?;
        do_recv(
            e,
            &RecvReq {
                mem,
                src: m.addr,
                tag: None,
                context: m.context as usize,
                flags: Some(flags),
            },
        )
    })
}
unsafe extern "C" fn send(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_send", || unsafe {
        do_send(e, &msg(Data::User(one(buf, len)?), to, None, context))
    })
}
unsafe extern "C" fn sendv(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_sendv", || unsafe {
        do_send(e, &msg(Data::User(many(iov, count)?), to, None, context))
    })
}
unsafe extern "C" fn sendmsg(e: *mut fid_ep, m: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard("fi_sendmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let mem = many(m.msg_iov, m.iov_count)?;
        send_flags(
            e,
            mem,
            msg(Data::User(mem), m.addr, None, m.context),
            flags,
            m.data,
        )
    })
}
unsafe extern "C" fn inject(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_inject", || unsafe {
        do_send(
            e,
            &msg(
                Data::Inject(inject_bytes(buf, len)?),
                to,
                None,
                core::ptr::null_mut(),
            ),
        )
    })
}
unsafe extern "C" fn senddata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_senddata", || unsafe {
        do_send(
            e,
            &MsgReq {
                cq_data: Some(data),
                ..msg(Data::User(one(buf, len)?), to, None, context)
            },
        )
    })
}
unsafe extern "C" fn injectdata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_injectdata", || unsafe {
        let m = msg(
            Data::Inject(inject_bytes(buf, len)?),
            to,
            None,
            core::ptr::null_mut(),
        );
        do_send(
            e,
            &MsgReq {
                cq_data: Some(data),
                ..m
            },
        )
    })
}

/// fi_msg(3)
pub static MSG_OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

// ---- tagged messages -------------------------------------------------------------------------

unsafe extern "C" fn trecv(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_trecv", || unsafe {
        let mem = one(buf, len)?;
        do_recv(
            e,
            &RecvReq {
                mem,
                src,
                tag: Some((tag, ignore)),
                context: context as usize,
                flags: None,
            },
        )
    })
}
unsafe extern "C" fn trecvv(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_trecvv", || unsafe {
        let mem = many(iov, count)?;
        do_recv(
            e,
            &RecvReq {
                mem,
                src,
                tag: Some((tag, ignore)),
                context: context as usize,
                flags: None,
            },
        )
    })
}
unsafe extern "C" fn trecvmsg(e: *mut fid_ep, m: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard("fi_trecvmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let mem = many(m.msg_iov, m.iov_count)?;
        let tag = Some((m.tag, m.ignore));
        do_recv(
            e,
            &RecvReq {
                mem,
                src: m.addr,
                tag,
                context: m.context as usize,
                flags: Some(flags),
            },
        )
    })
}
unsafe extern "C" fn tsend(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_tsend", || unsafe {
        do_send(e, &msg(Data::User(one(buf, len)?), to, Some(tag), context))
    })
}
unsafe extern "C" fn tsendv(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_tsendv", || unsafe {
        do_send(
            e,
            &msg(Data::User(many(iov, count)?), to, Some(tag), context),
        )
    })
}
unsafe extern "C" fn tsendmsg(e: *mut fid_ep, m: *const fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard("fi_tsendmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let mem = many(m.msg_iov, m.iov_count)?;
        send_flags(
            e,
            mem,
            msg(Data::User(mem), m.addr, Some(m.tag), m.context),
            flags,
            m.data,
        )
    })
}
unsafe extern "C" fn tinject(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_tinject", || unsafe {
        do_send(
            e,
            &msg(
                Data::Inject(inject_bytes(buf, len)?),
                to,
                Some(tag),
                core::ptr::null_mut(),
            ),
        )
    })
}
unsafe extern "C" fn tsenddata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_tsenddata", || unsafe {
        let m = msg(Data::User(one(buf, len)?), to, Some(tag), context);
        do_send(
            e,
            &MsgReq {
                cq_data: Some(data),
                ..m
            },
        )
    })
}
unsafe extern "C" fn tinjectdata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_tinjectdata", || unsafe {
        let m = msg(
            Data::Inject(inject_bytes(buf, len)?),
            to,
            Some(tag),
            core::ptr::null_mut(),
        );
        do_send(
            e,
            &MsgReq {
                cq_data: Some(data),
                ..m
            },
        )
    })
}

/// fi_tagged(3)
pub static TAGGED_OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
    recv: Some(trecv),
    recvv: Some(trecvv),
    recvmsg: Some(trecvmsg),
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
};

// ---- remote memory ---------------------------------------------------------------------------

fn rma(
    data: Data<'_>,
    write: bool,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> RmaReq<'_> {
    RmaReq {
        data,
        peer,
        addr,
        key,
        write,
        cq_data: None,
        context: context as usize,
        flags: None,
    }
}

/// # Safety
/// The message is NULL or valid; its buffers are lent until completion.
unsafe fn rma_msg(e: *mut fid_ep, m: *const fi_msg_rma, flags: u64, write: bool) -> Result<isize> {
    // SAFETY: as promised by the caller.
    unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let mem = many(m.msg_iov, m.iov_count)?;
        if m.rma_iov_count != 1 || m.rma_iov.is_null() {
            crate::warn_log!(
                FI_LOG_EP_DATA,
                "rma_iov_count: wanted {}, had 1 (rma_iov_limit)",
                m.rma_iov_count
            );
            return Err(FI_EINVAL);
        }
        let far = &*m.rma_iov;
        let mut r = rma(Data::User(mem), write, m.addr, far.addr, far.key, m.context);
        r.flags = Some(flags);
        r.cq_data = (write && flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
        if flags & FI_INJECT == 0 {
            return do_rma(e, &r);
        }
        if !write {
            return Err(FI_EBADFLAGS);
        }
        let mut copy = vec![0u8; mem.len()];
        mem.load(0, &mut copy);
        do_rma(
            e,
            &RmaReq {
                data: Data::Inject(&copy),
                ..r
            },
        )
    }
}

unsafe extern "C" fn read(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_read", || unsafe {
        do_rma(
            e,
            &rma(Data::User(one(buf, len)?), false, src, addr, key, context),
        )
    })
}
unsafe extern "C" fn readv(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    src: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_readv", || unsafe {
        do_rma(
            e,
            &rma(
                Data::User(many(iov, count)?),
                false,
                src,
                addr,
                key,
                context,
            ),
        )
    })
}
unsafe extern "C" fn readmsg(e: *mut fid_ep, m: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as promised by our caller.
    guard("fi_readmsg", || unsafe { rma_msg(e, m, flags, false) })
}
unsafe extern "C" fn write(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_write", || unsafe {
        do_rma(
            e,
            &rma(Data::User(one(buf, len)?), true, to, addr, key, context),
        )
    })
}
unsafe extern "C" fn writev(
    e: *mut fid_ep,
    iov: *const iovec,
    _: Desc,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard("fi_writev", || unsafe {
        do_rma(
            e,
            &rma(Data::User(many(iov, count)?), true, to, addr, key, context),
        )
    })
}
unsafe extern "C" fn writemsg(e: *mut fid_ep, m: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: as promised by our caller.
    guard("fi_writemsg", || unsafe { rma_msg(e, m, flags, true) })
}
unsafe extern "C" fn inject_write(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_inject_write", || unsafe {
        let data = Data::Inject(inject_bytes(buf, len)?);
        do_rma(e, &rma(data, true, to, addr, key, core::ptr::null_mut()))
    })
}
unsafe extern "C" fn writedata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard("fi_writedata", || unsafe {
        let r = rma(Data::User(one(buf, len)?), true, to, addr, key, context);
        do_rma(
            e,
            &RmaReq {
                cq_data: Some(data),
                ..r
            },
        )
    })
}
unsafe extern "C" fn inject_writedata(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    to: fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard("fi_inject_writedata", || unsafe {
        let d = Data::Inject(inject_bytes(buf, len)?);
        let r = rma(d, true, to, addr, key, core::ptr::null_mut());
        do_rma(
            e,
            &RmaReq {
                cq_data: Some(data),
                ..r
            },
        )
    })
}

/// fi_rma(3)
pub static RMA_OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
};
