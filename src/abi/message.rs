//! Entry points of messages, fi_msg(3) and fi_tagged(3).

use super::ep::ep;
use super::object::{guard_op, Tables};
use super::transfer::*;
use crate::core::Result;
use crate::hmem::UserMem;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;

/// A send without flags of its own.
#[inline]
fn msg<'a>(
    data: SendData<'a>,
    to: fi_addr_t,
    tag: Option<u64>,
    cq_data: Option<u64>,
    context: *mut c_void,
) -> MsgReq<SendData<'a>> {
    MsgReq {
        data,
        to,
        tag,
        cq_data,
        common: plain(context),
    }
}

/// A receive without flags of its own.
#[inline]
fn rcv(mem: UserMem, src: fi_addr_t, tag: Option<(u64, u64)>, context: *mut c_void) -> RecvReq {
    RecvReq {
        mem,
        src,
        tag,
        common: plain(context),
    }
}

/// A send, from C arguments. No context: an injecting call.
///
/// # Safety
/// `e` is NULL or an endpoint of ours; the buffer is lent until completion, or for the call.
#[inline(always)]
unsafe fn tx<D: Domain>(
    e: *mut fid_ep,
    (buf, len, desc): Buffer,
    to: fi_addr_t,
    tag: Option<u64>,
    cq_data: Option<u64>,
    context: Option<*mut c_void>,
) -> Result<()> {
    if of_device(desc) || context.is_none() && device_memory_expected() {
        // SAFETY: as promised by the caller.
        return unsafe { tx_device::<D>(e, buf, len, desc, to, tag, cq_data, context) };
    }
    let common = PlainCall {
        context: context.unwrap_or(null_mut()) as usize,
    };
    // SAFETY: as promised by the caller.
    unsafe {
        let b = ep::<D>(e)?;
        match context {
            Some(_) => {
                let data = piece(buf, len)?;
                let r = MsgReq {
                    data,
                    to,
                    tag,
                    cq_data,
                    common,
                };
                match b.plain_tx() {
                    Some(id) => b.domain.send(id, &r),
                    None => go_any::<D, _>(e, r),
                }
            }
            None => {
                let data = inject_buf(buf, len)?;
                let r = MsgReq {
                    data,
                    to,
                    tag,
                    cq_data,
                    common,
                };
                match b.plain_tx() {
                    Some(id) => b.domain.send(id, &r),
                    None => go_any::<D, _>(e, r),
                }
            }
        }
    }
}

/// As [`tx`], of an alias, or to a shared receive context.
///
/// # Safety
/// As [`tx`].
#[cold]
#[inline(never)]
unsafe fn go_any<D: Domain, B: SendBuffer>(e: *mut fid_ep, r: MsgReq<B, PlainCall>) -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe { go::<D, _>(e, r.general()) }
}

/// As [`tx`], from memory that is, or may be, a device's.
///
/// # Safety
/// As [`tx`].
#[cold]
#[allow(clippy::too_many_arguments)] // In registers, so that the way past it pays nothing.
unsafe fn tx_device<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    tag: Option<u64>,
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
        go::<D, _>(
            e,
            msg(data, to, tag, cq_data, context.unwrap_or(null_mut())),
        )
    }
}

/// A receive, from C arguments.
///
/// # Safety
/// `e` is NULL or an endpoint or shared receive context of ours; the buffer is lent until
/// completion.
#[inline(always)]
unsafe fn rx<D: Domain>(
    e: *mut fid_ep,
    (buf, len, desc): Buffer,
    src: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: as promised by the caller.
    let b = unsafe { ep::<D>(e)? };
    if b.rx_flags.is_some() || of_device(desc) {
        // SAFETY: as promised by the caller.
        return unsafe { rx_otherwise::<D>(e, buf, len, desc, src, tag, context) };
    }
    let r = RecvReq {
        // SAFETY: as promised by the caller.
        mem: unsafe { piece(buf, len)? },
        src,
        tag,
        common: PlainCall {
            context: context as usize,
        },
    };
    b.domain.recv(b.who, &r)
}

