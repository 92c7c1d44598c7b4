//! Entry points of remote memory access, fi_rma(3).

use super::entry::{entry, FromC};
use super::ep::EpBody;
use super::object::Tables;
use super::transfer::*;
use crate::core::iovs::{Iovs, RmaIov, MAX_IOV};
use crate::core::Result;
use crate::prov::contract::*;
use crate::types::*;
use core::ffi::c_void;
use core::mem::size_of;
use core::ptr::null_mut;
use libc::iovec;

/// The remote side of an operation, and what is done there.
#[derive(Clone, Copy)]
struct RemoteAccess {
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    write: bool,
    cq_data: Option<u64>,
}

impl RemoteAccess {
    #[inline(always)]
    fn read(peer: fi_addr_t, addr: u64, key: u64) -> RemoteAccess {
        RemoteAccess {
            peer,
            addr,
            key,
            write: false,
            cq_data: None,
        }
    }

    #[inline(always)]
    fn write(peer: fi_addr_t, addr: u64, key: u64, cq_data: Option<u64>) -> RemoteAccess {
        RemoteAccess {
            peer,
            addr,
            key,
            write: true,
            cq_data,
        }
    }

    /// The request with this memory at the local side.
    #[inline(always)]
    fn request<B, C>(self, data: B, common: C) -> RmaReq<B, C> {
        let RemoteAccess {
            peer,
            addr,
            key,
            write,
            cq_data,
        } = self;
        RmaReq {
            data,
            peer,
            addr,
            key,
            write,
            cq_data,
            common,
        }
    }
}

/// Reads into a buffer, or writes it.
#[inline(always)]
fn access<D: Domain>(
    e: &EpBody<D>,
    buf: Buffer,
    remote: RemoteAccess,
    context: *mut c_void,
) -> Result<()> {
    if buf.of_device() {
        let RemoteAccess {
            peer, addr, key, ..
        } = remote;
        let (write, cq_data) = (remote.write, remote.cq_data);
        let (bytes, desc) = (buf.bytes, buf.desc);
        return access_any(e, bytes, desc, write, peer, addr, key, cq_data, context);
    }
    let common = PlainCall {
        context: context as usize,
    };
    start(e, remote.request(buf.piece()?, common))
}

/// As [`access`], with a device's memory at this end.
#[cold]
#[allow(clippy::too_many_arguments)] // In registers, so that the way past it pays nothing.
fn access_any<D: Domain>(
    e: &EpBody<D>,
    bytes: LentBytes,
    desc: *mut c_void,
    write: bool,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    cq_data: Option<u64>,
    context: *mut c_void,
) -> Result<()> {
    let data = SendData::User(Buffer { bytes, desc }.mem()?);
    let remote = RemoteAccess {
        peer,
        addr,
        key,
        write,
        cq_data,
    };
    go(e, remote.request(data, plain(context)))
}

/// Writes bytes that the caller may change when the call returns.
#[inline(always)]
fn inject_bytes<D: Domain>(e: &EpBody<D>, bytes: InjectBytes, remote: RemoteAccess) -> Result<()> {
    if device_memory_expected() {
        let RemoteAccess {
            peer, addr, key, ..
        } = remote;
        return inject_any(e, bytes, peer, addr, key, remote.cq_data);
    }
    start(e, remote.request(bytes.host()?, PlainCall::default()))
}

/// As [`inject_bytes`], of memory that may be a device's.
#[cold]
fn inject_any<D: Domain>(
    e: &EpBody<D>,
    bytes: InjectBytes,
    peer: fi_addr_t,
    addr: u64,
    key: u64,
    cq_data: Option<u64>,
) -> Result<()> {
    let remote = RemoteAccess::write(peer, addr, key, cq_data);
    let copy = bytes.copy()?;
    let data = SendData::Inject(copy.as_slice().into());
    go(e, remote.request(data, plain(null_mut())))
}

#[inline(always)]
fn start<D: Domain, B: SendBuffer>(e: &EpBody<D>, r: RmaReq<B, PlainCall>) -> Result<()> {
    match e.plain_tx.get() {
        Some(id) => e.domain.rma(id, &r),
        None => start_any(e, r),
    }
}

