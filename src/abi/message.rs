//! Entry points of messages, fi_msg(3) and fi_tagged(3).

use super::entry::{entry, FromC};
use super::ep::EpBody;
use super::object::Tables;
use super::transfer::*;
use crate::core::Result;
use crate::hmem::UserMem;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;

/// Where a message goes, and what goes with it.
#[derive(Clone, Copy)]
struct Envelope {
    to: fi_addr_t,
    tag: Option<u64>,
    cq_data: Option<u64>,
}

impl Envelope {
    #[inline(always)]
    fn untagged(to: fi_addr_t, cq_data: Option<u64>) -> Envelope {
        let tag = None;
        Envelope { to, tag, cq_data }
    }

    #[inline(always)]
    fn tagged(to: fi_addr_t, tag: u64, cq_data: Option<u64>) -> Envelope {
        let tag = Some(tag);
        Envelope { to, tag, cq_data }
    }

    /// The request to send `data`.
    #[inline(always)]
    fn request<B, C>(self, data: B, common: C) -> MsgReq<B, C> {
        let Envelope { to, tag, cq_data } = self;
        MsgReq {
            data,
            to,
            tag,
            cq_data,
            common,
        }
    }
}

/// A receive without flags of its own.
#[inline]
fn receive(mem: UserMem, src: fi_addr_t, tag: Option<(u64, u64)>, context: *mut c_void) -> RecvReq {
    RecvReq {
        mem,
        src,
        tag,
        common: plain(context),
    }
}

/// Sends a buffer.
#[inline(always)]
fn send_buffer<D: Domain>(
    e: &EpBody<D>,
    buf: Buffer,
    to: Envelope,
    context: *mut c_void,
) -> Result<()> {
    if buf.of_device() {
        let Envelope { to, tag, cq_data } = to;
        return send_any(e, buf.bytes, buf.desc, to, tag, cq_data, context);
    }
    let common = PlainCall {
        context: context as usize,
    };
    start(e, to.request(buf.piece()?, common))
}

/// As [`send_buffer`], of a device's memory.
#[cold]
fn send_any<D: Domain>(
    e: &EpBody<D>,
    bytes: LentBytes,
    desc: *mut c_void,
    to: fi_addr_t,
    tag: Option<u64>,
    cq_data: Option<u64>,
    context: *mut c_void,
) -> Result<()> {
    let data = SendData::User(Buffer { bytes, desc }.mem()?);
    let to = Envelope { to, tag, cq_data };
    go(e, to.request(data, plain(context)))
}

/// Sends bytes that the caller may change when the call returns.
#[inline(always)]
fn inject_bytes<D: Domain>(e: &EpBody<D>, bytes: InjectBytes, to: Envelope) -> Result<()> {
    if device_memory_expected() {
        let Envelope { to, tag, cq_data } = to;
        return inject_any(e, bytes, to, tag, cq_data);
    }
    start(e, to.request(bytes.host()?, PlainCall::default()))
}

/// As [`inject_bytes`], of memory that may be a device's.
#[cold]
fn inject_any<D: Domain>(
    e: &EpBody<D>,
    bytes: InjectBytes,
    to: fi_addr_t,
    tag: Option<u64>,
    cq_data: Option<u64>,
) -> Result<()> {
    let copy = bytes.copy()?;
    let to = Envelope { to, tag, cq_data };
    let data = SendData::Inject(copy.as_slice().into());
    go(e, to.request(data, plain(null_mut())))
}

#[inline(always)]
fn start<D: Domain, B: SendBuffer>(e: &EpBody<D>, r: MsgReq<B, PlainCall>) -> Result<()> {
    match e.plain_tx.get() {
        Some(id) => e.domain.send(id, &r),
        None => start_any(e, r),
    }
}

/// As [`start`], of an alias, or to a shared receive context.
#[cold]
#[inline(never)]
fn start_any<D: Domain, B: SendBuffer>(e: &EpBody<D>, r: MsgReq<B, PlainCall>) -> Result<()> {
    go(e, r.to_general())
}