/// As [`rx`], with flags, or into a device's memory.
///
/// # Safety
/// As [`rx`].
#[cold]
#[inline(never)]
unsafe fn rx_otherwise<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
) -> Result<()> {
    // SAFETY: as promised by the caller.
    unsafe { go::<D, _>(e, rcv(user((buf, len, desc))?, src, tag, context)) }
}

/// The request of a `fi_sendmsg`, given to `f`.
///
/// # Safety
/// The message is valid; its buffers are lent until completion.
pub(crate) unsafe fn send_request<T>(
    m: &fi_msg,
    tag: Option<u64>,
    flags: u64,
    f: impl FnOnce(MsgReq<SendData>) -> Result<T>,
) -> Result<T> {
    // SAFETY: as promised by the caller.
    let mem = unsafe { many(m.msg_iov, m.desc, m.iov_count)? };
    with_data(mem, flags, |data| {
        let cq_data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(m.data);
        f(MsgReq {
            common: flagged(m.context, flags),
            ..msg(data, m.addr, tag, cq_data, m.context)
        })
    })
}

/// The request of a `fi_recvmsg`.
///
/// # Safety
/// As [`send_request`].
pub(crate) unsafe fn recv_request(
    m: &fi_msg,
    tag: Option<(u64, u64)>,
    flags: u64,
) -> Result<RecvReq> {
    // SAFETY: as promised by the caller.
    let mem = unsafe { many(m.msg_iov, m.desc, m.iov_count)? };
    Ok(RecvReq {
        common: flagged(m.context, flags),
        ..rcv(mem, m.addr, tag, m.context)
    })
}

/// The part of a tagged message that an untagged one has too.
pub(crate) fn untagged(m: &fi_msg_tagged) -> fi_msg {
    fi_msg {
        msg_iov: m.msg_iov,
        desc: m.desc,
        iov_count: m.iov_count,
        addr: m.addr,
        context: m.context,
        data: m.data,
    }
}

// ---- messages --------------------------------------------------------------------------------

unsafe extern "C" fn recv<D: Domain>(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_recv", || unsafe {
        rx::<D>(e, (buf.cast_const(), len, desc), src, None, context)
    })
}
unsafe extern "C" fn recvv<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    src: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_recvv", || unsafe {
        go::<D, _>(e, rcv(many(iov, desc, count)?, src, None, context))
    })
}
unsafe extern "C" fn recvmsg<D: Domain>(e: *mut fid_ep, m: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_recvmsg", || unsafe {
        go::<D, _>(e, recv_request(m.as_ref().ok_or(FI_EINVAL)?, None, flags)?)
    })
}
unsafe extern "C" fn send<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_send", || unsafe {
        tx::<D>(e, (buf, len, desc), to, None, None, Some(context))
    })
}
unsafe extern "C" fn sendv<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_sendv", || unsafe {
        go::<D, _>(
            e,
            msg(
                SendData::User(many(iov, desc, count)?),
                to,
                None,
                None,
                context,
            ),
        )
    })
}
unsafe extern "C" fn sendmsg<D: Domain>(e: *mut fid_ep, m: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_sendmsg", || unsafe {
        send_request(m.as_ref().ok_or(FI_EINVAL)?, None, flags, |r| {
            go::<D, _>(e, r)
        })
    })
}
unsafe extern "C" fn inject<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_inject", || unsafe {
        tx::<D>(e, (buf, len, null_mut()), to, None, None, None)
    })
}
unsafe extern "C" fn senddata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    cq_data: u64,
    to: fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_senddata", || unsafe {
        tx::<D>(e, (buf, len, desc), to, None, Some(cq_data), Some(context))
    })
}
unsafe extern "C" fn injectdata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    cq_data: u64,
    to: fi_addr_t,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_injectdata", || unsafe {
        tx::<D>(e, (buf, len, null_mut()), to, None, Some(cq_data), None)
    })
}