/// As [`start`], of an alias.
#[cold]
#[inline(never)]
fn start_any<D: Domain, B: SendBuffer>(e: &EpBody<D>, r: RmaReq<B, PlainCall>) -> Result<()> {
    go(e, r.to_general())
}

/// What a `fi_readmsg` or `fi_writemsg` passes.
pub(crate) struct RmaMsgArgs {
    buffers: Buffers,
    addr: fi_addr_t,
    remote: fi_rma_iov,
    /// All pieces of remote memory, where there are several.
    pieces: Option<Iovs>,
    context: *mut c_void,
    data: u64,
}

/// `FI_EINVAL` for no piece of remote memory, and for more than any provider supports.
impl FromC<*const fi_msg_rma> for RmaMsgArgs {
    #[inline(always)]
    unsafe fn from_c(m: *const fi_msg_rma) -> Result<Self> {
        // SAFETY: the message is NULL or valid, with its lists; their memory is lent until
        // completion.
        unsafe {
            let m = m.as_ref().ok_or(FI_EINVAL)?;
            if m.rma_iov.is_null() || !(1..=MAX_IOV).contains(&m.rma_iov_count) {
                crate::warn_log!(
                    FI_LOG_EP_DATA,
                    "rma_iov_count: wanted {}, had 1 to {MAX_IOV}, by tx_attr->rma_iov_limit",
                    m.rma_iov_count
                );
                return Err(FI_EINVAL);
            }
            let pieces = core::slice::from_raw_parts(m.rma_iov, m.rma_iov_count);
            Ok(RmaMsgArgs {
                buffers: Buffers::from_c((m.msg_iov, m.desc, m.iov_count))?,
                addr: m.addr,
                remote: *m.rma_iov,
                pieces: (pieces.len() > 1).then(|| remote_pieces(pieces)),
                context: m.context,
                data: m.data,
            })
        }
    }
}

/// Up to [`MAX_IOV`] pieces as the providers take them.
#[cold]
fn remote_pieces(from: &[fi_rma_iov]) -> Iovs {
    let mut list = [RmaIov::default(); MAX_IOV];
    for (to, from) in list.iter_mut().zip(from) {
        (to.addr, to.len, to.key) = (from.addr, from.len as u64, from.key);
    }
    let list = list.get(..from.len()).unwrap_or(&list);
    Iovs::new(list).unwrap_or_default()
}

impl RmaMsgArgs {
    /// Starts the operation at the endpoint.
    #[inline(always)]
    fn start<D: Domain>(&self, e: &EpBody<D>, flags: u64, write: bool) -> Result<()> {
        let one = self.buffers.one_of_host().filter(|_| self.pieces.is_none());
        let (Some(id), Some(buf)) = (e.untriggered(flags), one) else {
            return self.start_any(e, flags, write);
        };
        let (remote, common) = (
            self.access(flags, write),
            FlaggedCall::new(self.context, flags),
        );
        match (flags & FI_INJECT, write) {
            (0, _) => e.domain.rma(id, &remote.request(buf.piece()?, common)),
            (_, true) => e
                .domain
                .rma(id, &remote.request(buf.to_inject().host()?, common)),
            (_, false) => Err(FI_EBADFLAGS),
        }
    }

    #[inline(always)]
    fn access(&self, flags: u64, write: bool) -> RemoteAccess {
        RemoteAccess {
            peer: self.addr,
            addr: self.remote.addr,
            key: self.remote.key,
            write,
            cq_data: (write && flags & FI_REMOTE_CQ_DATA != 0).then_some(self.data),
        }
    }

    /// As [`RmaMsgArgs::start`], of any memory and flags.
    #[cold]
    #[inline(never)]
    fn start_any<D: Domain>(&self, e: &EpBody<D>, flags: u64, write: bool) -> Result<()> {
        match &self.pieces {
            None => self.request(flags, write, |r| go(e, r)),
            Some(all) => self.start_pieces(e, flags, write, all),
        }
    }