/// Posts a buffer to receive into.
#[inline(always)]
fn receive_buffer<D: Domain>(
    e: &EpBody<D>,
    buf: Buffer,
    src: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
) -> Result<()> {
    if e.rx_flags.get().is_some() || buf.of_device() {
        return receive_any(e, buf.bytes, buf.desc, src, tag, context);
    }
    let r = RecvReq {
        mem: buf.piece()?,
        src,
        tag,
        common: PlainCall {
            context: context as usize,
        },
    };
    e.domain.recv(e.who, &r)
}

/// As [`receive_buffer`], with flags, or into a device's memory.
#[cold]
#[inline(never)]
fn receive_any<D: Domain>(
    e: &EpBody<D>,
    bytes: LentBytes,
    desc: *mut c_void,
    src: fi_addr_t,
    tag: Option<(u64, u64)>,
    context: *mut c_void,
) -> Result<()> {
    go(e, receive(Buffer { bytes, desc }.mem()?, src, tag, context))
}

/// What a `*msg` call passes, tagged or not.
pub(crate) struct MsgArgs {
    buffers: Buffers,
    addr: fi_addr_t,
    context: *mut c_void,
    data: u64,
    tag: Option<(u64, u64)>,
}

impl FromC<*const fi_msg> for MsgArgs {
    #[inline(always)]
    unsafe fn from_c(m: *const fi_msg) -> Result<Self> {
        // SAFETY: the message is NULL or valid, with its lists; their memory is lent until
        // completion.
        unsafe {
            let m = m.as_ref().ok_or(FI_EINVAL)?;
            Ok(MsgArgs {
                buffers: Buffers::from_c((m.msg_iov, m.desc, m.iov_count))?,
                addr: m.addr,
                context: m.context,
                data: m.data,
                tag: None,
            })
        }
    }
}

impl FromC<*const fi_msg_tagged> for MsgArgs {
    #[inline(always)]
    unsafe fn from_c(m: *const fi_msg_tagged) -> Result<Self> {
        // SAFETY: as above.
        unsafe {
            let m = m.as_ref().ok_or(FI_EINVAL)?;
            Ok(MsgArgs {
                buffers: Buffers::from_c((m.msg_iov, m.desc, m.iov_count))?,
                addr: m.addr,
                context: m.context,
                data: m.data,
                tag: Some((m.tag, m.ignore)),
            })
        }
    }
}

impl MsgArgs {
    /// Sends it.
    #[inline(always)]
    fn start_send<D: Domain>(&self, e: &EpBody<D>, flags: u64) -> Result<()> {
        let (Some(id), Some(buf)) = (e.untriggered(flags), self.buffers.one_of_host()) else {
            return self.start_any_send(e, flags);
        };
        let (to, common) = (self.envelope(flags), FlaggedCall::new(self.context, flags));
        match flags & FI_INJECT {
            0 => e.domain.send(id, &to.request(buf.piece()?, common)),
            _ => e
                .domain
                .send(id, &to.request(buf.to_inject().host()?, common)),
        }
    }

    /// As [`MsgArgs::start_send`], of any memory and flags.
    #[cold]
    #[inline(never)]
    fn start_any_send<D: Domain>(&self, e: &EpBody<D>, flags: u64) -> Result<()> {
        self.send(flags, |r| go(e, r))
    }

    /// Posts a receive into it, peeks, claims or discards; to a shared receive context by the
    /// general way.
    #[inline(always)]
    fn start_receive<D: Domain>(&self, e: &EpBody<D>, flags: u64) -> Result<()> {
        let (Some(_), Some(buf)) = (e.untriggered(flags), self.buffers.one_of_host()) else {
            return self.start_any_receive(e, flags);
        };
        let r = RecvReq {
            mem: buf.piece()?,
            src: self.addr,
            tag: self.tag,
            common: FlaggedCall::new(self.context, flags),
        };
        e.domain.recv(e.who, &r)
    }

    /// As [`MsgArgs::start_receive`], of any memory and flags.
    #[cold]
    #[inline(never)]
    fn start_any_receive<D: Domain>(&self, e: &EpBody<D>, flags: u64) -> Result<()> {
        go(e, self.receive(flags)?)
    }

    #[inline(always)]
    fn envelope(&self, flags: u64) -> Envelope {
        Envelope {
            to: self.addr,
            tag: self.tag.map(|(tag, _)| tag),
            cq_data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(self.data),
        }
    }