impl<D: Domain> Tables<D> {
    /// fi_msg(3)
    pub(crate) const MSG_OPS: &'static fi_ops_msg = &fi_ops_msg {
        size: size_of::<fi_ops_msg>(),
        recv: Some(recv::<D>),
        recvv: Some(recvv::<D>),
        recvmsg: Some(recvmsg::<D>),
        send: Some(send::<D>),
        sendv: Some(sendv::<D>),
        sendmsg: Some(sendmsg::<D>),
        inject: Some(inject::<D>),
        senddata: Some(senddata::<D>),
        injectdata: Some(injectdata::<D>),
    };
}

// ---- tagged messages -------------------------------------------------------------------------

unsafe extern "C" fn trecv<D: Domain>(
    e: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_trecv", || unsafe {
        rx::<D>(
            e,
            (buf.cast_const(), len, desc),
            src,
            Some((tag, ignore)),
            context,
        )
    })
}
unsafe extern "C" fn trecvv<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    src: fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_trecvv", || unsafe {
        go::<D, _>(
            e,
            rcv(many(iov, desc, count)?, src, Some((tag, ignore)), context),
        )
    })
}
unsafe extern "C" fn trecvmsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_tagged,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_trecvmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        let tag = Some((m.tag, m.ignore));
        go::<D, _>(e, recv_request(&untagged(m), tag, flags)?)
    })
}
unsafe extern "C" fn tsend<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_tsend", || unsafe {
        tx::<D>(e, (buf, len, desc), to, Some(tag), None, Some(context))
    })
}
unsafe extern "C" fn tsendv<D: Domain>(
    e: *mut fid_ep,
    iov: *const iovec,
    desc: Desc,
    count: usize,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffers until completion.
    guard_op("fi_tsendv", || unsafe {
        let data = SendData::User(many(iov, desc, count)?);
        go::<D, _>(e, msg(data, to, Some(tag), None, context))
    })
}
unsafe extern "C" fn tsendmsg<D: Domain>(
    e: *mut fid_ep,
    m: *const fi_msg_tagged,
    flags: u64,
) -> isize {
    // SAFETY: the message is NULL or valid; its buffers are lent until completion.
    guard_op("fi_tsendmsg", || unsafe {
        let m = m.as_ref().ok_or(FI_EINVAL)?;
        send_request(&untagged(m), Some(m.tag), flags, |r| go::<D, _>(e, r))
    })
}
unsafe extern "C" fn tinject<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_tinject", || unsafe {
        tx::<D>(e, (buf, len, null_mut()), to, Some(tag), None, None)
    })
}
unsafe extern "C" fn tsenddata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    cq_data: u64,
    to: fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller lends the buffer until completion.
    guard_op("fi_tsenddata", || unsafe {
        tx::<D>(
            e,
            (buf, len, desc),
            to,
            Some(tag),
            Some(cq_data),
            Some(context),
        )
    })
}
unsafe extern "C" fn tinjectdata<D: Domain>(
    e: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    cq_data: u64,
    to: fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the buffer is readable during the call.
    guard_op("fi_tinjectdata", || unsafe {
        tx::<D>(
            e,
            (buf, len, null_mut()),
            to,
            Some(tag),
            Some(cq_data),
            None,
        )
    })
}

impl<D: Domain> Tables<D> {
    /// fi_tagged(3)
    pub(crate) const TAGGED_OPS: &'static fi_ops_tagged = &fi_ops_tagged {
        size: size_of::<fi_ops_tagged>(),
        recv: Some(trecv::<D>),
        recvv: Some(trecvv::<D>),
        recvmsg: Some(trecvmsg::<D>),
        send: Some(tsend::<D>),
        sendv: Some(tsendv::<D>),
        sendmsg: Some(tsendmsg::<D>),
        inject: Some(tinject::<D>),
        senddata: Some(tsenddata::<D>),
        injectdata: Some(tinjectdata::<D>),
    };
}