    #[cold]
    fn start_pieces<D: Domain>(
        &self,
        e: &EpBody<D>,
        flags: u64,
        write: bool,
        all: &Iovs,
    ) -> Result<()> {
        if flags & FI_TRIGGER != 0 {
            return self.one_piece();
        }
        let at_endpoint = |mut r: RmaReq<SendData>| {
            r.common.alias = e.tx_flags.get();
            let id = own(e.who)?;
            e.domain.rma_pieces(id, &r, all)
        };
        self.with_remote(flags, write, at_endpoint)
    }

    /// `FI_EINVAL` unless there is one piece of remote memory: for work that starts later.
    fn one_piece(&self) -> Result<()> {
        let Some(all) = &self.pieces else {
            return Ok(());
        };
        crate::warn_log!(
            FI_LOG_EP_DATA,
            "rma_iov_count: wanted {}, had 1 for work that a counter starts",
            all.count()
        );
        Err(FI_EINVAL)
    }

    /// The request with one piece of remote memory, given to `f`; `FI_EINVAL` when there are more.
    pub(crate) fn request<T>(
        &self,
        flags: u64,
        write: bool,
        f: impl FnOnce(RmaReq<SendData>) -> Result<T>,
    ) -> Result<T> {
        self.one_piece()?;
        self.with_remote(flags, write, f)
    }

    fn with_remote<T>(
        &self,
        flags: u64,
        write: bool,
        f: impl FnOnce(RmaReq<SendData>) -> Result<T>,
    ) -> Result<T> {
        let mem = self.buffers.mem()?;
        if !write && flags & FI_INJECT != 0 {
            return Err(FI_EBADFLAGS);
        }
        let remote = self.access(flags, write);
        with_data(mem, flags, |data| {
            f(remote.request(data, flagged(self.context, flags)))
        })
    }
}

entry! {
    fn read<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *mut c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        src: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize = "fi_read" {
        access(e, buf, RemoteAccess::read(src, addr, key), context)
    }
}

entry! {
    fn readv<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        src: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize = "fi_readv" {
        let data = SendData::User(buffers.mem()?);
        go(e, RemoteAccess::read(src, addr, key).request(data, plain(context)))
    }
}

entry! {
    fn readmsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_rma as RmaMsgArgs,
        flags: u64,
    ) -> isize = "fi_readmsg" {
        m.start(e, flags, false)
    }
}

entry! {
    fn write<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize = "fi_write" {
        access(e, buf, RemoteAccess::write(to, addr, key, None), context)
    }
}

entry! {
    fn writev<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (iov: *const iovec, desc: Desc, count: usize) as buffers: Buffers,
        to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize = "fi_writev" {
        let data = SendData::User(buffers.mem()?);
        go(e, RemoteAccess::write(to, addr, key, None).request(data, plain(context)))
    }
}

entry! {
    fn writemsg<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        m: *const fi_msg_rma as RmaMsgArgs,
        flags: u64,
    ) -> isize = "fi_writemsg" {
        m.start(e, flags, true)
    }
}

entry! {
    fn inject_write<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        to: fi_addr_t,
        addr: u64,
        key: u64,
    ) -> isize = "fi_inject_write" {
        inject_bytes(e, bytes, RemoteAccess::write(to, addr, key, None))
    }
}

entry! {
    fn writedata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize, desc: *mut c_void) as buf: Buffer,
        cq_data: u64,
        to: fi_addr_t,
        addr: u64,
        key: u64,
        context: *mut c_void,
    ) -> isize = "fi_writedata" {
        access(e, buf, RemoteAccess::write(to, addr, key, Some(cq_data)), context)
    }
}

entry! {
    fn inject_writedata<D: Domain>(
        e: *mut fid_ep as &EpBody<D>,
        (buf: *const c_void, len: usize) as bytes: InjectBytes,
        cq_data: u64,
        to: fi_addr_t,
        addr: u64,
        key: u64,
    ) -> isize = "fi_inject_writedata" {
        inject_bytes(e, bytes, RemoteAccess::write(to, addr, key, Some(cq_data)))
    }
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