    /// The request to send it, given to `f`.
    pub(crate) fn send<T>(
        &self,
        flags: u64,
        f: impl FnOnce(MsgReq<SendData>) -> Result<T>,
    ) -> Result<T> {
        with_data(self.buffers.mem()?, flags, |data| {
            f(self
                .envelope(flags)
                .request(data, flagged(self.context, flags)))
        })
    }

    /// The request to receive into it.
    pub(crate) fn receive(&self, flags: u64) -> Result<RecvReq> {
        Ok(RecvReq {
            common: flagged(self.context, flags),
            ..receive(self.buffers.mem()?, self.addr, self.tag, self.context)
        })
    }
}

// ---- messages --------------------------------------------------------------------------------

entry! {
    fn recv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *mut c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        src: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_recv" {
        receive_buffer(e, buf, src, None, context)
    }
}

entry! {
    fn recvv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        src: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_recvv" {
        go(e, receive(buffers.mem()?, src, None, context))
    }
}

entry! {
    fn recvmsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg as MsgArgs,
        flags: u64,
    ) -> isize = "fi_recvmsg" {
        m.start_receive(e, flags)
    }
}

entry! {
    fn send<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        to: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_send" {
        send_buffer(e, buf, Envelope::untagged(to, None), context)
    }
}

entry! {
    fn sendv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        to: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_sendv" {
        let data = SendData::User(buffers.mem()?);
        go(e, Envelope::untagged(to, None).request(data, plain(context)))
    }
}

entry! {
    fn sendmsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg as MsgArgs,
        flags: u64,
    ) -> isize = "fi_sendmsg" {
        m.start_send(e, flags)
    }
}

entry! {
    fn inject<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        to: fi_addr_t,
    ) -> isize = "fi_inject" {
        inject_bytes(e, bytes, Envelope::untagged(to, None))
    }
}

entry! {
    fn senddata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        cq_data: u64,
        to: fi_addr_t,
        context: *mut c_void,
    ) -> isize = "fi_senddata" {
        send_buffer(e, buf, Envelope::untagged(to, Some(cq_data)), context)
    }
}

entry! {
    fn injectdata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        cq_data: u64,
        to: fi_addr_t,
    ) -> isize = "fi_injectdata" {
        inject_bytes(e, bytes, Envelope::untagged(to, Some(cq_data)))
    }
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

entry! {
    fn trecv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *mut c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        src: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize = "fi_trecv" {
        receive_buffer(e, buf, src, Some((tag, ignore)), context)
    }
}

entry! {
    fn trecvv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        src: fi_addr_t,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
    ) -> isize = "fi_trecvv" {
        go(e, receive(buffers.mem()?, src, Some((tag, ignore)), context))
    }
}

entry! {
    fn trecvmsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_tagged as MsgArgs,
        flags: u64,
    ) -> isize = "fi_trecvmsg" {
        m.start_receive(e, flags)
    }
}

entry! {
    fn tsend<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        to: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize = "fi_tsend" {
        send_buffer(e, buf, Envelope::tagged(to, tag, None), context)
    }
}

entry! {
    fn tsendv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        to: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize = "fi_tsendv" {
        let data = SendData::User(buffers.mem()?);
        go(e, Envelope::tagged(to, tag, None).request(data, plain(context)))
    }
}

entry! {
    fn tsendmsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_tagged as MsgArgs,
        flags: u64,
    ) -> isize = "fi_tsendmsg" {
        m.start_send(e, flags)
    }
}

entry! {
    fn tinject<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        to: fi_addr_t,
        tag: u64,
    ) -> isize = "fi_tinject" {
        inject_bytes(e, bytes, Envelope::tagged(to, tag, None))
    }
}

entry! {
    fn tsenddata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        cq_data: u64,
        to: fi_addr_t,
        tag: u64,
        context: *mut c_void,
    ) -> isize = "fi_tsenddata" {
        send_buffer(e, buf, Envelope::tagged(to, tag, Some(cq_data)), context)
    }
}

entry! {
    fn tinjectdata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        cq_data: u64,
        to: fi_addr_t,
        tag: u64,
    ) -> isize = "fi_tinjectdata" {
        inject_bytes(e, bytes, Envelope::tagged(to, tag, Some(cq_data)))
    }
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
